"""A thread that has all that waits for one disk, in the order it was asked for, so that no call does."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, Callable, Optional, TypeVar

from cri_proxy.event_loop import THREADS

Result = TypeVar("Result")


class JobThread:
    """Started by its first job; belongs to the event loop that runs then. ``name``: what it is for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Optional[Callable[[], object]]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def put(self, job: Callable[[], object]) -> None:
        """Have something done there. It must not raise: the thread would end."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, name=f"{THREADS}-{self._name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)

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
            self._thread = None
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _work(self, work: Callable[[], Result], done: asyncio.Future[Result]) -> None:
        try:
            result = work()
        except Exception as error:
            self.tell(_fail, done, error)
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
