"""The clock that samples and graphs go by."""

from __future__ import annotations

import time


def boot_time_s() -> float:
    """CLOCK_BOOTTIME: the graph must not think that a suspended machine was idle for a second."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
