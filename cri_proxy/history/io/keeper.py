"""Keeps the history from the event loop: a thread of its own writes it, a moment after the calls, and reads it.

Its disk may hang or be full: no call waits for it, nor does the state, which has another thread and another file. What is
handed over meanwhile waits in memory, ``WAITING`` records at most; past that the oldest are dropped and counted. What a
daemon that was killed had not written by then is in the state file: the last 1,000 are handed over again at each start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Callable, Optional

from bpf.kernel.clock import boot_time_s
from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within
from cri_proxy.engine.model import ContainerRecord, DecisionRecord
from cri_proxy.history.entries import Query
from cri_proxy.history.io.file import Bounds, Handed, HistoryFile, HistoryUnusable
from cri_proxy.job_thread import JobThread
from policies.model import UNTOUCHED

#: Records in memory; how long the first of them waits for others; how soon a failed write is tried again, seconds.
WAITING, GATHER_S, RETRY_S = 10_000, 1.0, 30.0
#: How long an answer is waited for, seconds, and how many may be.
ANSWER_S, ASKING = 5.0, 8
#: How long the end of the service waits for it, seconds.
END_S = 1.0
DAY_S = 86_400.0


class HistoryKeeper:
    """All of it belongs to one event loop, but what is marked as the thread's. ``entries`` 0: nothing is kept.

    ``dropped`` is told how many records were lost, ``note`` gets why nothing is written, or "" once it is.
    """

    def __init__(
        self,
        folder: Path,
        dropped: Callable[[int], None] = lambda count: None,
        note: Callable[[str], None] = lambda why: None,
        boot_id: str = "",
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self.entries, self.days = 10_000, 7
        self._boot_id = boot_id
        self._dropped = dropped
        self._note = note
        self._file = HistoryFile(folder)
        self._thread = JobThread("history", supervisor)
        #: By number and time: of a record that changes soon the last is written only.
        self._waiting: dict[tuple[int, float], Handed] = {}
        #: Of entries that are no decisions: below zero, as the engine's are above.
        self._numbers = count(-(1 << 40))
        self._timer: Optional[asyncio.TimerHandle] = None
        self._is_writing = False
        self._asking = 0
        self._problem = ""

    def add(self, records: Iterable[DecisionRecord], grants: Mapping[str, ContainerRecord]) -> None:
        """Have records entered soon, or again as they are now. ``grants``: tells the names of those they are about."""
        if not self.entries:
            return
        # A clock that is set later does not change what was entered.
        began_s = time.time() - boot_time_s()
        for record in records:
            paths = {
                key: grants[key].container.path
                for change in record.changes
                for key in change.keys
                if key in grants
            }
            if record.move is not None:
                sides = (*record.move.nearer, *record.move.farther, *record.move.exchanged)
                paths.update({key: grants[key].container.path for key in sides if key in grants})
            key = record.number, record.at_s
            self._waiting.pop(key, None)
            self._waiting[key] = Handed(record, self._boot_id, began_s + record.at_s, paths)
        self._bound()

    def tell(
        self,
        operation: str,
        why: str,
        keys: Sequence[str],
        is_own: bool,
        grants: Mapping[str, ContainerRecord],
    ) -> None:
        """Have something entered that is no decision about a place. ``keys``: the containers it is about, by id.

        ``is_own``: it is about the first of them, as decisions are. Others find it by their names.
        """
        if not self.entries:
            return
        at_s = boot_time_s()
        own = grants.get(keys[0]) if keys and is_own else None
        path, uid = ("", "") if own is None else (own.container.path, own.container.pod.uid)
        record = DecisionRecord(
            next(self._numbers), at_s, operation, path, uid, keys[0] if own else "", "", UNTOUCHED, why
        )
        paths = {key: grants[key].container.path for key in keys if key in grants}
        about = tuple(keys[1:] if own else keys)
        handed = Handed(record, self._boot_id, time.time(), paths, about)
        self._waiting[record.number, at_s] = handed
        self._bound()

    def _bound(self) -> None:
        """Drop what is too much, and have the rest written soon."""
        lost = len(self._waiting) - WAITING
        if lost > 0:
            for key in list(self._waiting)[:lost]:
                del self._waiting[key]
            self._dropped(lost)
        self._write_in(GATHER_S)

    async def page(self, query: Query) -> dict[str, Any]:
        """Some entries (``read_page``), those that wait to be written among them.

        :raises HistoryUnusable: it cannot be read, or not now.
        """
        if self._asking >= ASKING:
            raise HistoryUnusable(f"{ASKING} others ask for the history just now; try again")
        self._write_now()
        answer = self._thread.begin(lambda: self._file.page(query))
        self._asking += 1
        answer.add_done_callback(self._note_answered)
        try:
            return await wait_within(ANSWER_S, asyncio.shield(answer))
        except asyncio.TimeoutError:
            raise HistoryUnusable(
                f"the disk with {self._file.path} does not answer; see: journalctl -k"
            ) from None

    def _note_answered(self, answer: asyncio.Future[dict[str, Any]]) -> None:
        self._asking -= 1

    async def close(self) -> None:
        """Write what waits, if the disk answers in time, and let go of the file."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write_now()
        if not self._thread.has_begun:
            return
        ended = self._thread.begin(self._file.close)
        self._thread.end()
        try:
            await wait_within(END_S, ended)
        except asyncio.TimeoutError:
            pass  # what is missing is among the records of the state

    # ------------------------------------------------------------------ writing

    def _write_in(self, seconds: float) -> None:
        if self._waiting and self._timer is None and not self._is_writing:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._write_now()

    def _write_now(self) -> None:
        """Hand over what waits, unless the thread is at it already, or the last try is not long ago."""
        if not self._waiting or self._is_writing or (self._problem and self._timer is not None):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        handed, self._waiting, self._is_writing = self._waiting, {}, True
        bounds = Bounds(self.entries, time.time() - self.days * DAY_S)
        self._thread.put(lambda: self._write(handed, bounds))

    def _wrote(self, handed: dict[tuple[int, float], Handed], problem: str) -> None:
        self._is_writing = False
        if problem != self._problem:
            self._problem = problem
            self._note(problem)
        if problem:
            self._waiting = {**handed, **self._waiting}
        self._write_in(RETRY_S if problem else GATHER_S)

    # ------------------------------------------------------------------ the thread

    def _write(self, handed: dict[tuple[int, float], Handed], bounds: Bounds) -> None:
        problem = "the history is not being kept: its thread has failed"
        try:
            self._file.add(handed.values(), bounds)
            problem = ""
        except HistoryUnusable as error:
            problem = str(error)
        except Exception as error:  # a bug, which must cost no more than these
            problem = f"the history is not being kept: {type(error).__name__}: {error}; please report it"
        finally:  # else no more would be written after a failure of the thread
            self._thread.tell(self._wrote, handed, problem)
