"""Looks for unix sockets and shared memory between containers: a millisecond for some 100 open files, so once a minute.

Wakes are counted only while there is such a pair (ebpf.py), so that wakes cannot tell where to look: all containers
are looked at. A pair that was found is believed until the next look, one with a unix socket for some looks more: it may
have none open just then.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Callable, NamedTuple, Optional

from bpf.identity.attribution import Attribution
from bpf.kernel.netlink import SockDiag, UnixSocket
from bpf.kernel.procfs import in_netns, mounts_of, namespace_of, socket_inodes
from bpf.service.log import log
from bpf.sources.samples import Pair, Peers, pair

#: At a sample each 10 s, what begins to share something is seen after a minute, which is the graph's half-life.
LOOK_EVERY = 6
#: Looks for which a pair with a unix socket is believed.
BELIEVED = 10


class PeerSearch:
    """Remembers what ``find`` has found."""

    def __init__(self, find: Callable[[], Peers]) -> None:
        self._find = find
        self._found = Peers()
        self._unix: deque[Collection[Pair]] = deque(maxlen=BELIEVED)
        self._samples_since = LOOK_EVERY

    def peers(self) -> Peers:
        """The pairs that share something; to be asked once a sample."""
        self._samples_since += 1
        if self._samples_since >= LOOK_EVERY:
            self._found, self._samples_since = self._find(), 0
            self._unix.append(self._found.unix)
            self._found = replace(self._found, unix=frozenset().union(*self._unix))
        return self._found


def find_peers(attribution: Attribution) -> Peers:
    """The containers that share a socket or memory; a kind that cannot be read counts as none, and is logged."""
    found: list[frozenset[Pair]] = []
    for kind, find in (("unix sockets", find_unix_peers), ("shared memory", find_memory_peers)):
        try:
            found.append(find(attribution))
        except OSError as error:
            log("warning", f"{kind} not seen", reason=error)
            found.append(frozenset())
    return Peers(*found)


# ---------------------------------------------------------------------- unix sockets

# The kernel lists the peers, /proc the process that has a socket open. A datagram socket counts where it is connected
# (``connect``); one that only sends to names has no peer to be listed.
#
# A connection that is made for one request is listed, and gone before its processes are found. It was made to a listener
# that a container has open: then all containers that can reach that listener are taken for its peers. Wakes tell which
# of them are (samples.py).

#: These take 0.4 s to look at.
MOST_DESCRIPTORS = 50_000
#: For so long namespaces in which something listens are listed again and again, with pauses: a connection for one request is
#: seldom open.
_LISTED_S, _PAUSE_S = 0.3, 0.003


def find_unix_peers(
    attribution: Attribution,
    among: Optional[Collection[str]] = None,
    most_descriptors: int = MOST_DESCRIPTORS,
) -> frozenset[Pair]:
    """The pairs of containers (of those in ``among``, else of all) with unix sockets connected to each other.

    Costs up to 8 us for each open file of these containers, and 0.2 ms for each network namespace; what is beyond
    ``most_descriptors`` is not looked at.

    :raises OSError: a network namespace may not be entered.
    """
    wanted = [container for container in attribution.containers if among is None or container in among]
    processes = [(container, pid) for container in wanted for pid in attribution.pids_of(container)]
    # 1. The sockets that have a peer, and listeners. Only these are remembered below: a server may have 10,000 others.
    listed = _listed(
        attribution.proc, _one_of_each_namespace(attribution.proc, [pid for _, pid in processes])
    )
    peers = {inode: found.peer for inode, found in listed.items() if found.peer}
    if not peers:
        return frozenset()
    # 2. Which process has them open.
    ends = listed.keys() | set(peers.values())
    owners: dict[int, dict[str, int]] = {}
    left = most_descriptors
    for container, pid in processes:
        for inode in socket_inodes(attribution.proc, pid, max(left, 0)):
            left -= 1
            if inode in ends:
                owners.setdefault(inode, {})[container] = pid
    pairs = {
        pair(a, b)
        for inode, peer in peers.items()
        for a in owners.get(inode, ())
        for b in owners.get(peer, ())
        if a != b
    }
    # 3. Listeners whose connections have ended meanwhile.
    ended = {
        listed[inode].name for inode, peer in peers.items() if inode not in owners and peer not in owners
    }
    for inode, found in listed.items():
        if found.is_listening and found.name in ended:
            for server, pid in owners.get(inode, {}).items():
                reach = _Reach(attribution.proc, pid, found.name)
                pairs |= {pair(server, a) for a, other in processes if a != server and reach.is_had_by(other)}
    return frozenset(pairs)


def _one_of_each_namespace(proc: str, pids: Iterable[int]) -> Iterable[int]:
    """A process of each network namespace that these are in."""
    found: dict[int, int] = {}
    for pid in pids:
        number = namespace_of(proc, pid)
        if number is not None:
            found.setdefault(number, pid)
    return found.values()


def _listed(proc: str, pids: Iterable[int]) -> dict[int, UnixSocket]:
    """The unix sockets with a peer that were made in the network namespaces of processes, and listeners with a name."""
    found: dict[int, UnixSocket] = {}
    with ExitStack() as opened:
        listening = []
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError), in_netns(proc, pid):
                diag = SockDiag()
                opened.callback(diag.close)
                listening.append(diag)
        end_s = time.monotonic() + _LISTED_S
        while listening := [diag for diag in listening if _list(diag, found)]:
            if time.monotonic() >= end_s:
                break
            time.sleep(_PAUSE_S)
    return found


def _list(diag: SockDiag, found: dict[int, UnixSocket]) -> bool:
    """Add what one namespace has; whether something listens in it."""
    does_listen = False
    for one in diag.unix():
        is_listener = one.is_listening and bool(one.name)
        does_listen |= is_listener
        if one.peer or is_listener:
            found[one.inode] = one
    return does_listen


class _Reach:
    """Which processes can connect to a name that a process listens at: those in its namespace, or that see its file."""

    def __init__(self, proc: str, pid: int, name: bytes) -> None:
        self._proc = proc
        self._netns = namespace_of(proc, pid) if name.startswith(b"\0") else None
        self._device = self._path = ""
        self._file = None
        path = os.fsdecode(name)
        over = [mount for mount in mounts_of(proc, pid) if _is_below(path, mount.point)]
        if self._netns is None and over:
            mount = max(over, key=lambda mount: len(mount.point))
            self._device, self._path = (
                mount.device,
                os.path.join(mount.root, os.path.relpath(path, mount.point)),
            )
            self._file = _file_at(proc, pid, path)

    def is_had_by(self, pid: int) -> bool:
        if self._netns is not None:
            return namespace_of(self._proc, pid) == self._netns
        return self._file is not None and any(
            _file_at(self._proc, pid, os.path.join(mount.point, os.path.relpath(self._path, mount.root)))
            == self._file
            for mount in mounts_of(self._proc, pid)
            if mount.device == self._device and _is_below(self._path, mount.root)
        )


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _file_at(proc: str, pid: int, path: str) -> Optional[tuple[int, int]]:
    """Device and inode of what a process sees there."""
    try:
        found = os.lstat(f"{proc}/{pid}/root{path}")
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ---------------------------------------------------------------------- shared memory

# A file, a memfd, a System V segment that containers have mapped, shared and writable. That they map it is no traffic;
# wakes between them are (samples.py).

#: Of one process's list of mappings this much is read: some 10,000 mappings.
MOST_BYTES = 1 << 20
#: Of all processes.
MOST_TOTAL_BYTES = 64 << 20
#: A segment that more containers map is a log or a clock of the host's, and would make a clique of them.
MOST_SHARERS = 16
_SHARED_WRITABLE = (b" rw-s ", b" rwxs ")


class Segment(NamedTuple):
    """Mapped memory. ``scope``: the ipc namespace of a System V segment, whose inode is its number there (0 too)."""

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
