"""Starts tasks and threads that live as long as their process, and begins each again that ends too early.

A node that is short of memory or descriptors for a moment makes anything fail. One exception then ends a task or a
thread, and nothing would miss it. Here it is begun again after a pause, it is named for as long as it fails, and each
failure is told. The product starts long-lived work in no other way (``tools/starts`` holds that).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from typing import Any, Callable, Optional

#: The pause after a failure, seconds; it doubles with each failure in a row.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: Work that was begun again does well when it has lived this long, seconds.
WELL_AFTER_S = 5.0
#: So many failures in a row are more than a bad moment.
TROUBLED_AFTER = 3
#: How long a task may take to end before it is told again, seconds.
CANCEL_AGAIN_S = 0.5

Work = Coroutine[Any, Any, Any]


class EndedEarly(Exception):
    """Work that goes on for ever has returned, or has cancelled itself."""


class Worker:
    """One task or thread under supervision. What is here is for people and for metrics."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        #: "task", "thread", or "once": a task that is not begun again.
        self.kind = kind
        self.failures = 0
        self.failures_in_a_row = 0
        #: Why it has failed last; "": it does well.
        self.problem = ""

    @property
    def is_troubled(self) -> bool:
        """Whether this is more than a bad moment: it fails again and again, or is not tried again by itself."""
        return bool(self.problem) and (self.kind == "once" or self.failures_in_a_row >= TROUBLED_AFTER)

    def failed(self, error: BaseException, lived_s: float) -> float:
        """Note a failure after so many seconds of life; returns the seconds to wait before the next life."""
        self.failures += 1
        self.failures_in_a_row = 1 if lived_s >= WELL_AFTER_S else self.failures_in_a_row + 1
        self.problem = f"{type(error).__name__}: {error}"
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.failures_in_a_row - 1))

    def document(self) -> dict[str, Any]:
        """For ``status``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "failures": self.failures,
            "failures_in_a_row": self.failures_in_a_row,
            "problem": self.problem,
        }


#: Told of a worker that has failed, with the error, and of one that does well again, with None.
Told = Callable[[Worker, Optional[BaseException]], object]


class Supervisor:
    """Of one process. ``told`` is called in the event loop, in a thread's own thread where no loop runs yet."""

    def __init__(self, told: Told = lambda worker, error: None) -> None:
        self.told = told
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lives: dict[str, asyncio.Task[Any]] = {}
        self._threads: dict[str, SupervisedThread] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._is_ending = False

    # ------------------------------------------------------------------ what there is

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those that are kept, and of what is done once that which has failed the last time."""
        return tuple(worker for worker in self._workers.values() if worker.kind != "once" or worker.problem)

    @property
    def lives(self) -> dict[str, asyncio.Task[Any]]:
        """The tasks in which supervised work runs now, by name. To cancel one is to fail it: it is begun again."""
        return dict(self._lives)

    @property
    def threads(self) -> dict[str, SupervisedThread]:
        return dict(self._threads)

    # ------------------------------------------------------------------ tasks

    def begin(self, name: str, work: Work) -> asyncio.Task[Any]:
        """Do something once. Its failure is a trouble until the same is done well."""
        worker = self._worker(name, "once")
        task = self._start(work)

        def done(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                worker.failed(error, 0.0)
                self.told(worker, error)
            elif not (task.cancelled() and worker.problem):  # else it is not known to go well
                self._forget(worker)

        task.add_done_callback(done)
        return task

    def keep(self, name: str, work: Callable[[], Work], may_end: bool = False) -> asyncio.Task[Any]:
        """Do something until the task that is returned is cancelled; if it fails, again.

        ``may_end``: a return is its regular end. Without it a return is a failure like any other.
        """
        worker = self._worker(name, "task")
        return self._start(self._forever(worker, work, may_end))

    async def _forever(self, worker: Worker, work: Callable[[], Work], may_end: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_s = loop.time()
                well = loop.call_later(WELL_AFTER_S, self.does_well, worker)
                try:
                    error = await self._one_life(worker, work)
                finally:
                    well.cancel()
                if error is None and may_end:
                    return
                error = error or EndedEarly("it has returned")
                pause_s = worker.failed(error, loop.time() - began_s)
                self.told(worker, error)
                await asyncio.sleep(pause_s)
        finally:
            self._forget(worker)

    async def _one_life(self, worker: Worker, work: Callable[[], Work]) -> Optional[BaseException]:
        # A task of its own: a cancellation that comes from inside the work is told from one of ours.
        life = asyncio.get_running_loop().create_task(work())
        self._lives[worker.name] = life
        try:
            while not life.done():
                try:
                    await asyncio.wait({life})
                except asyncio.CancelledError:
                    while not life.done():
                        # Once may not be enough: before Python 3.12, wait_for can swallow a cancellation (bpo-37658).
                        life.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await asyncio.wait({life}, timeout=CANCEL_AGAIN_S)
                    if not life.cancelled():
                        life.exception()
                    raise
        finally:
            if self._lives.get(worker.name) is life:
                del self._lives[worker.name]
        return EndedEarly("it was cancelled from inside") if life.cancelled() else life.exception()

    def _start(self, work: Work) -> asyncio.Task[Any]:
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        """Cancel all tasks, and return when they have ended. Threads are ended by what has work for them."""
        self._is_ending = True
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
            await asyncio.sleep(0)  # the callbacks of those that are done

    # ------------------------------------------------------------------ threads

    def keep_thread(self, name: str, work: Callable[[], object], thread_name: str = "") -> SupervisedThread:
        """Have a daemon thread do something until it returns; if it raises, again after a pause.

        What the work waits for must outlive a failure: its next life goes on where this one has ended. ``thread_name``:
        for debuggers, ``name`` by default. A thread that cannot be started is tried again like one that has failed.
        """
        if self._loop is None:
            with contextlib.suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
        thread = SupervisedThread(self, self._worker(name, "thread"), work, thread_name or name)
        self._threads[name] = thread
        thread.start()
        return thread

    def in_loop(self, call: Callable[..., object], *arguments: Any) -> None:
        """From any thread: call something in the event loop; at once where none runs yet, not at all after its end."""
        if self._loop is None:
            call(*arguments)
            return
        with contextlib.suppress(RuntimeError):  # it is closed: nothing is told any more
            self._loop.call_soon_threadsafe(call, *arguments)

    def later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """In the event loop's thread: call something later; not at all where no loop runs."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_later(seconds, call, *arguments)

    def over(self, thread: SupervisedThread) -> None:
        """A thread has ended in order."""
        if self._threads.get(thread.worker.name) is thread:
            del self._threads[thread.worker.name]
            self._forget(thread.worker)

    # ------------------------------------------------------------------ books

    def _worker(self, name: str, kind: str) -> Worker:
        worker, before = Worker(name, kind), self._workers.get(name)
        if before is not None:
            worker.failures, worker.problem = before.failures, before.problem
        self._workers[name] = worker
        return worker

    def does_well(self, worker: Worker) -> None:
        """It has lived for long enough: what was wrong is over."""
        worker.failures_in_a_row = 0
        if worker.problem:
            worker.problem = ""
            self.told(worker, None)

    def _forget(self, worker: Worker) -> None:
        if not self._is_ending:
            self.does_well(worker)
        if self._workers.get(worker.name) is worker:
            del self._workers[worker.name]


