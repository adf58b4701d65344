"""The order of moves: best gain first, and after each of them no leaf is fuller than it may be, or than it was.

A move whose place is still taken waits until another leaves it. If all that are left wait for each other (a swap,
a ring), one that is in the way goes to a third place first and on, or back, later: one whose leaving lets another in
at once, rather one that moves anyway, the smallest; where its memory need not follow, then where it costs least
meanwhile. Each container does so at most once. If none finds a third place, those moves are left out: two
containers are never squeezed into a place of one, not even for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance

#: (vertex, source, target, gain in CPU-seconds a second)
Step = tuple[int, int, int, float]


class _Order:
    def __init__(self, instance: Instance, present: Sequence[int], wanted: Sequence[int]) -> None:
        self.instance = instance
        self.wanted = wanted
        self.arrangement = Arrangement(instance, present)
        self.arrangement.limits = [max(pair) for pair in zip(instance.capacities, self.arrangement.load)]
        self.steps: list[Step] = []
        self.gains = {u: self._gain(u, wanted[u]) for u, (a, b) in enumerate(zip(present, wanted)) if a != b}
        self.heap = [(-gain, u) for u, gain in self.gains.items()]
        heapify(self.heap)
        #: Those that wait, by the leaves they wait for.
        self.waiting: dict[int, list[int]] = {}
        self.bounced: set[int] = set()

    def run(self) -> None:
        while True:
            while self.heap:
                worth, vertex = heappop(self.heap)
                # An entry whose gain is another by now has a successor in the heap.
                if self.gains.get(vertex) != -worth:
                    continue
                if self.arrangement.fits(vertex, self.wanted[vertex]):
                    self._make(vertex, self.wanted[vertex])
                else:
                    for leaf in self.instance.leaves[self.wanted[vertex]]:
                        self.waiting.setdefault(leaf, []).append(vertex)
            if not self.gains or not self._bounce():
                return

    def _make(self, vertex: int, site: int) -> None:
        instance, arrangement, gains = self.instance, self.arrangement, self.gains
        source, rows = arrangement.at[vertex], instance.rows
        self.steps.append((vertex, source, site, self._gain(vertex, site)))
        arrangement.move(vertex, site)
        if site == self.wanted[vertex]:
            gains.pop(vertex, None)
        else:
            gains[vertex] = self._gain(vertex, self.wanted[vertex])
            heappush(self.heap, (-gains[vertex], vertex))
        # 1. Its neighbours gain more or less now.
        for other, weight in instance.near[vertex]:
            if other in gains:
                here, there = rows[arrangement.at[other]], rows[self.wanted[other]]
                gains[other] += weight * (here[site] - here[source] - there[site] + there[source])
                heappush(self.heap, (-gains[other], other))
        # 2. Those that waited for its place try again.
        for leaf in instance.leaves[source]:
            for other in self.waiting.pop(leaf, ()):
                if other in gains:
                    heappush(self.heap, (-gains[other], other))

    def _bounce(self) -> bool:
        """Send one that is in the way to a third place. Whether one went."""
        instance, arrangement = self.instance, self.arrangement
        in_the_way = [
            (not self._enables(vertex), vertex not in self.gains, instance.sizes[vertex], vertex)
            for leaf in sorted(self.waiting)
            for site, leaves in enumerate(instance.leaves)
            if leaf in leaves
            for vertex in arrangement.members[site]
            if vertex not in self.bounced and instance.movable[vertex] and instance.sizes[vertex]
        ]
        for useless, bystander, _, vertex in sorted(in_the_way):
            if useless and bystander:
                continue
            here = arrangement.at[vertex]
            places = [
                (instance.migrated_bytes(vertex, here, site), -self._gain(vertex, site), site)
                for site in instance.sites[vertex]
                if site not in (here, self.wanted[vertex]) and arrangement.fits(vertex, site)
            ]
            if places:
                self.bounced.add(vertex)
                self._make(vertex, min(places)[2])
                return True
        return False

    def _enables(self, vertex: int) -> bool:
        """Whether one of those that wait could come at once if this one left."""
        instance, arrangement = self.instance, self.arrangement
        for leaf, part in instance.parts(instance.sizes[vertex], arrangement.at[vertex]):
            room = arrangement.limits[leaf] - arrangement.load[leaf] + part
            for other in self.waiting.get(leaf, ()):
                if other != vertex and other in self.gains and instance.sizes[other] <= room:
                    return True
        return False

    def _gain(self, vertex: int, site: int) -> float:
        at, rows = self.arrangement.at, self.instance.rows
        here, there = rows[at[vertex]], rows[site]
        return sum(
            [weight * (here[at[other]] - there[at[other]]) for other, weight in self.instance.near[vertex]]
        )


def ordered(instance: Instance, present: Sequence[int], wanted: Sequence[int]) -> list[Step]:
    """The moves that lead from one placement to another, as far as they can be made. None is nowhere."""
    order = _Order(instance, present, wanted)
    order.run()
    return order.steps
