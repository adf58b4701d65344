"""A provider's sample of one interval, as values. The words between providers and service.

An *endpoint* is a container's runtime id; or ``pod:UID`` where only the pod is known (hosts whose containers have
no cgroup v2 of their own). Host processes are left out before a sample is made; other
nodes are addresses (``RemoteFlow``).

Wakes (``with_presence``): the kernel says what wakes what, on whatever it was: a TCP segment, a unix socket, a semaphore in
shared memory, or by chance (a lock, an interrupt). So a wake alone says nothing. The rule:

- between two that exchange bytes (tcp, udp), bytes decide and wakes are dropped: they are the same traffic again;
- between two known to share a unix socket or writable memory, wakes are messages of that kind (a unix socket
  comes first where they share both). Wakes are right within a factor of two, and fewer when the two share a CPU;
- where messages of unix sockets are counted, two wakes for each are the same again: a connection's begin and end wake too;
- all others are dropped.

No wakes is no sign of no affinity, and wakes only add.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

#: The kind of a flow. Inside a provider also ``wake``: one end woke the other, by an unknown thing (``with_presence``).
KINDS = ("tcp", "udp", "unix", "shm")
_WITH_BYTES = ("tcp", "udp")

#: Two endpoints, in order.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Flow:
    """Two endpoints in one interval. ``bytes_ab``: payload from a to b; ``messages``: sends and wakes, both ways."""

    a: str
    b: str
    kind: str = "tcp"
    bytes_ab: int = 0
    bytes_ba: int = 0
    messages: int = 0


@dataclass(frozen=True)
class RemoteFlow:
    """Traffic of an endpoint in one interval with an address that is not known to be on this node.

    ``bytes``: payload, both ways of TCP connections that it has accepted, and of datagrams what it has sent.
    """

    a: str
    address: str
    bytes: int


@dataclass(frozen=True)
class Sample:
    """All flows of the ``seconds`` before ``at_s`` (CLOCK_BOOTTIME); of 0 seconds nothing is known.

    ``counters`` only grow: resolved, missed, dropped... ``lost``: by endpoint, how often bytes of it found no room to be
    counted; its flows are then more than is told here. ``fill``: the part of the table of pairs that was in use.
    """

    at_s: float
    seconds: float
    flows: tuple[Flow, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    remotes: tuple[RemoteFlow, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    fill: float = 0.0


class Provider(Protocol):
    """A way to see traffic. ``name``: ebpf, sock_diag, declared; ``detail``: one sentence for the status."""

    name: str
    detail: str

    def sample(self, now_s: float) -> Sample:
        """The flows since the last call (the first call: since the provider was opened).

        :raises ProviderLost: it sees nothing any more; the service then goes down the ladder.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind in the kernel."""
        ...


class ProviderLost(Exception):
    """A provider cannot be opened, or has stopped seeing. The message is one sentence that says why."""


class ProviderLate(ProviderLost):
    """A provider cannot be opened yet: what it needs is being made."""


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
    sent = {pair(flow.a, flow.b): flow.messages for flow in flows if flow.kind == "unix"}
    found = [flow for flow in flows if flow.kind != "wake"]
    wakes = [
        (ends, flow)
        for flow in flows
        if flow.kind == "wake" and flow.a != flow.b and (ends := pair(flow.a, flow.b)) not in with_bytes
    ]
    for ends, flow in wakes:
        kind, messages = _kind_of(ends, peers), flow.messages - 2 * sent.get(ends, 0)
        if kind and messages > 0:
            found.append(replace(flow, kind=kind, messages=messages))
    return tuple(found)


def _kind_of(ends: Pair, peers: Peers) -> str:
    if ends in peers.unix:
        return "unix"
    return "shm" if ends in peers.shared_memory else ""
