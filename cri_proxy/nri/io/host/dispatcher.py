"""Tells plugins what is due, in order for each pod, whether or not the client waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.host.host import NriHost
from cri_proxy.nri.io.host.peer import NEVER
from cri_proxy.nri.io.host.pod_view import PodView
from cri_proxy.nri.lifecycle import Due
from cri_proxy.nri.messages import Shown

#: How long a create waits until other containers have been updated for it: a runtime that hangs holds up no call.
UPDATE_WAIT_S = 2.0


class EventDispatcher:
    """One for a host. Its tasks end with ``close``."""

    def __init__(self, host: NriHost, pod_view: PodView, log: Any) -> None:
        self._host = host
        self._pod_view = pod_view
        self._log = log
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def soon(self, due: Iterable[Due]) -> list[asyncio.Task[None]]:
        """Tell events in tasks, each after the earlier ones of its pod."""
        by_pod: dict[str, list[Due]] = {}
        for one in due:
            by_pod.setdefault(one.pod_id, []).append(one)
        return [self._chain(pod_id, events) for pod_id, events in by_pod.items()]

    async def tell(self, due: Iterable[Due]) -> None:
        """Tell events, and wait; a caller that is cancelled does not take them along."""
        tasks = self.soon(due)
        if tasks:
            await asyncio.shield(asyncio.gather(*tasks))

    async def told(self, pod_id: str) -> None:
        """Return when all events of a pod are told: the next question about it comes after them."""
        if (task := self._last.get(pod_id)) is not None:
            await asyncio.wait({task})

    def _chain(self, pod_id: str, due: list[Due]) -> asyncio.Task[None]:
        before = self._last.get(pod_id)
        task = self.spawn(self._tell_after(before, due, self._pod_view.pictures))
        self._last[pod_id] = task
        task.add_done_callback(
            lambda done: self._last.pop(pod_id) if self._last.get(pod_id) is done else None
        )
        return task

    async def _tell_after(self, before: Optional[asyncio.Task[None]], due: list[Due], picture: int) -> None:
        """``picture``: the newest when this was due; a later plugin was shown the outcome."""
        if before is not None:
            await asyncio.wait({before})
        for one in due:
            try:
                await self._tell_one(one, picture if one.is_announced else NEVER)
            except Exception:
                self._log.error(
                    "an event could not be told", due=one.event, id=one.container_id, exc_info=True
                )

    async def _tell_one(self, due: Due, picture: int) -> None:
        if due.event == nri.STOP_CONTAINER:
            await self._tell_stop(due, picture)
        elif self._host.is_told(due.event):
            pod = await self._pod_view.pod(due.pod_id)
            await self._host.notify(due.event, pod, await self._container_of(due), picture)
        if due.event == nri.REMOVE_CONTAINER:
            self._pod_view.pod_cache.forget(due.container_id)
        elif due.event == nri.REMOVE_POD_SANDBOX:
            self._pod_view.pod_cache.forget_pod(due.pod_id)

    async def _container_of(self, due: Due) -> Optional[Shown[nri.Container]]:
        if not due.container_id:
            return None
        found = await self._pod_view.container(due.container_id)
        return found or self._pod_view.last_known(due.container_id, due.pod_id)

    async def _tell_stop(self, due: Due, picture: int) -> None:
        # After its removal the runtime no longer tells how it ended.
        if not (self._host.is_told(nri.STOP_CONTAINER) or self._host.is_told(nri.REMOVE_CONTAINER)):
            return
        container = await self._pod_view.ended(due.container_id, due.pod_id)
        updates = await self._host.stop(await self._pod_view.pod(due.pod_id), container, picture)
        if updates:
            self.spawn(self._pod_view.apply("", updates))

    async def apply_others(self, updates: list[nri.ContainerUpdate]) -> None:
        """Apply updates of other containers; waits for them, not for ever. A failure is only logged."""
        if updates:
            await asyncio.wait({self.spawn(self._pod_view.apply("", updates))}, timeout=UPDATE_WAIT_S)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("what plugins are to be told, or ask for, has failed", exc_info=task.exception())

    async def close(self) -> None:
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
