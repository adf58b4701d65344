"""Repair: out of leaves that are fuller than they may be, at the least cost.

Whatever makes the excess smaller is taken, best first: a move to where there is room, or a swap with another
smaller. A container leaves its level only where the problem gives it sites of another one (a spill to the NUMA
node, say). If that is not enough, the containers of a level are packed anew, largest first, regardless of cost.
"""

from __future__ import annotations

from typing import Optional

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.refine import Move, Refinement

#: Moves and swaps looked at for one step, and steps: a leaf is repaired in few of them or not at all.
_MOST_LOOKED_AT = 20_000
_MOST_STEPS = 200


def repair(refinement: Refinement) -> bool:
    """Make the excess as small as moves and swaps can. Whether there is none now."""
    arrangement = refinement.arrangement
    for _ in range(_MOST_STEPS):
        if not arrangement.overfull():
            return True
        step = _best_step(refinement)
        if step is None:
            return False
        for vertex, site in step:
            refinement.move(vertex, site)
    return not arrangement.overfull()


def repair_or_pack(refinement: Refinement) -> bool:
    """``repair``, and if that is not enough, ``pack_anew``. Whether nothing is overfull now."""
    return repair(refinement) or pack_anew(refinement)


def _best_step(refinement: Refinement) -> Optional[list[Move]]:
    """The change that removes all or most of the excess of one overfull leaf, and of those the cheapest."""
    arrangement = refinement.arrangement
    instance = arrangement.instance
    crowded = _on(arrangement, arrangement.overfull())
    looked_at = 0
    best: Optional[tuple[bool, float, int, int, int]] = None
    found: Optional[list[Move]] = None
    for vertex in crowded:
        row, here = refinement.row(vertex), arrangement.at[vertex]
        for site in instance.sites[vertex]:
            if site == here:
                continue
            looked_at += 1
            change = arrangement.excess_change(((vertex, site),))
            if change < 0 and arrangement.keeps(((vertex, site),)):
                key = (change > -_due(arrangement, here), row[site] - row[here], change, vertex, site)
                if best is None or key < best:
                    best, found = key, [(vertex, site)]
    if found is not None:
        return found
    for vertex in crowded:
        row, here = refinement.row(vertex), arrangement.at[vertex]
        for site in instance.sites[vertex]:
            for other in arrangement.members[site] if site != here else ():
                if here not in instance.sites[other] or instance.sizes[other] >= instance.sizes[vertex]:
                    continue
                looked_at += 1
                moves = [(other, here), (vertex, site)]
                change = arrangement.excess_change(moves)
                if change < 0 and arrangement.keeps(moves):
                    theirs = refinement.row(other)
                    cost = row[site] - row[here] + theirs[here] - theirs[site]
                    key = (change > -_due(arrangement, here), cost, change, vertex, other)
                    if best is None or key < best:
                        best, found = key, moves
            if looked_at > _MOST_LOOKED_AT:
                return found
    return found


def restore(refinement: Refinement) -> None:
    """Move containers so that what is declared is kept better, as far as there is room; each time the change that does most
    for the weights, and of those the cheapest."""
    for _ in range(_MOST_STEPS):
        step = _best_restoring(refinement)
        if not step:
            return
        for vertex, site in step:
            refinement.move(vertex, site)


def _best_restoring(refinement: Refinement) -> list[Move]:
    arrangement = refinement.arrangement
    instance, at = arrangement.instance, arrangement.at
    broken = [u for u in instance.holding if at[u] >= 0 and arrangement.broken_at(u, at[u])]
    best: Optional[tuple[int, float, int, int, int]] = None
    found: list[Move] = []
    looked_at = 0
    for vertex in broken:
        here = at[vertex]
        now, row = arrangement.broken_at(vertex, here), refinement.row(vertex)
        for site in instance.sites[vertex] if instance.movable[vertex] else ():
            change = arrangement.broken_at(vertex, site) - now
            if change >= 0:
                continue
            looked_at += 1
            cost = row[site] - row[here]
            if arrangement.fits(vertex, site):
                key = (change, cost, vertex, site, -1)
                if best is None or key < best:
                    best, found = key, [(vertex, site)]
                continue
            # Full: with another container that goes where this one has been.
            for other in arrangement.members[site] if looked_at <= _MOST_LOOKED_AT else ():
                looked_at += 1
                moves = [(other, here), (vertex, site)]
                if not instance.movable[other] or here not in instance.sites[other]:
                    continue
                theirs = refinement.row(other)
                both = change + arrangement.broken_at(other, here) - arrangement.broken_at(other, site)
                key = (both, cost + theirs[here] - theirs[site], vertex, site, other)
                if both < 0 and (best is None or key < best) and arrangement.allows(moves):
                    best, found = key, moves
    return found


def _on(arrangement: Arrangement, leaves: list[int]) -> list[int]:
    """The movable vertices on these leaves."""
    instance = arrangement.instance
    return [
        vertex for vertex in arrangement.on(leaves) if instance.movable[vertex] and instance.sizes[vertex]
    ]


def _due(arrangement: Arrangement, site: int) -> int:
    """The excess of the leaves of a site."""
    instance = arrangement.instance
    return sum([max(0, arrangement.load[leaf] - instance.capacities[leaf]) for leaf in instance.leaves[site]])


def pack_anew(refinement: Refinement) -> bool:
    """Take out all that can move and put them back, widest and largest first, where they leave least room that fits.

    Whether nothing is overfull now; if not, all is as it was. Best fit decreasing uses at most 11/9 of the bins that
    are needed (Johnson 1973), so that a feasible packing at ordinary utilisation is found.
    """
    arrangement = refinement.arrangement
    instance, before = arrangement.instance, list(arrangement.at)
    movable = [u for u, site in enumerate(before) if instance.movable[u] and site >= 0 and instance.sizes[u]]
    for vertex in movable:
        refinement.move(vertex, -1)
    order = sorted(movable, key=lambda u: (-len(instance.leaves[before[u]]), -instance.sizes[u], u))
    complete = True
    for vertex in order:
        rooms = [
            (_left(arrangement, vertex, site), site != before[vertex], site)
            for site in instance.sites[vertex]
            if arrangement.fits(vertex, site)
        ]
        if not rooms:
            complete = False
            break
        refinement.move(vertex, min(rooms)[2])
    if not complete or arrangement.overfull():
        for vertex in movable:
            refinement.move(vertex, before[vertex])
        return False
    return True


def _left(arrangement: Arrangement, vertex: int, site: int) -> int:
    instance = arrangement.instance
    return min(
        [
            instance.capacities[leaf] - arrangement.load[leaf] - part
            for leaf, part in instance.parts(instance.sizes[vertex], site)
        ]
    )
