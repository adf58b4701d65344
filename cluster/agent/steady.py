"""Numbers that are told only where they say something new: a rate that swings a little is the rate it was. Pure."""

from __future__ import annotations

from typing import Optional

#: A rate is told anew once it is this much larger or smaller, as a factor.
RATE_FACTOR = 1.5
#: Memory in use is told anew once it differs by this much.
MEMORY_STEP_BYTES = 64 << 20


def steady_rate(now: float, told: Optional[float]) -> int:
    """A rate to tell: ``told`` while ``now`` is within ``RATE_FACTOR`` of it, else ``now`` to two digits.

    Rounding alone would not do: a rate beside a step's edge would change with every look.
    """
    if told and now > 0 and told / RATE_FACTOR <= now <= told * RATE_FACTOR:
        return int(told)
    return _two_digits(now)


def steady_memory(now: int, told: Optional[int]) -> int:
    """Bytes to tell: ``told`` while ``now`` is less than a step away, else ``now`` rounded down to a step."""
    if told is not None and abs(now - told) < MEMORY_STEP_BYTES:
        return told
    return now // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES


def _two_digits(value: float) -> int:
    if value < 1:
        return 0
    step = int(10 ** max(0, len(str(int(value))) - 2))
    return round(value / step) * step
