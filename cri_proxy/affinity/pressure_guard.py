"""The pressure guard: when moves are taken back, and not tried again for a while. Pure.

Traffic does not say whether a place has CPU time to spare: requests are promises, and an L3 that is full on
paper may be idle, or the other way round. So after moves the containers of every L3 (or node) that has received
some are compared with themselves before: which part of the time did they wait for CPUs? The rule:

    worse  =  mean rise of the waiting share in the place  -  median rise of all containers elsewhere
    taken back if  worse >= 0.10  and  share after >= 1.5 x share before

0.10: the best that closeness is known to bring is 10 to 20 % of throughput, so a tenth of the time spent waiting
eats it up; the share of a container that is merely busy varies by a few hundredths between two looks. The median
elsewhere: when the whole node gets more to do, every container waits longer, and moving back helps none. 1.5: what
waits half of its time already may rise by a tenth by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Optional

from policies.affinity.planner.problem import Problem
from policies.frozen import frozen

LEAST_RISE = 0.10
LEAST_RATIO = 1.5
#: How long a move that was taken back is not made again, seconds.
BAN_S = 600.0
#: Shares of shorter times say little: PSI itself adds up every 2 seconds.
SHORTEST_S = 5.0

#: A container's id, and the CPUs of the domain it must not go to.
Ban = tuple[str, frozenset[int]]


@frozen
class PressureReading:
    """How long a container's tasks have waited for CPUs since it exists, in microseconds; ``at_s``: when it was read."""

    at_s: float
    waited_us: int


@frozen
class Worse:
    """A place where containers wait longer than before: their waiting shares, and the rise elsewhere."""

    place: frozenset[int]
    before: float
    after: float
    elsewhere: float

    @property
    def sentence(self) -> str:
        """Why the moves are taken back."""
        return (
            f"containers there wait for CPUs {self.after:.0%} of the time, before the move it was "
            f"{self.before:.0%} (elsewhere {self.elsewhere:+.0%})"
        )


def shares(earlier: Mapping[str, PressureReading], later: Mapping[str, PressureReading]) -> dict[str, float]:
    """The part of the time between two looks that each container has waited, 0 to 1; only where that can be said."""
    found = {}
    for key, now in later.items():
        then = earlier.get(key)
        if then is None or now.at_s - then.at_s < SHORTEST_S or now.waited_us < then.waited_us:
            continue
        waited_s = (now.waited_us - then.waited_us) / 1e6
        found[key] = min(waited_s / (now.at_s - then.at_s), 1.0)
    return found


def worse_places(
    places: Iterable[frozenset[int]],
    cpus_of: Mapping[str, frozenset[int]],
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> tuple[Worse, ...]:
    """The places that have received moves and where containers now wait longer by the rule.

    ``cpus_of``: the CPUs of each container now. One that is wider than a place counts elsewhere.
    """
    from statistics import median

    known = {key: after[key] - before[key] for key in sorted(before.keys() & after.keys()) if key in cpus_of}
    wanted = sorted(set(places), key=sorted)
    inside = {place: [key for key in known if cpus_of[key] and cpus_of[key] <= place] for place in wanted}
    touched = {key for keys in inside.values() for key in keys}
    elsewhere = median([rise for key, rise in known.items() if key not in touched] or [0.0])
    found = []
    for place, keys in inside.items():
        worse = _compared(place, keys, before, after, max(elsewhere, 0.0))
        found += [] if worse is None else [worse]
    return tuple(found)


def _compared(
    place: frozenset[int],
    keys: list[str],
    before: Mapping[str, float],
    after: Mapping[str, float],
    elsewhere: float,
) -> Optional[Worse]:
    if not keys:
        return None
    from statistics import mean

    then, now = mean(before[key] for key in keys), mean(after[key] for key in keys)
    is_worse = now - then - elsewhere >= LEAST_RISE and now >= LEAST_RATIO * then
    return Worse(place, then, now, elsewhere) if is_worse else None


class Bans:
    """The moves that were taken back: which container must not go where, and until when. Times in seconds."""

    def __init__(self) -> None:
        self._until: dict[Ban, float] = {}

    def add(self, key: str, home: frozenset[int], now_s: float) -> None:
        """Do not move a container to a domain for a while."""
        self._until[(key, home)] = now_s + BAN_S

    def at(self, now_s: float) -> frozenset[Ban]:
        """The bans still in force."""
        self._until = {ban: until_s for ban, until_s in self._until.items() if until_s > now_s}
        return frozenset(self._until)


def forbid(problem: Problem, homes: Sequence[frozenset[int]], bans: Collection[Ban]) -> Problem:
    """The same problem, in which banned sites are none for their containers (the present one always is).

    ``homes``: the CPUs of each site.
    """
    keys = {key for key, _ in bans}
    if not keys:
        return problem
    vertices = tuple(
        replace(v, sites=tuple(s for s in v.sites if s == v.at or (v.key, homes[s]) not in bans))
        if v.key in keys
        else v
        for v in problem.vertices
    )
    return replace(problem, vertices=vertices)
