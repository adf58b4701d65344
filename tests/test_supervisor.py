"""Long-lived tasks and threads: what ends too early is begun again, named, counted and told until it does well."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine
from typing import Any, Optional

import pytest
import structlog

from cri_api.supervisor import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    TROUBLED_AFTER,
    WELL_AFTER_S,
    EndedEarly,
    Supervisor,
    Worker,
    together,
)
from cri_proxy.metrics import Metrics
from cri_proxy.services.services import Health

#: Nothing that must come takes longer.
HANG_S = 20.0
NO_FILES = OSError(24, "Too many open files")
REASON = "the background task 'watch' has failed: OSError: [Errno 24] Too many open files"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time jumps to the next timer where nothing else is to be done."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if not self._ready and timers:
            self._ahead_s += max(0.0, min(timers) - self.time())
        super()._run_once()


def run(work: Coroutine[Any, Any, None]) -> None:
    loop = JumpingLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


class Site:
    """A supervisor whose workers a daemon's health hears of, and all that was told of them."""

    def __init__(self) -> None:
        self.metrics = Metrics("test")
        self.health = Health(self.metrics, structlog.get_logger(), lambda: "enforce")
        self.heard: list[tuple[str, bool]] = []
        self.supervisor = Supervisor(self._tell)
        self.told = asyncio.Event()

    def _tell(self, worker: Worker, error: Optional[BaseException]) -> None:
        self.heard.append((worker.name, error is None))
        self.health.supervised(worker, error)
        self.told.set()

    async def next(self) -> None:
        await self.told.wait()
        self.told.clear()

    def failures(self) -> list[str]:
        lines = self.metrics.text().splitlines()
        return [line for line in lines if line.startswith("cri_resmgr_background_failures_total{")]


class Work:
    """Fails so many times, then goes on, or returns."""

    def __init__(self, failures: int, error: BaseException = NO_FILES, returns: bool = False) -> None:
        self.failures, self.error, self.returns = failures, error, returns
        self.begun_s: list[float] = []

    async def run(self) -> None:
        self.begun_s.append(asyncio.get_running_loop().time())
        if len(self.begun_s) <= self.failures:
            raise self.error
        if not self.returns:
            await asyncio.Event().wait()


def test_a_bad_moment_is_a_warning_and_failing_again_and_again_a_reason_until_it_goes_well() -> None:
    async def play() -> None:
        site, work = Site(), Work(failures=4)
        site.supervisor.keep("watch", work.run)
        seen = []
        for _ in range(5):
            await site.next()
            seen.append((list(site.health.warnings), dict(site.health.reasons)))
        assert seen == [
            ([REASON], {}),
            ([REASON], {}),
            ([], {"task watch": REASON}),
            ([], {"task watch": REASON}),
            ([], {}),
        ]
        pauses = [after - before for before, after in zip(work.begun_s, work.begun_s[1:])]
        assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=0.5)
        assert site.failures() == ['cri_resmgr_background_failures_total{name="watch"} 4.0']
        (document,) = [worker.document() for worker in site.supervisor.workers]
        assert (document["failures"], document["failures_in_a_row"], document["problem"]) == (4, 0, "")
        await site.supervisor.end()
        assert site.supervisor.workers == ()

    run(play())


