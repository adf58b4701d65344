"""The two kinds of packages: how each is installed and removed, and what that prints."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """``install``, ``remove``: commands without what they are given. ``says``: how lines begin that mean nothing."""

    name: str
    install: tuple[str, ...]
    remove: tuple[str, ...]
    says: tuple[str, ...]


DEB = Kind(
    "deb",
    ("dpkg", "--force-unsafe-io", "--install"),
    ("dpkg", "--remove"),
    ("Selecting", "(Reading", "Preparing", "Unpacking", "Setting up"),
)
#: The root's Python is no rpm, so nothing that is asked for is there. An older package is a downgrade.
#: Debian's rpm says that it is not Debian's package manager.
RPM = Kind("rpm", ("rpm", "--upgrade", "--oldpackage", "--nodeps"), ("rpm", "--erase"), ("rpm: ",))


def ask(*words: str) -> str:
    """What a packager's command prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
