"""Memory that is not used any more goes back to the kernel when a flood is over.

By itself it does not: the C library keeps what lies below anything that is still in use. ``malloc_trim`` returns such
pages; fewer arenas (MALLOC_ARENA_MAX) and other thresholds (mallopt) were tried and return nothing of it
(docs/relay.md, Limits).
"""

from __future__ import annotations

import ctypes
import gc
from typing import Callable

#: So much must have been in memory for connections, and at most so much be left.
WORTH_BYTES, QUIET_BYTES = 8 << 20, 2 << 20
#: How long it must be quiet first, ticks: the next flood would want it back.
QUIET_TICKS = 3


def give_back() -> None:
    """What is garbage, and what is free; some 30 ms. Where the C library has no ``malloc_trim`` (musl) it keeps that."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class GivingBack:
    """``give_back`` is called once after each flood."""

    def __init__(self, give_back: Callable[[], None] = give_back) -> None:
        self._give_back = give_back
        self._peak = 0
        self._quiet = 0

    def tick(self, peak: int, total: int) -> None:
        """The most that was kept since the last tick, and what is kept now; bytes."""
        self._peak = max(self._peak, peak)
        self._quiet = self._quiet + 1 if peak <= QUIET_BYTES and total <= QUIET_BYTES else 0
        if self._quiet >= QUIET_TICKS and self._peak >= WORTH_BYTES:
            self._peak = 0
            self._give_back()
