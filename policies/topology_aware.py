"""The preset ``topology-aware``: as ``hygon``, and Guaranteed containers own whole CPUs (policies/exclusive/rules.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from policies.hygon import Hygon
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, Affinity, Container, CpusetConstraint, Decision, Placement
from policies.node import Node
from policies.settings import PlacementSettings


class TopologyAware:
    """Exclusive CPUs by class and size, shared ones by the ladder."""

    name = "topology-aware"
    owns_exclusively = True
    keeps_isolated_apart = True
    moves_others = True

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.settings = settings
        self._ladder = Hygon(topology, settings)

    def place(
        self,
        node: Node,
        container: Container,
        fence: CpusetConstraint = NO_CONSTRAINT,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
        keep: Optional[Placement] = None,
    ) -> Decision:
        """As ``Hygon.place``; what is owned by default is the settings' ``ownership``."""
        return self._ladder.place(node, container, fence, affinity, near, keep)

    def sizes(self, node: Node, container: Container, fence: CpusetConstraint) -> tuple[int, ...]:
        return self._ladder.sizes(node, container, fence)

    def why_not_sized(self, node: Node, container: Container) -> str:
        return self._ladder.why_not_sized(node, container)

    def fits_by_room(self, node: Node, container: Container) -> bool:
        return self._ladder.fits_by_room(node, container)

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        return self._ladder.tidy(node)
