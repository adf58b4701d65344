"""A placement made coarse first: clusters of containers are divided along the tree, and refined as they are opened again.

Multilevel partitioning after Karypis and Kumar (A fast and high quality multilevel scheme for partitioning irregular
graphs, SIAM J. Sci. Comput. 20(1), 1998): heavy edges are merged level by level (``Clustering``), the coarsest graph is
divided by recursive bisection (sockets, then NUMA nodes, then L3s), grown greedily and improved by passes that go on
through losses (Fiduccia and Mattheyses, DAC 1982), and every level is refined on the way back by the planner's own
moves. Two placements are combined as KaFFPaE does (Sanders and Schulz, ALENEX 2012): what both have together is not
taken apart, so that the better one is refined by moves of whole clusters, and never becomes worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Optional

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.assign import Clustering, least_overfull, usual_leaf
from policies.affinity.planner.instance import LEAST_SIZE, Instance
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.repair import repair, restore


class Chance:
    """A fixed sequence of numbers: Knuth's MMIX generator."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2862933555777941757 + 3037000493) % (1 << 64)

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) * count >> 31


#: Clusters grow by this factor from level to level.
_GROWTH = 2.0
#: Bisections of a box, of which the best is taken; passes over each, and moves of one without a new best.
_TRIES, _PASSES, _STALLED = 4, 4, 30
#: The part of the room left over on both sides that one of them may have beyond its share.
_SLACK = 0.4
#: In units of work, as refinement counts it: to merge along an edge.
_WORK_OF_AN_EDGE = 3

#: By vertex, a row by site.
Bias = Sequence[Sequence[float]]


class Level(NamedTuple):
    """One coarse graph. ``owner``: by container, its vertex here; ``members``: by vertex, its containers."""

    instance: Instance
    owner: list[int]
    members: list[list[int]]


def divided(
    instance: Instance,
    at: Sequence[int],
    vertices: Sequence[int],
    largest: float,
    exponent: float,
    chance: Chance,
    most_work: int,
) -> tuple[list[int], int]:
    """A placement of ``vertices`` made anew around the others, which stay ``at``; and the work that it took.

    ``largest``: the part of an L3 that a cluster of the coarsest graph may have; ``exponent``: see ``Clustering``.
    """
    levels, spent = _coarsened(instance, at, vertices, largest, exponent, [()] * len(at))
    coarsest = levels[-1]
    free = set(vertices)
    start = [-1 if members[0] in free else at[members[0]] for members in coarsest.members]
    bisection = _Bisection(coarsest.instance, start, chance)
    bisection.run()
    placed = [bisection.at[owner] for owner in coarsest.owner]
    result, more = _refined(levels, placed, None, most_work)
    return result, spent + bisection.work + more


def combined(
    instance: Instance,
    at: Sequence[int],
    other: Sequence[int],
    vertices: Sequence[int],
    bias: Bias,
    most_work: int,
) -> tuple[list[int], int]:
    """The placement ``at`` refined by moves of clusters that it and the ``other`` have together; and the work."""
    levels, spent = _coarsened(instance, at, vertices, 1.0, 0.5, list(zip(at, other)))
    result, more = _refined(levels, at, bias, most_work)
    return result, spent + more


def _coarsened(
    instance: Instance,
    at: Sequence[int],
    vertices: Sequence[int],
    largest: float,
    exponent: float,
    label: Sequence[tuple[int, ...]],
) -> tuple[list[Level], int]:
    """Coarser and coarser graphs, and the work. Only containers of one label with the same sites are merged; those that
    are not among ``vertices`` are one fixed vertex for each site."""
    rank = {vertex: index for index, vertex in enumerate(vertices)}
    sites = instance.sites
    edges = [
        (rank[a], rank[b], weight)
        for a, b, weight in instance.problem.edges
        if a in rank and b in rank and label[a] == label[b] and sites[a] is sites[b]
    ]
    sizes = [max(LEAST_SIZE, instance.sizes[vertex]) for vertex in vertices]
    clustering = Clustering(sizes, edges, exponent)
    clustering.part([(rank[a], rank[b]) for a, b in instance.parted if a in rank and b in rank])
    staying: dict[int, list[int]] = {}
    for vertex, site in enumerate(at):
        if vertex not in rank:
            staying.setdefault(site, []).append(vertex)
    # 1. From clusters of two or so on, by a factor, up to the largest.
    limits = [usual_leaf(instance) * largest]
    while limits[-1] > 1.5 * _GROWTH * sum(sizes) / len(sizes):
        limits.append(limits[-1] / _GROWTH)
    levels = []
    for limit in reversed(limits):
        clustering.merge(int(limit))
        members = [
            [vertices[member] for member in clustering.members[cluster]] for cluster in clustering.alive()
        ]
        members += staying.values()
        coarse, owner = instance.merged(members, frozenset(rank))
        levels.append(Level(coarse, owner, members))
    return levels, _WORK_OF_AN_EDGE * (len(edges) + len(at)) * len(levels)


