"""The machine as the planner sees it: how far leaves are from each other, and which sites containers can be given.

Chosen figures: core to core, one cache line costs 23 ns inside a CCX, 107 ns to another one and 197 ns to the other
socket on Milan (nviennot/core-to-core-latency), so that the border of an L3 is the largest step: 84 ns by default.
Beyond it the SLIT is followed, which is all that firmware tells. Between clusters of cores inside an L3 a third of
that step is taken: no published figure was found, but Linux keeps wake-ups inside a cluster for it, which is worth 12 to
18 % to tbench on Kunpeng 920 (sched/fair: Scan cluster before scanning LLC in wake-up path).
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.affinity.planner.problem import CandidateDomain, Leaf, Tree
from policies.machine.topology import LOCAL_DISTANCE, Topology

#: The name of a site's level, smallest first, and the levels of the topology it stands for.
_LEVELS = (
    ("cluster", "cluster"),
    ("ccx", "l3"),
    ("numa", "numa"),
    ("socket", "socket"),
    ("machine", "machine"),
)

#: From one cluster to another of the same L3.
CLUSTER_NS = 28.0

Matrix = tuple[tuple[float, ...], ...]


def distance_ns(topology: Topology, l3_ns: float, slit_ns: float, cluster_ns: float = CLUSTER_NS) -> Matrix:
    """The extra cost of a cache line between two leaves, by index of ``Topology.leaves``.

    0 in a leaf, ``cluster_ns`` between leaves of one L3 (or of a NUMA node without one): clusters of cores; ``l3_ns``
    between L3s of a NUMA node, and ``slit_ns`` more for each point of the SLIT above 10 between nodes. Both directions of
    an asymmetric SLIT are averaged; a leaf that spans nodes has the mean of them.
    """
    leaves = topology.leaves
    slit = [[_slit(topology, a.nodes, b.nodes) for b in leaves] for a in leaves]
    cache_of = {leaf: number for number, cache in enumerate(topology.caches) for leaf in cache.leaves}

    def apart(a: int, b: int) -> float:
        if a == b:
            return 0.0
        if cache_of[a] == cache_of[b]:
            return cluster_ns
        return l3_ns + slit_ns * max(0.0, (slit[a][b] + slit[b][a]) / 2 - LOCAL_DISTANCE)

    return tuple(tuple(apart(a, b) for b in range(len(leaves))) for a in range(len(leaves)))


def _slit(topology: Topology, mine: frozenset[int], theirs: frozenset[int]) -> float:
    return sum([topology.distance(a, b) for a in mine for b in theirs]) / (len(mine) * len(theirs))


def tree_of(topology: Topology, capacity_milli_by_leaf: Sequence[int], matrix: Matrix) -> Tree:
    """The leaves with their capacities, and the sites of all levels; where levels coincide, only the lowest.

    The sites of leaves come first, in the order of the leaves: site ``i`` is leaf ``i`` as long as ``i`` is one.
    """
    count = len(topology.leaves)
    if len(capacity_milli_by_leaf) != count or len(matrix) != count:
        raise ValueError(
            f"{len(capacity_milli_by_leaf)} capacities and {len(matrix)} rows of distances were given; "
            f"the machine has {count} leaves"
        )
    cache_of = {leaf: number for number, cache in enumerate(topology.caches) for leaf in cache.leaves}
    leaves = tuple(
        Leaf(leaf.name, capacity_milli_by_leaf[index], min(leaf.nodes), leaf.socket, cache_of[index])
        for index, leaf in enumerate(topology.leaves)
    )
    level = "ccx" if topology.at("l3") and not topology.leaves[0].children else "numa"
    sites = [
        CandidateDomain(_level_of(leaf.levels) or level, leaf.name, (index,))
        for index, leaf in enumerate(topology.leaves)
    ]
    known = {site.leaves for site in sites}
    # An L3 that holds NUMA nodes is known as the socket where it is one; so L3s come last.
    for name, level_of_topology in (*_LEVELS[2:], *_LEVELS[:2]):
        for domain in topology.at(level_of_topology):
            if domain.leaves not in known:
                known.add(domain.leaves)
                sites.append(CandidateDomain(name, domain.name, domain.leaves))
    return Tree(leaves, tuple(sites), matrix)


def _level_of(levels: tuple[str, ...]) -> str:
    """The lowest of the planner's levels that a domain has."""
    return next((name for name, level in _LEVELS if level in levels), "")
