"""The policies by name. Adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, Protocol

from policies.balloons.policy import Balloons
from policies.hygon import Hygon
from policies.machine.topology import Topology
from policies.model import Affinity, Container, CpusetConstraint, Decision, Placement
from policies.node import Node
from policies.none import NoPolicy
from policies.settings import PlacementSettings
from policies.topology_aware import TopologyAware


class Policy(Protocol):
    """What the engine asks a policy: one question, answered from values, changing nothing."""

    name: str
    settings: PlacementSettings
    #: Whether it gives containers CPUs of their own; decides what a container found without records is taken for.
    owns_exclusively: bool
    #: Whether isolated CPUs (``isolcpus``) are no shared ones.
    keeps_isolated_apart: bool
    #: Whether containers may be moved so that another one fits.
    moves_others: bool

    def place(
        self,
        node: Node,
        container: Container,
        fence: CpusetConstraint = ...,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
        keep: Optional[Placement] = None,
    ) -> Decision:
        """Where the container should run, given the books of the node, in which it is not yet.

        ``near``: the home it has now, when it is placed anew. ``keep``: the placement it has, when it is
        resized; of its exclusive CPUs as many stay as can.

        :raises PlacementRefused: it must not run otherwise than asked for, and cannot be.
        :raises BudgetSpent: too many candidates.
        """
        ...

    def sizes(self, node: Node, container: Container, fence: CpusetConstraint) -> tuple[int, ...]:
        """How large the places are that a container can have whose set is sized by demand: milli-CPUs, ascending, the
        last the one by its limit. () = its set is not sized by demand."""
        ...

    def why_not_sized(self, node: Node, container: Container) -> str:
        """Why its set is not; "" = it is."""
        ...

    def fits_by_room(self, node: Node, container: Container) -> bool:
        """Whether a container owns no CPUs and fits only where the shared CPUs of a domain have room for its request."""
        ...

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        """After a container has gone or changed: the placements that others should have now, where they differ."""
        ...


class PolicyFactory(Protocol):
    """Makes a policy for one machine and one set of options."""

    def __call__(self, topology: Topology, settings: PlacementSettings) -> Policy: ...


POLICIES: dict[str, PolicyFactory] = {
    "hygon": Hygon,
    "topology-aware": TopologyAware,
    "balloons": Balloons,
    "none": NoPolicy,
}
