"""What the random sequences allow: the fewest domains at one create, the best of a whole sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Optional

from bench.placement.sequences import OWNERS, Create, Step

#: Searches with chance in them, for each sequence; the best one counts.
SEARCHES = 60


def fewest(free: Iterable[int], count: int) -> int:
    """How many domains with so many free CPUs each are needed for ``count``."""
    needed = 0
    for number in sorted(free, reverse=True):
        if count <= 0:
            break
        needed, count = needed + 1, count - number
    return needed


def search(steps: Sequence[Step], sizes: Sequence[int], largest: int, goal: int) -> int:
    """The fewest containers over more L3s than needed that any of many placements of a sequence had.

    ``sizes``: free CPUs of each L3 at the start; ``largest``: of a whole L3; ``goal``: a number known to be
    possible. Only counts are placed: nodes and cores are free of charge, and so is a container that owns no CPUs, so
    that it is hard to beat.
    """
    random = Random(1)
    for _ in range(SEARCHES):
        if not goal:
            break
        goal = min(goal, _placed_by_chance(steps, list(sizes), largest, random, goal))
    return goal


def _placed_by_chance(steps: Sequence[Step], free: list[int], largest: int, random: Random, goal: int) -> int:
    live: dict[int, dict[int, int]] = {}
    worse = 0
    for step in steps:
        if not isinstance(step, Create):
            for l3, taken in live.pop(step.number, {}).items():
                free[l3] += taken
            continue
        place = _place(free, step.cpus, random) if step.kind in OWNERS else None
        if place is not None:
            for l3, taken in place.items():
                free[l3] -= taken
            live[step.number] = place
            worse += len(place) > -(-step.cpus // largest)
        if worse >= goal:
            break
    return worse


def _place(free: list[int], count: int, random: Random) -> Optional[dict[int, int]]:
    """One L3 that fits, mostly the one that is left with the least; else the largest until it is enough."""
    if sum(free) < count:
        return None
    fitting = sorted((l3 for l3, number in enumerate(free) if number >= count), key=lambda l3: free[l3])
    if fitting:
        return {fitting[0] if random.random() < 0.7 else random.choice(fitting): count}
    place: dict[int, int] = {}
    order = sorted(range(len(free)), key=lambda l3: (-free[l3], random.random()))
    while count:
        # The rest in an L3 that fits it; else all of the largest.
        fitting = sorted(
            (l3 for l3 in order if l3 not in place and free[l3] >= count), key=lambda l3: free[l3]
        )
        l3 = fitting[0] if fitting else next(l3 for l3 in order if l3 not in place)
        place[l3] = min(count, free[l3])
        count -= place[l3]
    return place
