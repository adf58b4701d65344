"""The machine as a tree of domains: machine > socket > die > NUMA node > L3 (CCX) > cluster > core > CPU.

Keeps the rule of the design that L3 groups are *sets of CPUs*: nothing here divides totals, trusts cache
ids or assumes that two CCXs are of one size. An unknown level is absent: a virtual machine without cache
information has no ``l3`` domains, and the smallest domain of its ladder is the NUMA node.

Words: a *domain* is one box of the tree; domains that hold the same CPUs are one box with several *levels*
(on a monolithic socket: socket, die, NUMA node and L3 at once). A *leaf* is the smallest box that
containers are placed in: the L3, or the NUMA node where L3 is unknown or larger than the node. A *cluster* is some
cores inside a leaf that share an L2 or the tags of the L3 (Kunpeng 920: four); only where a tree is asked for them
(``to_clusters``) they are its leaves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Callable, Optional

from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS

LEVELS = ("machine", "socket", "die", "numa", "l3", "cluster")

# ACPI SLIT defaults when the firmware gives none: 10 is "local" by the specification, 20 the kernel's
# REMOTE_DISTANCE; 32 is what two-socket EPYC and Hygon machines report across the sockets.
LOCAL_DISTANCE, SOCKET_DISTANCE, REMOTE_DISTANCE = 10, 20, 32


#: What tells the cores of a hybrid machine apart.
CORE_TYPES = PERFORMANCE, EFFICIENT = ("performance", "efficient")


class BadTopology(ValueError):
    """The description of a machine contradicts itself. The message names the place."""


@dataclass(frozen=True)
class Cpu:
    """Where one CPU (hardware thread) sits. ``core``, ``l3`` and ``cluster`` are unique in their socket.

    ``l3`` None = unknown; ``cluster`` None = in none that is known.
    """

    cpu: int
    core: int
    l3: Optional[int]
    die: int
    numa: int
    socket: int
    cluster: Optional[int] = None


@dataclass(frozen=True)
class TopologyData:
    """A machine as it was read, before it is made a tree; the JSON of ``cri-resmgr topology --json``.

    ``distance[i][j]`` goes by the rank of the node ids (None: defaults). ``memory`` is bytes by node; a node
    not named there has unlimited memory unless ``has_memory`` leaves it out. ``hugepages``: the pages in the hugetlb
    pools of a node, as their number by their size in bytes. ``offline`` CPUs may be in
    ``cpus`` (their place is known) or not. ``parent_cpus``: the CPUs kubelet's cgroup root allows, None =
    not known. ``devices``: NUMA node by PCI address. ``core_types``: the CPUs of "performance" and of "efficient" cores;
    empty where all are alike. ``memory_bandwidth``: by node, for reads of the nearest CPUs, MB/s, where firmware
    tells (HMAT).
    """

    cpus: tuple[Cpu, ...]
    distance: Optional[tuple[tuple[int, ...], ...]] = None
    memory: Mapping[int, int] = field(default_factory=dict)
    hugepages: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    has_memory: Optional[frozenset[int]] = None
    isolated: frozenset[int] = NO_CPUS
    offline: frozenset[int] = NO_CPUS
    parent_cpus: Optional[frozenset[int]] = None
    parent_mems: Optional[frozenset[int]] = None
    devices: Mapping[str, int] = field(default_factory=dict)
    vendor: str = ""
    core_types: Mapping[str, frozenset[int]] = field(default_factory=dict)
    memory_bandwidth: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Domain:
    """One box of the tree: its levels (outermost first), its id at each of them, its CPUs.

    ``cpus`` holds every CPU whose place is known, offline ones included. ``leaves`` are indices into
    ``Topology.leaves``. ``nodes`` are the NUMA nodes its CPUs belong to.
    """

    levels: tuple[str, ...]
    ids: tuple[int, ...]
    cpus: frozenset[int]
    nodes: frozenset[int]
    socket: int
    leaves: tuple[int, ...]
    children: tuple[Domain, ...] = ()

    @property
    def name(self) -> str:
        """The domain's name in sentences: ``L3 3``, ``NUMA node 0``, ``socket 1``."""
        telling = [level for level in self.levels if level not in ("die", "cluster")]
        return self.name_at(telling[-1] if telling else self.levels[-1])

    def name_at(self, level: str) -> str:
        """The name the domain has as a box of one of its levels."""
        return (
            f"{_TITLES[level]} {self.ids[self.levels.index(level)]}" if level != "machine" else "the machine"
        )


