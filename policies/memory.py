"""Which NUMA nodes a container's memory may come from (``cpuset.mems``).

``prefer``: a container with a memory limit gets the nodes of its CPUs, if the limits charged to them and its
own stay within 90 % of their memory; else the nearest nodes are added until they do. A limit is charged to
its nodes in proportion to what is free there, so that no node is ever promised more than it has: that is
what keeps a pinned pod from the OOM killer while other nodes are empty. ``pin``: the nodes of its CPUs,
always, widened only where the limit alone is larger than they are. ``off``: nothing is set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Optional

from policies.cpus import NO_CPUS, format_cpus
from policies.model import Container, Decision, Fence, Placement
from policies.node import Node
from policies.settings import PlacementSettings

#: Part of a node's MemTotal that limits may fill: the kernel's own use and per-node watermarks need the rest.
FILL_PERCENT = 90

MemoryCharge = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Memory:
    """The nodes (empty: set none), the limit's bytes by node, and a phrase for ``why`` (may be empty)."""

    nodes: frozenset[int] = NO_CPUS
    charge: MemoryCharge = ()
    why: str = ""


def choose_memory(
    node: Node,
    cpus: frozenset[int],
    limit_bytes: int,
    mode: str,
    only: frozenset[int],
    fence: Optional[frozenset[int]],
    types: frozenset[str] = frozenset(),
) -> Memory:
    """Nodes for a container on ``cpus``.

    ``only``: CPU-less nodes that may be used; ``fence``: the caller's own mems; ``types``: kinds of memory asked
    for. Linux tells one kind from another by this alone: a node with CPUs is DRAM, one without is something else
    (PMEM, HBM, CXL); types other than dram mean those.
    """
    if mode == "off" or (mode == "prefer" and not limit_bytes):
        return Memory()
    # 1. Candidates: nodes with memory, allowed to us and by the caller, with CPUs unless named in the configuration.
    with_cpus = node.topology.root.nodes
    allowed = node.mems & (with_cpus | only)
    if types:
        wanted = (with_cpus if types & {"dram", "mixed"} else NO_CPUS) | (
            node.topology.memory_nodes - with_cpus if types - {"dram"} else NO_CPUS
        )
        allowed = (node.mems & wanted) or allowed
    if fence is not None:
        allowed &= fence
    if not allowed:
        return Memory(why="memory not set: no node with memory is allowed")
    # 2. The nodes of the CPUs; one without memory is replaced by its nearest that has some.
    near = node.topology.nodes_of(cpus)
    chosen = {n if n in allowed else _nearest(node, [n], allowed) for n in near}
    start = frozenset(chosen)
    # 3. Widen by the nearest node while the limits do not fit; by a full one only when all are.
    while not _fits(node, chosen, limit_bytes, mode) and len(chosen) < len(allowed):
        rest = allowed - chosen
        with_room = rest if mode == "pin" else frozenset(n for n in rest if _fits(node, [n], 1, mode))
        chosen.add(_nearest(node, near, with_room or rest))
    nodes = frozenset(chosen)
    if not nodes:
        return Memory()
    why = "" if nodes == start else f"memory widened from node {format_cpus(start)} to {format_cpus(nodes)}"
    return Memory(nodes, _spread(node, nodes, limit_bytes), why)


def with_memory(
    node: Node,
    container: Container,
    settings: PlacementSettings,
    fence: Fence,
    place: Placement,
    why: str,
    fits: bool = True,
) -> Decision:
    """The decision for CPUs that are chosen, with the memory nodes that go with them."""
    memory = choose_memory(
        node,
        place.cpus,
        container.resources.memory_limit_bytes,
        settings.memory,
        settings.memory_only_nodes,
        fence.mems,
        container.wishes.memory_types,
    )
    placed = replace(place, mems=memory.nodes, memory_charge=memory.charge)
    return Decision(placed, f"{why}; {memory.why}" if memory.why else why, fits)


def _fits(node: Node, nodes: Iterable[int], limit_bytes: int, mode: str) -> bool:
    sizes = [node.topology.memory_bytes(n) for n in nodes]
    if any(size is None for size in sizes):
        return True
    if mode == "pin":
        return limit_bytes <= sum(size or 0 for size in sizes)
    return limit_bytes <= sum(_free(node, n) for n in nodes)


def _free(node: Node, memory_node: int) -> int:
    size = node.topology.memory_bytes(memory_node) or 0
    return max(0, size * FILL_PERCENT // 100 - node.memory_charged(memory_node))


def _nearest(node: Node, origins: Iterable[int], candidates: Iterable[int]) -> int:
    places = list(origins)
    return min(candidates, key=lambda n: (min((node.topology.distance(o, n) for o in places), default=0), n))


def _spread(node: Node, nodes: frozenset[int], limit_bytes: int) -> MemoryCharge:
    """Charge the limit to the nodes in proportion to what is free there."""
    ordered = sorted(nodes)
    weights = [_free(node, n) if node.topology.memory_bytes(n) is not None else limit_bytes for n in ordered]
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
    return tuple((n, s) for n, s in zip(ordered, shares) if s)
