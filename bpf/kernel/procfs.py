"""Facts of a process in /proc: its sockets, its namespaces, its cgroup. Processes that are gone have nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Optional

#: A process may hold a million files; its first ones are enough to know what it talks to.
MOST_DESCRIPTORS = 20_000


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
