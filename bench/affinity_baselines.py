"""What ``bench.affinity`` sets the planner against: how others place, and how they would with the same knowledge.

``networkx`` gives the communities; the sites here are leaves only.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Callable

import networkx

from bench.affinity_graphs import STEP_NS, Case
from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import NANOSECOND, Instance
from policies.affinity.planner.problem import PlanSettings
from policies.affinity.planner.refine import Refinement

Places = list[int]
#: Plans that cost nothing and are accepted for any gain.
FREE = PlanSettings(hysteresis=0.0, kappa=0.0, least_gain=0.0, horizon_s=1e12)


def distance_per_byte(case: Case, places: Places) -> float:
    """In steps: 0 = all in one leaf, 1 = another leaf of the node, 2 = of the socket, 4 = across."""
    total = sum([weight for _, _, weight in case.problem.edges])
    return Instance(case.problem).cost(places) / (total * STEP_NS * NANOSECOND)


def at_random(case: Case, seed: int) -> Places:
    """Any leaf that has room, else any."""
    random = Random(seed)

    def choose(load: list[int], milli: int) -> int:
        fitting = [leaf for leaf in range(len(load)) if load[leaf] + milli <= _capacity(case, leaf)]
        return random.choice(fitting or range(len(load)))

    return _one_by_one(case, _shuffled(case, seed), choose)


def least_loaded(case: Case, seed: int) -> Places:
    """The leaf with the least load, in random order of arrival."""
    return _one_by_one(case, _shuffled(case, seed), lambda load, _: load.index(min(load)))


def packed(case: Case, seed: int) -> Places:
    """The first leaf with room, as kubelet's static policy takes CPUs, in random order of arrival."""
    return _one_by_one(case, _shuffled(case, seed), _first_fit(case))


def packed_by_app(case: Case, seed: int) -> Places:
    """The same, when all containers of an application arrive together."""
    order = sorted(range(len(case.app)), key=lambda u: case.app[u])
    return _one_by_one(case, order, _first_fit(case))


def round_robin(case: Case, seed: int) -> Places:
    """The next leaf with room."""
    last = -1

    def choose(load: list[int], milli: int) -> int:
        nonlocal last
        for step in range(1, len(load) + 1):
            leaf = (last + step) % len(load)
            if load[leaf] + milli <= _capacity(case, leaf):
                break
        last = leaf
        return leaf

    return _one_by_one(case, _shuffled(case, seed), choose)


def union_find(case: Case, seed: int) -> Places:
    """openEuler's NRI plugin: all that is connected at all is one group, and groups go to NUMA nodes in turn, in
    random order (it walks through a Go map). In a node the kernel is taken to balance the leaves."""
    groups = sorted(map(sorted, networkx.connected_components(graph_of(case))))
    Random(seed).shuffle(groups)
    leaves = case.problem.tree.leaves
    nodes = sorted({leaf.node for leaf in leaves})
    load, places = [0] * len(leaves), [0] * len(case.app)
    for number, group in enumerate(groups):
        node = nodes[number % len(nodes)]
        of_node = [index for index, leaf in enumerate(leaves) if leaf.node == node]
        for u in group:
            places[u] = min(of_node, key=lambda leaf: load[leaf])
            load[places[u]] += case.problem.vertices[u].milli
    return places


def louvain(case: Case, seed: int) -> Places:
    """Communities by modularity, the largest first, each container to the first leaf that has room."""
    found = networkx.community.louvain_communities(graph_of(case), seed=seed)
    return packed_in_groups(case, [sorted(group) for group in found])


def packed_in_groups(case: Case, groups: Iterable[list[int]]) -> Places:
    """Groups one after another, the largest first, each container to the first leaf that has room."""
    size = [vertex.milli for vertex in case.problem.vertices]
    ordered = sorted(groups, key=lambda group: (-sum([size[u] for u in group]), group))
    return _one_by_one(case, [u for group in ordered for u in group], _first_fit(case))


def louvain_refined(case: Case, seed: int) -> Places:
    """The same, with the planner's refinement."""
    problem = case.at(louvain(case, seed))
    instance = Instance(problem)
    arrangement = Arrangement(instance, [vertex.at for vertex in problem.vertices])
    free = [[0.0] * len(instance.rows)] * len(arrangement.at)
    Refinement(arrangement, free, 1e-15).run(range(len(arrangement.at)), 10_000_000)
    return arrangement.at


BASELINES: dict[str, Callable[[Case, int], Places]] = {
    "random": at_random,
    "least loaded": least_loaded,
    "packed": packed,
    "packed by app": packed_by_app,
    "round-robin": round_robin,
    "union-find + RR": union_find,
    "Louvain + first fit": louvain,
    "Louvain + refinement": louvain_refined,
}


def graph_of(case: Case) -> networkx.Graph[int]:
    """The case's graph."""
    graph: networkx.Graph[int] = networkx.Graph()
    graph.add_nodes_from(range(len(case.app)))
    graph.add_weighted_edges_from(case.problem.edges)
    return graph


def _capacity(case: Case, leaf: int) -> int:
    return case.problem.tree.leaves[leaf].capacity_milli


def _shuffled(case: Case, seed: int) -> list[int]:
    order = list(range(len(case.app)))
    Random(seed).shuffle(order)
    return order


def _one_by_one(case: Case, order: Iterable[int], choose: Callable[[list[int], int], int]) -> Places:
    load, places = [0] * len(case.problem.tree.leaves), [0] * len(case.app)
    for u in order:
        milli = case.problem.vertices[u].milli
        places[u] = choose(load, milli)
        load[places[u]] += milli
    return places


def _first_fit(case: Case) -> Callable[[list[int], int], int]:
    def choose(load: list[int], milli: int) -> int:
        for leaf, taken in enumerate(load):
            if taken + milli <= _capacity(case, leaf):
                return leaf
        return load.index(min(load))

    return choose
