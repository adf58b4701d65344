"""Events to the API server, a few in a round, later and later where it takes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.kube.events import Events, Write
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.pace import Backoff, WriteRate
from cluster.kube.requests import HOPELESS, ApiError, Resource, Unreachable

EVENTS = Resource("", "v1", "events", namespaced=True)
#: Events written in one round.
EVENTS_A_ROUND = 20


class EventWriter:
    """``round`` writes what waits in ``events``; ``lost`` is told how many were not written since it was told last."""

    def __init__(self, client: Any, clock: Clock, events: Events, lost: Callable[[int], None]) -> None:
        self._client, self._clock, self._events, self._lost = client, clock, events, lost
        self._told_lost = 0
        self._pace, self._backoff = WriteRate(0.0), Backoff()

    async def round(self, check: Callable[[], None] = lambda: None) -> bool:
        """Whether the API server was asked. ``check`` raises where nothing may be written any more.

        :raises ApiError, Unreachable, NoAccess: as the request does; what waits is tried again after a growing time.
        """
        if self._pace.wait_s(self._clock.monotonic()) > 0:
            return False
        asked = False
        for _ in range(EVENTS_A_ROUND):
            write = self._events.next(self._clock.monotonic())
            if write is None:
                break
            asked = True
            check()
            try:
                await self._write(write)
            except (ApiError, Unreachable, NoAccess) as error:
                delay_s = self._backoff.after(error, self._clock.random01())
                self._pace.wait_longer(self._clock.monotonic(), delay_s)
                raise
            self._backoff.reset()
        if self._events.lost != self._told_lost:
            self._lost(self._events.lost - self._told_lost)
            self._told_lost = self._events.lost
        return asked

    async def _write(self, write: Write) -> None:
        namespace = write.happened.namespace
        try:
            if write.is_new:
                await self._client.create(EVENTS, dict(write.body), namespace)
            else:
                await self._client.patch(EVENTS, write.name, dict(write.body), namespace=namespace)
        except ApiError as error:
            if error.status == 404 and not write.is_new:
                self._events.gone(write)
            elif error.status == 409 and write.is_new:
                # An answer was lost on the way: it is there.
                self._events.written(write, self._clock.monotonic())
            elif error.status in HOPELESS:
                self._events.dropped(write)
            else:
                raise
            return
        self._events.written(write, self._clock.monotonic())
