"""Sends cpusets to containers other than the one of the request at hand.

Eight at a time; of two updates for one container the later wins; one that fails is kept and sent again with
the next ``retry``. A failure never reaches the caller of the request that caused it. While nothing may be sent, what
waits is dropped: the comparison that follows finds out anew what a container lacks. Only what a person has asked for
by a command is sent all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any, Callable

import grpc

from cri_proxy.engine.records import CpusetUpdate
from cri_proxy.metrics import Metrics
from cri_proxy.runtime import RuntimeClient

AT_A_TIME = 8

#: Answers that say nothing about the update itself: the runtime is away, or slow.
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


async def _nothing() -> None:
    pass


class Updates:
    """The queue of updates to one runtime."""

    def __init__(self, runtime: RuntimeClient, metrics: Metrics, log: Any) -> None:
        #: How one update gets to the runtime; a front end may have a better way than ours.
        self.deliver: Callable[[CpusetUpdate], Awaitable[None]] = runtime.update
        #: Waited for before anything is sent: what is told to the runtime has been written down.
        self.written: Callable[[], Awaitable[None]] = _nothing
        self._metrics = metrics
        self._log = log
        self._gate = asyncio.Semaphore(AT_A_TIME)
        #: The update each container should get, until it has got it.
        self._wanted: dict[str, CpusetUpdate] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        #: Ids of the containers whose updates were asked for by a command.
        self._commanded: set[str] = set()
        self._is_parked = False
        #: What the runtime said to the last update of a container, where it was no.
        self._refusals: dict[str, str] = {}

    @property
    def pending(self) -> frozenset[str]:
        """Ids of containers whose cpuset is about to change."""
        return frozenset(self._wanted)

    def refusal(self, container_id: str) -> str:
        """Why the runtime itself has refused what the container should get; "" = it has not."""
        return self._refusals.get(container_id, "")

    def owes_quota(self, container_id: str) -> bool:
        """Whether a container is still to get the CPU quota back that we had taken away."""
        update = self._wanted.get(container_id)
        return update is not None and update.give_back is not None

    def park(self, is_parked: bool) -> None:
        """Send nothing from now on but what is commanded, and drop what waits; or be as before."""
        self._is_parked = is_parked
        for container_id in [key for key in self._wanted if is_parked and key not in self._commanded]:
            self.forget(container_id)

    def send(self, updates: Iterable[CpusetUpdate], by_command: bool = False) -> None:
        """Start sending; does not wait."""
        for update in updates if by_command or not self._is_parked else ():
            (self._commanded.add if by_command else self._commanded.discard)(update.id)
            waiting = self._wanted.get(update.id)
            # The later cpuset wins; a quota that was not given back yet is still owed.
            if waiting is not None and update.give_back is None and not update.placement.lift_quota:
                update = replace(update, give_back=waiting.give_back)
            self._wanted[update.id] = update
            self._refusals.pop(update.id, None)
            if update.id not in self._sending:
                self._sending[update.id] = asyncio.create_task(self._deliver(update.id))

    async def send_and_wait(
        self, updates: Iterable[CpusetUpdate], seconds: float, by_command: bool = False
    ) -> None:
        """Start sending and wait until all have been tried, at most ``seconds``."""
        listed = list(updates)
        self.send(listed, by_command)
        await self.wait(listed, seconds)

    async def wait(self, updates: Iterable[CpusetUpdate], seconds: float) -> None:
        """Wait until all of what was sent has been tried, at most ``seconds`` from when it was written down."""
        tasks = [self._sending[u.id] for u in updates if u.id in self._sending]
        await self.written()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def retry(self) -> None:
        """Send again what failed before."""
        waiting = [u for key, u in self._wanted.items() if key not in self._sending]
        for update in waiting:
            self._metrics.updates.labels("retried").inc()
            self.send([update], update.id in self._commanded)

    def overtaken(self, update: CpusetUpdate) -> None:
        """A client's request has just carried this placement: what is older is not sent any more.

        One that is on its way may arrive behind the request; this follows it then.
        """
        if update.id in self._sending and not self._is_parked:
            self._wanted[update.id] = update
        else:
            self.forget(update.id)

    def forget(self, container_id: str) -> None:
        """The container is gone, or not ours any more."""
        self._wanted.pop(container_id, None)
        self._commanded.discard(container_id)
        self._refusals.pop(container_id, None)

    async def close(self) -> None:
        """Stop sending."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, container_id: str) -> None:
        """Until the container has got what it should get, or the last of it was tried and has failed."""
        tried = None
        try:
            await self.written()
            while (wanted := self._wanted.get(container_id)) is not None and wanted is not tried:
                async with self._gate:
                    # Looked up behind the gate: what was wanted before it may be outdated by now.
                    tried = self._wanted.get(container_id)
                    if tried is not None:
                        await self._try(tried)
        finally:
            # Not when the task is done, which is a turn later: what is sent in between would wait for a retry.
            del self._sending[container_id]

    async def _try(self, update: CpusetUpdate) -> None:
        try:
            await self.deliver(update)
        except grpc.aio.AioRpcError as error:
            self._failed(update, error)
            return
        self._metrics.updates.labels("sent").inc()
        if self._wanted.get(update.id) is update:
            del self._wanted[update.id]
            self._commanded.discard(update.id)

    def _failed(self, update: CpusetUpdate, error: grpc.aio.AioRpcError) -> None:
        self._metrics.updates.labels("failed").inc()
        gone = error.code() is grpc.StatusCode.NOT_FOUND
        if error.code() not in _AWAY and self._wanted.get(update.id) is update:
            self._refusals[update.id] = error.details() or error.code().name
        if gone:
            self.forget(update.id)
        self._log.warning("update failed", id=update.id, why=update.why, error=error.details(), gone=gone)
