"""The options: one table, by which files are validated and from which docs/configuration.md is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cri_proxy.core.option_checks import (
    Check,
    CpuConstraint,
    cpus,
    duration,
    endpoint,
    listen,
    names,
    nodes,
    one_of,
    path,
    socket_path,
    socket_paths,
)
from policies.cpus import NO_CPUS

_DOMAINS = one_of("ccx", "numa", "socket", "machine")


@dataclass(frozen=True)
class Option:
    """One setting. ``default`` is the typed value; ``live``: a reload applies it, else a restart does."""

    key: str
    check: Check
    default: Any
    help: str
    unit: str = ""
    live: bool = True


OPTIONS: tuple[Option, ...] = (
    Option(
        "policy.Active",
        one_of("hygon", "none"),
        "hygon",
        "The placement policy: hygon, or none to place nothing. Intel's names (topology-aware, balloons and "
        "so on) are accepted with a warning; this version places by hygon instead.",
    ),
    Option(
        "policy.ReservedResources.CPU",
        cpus("none", may_be_zero=True),
        CpuConstraint(),
        "CPUs kept for the system and for placement.reserved_namespaces. A quantity is rounded up to whole "
        "cores and taken from one L3.",
        "CPUs",
    ),
    Option(
        "policy.AvailableResources.CPU",
        cpus("all that are online", may_be_zero=False),
        CpuConstraint(),
        "The only CPUs that containers may be placed on. A quantity takes as many, L3 by L3.",
        "CPUs",
    ),
    Option(
        "placement.ladder",
        one_of("manual", "fine"),
        "manual",
        "The rule by which containers climb from one CCX to the machine: that of the Hygon manual, or fine, "
        "which tries the fewest CCXs of one NUMA node before a whole NUMA node.",
    ),
    Option(
        "placement.unlimited",
        _DOMAINS,
        "numa",
        "Where a container without a CPU limit may run; never less than its request needs.",
    ),
    Option("placement.besteffort", _DOMAINS, "numa", "Where a BestEffort container may run."),
    Option(
        "placement.memory",
        one_of("prefer", "pin", "off"),
        "prefer",
        "Memory nodes of a container with a memory limit. prefer: those of its CPUs, with the nearest others "
        "as long as limits would exceed 90 % of their memory; pin: those of its CPUs, unless its limit alone "
        "exceeds them; off: never set.",
    ),
    Option(
        "placement.memory_only_nodes",
        nodes(),
        NO_CPUS,
        "NUMA nodes with memory but without CPUs (CXL, HBM, PMEM) that placement.memory may use; others are "
        "left alone.",
        "NUMA nodes",
    ),
    Option(
        "placement.reserved_namespaces",
        names(),
        ("kube-system",),
        "Namespaces whose containers run on the reserved CPUs, if there are any.",
    ),
    Option(
        "placement.unmanaged_namespaces",
        names(),
        (),
        "Namespaces whose containers are left alone, and charged where they run.",
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
    ),
    Option(
        "placement.shrink_wait",
        duration(),
        2.0,
        "How long a create waits for others to leave the CPUs it gets.",
        "seconds",
    ),
    Option(
        "relay.mode",
        one_of("enforce", "observe", "off"),
        "enforce",
        "enforce: place containers; observe: decide, log and explain, change nothing; off: pass bytes only.",
    ),
    Option(
        "relay.socket",
        socket_path(),
        "/var/run/cri-resmgr.sock",
        "The socket kubelet connects to.",
        live=False,
    ),
    Option(
        "relay.extra_sockets",
        socket_paths(),
        ("/var/run/cri-resmgr/cri-resmgr.sock",),
        "Further sockets that serve the same; the default is that of Intel's cri-resource-manager.",
        live=False,
    ),
    Option(
        "relay.runtime_endpoint",
        endpoint("the first found"),
        "",
        'The container runtime\'s socket. "" looks for containerd, CRI-O and iSulad in their usual places.',
        live=False,
    ),
    Option(
        "relay.image_endpoint",
        endpoint("the runtime's"),
        "",
        "The socket of a separate image service.",
        live=False,
    ),
    Option(
        "relay.drain",
        duration(),
        5.0,
        "How long requests under way may take to finish when the service stops.",
        "seconds",
    ),
    Option(
        "state.directory",
        path(),
        "/var/lib/cri-resmgr",
        "Where the state and the last configuration that loaded are kept.",
        live=False,
    ),
    Option(
        "control.socket",
        socket_path(),
        "/var/run/cri-resmgr/control.sock",
        "The socket the command line talks to.",
        live=False,
    ),
    Option(
        "topology.source",
        path(),
        "/sys",
        "What the machine looks like: a sysfs root directory, or a JSON file as printed by "
        "`cri-resmgr topology --json`.",
    ),
    Option(
        "topology.cgroup_root",
        path(),
        "/sys/fs/cgroup",
        "Where cgroups are mounted.",
        live=False,
    ),
    Option(
        "topology.interval",
        duration(),
        10.0,
        "How often CPUs and NUMA nodes are looked at for changes.",
        "seconds",
    ),
    Option(
        "kubelet.directory",
        path(),
        "/var/lib/kubelet",
        "Where kubelet keeps cpu_manager_state and config.yaml.",
    ),
    Option(
        "reconcile.interval",
        duration(),
        30.0,
        "How often the runtime's containers are compared with the state.",
        "seconds",
    ),
    Option(
        "reconcile.poll",
        duration(),
        5.0,
        "How often the runtime is asked for containers that ended, while no event stream can be read.",
        "seconds",
    ),
    Option("log.level", one_of("debug", "info", "warning", "error"), "info", "The least severe lines shown."),
    Option("log.format", one_of("console", "json"), "console", "Lines for people, or a JSON object a line."),
    Option(
        "metrics.listen",
        listen(),
        "",
        'Where Prometheus metrics are served over HTTP; "" does not serve them.',
    ),
)

BY_KEY = {option.key: option for option in OPTIONS}

#: The dotted keys that hold options, such as "policy" and "policy.ReservedResources".
SECTIONS = frozenset(
    option.key.rsplit(".", depth)[0] for option in OPTIONS for depth in range(1, option.key.count(".") + 1)
)
