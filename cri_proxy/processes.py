"""Which processes run, by what any process may read of any other (mode 0444 in proc(5)).

The daemon's unit has no CAP_SYS_PTRACE: links such as ``exe`` and ``ns/pid`` of other processes are closed to it. What may
not be looked at is said, and never taken for what is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional


class NotSeen(Exception):
    """Whether a program runs may not be looked at. The message says what hides it."""


class Processes:
    """Those of one ``proc``. ``hidden``: why some of them are not seen, as far as it has been read; "" = all are."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self.hidden = ""

    def named(self) -> Iterator[tuple[Path, str]]:
        """The folder and the name (``comm``) of each, by number; those that end meanwhile are left out."""
        try:
            entries = os.listdir(self._proc)
        except OSError as error:
            self.hidden = f"{self._proc} cannot be listed: {error.strerror}"
            return
        # A proc of the kernel's lists its first process, unless it hides those of others.
        if "1" not in entries and "self" in entries:
            self.hidden = f"{self._proc} hides processes (hidepid)"
        for pid in sorted(int(entry) for entry in entries if entry.isdigit()):
            folder = self._proc / str(pid)
            name = self.read(folder / "comm")
            if name:
                yield folder, name.decode(errors="replace").rstrip("\n")

    def read(self, file: Path) -> Optional[bytes]:
        """A file of a process; None: it has ended, or may not be looked at."""
        try:
            return file.read_bytes()
        except PermissionError as error:
            self.hidden = self.hidden or f"{file}: {error.strerror}"
        except OSError:
            pass
        return None
