"""When samples are taken: every interval, and sooner while the table of pairs fills, so that no pair finds it full. Pure.

A sample empties the table. One that was more than half full might not hold what comes until the next, as an interval may
bring twice what the one before brought.
"""

from __future__ import annotations

_MUCH, _LITTLE = 0.5, 0.25
#: A sample of 40,000 pairs costs 0.7 s of CPU time: more often than every 2.5 s would cost more than a third of a CPU.
_SHORTEST_PART = 1 / 4


def next_pause_s(interval_s: float, pause_s: float, fill: float) -> float:
    """How long after a sample the next one comes: a quarter of the interval at least, the whole at most.

    ``pause_s``: how long the sample took that has found the table so full. More than half: half of that. Less than a
    quarter: twice that would have fitted as well.
    """
    if fill > _MUCH:
        pause_s /= 2
    elif fill < _LITTLE:
        pause_s *= 2
    return min(max(pause_s, interval_s * _SHORTEST_PART), interval_s)


class SamplePace:
    """The times at which samples are due. Call ``due_after`` before each wait, ``follow`` after each sample."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self.pause_s = interval_s
        self._due_s = now_s

    def due_after(self, now_s: float) -> float:
        """When the next sample is due: a pause after the one before was, so that nothing drifts.

        Samples that were missed meanwhile are not made up for.
        """
        self._due_s += self.pause_s
        if self._due_s < now_s:
            self._due_s = now_s + self.pause_s
        return self._due_s

    def follow(self, interval_s: float, fill: float) -> None:
        """Take in how full the last sample has found the table, and the interval of the options, which may be new."""
        self.pause_s = next_pause_s(interval_s, self.pause_s, fill)
