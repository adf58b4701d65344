"""Graph partitioners of the field, for ``bench.affinity``: METIS, KaHIP and Leiden, each with the planner's own repair
and refinement after it, and a heavy-edge matching with refinement from six starts.

METIS and KaHIP divide into as many parts as there are leaves, by recursive bisection, so that parts of near numbers
are near each other; KaHIP also maps them onto the machine's distances. None of them keeps capacities by itself.
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
    return refined(case, parts)


def kahip_mapped(case: Case, seed: int) -> Places:
    """KaHIP's process mapping onto leaves, nodes and sockets."""
    starts, ends, weights, sizes = _compressed(case)
    hierarchy, distances = _hierarchy(case)
    _, _, parts = kahip.process_mapping(
        sizes, starts, weights, ends, hierarchy, distances, _IMBALANCE, True, seed, kahip.STRONG, kahip.MAPMODE_MULTISECTION
    )  # fmt: skip
    return refined(case, parts)


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
    "KaHIP": kahip_mapped,
    "Leiden": leiden,
    "matching, six starts": matching,
}


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


def _hierarchy(case: Case) -> tuple[list[int], list[int]]:
    """Leaves of a node, nodes of a socket, sockets; and the steps between two of each, as KaHIP takes them."""
    leaves = case.problem.tree.leaves
    nodes = len({leaf.node for leaf in leaves})
    sockets = len({leaf.socket for leaf in leaves})
    counts = [len(leaves) // nodes, nodes // sockets, sockets]
    steps = [1, 2, 4]
    kept = [index for index, count in enumerate(counts) if count > 1]
    return [counts[index] for index in kept], [steps[index] for index in kept]
