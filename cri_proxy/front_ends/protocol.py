"""How the daemon learns of containers and reaches them: as a proxy, as an NRI plugin, or standalone.

The engine, its state, the rounds, the affinity controller and the command line are the same behind each. A front
end is made by the daemon from its parts, and is the only one on its node (node/lock.py sees to it).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Callable, Protocol

from cri_proxy.services.services import Services


class FrontEnd(Protocol):
    """One front end, in the order in which the daemon calls it."""

    #: "proxy", "nri-plugin" or "standalone".
    name: str
    #: Kubelet cannot do without it: what goes wrong is a degraded reason, and no exit.
    must_serve: bool
    #: In words, what tells of exits while ``Services.events.streams`` is not 0.
    exits: str

    @property
    def is_busy(self) -> bool:
        """Whether calls pass now or did a moment ago: work that can wait gives way to them."""
        ...

    async def open(self) -> None:
        """Make what others connect to; a connection waits for ``start_behind``.

        :raises OSError: it cannot be had, and the daemon ends with that sentence.
        """
        ...

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        """Do ``work`` (the engine is brought up, or a degraded reason noted) and begin; returns once it is done."""
        ...

    async def run(self) -> None:
        """What goes on until the daemon stops, which cancels it. It may return at once."""
        ...

    def runtime_returned(self) -> None:
        """The runtime's socket answers (again), and ``Services.runtime`` says what it is."""
        ...

    def reconfigured(self) -> None:
        """``Services.config`` is another one since a reload."""
        ...

    def status(self) -> dict[str, Any]:
        """Its part of ``cri-resmgr status --json``; ``sockets`` is there: what kubelet may use, perhaps nothing."""
        ...

    async def close(self, drain_s: float, stops_s: float) -> None:
        """End in order: what is under way has ``drain_s`` seconds, the stop of a container at most ``stops_s``."""
        ...


#: What makes a front end; ``open`` has not been called yet.
FrontEndMaker = Callable[[Services], FrontEnd]
