"""Measured protection: batch gets less of a cache while a protected container beside it measures more than its baseline.

A controller: a round gets what each protected container has measured in one window, and returns what batch has in each
domain. Deterministic; the time is passed in. All times are seconds.

A container is *hurt* while each of its last three windows is above its limit (baselines.py), and *calm* while their median
is well below. Each domain where protected and batch containers meet has a *level*: at 0 batch has what is configured, with
each level two thirds of that before, down to the floor. The rules of a domain:

1. Hurt: a level more, at once, and after that once three windows are known that began after caches have followed.
2. At the floor and hurt still: the descent is judged. Batch goes back to the largest share with which the containers were no
   worse off than at the floor. If that is where the descent began, it brought nothing. What brought nothing is not tried
   again for half an hour; each time in succession twice as long, four hours at most.
3. At the least share that is not ruled out, and hurt still: the planner is asked to move one batch container elsewhere; each
   time in succession the wait for the next time doubles.
4. Calm for the *hold*: a level less. Three minutes at first; twice as long, an hour at most, each time that a container is
   hurt soon after batch got something back. So batch gets back slower than it lost, and a level that is needed stays.
5. No more than ``MOST_CHANGES`` an hour; what would give batch more leaves room for a whole descent.

A domain in which nothing meets, or whose protected containers are idle, is calm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from cri_proxy.isolation.baselines import Baseline, Baselines, Signal
from cri_proxy.isolation.model import Step
from policies.frozen import frozen

#: What batch keeps of a domain's cache and bandwidth, whatever is measured.
FLOOR_CACHE, FLOOR_BANDWIDTH = 0.1, 0.1
#: A level's share of the one before.
LEVEL = 2 / 3

#: A window.
WINDOW_S = 10.0
#: Windows that are looked at together; as many are not looked at after a change, as lines are evicted one by one;
#: and with how many the floor is judged.
RECENT, SETTLING, JUDGED = 3, 1, 6
#: An excess that is calm. Between that and 1 nothing changes.
CALM = 0.85
#: What less of the cache must take off the excess with more of it.
HELPS = 0.2
#: How long a container must be calm before batch gets something back: at first, and at most.
HOLD_S, MOST_HOLD_S = 180.0, 3600.0
#: How long levels that brought nothing are not tried again: at first, and at most.
SPARED_S, MOST_SPARED_S = 1800.0, 14_400.0
#: How long the planner is not asked again for a domain: at first, and at most.
ASK_S, MOST_ASK_S = 600.0, 14_400.0
#: How many times the level of a domain changes in an hour.
MOST_CHANGES, HOUR_S = 24, 3600.0


@frozen
class ProtectionSettings:
    """What is configured. ``cache``, ``bandwidth``: batch's part where it meets a protected container, 0 to 1; None: that
    is not divided here. ``enforces`` False: levels stay at 0, and it is said what would be done."""

    cache: Optional[float] = 0.3
    bandwidth: Optional[float] = 0.3
    enforces: bool = True

    @property
    def levels(self) -> int:
        """The level at which both are at their floor; 0: there is nothing to take."""
        parts = ((self.cache, FLOOR_CACHE), (self.bandwidth, FLOOR_BANDWIDTH))
        return max(
            math.ceil(round(math.log(floor / part, LEVEL), 9)) if part is not None and part > floor else 0
            for part, floor in parts
        )

    def step(self, level: int) -> Step:
        """What batch has at a level; at 0 as configured."""
        if not level:
            return Step()
        return Step(_part(self.cache, FLOOR_CACHE, level), _part(self.bandwidth, FLOOR_BANDWIDTH, level))


def _part(part: Optional[float], floor: float, level: int) -> Optional[float]:
    # What is configured below the floor stays as it is.
    return None if part is None or part <= floor else max(floor, part * LEVEL**level)


@frozen
class Watched:
    """A protected container in one window. ``domains``: those where it meets batch.

    ``values``: what it measured, by signal; empty: it was idle, or nothing could be read. ``batch_ran``: whether a batch
    container that it meets has used CPU time.
    """

    key: str
    path: str
    workload: str
    domains: frozenset[int]
    values: Mapping[Signal, float]
    batch_ran: bool = True


#: What has changed in a domain: batch got less; got something back; what brought nothing was taken back; the planner was
#: asked.
LESS, BACK, TAKEN_BACK, ASKED = "less", "back", "taken back", "asked"


@frozen
class Change:
    """What a round has changed in a domain, for the log and the metrics; ``step``: what batch has there now."""

    domain: int
    direction: str
    step: Step
    why: str


@frozen
class Mark:
    """How much the containers of a descent were hurt at one level: the mean of their excesses, nan = not known."""

    level: int
    excess: float


#: A container and what is measured of it.
Series = tuple[str, Signal]


@frozen
class Help:
    """Whether the last descent helped. ``path``: the container that was hurt most; its figures before and since."""

    path: str
    signal: Signal
    usual: float
    before: float
    after: Optional[float] = None
    helped: Optional[bool] = None


@dataclass
class DomainState:
    """A domain whose protected containers are hurt, or were."""

    since_s: float
    level: int = 0
    why: str = ""
    settling: int = 0
    quiet_since_s: float = 0.0
    hold_s: float = HOLD_S
    returned_s: Optional[float] = None
    changes: deque[float] = field(default_factory=deque)
    #: The descent that goes on: whose figures count, and what they were at each level.
    subjects: tuple[Series, ...] = ()
    trail: list[Mark] = field(default_factory=list)
    is_judged: bool = False
    #: No level above this one until then.
    spared: int = 0
    spared_until_s: float = 0.0
    spared_s: float = SPARED_S
    asked_s: Optional[float] = None
    ask_wait_s: float = ASK_S
    asks: int = 0
    help: Optional[Help] = None
    #: What would be done, where nothing is.
    would: str = ""

    def changes_within_hour(self, now_s: float) -> int:
        """How many times the level has changed in the last hour."""
        while self.changes and self.changes[0] <= now_s - HOUR_S:
            self.changes.popleft()
        return len(self.changes)


class Protection:
    """The controller of one node."""

    def __init__(self) -> None:
        self.baselines = Baselines()
        self._domains: dict[int, DomainState] = {}
        #: The windows of each container beside batch, since the level of one of its domains has changed.
        self._recent: dict[Series, deque[float]] = {}
        self._watched: dict[str, Watched] = {}

    # ------------------------------------------------------------------ a round

    def keep(self, keys: Collection[str]) -> None:
        """The protected containers that there are: of all others no baseline is kept."""
        self.baselines.keep(keys)

    def round(
        self, watched: Sequence[Watched], settings: ProtectionSettings, now_s: float
    ) -> tuple[Change, ...]:
        """One window of the protected containers that are looked at; the changes that follow, most in a domain one level."""
        self._watched = {each.key: each for each in watched}
        self._note(watched)
        changes: list[Change] = []
        met = {number for each in watched for number in each.domains}
        for number in sorted(met | self._domains.keys()):
            here = [each for each in watched if number in each.domains]
            state = self._domains.get(number)
            if state is None:
                if not self._hurt(here):
                    continue
                state = self._domains[number] = DomainState(now_s, quiet_since_s=now_s)
            if state.level > settings.levels or (state.level and not settings.enforces):
                state.level = settings.levels if settings.enforces else 0
            changes += self._decide(number, state, here, settings, now_s)
            if self._is_over(state, now_s):
                del self._domains[number]
        # Only now: a container in two of these domains is hurt in both.
        moved = {change.domain for change in changes if change.direction != ASKED}
        cold = {each.key for each in watched if not each.domains.isdisjoint(moved)}
        self._recent = {series: windows for series, windows in self._recent.items() if series[0] not in cold}
        return tuple(changes)

    def steps(self, settings: ProtectionSettings) -> dict[int, Step]:
        """What batch has in each domain, where that is not what is configured."""
        return {number: settings.step(state.level) for number, state in self._domains.items() if state.level}

    def _note(self, watched: Sequence[Watched]) -> None:
        settling = {number for number, state in self._domains.items() if state.settling}
        seen = set()
        for each in watched:
            is_alone = not each.domains or not each.batch_ran
            for signal, value in each.values.items():
                if is_alone:
                    self.baselines.learn(each.key, each.workload, signal, value)
                elif each.domains.isdisjoint(settling):
                    self._recent.setdefault((each.key, signal), deque(maxlen=JUDGED)).append(value)
                    seen.add((each.key, signal))
        # Only windows in succession count.
        for series in [series for series in self._recent if series not in seen]:
            del self._recent[series]

    # ------------------------------------------------------------------ a domain

    def _decide(
        self,
        number: int,
        state: DomainState,
        here: Sequence[Watched],
        settings: ProtectionSettings,
        now_s: float,
    ) -> list[Change]:
        if state.settling:
            state.settling -= 1
            return []
        hurt = self._hurt(here)
        self._look_whether_it_helped(state)
        if not settings.enforces:
            state.would = f"batch would get less: {self._sentence(hurt[0])}" if hurt else ""
            state.quiet_since_s = now_s if hurt else state.quiet_since_s
            return []
        state.would = ""
        if hurt:
            state.quiet_since_s = now_s
            return self._less(number, state, hurt, settings, now_s)
        if not self._is_calm(here):
            state.quiet_since_s = now_s
            return []
        if now_s - state.quiet_since_s >= JUDGED * WINDOW_S:
            state.trail = []  # what comes later is another descent
        if not state.level or now_s - state.quiet_since_s < state.hold_s:
            return []
        # Room is left for a descent to the floor, and for the way back.
        if state.changes_within_hour(now_s) + settings.levels + 2 > MOST_CHANGES:
            return []
        return [self._back(number, state, settings, now_s)]

    def _less(
        self,
        number: int,
        state: DomainState,
        hurt: Sequence[Series],
        settings: ProtectionSettings,
        now_s: float,
    ) -> list[Change]:
        if state.returned_s is not None:
            if now_s - state.returned_s <= 2 * state.hold_s:
                state.hold_s = min(2 * state.hold_s, MOST_HOLD_S)
            state.returned_s = None
        lowest = settings.levels
        if now_s < state.spared_until_s:
            lowest = min(lowest, state.spared)
        if state.level < lowest:
            if state.changes_within_hour(now_s) >= MOST_CHANGES:
                return []
            begins = not state.trail
            if begins:
                state.subjects = tuple(hurt)
            state.trail.append(self._mark(state, RECENT))
            state.is_judged = False
            state.why = self._sentence(hurt[0])
            state.help = self._help(state) if begins else state.help
            return [self._changed(number, state, state.level + 1, LESS, settings, now_s)]
        if state.trail and not state.is_judged and state.level == settings.levels:
            if not self._has_windows(state.subjects, JUDGED):
                return []
            if taken_back := self._judge(number, state, settings, now_s):
                return [taken_back]
        if state.asked_s is None or now_s - state.asked_s >= state.ask_wait_s:
            if state.asked_s is not None:
                state.ask_wait_s = min(2 * state.ask_wait_s, MOST_ASK_S)
            state.asked_s, state.asks = now_s, state.asks + 1
            return [Change(number, ASKED, settings.step(state.level), self._sentence(hurt[0]))]
        return []

    def _judge(
        self, number: int, state: DomainState, settings: ProtectionSettings, now_s: float
    ) -> Optional[Change]:
        """Hurt at the floor: back to the largest share that was no worse than the floor; None: every level helps."""
        state.is_judged = True
        floor, first = self._mark(state, JUDGED), state.trail[0]
        # Where a figure is not known (nan), that it was no worse is not known either.
        no_worse = [mark.level for mark in state.trail if floor.excess > (1 - HELPS) * mark.excess]
        level = min(no_worse, default=state.level)
        if level == first.level:
            state.spared_s = SPARED_S if not state.spared_until_s else min(2 * state.spared_s, MOST_SPARED_S)
        else:
            state.spared_s = SPARED_S
        if level == state.level:
            return None
        state.spared, state.spared_until_s = level, now_s + state.spared_s
        state.why = f"less than this brought nothing: {self._sentence(state.subjects[0])}"
        state.trail = []
        return self._changed(number, state, level, TAKEN_BACK, settings, now_s)

    def _back(self, number: int, state: DomainState, settings: ProtectionSettings, now_s: float) -> Change:
        state.why = f"nothing was over its baseline for {state.hold_s:.0f} s"
        state.trail, state.subjects = [], ()
        state.returned_s = state.quiet_since_s = now_s
        state.asked_s, state.ask_wait_s = None, ASK_S
        return self._changed(number, state, state.level - 1, BACK, settings, now_s)

    def _changed(
        self,
        number: int,
        state: DomainState,
        level: int,
        direction: str,
        settings: ProtectionSettings,
        now_s: float,
    ) -> Change:
        state.level, state.since_s, state.settling = level, now_s, SETTLING
        state.changes.append(now_s)
        return Change(number, direction, settings.step(level), state.why)

    def _is_over(self, state: DomainState, now_s: float) -> bool:
        """Whether nothing needs to be remembered of a domain."""
        is_spared = now_s < state.spared_until_s
        return not state.level and not is_spared and now_s - state.quiet_since_s >= max(state.hold_s, HOUR_S)

    # ------------------------------------------------------------------ figures

    def _baseline(self, series: Series) -> Optional[Baseline]:
        watched = self._watched.get(series[0])
        return None if watched is None else self.baselines.of(watched.key, watched.workload, series[1])

    def _telling(self, each: Watched) -> list[Signal]:
        """The signals that count of a container: those of which a baseline is known, and of these one that outranks the
        others; all where none is known."""
        known = [signal for signal in each.values if self._baseline((each.key, signal)) is not None]
        return [signal for signal in known if signal.outranks] or known or list(each.values)

    def _excesses(self, series: Series, windows: int) -> list[float]:
        """The last windows of a series as excess; [] if there are fewer, or no baseline."""
        baseline, recent = self._baseline(series), self._recent.get(series, ())
        if baseline is None or len(recent) < windows:
            return []
        return [baseline.excess(value) for value in list(recent)[-windows:]]

    def _hurt(self, here: Sequence[Watched]) -> list[Series]:
        """What is over its limit, most hurt first."""
        found: list[tuple[float, str, str, Series]] = []
        for each in here:
            for signal in self._telling(each):
                excesses = self._excesses((each.key, signal), RECENT)
                if excesses and min(excesses) > 1:
                    found.append((-sum(excesses), each.key, signal.name, (each.key, signal)))
        return [series for *_, series in sorted(found, key=lambda row: row[:3])]

    def hurt_in(self, number: int) -> list[str]:
        """The keys of the containers that are over their limits in a domain, most hurt first."""
        here = [each for each in self._watched.values() if number in each.domains]
        return list(dict.fromkeys(key for key, _ in self._hurt(here)))

    def _is_calm(self, here: Sequence[Watched]) -> bool:
        for each in here:
            for signal in self._telling(each):
                excesses = self._excesses((each.key, signal), RECENT)
                if excesses and sorted(excesses)[RECENT // 2] > CALM:
                    return False
        return True

    def _has_windows(self, subjects: Sequence[Series], windows: int) -> bool:
        """Whether there are windows enough of each that is still there."""
        there = [series for series in subjects if self._recent.get(series)]
        return all(len(self._recent[series]) >= windows for series in there)

    def _mark(self, state: DomainState, windows: int) -> Mark:
        excesses = [self._excesses(series, windows) for series in state.subjects]
        known = [_mean(each) for each in excesses if each]
        return Mark(state.level, _mean(known) if known else math.nan)

    def _current(self, series: Series) -> Optional[float]:
        """The mean of the last windows of a series; None: there are none since the level has changed."""
        recent = self._recent.get(series)
        return _mean(list(recent)[-RECENT:]) if recent else None

    def _help(self, state: DomainState) -> Optional[Help]:
        series = state.subjects[0]
        baseline, value = self._baseline(series), self._current(series)
        if baseline is None or value is None:
            return None
        return Help(self._watched[series[0]].path, series[1], baseline.usual, value)

    def _look_whether_it_helped(self, state: DomainState) -> None:
        """The figures at this level, as soon as they are there, against those with which the descent began."""
        before = state.help
        if before is None or not state.trail or not state.level:
            return
        series = state.subjects[0]
        after = self._current(series)
        if after is None or len(self._recent[series]) < RECENT:
            return
        helped = after - before.usual <= (1 - HELPS) * (before.before - before.usual)
        state.help = Help(before.path, before.signal, before.usual, before.before, after, helped)

    def _sentence(self, series: Series) -> str:
        baseline, value = self._baseline(series), self._current(series)
        if baseline is None or value is None:
            return "a protected container was over its baseline"
        return (
            f"{self._watched[series[0]].path}: {series[1].words} {value:.3g}, without batch {baseline.usual:.3g} "
            f"(limit {baseline.limit:.3g})"
        )

    # ------------------------------------------------------------------ for people

    def rows(self, settings: ProtectionSettings, now_s: float) -> list[dict[str, Any]]:
        """Each domain where protected and batch containers meet, or whose level is not 0, as plain data."""
        met = {number for each in self._watched.values() for number in each.domains}
        return [self._row(number, settings, now_s) for number in sorted(met | self._domains.keys())]

    def _row(self, number: int, settings: ProtectionSettings, now_s: float) -> dict[str, Any]:
        here = [each for _, each in sorted(self._watched.items()) if number in each.domains]
        row: dict[str, Any] = {
            "domain": number,
            "level": 0,
            "levels": settings.levels,
            "cache_share": settings.cache,
            "bandwidth_share": settings.bandwidth,
            "protected": [line for each in here for line in self._protected_rows(each)],
        }
        state = self._domains.get(number)
        if state is None:
            return row
        step = settings.step(state.level)
        is_spared = now_s < state.spared_until_s
        return {
            **row,
            "level": state.level,
            "cache_share": settings.cache if step.cache is None else round(step.cache, 3),
            "bandwidth_share": settings.bandwidth if step.bandwidth is None else round(step.bandwidth, 3),
            "age_s": round(now_s - state.since_s, 1),
            "why": state.would or state.why,
            "helped": _help_row(state.help),
            "hold_s": state.hold_s,
            "not_below": state.spared if is_spared else None,
            "not_below_for_s": round(state.spared_until_s - now_s, 1) if is_spared else None,
            "asks": state.asks,
        }

    def _protected_rows(self, each: Watched) -> list[dict[str, Any]]:
        found = []
        for signal in self._telling(each):
            baseline, current = self._baseline((each.key, signal)), self._current((each.key, signal))
            row: dict[str, Any] = {
                "key": each.key,
                "container": each.path,
                "signal": signal.name,
                "words": signal.words,
                "current": None if current is None else round(current, 4),
                "usual": None,
                "limit": None,
                "baseline": "not known yet: batch has always run beside it",
                "is_over": False,
            }
            if baseline is not None:
                source = "its workload's" if baseline.of_workload else "its own"
                excesses = self._excesses((each.key, signal), RECENT)
                row |= {
                    "usual": round(baseline.usual, 4),
                    "limit": round(baseline.limit, 4),
                    "baseline": f"{source}, of {baseline.windows} windows",
                    "is_over": bool(excesses) and min(excesses) > 1,
                }
            found.append(row)
        return found


def _help_row(help: Optional[Help]) -> Optional[dict[str, Any]]:
    if help is None:
        return None
    return {
        "container": help.path,
        "words": help.signal.words,
        "usual": round(help.usual, 4),
        "before": round(help.before, 4),
        "after": None if help.after is None else round(help.after, 4),
        "helped": help.helped,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
