"""A placement that is being worked on: where every vertex is, and how full that makes the leaves.

Its rule: a change ``fits`` if no leaf is fuller afterwards than it may be, or than it was, and no declared pair is kept
worse than at present, or than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from policies.affinity.planner.instance import Instance


class Arrangement:
    """Lists by vertex: ``at`` (site, -1 = nowhere); by leaf: ``load`` (micro-CPUs); by L3: ``fetched`` (lines a second);
    by site: ``members``."""

    def __init__(self, instance: Instance, at: Sequence[int]) -> None:
        self.instance = instance
        self.at = [-1] * len(at)
        self.load = [0] * len(instance.capacities)
        self.fetched = [0] * instance.caches
        #: How full leaves may become, in micro-CPUs.
        self.limits = instance.capacities
        # Dictionaries as ordered sets: the order in which members came is the same in every run.
        self.members: list[dict[int, None]] = [{} for _ in instance.leaves]
        for vertex, site in enumerate(at):
            if site >= 0:
                self.move(vertex, site)

    def move(self, vertex: int, site: int) -> None:
        """Put a vertex somewhere else; -1 takes it out."""
        instance, load = self.instance, self.load
        size, source = instance.sizes[vertex], self.at[vertex]
        if source >= 0:
            del self.members[source][vertex]
            for leaf, part in instance.parts(size, source):
                load[leaf] -= part
        if site >= 0:
            self.members[site][vertex] = None
            for leaf, part in instance.parts(size, site):
                load[leaf] += part
        if fills := instance.fills[vertex]:
            for place, sign in ((source, -1), (site, 1)):
                for cache, lines in instance.fill_parts(fills, place) if place >= 0 else ():
                    self.fetched[cache] += sign * lines
        self.at[vertex] = site

    def fits(self, vertex: int, site: int) -> bool:
        """Whether a vertex can go to a site."""
        if self.instance.held[vertex] and not self.keeps(((vertex, site),)):
            return False
        leaf = self.instance.single[site]
        source = self.at[vertex]
        if leaf >= 0 and (source < 0 or self.instance.single[source] >= 0):
            size = self.instance.sizes[vertex]
            return not size or source == site or self.load[leaf] + size <= self.limits[leaf]
        return self.allows(((vertex, site),))

    def allows(self, moves: Sequence[tuple[int, int]]) -> bool:
        """Whether several moves fit when they are made at once."""
        if self.instance.holding and not self.keeps(moves):
            return False
        limits, load = self.limits, self.load
        changes = self._changes(moves)
        return all(change <= 0 or load[leaf] + change <= limits[leaf] for leaf, change in changes.items())

    def keeps(self, moves: Iterable[tuple[int, int]]) -> bool:
        """Whether several moves at once leave each declared pair kept as well as before (as at present, if one was
        nowhere)."""
        at, held, then = self.at, self.instance.held, dict(moves)
        for vertex, site in then.items():
            here = at[vertex]
            for other, _, faults, most in held[vertex]:
                there = at[other]
                target = then.get(other, there)
                limit = faults[here][there] if here >= 0 and there >= 0 else most
                if target >= 0 and faults[site][target] > limit:
                    return False
        return True

    def keeps_all(self) -> bool:
        """Whether each declared pair is kept as well as at present."""
        return all(fault <= most for fault, _, most in self._faults())

    def broken(self) -> int:
        """How badly all declared pairs are kept, by their weights; 0 = each is."""
        return sum([fault * weight for fault, weight, _ in self._faults()])

    def broken_at(self, vertex: int, site: int) -> int:
        """The same of the pairs of one vertex, were it at a site."""
        at = self.at
        return sum(
            [
                weight * faults[site][at[o]]
                for o, weight, faults, _ in self.instance.held[vertex]
                if at[o] >= 0
            ]
        )

    def _faults(self) -> list[tuple[int, int, int]]:
        at = self.at
        return [
            (faults[at[u]][at[other]], weight, most)
            for u in self.instance.holding
            for other, weight, faults, most in self.instance.held[u]
            if u < other and at[u] >= 0 and at[other] >= 0
        ]

    def on(self, leaves: Iterable[int]) -> list[int]:
        """The vertices of the sites that have one of these leaves, by site."""
        touched = frozenset(leaves)
        return [
            vertex
            for site, members in enumerate(self.members)
            if members and not touched.isdisjoint(self.instance.leaves[site])
            for vertex in members
        ]

    def pull_of(self, vertices: Iterable[int]) -> dict[int, float]:
        """By site: the weight between these and the vertices there."""
        at, near = self.at, self.instance.near
        pull: dict[int, float] = {}
        for vertex in vertices:
            for other, weight in near[vertex]:
                there = at[other]
                if there >= 0:
                    pull[there] = pull.get(there, 0.0) + weight
        return pull

    def crowding_row(
        self, fills: int, source: int = -1, sites: Optional[Iterable[int]] = None
    ) -> list[float]:
        """The cost of each site by so many lines a second there, beside what the others fetch; ``source``: the site that
        they are at now. ``sites``: those that are asked about, 0 for the others; None: all."""
        instance, fetched = self.instance, list(self.fetched)
        for cache, lines in instance.fill_parts(fills, source) if source >= 0 else ():
            fetched[cache] -= lines
        costs = [instance.crowding(each) for each in fetched]
        row = [0.0] * len(instance.rows)
        for site in range(len(row)) if sites is None else sites:
            row[site] = sum(
                [
                    instance.crowding(fetched[cache] + lines) - costs[cache]
                    for cache, lines in instance.fill_parts(fills, site)
                ]
            )
        return row

    def crowding_change(self, moves: Iterable[tuple[int, int]]) -> float:
        """How much several moves at once would change what crowding costs."""
        instance, fetched = self.instance, self.fetched
        changes: dict[int, int] = {}
        for vertex, site in moves:
            fills = instance.fills[vertex]
            for place, sign in ((self.at[vertex], -1), (site, 1)) if fills else ():
                for cache, lines in instance.fill_parts(fills, place) if place >= 0 else ():
                    changes[cache] = changes.get(cache, 0) + sign * lines
        return sum(
            [
                instance.crowding(fetched[cache] + change) - instance.crowding(fetched[cache])
                for cache, change in changes.items()
            ]
        )

    def excess(self) -> int:
        """Micro-CPUs above the capacities of leaves, in all."""
        return sum([max(0, load - most) for load, most in zip(self.load, self.instance.capacities)])

    def excess_change(self, moves: Iterable[tuple[int, int]]) -> int:
        """How much several moves at once would change the excess."""
        capacities, load = self.instance.capacities, self.load
        return sum(
            [
                max(0, load[leaf] + change - capacities[leaf]) - max(0, load[leaf] - capacities[leaf])
                for leaf, change in self._changes(moves).items()
            ]
        )

    def overfull(self) -> list[int]:
        """The leaves that are fuller than they may be."""
        return [leaf for leaf, load in enumerate(self.load) if load > self.instance.capacities[leaf]]

    def _changes(self, moves: Iterable[tuple[int, int]]) -> dict[int, int]:
        instance = self.instance
        changes: dict[int, int] = {}
        for vertex, site in moves:
            size, source = instance.sizes[vertex], self.at[vertex]
            if source >= 0:
                for leaf, part in instance.parts(size, source):
                    changes[leaf] = changes.get(leaf, 0) - part
            for leaf, part in instance.parts(size, site):
                changes[leaf] = changes.get(leaf, 0) + part
        return changes
