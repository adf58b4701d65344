"""From configuration and what was read of the machine to the values an engine is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Optional

from cri_proxy.config.config import Config, CpuConstraint, engine_options, placement_settings, reservation
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, Constraint
from policies.policy import Policy
from policies.registry import POLICIES
from policies.reserved import reserve, reserve_memory

#: The policies that place by the ladder.
CLIMBING = ("hygon", "topology-aware")


@frozen
class Machine:
    """What was read of the node: its tree, what kubelet's cgroup allows (None: unknown), kubelet's CPUs, free memory.

    ``kubelet_exclusive``: as ``Host`` has it; None: that cannot be read.
    """

    topology: Topology
    parent_cpus: Optional[frozenset[int]] = None
    parent_mems: Optional[frozenset[int]] = None
    kubelet_exclusive: Optional[Mapping[tuple[str, str], frozenset[int]]] = field(default_factory=dict)
    kubelet_reserved: frozenset[int] = NO_CPUS
    free_memory: Mapping[int, int] = field(default_factory=dict)
    #: What cgroups with pods allow (CPUs, memory nodes), by path: system pods have a parent of their own.
    parents: Mapping[str, tuple[frozenset[int], frozenset[int]]] = field(default_factory=dict)
    #: What of it could not be read, or cannot be right, in sentences.
    warnings: tuple[str, ...] = ()


def make_host(
    config: Config, machine: Machine, cgroups: Optional[Mapping[str, frozenset[int]]] = None
) -> tuple[Host, tuple[str, ...]]:
    """The host as policies see it, and all that an operator should look at, in sentences: of the machine, of what the
    configuration asks of it, and of the CPUs that were reserved. ``cgroups``: the CPUs of those the configuration names.

    Usable CPUs (design rule 11): online, in the effective cpuset of a cgroup with pods, and available to us; each pod
    has those of its own cgroup alone.
    """
    topology = _tree(config, machine.topology)
    data = topology.data
    # A topology from a file may state what the cgroup allows; it then counts, not this machine's cgroups.
    parent_cpus = data.parent_cpus if data.parent_cpus is not None else machine.parent_cpus
    parent_mems = data.parent_mems if data.parent_mems is not None else machine.parent_mems
    parent = topology.online if parent_cpus is None else parent_cpus & topology.online
    mems = topology.memory_nodes if parent_mems is None else parent_mems & topology.memory_nodes
    # On a topology that is not this machine's the two may have nothing in common.
    allowed = {"": Constraint(parent, mems or topology.memory_nodes)}
    for path, (cpus, nodes) in (machine.parents if data.parent_cpus is None else {}).items():
        if cpus & topology.online:
            nodes = nodes & topology.memory_nodes or topology.memory_nodes
            allowed[path] = Constraint(cpus & topology.online, nodes)
    everything = frozenset().union(*[constraint.cpus or NO_CPUS for constraint in allowed.values()])
    known = cgroups or {}
    available = _available(config["policy.AvailableResources.CPU"], topology, parent, everything, known)
    usable = everything if available is None else everything & available
    warnings = list(machine.warnings)
    for key in ("policy.ReservedResources.CPU", "policy.AvailableResources.CPU"):
        if config[key].cgroup and config[key].cgroup not in known:
            warnings.append(
                f"{key} names the cgroup {config[key].cgroup}, which has no cpuset; it counts as not given"
            )
    if not usable & parent:
        warnings.append(
            f"no CPU of AvailableResources is one of kubelet's cgroup ({format_cpus(parent)}): ignored"
        )
        usable = everything
    wanted = reservation(config, known.get(config["policy.ReservedResources.CPU"].cgroup), topology.online)
    # Reserved CPUs need not be among those that are available: they are the system's.
    usable |= parent & (wanted.cpus or NO_CPUS)
    reserved = reserve(topology, usable & parent, wanted, machine.kubelet_reserved)
    all_mems = frozenset().union(*[constraint.mems or NO_CPUS for constraint in allowed.values()])
    host = Host(
        topology=topology,
        usable=usable,
        mems=all_mems,
        parent_cpus=parent,
        reserved=reserved.cpus,
        kubelet_exclusive=dict(machine.kubelet_exclusive or {}),
        knows_kubelet=machine.kubelet_exclusive is not None,
        free_memory=machine.free_memory,
        bounds=_bounds(allowed, usable, all_mems),
        reserved_memory=reserve_memory(topology, config["policy.ReservedResources.Memory"]),
    )
    if 0 < sum(topology.ordinary_bytes.values()) <= config["policy.ReservedResources.Memory"]:
        warnings.append(
            "policy.ReservedResources.Memory is all of the machine's memory or more: no limit of a container fits"
        )
    return host, (*warnings, *reserved.warnings)


def _tree(config: Config, topology: Topology) -> Topology:
    """The machine's tree with the leaves that the ladder needs: clusters of cores for the fine one, else L3s."""
    is_fine = config["placement.ladder"] == "fine" and config["policy.Active"] in CLIMBING
    to_clusters = is_fine and any(c.cluster is not None for c in topology.data.cpus)
    return topology if to_clusters == topology.has_cluster_leaves else Topology(topology.data, to_clusters)


def _bounds(
    allowed: Mapping[str, Constraint], usable: frozenset[int], mems: frozenset[int]
) -> Mapping[str, Constraint]:
    """What is allowed where that is less than there is; nothing if all may use all."""

    def bound(some: Optional[frozenset[int]], everything: frozenset[int]) -> Optional[frozenset[int]]:
        return None if some is None or some >= everything else some

    found = {path: Constraint(bound(f.cpus, usable), bound(f.mems, mems)) for path, f in allowed.items()}
    return {} if set(found.values()) == {NO_CONSTRAINT} else found


def _available(
    constraint: CpuConstraint,
    topology: Topology,
    parent: frozenset[int],
    everything: frozenset[int],
    cgroups: Mapping[str, frozenset[int]],
) -> Optional[frozenset[int]]:
    if constraint.cgroup:
        return cgroups.get(constraint.cgroup)
    if constraint.cpus is not None or not constraint.milli:
        return constraint.of(everything)
    # A count: whole L3s in their order, core by core, so that what is left to others is whole as well.
    cores = topology.cpus
    ordered = [
        c for leaf in topology.caches for c in sorted(leaf.cpus & parent, key=lambda c: (cores[c].core, c))
    ]
    return frozenset(ordered[: -(-constraint.milli // 1000)])


def make_policy(config: Config, topology: Topology) -> Policy:
    """The active policy for a machine."""
    return POLICIES[config["policy.Active"]](topology, placement_settings(config))


def make_engine(config: Config, host: Host) -> Engine:
    """An engine with no containers."""
    return Engine(host, make_policy(config, host.topology), engine_options(config))
