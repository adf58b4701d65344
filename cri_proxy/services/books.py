"""Whether the records of a node, its books, are known to be true.

They are not from the moment that an engine is put to work, or that one is asked again which was not told of anything for a
time (mode off), until the first comparison with the runtime has ended: containers may run that own CPUs of which the records
say nothing. Everything that gives CPUs to a container asks here first, and waits or leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy.metrics import Metrics

#: How long a call waits for the first comparison, seconds; an event of NRI has two in all.
CALL_WAIT_S, EVENT_WAIT_S = 2.0, 1.0
#: How long the books may be unknown before that is a reason, seconds. With a runtime that answers it is a tenth of that.
SHOWN_AFTER_S = 2.0
NEXT_STEP = "new containers wait, and are placed afterwards; see the log, or ask the runtime: crictl ps"


class Books:
    """``are_true`` from the beginning: an engine that no daemon has put to work has nothing to be compared with."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known = asyncio.Event()
        self._known.set()
        #: Why they are not known to be true; "" = they are.
        self.why = ""
        #: The CPUs that containers may own besides what the records say; None = that is not known.
        self.may_be_owned: Optional[frozenset[int]] = None
        #: Called with the reason, once it has lasted for a while, and with "" when it is over.
        self.on_change: Callable[[str], None] = lambda reason: None
        #: The daemon before has ended with records that were not saved: what runs is right, the first time.
        self.are_behind = False
        #: Counts how often they were put in question: a comparison that has begun before says nothing.
        self.question = 0
        self._timer: Optional[asyncio.TimerHandle] = None

    @property
    def are_true(self) -> bool:
        return not self.why

    def doubt(self, why: str, may_be_owned: Optional[frozenset[int]] = None) -> None:
        """They are not known to be true from here on, until ``confirm``."""
        self.why, self.may_be_owned = why, may_be_owned
        self.question += 1
        self._known.clear()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show)

    def narrow(self, question: int, may_be_owned: frozenset[int]) -> None:
        """What is in question since ``question`` is in question for these CPUs alone."""
        if self.why and question == self.question:
            self.may_be_owned = may_be_owned

    def confirm(self) -> None:
        """They were compared with what runs; or nothing is decided by them now (mode off)."""
        self.why, self.may_be_owned = "", None
        self._known.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.on_change("")

    def sentence(self) -> str:
        """Why nothing is given out, with what to do next; "" = the books are true."""
        return self.why and f"it is not known yet which CPUs are owned: {self.why}; {NEXT_STEP}"

    def _show(self) -> None:
        self.on_change(self.sentence())

    async def known(self, what: str, seconds: float) -> bool:
        """Wait until they are true, at most ``seconds``; whether they are. ``what`` waits, for the counter."""
        if self.are_true:
            return True
        with contextlib.suppress(asyncio.TimeoutError):
            await wait_within(seconds, self._known.wait())
        self._metrics.books_waits.labels(what, "in time" if self.are_true else "given up").inc()
        return self.are_true