_TITLES = {
    "socket": "socket",
    "die": "die",
    "numa": "NUMA node",
    "l3": "L3",
    "cluster": "cluster",
    "rest": "CPUs without cache information",
}


class Topology:
    """The tree of one machine. Immutable after construction; ask ``at(level)`` for the domains of a level.

    ``to_clusters``: its leaves are clusters wherever every CPU of an L3 (or of a NUMA node without one) is in one.
    """

    def __init__(self, data: TopologyData, to_clusters: bool = False) -> None:
        if not data.cpus:
            raise BadTopology("the machine has no CPUs")
        self.data = data
        self.cpus: dict[int, Cpu] = {c.cpu: c for c in sorted(data.cpus, key=lambda c: c.cpu)}
        if len(self.cpus) != len(data.cpus):
            numbers = sorted(c.cpu for c in data.cpus)
            twice = next(a for a, b in zip(numbers, numbers[1:]) if a == b)
            raise BadTopology(f"CPU {twice} is listed twice")
        self.online: frozenset[int] = frozenset(self.cpus) - data.offline
        if not self.online:
            raise BadTopology("every CPU of the machine is offline")
        self.node_ids: tuple[int, ...] = tuple(
            sorted({c.numa for c in data.cpus} | set(data.memory) | (data.has_memory or frozenset()))
        )
        self._rank = {node: rank for rank, node in enumerate(self.node_ids)}
        self._socket_of_node = {c.numa: c.socket for c in reversed(tuple(self.cpus.values()))}
        self._check_distances()
        self._by_level: dict[str, list[Domain]] = {level: [] for level in LEVELS}
        leaves: list[Domain] = []
        self._order = _level_order(self.cpus.values())
        #: Whether there are leaves that are clusters.
        self.has_cluster_leaves = to_clusters and any(c.cluster is not None for c in data.cpus)
        self._order += ["cluster"] if self.has_cluster_leaves else []
        self._l3_rank = _ranks((c, c.l3) for c in self.cpus.values())
        self._cluster_rank = _ranks((c, c.cluster) for c in self.cpus.values())
        self.root = self._build(frozenset(self.cpus), 0, leaves)
        self.leaves: tuple[Domain, ...] = tuple(leaves)
        self._levels = {
            level: tuple(sorted(boxes, key=lambda d: (d.ids[d.levels.index(level)], min(d.cpus))))
            for level, boxes in self._by_level.items()
        }
        #: The memory of NUMA nodes without their hugetlb pools, bytes; one that is not here is taken as unlimited.
        self.ordinary_bytes: dict[int, int] = {
            node: max(0, total - self.hugepage_bytes(node)) for node, total in data.memory.items()
        }
        #: Every domain above the core, largest first.
        self.domains: tuple[Domain, ...] = tuple(_walk(self.root))
        #: The leaves; where these are clusters, the L3s (or NUMA nodes without one) that hold them.
        self.caches: tuple[Domain, ...] = tuple(_walk(self.root, _is_above_clusters))
        threads: dict[tuple[int, int], set[int]] = {}
        for c in self.cpus.values():
            threads.setdefault((c.socket, c.core), set()).add(c.cpu)
        #: The physical cores as sets of their threads, by lowest CPU; and which of them a CPU is of.
        self.cores: tuple[frozenset[int], ...] = tuple(frozenset(core) for core in threads.values())
        self.core_of: dict[int, int] = {cpu: i for i, core in enumerate(self.cores) for cpu in core}

    # ------------------------------------------------------------------ questions

    def at(self, level: str) -> tuple[Domain, ...]:
        """The domains of a level, by ascending id; empty if the machine has no such level."""
        return self._levels[level]

    @property
    def memory_nodes(self) -> frozenset[int]:
        """NUMA nodes that have memory."""
        if self.data.has_memory is not None:
            return self.data.has_memory
        return frozenset(n for n in self.node_ids if self.data.memory.get(n, 1) > 0)

    @property
    def high_bandwidth_nodes(self) -> frozenset[int]:
        """Of the NUMA nodes with memory and no CPUs those of high-bandwidth memory (HBM); the others are PMEM, CXL, ...

        By firmware: faster than all nodes with CPUs. Where it tells nothing by size, as in nri-plugins: smaller than nodes
        with CPUs are on average.
        """
        data, near = self.data, self.root.nodes & self.memory_nodes
        rates = [data.memory_bandwidth[n] for n in near if n in data.memory_bandwidth]
        sizes = [data.memory[n] for n in near if n in data.memory]
        found = set()
        for node in self.memory_nodes - self.root.nodes:
            if rates and node in data.memory_bandwidth:
                is_fast = data.memory_bandwidth[node] > max(rates)
            else:
                is_fast = bool(sizes) and data.memory.get(node, sum(sizes)) * len(sizes) < sum(sizes)
            found |= {node} if is_fast else set()
        return frozenset(found)

    def memory_bytes(self, node: int) -> Optional[int]:
        """MemTotal of a NUMA node in bytes; None = not known, taken as unlimited."""
        return self.data.memory.get(node)

    def hugepage_bytes(self, node: int) -> int:
        """The hugetlb pools of a NUMA node: a part of its MemTotal that is memory for nothing else."""
        return sum(size * count for size, count in self.data.hugepages.get(node, {}).items())

    def nodes_with_pages(self, sizes: Iterable[int]) -> frozenset[int]:
        """The NUMA nodes that have huge pages of one of these sizes, in bytes."""
        wanted = frozenset(sizes)
        pools = self.data.hugepages.items() if wanted else ()
        return frozenset(node for node, pool in pools if any(pool.get(size) for size in wanted))

    def node_of(self, cpu: int) -> int:
        """The NUMA node of a CPU."""
        return self.cpus[cpu].numa

    def nodes_of(self, cpus: Iterable[int]) -> frozenset[int]:
        """The NUMA nodes of some CPUs; unknown CPUs have none."""
        return frozenset([self.cpus[c].numa for c in cpus if c in self.cpus])

    def distance(self, a: int, b: int) -> int:
        """SLIT distance from node ``a`` to node ``b``."""
        if self.data.distance is not None:
            return self.data.distance[self._rank[a]][self._rank[b]]
        if a == b:
            return LOCAL_DISTANCE
        same = self._socket_of_node.get(a, -1) == self._socket_of_node.get(b, -2)
        return SOCKET_DISTANCE if same else REMOTE_DISTANCE

    def spread(self, nodes: Iterable[int]) -> int:
        """Sum of the distances between different nodes of a set, both directions; 0 for one node."""
        ids = sorted(nodes)
        return sum(self.distance(a, b) for a in ids for b in ids if a != b)

    def core_mates(self, cpu: int) -> frozenset[int]:
        """All hardware threads of a CPU's physical core, the CPU itself included."""
        return self.cores[self.core_of[cpu]]

    def one_thread_per_core(self, cpus: Iterable[int]) -> frozenset[int]:
        """Of each physical core the lowest of these CPUs."""
        first: dict[int, int] = {}
        for cpu in sorted(cpus):
            first.setdefault(self.core_of[cpu], cpu)
        return frozenset(first.values())

    def hash(self) -> str:
        """Changes when a CPU's place changes; not with remembered offline CPUs, memory in use or cgroups."""
        # A core, L3 or cluster goes by its first CPU here: what readers call it may change as CPUs come and go.
        cores: dict[tuple[int, int], int] = {}
        l3s: dict[tuple[int, Optional[int]], Optional[int]] = {}
        for c in self.cpus.values():
            cores.setdefault((c.socket, c.core), c.cpu)
            l3s.setdefault((c.socket, c.l3), None if c.l3 is None else c.cpu)
        places: list[tuple[Optional[int], ...]] = [
            (c.cpu, cores[c.socket, c.core], l3s[c.socket, c.l3], c.die, c.numa, c.socket)
            for c in self.cpus.values()
        ]
        if any(c.cluster is not None for c in self.cpus.values()):
            first: dict[tuple[int, Optional[int]], Optional[int]] = {}
            for c in self.cpus.values():
                first.setdefault((c.socket, c.cluster), None if c.cluster is None else c.cpu)
            places += [(first[c.socket, c.cluster],) for c in self.cpus.values()]
        return hashlib.sha256(json.dumps(places).encode()).hexdigest()[:16]

    # ------------------------------------------------------------------ construction

    def _check_distances(self) -> None:
        rows = self.data.distance
        count = len(self.node_ids)
        if rows is not None and (len(rows) != count or any(len(row) != count for row in rows)):
            raise BadTopology(
                f"distance is not a {count} x {count} matrix; the NUMA nodes are {list(self.node_ids)}"
            )

    def _build(self, cpus: frozenset[int], depth: int, leaves: list[Domain]) -> Domain:
        # 1. Go down while the next level does not split these CPUs: such levels are one box.
        levels: list[str] = []
        groups: list[frozenset[int]] = [cpus]
        while depth < len(self._order):
            level = self._order[depth]
            groups = _groups(self.cpus, cpus, level)
            if len(groups) > 1:
                break
            if _known(self.cpus, cpus, level):
                levels.append(level)
            depth += 1
        # 2. A box that is split no further is a leaf; else its parts are built first, in order.
        first_leaf = len(leaves)
        if depth == len(self._order):
            children: tuple[Domain, ...] = ()
            domain_leaves: tuple[int, ...] = (first_leaf,)
        else:
            children = tuple(self._build(group, depth, leaves) for group in groups)
            domain_leaves = tuple(range(first_leaf, len(leaves)))
        here = self.cpus[min(cpus)]
        nodes = frozenset(self.cpus[c].numa for c in cpus)
        levels = levels or ["rest"]
        ids = tuple(self._id(level, here) for level in levels)
        domain = Domain(tuple(levels), ids, cpus, nodes, here.socket, domain_leaves, children)
        if not children:
            leaves.append(domain)
        for level in levels:
            self._by_level.setdefault(level, []).append(domain)
        return domain

    def _id(self, level: str, here: Cpu) -> int:
        if level == "l3":
            return self._l3_rank[(here.socket, here.l3)]
        if level == "cluster":
            return self._cluster_rank[(here.socket, here.cluster)]
        return {"machine": 0, "socket": here.socket, "die": here.die, "numa": here.numa, "rest": here.cpu}[
            level
        ]