def test_the_pause_grows_to_a_minute_and_begins_anew_after_a_life_that_was_long() -> None:
    worker = Worker("watch", "task")
    pauses = [worker.failed(NO_FILES, 0.0) for _ in range(8)]
    assert pauses == [FIRST_PAUSE_S, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert worker.failures_in_a_row > TROUBLED_AFTER
    assert worker.failed(NO_FILES, WELL_AFTER_S) == FIRST_PAUSE_S
    assert (worker.failures, worker.failures_in_a_row, worker.is_troubled) == (9, 1, False)


def test_what_returns_or_cancels_itself_though_it_goes_on_for_ever_is_begun_again() -> None:
    async def play() -> None:
        site = Site()
        for name, work in (
            ("returns", Work(0, returns=True)),
            ("cancels itself", Work(1, asyncio.CancelledError())),
        ):
            site.supervisor.keep(name, work.run)
            await site.next()
            assert EndedEarly.__name__ in " ".join(site.health.warnings)
            while len(work.begun_s) < 2:
                await asyncio.sleep(0.1)
        await site.supervisor.end()

    run(play())


def test_what_may_end_ends() -> None:
    async def play() -> None:
        site, work = Site(), Work(failures=1, returns=True)
        await site.supervisor.keep("search", work.run, may_end=True)
        assert (len(work.begun_s), site.supervisor.workers, site.health.warnings) == (2, (), [])

    run(play())


def test_a_task_that_is_cancelled_by_its_owner_is_not_begun_again_and_its_reason_ends() -> None:
    async def play() -> None:
        site, work = Site(), Work(failures=9)
        task = site.supervisor.keep("watch", work.run)
        while not site.health.reasons:
            await site.next()
        task.cancel()
        await asyncio.wait({task})
        assert (site.supervisor.workers, site.health.reasons, site.health.warnings) == ((), {}, [])

    run(play())


def test_the_failure_of_what_is_done_once_is_a_reason_until_it_is_done_well() -> None:
    async def play() -> None:
        site = Site()
        failing = site.supervisor.begin("watch", Work(1).run())
        with pytest.raises(OSError, match="Too many open files"):
            await failing
        assert site.health.reasons == {"task watch": REASON}
        await site.supervisor.begin("another", Work(0, returns=True).run())
        assert site.health.reasons == {"task watch": REASON}
        await site.supervisor.begin("watch", Work(0, returns=True).run())
        assert (site.health.reasons, site.supervisor.workers) == ({}, ())

    run(play())


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "begun once"])
def test_the_end_is_told_again_to_what_has_not_heard_it(kept: bool) -> None:
    async def play() -> None:
        site, begun, swallowed = Site(), asyncio.Event(), asyncio.Event()

        async def hard_of_hearing() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.set()
            await asyncio.Event().wait()

        supervisor = site.supervisor
        task = (
            supervisor.keep("watch", hard_of_hearing)
            if kept
            else supervisor.begin("watch", hard_of_hearing())
        )
        await begun.wait()
        await supervisor.end()
        assert (swallowed.is_set(), task.cancelled(), site.heard) == (True, True, [])

    run(play())


def test_of_several_that_belong_together_none_outlives_another() -> None:
    async def play() -> None:
        ended = []

        async def goes_on() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("goes on")

        with pytest.raises(OSError, match="Too many open files"):
            await together(goes_on(), Work(1).run())
        assert ended == ["goes on"]

    run(play())


# ---------------------------------------------------------------------- threads


class Jobs:
    """What a thread does: it takes from a queue, and raises what it finds there."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Optional[BaseException]] = queue.SimpleQueue()
        self.lives = 0
        self.done = threading.Event()

    def serve(self) -> None:
        self.lives += 1
        while (job := self.queue.get()) is not None:
            raise job
        self.done.set()


@pytest.mark.parametrize("error", [NO_FILES, SystemExit(1)], ids=["an error", "an exit"])
async def test_a_thread_that_dies_is_begun_again_and_told_of(error: BaseException) -> None:
    site, jobs = Site(), Jobs()
    thread = site.supervisor.keep_thread("writer", jobs.serve)
    jobs.queue.put(error)
    await asyncio.wait_for(site.next(), HANG_S)
    assert site.health.warnings == [
        f"the background thread 'writer' has failed: {type(error).__name__}: {error}"
    ]
    assert site.failures() == ['cri_resmgr_background_failures_total{name="writer"} 1.0']
    await asyncio.wait_for(site.next(), HANG_S)
    assert (site.heard, site.health.warnings) == ([("writer", False), ("writer", True)], [])
    thread.end()
    jobs.queue.put(None)
    await asyncio.to_thread(thread.join, HANG_S)
    assert (jobs.lives, jobs.done.is_set(), thread.is_alive()) == (2, True, False)


async def test_the_pause_of_a_thread_is_over_when_it_is_to_end() -> None:
    """In its last life it does what it has, and returns; the pause alone would be a minute."""
    site, jobs = Site(), Jobs()
    thread = site.supervisor.keep_thread("writer", jobs.serve)
    thread.worker.failures_in_a_row = 9
    jobs.queue.put(NO_FILES)
    await asyncio.wait_for(site.next(), HANG_S)
    assert site.health.reasons.keys() == {"task writer"}
    jobs.queue.put(None)
    thread.end()
    await asyncio.to_thread(thread.join, HANG_S)
    assert jobs.done.is_set() and not thread.is_alive()


async def test_a_thread_that_cannot_be_started_is_tried_again() -> None:
    """As where a process may have no more threads, at first."""
    site, jobs, real = Site(), Jobs(), threading.Thread.start
    refusals = [RuntimeError("can't start new thread")]

    def start(thread: threading.Thread) -> None:
        if refusals:
            raise refusals.pop()
        real(thread)

    threading.Thread.start = start  # type: ignore[method-assign]
    try:
        thread = site.supervisor.keep_thread("writer", jobs.serve)
        assert not thread.is_alive()
        assert site.health.warnings == [
            "the background thread 'writer' has failed: RuntimeError: can't start new thread"
        ]
        jobs.queue.put(None)
        assert await asyncio.to_thread(jobs.done.wait, HANG_S)
    finally:
        threading.Thread.start = real  # type: ignore[method-assign]
    await asyncio.to_thread(thread.join, HANG_S)
