"""The sizes of sets by usage: all containers of a node that are sized by demand.
Pure: whatever has the samples drives it, the daemon or a simulation. All times are of one clock that never goes back.

How it is driven, in this order and as often as there is something new:

    controller = DemandController(settings)
    controller.follow({key: ContainerSet(...)})         # whenever containers come, go, or have other sets or bounds
    for key in controller.due(now_s):                   # at controller.next_due_s(now_s)
        controller.sample(key, DemandSample(...))
    controller.sample(key, DemandSample(...), is_triggered=True)      # a PSI trigger of this container has fired
    for resize in controller.decide(now_s):             # growth first; shrinks as the budget of a minute allows
        ...                                             # give it the place of that size, or find that there is none
        controller.made(resize, now_s)                  # and ``follow`` with its new set
        controller.refused(resize, now_s)               # or: it stays as it is, and is asked for again later
    controller.uses()                                   # to be told to what places containers

Which containers have a trigger, a PSI threshold of ``settings.waiting`` over ``TRIGGER_S``, is told by ``set_triggers``;
``wants_trigger`` says which should. Those in a shrunk set without one are due every ``FAST_S``, all others every
``settings.interval_s``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Optional

from cri_proxy.affinity.demand.estimate import (
    Demand,
    DemandSample,
    DemandSettings,
    Growth,
    ShrinkBudget,
    Verdict,
    step_for,
)
from policies.frozen import frozen

#: How often containers in shrunk sets are sampled that have no PSI trigger, seconds.
FAST_S = 0.5
#: After a resize that could not be made the same is asked for again, seconds: of a growth, of a shrink.
GROW_AGAIN_S, SHRINK_AGAIN_S = 5.0, 60.0


#: The part by which a need must have changed to be told again: each time is a record to be written.
TOLD_AGAIN = 0.2


@frozen
class ContainerSet:
    """A container's set and its bounds, all milli-CPUs.

    ``steps``: how large the places are that it can have, ascending, the last its rung by limit; ``milli_set``: its set
    now, which need not be one of them (of a CCX another container may own a CPU).
    """

    steps: tuple[int, ...]
    milli_set: int
    milli_request: int = 0
    milli_limit: Optional[int] = None

    @property
    def step(self) -> int:
        """The step that its set is."""
        return step_for(self.steps, self.milli_set)

    @property
    def step_by_limit(self) -> int:
        return len(self.steps) - 1

    @property
    def is_shrunk(self) -> bool:
        """Whether it has less than its rung by limit."""
        return self.step < self.step_by_limit


@frozen
class SizeChange:
    """A set that is to become another one. ``action``: grow, shrink, limit (back to its rung by limit).

    ``milli_size``: what its place is to hold, of which the smallest is to be taken; None = its rung by limit. The place is
    to be of ``steps[step]`` milli-CPUs: more than the step below it, less if CPUs of it belong to others. ``why``: what
    was seen, for people.
    """

    key: str
    action: str
    step: int
    milli_size: Optional[int]
    why: str

    @property
    def is_growth(self) -> bool:
        return self.action != "shrink"


@frozen
class DemandReport:
    """One container's demand, for ``explain``. Milli-CPUs, seconds.

    ``milli_demand`` 0: nothing yet. ``milli_need``: with headroom, inside of request and limit. ``seen_s`` of
    ``window_s``: before all of it is seen its set does not shrink. ``growths``: of the last hour, latest last. ``why``:
    why its set is as large as it is.
    """

    milli_demand: int
    milli_need: int
    seen_s: float
    window_s: float
    milli_set: int
    milli_by_limit: int
    milli_by_demand: int
    growths: tuple[Growth, ...]
    why: str


@dataclass
class _Followed:
    """One container. ``due_s``: when it is to be sampled; ``again_s``: when a resize is asked for again, by action."""

    set: ContainerSet
    demand: Demand
    due_s: float = float("-inf")
    again_s: dict[bool, float] = field(default_factory=dict)
    verdict: Optional[Verdict] = None
    #: What ``uses`` has told of it last, milli-CPUs.
    told: int = 0


class DemandController:
    """The containers of one node that are sized by demand."""

    def __init__(self, settings: DemandSettings) -> None:
        self._settings = settings
        self._followed: dict[str, _Followed] = {}
        self._triggered: frozenset[str] = frozenset()
        self._budget = ShrinkBudget(settings.shrinks_per_minute)
        #: Those with a sample that nothing was decided by yet.
        self._news: dict[str, None] = {}

    @property
    def settings(self) -> DemandSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: DemandSettings) -> None:
        """Take new options: samples stay, as far as the new window goes back."""
        if settings == self._settings:
            return
        self._settings, self._budget = settings, ShrinkBudget(settings.shrinks_per_minute)
        for each in self._followed.values():
            each.demand.reconfigure(settings)

    # ------------------------------------------------------------------ which containers

    def follow(self, sets: Mapping[str, ContainerSet]) -> None:
        """These are sized by demand now, by key; the samples of others are forgotten.

        A container that is new here has seen nothing of its window, so that its set does not shrink before a full one.
        """
        for key in self._followed.keys() - sets.keys():
            del self._followed[key]
            self._news.pop(key, None)
        for key, now in sets.items():
            known = self._followed.get(key)
            if known is None:
                self._followed[key] = _Followed(now, Demand(self._settings))
            elif known.set != now:
                was, known.set = known.set, now
                if now.is_shrunk and not was.is_shrunk:
                    known.due_s = float("-inf")  # how long it waits is counted from here

    def __contains__(self, key: str) -> bool:
        return key in self._followed

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def wants_trigger(self) -> frozenset[str]:
        """Containers in shrunk sets: only they can grow, so only they need to be watched."""
        return frozenset(key for key, each in self._followed.items() if each.set.is_shrunk)

    def set_triggers(self, keys: Collection[str]) -> None:
        """These have a PSI trigger now, and no others."""
        self._triggered = frozenset(keys)

    # ------------------------------------------------------------------ usage

    def due(self, now_s: float) -> list[str]:
        """The containers to be sampled now; each is due again an interval later."""
        found = []
        for key, each in self._followed.items():
            if each.due_s > now_s:
                continue
            found.append(key)
            each.due_s = now_s + self._interval_s(key, each)
        return found

    def next_due_s(self, now_s: float) -> float:
        """When the next one is due; ``now_s`` if one is already, infinite if nothing is followed."""
        times = [min(each.due_s, now_s + self._interval_s(k, each)) for k, each in self._followed.items()]
        return max(min(times, default=float("inf")), now_s)

    def _interval_s(self, key: str, each: _Followed) -> float:
        is_fast = each.set.is_shrunk and key not in self._triggered
        return min(FAST_S, self._settings.interval_s) if is_fast else self._settings.interval_s

    def sample(self, key: str, sample: DemandSample, is_triggered: bool = False) -> None:
        """Take a container's usage so far. ``is_triggered``: it was read since its PSI trigger has fired."""
        each = self._followed.get(key)
        if each is not None:
            each.demand.add(sample, is_triggered)
            self._news[key] = None

    # ------------------------------------------------------------------ what follows from it

    def decide(self, now_s: float) -> list[SizeChange]:
        """The changes due by the samples since the last call: all growth, the largest need first, then shrinks.

        Each is to be answered by ``made`` or ``refused`` before the next call. A shrink that the budget of this minute does
        not allow is found again by the next sample.
        """
        growths: list[tuple[int, SizeChange]] = []
        shrinks: list[tuple[int, SizeChange]] = []
        for key in self._news:
            each = self._followed[key]
            verdict = each.verdict = self._verdict(each, now_s)
            if verdict.action == "keep":
                continue
            resize = _resize_of(key, each, verdict)
            if each.again_s.get(resize.is_growth, now_s) > now_s:
                continue
            now = each.set
            if resize.is_growth:
                growths.append((-each.demand.milli_need(now.milli_request, now.milli_limit), resize))
            else:  # what frees most CPUs comes first
                shrinks.append((now.steps[resize.step] - now.milli_set, resize))
        self._news.clear()
        growths.sort(key=lambda pair: (pair[0], pair[1].key))
        shrinks.sort(key=lambda pair: (pair[0], pair[1].key))
        allowed = [resize for _, resize in shrinks[: self._budget.left(now_s)]]
        return [*(resize for _, resize in growths), *allowed]

    def _verdict(self, each: _Followed, now_s: float) -> Verdict:
        now = each.set
        return each.demand.verdict(
            now.steps, now.step, now.step_by_limit, now.milli_request, now.milli_limit, now_s, now.milli_set
        )

    def made(self, resize: SizeChange, now_s: float) -> None:
        """A set was changed: its window begins anew. Its new set comes by ``follow``."""
        if not resize.is_growth:
            self._budget.take(now_s)
        each = self._followed.get(resize.key)
        if each is not None:
            each.again_s.clear()
            each.demand.changed(Verdict(resize.action, resize.step, resize.why), now_s)

    def refused(self, resize: SizeChange, now_s: float) -> None:
        """There is no such place now: the same is not asked for again for a while."""
        each = self._followed.get(resize.key)
        if each is not None:
            wait_s = GROW_AGAIN_S if resize.is_growth else SHRINK_AGAIN_S
            each.again_s[resize.is_growth] = now_s + wait_s

    def uses(self) -> dict[str, int]:
        """The need of containers in the sets of their limits, milli-CPUs, where that is by a fifth other than was told here
        last: it is for the engine, so that others are placed by it."""
        found = {}
        for key, each in self._followed.items():
            if each.set.is_shrunk:
                each.told = 0  # its size says it, until it has none any more
                continue
            if not each.demand.milli_demand:
                continue
            need = each.demand.milli_need(each.set.milli_request, each.set.milli_limit)
            if abs(need - each.told) > TOLD_AGAIN * each.told:
                each.told = found[key] = need
        return found

    # ------------------------------------------------------------------ for people

    def report(self, key: str, now_s: float) -> Optional[DemandReport]:
        """The report of one container; None if it is not followed."""
        each = self._followed.get(key)
        if each is None:
            return None
        now, demand = each.set, each.demand
        need = demand.milli_need(now.milli_request, now.milli_limit)
        verdict = self._verdict(each, now_s)
        return DemandReport(
            demand.milli_demand,
            need,
            demand.seen_s(now_s),
            self._settings.window_s,
            now.milli_set,
            now.steps[-1],
            now.steps[step_for(now.steps, need)],
            tuple(demand.growths),
            verdict.why,
        )

    def counts(self) -> tuple[int, int]:
        """How many containers are sized by demand, and how many of them are in shrunk sets."""
        return len(self._followed), sum(each.set.is_shrunk for each in self._followed.values())


def _resize_of(key: str, each: _Followed, verdict: Verdict) -> SizeChange:
    now, step = each.set, verdict.step
    if step >= now.step_by_limit:
        return SizeChange(key, verdict.action, step, None, verdict.why)
    need = each.demand.milli_need(now.milli_request, now.milli_limit)
    # More than the step below holds, so that the place is of this one.
    above = now.steps[step - 1] + 1 if step else 0
    return SizeChange(key, verdict.action, step, max(min(need, now.steps[step]), above), verdict.why)
