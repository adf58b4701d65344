"""What containers get for being in a balloon: its CPUs, and those around it that are in no balloon."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import Balloon, BalloonType
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
        """What a container of a balloon gets; ``inside``: the CPUs its caller lets it use, None = all."""
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
            claim=_claim_of(balloon, own),
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
        """The placements of a balloon's containers that differ from what they have."""
        group = balloon.group
        if group is None:
            return {}
        changed: dict[str, Placement] = {}
        home = self._cpus.home(node, balloon.kind, own)
        near = self.topology.nodes_of(own) & node.mems
        has_them = own == group.own
        # 1. Containers that get something else with it: other CPUs, memory nodes, a home.
        for members in group.alike.values():
            one = next(iter(members.values()))
            was = one.placement
            assert was is not None
            now = self.of_container(node, balloon, own, free, one.container, one.inside)
            # Memory nodes are only added: what is there stays where it is.
            now = replace(now, mems=was.mems and was.mems | near)
            if not has_them or was.home != home or was.one_thread != now.one_thread:
                if _shown(now) != _shown(was):
                    changed.update({key: _with_its_own(now, member) for key, member in members.items()})
            elif (now.hidden, now.mems) != (was.hidden, was.mems):
                # It has got them by a request that had to leave the others alone.
                late = {key: m for key, m in members.items() if _place(m).claim < group.claim}
                changed.update({key: _with_its_own(now, member) for key, member in late.items()})
            elif not group.is_even:
                uneven = {key: m for key, m in members.items() if node.owned(_place(m)) != own}
                changed.update({key: _with_its_own(now, member) for key, member in uneven.items()})
        # 2. One that is being resized is told with the answer; until then it has what it had.
        for key in balloon.twice:
            place = node.current(_place(group.members[key]))
            if place.exclusive <= own:
                changed.pop(key, None)
                if not has_them:
                    changed[key] = replace(place, claim=group.claim + 1)
        # 3. Where nothing else changes for any of them, the place of one says what all own now.
        if not has_them and changed.keys() <= balloon.twice:
            even = [key for key in group.holders if _place(group.members[key]).exclusive == group.own]
            for key in [key for key in even if key not in balloon.twice][:1]:
                changed[key] = replace(_place(group.members[key]), exclusive=own, claim=group.claim + 1)
        return changed

    def why(self, balloon: Balloon, own: frozenset[int], milli: int) -> str:
        """The place in words; ``milli``: what is requested there now."""
        joined = "joins" if balloon.members else "is in"
        around = [domain for domain in reversed(self.topology.domains) if own <= domain.cpus]
        where = around[0].name if around else "the machine"
        grew = ""
        if balloon.members and len(own) > len(balloon.cpus):
            grew = f", {len(own) - len(balloon.cpus)} of them new"
        short = "" if len(own) * 1000 >= milli else f", too few for the {milli}m requested: overcommitted"
        count = f"{len(own)} {'CPU' if len(own) == 1 else 'CPUs'}"
        return f"{joined} balloon {balloon.name}: {count} of {where}{grew}{short}"


def _claim_of(balloon: Balloon, own: frozenset[int]) -> int:
    """The number of a balloon's set: that of the one it has, or the next."""
    group = balloon.group
    return 0 if group is None else group.claim + (own != group.own)


def _place(member: Resident) -> Placement:
    assert member.placement is not None  # else it is in no group
    return member.placement


def _shown(place: Placement) -> tuple[object, ...]:
    """What of a place is a container's own: without what its balloon owns."""
    return place.cpus, place.home, place.mems, place.hidden, place.one_thread


def _with_its_own(now: Placement, member: Resident) -> Placement:
    """A place with what a container has of its own: how its memory is charged, whether its quota is lifted."""
    was = _place(member)
    return altered(now, memory_charge=was.memory_charge, lift_quota=was.lift_quota)


def _hides(kind: BalloonType, container: Optional[Container]) -> bool:
    """Whether a container sees one thread of each core only."""
    return kind.hide_hyperthreads or (container is not None and container.preferences.smt == "hide")
