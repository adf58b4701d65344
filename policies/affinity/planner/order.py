"""The order of moves: best gain first, and after each of them no leaf is fuller than it may be, or than it was.

It may be stopped at after any move, or exchange: what is made until then is never dearer than the start, and no NUMA node
is given more memory than it has free. A move that costs more than those before it have saved waits for others that
save, or is made at once with the moves that it is for. Only what makes overfull leaves less so, or keeps more of what
is declared, may cost more.

A move whose place is still taken waits until another leaves it. If all that are left wait for each other (a swap,
a ring), one that is in the way goes to a third place first and on, or back, later: one whose leaving lets another in
at once, rather one that moves anyway, the smallest; where its memory need not follow, then where it costs least
meanwhile. Each container does so at most once.

If none finds a third place, containers change places: the fewest found that, moved at once, leave no leaf fuller than
it may be, and cost no more than was saved. Only containers that share their CPUs do so, since two of them are in one
place meanwhile, and in an order in which no leaf is above its capacity by more than ``exchange_overcommit`` and no NUMA
node needs more memory than it has free. A move left then is blocked, and is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import NamedTuple, Optional

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.problem import BlockedMove

#: Containers of one exchange, at most: as many updates follow each other at the runtime, and stand or fall together.
LONGEST_EXCHANGE = 12
#: Exchanges that one order of moves looks for, at most: with 300 containers each takes about half a millisecond.
MOST_TRIED = 300
#: Containers in the way that a blocked move names.
_NAMED = 3
#: What is below this part of the cost at the start is a rounding error.
_ROUNDING = 1e-9


class Step(NamedTuple):
    """One move. ``gain``: CPU-seconds a second; ``exchange``: the number of the exchange it is part of, 0 = of none."""

    vertex: int
    source: int
    target: int
    gain: float
    exchange: int = 0


class Order:
    """One order in the making, see above. ``steps``: the moves so far; ``tried``: exchanges looked for."""

    def __init__(
        self, instance: Instance, present: Sequence[int], wanted: Sequence[int], made: Sequence[Step] = ()
    ) -> None:
        """``made``: the moves that have led to the present placement, whose memory has followed."""
        self.instance = instance
        self.wanted = wanted
        self.arrangement = Arrangement(instance, present)
        self.arrangement.limits = [max(pair) for pair in zip(instance.capacities, self.arrangement.load)]
        self.steps: list[Step] = []
        self.gains = {u: self._gain(u, wanted[u]) for u, (a, b) in enumerate(zip(present, wanted)) if a != b}
        self.heap = [(-gain, u) for u, gain in self.gains.items()]
        heapify(self.heap)
        #: Waiting moves, by the leaves they wait for.
        self.waiting: dict[int, list[int]] = {}
        self.bounced: set[int] = set()
        self.exchanges = 0
        #: Exchanges looked for; and how often in vain, by the container that was to gain by it.
        self.tried = 0
        self.failed: dict[int, int] = {}
        self.free = dict(instance.problem.tree.free_bytes)
        for step in made:
            _follow(instance, self.free, step.vertex, step.source, step.target)
        #: What the moves so far save, and moves that cost more than that.
        self.saved = 0.0
        self.dear: list[int] = []
        self.least = _ROUNDING * instance.cost(present)
        broken = self.arrangement.broken()
        keeps_more = bool(broken) and Arrangement(instance, wanted).broken() < broken
        self.repairs = keeps_more or self.arrangement.excess() > 0

    def run(self) -> None:
        while True:
            while self.heap:
                worth, vertex = heappop(self.heap)
                # An entry whose gain is another by now has a successor in the heap.
                if self.gains.get(vertex) != -worth:
                    continue
                if not self._pays(-worth):
                    self.dear.append(vertex)
                elif self._fits(vertex, self.wanted[vertex]):
                    self._make(vertex, self.wanted[vertex])
                else:
                    for leaf in self._waits_for(vertex):
                        self.waiting.setdefault(leaf, []).append(vertex)
            if not self.gains or not (self._bounce() or self._exchange()):
                break
        self._end_at_the_best()

    def _pays(self, gain: float) -> bool:
        """Whether the placement is no dearer than the first one after a move, or an exchange, that gains so much."""
        return self.repairs or self.saved + gain >= -self.least

    def _fits(self, vertex: int, site: int) -> bool:
        at = self.arrangement.at[vertex]
        return self.arrangement.fits(vertex, site) and _has_memory(self.instance, self.free, vertex, at, site)

    def _waits_for(self, vertex: int) -> Iterable[int]:
        """The leaves of which another has to leave one: those of its place, or of the NUMA nodes that lack memory."""
        instance, target = self.instance, self.wanted[vertex]
        if _has_memory(instance, self.free, vertex, self.arrangement.at[vertex], target):
            return instance.leaves[target]
        leaves = instance.problem.tree.leaves
        return [number for number, leaf in enumerate(leaves) if leaf.node in instance.nodes[target]]

    def _end_at_the_best(self) -> None:
        """Take back moves at the end that have made room for others in vain."""
        if self.repairs:
            return
        best = count = 0
        most = saved = 0.0
        for together in grouped(self.steps):
            count += len(together)
            saved += sum([step.gain for step in together])
            if saved > most + self.least:
                best, most = count, saved
        for step in reversed(self.steps[best:]):
            self.arrangement.move(step.vertex, step.source)
            _follow(self.instance, self.free, step.vertex, step.target, step.source)
        del self.steps[best:]

    def _make(self, vertex: int, site: int, exchange: int = 0) -> None:
        instance, arrangement, gains = self.instance, self.arrangement, self.gains
        source, rows = arrangement.at[vertex], instance.rows
        gain = self._gain(vertex, site)
        self.steps.append(Step(vertex, source, site, gain, exchange))
        self.saved += gain
        _follow(instance, self.free, vertex, source, site)
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
        # 2. What others make L3s fetch beyond saturation is another amount now.
        touched = instance.caches_of[source] | instance.caches_of[site] if instance.meets else None
        for other in instance.filling if instance.fills[vertex] else ():
            if other in gains and (touched is None or not touched.isdisjoint(self._caches_of(other))):
                gains[other] = self._gain(other, self.wanted[other])
                heappush(self.heap, (-gains[other], other))
        # 3. Moves that waited for its place try again.
        for leaf in instance.leaves[source]:
            for other in self.waiting.pop(leaf, ()):
                if other in gains:
                    heappush(self.heap, (-gains[other], other))
        # 4. And moves that cost more than was saved.
        affordable = [u for u in self.dear if u in gains and self._pays(gains[u])] if gain > 0 else []
        for other in affordable:
            self.dear.remove(other)
            heappush(self.heap, (-gains[other], other))

    def _bounce(self) -> bool:
        """Send one that is in the way to a third place. Whether one went."""
        instance, arrangement = self.instance, self.arrangement
        in_the_way = [
            (not self._enables(vertex), vertex not in self.gains, instance.sizes[vertex], vertex)
            for leaf in sorted(self.waiting)
            for vertex in arrangement.on((leaf,))
            if vertex not in self.bounced
            and instance.movable[vertex]
            and (instance.sizes[vertex] or instance.problem.vertices[vertex].memory_bytes)
        ]
        for useless, bystander, _, vertex in sorted(in_the_way):
            if useless and bystander:
                continue
            here = arrangement.at[vertex]
            places = [
                (instance.migrated_bytes(vertex, here, site), -gain, site)
                for site in instance.sites[vertex]
                if site not in (here, self.wanted[vertex]) and self._fits(vertex, site)
                for gain in (self._gain(vertex, site),)
                if self._pays(gain)
            ]
            if places:
                self.bounced.add(vertex)
                self._make(vertex, min(places)[2])
                return True
        return False

    def _enables(self, vertex: int) -> bool:
        """Whether a waiting move could come at once if this one left."""
        instance, arrangement, at = self.instance, self.arrangement, self.arrangement.at
        free = dict(self.free)
        for node in free.keys() & instance.nodes[at[vertex]]:
            free[node] += instance.problem.vertices[vertex].memory_bytes // len(instance.nodes[at[vertex]])
        for leaf, part in instance.parts(instance.sizes[vertex], at[vertex]):
            room = arrangement.limits[leaf] - arrangement.load[leaf] + part
            for other in self.waiting.get(leaf, ()):
                target = self.wanted[other]
                if (
                    other != vertex
                    and other in self.gains
                    and (
                        instance.sizes[other] <= room
                        if leaf in instance.leaves[target]
                        else arrangement.fits(other, target)
                    )
                    and _has_memory(instance, free, other, at[other], target)
                ):
                    return True
        return False

    # ------------------------------------------------------------------ exchanges

    def _exchange(self) -> bool:
        """Let a few containers change places, the one that gains most by it first; those for which none was found before
        come after all others. Whether some did."""
        vertices = self.instance.problem.vertices
        candidates = [u for u in self.gains if vertices[u].may_overlap]
        for first in sorted(candidates, key=lambda u: (self.failed.get(u, 0), -self.gains[u], u)):
            if self.tried >= MOST_TRIED:
                break
            self.tried += 1
            chain = self._chain(first)
            keeps = chain and self.arrangement.keeps([(vertex, self.wanted[vertex]) for vertex in chain])
            in_turn = chain and keeps and self._in_turn(chain)
            if not in_turn:
                self.failed[first] = self.failed.get(first, 0) + 1
            else:
                self.exchanges += 1
                for vertex in in_turn:
                    self._make(vertex, self.wanted[vertex], self.exchanges)
                return True
        return False

    def _chain(self, first: int) -> Optional[list[int]]:
        """Containers that can go where they are to go if they all do, this one among them, and that then cost no more than
        was saved; None if none were found.

        As long as one of the leaves they come to is too full, one that is to leave it joins: rather one for whose own
        place there is room, then the smallest that leaves enough, or the largest. As long as they cost too much, the one
        joins that gains most by them.
        """
        arrangement, load = self.arrangement, self.arrangement.load
        was: dict[int, int] = {}
        gain = 0.0
        joins: Optional[int] = first
        try:
            while joins is not None and len(was) < LONGEST_EXCHANGE:
                gain += self._gain(joins, self.wanted[joins])
                was[joins] = arrangement.at[joins]
                arrangement.move(joins, self.wanted[joins])
                full = next(
                    (leaf for leaf in range(len(load)) if load[leaf] > arrangement.limits[leaf]), None
                )
                if full is not None:
                    joins = self._leaving(full, was)
                elif self._pays(gain):
                    return list(was)
                else:
                    joins = self._drawn(was)
        finally:
            for vertex, site in reversed(was.items()):
                arrangement.move(vertex, site)
        return None

    def _leaving(self, full: int, chain: Container[int]) -> Optional[int]:
        """One that is to leave this leaf."""
        instance, arrangement = self.instance, self.arrangement
        lacking = arrangement.load[full] - arrangement.limits[full]
        leaving = [
            (not self._has_room(vertex), size < lacking, size if size >= lacking else -size, vertex)
            for vertex in arrangement.on((full,))
            if self._may_join(vertex, chain)
            for size in (dict(instance.parts(instance.sizes[vertex], arrangement.at[vertex]))[full],)
            if size
        ]
        return min(leaving)[3] if leaving else None

    def _drawn(self, chain: Collection[int]) -> Optional[int]:
        """One that gains by those that go before it: a neighbour, or one that is crowded as they are."""
        instance = self.instance
        near = [other for vertex in chain for other, _ in instance.near[vertex]]
        crowded = instance.filling if any(instance.fills[vertex] for vertex in chain) else ()
        drawn = [
            (-self._gain(vertex, self.wanted[vertex]), vertex)
            for vertex in dict.fromkeys((*near, *crowded))
            if self._may_join(vertex, chain)
        ]
        return min(drawn)[1] if drawn else None

    def _may_join(self, vertex: int, chain: Container[int]) -> bool:
        may_overlap = self.instance.problem.vertices[vertex].may_overlap
        return vertex in self.gains and vertex not in chain and may_overlap

    def _has_room(self, vertex: int) -> bool:
        load, limits = self.arrangement.load, self.arrangement.limits
        parts = self.instance.parts(self.instance.sizes[vertex], self.wanted[vertex])
        return all(load[leaf] + part <= limits[leaf] for leaf, part in parts)

    def _shift(self, load: list[int], vertex: int) -> None:
        size = self.instance.sizes[vertex]
        for leaf, part in self.instance.parts(size, self.arrangement.at[vertex]):
            load[leaf] -= part
        for leaf, part in self.instance.parts(size, self.wanted[vertex]):
            load[leaf] += part

    def _in_turn(self, chain: Sequence[int]) -> list[int]:
        """The same in an order that keeps every leaf and NUMA node within what an exchange may take; [] = there is none."""
        instance, most = self.instance, self.instance.problem.settings.exchange_overcommit
        at, wanted = self.arrangement.at, self.wanted
        load, free = list(self.arrangement.load), dict(self.free)
        left, in_turn = list(chain), []
        while left:
            above = []
            for vertex in left:
                over = [
                    (load[leaf] + part - self.arrangement.limits[leaf]) / max(1, instance.capacities[leaf])
                    for leaf, part in instance.parts(instance.sizes[vertex], wanted[vertex])
                ]
                above.append((max(over), vertex))
            fitting = [
                (over, vertex)
                for over, vertex in sorted(above)
                if over <= most and _has_memory(instance, free, vertex, at[vertex], wanted[vertex])
            ]
            if not fitting:
                return []
            vertex = fitting[0][1]
            self._shift(load, vertex)
            _follow(instance, free, vertex, at[vertex], wanted[vertex])
            left.remove(vertex)
            in_turn.append(vertex)
        return in_turn

    def blocked(self) -> list[BlockedMove]:
        """The moves that could not be made, the best first."""
        instance, arrangement, vertices = self.instance, self.arrangement, self.instance.problem.vertices
        found = []
        for vertex in sorted(self.gains, key=lambda u: (-self.gains[u], u)):
            target = self.wanted[vertex]
            there = [other for other in arrangement.on(instance.leaves[target]) if instance.sizes[other]]
            there.sort(key=lambda other: (other not in self.gains, -instance.sizes[other], other))
            why = self._why(vertex, there)
            full = not arrangement.fits(vertex, target)
            behind = tuple(vertices[other].key for other in there[:_NAMED]) if full else ()
            found.append(BlockedMove(vertices[vertex].key, arrangement.at[vertex], target, behind, why))
        return found

    def _why(self, vertex: int, there: Sequence[int]) -> str:
        """What keeps a move from being made; ``there``: the containers in its place."""
        vertices, target = self.instance.problem.vertices, self.wanted[vertex]
        if self.arrangement.fits(vertex, target):
            if not self._fits(vertex, target):
                return "its NUMA node has too little memory free"
            return "the moves before it save less than it costs"
        if any(not vertices[u].may_overlap and u in self.gains for u in (vertex, *there)):
            return "containers with exclusive CPUs never overlap"
        return (
            "no exchange stays within the memory that is free and "
            f"{self.instance.problem.settings.exchange_overcommit:.0%} above the CPUs of a place, "
            f"of at most {LONGEST_EXCHANGE} containers"
        )

    def _caches_of(self, vertex: int) -> frozenset[int]:
        """The L3s that a vertex is in, and those it is to go to."""
        caches = self.instance.caches_of
        return caches[self.arrangement.at[vertex]] | caches[self.wanted[vertex]]

    def _gain(self, vertex: int, site: int) -> float:
        at, rows = self.arrangement.at, self.instance.rows
        here, there = rows[at[vertex]], rows[site]
        gain = sum(
            [weight * (here[at[other]] - there[at[other]]) for other, weight in self.instance.near[vertex]]
        )
        return (
            gain - self.arrangement.crowding_change(((vertex, site),))
            if self.instance.fills[vertex]
            else gain
        )


def _has_memory(instance: Instance, free: dict[int, int], vertex: int, source: int, target: int) -> bool:
    memory = instance.problem.vertices[vertex].memory_bytes
    if not memory or not free:
        return True
    nodes = instance.nodes[target]
    return all(memory / len(nodes) <= free.get(node, memory) for node in nodes - instance.nodes[source])


def _follow(instance: Instance, free: dict[int, int], vertex: int, source: int, target: int) -> None:
    """Free bytes of each NUMA node once the memory of a vertex has followed it."""
    memory = instance.problem.vertices[vertex].memory_bytes
    here, there = instance.nodes[source], instance.nodes[target]
    for nodes, gone, sign in ((here, here - there, 1), (there, there - here, -1)):
        for node in gone:
            if node in free:
                free[node] += sign * memory // len(nodes)


def grouped(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """The steps after each of which an order may be stopped at: an exchange is one."""
    for _, together in groupby(enumerate(steps), lambda each: -each[1].exchange or each[0] + 1):
        yield [step for _, step in together]


def ordered(
    instance: Instance, present: Sequence[int], wanted: Sequence[int], made: Sequence[Step] = ()
) -> tuple[list[Step], list[BlockedMove]]:
    """The moves that lead from one placement to another, as far as they can be made, and the others. None is nowhere.

    ``made``: the moves that have led to the first of them.
    """
    order = Order(instance, present, wanted, made)
    order.run()
    return order.steps, order.blocked()
