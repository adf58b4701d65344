"""Which containers have the same memory mapped, shared and writable: a file, a memfd, a System V segment.

That they map it is no traffic; wakes between them are (wakeups.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, Optional

from bpf.identity.attribution import Attribution
from bpf.kernel.procfs import namespace_of
from bpf.sources.wakeups import Pair

#: Of one process's list of mappings this much is read: some 10,000 mappings.
MOST_BYTES = 1 << 20
#: Of all processes.
MOST_TOTAL_BYTES = 64 << 20
#: A segment that more containers map is a log or a clock of the host's, and would make a clique of them.
MOST_SHARERS = 16
_SHARED_WRITABLE = (b" rw-s ", b" rwxs ")


class Segment(NamedTuple):
    """What is mapped. ``scope``: the ipc namespace of a System V segment, whose inode is its number there (0 too)."""

    device: str
    inode: int
    scope: int = 0


def find_memory_peers(
    attribution: Attribution,
    among: Optional[Collection[str]] = None,
    most_bytes: int = MOST_TOTAL_BYTES,
) -> frozenset[Pair]:
    """The pairs of containers (of those in ``among``, else of all) that map the same memory, shared and writable.

    Costs 0.1 to 0.4 ms a process, by how much it has mapped; beyond ``most_bytes`` of lists nothing is looked at.
    """
    sharers: dict[Segment, set[str]] = {}
    left = most_bytes
    for container in attribution.containers:
        if among is not None and container not in among:
            continue
        for pid in attribution.pids_of(container):
            maps = _read_maps(attribution.proc, pid, min(left, MOST_BYTES))
            left -= len(maps)
            for segment in _segments_of(attribution.proc, pid, maps):
                sharers.setdefault(segment, set()).add(container)
    return frozenset(
        (a, b)
        for containers in sharers.values()
        if 1 < len(containers) <= MOST_SHARERS
        for a in containers
        for b in containers
        if a < b
    )


def shared_segments(maps: bytes) -> Iterator[tuple[Segment, str]]:
    """The segments of a /proc/PID/maps that are shared, writable memory, each with its path.

    Left out: devices (their memory is not ours to place), files of the kernel that all processes share
    (anon_inode), and anonymous memory (/dev/zero), which only children inherit.
    """
    if not any(mode in maps for mode in _SHARED_WRITABLE):
        return
    for line in maps.splitlines():
        if not any(mode in line for mode in _SHARED_WRITABLE):
            continue
        fields = line.split(None, 5)
        path = fields[5].decode("utf-8", "replace") if len(fields) > 5 else ""
        if len(fields[1]) != 4 or fields[1][3:] != b"s" or not _is_memory(path):
            continue
        yield Segment(fields[3].decode(), int(fields[4])), path


def _is_memory(path: str) -> bool:
    if path.startswith("anon_inode:") or not path:
        return False
    return not path.startswith("/dev/") or path.startswith(("/dev/shm/", "/dev/hugepages/"))


def _segments_of(proc: str, pid: int, maps: bytes) -> Iterator[Segment]:
    for segment, path in shared_segments(maps):
        if path.startswith("/SYSV"):
            yield segment._replace(scope=namespace_of(proc, pid, "ipc") or pid)
        else:
            yield segment


def _read_maps(proc: str, pid: int, most_bytes: int) -> bytes:
    if most_bytes <= 0:
        return b""
    try:
        with open(f"{proc}/{pid}/maps", "rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""
