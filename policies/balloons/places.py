"""The place of containers in a balloon: its CPUs, and the CPUs around it that are in no balloon."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import Balloon, BalloonType
from policies.groups import key_of, whole
from policies.machine.topology import Topology
from policies.model import Container, Placement, altered
from policies.node import Node, Resident


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

        Where what the balloon owns is all that differs, it is said once, under the balloon's own key (``groups.key_of``).
        """
        group = balloon.group
        if group is None:
            return {}
        changed: dict[str, Placement] = {}
        together = False
        home = self._cpus.home(node, balloon.kind, own)
        near = self.topology.nodes_of(own) & node.mems
        has_own = group.own == own
        # One that is being resized is told with the answer.
        stay = {key for key in balloon.twice if group.owned(key) <= own}
        for keys in group.kinds.values():
            # 1. The placement of containers with like places is made once.
            one = group.members[next(iter(keys))]
            was = one.placement
            if was is None:
                continue
            is_even = was.one_thread == _hides(balloon.kind, one.container) and was.home == home
            if has_own and is_even and not group.apart:
                continue
            now = self.of_container(node, balloon, own, free, one.container, one.inside)
            # Memory nodes are only added: memory stays where it is.
            now = replace(now, mems=was.mems and was.mems | near)
            # 2. The same as they have, but that they own something else: that is said of all.
            shows_nothing = bool(group.own) and len(group) > 1 and _shown(now) == _shown(was)
            if shows_nothing and not has_own and not together:
                together = any(key not in group.apart and key not in stay for key in keys)
            only_apart = shows_nothing or (has_own and is_even)
            for key in [key for key in group.apart if key in keys] if only_apart else keys:
                if key not in stay and not (is_even and group.owned(key) == own):
                    changed[key] = _as(now, group.members[key])
            # 3. Not of one that is being resized and loses some.
            losers = balloon.twice - stay if shows_nothing and not has_own else ()
            for key in sorted(losers & keys.keys()) if losers else ():
                changed[key] = _as(now, group.members[key])
        if together:
            changed[key_of(balloon.name)] = whole(balloon.name, own)
        return changed

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
        return f"{joined} balloon {balloon.name}: {count} of {where}{grew}{short}"


def _shown(place: Placement) -> tuple[object, ...]:
    """The container's own part of a place: without its balloon's CPUs."""
    return place.cpus, place.home, place.mems, place.hidden, place.one_thread


def _as(now: Placement, member: Resident) -> Placement:
    """A place with what a container has of its own: how its memory is charged, whether its quota is lifted."""
    was = member.placement
    assert was is not None  # else it is in no group
    return altered(now, memory_charge=was.memory_charge, lift_quota=was.lift_quota)


def _hides(kind: BalloonType, container: Optional[Container]) -> bool:
    """Whether a container sees one thread of each core only."""
    return kind.hide_hyperthreads or (container is not None and container.preferences.smt == "hide")
