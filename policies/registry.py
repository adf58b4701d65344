"""The policies by name. Adding one is one file and one line here."""

from __future__ import annotations

from typing import Protocol

from policies.balloons.policy import Balloons
from policies.hygon import Hygon, TopologyAware
from policies.machine.topology import Topology
from policies.policy import NoPolicy, Policy
from policies.settings import PlacementSettings


class PolicyFactory(Protocol):
    """Makes a policy for one machine and one set of options."""

    def __call__(self, topology: Topology, settings: PlacementSettings) -> Policy: ...


POLICIES: dict[str, PolicyFactory] = {
    "hygon": Hygon,
    "topology-aware": TopologyAware,
    "balloons": Balloons,
    "none": NoPolicy,
}
