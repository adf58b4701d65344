"""What the engine must know of the node: the machine, what of it may be used, and what is set aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cri_proxy.engine.quota import pod_cgroup
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, CpusetConstraint


@dataclass(frozen=True)
class Host:
    """One node at one moment.

    ``usable``: online, in the effective cpuset of kubelet's cgroup or another that pods are in, and (if configured)
    available to us. ``mems``: NUMA nodes of those cgroups. ``parent_cpus``: what a container without any cpuset runs on.
    ``kubelet_exclusive``: kubelet's own assignments (cpu_manager_state) by (pod uid, container name).
    ``free_memory``: what was free when it was read, in bytes by NUMA node; one that is not named has any.
    ``bounds``: what cgroups with pods allow, by path, where that is not the same for all; "" = where no other counts.
    """

    topology: Topology
    usable: frozenset[int]
    mems: frozenset[int]
    parent_cpus: frozenset[int] = NO_CPUS
    reserved: frozenset[int] = NO_CPUS
    kubelet_exclusive: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    free_memory: Mapping[int, int] = field(default_factory=dict)
    bounds: Mapping[str, CpusetConstraint] = field(default_factory=dict)

    def bounded(self, fence: CpusetConstraint, cgroup_parent: str) -> CpusetConstraint:
        """A caller's fence inside of what the cgroup of a pod allows: the nearest of those that are known."""
        path = pod_cgroup(cgroup_parent) if self.bounds else ""
        while path and path not in self.bounds:
            path = path.rpartition("/")[0]
        return fence.within(self.bounds.get(path, NO_CONSTRAINT))
