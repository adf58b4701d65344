"""JSON that a runtime shows without a schema: what has the wrong type counts as not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

#: The ranges of protobuf's numbers.
INT32, UINT32 = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
INT64, UINT64 = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)


def parse_object(text: str) -> Mapping[str, Any]:
    """A JSON object; {} if the text is none."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    # JSON can escape what is no text in UTF-8.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def as_texts(value: Any) -> list[str]:
    texts = [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
    # A seccomp profile has 400 names: one look at all of them is cheaper.
    return texts if "".join(texts).isascii() else [as_text(text) for text in texts]


def as_text_map(value: Any) -> dict[str, str]:
    return {as_text(key): as_text(entry) for key, entry in as_object(value).items() if isinstance(entry, str)}


def as_number(value: Any, limits: tuple[int, int] = INT64) -> Optional[int]:
    """A whole number within limits; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or not limits[0] <= value <= limits[1]:
        return None
    return value


def as_numbers(value: Any, limits: tuple[int, int] = INT64) -> list[int]:
    numbers = [as_number(entry, limits) for entry in value] if isinstance(value, list) else []
    return [number for number in numbers if number is not None]
