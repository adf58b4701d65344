"""Whole cores of an L3 from as few clusters as can be: cores that share an L2 or the tags of the L3.

It comes after all that tells L3s and NUMA nodes apart: how many cores an L3 gives is settled here already, and which of
its cores these are is free. Where an L3 has no clusters nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from policies.exclusive.cell_search import Cost
from policies.exclusive.cells import WHOLE, Cell

Threads = tuple[int, ...]


def gather(
    cells: Iterable[Cell], taken: Sequence[int], keep: frozenset[int], cost: Optional[Cost]
) -> list[int]:
    """Threads as ``take_threads`` has taken them, whole cores exchanged for others of their L3 in fewer clusters.

    A cluster that is to give a part of its cores is one that is not wholly free, then the one that is left with the
    least, then the cheapest, then the first. Clusters in which it keeps CPUs come first.
    """
    found = list(taken)
    for cell in cells:
        if cell.ground.clusters:
            found = _gather_in(cell, found, keep, cost)
    return found


def clusters_under(cells: Iterable[Cell], cpus: Iterable[int]) -> int:
    """How many clusters some CPUs of these cells are in; 0 where there are none."""
    of = frozenset(cpus)
    return sum([not cluster.isdisjoint(of) for cell in cells for cluster in cell.ground.clusters])


def _gather_in(cell: Cell, taken: list[int], keep: frozenset[int], cost: Optional[Cost]) -> list[int]:
    all_taken = frozenset(taken)
    whole = [threads for kind, threads in cell.takes if kind == WHOLE]
    ours = [threads for threads in whole if all_taken.issuperset(threads)]
    # Cores of which a part is taken stay, as do those of CPUs that have lost some threads.
    open_to = [threads for threads in whole if threads in ours or all_taken.isdisjoint(threads)]
    if not 0 < len(ours) < len(open_to) or len({len(threads) for threads in open_to}) > 1:
        return taken
    held = keep | all_taken.difference(*ours)
    chosen = _from_fewest(cell.ground.clusters, open_to, len(ours), held, cost)
    swapped = {old: new for olds, news in zip(sorted(ours), sorted(chosen)) for old, new in zip(olds, news)}
    return [swapped.get(cpu, cpu) for cpu in taken]


def _from_fewest(
    clusters: Iterable[frozenset[int]],
    cores: Sequence[Threads],
    count: int,
    held: frozenset[int],
    cost: Optional[Cost],
) -> list[Threads]:
    """So many of these cores."""
    #: By cluster whether it has CPUs there, whether all of it is free, and the cores.
    rest: list[tuple[bool, bool, list[Threads]]] = []
    for cluster in clusters:
        here = [threads for threads in cores if threads[0] in cluster]
        if here:
            is_held = not cluster.isdisjoint(held)
            rest.append((is_held, sum(map(len, here)) == len(cluster), here))
    chosen: list[Threads] = []

    def part(option: tuple[bool, bool, list[Threads]]) -> tuple[Any, ...]:
        """The better one of clusters that hold the missing CPUs."""
        _, is_whole, here = option
        left = len(here) - (count - len(chosen))
        price = cost(frozenset().union(*here)) if cost is not None else ()
        return (is_whole and left > 0, left, price, here[0])

    def all_of(option: tuple[bool, bool, list[Threads]]) -> tuple[Any, ...]:
        """Where none holds it: the better one to be taken as a whole."""
        here = option[2]
        price = cost(frozenset().union(*here)) if cost is not None else ()
        return (-len(here), price, here[0])

    while len(chosen) < count:
        # 1. Clusters in which it has CPUs first. 2. One that holds all that is missing; else the largest.
        options = [option for option in rest if option[0]] or rest
        enough = [option for option in options if len(option[2]) >= count - len(chosen)]
        best = min(enough, key=part) if enough else min(options, key=all_of)
        rest.remove(best)
        chosen += best[2][: count - len(chosen)]
    return chosen
