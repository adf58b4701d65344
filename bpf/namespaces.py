"""Entering another network namespace for a moment: sockets made there stay there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000


@contextmanager
def in_netns(descriptor: int) -> Iterator[None]:
    """Run a block in the network namespace of an open /proc/PID/ns/net. Only the calling thread goes there.

    :raises OSError: the namespace may not be entered (CAP_SYS_ADMIN is needed).
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(descriptor)
        try:
            yield
        finally:
            _set_namespace(home)
    finally:
        os.close(home)


def _set_namespace(descriptor: int) -> None:
    """setns(2); os.setns is of Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespace not entered: {os.strerror(number)}")
