"""What goes on beside the calls: tasks that are begun again when they fail, and ended together.

A node that is short of memory or descriptors for a moment makes anything fail. That must not be the end of what
the daemon does, nor go unseen: a failure is logged, and shown in the status until the same work goes well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Callable

from cri_proxy.services.health import Health

Work = Coroutine[Any, Any, Any]

#: How long a task that has failed rests, seconds.
AGAIN_S = 1.0
#: A task that was begun again does well when it has lived this long, seconds.
WELL_AFTER_S = 5.0
#: How long a task may take to end before it is told again, seconds.
CANCEL_AGAIN_S = 0.5


class Tasks:
    """The tasks of one daemon. Their names are for the status, and for people."""

    def __init__(self, health: Health, log: Any) -> None:
        self._health = health
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    def begin(self, name: str, work: Work) -> asyncio.Task[Any]:
        """Do something once."""

        def done(task: asyncio.Task[Any]) -> None:
            self._running.discard(task)
            if not task.cancelled():
                self._note(name, task.exception())

        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(done)
        return task

    def keep(self, name: str, work: Callable[[], Work]) -> None:
        """Do something until the end; if it fails, again."""
        self.begin(name, self._forever(name, work))

    async def _forever(self, name: str, work: Callable[[], Work]) -> None:
        while True:
            well = asyncio.get_running_loop().call_later(WELL_AFTER_S, self._note, name, None)
            try:
                await work()
                return
            except Exception as error:
                self._note(name, error)
            finally:
                well.cancel()
            await asyncio.sleep(AGAIN_S)

    def _note(self, name: str, error: Any) -> None:
        topic, reason = f"task {name}", ""
        if error is not None:
            reason = f"the background task {name!r} has failed: {type(error).__name__}: {error}"
            if self._health.reasons.get(topic) != reason:
                self._log.error("a background task failed", task=name, exc_info=error)
        self._health.note(topic, reason)

    async def end(self) -> None:
        """Cancel all, and return when they have ended."""
        while tasks := tuple(self._running):
            # Once may not be enough: before Python 3.12, wait_for can swallow a cancellation (bpo-37658).
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
            await asyncio.sleep(0)  # the callbacks of those that are done
