"""The search for a better placement: several starts, then the best of them shaken and refined again.

Minimised first: the CPUs that leaves hold above their capacity; then what is declared and not kept; then the cost of
communication and the price of the moves, per second of the horizon. So a move that does not pay for itself is not in the
result, and a container that stays for the price of its move today stays tomorrow (the price is a metric: moving on costs no
less than moving there at once). What keeps a declared pair worse than at present is no result.

Everything is counted in work, not in time, and chance is a fixed sequence: the same problem gives the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.assign import assign
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.multilevel import Chance, combined, divided
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.relabel import relabel
from policies.affinity.planner.repair import repair_or_pack, restore

#: Heavy-edge clusters packed (``assign``: part of a leaf that one may fill, in units of ``fill``; exponent of the size in
#: an edge's worth), or a multilevel division (``divided``: part of a leaf that the largest cluster may have, the same
#: exponent). From the one that is best on most graphs on.
_STARTS = (
    ("packed", 1.0, 0.5),
    ("divided", 0.5, 0.5),
    ("packed", 1.0, 0.0),
    ("divided", 0.9, 0.5),
    ("divided", 0.4, 0.0),
    ("packed", 1.1, 1.0),
    ("packed", 1.1, 0.5),
    ("packed", 0.7, 0.5),
)
#: In units of work, as refinement counts it: to cluster an edge. With 1,000 containers and 6,000 edges the default
#: allows one start and little else.
_WORK_OF_AN_EDGE = 3
#: The part that is kept for shaking, and the most that shaking is worth by vertex; to improve what a start made.
_SHAKING = 0.2
_WORK_OF_SHAKING_A_VERTEX = 3_000
_WORK_OF_A_VERTEX = 12
#: Up to so many vertices times sites, ejections are looked for as well as swaps.
_DEEP = 3_000
#: Up to the first number, the search may look at more: its finds are then worth a quarter of a second of the planner;
#: from the second one on at no more, and evenly less between them.
_MIDDLE, _LARGE, _MORE = 8_000, 24_000, 4

#: Rounding errors are below this part of the mean cost.
_ROUNDING = 1e-9


class Search:
    """One search. ``present``: where each is, none nowhere; ``cost``: what that costs; ``bias``: by vertex, what
    each site costs beside communication. The result: ``best``, its ``value`` (excess, what is not kept, cost with prices),
    ``start``."""

    def __init__(
        self, instance: Instance, present: Sequence[int], bias: Sequence[Sequence[float]], cost: float
    ) -> None:
        self.instance = instance
        self.present = list(present)
        self.bias = bias
        count = len(present)
        total = sum([abs(weight) for _, _, weight in instance.problem.edges]) * max(map(max, instance.rows))
        total += instance.most_crowding
        self.least = _ROUNDING * total / max(1, count)
        self.deep = count * len(instance.rows) <= _DEEP
        self.best = list(present)
        # There are no moves yet that would have a price.
        arrangement = Arrangement(instance, present)
        self.value = (arrangement.excess(), arrangement.broken(), cost)
        self.start = "the present placement"
        part = min(1.0, max(0.0, (_LARGE - count * len(instance.rows)) / (_LARGE - _MIDDLE)))
        self.work = int(instance.problem.settings.work * (1 + (_MORE - 1) * part))
        self.left = self.work

    def run(self) -> None:
        """Look for the best."""
        settings, size = self.instance.problem.settings, len(self.instance.connected)
        to_start = _WORK_OF_AN_EDGE * (size + len(self.instance.problem.edges))
        to_refine = _WORK_OF_A_VERTEX * size
        number = min(settings.starts, len(_STARTS))
        chance = Chance(settings.seed)
        least = to_start + to_refine + _SHAKING * self.work
        found: list[list[int]] = []
        # 1. New placements, laid over the present one; and, second, the present one improved. What each of them and the
        # others before have together is moved as a whole.
        for start, (way, part, exponent) in enumerate(_STARTS[:number]):
            if start and self.left < least:
                break
            self.left -= to_start
            made = self._made_anew(way, part, exponent, chance)
            if made is not None:
                name = f"start {start + 1} of {number}"
                found.append(self._try(relabel(self.instance, made, self.present), name))
            if not start:
                self._try(self.present, "the present placement")
            for other in found[:-1]:
                if self.left < least:
                    break
                self._combine(other)
        if not number:
            self._try(self.present, "the present placement")
        # 2. The best, shaken.
        self._shake()

    def improve(self, found: Search) -> None:
        """Take what a search without classes has found, or the present placement, and part the classes there as far as that
        pays."""
        for at, start in ((found.best, found.start), (self.present, "the present placement")):
            refinement = self._refinement(Arrangement(self.instance, at))
            self._take(refinement.arrangement, self._value(refinement.arrangement), start)
            if refinement.arrangement.excess() == found.value[0]:
                refinement.run(self.instance.filling, self.instance.problem.settings.work)
                self._take(refinement.arrangement, self._value(refinement.arrangement), f"{start}, parted")

    def _try(self, at: Sequence[int], start: str) -> list[int]:
        """Refine a placement and keep it if it is the best; what became of it."""
        refinement = self._refinement(Arrangement(self.instance, at))
        repair_or_pack(refinement)
        restore(refinement)
        # Vertices without pull are looked at only if they had to make room: they may go home.
        vertices = range(len(at)) if refinement.journal else self.instance.connected
        refinement.run(vertices, max(len(at), self.left))
        self.left -= refinement.work
        self._take(refinement.arrangement, self._value(refinement.arrangement), start)
        return refinement.arrangement.at

    def _combine(self, other: Sequence[int]) -> None:
        vertices = self._roaming()
        if vertices:
            made, work = combined(self.instance, self.best, other, vertices, self.bias, self.left)
            self.left -= work
            self._try(made, f"{self.start.partition(', combined')[0]}, combined with another")

    def _roaming(self) -> list[int]:
        """The vertices that starts place anew."""
        instance = self.instance
        return [
            u
            for u in instance.connected
            if instance.movable[u] and instance.single[self.present[u]] >= 0 and u not in instance.bound
        ]

    def _take(self, arrangement: Arrangement, value: tuple[int, int, float], start: str) -> bool:
        if value[:2] > self.value[:2] or (
            value[:2] == self.value[:2] and value[2] >= self.value[2] - self.least
        ):
            return False
        if self.instance.holding and not arrangement.keeps_all():
            return False
        self.best, self.value, self.start = list(arrangement.at), value, start
        return True

    def _made_anew(self, way: str, part: float, exponent: float, chance: Chance) -> Optional[list[int]]:
        instance = self.instance
        vertices = self._roaming()
        if not vertices:
            return None
        at = list(self.present)
        for vertex in vertices:
            at[vertex] = -1
        if way == "divided":
            made, work = divided(instance, at, vertices, part, exponent, chance, self.left)
            self.left -= work
            return made
        arrangement = Arrangement(instance, at)
        assign(arrangement, vertices, part * instance.problem.settings.fill, exponent)
        return arrangement.at

    def _shake(self) -> None:
        """Move a few containers at random, refine around them, keep it if it is better: an iterated local search."""
        instance = self.instance
        vertices = [u for u in instance.connected if instance.movable[u]]
        if len(vertices) < 2 or self.value[2] <= self.least:
            return
        chance = Chance(instance.problem.settings.seed)
        refinement = self._refinement(Arrangement(instance, self.best))
        arrangement = refinement.arrangement
        most = min(self.left, _WORK_OF_SHAKING_A_VERTEX * len(vertices))
        while refinement.work < most:
            # To look around at all takes work as well.
            refinement.work += 10
            count, gained = len(refinement.journal), refinement.gained
            shaken = self._shaken(refinement, vertices, chance)
            for _ in range(chance.below(3) if self.deep else 0):
                shaken += self._shaken(refinement, vertices, chance)
            around = dict.fromkeys([v for u in shaken for v in [u, *[o for o, _ in instance.near[u]]]])
            refinement.run(around, most)
            cost = self.value[2] - (refinement.gained - gained)
            value = (arrangement.excess(), arrangement.broken(), cost)
            if not self._take(arrangement, value, f"{self.start.partition(', shaken')[0]}, shaken"):
                refinement.undo(count)

    def _shaken(self, refinement: Refinement, vertices: Sequence[int], chance: Chance) -> list[int]:
        """One vertex with some of its neighbours to a site of its own, as far as they fit; or two exchanged."""
        instance, arrangement = self.instance, refinement.arrangement
        vertex = vertices[chance.below(len(vertices))]
        moved: list[int] = []
        if chance.below(2):
            site = instance.sites[vertex][chance.below(len(instance.sites[vertex]))]
            near = [other for other, _ in instance.near[vertex] if instance.movable[other]]
            group = [vertex, *[near[chance.below(len(near))] for _ in range(chance.below(4)) if near]]
            for each in dict.fromkeys(group):
                if site in instance.sites[each] and arrangement.fits(each, site):
                    refinement.move(each, site)
                    moved.append(each)
            if moved:
                return moved
        other = vertices[chance.below(len(vertices))]
        here, there = arrangement.at[vertex], arrangement.at[other]
        can = here != there and there in instance.sites[vertex] and here in instance.sites[other]
        if can and arrangement.allows(((vertex, there), (other, here))):
            refinement.move(other, here)
            refinement.move(vertex, there)
            return [vertex, other]
        return []

    def _refinement(self, arrangement: Arrangement) -> Refinement:
        return Refinement(arrangement, self.bias, self.least, self.deep)

    def _value(self, arrangement: Arrangement) -> tuple[int, int, float]:
        price = sum([row[site] for row, site in zip(self.bias, arrangement.at)])
        return arrangement.excess(), arrangement.broken(), self.instance.cost(arrangement.at) + price
