"""The policy that places nothing: containers run where the caller puts them; they are still known and charged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from policies.machine.topology import Topology
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    Affinity,
    Container,
    CpusetConstraint,
    Decision,
    Placement,
)
from policies.node import Node
from policies.settings import PlacementSettings


class NoPolicy:
    """Leaves every request as it is."""

    name = "none"
    owns_exclusively = False
    keeps_isolated_apart = False
    moves_others = False

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.settings = settings

    def place(
        self,
        node: Node,
        container: Container,
        fence: CpusetConstraint = NO_CONSTRAINT,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
        keep: Optional[Placement] = None,
    ) -> Decision:
        return Decision(UNTOUCHED, "policy none: requests go through as they are")

    def sizes(self, node: Node, container: Container, fence: CpusetConstraint) -> tuple[int, ...]:
        return ()

    def why_not_sized(self, node: Node, container: Container) -> str:
        return "policy none sets no cpusets"

    def fits_by_room(self, node: Node, container: Container) -> bool:
        return False

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        return {}
