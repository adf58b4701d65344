"""Entering another network namespace for a moment: sockets made there stay there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000


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
