"""Clusters onto leaves: families first, largest first, each to the leaf that its neighbours pull it to.

A cluster that fits nowhere is taken apart, and its containers are placed one by one; what still fits nowhere is put
where it overfills least, for ``repair`` to deal with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import LEAST_SIZE, Instance


def assign(arrangement: Arrangement, vertices: Sequence[int], fill: float, exponent: float) -> None:
    """Place ``vertices`` (which are nowhere now, and may all be in any leaf) around the placed ones.

    ``fill``: the part of a leaf, a node, a socket that a cluster may have; ``exponent``: see ``Clustering``.
    """
    instance = arrangement.instance
    rank = {vertex: index for index, vertex in enumerate(vertices)}
    edges = [(rank[a], rank[b], weight) for a, b, weight in instance.problem.edges if a in rank and b in rank]
    sizes = [max(LEAST_SIZE, instance.sizes[vertex]) for vertex in vertices]
    clustering = Clustering(sizes, edges, exponent)
    clustering.part([(rank[a], rank[b]) for a, b in instance.parted if a in rank and b in rank])
    # 1. Bottom-up: clusters of the size of a leaf; remember them, and merge on to families.
    limits = _limits(instance)
    clustering.merge(int(limits[0] * fill))
    clusters = {cluster: list(clustering.members[cluster]) for cluster in clustering.alive()}
    small = {cluster: clustering.size(cluster) for cluster in clusters}
    owner = {member: cluster for cluster, members in clusters.items() for member in members}
    for limit in limits[1:]:
        clustering.merge(int(limit * fill))
    # 2. Top-down: the largest family first, and in it the largest cluster.
    for family in clustering.alive():
        of_family = dict.fromkeys([owner[member] for member in clustering.members[family]])
        for cluster in sorted(of_family, key=lambda cluster: (-small[cluster], cluster)):
            _place(arrangement, [vertices[member] for member in clusters[cluster]])


def _limits(instance: Instance) -> list[int]:
    """The capacity of a usual leaf, NUMA node and socket: the median one."""
    nodes, sockets = _sums_above(instance, instance.capacities)
    levels = (instance.capacities, list(nodes.values()), list(sockets.values()))
    return [sorted(level)[len(level) // 2] for level in levels]


def usual_leaf(instance: Instance) -> int:
    """The capacity of a usual leaf, in micro-CPUs."""
    return _limits(instance)[0]


def _place(arrangement: Arrangement, members: list[int]) -> None:
    instance = arrangement.instance
    size = sum([instance.sizes[vertex] for vertex in members])
    sites = common_sites(instance, members)
    site = best_site(arrangement, members, size, sites)
    if site >= 0:
        for vertex in members:
            arrangement.move(vertex, site)
    elif len(members) > 1:
        for vertex in sorted(members, key=lambda vertex: (-instance.sizes[vertex], vertex)):
            _place(arrangement, [vertex])
    else:
        arrangement.move(members[0], least_overfull(arrangement, members[0]))


def common_sites(instance: Instance, members: Sequence[int]) -> tuple[int, ...]:
    """The sites that all of them may have."""
    sites = instance.sites[members[0]]
    for vertex in members:
        if instance.sites[vertex] is not sites:
            theirs = instance.sites[vertex]
            sites = tuple([site for site in sites if site in theirs])
    return sites


def best_site(arrangement: Arrangement, members: Sequence[int], size: int, sites: Sequence[int]) -> int:
    """The site with room where these cost least; among equals that of the emptiest socket, node, leaf. -1 = none."""
    instance = arrangement.instance
    pull = arrangement.pull_of(members)
    costs = [0.0] * len(instance.rows)
    for there, weight in pull.items():
        costs = [cost + weight * distance for cost, distance in zip(costs, instance.rows[there])]
    if fills := sum([instance.fills[member] for member in members]):
        costs = [cost + more for cost, more in zip(costs, arrangement.crowding_row(fills))]
    room = [most - load for most, load in zip(instance.capacities, arrangement.load)]
    nodes, sockets = _sums_above(instance, room)
    leaves = instance.problem.tree.leaves
    best, found = None, -1
    for site in sites:
        parts = instance.parts(size, site)
        if any(part > room[leaf] for leaf, part in parts) and size:
            continue
        if instance.holding and not arrangement.keeps([(member, site) for member in members]):
            continue
        leaf = parts[0][0]
        key = (costs[site], -sockets[leaves[leaf].socket], -nodes[leaves[leaf].node], -room[leaf], site)
        if best is None or key < best:
            best, found = key, site
    return found


def least_overfull(arrangement: Arrangement, vertex: int) -> int:
    """The site where a vertex does the least harm."""
    sites = arrangement.instance.sites[vertex]
    return min(sites, key=lambda site: (arrangement.excess_change(((vertex, site),)), site))


def _sums_above(instance: Instance, of_leaves: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """By NUMA node and by socket: the sums of what their leaves have."""
    nodes: dict[int, int] = {}
    sockets: dict[int, int] = {}
    for leaf, amount in zip(instance.problem.tree.leaves, of_leaves):
        nodes[leaf.node] = nodes.get(leaf.node, 0) + amount
        sockets[leaf.socket] = sockets.get(leaf.socket, 0) + amount
    return nodes, sockets


# ---------------------------------------------------------------------- clusters

# Clusters of containers that are worth a common place: heavy edges first, as large as the place at most.
#
# Heavy-edge agglomeration as in multilevel graph partitioning (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998),
# with a capacity in place of a number of parts, and bottom-up along the tree like TreeMatch (Jeannot, Mercier,
# Tessier, TPDS 25(4), 2014): clusters that fill a leaf are merged on to fill a NUMA node, then a socket.
# An edge is worth its weight by a power of the smaller end's size: a hub does not eat its neighbours one by one.


class Clustering:
    """Clusters that grow: ``merge`` up to a size, then further. A cluster goes by the number of one of its items."""

    def __init__(
        self, sizes: Sequence[int], edges: Iterable[tuple[int, int, float]], exponent: float
    ) -> None:
        self.members = [[item] for item in range(len(sizes))]
        self._sizes = list(sizes)
        self._factor = [size**-exponent for size in sizes]
        self._exponent = exponent
        self._near: list[dict[int, float]] = [{} for _ in sizes]
        for a, b, weight in edges:
            self._near[a][b] = self._near[b][a] = self._near[a].get(b, 0.0) + weight

    def part(self, pairs: Iterable[tuple[int, int]]) -> None:
        """No cluster is to hold both of a pair: nothing that is added to this weight makes it worth a merge."""
        for a, b in pairs:
            self._near[a][b] = self._near[b][a] = -inf

    def size(self, cluster: int) -> int:
        """The sizes of its items, in all."""
        return self._sizes[cluster]

    def alive(self) -> list[int]:
        """The clusters there are, the largest first."""
        found = [cluster for cluster, members in enumerate(self.members) if members]
        return sorted(found, key=lambda cluster: (-self._sizes[cluster], cluster))

    def merge(self, most: int) -> None:
        """Merge along the edge that is worth most, again and again, while two ends are not larger than ``most``."""
        sizes, factor, near = self._sizes, self._factor, self._near
        heap = [
            (-weight * max(factor[a], factor[b]), a, b)
            for a, edges in enumerate(near)
            for b, weight in edges.items()
            if a < b and weight > 0 and sizes[a] + sizes[b] <= most
        ]
        heapify(heap)
        while heap:
            worth, a, b = heappop(heap)
            weight = near[a].get(b, 0.0)
            # Clusters never shrink: an edge too large now, or gone, can be forgotten.
            if weight <= 0 or sizes[a] + sizes[b] > most:
                continue
            now = -weight * max(factor[a], factor[b])
            if now > worth:
                # The ends grew since: worth less by now, so it has to wait for its turn.
                heappush(heap, (now, a, b))
                continue
            if now < worth:
                continue
            self._join(a, b, most, heap)

    def _join(self, a: int, b: int, most: int, heap: list[tuple[float, int, int]]) -> None:
        sizes, factor, near = self._sizes, self._factor, self._near
        if len(near[a]) < len(near[b]):
            a, b = b, a
        mine, theirs = near[a], near[b]
        self.members[a] += self.members[b]
        self.members[b] = []
        sizes[a] += sizes[b]
        factor[a] = sizes[a] ** -self._exponent
        del mine[b], theirs[a]
        size, own = sizes[a], factor[a]
        for c, weight in theirs.items():
            ends = near[c]
            del ends[b]
            mine[c] = ends[a] = weight = weight + mine.get(c, 0.0)
            if weight > 0 and size + sizes[c] <= most:
                worth = -weight * max(own, factor[c])
                heappush(heap, (worth, a, c) if a < c else (worth, c, a))
        near[b] = {}
