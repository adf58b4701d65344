"""Rules for exclusive CPUs: the table of the topology-aware policies of Intel's cri-resource-manager and nri-plugins.

    reserved namespace, or asked for          the reserved CPUs
    Burstable, BestEffort, Guaranteed < 1     shared
    Guaranteed = 1                            1 of its own, isolated preferred; shared if annotated
    Guaranteed 1 .. 2, fractional             1 of its own and the fraction shared; shared if preferred or annotated
    Guaranteed >= 2, whole                    all its own; isolated, or shared, if annotated
    Guaranteed >= 2, fractional               shared; whole part its own if annotated

Where CPUs are shared by default (the preset ``hygon``) only containers that ask for it own any; a container of
any class that asks owns the whole part of its request.

Of a pod with resources of its own the containers without a request share what the others leave of the pod's: where
that is whole CPUs and a container with that request would own them, they own them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from policies.model import Container, Qos
from policies.settings import PlacementSettings


@dataclass(frozen=True)
class CpuDemand:
    """The claim of a container: ``full`` CPUs of its own, ``milli_shared`` of shared ones; or reserved CPUs.

    ``isolated``: avoid, prefer or require isolated CPUs for those of its own.
    """

    full: int = 0
    milli_shared: int = 0
    is_reserved: bool = False
    isolated: str = "avoid"

    @property
    def is_mixed(self) -> bool:
        """Whether it has CPUs of its own and a part of the shared ones."""
        return bool(self.full and self.milli_shared)


def ask_of(container: Container, settings: PlacementSettings, has_reserved: bool = True) -> CpuDemand:
    """The row of the table for a container. Without reserved CPUs reserved namespaces are like others."""
    preferences, request, pods = container.preferences, container.resources.milli_request, container.pod_share
    shared = CpuDemand(milli_shared=request)
    # 1. Reserved, by annotation or by namespace.
    in_namespace = any(fnmatchcase(container.pod.namespace, name) for name in settings.reserved_namespaces)
    if preferences.reserved or (has_reserved and in_namespace and preferences.reserved is None):
        return CpuDemand(milli_shared=request, is_reserved=True)
    # 2. By its own words. Containers without a request of their own have the pod's together, if that is known for sure.
    full, fraction = divmod(request if pods is None else pods.milli_pod, 1000)
    if pods is not None and (container.resources.milli_limit is None or fraction):
        return shared
    asks = "exclusive" in (preferences.ownership, preferences.l3) or preferences.isolated == "require"
    if preferences.ownership == "shared" or not full:
        return shared
    isolated = preferences.isolated or "avoid"
    if asks:
        return CpuDemand(full, fraction, isolated=isolated)
    # 3. By class and size.
    if settings.ownership != "exclusive" or container.qos is not Qos.GUARANTEED:
        return shared
    if full == 1 and not preferences.isolated and settings.prefer_isolated:
        isolated = "prefer"
    if fraction and (full > 1 or settings.prefer_shared):
        return shared
    return CpuDemand(full, fraction, isolated=isolated)
