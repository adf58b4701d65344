"""A JSON file that is there as a whole or not at all, and is set aside where it cannot be understood."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


def write_json(path: str, document: Any) -> None:
    """Replace the file; it is on the disk then.

    :raises OSError: that cannot be done; the file of before is still there.
    """
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def set_aside(path: str) -> str:
    """Keep a file under another name, so that people can look at it; returns that name."""
    aside = f"{path}.bad"
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    return aside
