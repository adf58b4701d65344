"""The options of placement: which policy there is, and what policies and the engine read. See ``options.py``."""

from __future__ import annotations

from cri_proxy.config.balloons import balloon_types
from cri_proxy.config.checks import (
    CpuConstraint,
    Option,
    cpus,
    duration,
    flag,
    names,
    nodes,
    one_of,
    subset,
    whole,
)
from policies.machine.cpus import NO_CPUS

_DOMAINS = one_of("ccx", "numa", "socket", "machine")

POLICY_OPTIONS: tuple[Option, ...] = (
    Option(
        "policy.Active",
        one_of("hygon", "topology-aware", "balloons", "none"),
        "hygon",
        "The placement policy. hygon: the ladder of the Hygon manual, CPUs shared; topology-aware: CPUs of "
        "their own for Guaranteed containers; balloons: pools of CPUs by policy.balloons.BalloonTypes; none: "
        "nothing is placed.",
        cluster=True,
    ),
    Option(
        "policy.ReservedResources.CPU",
        cpus("none", may_be_zero=True),
        CpuConstraint(),
        "CPUs kept for the system and for placement.reserved_namespaces. A quantity is rounded up to whole "
        "cores and taken from one L3.",
        "CPUs",
        cluster=True,
    ),
    Option(
        "policy.AvailableResources.CPU",
        cpus("all that are online", may_be_zero=False),
        CpuConstraint(),
        "The only CPUs that containers may be placed on, besides reserved ones. A quantity takes as many, L3 by L3.",
        "CPUs",
        cluster=True,
    ),
    Option(
        "policy.balloons.BalloonTypes",
        balloon_types(),
        (),
        "The types of balloons, for the policy balloons: a list of mappings, whose keys are in the table of "
        "configuration.md. A container is of the first type that matches it, or of the type its annotation names.",
        cluster=True,
    ),
    Option(
        "policy.balloons.AllocatorTopologyBalancing",
        flag(),
        False,
        "Balloons are made where most CPUs are free, rather than packed; for types that do not say.",
        cluster=True,
    ),
    Option(
        "policy.balloons.PreferSpreadOnPhysicalCores",
        flag(),
        False,
        "Balloons take one thread of many cores, rather than whole cores; for types that do not say.",
        cluster=True,
    ),
    Option(
        "placement.cpus",
        one_of("preset", "shared", "exclusive"),
        "preset",
        "What runs on a container's CPUs. shared: others of its domain, too; exclusive: whole CPUs of its own "
        "for Guaranteed containers that ask for 1 or more; preset: exclusive with policy.Active "
        "topology-aware, else shared. Balloons are shared by those in them, whatever this says.",
        cluster=True,
    ),
    Option(
        "placement.ladder",
        one_of("manual", "fine"),
        "manual",
        "The rule by which containers climb from one CCX to the machine: that of the Hygon manual, or fine, "
        "which tries the fewest CCXs of one NUMA node before a whole NUMA node.",
        cluster=True,
    ),
    Option(
        "placement.unlimited",
        _DOMAINS,
        "numa",
        "Where a container without a CPU limit may run; never less than its request needs.",
        cluster=True,
    ),
    Option("placement.besteffort", _DOMAINS, "numa", "Where a BestEffort container may run.", cluster=True),
    Option(
        "placement.l3",
        one_of("prefer", "require", "exclusive", "spread"),
        "prefer",
        "CPUs of a container's own and L3s. prefer: as few L3s as can be; require: one L3; exclusive: no "
        "other container in those L3s; spread: one thread a core over many L3s. Where that cannot be had the container "
        "shares CPUs; only its own annotation makes a demand of it, and fails the create.",
        cluster=True,
    ),
    Option(
        "placement.smt",
        one_of("any", "full-core", "hide", "spread"),
        "any",
        "CPUs of a container's own and hyperthreads. any: whole cores first; full-core: nothing but whole "
        "cores; hide: whole cores, of which one thread each runs; spread: one thread a core, the others stay "
        "free.",
        cluster=True,
    ),
    Option(
        "placement.cfs_quota",
        one_of("keep", "lift"),
        "keep",
        "The CPU quota of containers with CPUs of their own. keep: as kubelet set it; lift: taken away, from "
        "the pod too where all its limited containers have CPUs of their own.",
        cluster=True,
    ),
    Option(
        "placement.prefer_isolated",
        flag(),
        True,
        "Guaranteed containers of 1 up to 2 CPUs get isolated CPUs (isolcpus=) first, where CPUs are "
        "exclusive.",
        cluster=True,
    ),
    Option(
        "placement.prefer_shared",
        flag(),
        False,
        "Where CPUs are exclusive: Guaranteed containers of more than 1 and less than 2 CPUs get shared ones "
        "all the same, unless annotated.",
        cluster=True,
    ),
    Option(
        "placement.hints",
        subset("devices", "mounts"),
        frozenset(("devices", "mounts")),
        "What draws a container to a NUMA node: its devices, the disks behind its mounts.",
        cluster=True,
    ),
    Option(
        "placement.colocate_pods",
        flag(),
        False,
        "Containers of a pod are placed near each other, as if affinity annotations said so.",
        cluster=True,
    ),
    Option(
        "placement.colocate_namespaces",
        flag(),
        False,
        "Containers of a namespace are placed near each other, as if affinity annotations said so.",
        cluster=True,
    ),
    Option(
        "placement.max_moves",
        whole(0, 1000),
        4,
        "How many containers may be moved so that another fits the domain it needs; 0 moves none.",
        "containers",
        cluster=True,
    ),
    Option(
        "placement.move_exclusive",
        flag(),
        False,
        "Whether those may be containers with CPUs of their own.",
        cluster=True,
    ),
    Option(
        "placement.memory",
        one_of("prefer", "pin", "off"),
        "prefer",
        "Memory nodes of a container with a memory limit. prefer: those of its CPUs, with the nearest others "
        "as long as limits would exceed 90 % of their memory; pin: those of its CPUs, unless its limit alone "
        "exceeds them; off: never set.",
        cluster=True,
    ),
    Option(
        "placement.memory_only_nodes",
        nodes(),
        NO_CPUS,
        "NUMA nodes with memory but without CPUs (CXL, HBM, PMEM) that placement.memory may use; others are "
        "left alone.",
        "NUMA nodes",
        cluster=True,
    ),
    Option(
        "placement.reserved_namespaces",
        names(),
        ("kube-system",),
        "Namespaces whose containers run on the reserved CPUs, if there are any.",
        cluster=True,
    ),
    Option(
        "placement.unmanaged_namespaces",
        names(),
        (),
        "Namespaces whose containers are left alone, and charged where they run.",
        cluster=True,
    ),
    Option(
        "placement.unmanaged_handlers",
        names(),
        ("kata*", "*firecracker*", "*cloud-hypervisor*", "*qemu*"),
        "Runtime handlers (of a RuntimeClass) that start virtual machines; their containers are left alone.",
    ),
    Option(
        "placement.fail_closed_namespaces",
        names(),
        (),
        "Namespaces whose containers are refused when no placement can be decided; elsewhere the request "
        "then passes unchanged.",
    ),
    Option(
        "placement.restart_hold",
        duration(),
        300.0,
        "How long the CPUs of a container that ended are held for its next attempt. Kubelet's longest "
        "back-off is 5m.",
        "seconds",
        cluster=True,
    ),
    Option(
        "placement.shrink_wait",
        duration(),
        2.0,
        "How long a create waits for others to leave the CPUs it gets.",
        "seconds",
    ),
)
