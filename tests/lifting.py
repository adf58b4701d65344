"""The real daemon with a policy that lifts quotas: ``python -m tests.lifting run ...``, in place of ``hygon``."""

from __future__ import annotations

import os
from dataclasses import replace

from cri_proxy.launcher import main
from policies.machine.topology import Topology
from policies.model import Decision, PlacementRequest
from policies.node import Node
from policies.registry import POLICIES
from policies.settings import PlacementSettings
from tests.scenes import HYGON, Owning


class Lifting(Owning):
    """Containers that own all of their CPUs have no quota, unless they wish to keep it.

    With LIFT_ALL in the environment those that share them have none either.
    """

    def __init__(self, tree: Topology, settings: PlacementSettings = HYGON) -> None:
        super().__init__(tree, replace(settings, cfs_quota="lift"))

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        decision, container = super().place(node, request), request.container
        place, preferences = decision.placement, container.preferences
        owns = (bool(place.exclusive) and place.exclusive == place.cpus) or "LIFT_ALL" in os.environ
        lift = owns and container.resources.milli_limit is not None and preferences.cfs_quota != "keep"
        why = "; ".join((decision.why, *preferences.notes))
        return replace(decision, placement=replace(place, lift_quota=lift), why=why)


if __name__ == "__main__":
    POLICIES["hygon"] = Lifting
    main()
