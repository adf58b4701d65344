"""Reserved CPUs: kept for the system and for the pods of reserved namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, Union

from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.model import Constraint, Container, Placement, wanted_milli
from policies.node import Node


@dataclass(frozen=True)
class Reservation:
    """How CPUs are reserved: a quantity in milli-CPUs, or the CPUs themselves; both empty = none."""

    milli: int = 0
    cpus: Optional[frozenset[int]] = None


@dataclass(frozen=True)
class Reserved:
    """The CPUs taken, and sentences about what an operator should look at."""

    cpus: frozenset[int] = NO_CPUS
    warnings: tuple[str, ...] = ()


def reserve_memory(topology: Topology, size: int) -> Mapping[int, int]:
    """Bytes of each NUMA node that limits may not fill, of ``size`` in all: each node with CPUs gives by its memory."""
    sizes = {node: topology.ordinary_bytes.get(node, 0) for node in sorted(topology.root.nodes)}
    total = sum(sizes.values())
    return {node: min(there, -(-size * there // total)) for node, there in sizes.items() if there and size}


def reserve(
    topology: Topology, usable: frozenset[int], wanted: Reservation, kubelet: frozenset[int] = NO_CPUS
) -> Reserved:
    """Choose the reserved CPUs of a machine.

    A set is taken as it is. A quantity is rounded up to whole cores and taken from one L3: the one with
    kubelet's ``reservedSystemCPUs`` (those first), else the lowest CPU's; missing CPUs come from the next
    L3s of the same NUMA node, then of the machine.
    """
    usable &= topology.online
    if wanted.cpus is not None:
        return _as_given(topology, usable, wanted.cpus)
    count = -(-wanted.milli // 1000)
    if not count or not usable:
        return Reserved()
    anchor = min(kubelet & usable) if kubelet & usable else min(usable)
    home = next(leaf for leaf in topology.caches if anchor in leaf.cpus)
    taken: set[int] = set()
    leaves = sorted(
        topology.caches,
        key=lambda d: (d is not home, d.nodes != home.nodes, d.socket != home.socket, min(d.cpus)),
    )
    for leaf in leaves:
        for cpu in sorted(leaf.cpus & usable, key=lambda c: (c not in kubelet, c)):
            if len(taken) >= count:
                return Reserved(frozenset(taken))
            if cpu not in taken:
                taken |= topology.core_mates(cpu) & usable
    return Reserved(frozenset(taken), ("every usable CPU is reserved; others will use them too",))


def _as_given(topology: Topology, usable: frozenset[int], cpus: frozenset[int]) -> Reserved:
    warnings = []
    if cpus - usable:
        warnings.append(
            f"reserved CPUs {format_cpus(cpus - usable)} are not usable here (usable: {format_cpus(usable)})"
        )
    taken = cpus & usable
    cut = sorted(c for c in taken if (topology.core_mates(c) & usable) - taken)
    if cut:
        lonely = frozenset().union(*[topology.core_mates(c) for c in cut]) & usable - taken
        warnings.append(
            f"the reserved cpuset {format_cpus(taken)} cuts physical cores: CPUs {format_cpus(lonely)} share a core with it"
        )
    return Reserved(taken, tuple(warnings))


def reserved_place(node: Node, container: Container, constraint: Constraint) -> Union[Placement, str]:
    """The place of a container among the others on the reserved CPUs; in words why there is none where they are too few."""
    home = node.reserved if constraint.cpus is None else node.reserved & constraint.cpus
    cpus = home & node.shared_reserved
    room = len(cpus) * 1000 - node.charge_milli(cpus)
    too_large = wanted_milli(container) > len(cpus) * 1000 or container.resources.milli_request > room
    if not cpus or too_large:
        return f"the reserved CPUs {format_cpus(cpus)} have {max(room, 0)}m left of {len(cpus)} CPUs"
    return Placement(cpus=cpus, level="reserved", home=home)