def _ranks(groups: Iterable[tuple[Cpu, Optional[int]]]) -> dict[tuple[int, Optional[int]], int]:
    """An L3 or cluster goes by its rank in (NUMA node, first CPU) order: ids may repeat, be sparse or be missing."""
    first: dict[tuple[int, Optional[int]], tuple[int, int]] = {}
    for c, group in groups:
        if group is not None:
            first.setdefault((c.socket, group), (c.numa, c.cpu))
    return {key: rank for rank, key in enumerate(sorted(first, key=lambda key: first[key]))}


def remember(old: Topology, new: TopologyData) -> TopologyData:
    """Give CPUs that went offline the place they had: sysfs forgets it, their containers' homes do not.

    They join the sockets, cores, clusters and L3s of their old mates, whatever those are called now: a reader names a
    group after its lowest online CPU. NUMA nodes that went with them keep their distances and have no memory.
    """
    known = {c.cpu: c for c in new.cpus}
    # 1. What the sockets, cores, L3s and clusters of before are called now.
    sockets: dict[int, int] = {}
    cores: dict[tuple[int, int], int] = {}
    l3s: dict[tuple[int, Optional[int]], int] = {}
    clusters: dict[tuple[int, Optional[int]], int] = {}
    for c in old.cpus.values():
        now = known.get(c.cpu)
        if now is not None:
            sockets.setdefault(c.socket, now.socket)
            cores.setdefault((c.socket, c.core), now.core)
        if now is not None and now.l3 is not None:
            l3s.setdefault((c.socket, c.l3), now.l3)
        if now is not None and now.cluster is not None:
            clusters.setdefault((c.socket, c.cluster), now.cluster)
    # 2. The CPUs that are gone, under those names; where all mates are gone too, the old name is still free.
    kept = tuple(
        replace(
            c,
            core=cores.get((c.socket, c.core), c.core),
            l3=None if c.l3 is None else l3s.get((c.socket, c.l3), c.l3),
            cluster=None if c.cluster is None else clusters.get((c.socket, c.cluster), c.cluster),
            socket=sockets.get(c.socket, c.socket),
        )
        for c in old.cpus.values()
        if c.cpu not in known and c.cpu in new.offline
    )
    # 3. Their nodes, where the kernel took those away as well.
    nodes = {c.numa for c in new.cpus} | set(new.memory) | (new.has_memory or frozenset())
    lost = {c.numa for c in kept} - nodes
    return replace(
        new,
        cpus=tuple(sorted(new.cpus + kept, key=lambda c: c.cpu)),
        memory={**new.memory, **dict.fromkeys(sorted(lost), 0)} if lost else new.memory,
        distance=_widen(old, new.distance, sorted(nodes), sorted(nodes | lost)) if lost else new.distance,
    )


