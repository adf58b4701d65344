"""The mounts of this process, read anew only when the kernel says that they have changed (proc(5), mountinfo).

A node has a line for every volume of every pod; those that were there before are not parsed again.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

#: How mountinfo writes blanks and the like.
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where it is, the number of its device ("8:1"), and its source.

    ``is_followed``: what is mounted below it later reaches mounts of it elsewhere, for it is a shared or a slave mount.
    """

    point: str
    number: str
    source: str
    is_followed: bool = False


class Mounts:
    """What ``path`` (/proc/self/mountinfo) lists. May be asked by several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._changes = select.poll()
        self._was: object = None
        self._lines: dict[str, Mount] = {}
        self._by_point: dict[str, Mount] = {}
        self._in_use = threading.Lock()
        #: How often the file was read, and how many of its lines were parsed.
        self.read = self.parsed = 0

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def of(self, path: str) -> Mount:
        """The mount that an absolute path is on, the last of those at one point; all fields "" if that is not known."""
        return _mount_of(path, self._known())

    def of_unchanged(self, paths: Iterable[str]) -> Optional[list[Mount]]:
        """The same of several, if nothing has changed since they were last read. Never waits, reads no file."""
        if not self._in_use.acquire(blocking=False):
            return None
        try:
            if self._descriptor < 0 or self._has_changed():
                self._was = None  # read it the next time
                return None
            return [_mount_of(path, self._by_point) for path in paths]
        except OSError:
            return None
        finally:
            self._in_use.release()

    def has(self, mount: Mount) -> bool:
        """Whether it was there when they were last read."""
        return self._by_point.get(mount.point) == mount

    def _known(self) -> Mapping[str, Mount]:
        with self._in_use:
            try:
                if self._has_changed():
                    self._read()
            except OSError:
                self._close()
                self._by_point = {}
            return self._by_point

    def _has_changed(self) -> bool:
        """Asked before the file is read: what changes meanwhile shows the next time."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._changes.register(self._descriptor, select.POLLPRI)
            self._was = None
        told = self._changes.poll(0)
        status = os.fstat(self._descriptor)
        # A file that is not the kernel's tells by its date.
        was, self._was = self._was, (status.st_mtime_ns, status.st_size)
        return bool(told) or was != self._was

    def _read(self) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._descriptor, 1 << 20):
            parts.append(part)
        lines = b"".join(parts).decode(errors="surrogateescape").splitlines()
        self.read += 1
        known, self._lines = self._lines, {}
        for line in lines:
            mount = known.get(line) or self._parse(line)
            self._lines[line] = mount
        self._by_point = {mount.point: mount for mount in self._lines.values() if mount.point}

    def _parse(self, line: str) -> Mount:
        self.parsed += 1
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(source) > 1:
            is_followed = any(field.startswith(("shared:", "master:")) for field in fields[6:])
            return Mount(_unescaped(fields[4]), fields[2], _unescaped(source[1]), is_followed)
        return Mount("", "", "")

    def _close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError, KeyError):
                self._changes.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _mount_of(path: str, by_point: Mapping[str, Mount]) -> Mount:
    path = os.path.normpath(path)
    while path not in by_point and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return by_point.get(path, Mount("", "", ""))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
