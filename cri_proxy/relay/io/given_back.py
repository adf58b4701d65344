"""Memory that is not used any more goes back to the kernel when a flood is over.

By itself it does not: the C library keeps what lies below anything that is still in use. ``malloc_trim`` returns such
pages; fewer arenas (MALLOC_ARENA_MAX) and other thresholds (mallopt) were tried and return nothing of it
(docs/relay.md, Limits).
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Callable, Optional

#: By how much resident memory must have grown since it was last quiet, and what may be kept for connections then.
WORTH_BYTES, QUIET_BYTES = 8 << 20, 2 << 20
#: How long it must be quiet first, ticks: the next flood would want it back.
QUIET_TICKS = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """What is garbage, and what is free; some 30 ms. Where the C library has no ``malloc_trim`` (musl) it keeps that."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """What this process has in memory; 0 where that is not told."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class GivingBack:
    """``give_back`` is called once after each flood; ``resident``: what there is in memory."""

    def __init__(
        self,
        give_back: Callable[[], None] = give_back,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._give_back = give_back
        self._resident = resident
        self._quiet = 0
        #: What there was when it was last quiet; None: it has not been yet.
        self._floor: Optional[int] = None

    def tick(self, kept: int) -> None:
        """So many bytes are kept for connections now."""
        self._quiet = self._quiet + 1 if kept <= QUIET_BYTES else 0
        if self._quiet < QUIET_TICKS:
            return
        resident = self._resident()
        if self._floor is not None and resident > self._floor + WORTH_BYTES:
            self._give_back()
            self._floor = self._resident()
        elif self._floor is None or resident < self._floor:
            self._floor = resident
