"""One line an event on stderr, ``key=value``, as the observer writes them."""

from __future__ import annotations

import sys
from typing import Any


def log(level: str, event: str, **fields: Any) -> None:
    """Write a line; ``level``: info, warning, error. A reader that is gone is no reason to fail."""
    words = [f"level={level}", f"event={_quoted(event)}"]
    words += [f"{key}={_quoted(str(value))}" for key, value in fields.items()]
    try:
        sys.stderr.write(" ".join(words) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def _quoted(text: str) -> str:
    if text and not any(letter in ' "=\\' or not letter.isprintable() for letter in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class TroubleLog:
    """A trouble is logged when it begins, when it is another, and when it ends: not with each try."""

    def __init__(self, about: str, end: str = "it answers again", level: str = "warning") -> None:
        self._about, self._end, self._level = about, end, level
        self._said = ""

    def trouble(self, sentence: str) -> None:
        if sentence != self._said:
            log(self._level, self._about, reason=sentence)
        self._said = sentence

    def well(self) -> None:
        if self._said:
            log("info", self._about, reason=self._end)
        self._said = ""
