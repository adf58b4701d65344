"""The NUMA nodes of a container's memory (``cpuset.mems``).

``prefer``: a container with a memory limit gets the nodes of its CPUs, if the limits charged to them and its
own stay within 90 % of their memory; else the nearest nodes are added until they do. A limit is charged to
its nodes in proportion to their free memory, so that no node is ever promised more than it has: that is
what keeps a pinned pod from the OOM killer while other nodes are empty. A node where its part of the limit is
not free at this moment is left out, whatever is charged. ``pin``: the nodes of its CPUs, always, widened only
where the limit alone is larger than they are. ``off``: nothing is set.

Hugetlb pools are no memory for limits. A container that may have huge pages gets all nodes with pages of their
size beside those: a pool that is empty now may be filled again, and the kernel takes pages from the nearest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Optional

from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.model import Constraint, Container, Decision, Placement, altered, kept_once
from policies.node import Node
from policies.settings import PlacementSettings

#: Part of a node's memory, without what is reserved, that limits may fill: the kernel's own use and its
#: watermarks need the rest.
FILL_PERCENT = 90

MemoryCharge = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MemoryChoice:
    """The nodes (empty: set none), the limit's bytes by node, and a phrase for ``why`` (may be empty)."""

    nodes: frozenset[int] = NO_CPUS
    charge: MemoryCharge = ()
    why: str = ""


@dataclass(frozen=True)
class MemoryNeed:
    """A container's needs of its memory nodes besides its limit.

    ``types``: the kinds of memory asked for. A node with CPUs is DRAM, one without is something else (PMEM, HBM, CXL); of
    those ``Topology.high_bandwidth_nodes`` are HBM. Where there is none of the kind, all without CPUs are.
    ``page_sizes``: of its huge pages, in bytes. ``shared``: bytes by node that are charged already for others under the same
    limit. ``had``: the charge it has had so far.
    """

    types: frozenset[str] = frozenset()
    page_sizes: frozenset[int] = NO_CPUS
    shared: Mapping[int, int] = field(default_factory=dict)
    had: MemoryCharge = ()


NO_NEED = MemoryNeed()


def choose_memory(
    node: Node,
    cpus: frozenset[int],
    limit_bytes: int,
    mode: str,
    only: frozenset[int],
    constraint: Optional[frozenset[int]],
    need: MemoryNeed = NO_NEED,
) -> MemoryChoice:
    """Nodes for a container on ``cpus``.

    ``only``: CPU-less nodes that may be used; ``constraint``: the caller's own mems.
    """
    if mode == "off" or (mode == "prefer" and not limit_bytes):
        return MemoryChoice()
    # 1. Candidates: nodes with memory, allowed to us and by the caller, with CPUs unless named in the configuration.
    with_cpus = node.topology.root.nodes
    allowed = node.mems & (with_cpus | only)
    if need.types:
        allowed = (node.mems & nodes_of_types(node.topology, need.types)) or allowed
    if constraint is not None:
        allowed &= constraint
    if not allowed:
        return MemoryChoice(why="memory not set: no NUMA node with memory is allowed")
    # 2. The nodes by charge; again without nodes that have less free now than would be charged there.
    short: frozenset[int] = NO_CPUS
    while True:
        start, chosen = _by_charges(node, cpus, limit_bytes, mode, allowed - short, need)
        charge = spread_limit(node, chosen, limit_bytes, need.shared)
        found = NO_CPUS if mode == "pin" else _short(node, charge, need)
        if not found:
            break
        short |= found
        if short == allowed:  # nowhere: then it is fenced off nothing
            start = chosen = allowed
            charge = spread_limit(node, chosen, limit_bytes, need.shared)
            break
    if not chosen:
        return MemoryChoice()
    # 3. The nodes of its huge pages. Its limit is charged to the others: they are nearer, and have the room.
    pages = node.topology.nodes_with_pages(need.page_sizes) & node.mems - chosen
    pages = pages if constraint is None else pages & constraint
    return MemoryChoice(chosen | pages, charge, _why(start, chosen, short, pages))


def nodes_of_types(topology: Topology, types: frozenset[str]) -> frozenset[int]:
    """The NUMA nodes whose memory is of one of these kinds."""
    with_cpus, fast = topology.root.nodes, topology.high_bandwidth_nodes
    others = topology.memory_nodes - with_cpus
    found = with_cpus if "dram" in types else NO_CPUS
    if "hbm" in types:
        found |= fast or others
    if "pmem" in types:
        found |= others - fast or others
    return found


