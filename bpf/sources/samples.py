"""A provider's sample of one interval, as values. The words between providers and service.

An *endpoint* is a container's runtime id; or ``pod:UID`` where only the pod is known (hosts whose containers have
no cgroup v2 of their own). Host processes are left out before a sample is made; other
nodes are addresses (``RemoteFlow``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: The kind of a flow. Inside a provider also ``wake``: one end woke the other, by an unknown thing (wakeups.py).
KINDS = ("tcp", "udp", "unix", "shm")


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
