"""The place of containers in a balloon: its CPUs, and the CPUs around it that are in no balloon."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import Balloon, BalloonType
from policies.machine.topology import Topology
from policies.model import Container, Placement, Resident, altered
from policies.node import Node


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
            now = replace(now, cpus=cpus, mems=was.mems and was.mems | near)
            changed.update((key, _as(now, group.members[key])) for key in keys if key not in stay)
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