async def together(*works: Work) -> None:
    """Do several things that belong together. When one ends the others end with it, and its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        while still := [task for task in tasks if not task.done()]:
            for task in still:
                task.cancel()
            await asyncio.wait(still, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*tasks, return_exceptions=True)


class SupervisedThread:
    """A thread as ``keep_thread`` has it."""

    def __init__(
        self, supervisor: Supervisor, worker: Worker, work: Callable[[], object], thread_name: str
    ) -> None:
        self.worker = worker
        self._supervisor = supervisor
        self._work = work
        self._thread_name = thread_name
        self._thread: Optional[threading.Thread] = None
        self._is_ending = threading.Event()
        #: The number of this life: a thread does well only where it has not failed since it was asked.
        self._life = 0

    @property
    def ident(self) -> Optional[int]:
        return None if self._thread is None else self._thread.ident

    def is_alive(self) -> bool:
        """Whether there is a thread: not before it could be started, nor in a process that was forked."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Called by the supervisor."""
        if self._is_ending.is_set():
            return
        thread = threading.Thread(target=self._run, name=self._thread_name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no memory, or no more threads for this process
            pause_s = self.worker.failed(error, 0.0)
            self._supervisor.told(self.worker, error)
            self._supervisor.later(pause_s, self.start)
        else:
            self._thread = thread

    def end(self) -> None:
        """Nothing more will come. Call it when the work returns by itself: there are no more pauses, and no life after
        the third that fails.
        """
        self._is_ending.set()

    def join(self, seconds: Optional[float] = None) -> None:
        """Wait for its end, for so long at most."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            self._life += 1
            self._supervisor.in_loop(self._watch, self._life)
            try:
                self._work()
                break
            except BaseException as error:  # whatever it is: it would end the thread
                # As it was when it failed: the end that follows from being told of it leaves it one more life.
                was_ending = self._is_ending.is_set()
                pause_s = self.worker.failed(error, time.monotonic() - began_s)
                self._supervisor.in_loop(self._supervisor.told, self.worker, error)
                if was_ending and self.worker.is_troubled:
                    break
                self._is_ending.wait(pause_s)
        self._supervisor.in_loop(self._supervisor.over, self)

    def _watch(self, life: int) -> None:
        if self.worker.problem:
            self._supervisor.later(WELL_AFTER_S, self._note_well, life)

    def _note_well(self, life: int) -> None:
        if life == self._life and self.is_alive():
            self._supervisor.does_well(self.worker)
