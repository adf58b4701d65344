"""What containers get for being in a balloon: its CPUs, and those around it that are in no balloon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import Balloon, BalloonType
from policies.machine.topology import Topology
from policies.model import Container, Placement
from policies.node import Node, Resident


class BalloonPlaces:
    """Makes the placements of balloons' containers on one machine. ``free``: the CPUs that are in no balloon."""

    def __init__(self, topology: Topology, cpus: BalloonCpus) -> None:
        self.topology = topology
        self._cpus = cpus
        #: By balloon: containers that all have the same CPUs, and these. They are not compared again until they change.
        self._even: dict[str, tuple[Mapping[str, Resident], frozenset[int]]] = {}

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
        even = self._even.get(balloon.name)
        if even is not None and even[0] is balloon.members and even[1] == own:
            return {}
        changed: dict[str, Placement] = {}
        home = self._cpus.home(node, balloon.kind, own)
        near = self.topology.nodes_of(own) & node.mems
        #: Most of them get the same: it is made once.
        made: dict[tuple[object, ...], Placement] = {}
        for key, member in balloon.members.items():
            was = member.placement
            if was is None:
                continue
            hides = _hides(balloon.kind, member.container)
            has_them = was.exclusive is own or was.exclusive == own
            if has_them and (was.home is home or was.home == home) and was.one_thread == hides:
                continue
            if key in balloon.twice and was.exclusive <= own:  # it is told with the answer to its resize
                continue
            alike = hides, member.inside, was.mems, was.memory_charge, was.lift_quota
            now = made.get(alike)
            if now is None:
                # Memory nodes are only added: what is there stays where it is.
                now = made[alike] = replace(
                    self.of_container(node, balloon, own, free, member.container, member.inside),
                    mems=was.mems and was.mems | near,
                    memory_charge=was.memory_charge,
                    lift_quota=was.lift_quota,
                )
            changed[key] = now
        if not changed and not balloon.twice:
            self._even[balloon.name] = balloon.members, own
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


def _hides(kind: BalloonType, container: Optional[Container]) -> bool:
    """Whether a container sees one thread of each core only."""
    return kind.hide_hyperthreads or (container is not None and container.preferences.smt == "hide")
