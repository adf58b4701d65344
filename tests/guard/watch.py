"""Notes what programs of a test run do to what is the machine's own, as the kernel tells it: fanotify(7), for root.

``python watch.py LOG PID VARIABLE FOLDER...`` says ``ready`` or why it cannot, and ends when its input does. A program
is the run's if it descends from the process PID or has the run's VARIABLE in its environment. What belongs to none, an
installed daemon above all, is passed over; so is a program that had ended before it could be looked at.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# linux/fanotify.h
_NONBLOCK, _UNLIMITED_QUEUE, _REPORT_DFID_NAME = 0x2, 0x10, 0xC00
_MARK_ADD, _INFO_DFID_NAME = 0x1, 2
_OPEN, _MODIFY, _ATTRIB, _ONDIR, _EVENT_ON_CHILD = 0x20, 0x2, 0x4, 0x40000000, 0x08000000
_MADE = {0x40: "moved from", 0x80: "moved to", 0x100: "created", 0x200: "removed"}
_DONE = {_OPEN: "opened", _MODIFY: "written", _ATTRIB: "changed", **_MADE}
_CHANGES = sum(_MADE) | _ONDIR
_ALL = sum(_DONE) | _ONDIR | _EVENT_ON_CHILD
_METADATA = struct.Struct("=IBBHQii")
_INFO, _HANDLE = struct.Struct("=BBH8x"), struct.Struct("=Ii")
_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    done: str
    path: Path
    pid: int


class Folders:
    """The machine's folders: what gets a name of ours in them, and all that happens in folders that have one."""

    def __init__(self, folders: list[Path]) -> None:
        flags = _REPORT_DFID_NAME | _NONBLOCK | _UNLIMITED_QUEUE
        self.descriptor = _checked(_libc.fanotify_init(flags, os.O_RDONLY))
        self._folders: dict[bytes, Path] = {}
        self._watched = folders
        for folder in folders:
            self._mark(folder, _CHANGES)
            for ours in folder.glob("cri-resmgr*"):
                self._mark_all(ours)

    def _mark_all(self, ours: Path) -> None:
        for folder, _, _ in os.walk(ours):
            self._mark(Path(folder), _ALL)

    def _mark(self, folder: Path, events: int) -> None:
        self._folders[_handle(folder)] = folder
        mask, path = ctypes.c_uint64(events), os.fsencode(folder)
        _checked(_libc.fanotify_mark(self.descriptor, _MARK_ADD, mask, _AT_FDCWD, path))

    def read(self) -> Iterator[Event]:
        """What has happened since, by any program of the machine."""
        while True:
            try:
                data = os.read(self.descriptor, 65536)
            except BlockingIOError:
                return
            while data:
                length, _, _, head, mask, _, pid = _METADATA.unpack_from(data)
                yield from self._event(mask, pid, data[head:length])
                data = data[length:]

    def _event(self, mask: int, pid: int, info: bytes) -> Iterator[Event]:
        kind, _, length = _INFO.unpack_from(info)
        size, _ = _HANDLE.unpack_from(info, _INFO.size)
        end = _INFO.size + _HANDLE.size + size
        folder = self._folders.get(info[_INFO.size : end])
        if kind != _INFO_DFID_NAME or folder is None:
            return
        path = folder / os.fsdecode(info[end:length].rstrip(b"\0"))
        if folder in self._watched and not path.name.startswith("cri-resmgr"):
            return
        if path.is_dir() and mask & 0x180:  # it is new here
            self._mark_all(path)
        done = ", ".join(word for bit, word in _DONE.items() if mask & bit)
        yield Event(done, path, pid)


def _handle(folder: Path) -> bytes:
    """How events name the folder: its file handle, as in name_to_handle_at(2)."""
    handle = ctypes.create_string_buffer(_HANDLE.pack(128, 0), _HANDLE.size + 128)
    mount = ctypes.c_int()
    _checked(_libc.name_to_handle_at(_AT_FDCWD, os.fsencode(folder), handle, ctypes.byref(mount), 0))
    return handle.raw[: _HANDLE.size + _HANDLE.unpack_from(handle.raw)[0]]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def is_of_run(pid: int, run: int, variable: bytes) -> bool:
    """Whether a process is the run's. One that has ended is not."""
    try:
        if variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        while pid not in (0, run):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return False
    return pid == run


def main(log: Path, run: int, variable: str, folders: list[Path]) -> None:
    try:
        watched = Folders(folders)
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # a program that ends at once is still there then
    except OSError as error:
        print(f"the kernel watches no folder for it: {error.strerror}", flush=True)
        return
    print("ready", flush=True)
    ended = False
    while not ended:
        readable, _, _ = select.select([watched.descriptor, sys.stdin], [], [])
        ended = sys.stdin in readable
        for event in watched.read():
            if event.pid != os.getpid() and is_of_run(event.pid, run, os.fsencode(variable)):
                with log.open("a") as file:
                    file.write(f"{event.done} {event.path}: {event.pid} {_command(event.pid)}\n")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
    except OSError:
        return "(it has ended)"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [Path(folder) for folder in sys.argv[4:]])
