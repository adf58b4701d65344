"""The meaning of wakes. Pure.

The kernel says what wakes what, on whatever it was: a TCP segment, a unix socket, a semaphore in shared memory, or
by chance (a lock, an interrupt). So a wake alone says nothing. The rule:

- between two that exchange bytes (tcp, udp), bytes decide and wakes are dropped: they are the same traffic again;
- between two known to share a unix socket or writable memory, wakes are messages of that kind (a unix socket
  comes first where they share both). Wakes are right within a factor of two, and fewer when the two share a CPU;
- all others are dropped.

No wakes is no sign of no affinity, and wakes only add.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bpf.sources.samples import Flow

_WITH_BYTES = ("tcp", "udp")

#: Two endpoints, in order.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Peers:
    """Pairs of containers that share something, each in order (``pair``)."""

    unix: Collection[Pair] = frozenset()
    shared_memory: Collection[Pair] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.unix or self.shared_memory)


def pair(a: str, b: str) -> Pair:
    """Two endpoints in order, so that a pair has one spelling."""
    return (a, b) if a <= b else (b, a)


def with_presence(flows: Collection[Flow], peers: Peers) -> tuple[Flow, ...]:
    """The flows with wakes turned into messages of unix sockets or shared memory, or dropped: the rule above."""
    with_bytes = {pair(flow.a, flow.b) for flow in flows if flow.kind in _WITH_BYTES}
    found = [flow for flow in flows if flow.kind != "wake"]
    wakes = [
        (ends, flow)
        for flow in flows
        if flow.kind == "wake" and flow.a != flow.b and (ends := pair(flow.a, flow.b)) not in with_bytes
    ]
    for ends, flow in wakes:
        kind = _kind_of(ends, peers)
        if kind:
            found.append(replace(flow, kind=kind))
    return tuple(found)


def _kind_of(ends: Pair, peers: Peers) -> str:
    if ends in peers.unix:
        return "unix"
    return "shm" if ends in peers.shared_memory else ""