def _refined(
    levels: Sequence[Level], at: Sequence[int], bias: Optional[Bias], most_work: int
) -> tuple[list[int], int]:
    """A placement refined from the coarsest graph to the finest, in which clusters are together; and the work."""
    result, spent = list(at), 0
    nothing = [0.0] * len(levels[0].instance.rows)
    for instance, owner, members in reversed(levels):
        rows: Bias = [
            nothing if bias is None else [sum(column) for column in zip(*[bias[u] for u in each])]
            for each in members
        ]
        refinement = Refinement(
            Arrangement(instance, [result[each[0]] for each in members]), rows, 1e-15, deep=True
        )
        repair(refinement)
        restore(refinement)
        refinement.run(instance.connected, max(0, most_work - spent))
        spent += refinement.work
        result = [refinement.arrangement.at[vertex] for vertex in owner]
    return result, spent


class _Bisection:
    """Vertices that are nowhere (-1) divided among the leaves. ``at``: the result; ``work``: its steps."""

    def __init__(self, instance: Instance, at: Sequence[int], chance: Chance) -> None:
        self.instance = instance
        self.at = list(at)
        self.chance = chance
        self.work = 0
        load = Arrangement(instance, at).load
        self.room = [max(0, most - taken) for most, taken in zip(instance.capacities, load)]
        self.site_of = {leaf: site for site, leaf in reversed(list(enumerate(instance.single))) if leaf >= 0}

    def run(self) -> None:
        """Divide them all."""
        nowhere = [vertex for vertex, site in enumerate(self.at) if site < 0]
        self._divide(nowhere, sorted(self.site_of))
        # A leaf that a vertex may not have is no place for it.
        astray = [u for u in nowhere if self.at[u] not in self.instance.sites[u]]
        for vertex in astray:
            self.at[vertex] = -1
        arrangement = Arrangement(self.instance, self.at)
        for vertex in astray:
            arrangement.move(vertex, least_overfull(arrangement, vertex))
        self.at = arrangement.at

    def _divide(self, vertices: Sequence[int], leaves: Sequence[int]) -> None:
        if len(leaves) == 1:
            for vertex in vertices:
                self.at[vertex] = self.site_of[leaves[0]]
        elif vertices:
            halves = self._halves(leaves)
            is_second = _Halving(self, vertices, halves).best()
            for number, half in enumerate(halves):
                self._divide([u for u in vertices if is_second[u] == number], half)

    def _halves(self, leaves: Sequence[int]) -> tuple[list[int], list[int]]:
        """Sockets are separated before NUMA nodes, and these before leaves."""
        tree = self.instance.problem.tree.leaves
        boxes: dict[int, list[int]] = {}
        for numbers in ({u: tree[u].socket for u in leaves}, {u: tree[u].node for u in leaves}):
            boxes = {}
            for leaf in leaves:
                boxes.setdefault(numbers[leaf], []).append(leaf)
            if len(boxes) > 1:
                break
        listed = list(boxes.values()) if len(boxes) > 1 else [[leaf] for leaf in leaves]
        middle = (len(listed) + 1) // 2
        return _joined(listed[:middle]), _joined(listed[middle:])


def _joined(lists: Iterable[list[int]]) -> list[int]:
    return [item for each in lists for item in each]


