"""Graph partitioners of the field, for ``bench.affinity``: METIS, KaHIP and Leiden, each with the planner's own repair
and refinement after it, and a heavy-edge matching with refinement from six starts.

METIS and KaHIP divide into as many parts as there are leaves (METIS by recursive bisection, so that parts of near
numbers are near each other); the parts are then laid onto the machine so that those that talk most are nearest, by
swaps of two. None of them keeps the capacities by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import igraph
import kahip
import leidenalg
import pymetis

from bench.affinity_baselines import Places, packed_in_groups
from bench.affinity_graphs import Case
from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.assign import assign
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.repair import repair_or_pack

#: Weights of edges are whole numbers there: the heaviest is this many.
_HEAVIEST = 1_000_000
#: How much heavier than the mean a part may become.
_IMBALANCE = 0.05
_WORK = 10_000_000


def metis(case: Case, seed: int) -> Places:
    """Recursive bisection of METIS."""
    starts, ends, weights, sizes = _compressed(case)
    options = pymetis.Options(seed=seed)
    _, parts = pymetis.part_graph(
        len(case.problem.tree.leaves), xadj=starts, adjncy=ends, vweights=sizes, eweights=weights,
        recursive=True, options=options,
    )  # fmt: skip
    return refined(case, laid_out(case, parts))


def strong(case: Case, seed: int) -> Places:
    """KaHIP's strong configuration."""
    starts, ends, weights, sizes = _compressed(case)
    leaves = len(case.problem.tree.leaves)
    _, parts = kahip.kaffpa(sizes, starts, weights, ends, leaves, _IMBALANCE, True, seed, kahip.STRONG)
    return refined(case, laid_out(case, parts))


def leiden(case: Case, seed: int) -> Places:
    """Leiden communities, the largest first, each container to the first leaf that has room."""
    edges = [(a, b) for a, b, _ in case.problem.edges]
    graph = igraph.Graph(n=len(case.app), edges=edges)
    weights = [weight for _, _, weight in case.problem.edges]
    found = leidenalg.find_partition(graph, leidenalg.ModularityVertexPartition, weights=weights, seed=seed)
    return refined(case, packed_in_groups(case, [sorted(group) for group in found]))


def matching(case: Case, seed: int) -> Places:
    """Heavy edges merged first, from six starts, each refined; the best of them."""
    del seed  # it knows no chance
    starts = ((0.9, 0.5), (1.0, 0.5), (0.9, 0.0), (1.0, 1.0), (0.6, 0.5), (0.5, 0.0))
    found = []
    for fill, exponent in starts:
        instance = Instance(case.problem)
        arrangement = Arrangement(instance, [-1] * len(case.app))
        assign(arrangement, range(len(case.app)), fill, exponent)
        places = refined(case, arrangement.at)
        found.append((instance.cost(places), places))
    return min(found)[1]


PARTITIONERS: dict[str, Callable[[Case, int], Places]] = {
    "METIS": metis,
    "KaHIP": strong,
    "Leiden": leiden,
    "matching, six starts": matching,
}


def laid_out(case: Case, parts: Sequence[int]) -> Places:
    """The parts on leaves: pairs of parts are swapped as long as that brings those that talk nearer."""
    distance = case.problem.tree.distance_ns
    count = len(distance)
    between = [[0.0] * count for _ in range(count)]
    for a, b, weight in case.problem.edges:
        between[parts[a]][parts[b]] += weight
        between[parts[b]][parts[a]] += weight
    leaf_of = list(range(count))

    def cost(part: int, leaf: int, without: int) -> float:
        row = between[part]
        return sum(
            row[other] * distance[leaf][leaf_of[other]]
            for other in range(count)
            if other not in (part, without)
        )

    is_better = True
    while is_better:
        is_better = False
        for one in range(count):
            for other in range(one):
                here, there = leaf_of[one], leaf_of[other]
                before = cost(one, here, other) + cost(other, there, one)
                if cost(one, there, other) + cost(other, here, one) < before * (1 - 1e-9):
                    leaf_of[one], leaf_of[other] = there, here
                    is_better = True
    return [leaf_of[part] for part in parts]


def refined(case: Case, places: Sequence[int]) -> Places:
    """The same placement with what is overfull repaired, and refined by the planner's moves, swaps and ejections."""
    problem = case.at(list(places))
    instance = Instance(problem)
    refinement = Refinement(
        Arrangement(instance, places), [[0.0] * len(instance.rows)] * len(places), 1e-15, deep=True
    )
    repair_or_pack(refinement)
    refinement.run(range(len(places)), _WORK)
    return refinement.arrangement.at


def _compressed(case: Case) -> tuple[list[int], list[int], list[int], list[int]]:
    """Compressed rows: where each vertex's neighbours start, they, their edges' weights, and the vertices' weights."""
    heaviest = max([weight for _, _, weight in case.problem.edges])
    near: list[list[tuple[int, int]]] = [[] for _ in case.app]
    for a, b, weight in case.problem.edges:
        whole = max(1, round(weight / heaviest * _HEAVIEST))
        near[a].append((b, whole))
        near[b].append((a, whole))
    starts = [0]
    for row in near:
        starts.append(starts[-1] + len(row))
    ends = [other for row in near for other, _ in row]
    return starts, ends, [whole for row in near for _, whole in row], [v.milli for v in case.problem.vertices]
