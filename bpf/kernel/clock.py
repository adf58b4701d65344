"""The clock that samples, graphs and the records of the daemon go by."""

from __future__ import annotations

import time


def boot_time_s() -> float:
    """Seconds since boot, suspended time included (CLOCK_BOOTTIME): goes on through restarts of ours.

    A graph must not think that a suspended machine was idle for a second.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
