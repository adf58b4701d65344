"""What wakes mean. Pure.

The kernel says who wakes whom, on whatever it was: a TCP segment, a unix socket, a semaphore in shared memory, or
by chance (a lock, an interrupt). So a wake alone says nothing. The rule:

- between two that exchange bytes (tcp, udp), bytes decide and wakes are dropped: they are the same traffic again;
- between two known to share a unix socket or writable memory, wakes are messages of that kind (a unix socket
  comes first where they share both). Wakes are right within a factor of two, and fewer when the two share a CPU;
- all others are dropped.

No wakes is no sign of no affinity, and wakes only add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from bpf.samples import Flow

_WITH_BYTES = ("tcp", "udp")

#: Two endpoints, in order.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Peers:
    """Who shares what: pairs of containers, each in order (``pair``)."""

    unix: Collection[Pair] = frozenset()
    shared_memory: Collection[Pair] = frozenset()


def pair(a: str, b: str) -> Pair:
    """Two endpoints in order, so that a pair has one spelling."""
    return (a, b) if a <= b else (b, a)


def with_presence(flows: Iterable[Flow], peers: Peers) -> tuple[Flow, ...]:
    """The flows with wakes turned into messages of unix sockets or shared memory, or dropped: the rule above."""
    listed = tuple(flows)
    with_bytes = {pair(flow.a, flow.b) for flow in listed if flow.kind in _WITH_BYTES}
    found = []
    for flow in listed:
        if flow.kind != "wake":
            found.append(flow)
            continue
        kind = _kind_of(pair(flow.a, flow.b), with_bytes, peers)
        if kind:
            found.append(replace(flow, kind=kind))
    return tuple(found)


def wakers(flows: Iterable[Flow]) -> frozenset[str]:
    """The endpoints whose wakes have no explanation in bytes: only their peers need to be looked for."""
    listed = tuple(flows)
    with_bytes = {pair(flow.a, flow.b) for flow in listed if flow.kind in _WITH_BYTES}
    unexplained = (f for f in listed if f.kind == "wake" and pair(f.a, f.b) not in with_bytes)
    return frozenset(end for flow in unexplained for end in (flow.a, flow.b))


def _kind_of(ends: Pair, with_bytes: Collection[Pair], peers: Peers) -> str:
    if ends in with_bytes or ends[0] == ends[1]:
        return ""
    if ends in peers.unix:
        return "unix"
    return "shm" if ends in peers.shared_memory else ""
