"""Refinement by moves, swaps and chains of two, until nothing of it is worth while.

After Fiduccia and Mattheyses (DAC 1982): vertices move one at a time, by gain, and only the neighbours of a vertex
that moved are looked at again. Where the better place is full, a vertex goes there if another one leaves: for the
first one's place (Kernighan and Lin's swap) or, in a ``deep`` search, for any place that has room (an ejection).

Minimised is the cost of communication and crowding plus a ``bias`` for each vertex and site: what being there
costs by itself, as the price of a move is. Leaves never become fuller than they may be, or were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Optional

from policies.affinity.planner.arrangement import Arrangement

#: Better places of a vertex that are full, for which partners are looked for.
_PLACES_TRIED = 3

#: To see which L3s a container would meet others in, in units of work.
_WORK_OF_MEETINGS = 10

Move = tuple[int, int]


class Refinement:
    """Work on one arrangement. ``bias``: by vertex a row by site; ``least``: a gain that counts, above rounding.

    ``work`` counts what takes the time: places of neighbours looked at, and partners for swaps. ``gained``: by how
    much all moves made it better. ``journal``: the moves, as (vertex, where it was), for ``undo``.
    """

    def __init__(
        self, arrangement: Arrangement, bias: Sequence[Sequence[float]], least: float, deep: bool = False
    ) -> None:
        self.arrangement = arrangement
        self.bias = bias
        self.least = least
        self.deep = deep
        self.work = 0
        self.gained = 0.0
        self.journal: list[Move] = []
        #: Rows of large machines take longer.
        self._width = 1 + len(arrangement.instance.rows) // 32
        self._rows: list[Optional[list[float]]] = [None] * len(arrangement.at)
        self._fills = arrangement.instance.fills

    def run(self, vertices: Iterable[int], most_work: int) -> None:
        """Improve, these vertices first and then the ones touched."""
        instance = self.arrangement.instance
        queue = deque([vertex for vertex in vertices if instance.movable[vertex]])
        waiting = [False] * len(instance.near)
        for vertex in queue:
            waiting[vertex] = True
        end = self.work + most_work
        while queue and self.work < end:
            vertex = queue.popleft()
            waiting[vertex] = False
            moves = self._best(vertex)
            sources = {moved: self.arrangement.at[moved] for moved, _ in moves}
            for moved, site in moves:
                self.move(moved, site)
            for moved, site in moves:
                others = self._crowded_by(moved, sources[moved], site)
                for other in [moved, *[neighbour for neighbour, _ in instance.near[moved]], *others]:
                    if not waiting[other] and instance.movable[other]:
                        waiting[other] = True
                        queue.append(other)

    def _crowded_by(self, vertex: int, source: int, target: int) -> Iterable[int]:
        """Those for which a place may be better now that a vertex has moved, by what it fetches or is to others."""
        instance, members = self.arrangement.instance, self.arrangement.members
        if not instance.fills[vertex]:
            return ()
        if not instance.meets:
            return instance.filling
        beside = [*(members[source] if source >= 0 else ()), *members[target]]
        return [other for other in beside if instance.fills[other]]

    def move(self, vertex: int, site: int) -> None:
        """Move a vertex, worth while or not."""
        here = self.arrangement.at[vertex]
        row = self.row(vertex)
        self.gained += (row[here] if here >= 0 else 0.0) - (row[site] if site >= 0 else 0.0)
        self.journal.append((vertex, here))
        self._put(vertex, site)

    def undo(self, count: int) -> None:
        """Take back all moves but the first ``count`` ones."""
        while len(self.journal) > count:
            self._put(*self.journal.pop())

    def _put(self, vertex: int, site: int) -> None:
        self.arrangement.move(vertex, site)
        rows = self._rows
        for other, _ in self.arrangement.instance.near[vertex]:
            rows[other] = None

    def row(self, vertex: int) -> list[float]:
        """The cost of each site for a vertex while all others stay: the weight and distance of neighbours, the bias, and the
        lines it makes L3s fetch beyond saturation."""
        known = self._rows[vertex]
        if known is None:
            known = self._still_row(vertex)
        fills = self._fills[vertex]
        if not fills:
            return known
        instance, here = self.arrangement.instance, self.arrangement.at[vertex]
        if not instance.meets:
            self.work += 1 + self._width
            crowding = self.arrangement.crowding_row(fills, here)
        else:
            sites = instance.sites[vertex] if here < 0 else (here, *instance.sites[vertex])
            self.work += _WORK_OF_MEETINGS + len(sites) // 2
            crowding = self.arrangement.crowding_row(fills, here, sites)
        return [cost + more for cost, more in zip(known, crowding)]

    def _still_row(self, vertex: int) -> list[float]:
        """The same without crowding: it holds until a neighbour moves."""
        distances = self.arrangement.instance.rows
        pull = self.arrangement.pull_of((vertex,))
        self.work += 1 + len(pull) * self._width
        row = list(self.bias[vertex])
        for there, weight in pull.items():
            row = [cost + weight * distance for cost, distance in zip(row, distances[there])]
        self._rows[vertex] = row
        return row

    def _best(self, vertex: int) -> list[Move]:
        """The best change that begins with this vertex: moves to make at once."""
        self.work += 1
        arrangement = self.arrangement
        row, here = self.row(vertex), arrangement.at[vertex]
        most = row[here] - self.least
        better = [(row[site], site) for site in arrangement.instance.sites[vertex] if row[site] < most]
        if not better:
            return []
        better.sort()
        best_gain = 0.0
        best_moves: list[Move] = []
        for tried, (cost, site) in enumerate(better):
            gain = row[here] - cost
            if gain <= best_gain or (tried >= _PLACES_TRIED and best_moves):
                break
            if arrangement.fits(vertex, site):
                return [(vertex, site)]
            if tried < _PLACES_TRIED:
                chain_gain, moves = self._chain(vertex, site, gain)
                if chain_gain > best_gain:
                    best_gain, best_moves = chain_gain, moves
        return best_moves

    def _chain(self, vertex: int, site: int, gain: float) -> tuple[float, list[Move]]:
        """The vertex that should leave a full site so that ``vertex``, which gains by it, can come."""
        arrangement = self.arrangement
        instance, here = arrangement.instance, arrangement.at[vertex]
        sizes, capacities, load = instance.sizes, instance.capacities, arrangement.load
        tied = dict(instance.near[vertex])
        leaf, own = instance.single[site], instance.single[here]
        both_single = leaf >= 0 and own >= 0
        needed = load[leaf] + sizes[vertex] - capacities[leaf] if both_single else 0
        room = capacities[own] - load[own] + sizes[vertex] if both_single else 0
        rows = instance.rows
        best_gain = self.least
        best_moves: list[Move] = []
        for other in arrangement.members[site]:
            if not instance.movable[other] or (both_single and sizes[other] < needed):
                continue
            self.work += 1
            row, weight = self.row(other), tied.get(other, 0.0)
            for target in instance.sites[other] if self.deep else (here,):
                if target == site or target not in instance.sites[other]:
                    continue
                # With the first one gone, a tie between the two is longer or shorter than the rows say.
                left = weight * (rows[site][target] - rows[here][target] + rows[site][here])
                total = gain + row[site] - row[target] - left + weight * rows[site][site]
                if instance.fills[vertex] and instance.fills[other]:
                    total += self._crowded_together((vertex, site), (other, target))
                if total <= best_gain:
                    continue
                if target == here and both_single:
                    fits = sizes[other] <= room and (
                        not instance.holding or arrangement.keeps(((other, target), (vertex, site)))
                    )
                else:
                    fits = arrangement.allows(((other, target), (vertex, site)))
                if fits:
                    best_gain, best_moves = total, [(other, target), (vertex, site)]
        return (best_gain, best_moves) if best_moves else (0.0, [])

    def _crowded_together(self, one: Move, other: Move) -> float:
        """By how much two moves at once crowd L3s less than the sum of what each does by itself."""
        change = self.arrangement.crowding_change
        return change((one,)) + change((other,)) - change((one, other))
