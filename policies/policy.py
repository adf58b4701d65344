"""The engine's questions to a policy, and the answers of a policy that has nothing of its own to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from policies.machine.topology import Topology
from policies.model import UNTOUCHED, Constraint, Container, Decision, Placement, PlacementRequest
from policies.node import Node
from policies.settings import PlacementSettings


class Policy(ABC):
    """A policy for one machine and one set of options. Each question is answered from values and changes nothing."""

    name: str
    #: Whether it gives containers CPUs of their own; decides what a container found without records is taken for.
    owns_exclusively = False
    #: Whether isolated CPUs (``isolcpus``) are no shared ones.
    keeps_isolated_apart = False
    #: Whether containers may be moved so that another one fits.
    moves_others = False
    #: Whether CPUs are kept for claims of them.
    holds_claims = False

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.topology = topology
        self.settings = settings

    @abstractmethod
    def place(self, node: Node, request: PlacementRequest) -> Decision:
        """Where a container should run, given the books of the node.

        :raises PlacementRefused: it must not run otherwise than asked for, and cannot be.
        :raises BudgetSpent: too many candidates.
        """

    def sizes(self, node: Node, container: Container, constraint: Constraint) -> tuple[int, ...]:
        """How large the places are that a container can have whose set is sized by demand: milli-CPUs, ascending, the
        last the one by its limit. () = its set is not sized by demand: see ``why_not_sized``."""
        return ()

    def why_not_sized(self, node: Node, container: Container) -> str:
        """Why its set is not; "" = it is."""
        return f"policy {self.name} does not size cpusets by usage"

    def fits_by_room(self, node: Node, container: Container) -> bool:
        """Whether a container owns no CPUs and fits only where the shared CPUs of a domain have room for its request."""
        return False

    def reserved_for(self, node: Node, home: frozenset[int]) -> frozenset[int]:
        """The reserved CPUs for a container that shares some: ``home``, of the reserved ones there were at its start."""
        return node.reserved

    def asks_kubelet(self, node: Node, container: Container) -> bool:
        """Whether it depends on the devices that kubelet has given to a container (hints of the kind resources)."""
        return False

    def parts_of(self, place: Placement) -> tuple[tuple[str, frozenset[int]], ...]:
        """Where a container's own CPUs are those of a composite balloon: the type of each part, and its CPUs."""
        return ()

    def ignored(self, container: Container) -> tuple[str, ...]:
        """Its annotations that are ignored here, sentences; ``Decision.why`` has them, too."""
        notes, balloon = container.preferences.notes, container.preferences.balloon
        if not balloon:
            return notes
        why = "this policy has no balloons; it is ignored"
        return (*notes, f'the annotation for a balloon of type "{balloon:.60}": {why}')

    def tidy(self, node: Node, now_s: float) -> Mapping[str, Placement]:
        """After a container has gone or changed, or time has passed: the placements that others should have at ``now_s``,
        seconds since boot, where they differ. It refuses none: what it has no better place for stays."""
        return {}


class NoPolicy(Policy):
    """The policy ``none``: containers run where the caller puts them; they are still known, and their requests counted."""

    name = "none"

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        return Decision(UNTOUCHED, "policy none: requests go through as they are")

    def why_not_sized(self, node: Node, container: Container) -> str:
        return "policy none sets no cpusets"
