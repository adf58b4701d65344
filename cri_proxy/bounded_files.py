"""Reads files that are not to be trusted: no file can be endless, or keep its reader waiting.

A path may lead to a FIFO that nothing writes to, a device, a file system that does not answer.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Callable, TypeVar, Union

Result = TypeVar("Result")

#: The largest of the kernel's files that are read: cgroup.procs of 100,000 processes has 700 KB.
KERNEL_BYTES = 4 << 20
#: Read at a time. More than 4 MiB at once of a file below /proc/sys is ENOMEM, and each buffer is there before it is full.
_READ_BYTES = 1 << 16
#: Of the kernel's largest number, 64 bits.
_DIGITS = 20
#: How long a start waits for one small file that it can do without, seconds.
SMALL_FILE_S = 1.0

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


class NotRead(OSError):
    """The file is not what is read; ``strerror`` says what it is instead."""

    def __init__(self, path: Union[str, Path], reason: str) -> None:
        super().__init__(0, reason, str(path))


def read_bytes(path: Union[str, Path], limit: int) -> bytes:
    """All of a regular file (after links) of at most ``limit`` bytes.

    :raises OSError: it cannot be read; ``strerror`` says why (``NotRead``: another kind of file, or a larger one).
    """
    data = read_beginning(path, limit + 1)
    if len(data) > limit:
        raise NotRead(path, f"it is larger than {limit} bytes")
    return data


def read_beginning(path: Union[str, Path], limit: int) -> bytes:
    """As ``read_bytes``, of a larger file the first ``limit`` bytes."""
    _must_be_regular(path, os.stat(path))  # opening a device may set something off
    # O_NONBLOCK: it may be another file by now.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _must_be_regular(path, os.fstat(descriptor))
        data = b""
        while len(data) < limit and (more := file.read(min(limit - len(data), _READ_BYTES))):
            data += more
    return data


def read_text(path: Union[str, Path], limit: int = KERNEL_BYTES) -> str:
    """As ``read_bytes``; bytes that are no UTF-8 are replaced."""
    return read_bytes(path, limit).decode(errors="replace")


def read_number(text: Union[str, bytes]) -> int:
    """A number as the kernel writes it, with blanks around it.

    :raises ValueError: it is none, or longer than any of the kernel's.
    """
    digits = text.strip()
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} characters, at most {_DIGITS} are expected")
    return int(digits)


def _must_be_regular(path: Union[str, Path], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        raise NotRead(path, f"it is {kind}, expected a regular file")


def within(limit_s: float, work: Callable[[], Result]) -> Result:
    """What ``work`` returns or raises, if it is done in time; else it goes on in a thread and is forgotten.

    :raises TimeoutError: it is not.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="bounded-read", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"not done in {limit_s:g} s")
    return results[0]
