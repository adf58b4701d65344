"""Facts of a process in /proc: its sockets, its namespaces, its cgroup. Processes that are gone have nothing.

A thread enters the network namespace of a process for a moment (``in_netns``): sockets made there stay there.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Optional

#: A process may hold a million files; its first ones are enough to know what it talks to.
MOST_DESCRIPTORS = 20_000
_CLONE_NEWNET = 0x40000000


def read_text(path: str) -> Optional[str]:
    """The text of a small file of /proc, /sys or a cgroup; None if it is gone, or not ours to read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def socket_inodes(proc: str, pid: int, most: int = MOST_DESCRIPTORS) -> Iterator[int]:
    """The inodes of the sockets that a process has open, of its ``most`` first descriptors."""
    folder = f"{proc}/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return
    for descriptor in descriptors[:most]:
        try:
            target = os.readlink(f"{folder}/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def namespace_of(proc: str, pid: int, kind: str = "net") -> Optional[int]:
    """The number of the namespace of that kind (net, ipc, mnt...) that a process is in; None = the process is gone."""
    try:
        return os.stat(f"{proc}/{pid}/ns/{kind}").st_ino
    except OSError:
        return None


class Mount(NamedTuple):
    """A mount that a process sees. ``root``: the folder or file of the device's file system that is seen at ``point``."""

    device: str
    root: str
    point: str


def mounts_of(proc: str, pid: int) -> list[Mount]:
    """What a process has mounted; nothing where it is gone."""
    lines = (read_text(f"{proc}/{pid}/mountinfo") or "").splitlines()
    fields = (line.split(" ", 5) for line in lines)
    return [
        Mount(found[2], _unescaped(found[3]), _unescaped(found[4])) for found in fields if len(found) == 6
    ]


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


@contextmanager
def in_netns(proc: str, pid: int) -> Iterator[int]:
    """Run a block in the network namespace of a process; its number. Only the calling thread goes there.

    :raises FileNotFoundError, ProcessLookupError: the process is gone.
    :raises OSError: the namespace may not be entered (CAP_SYS_ADMIN is needed).
    """
    with _opened(f"{proc}/{pid}/ns/net") as there, _opened("/proc/thread-self/ns/net") as home:
        _set_namespace(there)
        try:
            yield os.fstat(there).st_ino
        finally:
            _set_namespace(home)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    """setns(2); os.setns is of Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespace not entered: {os.strerror(number)}")