def _widen(
    old: Topology, rows: Optional[tuple[tuple[int, ...], ...]], nodes: list[int], wanted: list[int]
) -> Optional[tuple[tuple[int, ...], ...]]:
    """The distances between ``nodes``, widened to the ``wanted`` ones by those of before."""
    if rows is None or not set(wanted) <= set(old.node_ids) | set(nodes):
        return None
    now = {(a, b): rows[i][j] for i, a in enumerate(nodes) for j, b in enumerate(nodes)}
    before = set(old.node_ids)

    def distance(a: int, b: int) -> int:
        if (a, b) in now:
            return now[a, b]
        return old.distance(a, b) if {a, b} <= before else REMOTE_DISTANCE

    return tuple(tuple(distance(a, b) for b in wanted) for a in wanted)


# ---------------------------------------------------------------------- the tree's shape


def _group_key(cpu: Cpu, level: str) -> Any:
    if level == "machine":
        return 0
    if level == "l3":
        return (cpu.socket, -1 if cpu.l3 is None else cpu.l3)
    if level == "die":
        return (cpu.socket, cpu.die)
    if level == "cluster":
        return (cpu.socket, -1 if cpu.cluster is None else cpu.cluster)
    return {"socket": cpu.socket, "numa": cpu.numa}[level]


