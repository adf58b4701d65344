"""The preset ``topology-aware``: as ``hygon``, and Guaranteed containers own whole CPUs (policies/exclusive/rules.py)."""

from __future__ import annotations

from policies.hygon import Hygon


class TopologyAware(Hygon):
    """Exclusive CPUs by class and size, shared ones by the ladder; the settings' ``ownership`` is the default."""

    name = "topology-aware"
    owns_exclusively = True
