"""The plugins that are connected, in the order in which they are asked; and which step waits for which."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Callable, Optional

from cri_proxy.nri.dispatch import missing
from cri_proxy.nri.io.host.peer import RegisteredPlugin
from cri_proxy.nri.settings import NriSettings
from cri_proxy.services.nri_metrics import NriMetrics


class Gate:
    """Many tasks may be inside at once, or one that must be alone; in the order of their coming, and none twice."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._turn:
            self._inside += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._turn:
            await self._is_empty.wait()
            yield


class ConnectedPlugins:
    """Of one host. ``settings`` may be replaced at any time. ``on_change`` is called when a plugin comes or goes."""

    def __init__(self, settings: NriSettings, log: Any, metrics: NriMetrics) -> None:
        self.settings = settings
        self.log = log
        self.metrics = metrics
        self.gate = Gate()
        self.on_change: Optional[Callable[[], None]] = None
        #: How many plugins are about to be added: calls must wait for them at the gate.
        self.joining = 0
        self._peers: list[RegisteredPlugin] = []

    @property
    def peers(self) -> tuple[RegisteredPlugin, ...]:
        """In order."""
        return tuple(self._peers)

    def takers(self, event: int) -> tuple[RegisteredPlugin, ...]:
        """Those that have subscribed to an event, in order."""
        return tuple(peer for peer in self._peers if peer.takes(event))

    def missing(self) -> list[str]:
        """The required plugins that are not there."""
        known = [(peer.identity.index, peer.identity.name) for peer in self._peers]
        return missing(self.settings.rules.required_plugins, known)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """A plugin is about to be added. One that is not, after all, has gone as well."""
        self.joining += 1
        try:
            yield
        except BaseException:
            self.joining -= 1
            self._changed()
            raise
        self.joining -= 1

    def add(self, peer: RegisteredPlugin) -> None:
        self._peers = sorted([*self._peers, peer], key=lambda known: known.rank)
        self._changed()

    def drop(self, peer: RegisteredPlugin, reason: str) -> None:
        """Give a plugin up: its connection is closed, and it is asked nothing more. Once is enough."""
        peer.connection.close(reason)
        if peer not in self._peers:
            return
        self._peers = [known for known in self._peers if known is not peer]
        self.metrics.dropped.labels(self.metrics.label(peer.title)).inc()
        self.log.warning("an NRI plugin is gone", plugin=peer.title, reason=reason)
        self._changed()

    def _changed(self) -> None:
        self.metrics.plugins.set(len(self._peers))
        if self.on_change is not None:
            self.on_change()
