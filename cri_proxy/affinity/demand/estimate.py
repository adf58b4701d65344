"""The CPUs that a container needs by its usage; and when its set becomes smaller or larger. Pure.

A sample says how much CPU time a container has used since it exists, how long it was throttled at its quota, and how
long its tasks have waited for a CPU (PSI, line ``some``). Between two samples:

    usage    =  CPU time used / time                               milli-CPUs
    waiting  =  (time waited - time throttled) / time              0 to 1

    demand   =  a percentile of the peaks of usage over the window, later ones counting more
    need     =  demand * (1 + headroom), at least the request, at most the limit

The set of a container is a step of a staircase: the sizes of the places that the machine has. The step by limit is the
smallest that holds the limit, the step by demand the smallest that holds the need.

1. It starts at the step by limit: programs size their threads by the CPUs that they see at their start.
2. Shrinking is slow: after a full window, one step at a time, and all its containers together so many times a minute.
3. Growth is at once, by waiting, or where the kernel does not tell that, by using most of the set, and to twice the
   set at least: what waits does not say how much more it would use. Time throttled is no waiting: a container that is
   stopped by its own quota would use no more with more CPUs.
4. A size at which tasks waited though the estimate fits into it, and goes on to, was judged wrongly: use is more ragged
   than its mean, or others have the CPUs. The set does not become as small again for an hour, each time it happens again
   for twice as long.
5. A container that has grown too often within an hour goes back to its step by limit until that hour is over.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from policies.frozen import frozen

#: Peaks are kept for intervals of this length, seconds: of a window of ten minutes 120, however often samples come.
PEAK_S = 5.0
#: How long growths count against a container, seconds.
HOUR_S = 3600.0
#: From this part of the time on it is its quota, where the kernel does not tell waiting, that holds a container up.
THROTTLED = 0.1
#: The longest time for which a size that was too small is not tried again, seconds.
LONGEST_BAR_S = 86_400.0
#: Samples that are nearer say nothing: the clock of a tick is as coarse as that.
SHORTEST_NS = 10_000_000
#: A set in which tasks wait grows to the step that holds so many times of it.
GROWTH = 2
#: The window of a PSI trigger, seconds: its waiting time is a part of this.
TRIGGER_S = 0.5


@frozen
class DemandSettings:
    """The options of the section ``demand``. Parts are 0 to 1, times seconds.

    ``interval_s``: between samples. ``percentile``: of the peaks; ``half_life_s``: after it a peak counts half.
    ``headroom``: the part of demand on top.
    ``waiting``: the part of the time that tasks wait from which on a set is too small; ``usage``: the part of a set from
    which on it is, without PSI. ``shrinks_per_minute``: of all containers; ``growths_per_hour``: of one container.
    """

    interval_s: float = 5.0
    window_s: float = 600.0
    percentile: float = 0.95
    half_life_s: float = 600.0
    headroom: float = 0.25
    waiting: float = 0.5
    usage: float = 0.9
    shrinks_per_minute: int = 6
    growths_per_hour: int = 6


@frozen
class DemandSample:
    """One look at a container, all nanoseconds; the last three since it exists. ``waited_ns`` None: no PSI is told."""

    time_ns: int
    usage_ns: int
    throttled_ns: int = 0
    waited_ns: Optional[int] = None


@frozen
class UsageBetween:
    """The time between two samples: usage in milli-CPUs, parts of the time that it waited (None: not
    told) and was throttled."""

    milli_usage: int
    waiting: Optional[float]
    throttled: float


@frozen
class Growth:
    """A set that was too small: when (seconds), and how that was seen."""

    at_s: float
    cause: str


@frozen
class _Bar:
    """A size that was too small, milli-CPUs, that is not to be had again until then; and how often that has happened."""

    milli_set: int
    times: int
    until_s: float


@frozen
class Verdict:
    """The verdict on a container's set. ``action``: start, keep, shrink, grow, limit (back to the step by limit).

    ``step``: of the staircase, from now on.
    """

    action: str
    step: int
    why: str


def between(earlier: DemandSample, later: DemandSample) -> Optional[UsageBetween]:
    """None where the two do not say anything: they are too near, or counters have begun anew."""
    span = later.time_ns - earlier.time_ns
    used, throttled = later.usage_ns - earlier.usage_ns, later.throttled_ns - earlier.throttled_ns
    if span < SHORTEST_NS or used < 0 or throttled < 0:
        return None
    waiting: Optional[float] = None
    if earlier.waited_ns is not None and later.waited_ns is not None:
        waiting = min(max(later.waited_ns - earlier.waited_ns - throttled, 0) / span, 1.0)
    return UsageBetween(used * 1000 // span, waiting, min(throttled / span, 1.0))


def weighted_percentile(values: Sequence[tuple[float, float]], part: float) -> float:
    """The smallest of the values, each with its weight, that at least ``part`` of all weight is not above."""
    ordered = sorted(values)
    wanted = part * sum(weight for _, weight in ordered)
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= wanted * (1 - 1e-9):
            return value
    return ordered[-1][0] if ordered else 0.0


def step_for(steps: Sequence[int], milli: int) -> int:
    """The smallest step that holds so much; the largest where none does. ``steps``: milli-CPUs, ascending."""
    return min(bisect_left(steps, milli), len(steps) - 1)


class Demand:
    """One container's demand: the peaks of a window, and how often its set was too small."""

    def __init__(self, settings: DemandSettings) -> None:
        self.settings = settings
        #: The last growths, the latest last.
        self.growths: deque[Growth] = deque()
        self._peaks: deque[tuple[float, int]] = deque()
        self._since_s: Optional[float] = None
        self._last: Optional[DemandSample] = None
        self._latest: Optional[UsageBetween] = None
        self._bar = _Bar(0, 0, float("-inf"))
        #: A set that was found too small just now, though the estimate fits into it, milli-CPUs; else 0.
        self._misjudged = 0
        #: The estimate, until another peak is seen.
        self._estimate: Optional[int] = None

    # ------------------------------------------------------------------ samples

    def add(self, sample: DemandSample, is_triggered: bool = False) -> None:
        """Take in a sample. One that is too near to the last one, or older, is left out.

        ``is_triggered``: a PSI trigger has fired just now, so that what has waited since the last sample did so within
        ``TRIGGER_S``, unless it was throttled meanwhile: then as much must be left of it without that.
        """
        last = self._last
        found = between(last, sample) if last is not None else None
        if last is not None and found is None and sample.time_ns - last.time_ns < SHORTEST_NS:
            return
        self._last, self._latest = sample, found
        if found is None or last is None:
            return
        if is_triggered and found.waiting is not None and not found.throttled:
            span_s = (sample.time_ns - last.time_ns) / 1e9
            waiting = min(found.waiting * span_s / TRIGGER_S, 1.0)
            self._latest = replace(found, waiting=max(found.waiting, waiting))
        self._note_peak(sample.time_ns / 1e9, found.milli_usage)

    def _note_peak(self, now_s: float, milli_usage: int) -> None:
        self._since_s = now_s if self._since_s is None else self._since_s
        if not self._peaks or now_s - self._peaks[-1][0] >= PEAK_S:
            self._peaks.append((now_s, milli_usage))
        elif milli_usage > self._peaks[-1][1]:
            self._peaks[-1] = (self._peaks[-1][0], milli_usage)
        else:
            return
        self._estimate = None
        while len(self._peaks) > 1 and now_s - self._peaks[0][0] > self.settings.window_s:
            self._peaks.popleft()

    def changed(self, verdict: Verdict, now_s: float) -> None:
        """The set is another one, by this verdict: usage of before counts, but the window begins anew."""
        if verdict.action in ("grow", "limit"):
            self.growths.append(Growth(now_s, verdict.why))
            if self._misjudged:
                self._raise_bar(now_s)
        self._misjudged = 0
        self._since_s, self._latest = None, None

    def _raise_bar(self, now_s: float) -> None:
        was = self._bar
        # What went well for an hour after its time is forgotten.
        times = was.times + 1 if now_s < was.until_s + HOUR_S else 1
        milli_set = max(self._misjudged, was.milli_set if now_s < was.until_s else 0)
        # The power is bounded, so that its figure is.
        self._bar = _Bar(milli_set, times, now_s + min(HOUR_S * 2 ** min(times - 1, 10), LONGEST_BAR_S))

    def reconfigure(self, settings: DemandSettings) -> None:
        """Go by other settings from now on; samples older than the window are left out."""
        self.settings, self._estimate = settings, None
        while self._peaks and self._peaks[-1][0] - self._peaks[0][0] > settings.window_s:
            self._peaks.popleft()

    # ------------------------------------------------------------------ what follows from it

    @property
    def milli_demand(self) -> int:
        """The estimate, milli-CPUs without headroom; 0 = nothing is known."""
        if not self._peaks:
            return 0
        if self._estimate is None:
            newest, half_life_s = self._peaks[-1][0], self.settings.half_life_s
            weighted = [(float(peak), 0.5 ** ((newest - at_s) / half_life_s)) for at_s, peak in self._peaks]
            self._estimate = int(weighted_percentile(weighted, self.settings.percentile))
        return self._estimate

    def milli_need(self, milli_request: int, milli_limit: Optional[int]) -> int:
        """Demand with headroom, up to the next tenth of a CPU, in the bounds of request and limit."""
        need = math.ceil(self.milli_demand * (1 + self.settings.headroom) / 100) * 100
        need = need if milli_limit is None else min(need, milli_limit)
        return max(need, milli_request)

    def seen_s(self, now_s: float) -> float:
        """How much of the window has been seen, seconds."""
        return 0.0 if self._since_s is None else min(now_s - self._since_s, self.settings.window_s)

    def verdict(
        self,
        steps: Sequence[int],
        step: int,
        step_by_limit: int,
        milli_request: int,
        milli_limit: Optional[int],
        now_s: float,
        milli_set: Optional[int] = None,
    ) -> Verdict:
        """The verdict on a set that is ``step`` of the staircase, by the sample that was added last.

        ``steps``: milli-CPUs, ascending; ``milli_set``: how large the set is, where that is not its step. Once it is
        done the caller tells ``changed``; whether a shrink may be made now is the caller's to say (``ShrinkBudget``).
        """
        milli_set = steps[step] if milli_set is None else milli_set
        while self.growths and now_s - self.growths[0].at_s > HOUR_S:
            self.growths.popleft()
        most = self.settings.growths_per_hour
        need = self.milli_need(milli_request, milli_limit)
        wanted = min(step_for(steps, need), step_by_limit)
        # What waited used more in the end: it was no misjudgement, the estimate was only late.
        if need > self._bar.milli_set > 0:
            self._bar = replace(self._bar, milli_set=0, times=self._bar.times - 1)
        # 1. Above its limit it never is: the limit was lowered, or the machine has changed.
        if step > step_by_limit:
            return Verdict("start", step_by_limit, "its limit's domain level")
        # 2. Too small: at once.
        cause = self._is_too_small(milli_set) if step < step_by_limit else ""
        self._misjudged = milli_set if cause and wanted <= step else 0
        if cause:
            if len(self.growths) >= most:
                return Verdict("limit", step_by_limit, f"{cause}; {_too_often(len(self.growths) + 1)}")
            larger = max(step + 1, wanted, step_for(steps, GROWTH * milli_set))
            return Verdict("grow", min(larger, step_by_limit), cause)
        # 3. Too small too often.
        if len(self.growths) > most:
            action = "keep" if step == step_by_limit else "limit"
            return Verdict(action, step_by_limit, _too_often(len(self.growths)))
        # 4. Its peaks need more than it has, without its having waited for it so far.
        if wanted > step:
            return Verdict("grow", wanted, f"its peaks need {need / 1000:g} CPUs")
        # 5. Larger than needed, for a whole window: one step.
        if wanted == step:
            return Verdict("keep", step, f"{need / 1000:g} CPUs needed")
        seen_s = self.seen_s(now_s)
        if seen_s < self.settings.window_s:
            return Verdict(
                "keep", step, f"{seen_s:.0f} of {self.settings.window_s:.0f} s of its window are seen"
            )
        bar = self._bar
        if now_s < bar.until_s and steps[step - 1] <= bar.milli_set:
            left = f"not as small again for {math.ceil((bar.until_s - now_s) / 60)} minutes"
            return Verdict("keep", step, f"a cpuset of {bar.milli_set / 1000:g} CPUs was too small: {left}")
        why = f"{need / 1000:g} CPUs needed for {self.settings.window_s:.0f} s"
        return Verdict("shrink", step - 1, why)

    def _is_too_small(self, milli_set: int) -> str:
        """How the last sample says that a set is too small; "" = it does not."""
        latest = self._latest
        if latest is None:
            return ""
        if latest.waiting is not None:
            is_waiting = latest.waiting >= self.settings.waiting
            return f"its tasks waited {latest.waiting:.0%} of the time" if is_waiting else ""
        is_full = latest.milli_usage >= self.settings.usage * milli_set
        if not is_full or latest.throttled >= THROTTLED:
            return ""
        return f"it used {latest.milli_usage / 1000:g} of {milli_set / 1000:g} CPUs"


def _too_often(times: int) -> str:
    return f"its cpuset was too small {times} times within an hour"


class ShrinkBudget:
    """How many sets may still shrink: so many a minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._made: deque[float] = deque()

    def left(self, now_s: float) -> int:
        """How many may, at this time."""
        while self._made and now_s - self._made[0] >= 60.0:
            self._made.popleft()
        return max(0, self.per_minute - len(self._made))

    def take(self, now_s: float) -> bool:
        """Whether one more may, at this time; it is counted then."""
        if not self.left(now_s):
            return False
        self._made.append(now_s)
        return True
