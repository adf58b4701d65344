"""A problem made ready for loops: plain lists by index, distances between sites in seconds, loads in whole numbers.

There is no networkx here, as it is too slow for it: with 1,000 containers and 6,000 edges a ``networkx.Graph`` takes
7 ms to build and 3.5 ms to read once, these lists 0.9 ms, and a plan reads them a dozen times (``bench.affinity``
measures it again). The benchmark, which has the time, uses it.

A container's demand is spread over the leaves of its site in proportion to their capacities, in millionths of a CPU
and rounded up, so that sums are exact whatever their order. A leaf that a fixed demand overfills stays so. The lines that
it fetches past its L3 are spread over the L3s of its site in the same way, and so is it itself, as a protected or a batch
container. These three are in one whole number (``fills``, of an L3 ``fetched``), so that they are added in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from policies.affinity.planner.problem import Problem, Vertex
from policies.model import BATCH, PROTECTED

NANOSECOND = 1e-9
#: Micro-CPUs in a milli-CPU.
_MICRO = 1000
#: What a container counts at least when clusters are made: those without a request are no free ride.
LEAST_SIZE = 10 * _MICRO
#: The units of the three sums in one number: lines a second, thousandths of protected containers, and of batch ones.
_WHOLE = 1000
_PROTECTED, _BATCH = 1 << 48, 1 << 80
_MOST = _BATCH // _PROTECTED
_UNITS = {PROTECTED: _WHOLE * _PROTECTED, BATCH: _WHOLE * _BATCH}
#: How far from being in one L3 two sites can be: not at all, in one NUMA node, in one socket, in none.
_STEPS_APART = 3


class Held(NamedTuple):
    """What is declared for a vertex and an ``other`` one. ``faults``: by both sites, how badly it is kept there, 0 = it is;
    ``most``: as badly as it is kept at present."""

    other: int
    weight: int
    faults: list[list[int]]
    most: int


class Instance:
    """One problem. Lists by vertex: ``sizes``, ``sites`` (those it may have), ``near`` (neighbour, lines a second);
    by site: ``rows`` (distance in seconds to every site), ``leaves``, ``single`` (its only leaf, or -1);
    by leaf: ``capacities``. ``connected``: vertices with edges, or with fills; ``movable``: those with a choice.
    ``held``: by vertex, its declared pairs; ``holding``: vertices with some; ``parted``: pairs that are to be apart;
    ``bound``: vertices required to be near another, which plans move alone or not at all.

    ``fills``: by vertex, lines a second past its L3, 0 where containers do not push each other apart, with what it is to
    others; ``filling``: those with some; ``caches``: how many L3s there are; ``repel_s``: what each line beyond saturation
    costs; ``most_crowding``: what crowding could cost at most."""

    def __init__(self, problem: Problem, fine: Optional[Instance] = None) -> None:
        """``fine``: one of the same problem, of which this is to be a coarser one (``merged``)."""
        if fine is not None:
            self._share(fine)
            return
        _check(problem)
        self.problem = problem
        tree, settings = problem.tree, problem.settings
        self.capacities = [leaf.capacity_milli * _MICRO for leaf in tree.leaves]
        self.leaves = [site.leaves for site in tree.sites]
        self.single = [leaves[0] if len(leaves) == 1 else -1 for leaves in self.leaves]
        self._shares = [self._shares_of(leaves) for leaves in self.leaves]
        self.rows = self._distances()
        self.nodes = [frozenset([tree.leaves[leaf].node for leaf in site]) for site in self.leaves]
        self.sizes = [vertex.milli * _MICRO for vertex in problem.vertices]
        allowed: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.sites = [
            allowed.setdefault(sites, sites)
            for sites in [self._sites_of(vertex, settings.max_migrated_bytes) for vertex in problem.vertices]
        ]
        self.movable = [len(sites) > 1 for sites in self.sites]
        self.near: list[list[tuple[int, float]]] = [[] for _ in problem.vertices]
        for a, b, weight in problem.edges:
            self.near[a].append((b, weight))
            self.near[b].append((a, weight))
        self.repel_s = settings.repel_ns * NANOSECOND
        self.meets = problem.has_meetings and settings.meeting_cpus > 0
        self.fills = [
            (vertex.fills if self.repel_s else 0) + (_UNITS.get(vertex.isolation, 0) if self.meets else 0)
            for vertex in problem.vertices
        ]
        self._connect()
        numbers = [leaf.cache if leaf.cache >= 0 else (-1, index) for index, leaf in enumerate(tree.leaves)]
        number_of = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
        self.caches = len(number_of)
        self.meeting_cpus = settings.meeting_cpus
        self.most_crowding = self.repel_s * sum([vertex.fills for vertex in problem.vertices])
        if self.meets:
            met = sum([vertex.isolation == PROTECTED for vertex in problem.vertices])
            self.most_crowding += met * self.meeting_cpus
        self._cache_shares = [
            self._summed(shares, [number_of[each] for each in numbers]) for shares in self._shares
        ]
        self.caches_of = [frozenset([cache for cache, _ in shares]) for shares in self._cache_shares]
        self._fill_parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._farthest = max([max(row) for row in self.rows])
        self.held: list[list[Held]] = [[] for _ in problem.vertices]
        self.parted = [(pair.a, pair.b) for pair in problem.held if not pair.is_near]
        self.bound = frozenset([end for pair in problem.held if pair.is_near for end in (pair.a, pair.b)])
        if problem.held:
            self._hold()
        self.holding = [u for u, held in enumerate(self.held) if held]

    def merged(self, members: Sequence[Sequence[int]], free: frozenset[int]) -> tuple[Instance, list[int]]:
        """The same with vertices merged, and by vertex its merged one; ``free``: the movable ones.

        Vertices of one group have the same sites, or stay where they are. It has all that an arrangement and a
        refinement read; its problem is still the one of single vertices.
        """
        owner = [0] * len(self.sizes)
        for number, group in enumerate(members):
            for vertex in group:
                owner[vertex] = number
        near: list[dict[int, float]] = [{} for _ in members]
        for a, b, weight in self.problem.edges:
            one, other = owner[a], owner[b]
            if one != other:
                near[one][other] = near[other][one] = near[one].get(other, 0.0) + weight
        coarse = Instance(self.problem, self)
        coarse.sizes = [sum([self.sizes[vertex] for vertex in group]) for group in members]
        coarse.sites = [self.sites[group[0]] for group in members]
        coarse.movable = [group[0] in free and self.movable[group[0]] for group in members]
        coarse.near = [list(each.items()) for each in near]
        coarse.fills = [sum([self.fills[vertex] for vertex in group]) for group in members]
        coarse.held = [[] for _ in members]
        for u in self.holding:
            for held in self.held[u]:
                if owner[u] != owner[held.other]:
                    coarse.held[owner[u]].append(held._replace(other=owner[held.other]))
        coarse.holding = [u for u, each in enumerate(coarse.held) if each]
        coarse._connect()
        return coarse, owner

    def without_meetings(self) -> Instance:
        """The same where no classes are to be kept apart."""
        vertices = [replace(vertex, isolation="") for vertex in self.problem.vertices]
        return Instance(replace(self.problem, vertices=tuple(vertices)))

    def parts(self, size: int, site: int) -> list[tuple[int, int]]:
        """The charges of a demand at a site: (leaf, micro-CPUs)."""
        known = self._parts.get((size, site))
        if known is None:
            shares = self._shares[site]
            total = sum([share for _, share in shares])
            known = [(leaf, -(-size * share // total)) for leaf, share in shares]
            self._parts[size, site] = known
        return known

    def fill_parts(self, fills: int, site: int) -> list[tuple[int, int]]:
        """Lines fetched past the L3s of a site by its vertices: (L3, lines a second)."""
        known = self._fill_parts.get((fills, site))
        if known is None:
            shares = self._cache_shares[site]
            total = sum([share for _, share in shares])
            if fills < _PROTECTED:
                known = [(cache, -(-fills * share // total)) for cache, share in shares]
            else:
                counts = [
                    (1, fills % _PROTECTED),
                    (_PROTECTED, fills // _PROTECTED % _MOST),
                    (_BATCH, fills // _BATCH),
                ]
                known = [
                    (cache, sum([unit * -(-count * share // total) for unit, count in counts]))
                    for cache, share in shares
                ]
            self._fill_parts[fills, site] = known
        return known

    def crowding(self, fetched: int) -> float:
        """The cost of an L3 that fetches so many lines a second, and of those that meet in it, in CPU-seconds a second.

        Batch containers share one part of it, so that the second one takes less from the protected ones than the first: few
        L3s with many cost less than many with few.
        """
        if fetched < _PROTECTED:
            return self.repel_s * max(0, fetched - self.problem.settings.saturated_fills)
        cost, batch = 0.0, fetched // _BATCH
        if batch:
            protected = fetched // _PROTECTED % _MOST
            cost = self.meeting_cpus * protected / _WHOLE * batch / (batch + _WHOLE)
        if self.repel_s:
            cost += self.repel_s * max(0, fetched % _PROTECTED - self.problem.settings.saturated_fills)
        return cost

    def cost(self, at: Sequence[int]) -> float:
        """CPU-seconds a second of a placement; 0 = the best there could be.

        Neighbours cost their weight times distance. A pair that is to be apart costs what it lacks of the greatest
        distance, so that no cost is negative. What an L3 fetches beyond saturation costs too. Vertices that are nowhere
        (-1) cost nothing.
        """
        rows, farthest = self.rows, self._farthest
        total = 0.0
        for a, b, weight in self.problem.edges:
            if at[a] >= 0 and at[b] >= 0:
                distance = rows[at[a]][at[b]]
                total += weight * distance if weight > 0 else -weight * (farthest - distance)
        return total + self._crowding_of(at) if self.filling else total

    def migrated_bytes(self, vertex: int, source: int, target: int) -> float:
        """The memory that would follow a vertex: none inside its NUMA nodes, else the part that is to be on new ones."""
        memory = self.problem.vertices[vertex].memory_bytes
        new = self.nodes[target] - self.nodes[source]
        return memory * len(new) / len(self.nodes[target]) if memory and new else 0.0

    def move_cost(self, vertex: int, source: int, target: int) -> float:
        """CPU-seconds of one move: the cache that is filled again, and the memory that follows."""
        if source < 0 or source == target:
            return 0.0
        settings = self.problem.settings
        moved = settings.refill_bytes + self.migrated_bytes(vertex, source, target)
        return moved / settings.migration_bytes_per_s

    def least_worth(self) -> float:
        """CPU-seconds a second that any moved container must be worth: ``kappa`` of the mean container's traffic, one
        step away, and ``least_gain`` at least. It does not depend on the placement: what did not pay yesterday does not
        pay after a better plan."""
        settings = self.problem.settings
        talking = sum([bool(near) for near in self.near])
        if not talking:
            return settings.least_gain if self.filling else 0.0
        distances = self.problem.tree.distance_ns
        step = NANOSECOND * min([d for row in distances for d in row if d > 0], default=0.0)
        volume = sum([abs(weight) for _, _, weight in self.problem.edges]) / talking
        return max(settings.least_gain, settings.kappa * volume * step)

    def _share(self, fine: Instance) -> None:
        """All that does not follow from its vertices."""
        self.problem, self.repel_s = fine.problem, fine.repel_s
        self.meets, self.meeting_cpus = fine.meets, fine.meeting_cpus
        self.most_crowding, self.caches_of = fine.most_crowding, fine.caches_of
        self.capacities, self.leaves, self.single, self._shares = (
            fine.capacities,
            fine.leaves,
            fine.single,
            fine._shares,
        )
        self.rows, self.nodes, self._farthest = fine.rows, fine.nodes, fine._farthest
        self.caches, self._cache_shares = fine.caches, fine._cache_shares
        self._parts, self._fill_parts = fine._parts, fine._fill_parts
        self.parted, self.bound = fine.parted, fine.bound

    def _hold(self) -> None:
        """Each declared pair at both of its ends."""
        tree = self.problem.tree.leaves
        boxes = [
            (
                frozenset([tree[leaf].cache if tree[leaf].cache >= 0 else -1 - leaf for leaf in site]),
                nodes,
                frozenset([tree[leaf].socket for leaf in site]),
            )
            for site, nodes in zip(self.leaves, self.nodes)
        ]
        # By both sites: the first of L3, NUMA node and socket that they have in common.
        steps = [
            [
                next((i for i, (a, b) in enumerate(zip(mine, theirs)) if not a.isdisjoint(b)), _STEPS_APART)
                for theirs in boxes
            ]
            for mine in boxes
        ]
        together = [[int(not step) for step in row] for row in steps]
        for pair in self.problem.held:
            faults = steps if pair.is_near else together
            here, there = self.problem.vertices[pair.a].at, self.problem.vertices[pair.b].at
            most = faults[here][there] if here >= 0 and there >= 0 else 0
            self.held[pair.a].append(Held(pair.b, pair.weight, faults, most))
            self.held[pair.b].append(Held(pair.a, pair.weight, faults, most))

    def _connect(self) -> None:
        self.filling = [u for u, fills in enumerate(self.fills) if fills]
        self.connected = [u for u, near in enumerate(self.near) if near or self.fills[u]]

    def _crowding_of(self, at: Sequence[int]) -> float:
        fetched = [0] * self.caches
        for u in self.filling:
            for cache, part in self.fill_parts(self.fills[u], at[u]) if at[u] >= 0 else ():
                fetched[cache] += part
        return sum([self.crowding(each) for each in fetched])

    def _sites_of(self, vertex: Vertex, most_bytes: int) -> tuple[int, ...]:
        if vertex.at < 0 or vertex.memory_bytes <= most_bytes:
            return vertex.sites
        return tuple([site for site in vertex.sites if self.nodes[site] <= self.nodes[vertex.at]])

    def _shares_of(self, leaves: tuple[int, ...]) -> list[tuple[int, int]]:
        shares = [(leaf, self.capacities[leaf]) for leaf in leaves]
        # Where nothing is left to spread over, what must be there is spread evenly.
        return shares if any(share for _, share in shares) else [(leaf, 1) for leaf in leaves]

    @staticmethod
    def _summed(shares: Sequence[tuple[int, int]], cache_of: Sequence[int]) -> list[tuple[int, int]]:
        """The shares of leaves as those of the L3s that they are in."""
        sums: dict[int, int] = {}
        for leaf, share in shares:
            sums[cache_of[leaf]] = sums.get(cache_of[leaf], 0) + share
        return list(sums.items())

    def _distances(self) -> list[list[float]]:
        matrix = self.problem.tree.distance_ns
        weights = []
        for shares in self._shares:
            total = sum([share for _, share in shares])
            weights.append([(leaf, share / total) for leaf, share in shares])
        # In two steps, from every site to every leaf first: sites are many on large machines.
        to_leaf = [
            [sum([share * matrix[leaf][other] for leaf, share in mine]) for other in range(len(matrix))]
            for mine in weights
        ]
        return [
            [NANOSECOND * sum([share * row[leaf] for leaf, share in theirs]) for theirs in weights]
            for row in to_leaf
        ]


def _check(problem: Problem) -> None:
    sites, leaves, count = len(problem.tree.sites), len(problem.tree.leaves), len(problem.vertices)
    if not sites or len(problem.tree.distance_ns) != leaves:
        raise ValueError(
            f"the tree has {sites} sites, {leaves} leaves and {len(problem.tree.distance_ns)} rows of distances; "
            "expected sites, and a row for each leaf"
        )
    for vertex in problem.vertices:
        if not vertex.sites or not all(0 <= site < sites for site in vertex.sites):
            raise ValueError(
                f"container {vertex.key!r} may be at {vertex.sites}; expected sites from 0 to {sites - 1}"
            )
        if vertex.at != -1 and vertex.at not in vertex.sites:
            raise ValueError(
                f"container {vertex.key!r} is at site {vertex.at}; expected one of its {vertex.sites}, or -1"
            )
    for a, b, _ in problem.edges:
        if not (0 <= a < count and 0 <= b < count and a != b):
            raise ValueError(f"edge ({a}, {b}) is not between two of the {count} containers")
