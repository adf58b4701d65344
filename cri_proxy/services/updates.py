"""The one sender: has containers told what they lack (engine/told.py), beside the calls.

Eight at a time, those that lose CPUs first, and each container the newest it should have: one that changed ten times while
an update of it was on its way hears one more. What fails is tried again, a container at a time with a growing pause. A
failure never reaches the caller of the request that caused it. While nothing may be placed (mode observe, or off), only what
gives back is sent; what else containers lack they are told when they may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

from cri_api.supervisor import Supervisor
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.metrics import Metrics
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import RuntimeClient

AT_A_TIME = 8
#: How long an update that has failed waits to be tried again: at first, and at most, seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


async def _nothing() -> None:
    pass


async def _no_quota(key: str, quota_us: int) -> None:
    pass


class Updates:
    """What one runtime is told. ``engine``: whose containers; None = none. ``gives_back``: nothing is placed now."""

    def __init__(self, runtime: RuntimeClient, metrics: Metrics, log: Any) -> None:
        #: How one update gets to the runtime; a front end may have a better way than ours.
        self.deliver: Callable[[CpusetUpdate], Awaitable[None]] = runtime.update
        #: Waited for before anything is sent: what is told to the runtime has been written down.
        self.written: Callable[[], Awaitable[None]] = _nothing
        #: Waited for before a CPU quota is sent: the container's id, and the quota.
        self.before_quota: Callable[[str, int], Awaitable[None]] = _no_quota
        self.engine: Optional[Engine] = None
        self.gives_back = False
        self._metrics = metrics
        self._log = log
        self._senders: set[asyncio.Task[None]] = set()
        self._waking: Optional[asyncio.Task[None]] = None
        #: What is to be sent next, the last first; the records that it was found for; and whether an update has ended
        #: since, which others may have waited for.
        self._queue: list[str] = []
        self._found_for: tuple[Optional[Engine], int] = (None, -1)
        self._has_ended = False
        #: Containers that a sender is at.
        self._taken: set[str] = set()
        #: Pauses after updates that have failed, by container, "" = of all; and how long the next one will be.
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        self._next_pause_s: dict[str, float] = {}
        self._events = 0
        self._is_held = False
        self._is_closed = False
        #: What begins the tasks that send, so that none fails unseen.
        self.supervisor = Supervisor()
        #: Called with the container whose update begins or has ended; with "" where the engine has changed.
        self._listeners: set[Callable[[str], None]] = set()

    # ------------------------------------------------------------------ questions

    @property
    def pending(self) -> frozenset[str]:
        """Ids of containers that have not what they should, as far as they may be told."""
        return frozenset(update.id for update in self._lacking())

    def _lacking(self) -> list[CpusetUpdate]:
        return [] if self.engine is None else self.engine.lacking(self.gives_back)

    def refusal(self, container_id: str) -> str:
        """Why the runtime has refused what the container should get; "" = it has not."""
        told = None if self.engine is None else self.engine.told.get(container_id)
        return "" if told is None else told.refused

    @contextmanager
    def watched(self) -> Iterator[Collection[str]]:
        """The ids of containers with an update on its way now or until the end of the block, as they become more."""
        seen: set[str] = set() if self.engine is None else set(self.engine.under_way)
        self._listeners.add(seen.add)
        try:
            yield seen
        finally:
            self._listeners.discard(seen.add)

    # ------------------------------------------------------------------ what others have to do with it

    def wake(self) -> None:
        """Something has changed: send what containers lack. Does not wait; nothing is sent before it is written."""
        self._say("")
        if self._waking is None and not self._is_closed and (self._senders or self._has_news()):
            self._waking = self.supervisor.begin("updates to come", self._wake())

    def _has_news(self) -> bool:
        return self.engine is not None and self.engine.any_lacks(self.gives_back, self._pauses)

    async def _wake(self) -> None:
        """Find what is to be sent once it is written: whatever has waited for that goes on first."""
        try:
            await self.written()
            await asyncio.sleep(0)
        finally:
            self._waking = None
        self._fill()

    def _fill(self) -> None:
        while len(self._senders) < AT_A_TIME and (first := self._take()):
            task = self.supervisor.begin("updates", self._send_on(first))
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)

    def switch(self, gives_back: bool) -> None:
        """Send nothing from now on but what gives back; or all again."""
        self.gives_back = gives_back
        if self.engine is not None:  # what is raised in one mode is not in the other
            self.engine.unsettled.update(self.engine.raised & self.engine.told.keys())
        self._find_anew()
        self.wake()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing begins to be sent meanwhile: it goes with an answer, or would have to wait for that."""
        self._events += 1
        try:
            yield
        finally:
            self._events -= 1
            self.wake()

    def hold(self) -> None:
        """Begin to send nothing but what gives back until ``let_go``."""
        self._is_held = True

    def let_go(self) -> None:
        """Send again."""
        if self._is_held:
            self._is_held = False
            self.wake()

    def begin(self, container_id: str) -> Optional[CpusetUpdate]:
        """The update of a container, which goes out now; ``end`` must follow. None = there is nothing to tell it."""
        update = None if self.engine is None else self.engine.begin_update(container_id, self.gives_back)
        if update is not None:
            self._say(container_id)
        return update

    def end(self, engine: Engine, container_id: str, is_taken: bool, refusal: str = "") -> None:
        """How an update of this engine's has ended: taken, refused, or (neither) without an answer."""
        if is_taken:
            engine.took(container_id)
        elif refusal:
            engine.refused(container_id, refusal)
        else:
            engine.unanswered(container_id)
        if engine is not self.engine and self.engine is not None:
            self.engine.saw(container_id, cpus=None)
        self._has_ended = True
        self._say(container_id)

    async def tried(self, container_ids: Iterable[str], seconds: float) -> None:
        """Wait until containers have what they should, or were tried to be told, at most ``seconds``."""
        waiting = {key for key in container_ids if self._lacks(key)}

        def is_over(container_id: str) -> bool:
            if "" in self._pauses:
                return True
            for key in [container_id] if container_id else tuple(waiting):
                if key not in self._taken and (key in self._pauses or not self._lacks(key)):
                    waiting.discard(key)
            return not waiting

        if waiting:
            await self.until(is_over, seconds)

    def _lacks(self, container_id: str) -> bool:
        return self.engine is not None and self.engine.lacks(container_id, self.gives_back)

    async def alone(self, container_id: str, seconds: float) -> tuple[str, ...]:
        """Wait until all others have left the CPUs that a container owns, at most ``seconds``; those that have not.

        One that was refused more than once stays for longer than that.
        """
        engine = self.engine
        if engine is None or self.gives_back:
            return ()
        staying = {key for key, pause_s in self._next_pause_s.items() if pause_s > 2 * FIRST_PAUSE_S}
        others = set(engine.not_alone(container_id)) - staying
        if not others:
            return engine.not_alone(container_id)

        def is_over(changed_id: str) -> bool:
            gone = {changed_id} & others if changed_id else set(others)
            others.difference_update(gone.difference(engine.not_alone(container_id, gone)))
            return not others

        await self.until(is_over, seconds)
        return engine.not_alone(container_id)

    async def until(self, is_over: Callable[[str], bool], seconds: float) -> None:
        """Wait until ``is_over`` is true of a container whose update begins or has ended, or of "" where the engine has
        changed; at most ``seconds``."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def listen(container_id: str) -> None:
            if not over.done() and is_over(container_id):
                over.set_result(None)

        self._listeners.add(listen)
        try:
            self.wake()
            await self.written()
            await asyncio.wait({over}, timeout=seconds)
        finally:
            self._listeners.discard(listen)

    def hurry(self, container_ids: Optional[Collection[str]] = None) -> None:
        """Try again now what has failed before; None = all of it."""
        for key in [k for k in self._pauses if container_ids is None or not k or k in container_ids]:
            self._pauses.pop(key).cancel()
        self._find_anew()
        self.wake()

    async def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        for timer in self._pauses.values():
            timer.cancel()
        tasks = [*self._senders, *([self._waking] if self._waking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ sending

    def _take(self) -> str:
        """The next container to be told, for a sender that ends with ``_taken.discard``; "" = there is none now."""
        engine = self.engine
        if engine is None or self._is_resting or self._is_closed or "" in self._pauses:
            return ""
        now = (engine, engine.version)
        # Not after each that has ended: what is in the queue waits for none.
        if self._found_for != now or (self._has_ended and not self._queue):
            ready = [update.id for update in engine.pending(self.gives_back)]
            but = self._pauses.keys() | self._taken
            self._queue = [key for key in reversed(ready) if key not in but]
            self._found_for, self._has_ended = now, False
        if not self._queue:
            return ""
        key = self._queue.pop()
        self._taken.add(key)
        return key

    @property
    def _is_resting(self) -> bool:
        """Whether nothing may begin to be sent now."""
        return self._events > 0 or (self._is_held and not self.gives_back)

    def _find_anew(self) -> None:
        self._found_for = (None, -1)

    def _say(self, container_id: str) -> None:
        for listen in tuple(self._listeners):
            listen(container_id)

    async def _send_on(self, key: str) -> None:
        """Tell one container after the other, until none is left to be told now."""
        while key:
            try:
                await self._send(key)
            finally:
                self._taken.discard(key)
            self._say(key)
            key = self._take()

    async def _send(self, key: str) -> None:
        engine = self.engine
        assert engine is not None
        grant = engine.grants.get(key)
        await self.written()
        if engine is not self.engine or self._is_resting or engine.grants.get(key) is not grant:
            self._find_anew()  # what it should have now was not written then
            return
        update = self.begin(key)
        if update is None:
            return
        if key in self._next_pause_s:
            self._metrics.updates.labels("retried").inc()
        try:
            if update.give_back is not None:
                await self.before_quota(key, update.give_back.quota_us)
            await self.deliver(update)
        except RpcError as error:
            self._failed(engine, update, error)
        except asyncio.CancelledError:
            self.end(engine, key, is_taken=False)
            raise
        except Exception as error:
            self._log.error("an update could not be sent", id=key, exc_info=True)
            self.end(engine, key, is_taken=False, refusal=f"{type(error).__name__}: {error}")
            self._pause(key)
        else:
            self._metrics.updates.labels("sent").inc()
            self._next_pause_s.pop(key, None)
            self.end(engine, key, is_taken=True)

    def _failed(self, engine: Engine, update: CpusetUpdate, error: RpcError) -> None:
        self._metrics.updates.labels("failed").inc()
        gone, is_away = error.code == Code.NOT_FOUND, error.code == Code.UNAVAILABLE
        refusal = "" if error.in_doubt or is_away else error.details or error.code.name
        if not gone:
            self._pause(update.id)
        if is_away:  # all others would fail as well
            self._pause("")
        self.end(engine, update.id, is_taken=gone, refusal=refusal)
        self._log.warning("update failed", id=update.id, why=update.why, error=error.details, gone=gone)

    def _pause(self, key: str) -> None:
        pause_s = self._next_pause_s.get(key, FIRST_PAUSE_S)
        self._next_pause_s[key] = min(2 * pause_s, LONGEST_PAUSE_S) if key else FIRST_PAUSE_S
        if key in self._pauses:
            self._pauses[key].cancel()
        self._pauses[key] = asyncio.get_running_loop().call_later(pause_s, self._go_on, key)

    def _go_on(self, key: str) -> None:
        self._pauses.pop(key, None)
        if key and not self._lacks(key):
            self._next_pause_s.pop(key, None)
        self._find_anew()
        self.wake()
