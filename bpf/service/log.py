"""One line an event on stderr, ``key=value``: what the journal wants, in 30 lines instead of a library."""

from __future__ import annotations

import sys
from typing import Any


def log(level: str, event: str, **fields: Any) -> None:
    """Write a line; ``level``: debug, info, warning, error. A log without a reader is no reason to fail."""
    words = [f"level={level}", f"event={_quoted(event)}"]
    words += [f"{key}={_quoted(value)}" for key, value in fields.items()]
    try:
        sys.stderr.write(" ".join(words) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def _quoted(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    is_plain = text and not any(letter in ' "=\\' or not letter.isprintable() for letter in text)
    if is_plain:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
