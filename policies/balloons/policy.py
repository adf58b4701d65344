"""The policy ``balloons``: pools of CPUs that grow and shrink with the containers in them.

A balloon is a group of containers in the node's books: all of them own the same CPUs (``Placement.exclusive``,
``Placement.group``). Nothing is kept besides the books, so a restart changes nothing. ``place`` makes a balloon
larger where its new container needs that; ``tidy`` makes it smaller when containers have gone, larger when it
lacked CPUs that are free now, and gives all its containers the same CPUs again.

A balloon grows by whole cores, so that what comes next changes nothing for the others in it, and its threads share no core
with another's. What it does not need any more it gives back, but for a core, which it keeps for ``SPARE_S``: most containers
that go are followed by one like them. What it has beyond its need another balloon gets that would stay small without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Callable, Optional

from policies.balloons.books import BalloonReader, FoundBalloons, must_stay
from policies.balloons.choice import BalloonRequest, TypeChooser, choose
from policies.balloons.cpus import BalloonCpus, Cost
from policies.balloons.loads import NOTHING_LOADED, Loaded
from policies.balloons.types import (
    BUILT_IN,
    DEFAULT,
    RESERVED,
    Balloon,
    BalloonType,
    all_types,
    name_of,
    parse_name,
)
from policies.exclusive.sparing import emptied_by, needs_of, take_sparing
from policies.hygon import Hygon
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.memory import nodes_of_types, with_memory
from policies.model import (
    Affinity,
    Constraint,
    Container,
    Decision,
    NoAffinity,
    Placement,
    PlacementRefused,
    PlacementRequest,
    Resident,
    altered,
)
from policies.node import Node
from policies.policy import Policy
from policies.reserved import reserved_place
from policies.settings import PlacementSettings

#: How long after a container has gone its balloon keeps a core that it does not need, in seconds.
SPARE_S = 60.0
NO_TYPES: frozenset[str] = frozenset()


class Balloons(Policy):
    """The balloons policy for one machine."""

    name = "balloons"
    owns_exclusively = True

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        super().__init__(topology, settings)
        types = all_types(settings.balloons)
        self._types = {kind.name: kind for kind in types}
        self._order = {kind.name: (kind.allocator_priority, rank) for rank, kind in enumerate(types)}
        is_reserved_listed = self._types[RESERVED] is not BUILT_IN[RESERVED]
        self._cpus = BalloonCpus(topology, types, settings.balloons.loads)
        asking = {kind.name for kind in types if kind.asks_kubelet}
        within = self._cpus.composites.within
        self._asks_kubelet = frozenset([kind.name for kind in types if not within(kind).isdisjoint(asking)])
        banned = self._cpus.composites.banned
        asked = tuple([replace(kind, max_cpus=-1) if banned(kind) else kind for kind in types])
        self._chooser = TypeChooser(asked, is_reserved_listed, settings.reserved_namespaces)
        self._places = BalloonPlaces(topology, self._cpus)
        self._shared = Hygon(topology, settings)
        self._leaves = tuple(leaf.cpus for leaf in topology.leaves)
        self._books = BalloonReader(self._types, self._cpus)

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        """Put a container that is not in the books yet into a balloon.

        :raises PlacementRefused: its type is unknown or banned on this node, or its annotations demand the impossible.
        """
        container, constraint, keep = request.container, request.constraint, request.keep
        if container.preferences.refusal:
            raise PlacementRefused(container.preferences.refusal)
        # 1. Its type. The reserved one runs on the reserved CPUs as long as these have room.
        kind = self._chooser.find(container, bool(node.reserved))
        stays = self._type_of(keep)
        note = ""
        if stays is not None and keep is not None:
            kind = stays
        elif kind.name == RESERVED and node.reserved:
            reserved = self._place_reserved(node, kind, container, constraint)
            if isinstance(reserved, Decision):
                return reserved
            note = f"{reserved}; "
        # 2. Its balloon. One that is resized stays in its own, and others give up what they can spare when the runtime has
        #    answered.
        found = self._books.read(node)
        milli, spare = container.resources.milli_request, NO_CPUS
        balloon = self._kept(found, keep, kind, container, constraint)
        if balloon is None and keep is not None:
            found = found.without(keep.exclusive)
        if keep is None:  # as many as there are; which of them is chosen once they are needed
            spare = NO_CPUS.union(*[sorted(b.cpus)[needed:] for b, needed in self._sparing(node, found)])
        waiting = self._waiting(node, found)
        ask = BalloonRequest(container, milli, found.spare, waiting, constraint.cpus, self._leaves)
        balloon = balloon or self._chosen(node, found, kind, ask, spare)
        # 3. The CPUs of the balloon with the container in it.
        own = NO_CPUS
        if balloon is not None:
            found, own = self._inflated(node, found, balloon, ask, request.affinity, bool(spare))
        if balloon is not None and self._lets_run(kind, own, container, constraint.cpus):
            return self._decided(node, found, balloon, own, container, constraint, note)
        note += f"no balloon of type {kind.name} has a CPU it may use, nor can get one: "
        balloon = self._any(found, ask)
        if balloon is None:
            shared = self._shared.place_shared(node, request)
            return replace(shared, why=note + shared.why, fits=False)
        joined = self._decided(node, found, balloon, balloon.cpus, container, constraint, note)
        return replace(joined, fits=False)

    def _sparing(self, node: Node, found: FoundBalloons) -> list[tuple[Balloon, int]]:
        """The balloons that have more CPUs than they need, with how many they need, the least important first. None in which
        a container is being resized."""
        larger = [
            (balloon, needed)
            for balloon in found.balloons.values()
            if (needed := self._cpus.needed(node, balloon.kind, balloon.milli)) < len(balloon.cpus)
            and not balloon.twice
        ]
        return sorted(larger, key=lambda item: self._rank(item[0]), reverse=True)

    def _spare(self, node: Node, found: FoundBalloons, but: str) -> Iterator[tuple[str, frozenset[int]]]:
        """What each of them but one would give up."""
        for balloon, needed in self._sparing(node, found):
            if balloon.name != but:
                kept = self._shrunk(node, found, balloon, needed, must_stay(balloon))
                if kept < balloon.cpus:
                    yield balloon.name, balloon.cpus - kept

    def why_not_sized(self, node: Node, container: Container) -> str:
        return "its balloon is sized by the policy balloons"

    def parts_of(self, place: Placement) -> tuple[tuple[str, frozenset[int]], ...]:
        name, number = parse_name(place.group) or ("", 0)
        kind = self._types.get(name)
        if kind is None or not kind.components:
            return ()
        parts = self._cpus.parts(self._cpus.composites.kind(kind, number), place.exclusive)
        return tuple([(part.name, cpus) for part, cpus in parts])

    def tidy(self, node: Node, now_s: float) -> Mapping[str, Placement]:
        """The placements of containers whose balloon should have other CPUs now."""
        found = self._books.read(node)
        owns = {name: balloon.cpus for name, balloon in found.balloons.items()}
        idle = found.idle
        # 1. Balloons that are too large give CPUs back.
        for name, balloon in found.balloons.items():
            most = self._most(node, balloon, now_s)
            if len(balloon.cpus) > most:
                before = node.owned_before.get(name, NO_CPUS) & balloon.cpus
                keep = must_stay(balloon) | (before if len(before) <= most else NO_CPUS)
                owns[name] = self._shrunk(node, found, balloon, most, keep)
                idle |= balloon.cpus - owns[name]
        for name in sorted(node.owned_before.keys() & owns.keys()):
            again = owns[name] | (node.owned_before[name] & idle)
            if len(again) <= self._most(node, found.balloons[name], now_s):
                owns[name], idle = again, idle - again
        # 2. Balloons that are too small take idle CPUs, and what others have to spare, the most important first.
        for name, balloon in sorted(found.balloons.items(), key=lambda item: self._rank(item[1])):
            needed = self._cpus.needed(node, balloon.kind, balloon.milli)
            if len(owns[name]) >= needed:
                continue
            now = {other: replace(b, cpus=owns[other]) for other, b in found.balloons.items()}
            for other, cpus in self._spare(node, replace(found, balloons=now), name):
                here = idle if balloon.region is None else idle & balloon.region
                if len(owns[name]) + len(here) - found.kept_idle >= needed:
                    break
                owns[other], idle = owns[other] - cpus, idle | cpus
            if len(idle) > found.kept_idle:
                left = replace(found, idle=idle)
                if balloon.kind.all_loads:
                    left = replace(
                        left, balloons={other: replace(b, cpus=owns[other]) for other, b in now.items()}
                    )
                owns[name] = self._grown(node, left, now[name], needed, idle)
                idle -= owns[name]
        # 3. All containers of a balloon have its CPUs.
        changed: dict[str, Placement] = {}
        free = node.usable - node.reserved - found.foreign.union(*owns.values())
        for name, balloon in found.balloons.items():
            if owns[name]:
                changed.update(self._places.of_members(node, balloon, owns[name], free))
        return changed

    # ------------------------------------------------------------------ which balloon

    def _type_of(self, keep: Optional[Placement]) -> Optional[BalloonType]:
        """The type of the balloon that a placement is in, if there still is such a type."""
        named = parse_name(keep.group) if keep is not None else None
        return None if named is None else self._types.get(named[0])

    def _kept(
        self,
        found: FoundBalloons,
        keep: Optional[Placement],
        kind: BalloonType,
        container: Container,
        constraint: Constraint,
    ) -> Optional[Balloon]:
        """The balloon that a container is in; also if it was alone there, and its CPUs count as idle now."""
        named = parse_name(keep.group) if keep is not None else None
        if keep is None or named is None or named[0] != kind.name:
            return None
        balloon = found.balloons.get(keep.group)
        if balloon is None:
            region = self._cpus.region(kind, named[1])
            kind = self._cpus.composites.kind(kind, named[1])
            balloon = Balloon(kind, named[1], keep.exclusive & found.idle, region=region)
        return balloon if self._lets_run(kind, balloon.cpus, container, constraint.cpus) else None

    def _chosen(
        self, node: Node, found: FoundBalloons, kind: BalloonType, ask: BalloonRequest, spare: frozenset[int]
    ) -> Optional[Balloon]:
        """The balloon that a container joins: with the idle CPUs, or a better one with what others have to spare."""
        place, balloon = self._chosen_of(node, found, kind, ask)
        if not spare or not place:
            return balloon
        _, better = self._chosen_of(node, found, kind, replace(ask, idle=ask.idle | spare), place)
        return better or balloon

    def _chosen_of(
        self,
        node: Node,
        found: FoundBalloons,
        kind: BalloonType,
        ask: BalloonRequest,
        better_than: Optional[int] = None,
    ) -> tuple[int, Optional[Balloon]]:
        of_kind = [b for b in found.balloons.values() if b.kind.name == kind.name and b.region != NO_CPUS]
        used = {b.number for b in of_kind}
        # 1. Balloons wanted from the start are there, with nothing in them. None takes the last CPU
        #    from containers that are in no balloon.
        aside = self._cpus.set_aside(node)
        for number in range(self._cpus.first(kind)):
            if number not in used:
                cpus = aside.get(name_of(kind, number), NO_CPUS) & found.spare
                part = self._cpus.composites.kind(kind, number)
                of_kind.append(Balloon(part, number, cpus, region=self._cpus.region(kind, number)))
        # 2. And one more.
        numbers = {b.number for b in of_kind}
        fresh = None
        if not kind.one_per and (not kind.max_balloons or len(of_kind) < kind.max_balloons):
            there = self._there(node, found) if kind.components else ()
            number = self._cpus.composites.number(kind, numbers, there)
            fresh = Balloon(self._cpus.composites.kind(kind, number), number, NO_CPUS)
        # 3. One that cannot have its least number of CPUs does not begin.
        if kind.components:
            of_kind = [b for b in of_kind if b.group or self._cpus.least(b.kind) <= len(ask.idle)]
            fresh = fresh if fresh and self._cpus.least(fresh.kind) <= len(ask.idle) else None
        elif len(ask.idle) < kind.min_cpus:
            of_kind, fresh = [b for b in of_kind if b.group], None
        may_join = [
            b for b in of_kind if not b.cpus or self._lets_run(b.kind, b.cpus, ask.container, ask.inside)
        ]
        return choose(kind, sorted(may_join, key=lambda b: b.number), fresh, ask, better_than)

    def _there(self, node: Node, found: FoundBalloons) -> Iterator[tuple[BalloonType, int]]:
        """All balloons that are there, those without containers too, by type and number."""
        for name in {*found.balloons, *self._cpus.set_aside(node)}:
            kind, number = parse_name(name) or ("", 0)
            yield self._types[kind], number

    def _any(self, found: FoundBalloons, ask: BalloonRequest) -> Optional[Balloon]:
        """Where there is no CPU left for a balloon, nor one that all share: the default balloon, else any that has CPUs."""
        if found.idle if ask.inside is None else found.idle & ask.inside:
            return None
        balloons = sorted(found.balloons.values(), key=lambda b: (b.kind.name != DEFAULT, self._rank(b)))
        inside = [b for b in balloons if self._lets_run(b.kind, b.cpus, ask.container, ask.inside)]
        return inside[0] if inside else None

    def _lets_run(
        self, kind: BalloonType, own: frozenset[int], container: Container, inside: Optional[frozenset[int]]
    ) -> bool:
        """Whether a container has a CPU in a balloon that owns these; ``inside``: what its caller lets it use."""
        return bool(self._places.visible(kind, own, container, inside))

    def _rank(self, balloon: Balloon) -> tuple[tuple[int, int], int]:
        return self._order[balloon.kind.name], balloon.number

    # ------------------------------------------------------------------ how large

    def _most(self, node: Node, balloon: Balloon, now_s: float) -> int:
        """The CPUs that a balloon may have now: what it needs in whole cores; and another core, if its containers have
        changed not long ago. No more than before a request that is taken back just now."""
        kind = balloon.kind
        whole = self._cpus.whole(node, kind, self._cpus.needed(node, kind, balloon.milli))
        if (before := node.owned_before.get(balloon.name)) is not None:
            return max(whole, len(before))
        if now_s - node.changed_s.get(balloon.name, -SPARE_S) >= SPARE_S:
            return whole
        return kind.within_limit(whole + self._cpus.core(node, kind))

    def _inflated(
        self,
        node: Node,
        found: FoundBalloons,
        balloon: Balloon,
        ask: BalloonRequest,
        affinity: Optional[Affinity],
        may_ask_others: bool,
    ) -> tuple[FoundBalloons, frozenset[int]]:
        """The CPUs of a balloon with one container more, and the balloons once they have given up what it needs of their
        spare ones: the least important first, and no more of them than help."""
        own = self._inflated_alone(node, found, balloon, ask, affinity)
        needed = self._cpus.needed(node, balloon.kind, balloon.milli + ask.milli)
        given_up: dict[str, frozenset[int]] = {}
        for name, cpus in self._spare(node, found, balloon.name) if may_ask_others else ():
            if len(own) >= needed:
                break
            left = found.giving_up({**given_up, name: cpus})
            more = self._inflated_alone(node, left, balloon, ask, affinity)
            if len(more) > len(own):
                own, given_up[name] = more, cpus
        return (found.giving_up(given_up) if given_up else found), own

    def _inflated_alone(
        self,
        node: Node,
        found: FoundBalloons,
        balloon: Balloon,
        ask: BalloonRequest,
        affinity: Optional[Affinity],
    ) -> frozenset[int]:
        """The CPUs of a balloon with one container more; never fewer than others in it have now."""
        wanted = self._cpus.needed(node, balloon.kind, balloon.milli + ask.milli)
        most = self._cpus.whole(node, balloon.kind, wanted)
        if most < len(balloon.cpus) and not balloon.group and ask.inside is None:
            return self._shrunk(node, found, balloon, most)
        graph = affinity or NoAffinity()
        cost: Optional[Cost] = None
        if affinity is not None:
            cost = lambda cpus: (graph.fault(ask.container, cpus), graph.cost(ask.container, cpus))  # noqa: E731
        # CPUs that the container may use come first; a balloon that has none of them yet gets no others.
        if ask.inside is not None:
            own = self._grown(node, found, balloon, wanted, found.idle & ask.inside, cost, ask.container)
            if not balloon.cpus:
                return own
            balloon = replace(balloon, cpus=own)
        return self._grown(node, found, balloon, wanted, found.idle, cost, ask.container)

    def _grown(
        self,
        node: Node,
        found: FoundBalloons,
        balloon: Balloon,
        wanted: int,
        free: frozenset[int],
        cost: Optional[Cost] = None,
        container: Optional[Container] = None,
    ) -> frozenset[int]:
        """The CPUs of a balloon that is to have ``wanted``, and the rest of the last core if that is idle and set aside for
        no other; the last idle ones stay where a balloon needs them."""
        most = len(balloon.cpus) + max(0, len(found.idle - balloon.cpus) - found.kept_idle)
        waiting = self._waiting(node, found, balloon.name)
        free = (free if balloon.region is None else free & balloon.region) - balloon.cpus
        least, whole = min(wanted, most), self._cpus.whole(node, balloon.kind, wanted)

        loaded = self._loaded(node, found, balloon)

        def take(count: int, pool: frozenset[int]) -> frozenset[int]:
            return self._cpus.grown(balloon.kind, balloon.cpus, count, pool, waiting, cost, loaded, container)

        own = take(whole, free - waiting) if wanted < whole <= most else NO_CPUS
        if len(own) < whole or (needs_of(node) and emptied_by(node, own - balloon.cpus)):
            own = take(least, free)
        return own if not needs_of(node) else self._leaving_some(node, free, balloon.cpus, own, take)

    def _leaving_some(
        self,
        node: Node,
        free: frozenset[int],
        have: frozenset[int],
        own: frozenset[int],
        take: Callable[[int, frozenset[int]], frozenset[int]],
    ) -> frozenset[int]:
        """As many CPUs as ``own`` that are not the last ones of other containers; else fewer, but for the first one."""

        def at_least(count: int) -> Optional[frozenset[int]]:
            def enough(pool: frozenset[int]) -> Optional[frozenset[int]]:
                return found if len(found := take(len(own), pool)) >= count else None

            return take_sparing(node, free, have, enough, lambda found: found)

        for count in (len(own), 1):
            found = at_least(count)
            if found is not None and not emptied_by(node, found - have):
                return found
        return own

    def _shrunk(
        self,
        node: Node,
        found: FoundBalloons,
        balloon: Balloon,
        count: int,
        keep: frozenset[int] = NO_CPUS,
    ) -> frozenset[int]:
        """The ``count`` CPUs of a balloon that it keeps."""
        loaded = self._loaded(node, found, balloon)
        return self._cpus.shrunk(balloon.kind, balloon.cpus, count, keep, loaded)

    def _loaded(self, node: Node, found: FoundBalloons, balloon: Balloon) -> Loaded:
        """What the other balloons load, those without containers too, of the loads that a balloon has."""
        if not balloon.kind.all_loads:
            return NOTHING_LOADED
        parts = [
            part
            for other in found.balloons.values()
            if other.name != balloon.name and other.kind.all_loads
            for part in self._cpus.parts(other.kind, other.cpus)
        ]
        for name, cpus in self._cpus.set_aside(node).items():
            kind, number = parse_name(name) or ("", 0)
            waits = self._types[kind]
            if name not in found.balloons and name != balloon.name and (waits.loads or waits.components):
                parts += self._cpus.parts(self._cpus.composites.kind(waits, number), cpus)
        return self._cpus.loads.added(NOTHING_LOADED, parts)

    def _waiting(self, node: Node, found: FoundBalloons, but: str = "") -> frozenset[int]:
        """The CPUs that are set aside for balloons that have no containers now; ``but``: all but one's."""
        aside = self._cpus.set_aside(node)
        waiting = [cpus for name, cpus in aside.items() if name not in found.balloons and name != but]
        return frozenset().union(*waiting)

    # ------------------------------------------------------------------ what containers get

    def _decided(
        self,
        node: Node,
        found: FoundBalloons,
        balloon: Balloon,
        own: frozenset[int],
        container: Container,
        constraint: Constraint,
        note: str,
    ) -> Decision:
        free = node.usable - node.reserved - found.foreign.union(own, *found.others(balloon.name))
        place = self._places.of_container(node, balloon, own, free, container, constraint.cpus)
        milli = balloon.milli + container.resources.milli_request
        fits = len(own) * 1000 >= milli
        # Its memory is near the CPUs it can count on.
        settings = self.settings.for_group(balloon.name)
        why = f"{note}{self._places.why(balloon, own, milli)}{self._beside(node, found, balloon, own)}"
        decision = with_memory(node, container, settings, constraint, replace(place, cpus=own), why, fits)
        why = "; ".join((decision.why, *container.preferences.notes))
        others = self._places.of_members(node, balloon, own, free)
        for name in found.given_up:
            other = found.balloons[name]
            others.update(self._places.of_members(node, other, other.cpus, free))
        return replace(
            decision, placement=replace(decision.placement, cpus=place.cpus), why=why, others=others
        )

    def asks_kubelet(self, node: Node, container: Container) -> bool:
        if not self._asks_kubelet:
            return False
        try:
            return self._chooser.find(container, bool(node.reserved)).name in self._asks_kubelet
        except PlacementRefused:
            return False

    def _beside(self, node: Node, found: FoundBalloons, balloon: Balloon, own: frozenset[int]) -> str:
        """How many of its CPUs share a domain with a load of others that it has, too, in words."""
        loaded = self._loaded(node, found, balloon)
        counts: dict[str, int] = {}
        for part, cpus in self._cpus.parts(balloon.kind, own) if loaded else ():
            for name in part.loads:
                counts[name] = counts.get(name, 0) + len(cpus.intersection(*loaded.get(name, ((),))[:1]))
        return "".join([f", {n} of them beside the load {x} of others" for x, n in counts.items() if n])

    def ignored(self, container: Container) -> tuple[str, ...]:
        return container.preferences.notes

    def reserved_for(self, node: Node, home: frozenset[int]) -> frozenset[int]:
        domains = self._cpus.domains(self._types[RESERVED])
        theirs = NO_CPUS.union(*[domain for domain in domains if not domain.isdisjoint(home)]) & node.reserved
        return theirs or node.reserved

    def _place_reserved(
        self, node: Node, kind: BalloonType, container: Container, constraint: Constraint
    ) -> object:
        """A decision on the reserved CPUs; else in words why there is none."""
        # Of several domains' the least used ones come first.
        parts = [domain & node.shared_reserved for domain in self._cpus.domains(kind)]
        parts = sorted(
            filter(None, parts),
            key=lambda cpus: (
                node.charge_milli(cpus) * 1000 // len(cpus),
                node.containers_on(cpus),
                min(cpus),
            ),
        )
        place: object = ""
        for part in parts or [node.reserved]:
            inside = part if constraint.cpus is None else part & constraint.cpus
            place = reserved_place(node, container, replace(constraint, cpus=inside))
            if isinstance(place, Placement):
                why = "; ".join((f"shares {_of_reserved(node, place)}", *container.preferences.notes))
                settings = self.settings.for_group(name_of(kind, 0))
                return with_memory(node, container, settings, constraint, place, why)
        return place