class _Halving:
    """One bisection: vertices onto two halves of leaves so that little is cut, and each half has room for its part.

    Beyond the two, all distances are the same on both sides, as far as the machine is regular: only what is fixed in one
    of the halves pulls.
    """

    def __init__(
        self, bisection: _Bisection, vertices: Sequence[int], halves: tuple[list[int], list[int]]
    ) -> None:
        instance, self.bisection, self.vertices = bisection.instance, bisection, vertices
        self.sizes = instance.sizes
        inside = frozenset(vertices)
        self.near = {u: [each for each in instance.near[u] if each[0] in inside] for u in vertices}
        pulls = [
            dict.fromkeys([bisection.site_of[leaf] for leaf in half], sign)
            for half, sign in zip(halves, (-1, 1))
        ]
        sign_of = {**pulls[0], **pulls[1]}
        #: Above 0: to the second half.
        self.pull: dict[int, float] = {
            u: sum([weight * sign_of.get(bisection.at[other], 0) for other, weight in instance.near[u]])
            for u in vertices
        }  # fmt: skip
        total = sum([self.sizes[u] for u in vertices])
        room = [sum([bisection.room[leaf] for leaf in half]) for half in halves]
        self.share = total * room[0] / max(1, sum(room))
        fill = total / max(1, sum(room))
        bound = fill + max(0.0, 1 - fill) * _SLACK
        self.most = (room[0] * bound, room[1] * bound)

    def best(self) -> dict[int, int]:
        """By vertex 0 or 1: the best of some tries."""
        found = []
        for number in range(_TRIES if len(self.vertices) > 1 else 1):
            side = self._grown()
            self._improve(side)
            found.append((*self._value(side), number, side))
        return min(found)[3]

    def _grown(self) -> dict[int, int]:
        """From a vertex at random, always that on which cuts least, until the first half has its share."""
        side = dict.fromkeys(self.vertices, 1)
        gain: dict[int, float] = {
            u: -self.pull[u] - sum([weight for _, weight in self.near[u]]) for u in self.vertices
        }
        heap: list[tuple[float, int]] = []
        rest, taken = len(self.vertices), 0
        while taken < self.share and rest:
            vertex = self._next(heap, side, gain)
            if taken + self.sizes[vertex] > self.most[0]:
                break
            side[vertex] = 0
            taken, rest = taken + self.sizes[vertex], rest - 1
            self.bisection.work += 1 + len(self.near[vertex])
            for other, weight in self.near[vertex]:
                if side[other]:
                    gain[other] += 2 * weight
                    heappush(heap, (-gain[other], other))
        return side

    def _next(self, heap: list[tuple[float, int]], side: dict[int, int], gain: dict[int, float]) -> int:
        while heap:
            worth, vertex = heappop(heap)
            if side[vertex] and gain[vertex] == -worth:
                return vertex
        rest = [u for u in self.vertices if side[u]]
        return rest[self.bisection.chance.below(len(rest))]

    def _improve(self, side: dict[int, int]) -> None:
        """Passes in which each vertex changes sides once at most, the best first, also at a loss; what came after
        the best moment is taken back."""
        for _ in range(_PASSES):
            if not self._pass(side):
                return

    def _pass(self, side: dict[int, int]) -> bool:
        load, most, sizes = self._loads(side), self.most, self.sizes
        gain = {u: self._gain(side, u) for u in self.vertices}
        heap = [(-worth, u) for u, worth in gain.items()]
        heapify(heap)
        over, saved = self._over(load), 0.0
        best, kept = (over, 0.0), 0
        moved: dict[int, None] = {}
        full: list[tuple[float, int]] = []
        while heap and len(moved) - kept < _STALLED:
            entry = heappop(heap)
            worth, vertex = entry
            if vertex in moved or gain[vertex] != -worth:
                continue
            here, size = side[vertex], sizes[vertex]
            there = 1 - here
            then = max(0.0, load[here] - size - most[here]) + max(0.0, load[there] + size - most[there])
            if then > over:
                full.append(entry)
                continue
            moved[vertex] = None
            side[vertex], over, saved = there, then, saved + gain[vertex]
            load[here] -= size
            load[there] += size
            for other, weight in self.near[vertex]:
                if other not in moved:
                    gain[other] += 2 * weight if side[other] == here else -2 * weight
                    heappush(heap, (-gain[other], other))
            # There may be room now for vertices that had none.
            for entry in full:
                heappush(heap, entry)
            full = []
            if over < best[0] or (over == best[0] and saved > best[1] + 1e-9):
                best, kept = (over, saved), len(moved)
        for vertex in list(moved)[kept:]:
            side[vertex] = 1 - side[vertex]
        self.bisection.work += sum([2 + len(near) for near in self.near.values()])
        return kept > 0

    def _gain(self, side: dict[int, int], vertex: int) -> float:
        here = side[vertex]
        cut: float = sum([weight if side[other] != here else -weight for other, weight in self.near[vertex]])
        return cut + (-self.pull[vertex] if here else self.pull[vertex])

    def _loads(self, side: dict[int, int]) -> list[int]:
        second = sum([self.sizes[u] for u in self.vertices if side[u]])
        return [sum([self.sizes[u] for u in self.vertices]) - second, second]

    def _over(self, load: Sequence[int]) -> float:
        return max(0.0, load[0] - self.most[0]) + max(0.0, load[1] - self.most[1])

    def _value(self, side: dict[int, int]) -> tuple[float, float]:
        """The load above the bounds, then the weight cut: the less the better."""
        cut: float = sum(
            [w for u in self.vertices for other, w in self.near[u] if side[u] and not side[other]]
        )
        return self._over(self._loads(side)), cut - sum([self.pull[u] for u in self.vertices if side[u]])