def _by_charges(
    node: Node, cpus: frozenset[int], limit_bytes: int, mode: str, allowed: frozenset[int], need: MemoryNeed
) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes to begin with, and the nodes that the charges leave room on."""
    # 1. The nodes of the CPUs; one without memory is replaced by its nearest that has some.
    near = node.topology.nodes_of(cpus)
    chosen = {n if n in allowed else _nearest(node, [n], allowed) for n in near}
    start = frozenset(chosen)
    # 2. Widen by the nearest node while the limits do not fit; by a full one only when all are.
    while not _fits(node, chosen, limit_bytes, mode, need) and len(chosen) < len(allowed):
        rest = allowed - chosen
        with_room = rest if mode == "pin" else frozenset(n for n in rest if _fits(node, [n], 1, mode, need))
        chosen.add(_nearest(node, near, with_room or rest))
    return start, frozenset(chosen)


def _short(node: Node, charge: MemoryCharge, need: MemoryNeed) -> frozenset[int]:
    """The nodes without as much free memory now as would be added to their charge."""
    known, had = node.free_memory, dict(need.had)
    return frozenset(
        n for n, size in charge if n in known and size - max(need.shared.get(n, 0), had.get(n, 0)) > known[n]
    )


def _why(start: frozenset[int], chosen: frozenset[int], short: frozenset[int], pages: frozenset[int]) -> str:
    words = []
    if short >= chosen:
        words.append("no NUMA node has as much free memory now")
    elif short:
        words.append(
            f"memory on NUMA node {format_cpus(chosen)}: NUMA node {format_cpus(short)} has too little free now"
        )
    elif chosen != start:
        words.append(f"memory widened from NUMA node {format_cpus(start)} to {format_cpus(chosen)}")
    if pages:
        words.append(f"and from NUMA node {format_cpus(pages)} for its huge pages")
    return "; ".join(words)


def memory_of(
    node: Node,
    cpus: frozenset[int],
    container: Container,
    settings: PlacementSettings,
    constraint: Constraint,
    had: MemoryCharge = (),
) -> MemoryChoice:
    """The memory nodes of a container on ``cpus``, which is not in the books. ``had``: as in ``MemoryNeed``."""
    need = memory_need(node, container, settings, had)
    limit, only = container.resources.memory_limit_bytes, settings.memory_only_nodes
    return choose_memory(node, cpus, limit, settings.memory, only, constraint.mems, need)


def memory_need(
    node: Node, container: Container, settings: PlacementSettings, had: MemoryCharge = ()
) -> MemoryNeed:
    """What a container needs of its memory nodes besides its limit; it is not in the books."""
    types = container.preferences.memory_types or settings.memory_types
    return MemoryNeed(types, container.resources.hugepage_sizes, node.memory_shared(container), had)


def with_memory(
    node: Node,
    container: Container,
    settings: PlacementSettings,
    constraint: Constraint,
    place: Placement,
    why: str,
    fits: bool = True,
) -> Decision:
    """The decision for CPUs that are chosen, with the memory nodes that go with them."""
    memory = memory_of(node, place.cpus, container, settings, constraint)
    placed = altered(place, mems=memory.nodes, memory_charge=memory.charge)
    return Decision(placed, f"{why}; {memory.why}" if memory.why else why, fits)


def _fits(node: Node, nodes: Collection[int], limit_bytes: int, mode: str, need: MemoryNeed) -> bool:
    known = node.topology.ordinary_bytes
    if not all(n in known for n in nodes):
        return True
    if mode == "pin":
        return limit_bytes <= sum(known[n] for n in nodes)
    return limit_bytes <= sum(room_bytes(node, n, need.shared) for n in nodes)


def room_bytes(node: Node, memory_node: int, shared: Mapping[int, int] = NO_NEED.shared) -> int:
    """Bytes that limits may still charge to a NUMA node; 0 where its size is unknown. ``shared``: as in ``MemoryNeed``."""
    charged = node.memory_charged(memory_node) - shared.get(memory_node, 0)
    return max(0, allocatable_bytes(node, memory_node) - charged)


def allocatable_bytes(node: Node, memory_node: int) -> int:
    """The bytes of a NUMA node that limits may fill, charged or not; 0 where its size is not known."""
    kept = node.reserved_memory.get(memory_node, 0)
    return max(0, node.topology.ordinary_bytes.get(memory_node, 0) - kept) * FILL_PERCENT // 100


def _nearest(node: Node, origins: Iterable[int], candidates: Iterable[int]) -> int:
    places = list(origins)
    return min(candidates, key=lambda n: (min((node.topology.distance(o, n) for o in places), default=0), n))


def spread_limit(
    node: Node, nodes: frozenset[int], limit_bytes: int, shared: Mapping[int, int] = NO_NEED.shared
) -> MemoryCharge:
    """Charge a limit to nodes in proportion to their free memory. ``shared``: as in ``MemoryNeed``."""
    ordered = sorted(nodes)
    unknown = [n not in node.topology.ordinary_bytes for n in ordered]
    weights = [limit_bytes if u else room_bytes(node, n, shared) for n, u in zip(ordered, unknown)]
    total = sum(weights)
    if not limit_bytes:
        return ()
    if not total:
        weights, total = [1] * len(ordered), len(ordered)
    shares = [limit_bytes * w // total for w in weights]
    # The bytes that the division leaves over, one each to the nodes with the most left.
    left = sorted(range(len(ordered)), key=lambda i: shares[i] - weights[i])
    for index in left[: limit_bytes - sum(shares)]:
        shares[index] += 1
    # What is in proportion to the free memory leaves the proportions as they are: that of equal limits mostly is the same.
    return kept_once(tuple((n, s) for n, s in zip(ordered, shares) if s))
