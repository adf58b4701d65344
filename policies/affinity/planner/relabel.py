"""A new plan laid over the present one so that little moves: which of its leaves is which.

A plan made anew may be the present one with two sockets, nodes or leaves exchanged. The exchange that leaves most
where it is, is found by the Hungarian method (Kuhn 1955; Jonker and Volgenant's shortest augmenting paths), per
level and from below: leaves in each pair of nodes, nodes in each pair of sockets, sockets. Only equals are
exchanged: as many leaves, and room for what is to come beside those that cannot move. Wide containers stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Callable

from policies.affinity.planner.instance import Instance

#: Worse than any gain: leaves that do not fit on each other.
_NEVER = -1e18

#: Pairs (a leaf of the plan, the leaf it is to be), and what that saves.
Match = tuple[float, list[tuple[int, int]]]


def relabel(instance: Instance, plan: Sequence[int], present: Sequence[int]) -> list[int]:
    """The plan with its leaves exchanged so that the cost of moves is least. Costs change only where the machine is
    irregular or a fixed container pulls: compare before use."""
    single = instance.single
    site_of = {leaf: site for site, leaf in reversed(list(enumerate(single))) if leaf >= 0}
    # One that may not be everywhere could be taken where it may not be.
    everywhere = {sites: all(site in sites for site in site_of.values()) for sites in set(instance.sites)}
    roaming = [
        u
        for u, site in enumerate(plan)
        if instance.movable[u]
        and instance.near[u]
        and site >= 0
        and single[site] >= 0
        and present[u] >= 0
        and everywhere[instance.sites[u]]
        and u not in instance.bound
    ]
    count = len(instance.capacities)
    saved = [[0.0] * count for _ in range(count)]
    coming = [0] * count
    staying = [0] * count
    is_roaming = [False] * len(plan)
    for u in roaming:
        is_roaming[u] = True
        coming[single[plan[u]]] += instance.sizes[u]
        if single[present[u]] >= 0:
            saved[single[plan[u]]][single[present[u]]] += 1.0 + instance.sizes[u] * 1e-9
    for u, site in enumerate(plan):
        if not is_roaming[u] and site >= 0:
            for leaf, part in instance.parts(instance.sizes[u], site):
                staying[leaf] += part
    for new in range(count):
        for old in range(count):
            if new != old and coming[new] + staying[old] > instance.capacities[old]:
                saved[new][old] = _NEVER
    _, pairs = _match_tree(instance, saved)
    becomes = dict(pairs)
    return [site_of[becomes[single[site]]] if is_roaming[u] else site for u, site in enumerate(plan)]


def _match_tree(instance: Instance, saved: Sequence[Sequence[float]]) -> Match:
    sockets: dict[int, dict[int, list[int]]] = {}
    for index, leaf in enumerate(instance.problem.tree.leaves):
        sockets.setdefault(leaf.socket, {}).setdefault(leaf.node, []).append(index)

    def leaves(new: int, old: int) -> Match:
        return saved[new][old], [(new, old)]

    def nodes(new: list[int], old: list[int]) -> Match:
        return _match(new, old, leaves)

    def whole(new: list[list[int]], old: list[list[int]]) -> Match:
        return _match(new, old, nodes)

    trees = [list(nodes_of.values()) for nodes_of in sockets.values()]
    return _match(trees, trees, whole)


def _match(new: Sequence, old: Sequence, below: Callable) -> Match:  # type: ignore[type-arg]
    """The best pairing of two lists of boxes, by the best pairings inside the boxes."""
    if len(new) != len(old):
        return _NEVER, []
    inside = [[below(a, b) for b in old] for a in new]
    chosen = best_pairing([[value for value, _ in row] for row in inside])
    return (
        sum([inside[a][b][0] for a, b in enumerate(chosen)]),
        [pair for a, b in enumerate(chosen) for pair in inside[a][b][1]],
    )


def best_pairing(values: Sequence[Sequence[float]]) -> list[int]:
    """For each row its column, so that the sum is greatest; of equals that with the lowest columns, or the first."""
    count = len(values)
    if count <= 3:
        orders = permutations(range(count))
        return list(max(orders, key=lambda order: sum([values[a][b] for a, b in enumerate(order)])))
    return _hungarian([[-value for value in row] for row in values])


def _hungarian(costs: Sequence[Sequence[float]]) -> list[int]:
    """Least sum, O(n^3): a shortest augmenting path for every row, with potentials of rows and columns."""
    count = len(costs)
    infinite = float("inf")
    of_row, of_column = [0.0] * (count + 1), [0.0] * (count + 1)
    # Row count is no row: column ``count`` is where a path begins.
    row_of = [count] * (count + 1)
    for row in range(count):
        row_of[count] = row
        column, least = count, [infinite] * count
        before, done = [count] * count, [False] * (count + 1)
        while row_of[column] != count:
            done[column] = True
            current, delta, following = row_of[column], infinite, count
            for other in range(count):
                if not done[other]:
                    reduced = costs[current][other] - of_row[current] - of_column[other]
                    if reduced < least[other]:
                        least[other], before[other] = reduced, column
                    if least[other] < delta:
                        delta, following = least[other], other
            for other in range(count + 1):
                if done[other]:
                    of_row[row_of[other]] += delta
                    of_column[other] -= delta
                elif other < count:
                    least[other] -= delta
            column = following
        while column != count:
            row_of[column], column = row_of[before[column]], before[column]
    result = [0] * count
    for column in range(count):
        result[row_of[column]] = column
    return result
