"""Clusters onto leaves: families first, largest first, each to the leaf that its neighbours pull it to.

A cluster that fits nowhere is taken apart, and its containers are placed one by one; what still fits nowhere is put
where it overfills least, for ``repair`` to deal with.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.clusters import Clustering
from policies.affinity.planner.instance import LEAST_SIZE, Instance


def assign(arrangement: Arrangement, vertices: Sequence[int], fill: float, exponent: float) -> None:
    """Place ``vertices`` (which are nowhere now, and may all be in any leaf) around those that are there.

    ``fill``: the part of a leaf, a node, a socket that a cluster may have; ``exponent``: see ``clusters``.
    """
    instance = arrangement.instance
    rank = {vertex: index for index, vertex in enumerate(vertices)}
    edges = [(rank[a], rank[b], weight) for a, b, weight in instance.problem.edges if a in rank and b in rank]
    sizes = [max(LEAST_SIZE, instance.sizes[vertex]) for vertex in vertices]
    clustering = Clustering(sizes, edges, exponent)
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
