"""A thread that has all that waits for one disk, in the order it was asked for, so that no call does."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from typing import Any, Callable, Optional, TypeVar

from cri_api.supervisor import SupervisedThread, Supervisor
from cri_proxy.event_loop import THREADS

Result = TypeVar("Result")


class _Jobs:
    """The jobs of one thread; None: nothing more will come."""

    def __init__(self) -> None:
        self._waiting: deque[Optional[Callable[[], object]]] = deque()
        #: One for each job. A job is done because it is there, not because the thread was woken for it: a thread that
        #: is begun again does what the one before has not done.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, job: Optional[Callable[[], object]]) -> None:
        self._waiting.append(job)
        self._wakes.put(None)

    def serve(self) -> None:
        while True:
            while self._waiting:
                job = self._waiting[0]
                if job is None:
                    return
                try:
                    job()
                finally:
                    self._waiting.popleft()
            self._wakes.get()


class JobThread:
    """Started by its first job; belongs to the event loop that runs then. ``name``: what it is for.

    A job that raises is over, and those after it are done after a pause.
    """

    def __init__(self, name: str, supervisor: Optional[Supervisor] = None) -> None:
        self._name = name
        self._supervisor = supervisor or Supervisor()
        self._jobs = _Jobs()
        self._thread: Optional[SupervisedThread] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def put(self, job: Callable[[], object]) -> None:
        """Have something done there."""
        self._jobs.put(job)
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = self._supervisor.keep_thread(
                f"{self._name} thread", self._jobs.serve, f"{THREADS}-{self._name}"
            )

    def begin(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Have something done there: what it returns or raises. It is done even if nothing waits for that any more."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_seen)
        self.put(lambda: self._work(work, done))
        return done

    def tell(self, call: Callable[..., object], *arguments: Any) -> None:
        """From the thread: call something in the loop, if it is still there."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # it is closed: nothing waits
            pass

    def end(self) -> None:
        """Nothing more will come: the thread ends when it has done what it has."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.end()
            self._thread, self._jobs = None, _Jobs()

    def _work(self, work: Callable[[], Result], done: asyncio.Future[Result]) -> None:
        try:
            result = work()
        except Exception as error:
            self.tell(_fail, done, error)
        except BaseException as error:
            self.tell(_fail, done, RuntimeError(f"{type(error).__name__}: {error}"))
            raise
        else:
            self.tell(_answer, done, result)


def _seen(done: asyncio.Future[Any]) -> None:
    """So that an error for which nothing waits is not one of asyncio's."""
    if not done.cancelled():
        done.exception()


def _answer(done: asyncio.Future[Result], result: Result) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
