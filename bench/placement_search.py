"""What the random sequences of ``bench.placement`` allow: the fewest domains at one create, the best of a whole sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Optional

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


def search(steps: Sequence[tuple[str, int]], sizes: Sequence[int], largest: int, goal: int) -> int:
    """The fewest containers over more L3s than needed that any of many placements of a sequence had.

    ``sizes``: free CPUs of each L3 at the start; ``largest``: of a whole L3; ``goal``: a number known to be
    possible. Only counts are placed: nodes and cores are free of charge, so that it is hard to beat.
    """
    random = Random(1)
    for _ in range(SEARCHES):
        if not goal:
            break
        goal = min(goal, _placed_by_chance(steps, list(sizes), largest, random, goal))
    return goal


def _placed_by_chance(
    steps: Sequence[tuple[str, int]], free: list[int], largest: int, random: Random, goal: int
) -> int:
    live: dict[int, dict[int, int]] = {}
    number = worse = 0
    for kind, value in steps:
        if kind == "delete":
            for l3, taken in live.pop(value, {}).items():
                free[l3] += taken
            continue
        place = _place(free, value, random)
        if place is not None:
            for l3, taken in place.items():
                free[l3] -= taken
            live[number] = place
            worse += len(place) > -(-value // largest)
        number += 1
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