def _groups(cpus: Mapping[int, Cpu], members: frozenset[int], level: str) -> list[frozenset[int]]:
    # As the kernel does: where some cores are in no cluster (hybrid CPUs) the others' are no level either.
    if level == "cluster" and not _known(cpus, members, level):
        return [members]
    found: dict[Any, set[int]] = {}
    for cpu in sorted(members):
        found.setdefault(_group_key(cpus[cpu], level), set()).add(cpu)
    return [frozenset(group) for _, group in sorted(found.items(), key=lambda item: min(item[1]))]


def _known(cpus: Mapping[int, Cpu], members: frozenset[int], level: str) -> bool:
    if level == "cluster":
        return all(cpus[c].cluster is not None for c in members)
    return level != "l3" or all(cpus[c].l3 is not None for c in members)


def _level_order(cpus: Iterable[Cpu]) -> list[str]:
    """Outermost level first. The usual order, except where the groups of one level contain those of another.

    A NUMA node may hold dies (NPS1 on a multi-die package) or whole sockets (node interleaving); an L3 may
    be larger than a node (sub-NUMA clustering). Where two levels overlap without either containing the
    other, the usual order stands and the inner one is cut at the outer one's borders.
    """
    members = list(cpus)
    order = ["machine", "socket", "die", "numa", "l3"]
    swapped = True
    while swapped:
        swapped = False
        for index in range(1, len(order) - 1):
            outer, inner = order[index], order[index + 1]
            if not _contains(members, outer, inner) and _contains(members, inner, outer):
                order[index], order[index + 1] = inner, outer
                swapped = True
    return order


def _contains(cpus: list[Cpu], outer: str, inner: str) -> bool:
    # CPUs whose L3 is not known say nothing about where L3s lie. But what has such CPUs and others lies in no L3.
    telling = [c for c in cpus if c.l3 is not None or inner != "l3"]
    holder: dict[Any, Any] = {}
    keys = [(_group_key(c, outer), _group_key(c, inner)) for c in telling]
    return all(holder.setdefault(inner_key, outer_key) == outer_key for outer_key, inner_key in keys)


def _walk(domain: Domain, stop: Optional[Callable[[Domain], bool]] = None) -> Iterable[Domain]:
    """The domains of a tree from the root down; with ``stop`` those alone at which it says so, and nothing below them."""
    if stop is None or stop(domain):
        yield domain
    if stop is None or not stop(domain):
        for child in domain.children:
            yield from _walk(child, stop)


def _is_above_clusters(domain: Domain) -> bool:
    return not domain.children or domain.children[0].levels == ("cluster",)


# ---------------------------------------------------------------------- JSON
