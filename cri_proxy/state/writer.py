"""Keeps the state file from the event loop: one thread has all that waits for the disk, in the order it was asked for.

Changes are handed over at once and written in the order of decisions, as many together as have come meanwhile. A
call waits until its changes are durable, at most ``wait_s``: past that it goes on, its records are unsaved, and
``problem`` says so until they are written. No call waits while that lasts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Callable, Optional, TypeVar

from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within
from cri_proxy.engine.state import JournalKey
from cri_proxy.job_thread import JobThread
from cri_proxy.metrics import Metrics
from cri_proxy.state.file import LoadedState
from cri_proxy.state.store import Journal, Store

Result = TypeVar("Result")

#: How long a call waits for its records where no other time is configured, seconds.
WAIT_S = 1.0
#: How long changes wait for others to be written with, where their call does not wait for them, seconds.
TOGETHER_S = 0.05
#: How long the end of the service waits for the last changes, seconds.
END_S = 2.0
#: How much may wait to be done with other files: each is small, and done again sooner or later.
MOST_WORKS = 1000


class StateWriter:
    """All of it belongs to one event loop, which is the one that runs when it is first used; the rest to its thread."""

    def __init__(
        self, store: Store, metrics: Metrics, log: Any, supervisor: Optional[Supervisor] = None
    ) -> None:
        self.store = store
        self.wait_s = WAIT_S
        #: Called when ``problem`` may be another one.
        self.on_change: Callable[[], object] = lambda: None
        self._metrics = metrics
        self._log = log
        self._thread = JobThread("state", supervisor)
        #: What is to be done with other files there, after the changes that came before it.
        self._works: deque[tuple[Callable[[], object], Callable[[bool], object]]] = deque()
        #: The number of the last changes that were handed over, and up to which all were written or tried.
        self._newest = self._tried = 0
        #: Whether the thread will look for changes that it has not seen yet.
        self._is_asked = False
        #: Whether it will be asked to by the end of the loop's turn.
        self._is_due = False
        #: Asks for changes that were to be written with others, if none has come.
        self._together: Optional[asyncio.TimerHandle] = None
        #: What waits: for what number, until when, and how it is told.
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._timer: Optional[asyncio.TimerHandle] = None
        #: The last number that a call has not waited for; 0: none.
        self._late_for = 0
        #: Jobs under way that have taken longer than that.
        self._overdue: set[asyncio.Future[Any]] = set()
        self._is_loading = False
        self._told = ""
        self._checkpoint: Optional[asyncio.Future[None]] = None
        metrics.state_unsaved.set_function(lambda: store.waiting)

    @property
    def problem(self) -> str:
        """ "" while changes are durable, else one sentence."""
        if not self.is_late:
            return self.store.problem
        disk = f"the disk with {self.store.path} does not answer"
        if self._is_loading:
            return f"no container is placed until the state can be read: {disk}"
        return f"{disk}: what is decided is kept in memory, a restart would find it at the runtime"

    @property
    def is_late(self) -> bool:
        """Whether calls go on without waiting for their records."""
        return bool(self._late_for or self._overdue)

    @property
    def waiting(self) -> int:
        """How many changes are not written yet."""
        return self.store.waiting

    @property
    def unsaved(self) -> frozenset[JournalKey]:
        """The records that are not in the file as they are."""
        return self.store.unsaved

    # ------------------------------------------------------------------ changes

    def write(self, journal: Journal, meta: Optional[dict[str, str]] = None) -> None:
        """Have changes written after all that were handed over before. Does not wait; nothing: try again what failed."""
        if journal or meta:
            self.store.add(journal, meta)
            self._newest += 1
        elif not self.store.waiting:
            return
        self._ask_soon()

    def write_together(self, journal: Journal) -> None:
        """Have changes written that the runtime's list tells, too, should they be lost: with what comes after them, in
        one transaction, ``TOGETHER_S`` from now at the latest.
        """
        if journal:
            self.store.add(journal)
            self._newest += 1
            if self._together is None:
                self._together = asyncio.get_running_loop().call_later(TOGETHER_S, self._ask_together)

    def _ask_together(self) -> None:
        self._together = None
        if self._tried < self._newest:
            self._ask()

    def later(
        self, work: Callable[[], object], then: Callable[[bool], object] = lambda is_done: None
    ) -> None:
        """Have something done with another file on that disk, once the changes before it are written or tried.
        ``settled`` waits for it, too.

        What it raises is logged. While the disk does not answer it is left out if as much waits already. ``then`` is
        called in the loop with whether it was done, before what waits for that goes on.
        """
        if len(self._works) < MOST_WORKS:
            self._works.append((work, then))
            self._newest += 1
            self._ask_soon()
        else:
            then(False)

    def _ask_soon(self) -> None:
        """When the loop has done what it is at: a reply is sent before the thread competes with it."""
        if not self._is_asked and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._ask_if_due)

    def _ask_if_due(self) -> None:
        if self._is_due:  # else a wait has asked by now
            self._ask()

    def _ask(self) -> None:
        self._is_due = False
        if not self._is_asked:
            self._is_asked = True
            self._thread.put(self._flush)

    async def settled(self) -> None:
        """Wait until all changes so far are durable, or could not be written, or the time is over."""
        if self._tried >= self._newest:
            return
        if self.is_late:
            self._metrics.state_late.inc()
            self._late_for = self._newest
            await asyncio.sleep(0)  # whose waiting has just ended comes first
            return
        self._ask()
        loop = asyncio.get_running_loop()
        deadline_s, told = loop.time() + self.wait_s, loop.create_future()
        self._waiting.append((self._newest, deadline_s, told))
        if self._timer is None:
            self._timer = loop.call_at(deadline_s, self._run_out)
        await told

    def _flush(self) -> None:
        """In the thread."""
        self._is_asked = False  # before anything is taken: what comes from here on asks again
        newest, started_s = self._newest, time.perf_counter()
        works = len(self._works)
        try:
            is_kept = self.store.flush()
        except Exception as error:  # a bug, which must not end the thread
            self.store.problem = f"state is not being kept: {type(error).__name__}: {error}"
            is_kept = False
        for _ in range(works):
            work, then = self._works.popleft()
            is_done = False
            try:
                work()
                is_done = True
            except Exception:
                self._log.error("a file could not be kept", exc_info=True)
            self._thread.tell(then, is_done)
        self._thread.tell(self._flushed, newest, is_kept, time.perf_counter() - started_s)

    def _flushed(self, newest: int, is_kept: bool, seconds: float) -> None:
        self._tried = newest
        self._metrics.state_seconds.observe(seconds)
        if not is_kept:
            self._metrics.state_failures.inc()
        while self._waiting and self._waiting[0][0] <= newest:
            _release(self._waiting.popleft()[2])
        if newest >= self._late_for:
            self._late_for = 0
        self._set_timer()
        self._tell_change()
        if self.store.is_long:
            self._begin_checkpoint()

    def _run_out(self) -> None:
        """The first that waits has waited long enough: none waits any more."""
        self._timer = None
        self._late_for = self._newest
        self._metrics.state_late.inc(len(self._waiting))
        while self._waiting:
            _release(self._waiting.popleft()[2])
        self._tell_change()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_at(self._waiting[0][1], self._run_out)

    def _tell_change(self) -> None:
        before, self._told = self._told, self.problem
        if before == self._told:
            return
        if self._told:
            self._log.error("state is not durable", problem=self._told)
        else:
            self._log.info("state is durable again")
        self.on_change()

    # ------------------------------------------------------------------ the file as a whole

    async def load(self) -> LoadedState:
        """As ``Store.load``. While it takes long ``problem`` says so."""
        self._is_loading = True
        try:
            return await self.run(self.store.load)
        finally:
            self._is_loading = False

    async def start_over(self) -> LoadedState:
        """As ``Store.start_over``."""
        return await self.run(self.store.start_over)

    def set_aside(self) -> asyncio.Future[str]:
        """Have the file set aside, now or before anything is written: what was handed over until here goes with it.

        The result: a phrase that says where to, or why not yet; there before the disk answers, if that takes long.
        """
        self.store.forget()
        return asyncio.ensure_future(self._moved(self._begin(self.store.move_away)))

    async def _moved(self, moving: asyncio.Future[str]) -> str:
        try:
            return await wait_within(self.wait_s, asyncio.shield(moving))
        except asyncio.TimeoutError:
            return "set aside as soon as the disk answers"
        except OSError as error:
            return f"set aside as soon as that works: {error.strerror or error}"

    async def run(self, work: Callable[[], Result]) -> Result:
        """Have something else done with the disk, in its turn; what it returns or raises."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        done = self._thread.begin(work)
        alarm = asyncio.get_running_loop().call_later(self.wait_s, self._note_overdue, done)
        done.add_done_callback(lambda _: self._note_done(done, alarm))
        return done

    def _note_overdue(self, done: asyncio.Future[Any]) -> None:
        self._overdue.add(done)
        self._tell_change()

    def _note_done(self, done: asyncio.Future[Any], alarm: asyncio.TimerHandle) -> None:
        alarm.cancel()
        self._overdue.discard(done)
        self._tell_change()

    async def checkpoint(self) -> None:
        """Have the file take in the log as it is now, beside the writing. Returns when that is done, or takes long."""
        under_way = self._checkpoint
        if under_way is not None and not under_way.done():  # it takes in what there was when it began
            await asyncio.wait({under_way}, timeout=self.wait_s)
        await asyncio.wait({self._begin_checkpoint()}, timeout=self.wait_s)

    def _begin_checkpoint(self) -> asyncio.Future[None]:
        if self._checkpoint is None or self._checkpoint.done():
            self._checkpoint = asyncio.ensure_future(asyncio.to_thread(self.store.checkpoint))
        return self._checkpoint

    async def close(self) -> None:
        """Write what still waits and let go of the file, if the disk answers in time."""
        try:
            await wait_within(END_S, self.run(self.store.close))
        except asyncio.TimeoutError:
            self._log.error("the disk has not answered before the end", unsaved=self.store.waiting)
        self.let_go()

    def let_go(self) -> None:
        """Nothing more will come: the thread ends when it has done what it has."""
        self._thread.end()


def _release(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
