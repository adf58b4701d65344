"""Which containers are connected by unix sockets: the kernel's list of peers, and which process has which socket open.

A datagram socket counts where it is connected (``connect``); one that only sends to names has no peer to be listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Optional

from bpf.identity.attribution import Attribution
from bpf.kernel.namespaces import in_netns
from bpf.kernel.netlink import SockDiag
from bpf.kernel.procfs import namespace_of, socket_inodes
from bpf.sources.wakeups import Pair, pair

#: These take 0.4 s to look at.
MOST_DESCRIPTORS = 50_000


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
    # 1. The sockets that have a peer. Only these are remembered below: a server may have 10,000 others.
    peers: dict[int, int] = {}
    for pid in _one_of_each_namespace(attribution.proc, [pid for _, pid in processes]):
        peers.update(_peers_in(attribution.proc, pid))
    if not peers:
        return frozenset()
    # 2. Which process has them open.
    ends = peers.keys() | set(peers.values())
    owners: dict[int, set[str]] = {}
    left = most_descriptors
    for container, pid in processes:
        for inode in socket_inodes(attribution.proc, pid, max(left, 0)):
            left -= 1
            if inode in ends:
                owners.setdefault(inode, set()).add(container)
    return frozenset(
        pair(a, b)
        for inode, peer in peers.items()
        for a in owners.get(inode, ())
        for b in owners.get(peer, ())
        if a != b
    )


def _one_of_each_namespace(proc: str, pids: Iterable[int]) -> Iterable[int]:
    """A process of each network namespace that these are in."""
    found: dict[int, int] = {}
    for pid in pids:
        number = namespace_of(proc, pid)
        if number is not None:
            found.setdefault(number, pid)
    return found.values()


def _peers_in(proc: str, pid: int) -> dict[int, int]:
    """The peers of the unix sockets that were made in the network namespace of a process; by inode."""
    try:
        with in_netns(proc, pid):
            diag = SockDiag()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    try:
        return {listed.inode: listed.peer for listed in diag.unix() if listed.peer}
    finally:
        diag.close()