def _of_reserved(node: Node, place: Placement) -> str:
    count = len(place.cpus)
    if count == len(node.shared_reserved):
        return f"the {count} reserved CPUs"
    return f"{count} of the {len(node.shared_reserved)} reserved CPUs"


class BalloonPlaces:
    """Makes the placements of balloons' containers on one machine. ``free``: the CPUs that are in no balloon."""

    def __init__(self, topology: Topology, cpus: BalloonCpus) -> None:
        self.topology = topology
        self._cpus = cpus

    def of_container(
        self,
        node: Node,
        balloon: Balloon,
        own: frozenset[int],
        free: frozenset[int],
        container: Optional[Container],
        inside: Optional[frozenset[int]],
    ) -> Placement:
        """The placement of a container in a balloon; ``inside``: the CPUs its caller lets it use, None = all."""
        hides = _hides(balloon.kind, container)
        home = self._cpus.home(node, balloon.kind, own)
        visible = self.visible(balloon.kind, own, container, inside)
        shared = home & free if inside is None else home & free & inside
        if hides:
            shared = self.topology.one_thread_per_core(shared)
        return Placement(
            cpus=shared | visible,
            exclusive=own,
            level=f"balloon:{balloon.name}",
            home=home,
            group=balloon.name,
            hidden=(own if inside is None else own & inside) - visible,
            one_thread=hides,
        )

    def visible(
        self,
        kind: BalloonType,
        own: frozenset[int],
        container: Optional[Container],
        inside: Optional[frozenset[int]],
    ) -> frozenset[int]:
        """The CPUs of a balloon that a container of it sees: of each core one that its caller lets it use, or all."""
        mine = own if inside is None else own & inside
        return self.topology.one_thread_per_core(mine) if _hides(kind, container) else mine

    def of_members(
        self, node: Node, balloon: Balloon, own: frozenset[int], free: frozenset[int]
    ) -> dict[str, Placement]:
        """The placements of a balloon's containers that differ from the present ones.

        Of containers with like places it is made once. One that is being resized gets more with the answer.
        """
        group = balloon.group
        if group is None:
            return {}
        changed: dict[str, Placement] = {}
        home = self._cpus.home(node, balloon.kind, own)
        near = self.topology.nodes_of(own) & node.mems
        stay = {key for key in balloon.twice if group.members[key].exclusive <= own}
        for keys in group.kinds.values():
            one = group.members[next(iter(keys))]
            was = one.placement
            if was is None or (was.exclusive, was.home, was.one_thread) == (
                own,
                home,
                _hides(balloon.kind, one.container),
            ):
                continue
            now = self.of_container(node, balloon, own, free, one.container, one.inside)
            # Memory nodes are only added: memory stays where it is.
            cpus = was.cpus if was.cpus == now.cpus else now.cpus
            types = one.container.preferences.memory_types if one.container else NO_TYPES
            more = near & self._of_types(types or balloon.kind.memory_types)
            now = replace(now, cpus=cpus, mems=was.mems and was.mems | more)
            changed.update((key, _as(now, group.members[key])) for key in keys if key not in stay)
        return changed

    def _of_types(self, types: frozenset[str]) -> frozenset[int]:
        return nodes_of_types(self.topology, types) if types else self.topology.memory_nodes

    def why(self, balloon: Balloon, own: frozenset[int], milli: int) -> str:
        """The place in words; ``milli``: the requests there now, in milli-CPUs."""
        joined = "joins" if balloon.group else "is in"
        around = [domain for domain in reversed(self.topology.domains) if own <= domain.cpus]
        where = around[0].name if around else "the machine"
        grew = ""
        if balloon.group and len(own) > len(balloon.cpus):
            grew = f", {len(own) - len(balloon.cpus)} of them new"
        short = "" if len(own) * 1000 >= milli else f", too few for the {milli}m requested: overcommitted"
        count = f"{len(own)} {'CPU' if len(own) == 1 else 'CPUs'}"
        parts = ""
        if balloon.kind.parts:
            each = self._cpus.parts(balloon.kind, own)
            parts = f" ({', '.join([f'{len(theirs)} as of {part.name}' for part, theirs in each])})"
        return f"{joined} balloon {balloon.name}: {count} of {where}{parts}{grew}{short}"


def _as(now: Placement, member: Resident) -> Placement:
    """A place with what a container has of its own: how its memory is charged, whether its quota is lifted."""
    was = member.placement
    assert was is not None  # else it is in no group
    if not was.memory_charge and not was.lift_quota:
        return now
    return altered(now, memory_charge=was.memory_charge, lift_quota=was.lift_quota)


def _hides(kind: BalloonType, container: Optional[Container]) -> bool:
    """Whether a container sees one thread of each core only."""
    return kind.hide_hyperthreads or (container is not None and container.preferences.smt == "hide")
