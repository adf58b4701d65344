"""What kube-apiserver refuses a server-side apply for: fields and words that are not in the schema of its CRD.

Sentences and codes are those of 1.36; ``tests/cluster/real/test_versions.py`` has the same refusals of a real server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

KEEPS = "x-kubernetes-preserve-unknown-fields"


def undeclared(value: Any, schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The paths of fields that the schema does not have; of several in one mapping, one."""
    if isinstance(value, Mapping):
        known, inside = schema.get("properties"), schema.get("additionalProperties")
        strange = [name for name in value if name not in (known or {}) and inside is None]
        if strange and known is not None and not schema.get(KEEPS):
            yield f"{place}.{strange[0]}"
            return
        for name, item in value.items():
            yield from undeclared(item, (known or {}).get(name) or inside or {}, f"{place}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from undeclared(item, schema.get("items") or {}, f"{place}[{number}]")


def pruned(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value without the fields that the schema does not have."""
    if isinstance(value, list):
        return [pruned(item, schema.get("items") or {}) for item in value]
    known = schema.get("properties")
    if not isinstance(value, Mapping) or known is None or schema.get(KEEPS):
        return value
    return {name: pruned(item, known[name]) for name, item in value.items() if name in known}


def strange_words(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[dict[str, str]]:
    """A cause for each word that the schema does not list."""
    if isinstance(value, Mapping):
        inside = schema.get("additionalProperties") or {}
        for name, item in value.items():
            known = (schema.get("properties") or {}).get(name) or inside
            yield from strange_words(item, known, f"{place}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from strange_words(item, schema.get("items") or {}, f"{place}[{number}]")
    elif "enum" in schema and value not in schema["enum"]:
        words = ", ".join(f'"{word}"' for word in schema["enum"])
        message = f'Unsupported value: "{value}": supported values: {words}'
        yield {"reason": "FieldValueNotSupported", "field": place, "message": message}


def older(definition: Mapping[str, Any], *paths: str, words: Mapping[str, str] = {}) -> dict[str, Any]:
    """A CRD without some fields, by paths such as ``status.doctor.errors`` (rows of lists are passed through), and
    without a word of some others.

    :raises KeyError: it has no such field, so that a test would test nothing.
    """
    found = deepcopy(dict(definition))
    for path in paths:
        *parents, last = path.split(".")
        del _schema_at(found, parents)["properties"][last]
    for path, word in words.items():
        _schema_at(found, path.split("."))["enum"].remove(word)
    return found


def schema_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _schema_at(definition: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    at = schema_of(definition)
    for name in names:
        at = at["properties"][name]
        at = at.get("items", at)
    return at
