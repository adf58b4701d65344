"""Composite balloons: a balloon whose type has components is made of parts, each with CPUs as its own type has them.

Its containers run on the CPUs of all parts, and it is of one group in the books as any balloon. Which CPUs are of which part
follows from them and the configuration (``policies.balloons.cpus``), and which component a balloon is made of, where it is
made of one of several, from its number: the number's digits, of which each has as many values as there are components.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from policies.balloons.types import ALL, BalloonType, Part
from policies.frozen import dataclass

#: The most parts of a balloon, and types inside each other; the configuration is refused beyond.
MAX_PARTS, MAX_DEPTH = 64, 8


@dataclass(frozen=True)
class Composition:
    """What a balloon is made of. ``names``: all types in it but its own, those of parts of parts too.

    ``limits``: the most CPUs of the whole balloon by each of them; 0 = no limit. ``digits``: which component is chosen of
    how many, in the order of choices.
    """

    parts: tuple[Part, ...] = ()
    names: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()
    digits: tuple[tuple[int, int], ...] = ()

    def beside(self, other: Composition) -> Composition:
        """Both together."""
        return Composition(
            self.parts + other.parts,
            self.names + other.names,
            self.limits + other.limits,
            self.digits + other.digits,
        )


class Composites:
    """The composite types of one configuration, which has no circles in it."""

    def __init__(self, types: tuple[BalloonType, ...]) -> None:
        self._types = {kind.name: kind for kind in types}
        self._known: dict[tuple[str, int], tuple[BalloonType, Composition]] = {}
        #: By type: the types that its balloons may be made of, it too; and whether one cannot be.
        self._within: dict[str, frozenset[str]] = {}
        self._banned: dict[str, bool] = {}
        for kind in types:
            self._look_into(kind)

    def kind(self, kind: BalloonType, number: int) -> BalloonType:
        """The type of a balloon with its parts, and with the limit of these."""
        return self._of(kind, number)[0] if kind.components else kind

    def names(self, kind: BalloonType, number: int) -> tuple[str, ...]:
        """The types of a balloon and of all its parts."""
        return (kind.name, *(self._of(kind, number)[1].names if kind.components else ()))

    def within(self, kind: BalloonType) -> frozenset[str]:
        """The types that its balloons may be made of, it too."""
        return self._within[kind.name]

    def number(
        self, kind: BalloonType, used: Collection[int], there: Iterable[tuple[BalloonType, int]]
    ) -> int:
        """The lowest free number for one more balloon: where a component is to be chosen, a number of the one with the
        fewest balloons and parts. ``there``: all balloons that are there."""
        step, number = 1, 0
        if kind.components:
            counts: dict[str, int] = {}
            for other, their_number in there:
                for name in self.names(other, their_number):
                    counts[name] = counts.get(name, 0) + 1
            for chosen, of in self._composed(kind, 1, None, counts).digits:
                number, step = number + step * chosen, step * of
        while number in used:
            number += step
        return number

    def banned(self, kind: BalloonType) -> bool:
        """Whether it cannot be, since components that it needs are banned on this node."""
        return self._banned[kind.name]

    def _of(self, kind: BalloonType, number: int) -> tuple[BalloonType, Composition]:
        known = self._known.get((kind.name, number))
        if known is None:
            made = self._composed(kind, 1, [number], {})
            limits = [limit for limit in (kind.max_cpus, *made.limits) if limit]
            most = min(limits, default=0)
            parts = tuple(Part(_as_part(p.kind, kind), p.divisor) for p in made.parts)
            known = self._known[kind.name, number] = replace(kind, max_cpus=most, parts=parts), made
        return known

    def _composed(
        self, kind: BalloonType, divisor: int, number: list[int] | None, counts: Mapping[str, int]
    ) -> Composition:
        """``number``: what is left of its digits, taken away as they are read; None: components are chosen by ``counts``."""
        names = kind.components
        if not names:
            return Composition((Part(kind, divisor),))
        found = Composition()
        if kind.component_creation == ALL:
            divisor *= len(names)
        else:
            at, of = self._chosen(names, number, counts), len(names)
            names, found = (names[at],), Composition(digits=((at, of),))
        for name in names:
            inner = self._types[name]
            inside = self._composed(inner, divisor, number, counts)
            inside = replace(
                inside, parts=tuple(replace(p, kind=_loading(p.kind, kind)) for p in inside.parts)
            )
            found = found.beside(Composition(names=(name,), limits=(inner.max_cpus * divisor,))).beside(
                inside
            )
        return found

    def _chosen(self, names: tuple[str, ...], number: list[int] | None, counts: Mapping[str, int]) -> int:
        if number is not None:
            rest, chosen = divmod(number[0], len(names))
            number[0] = rest
            return chosen

        def key(at: int) -> tuple[bool, int, int]:
            name = names[at]
            return self._banned[name], sum(counts.get(w, 0) for w in self._within[name]), at

        return min(range(len(names)), key=key)

    def _look_into(self, kind: BalloonType) -> None:
        if kind.name in self._within:
            return
        components = [self._types[name] for name in kind.components]
        for each in components:
            self._look_into(each)
        self._within[kind.name] = frozenset((kind.name,)).union(*[self._within[c.name] for c in components])
        bans = [self._banned[each.name] for each in components]
        is_without = any(bans) if kind.component_creation == ALL else bool(bans) and all(bans)
        self._banned[kind.name] = kind.max_cpus < 0 or is_without


def _loading(part: BalloonType, outer: BalloonType) -> BalloonType:
    return replace(part, loads=tuple(dict.fromkeys((*outer.loads, *part.loads)))) if outer.loads else part


def _as_part(part: BalloonType, outer: BalloonType) -> BalloonType:
    """A component's type as far as it counts in a balloon of another: how its CPUs are chosen, and how many."""
    return replace(
        part, hide_hyperthreads=outer.hide_hyperthreads, one_per="", min_balloons=0, max_balloons=0
    )
