"""Whether containers fetch more or fewer lines from afar after moves than before. Pure: counts in, a verdict out.

Before and after a plan the same events are counted in several windows. The rule:

    rate of a container in a window  =  counts of all events / work (instructions, in thousands)
    rate of the plan in a window     =  mean of its containers' rates, weighted by their work before
    worse   if every window after is above every window before
            and  mean after - mean before  >=  2 x (largest - smallest before)
            and  mean after  >=  1.1 x mean before
            and  mean after - mean before  >=  0.05
    better  the other way round; else within the noise

Per unit of work: more load is no effect. Weighted by the work *before*, for both sides: that one container has more to do
than another is none either. Every window above every other: of five and five that comes by chance once in 252 times.
Twice the spread: what one window differs from the next without a move is noise. 0.05 for a thousand instructions: at
84 ns for a line from another L3 that is 4 ps for an instruction, about one per cent of its time; less is not worth a move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

#: Windows before, and as many after.
WINDOWS = 5
SPREADS, LEAST_RATIO, LEAST_RISE = 2.0, 1.1, 0.05
#: A container that does less in a window (instructions; nanoseconds of CPU time) tells nothing.
LEAST_WORK = 1e6

BETTER, WORSE, NOISE, UNKNOWN = "better", "worse", "within the noise", "not known"


@dataclass(frozen=True)
class Counts:
    """What a container's counters say: work, and how often each event came; since they were opened, or of one window."""

    work: float
    events: tuple[float, ...]

    def since(self, earlier: Counts) -> Counts:
        """What came between two looks."""
        events = tuple(now - then for now, then in zip(self.events, earlier.events))
        return Counts(self.work - earlier.work, events)


#: Counts of one window by container id.
Window = Mapping[str, Counts]


@dataclass(frozen=True)
class Effect:
    """``before``, ``after``: mean rate of each event. ``noise``: largest minus smallest sum of them before.

    ``compared``: so many containers; ``idle``: so many were counted and did too little to compare.
    """

    verdict: str
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    noise: float = 0.0
    compared: int = 0
    idle: int = 0


def windows_of(looks: Sequence[Window]) -> tuple[Window, ...]:
    """The windows between looks; of those containers that every look has."""
    always = set.intersection(*(set(look) for look in looks)) if looks else set()
    return tuple(
        {key: later[key].since(earlier[key]) for key in sorted(always)}
        for earlier, later in zip(looks, looks[1:])
    )


def compare(before: Sequence[Window], after: Sequence[Window], per: float) -> Effect:
    """The effect by the rule. ``per``: rates are for so much work."""
    windows = [*before, *after]
    counted = set.intersection(*(set(window) for window in windows)) if before and after else set()
    busy = [
        key for key in sorted(counted) if all(window[key].work >= LEAST_WORK for window in windows)
    ]  # fmt: skip
    if not busy:
        return Effect(UNKNOWN, idle=len(counted))
    total = sum(window[key].work for window in before for key in busy)
    weights = {key: sum(window[key].work for window in before) / total for key in busy}
    then = [_rates(window, weights, per) for window in before]
    now = [_rates(window, weights, per) for window in after]
    sums = [sum(rates) for rates in then]
    noise = max(sums) - min(sums)
    verdict = _verdict(sums, [sum(rates) for rates in now], noise)
    return Effect(verdict, _means(then), _means(now), noise, len(busy), len(counted) - len(busy))


def _rates(window: Window, weights: Mapping[str, float], per: float) -> tuple[float, ...]:
    by_event = zip(
        *([weight * per * count / window[key].work for count in window[key].events]
          for key, weight in weights.items())
    )  # fmt: skip
    return tuple(sum(rates) for rates in by_event)


def _means(rates: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(mean(of_event) for of_event in zip(*rates))


def _verdict(before: Sequence[float], after: Sequence[float], noise: float) -> str:
    if _is_above(after, before, noise):
        return WORSE
    return BETTER if _is_above(before, after, noise) else NOISE


def _is_above(high: Sequence[float], low: Sequence[float], noise: float) -> bool:
    rise = mean(high) - mean(low)
    return (
        min(high) > max(low)
        and rise >= SPREADS * noise
        and mean(high) >= LEAST_RATIO * mean(low)
        and rise >= LEAST_RISE
    )
