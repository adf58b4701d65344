"""CPUs that are not to be given away: the last ones of containers that can go nowhere else.

A container behind its caller's cpuset, and one that was adopted with the cpuset it had, can be shrunk, but needs one
CPU there. One that is not ours to move (opted out, released, foreign, untouched) goes on running on all of a cpuset
of its own, whatever is taken out of it. CPUs taken for another container alone avoid both while they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Callable, Optional, TypeVar

from policies.frozen import dataclass
from policies.machine.cpus import format_cpus
from policies.node import Node

_Found = TypeVar("_Found")

#: Of so many CPUs that cannot all be spared each is left out once; a look costs a few milliseconds.
ONE_LESS = 8


@dataclass(frozen=True)
class BoundNeed:
    """Containers that can only be on some CPUs, their ``bounds``, and the CPUs of them that no owner has taken, ``cpus``.

    ``is_fixed``: they run on all of their bounds, and leave none.
    """

    bounds: frozenset[int]
    cpus: frozenset[int]
    is_fixed: bool


def needs_of(node: Node) -> list[BoundNeed]:
    """The needs of containers in the books that are bound to less than the machine and have CPUs of it left."""
    needs = []
    for bounds, is_fixed in node.bounds:
        cpus = (bounds & node.usable) - node.exclusive if is_fixed else bounds & node.shared
        if cpus and not node.usable <= bounds:
            needs.append(BoundNeed(bounds, cpus, is_fixed))
    return needs


def take_sparing(
    node: Node,
    free: frozenset[int],
    keep: frozenset[int],
    take: Callable[[frozenset[int]], Optional[_Found]],
    cpus_of: Callable[[_Found], frozenset[int]],
) -> Optional[_Found]:
    """``take(free)``, of as much of ``free`` as leaves containers their need; of all of it where there is no other way.

    ``take``: takes of the CPUs it is given and of ``keep``; None if these are too few. ``cpus_of``: the CPUs taken.
    """
    needs = [need for need in needs_of(node) if not free.isdisjoint(need.cpus)]
    fixed = (free - keep).intersection(frozenset().union(*[need.cpus for need in needs if need.is_fixed]))
    best: Optional[tuple[int, _Found]] = None
    # 1. Without the CPUs on which others go on running; then with them.
    for pool in (free - fixed, free) if fixed else (free,):
        spared: list[int] = []
        while (found := take(pool.difference(spared))) is not None:
            emptied = _emptied(needs, cpus_of(found), keep)
            if best is None or len(emptied) < best[0]:
                best = len(emptied), found
            # 2. Of each that would be left with none one CPU stays.
            more = _to_spare(node, free, emptied, spared)
            if not more:
                break
            spared += more
        # 3. Where that is too much, of as many as can be.
        for fewer in _fewer(spared) if found is None else ():
            found = take(pool.difference(fewer))
            emptied = [] if found is None else _emptied(needs, cpus_of(found), keep)
            if found is not None and (best is None or len(emptied) < best[0]):
                best = len(emptied), found
        if best is not None and not best[0]:
            break
    return None if best is None else best[1]


def _fewer(spared: list[int]) -> Iterator[list[int]]:
    """The same without one of them; where there are many, halves of what saves most."""
    if len(spared) <= ONE_LESS:
        for left_out in reversed(range(len(spared))):
            yield spared[:left_out] + spared[left_out + 1 :]
    for shift in range(1, len(spared).bit_length()):
        yield spared[: len(spared) >> shift]


def _emptied(needs: Iterable[BoundNeed], cpus: frozenset[int], keep: frozenset[int]) -> list[frozenset[int]]:
    """The CPUs taken whole, without the ones taken before."""
    return [need.cpus - keep for need in needs if need.cpus <= cpus and not need.cpus <= keep]


def _to_spare(
    node: Node, free: frozenset[int], emptied: list[frozenset[int]], spared: Iterable[int]
) -> list[int]:
    """One CPU for each, those first that save most; of equal ones those on a core and in an L3 where least else is free."""
    found: list[int] = []
    tree = node.topology
    emptied = [cpus for cpus in emptied if cpus.isdisjoint(spared)]
    while emptied:
        saves: dict[int, int] = {}
        for cpus in emptied:
            for cpu in cpus:
                saves[cpu] = saves.get(cpu, 0) + 1

        def key(cpu: int, saves: dict[int, int] = saves) -> tuple[int, int, int, int]:
            mates, leaf = tree.core_mates(cpu) & free, tree.leaves[node.leaf_of[cpu]].cpus & free
            return -saves[cpu], len(mates), len(leaf), -cpu

        best = min(saves, key=key)
        found.append(best)
        emptied = [cpus for cpus in emptied if best not in cpus]
    return found


def emptied_by(node: Node, cpus: frozenset[int]) -> str:
    """In words of which containers these are the last CPUs; "" if they are not."""
    emptied = [need for need in needs_of(node) if need.cpus <= cpus]
    if not emptied:
        return ""
    last = format_cpus(frozenset().union(*[need.cpus for need in emptied]))
    return f"CPUs {last} are the last ones that {_names(node, emptied)} may run on, and no others are free"


def last_ones(node: Node) -> frozenset[int]:
    """The CPUs each of which is the last one of a container that can go nowhere else."""
    return frozenset().union(*[need.cpus for need in needs_of(node) if len(need.cpus) == 1])


def shared_all_the_same(node: Node, cpus: frozenset[int]) -> str:
    """In words which containers go on running on these CPUs, since they are not ours to move; "" if none does."""
    fixed = [need for need in needs_of(node) if need.is_fixed and not need.cpus.isdisjoint(cpus)]
    if not fixed:
        return ""
    theirs = format_cpus(cpus.intersection(frozenset().union(*[need.cpus for need in fixed])))
    return f"{_names(node, fixed)}, not ours to move, runs on CPUs {theirs} as well"


def _names(node: Node, needs: Iterable[BoundNeed]) -> str:
    bounds = {(need.bounds, need.is_fixed) for need in needs}
    found = {
        r.container.path
        for r in node.residents.values()
        if r.container is not None and r.bounds is not None and (r.bounds, r.is_fixed) in bounds
    }
    return ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
