"""Reads the machine from sysfs and procfs. Reads only: what it means for placement is decided elsewhere.

A hole (a file that is missing, unreadable or garbage) costs what the file would have told and is reported as
one sentence that names the file; the same hole of many CPUs is one sentence. Cache ids are never read: an L3
is the set of CPUs that share it. A set is a list (``shared_cpu_list``) or, where a kernel has none, a mask
(``shared_cpu_map``); some kernels end both with a NUL. Formats:
Documentation/ABI/{stable,testing}/sysfs-devices-system-{cpu,node}.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Optional

from cri_proxy.bounded_files import KERNEL_BYTES, read_beginning, read_bytes
from policies.frozen import frozen
from policies.machine.borders import are_single_cores, whole_dies, whole_l3s, whole_sockets
from policies.machine.cpus import NO_CPUS, BadCpuList, format_cpus, parse_cpus, parse_mask
from policies.machine.topology import EFFICIENT, PERFORMANCE, Cpu, TopologyData

BYTES_PER_KB = 1024
#: Of the kernel's largest number, 64 bits; one that is longer is none.
_DIGITS = 20
#: Capacities that differ by less are alike (capacity_greater in kernel/sched/fair.c).
_ALIKE = 1.05
#: More than the first paragraph of /proc/cpuinfo has.
_PARAGRAPH_BYTES = 1 << 14
# What a set is called, the newest name first: the kernel keeps old names beside new ones (5.3), lists came after masks.
_CORE_FILES = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_SOCKET_FILES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
_CLUSTER_FILES = ("cluster_cpus_list", "cluster_cpus")
_CACHE_FILES = ("shared_cpu_list", "shared_cpu_map")
_NODE_FILES = ("cpulist", "cpumap")
_MASKS = (
    "/core_cpus",
    "/thread_siblings",
    "/package_cpus",
    "/core_siblings",
    "/cluster_cpus",
    "_map",
    "/cpumap",
)


class SysfsError(Exception):
    """No CPU at all can be read. The message names the path and what was expected there."""


@frozen
class SysfsReading:
    """What was read, and one sentence for every hole in it.

    ``shown``: the CPUs with the sockets, dies and L3s that the kernel shows, also those that cannot be.
    """

    data: TopologyData
    warnings: tuple[str, ...]
    shown: tuple[Cpu, ...]


def read_sysfs(root: Path = Path("/sys"), proc: Path = Path("/proc")) -> SysfsReading:
    """Read the CPUs, caches, NUMA nodes, memory and PCI devices of a machine.

    Only online CPUs have a place, the other present ones are in ``offline``. A core, L3 or cluster goes by its lowest
    online CPU. A watcher takes ``read_signature`` before this: a change in the middle then shows next time.

    :raises SysfsError: there is no CPU below ``root``.
    """
    holes = _Holes()
    base = f"{root}/devices/system/cpu"
    # 1. Which CPUs there are.
    online, offline = _read_cpu_sets(base, holes)
    if not any(os.path.isdir(f"{base}/cpu{cpu}") for cpu in online):
        raise SysfsError(f"no CPU found: {base} should have folders cpu0, cpu1, ... (is {root} a sysfs?)")
    # 2. Which CPUs share a core, an L3, a socket and a cluster, and which memory is near.
    cores = _read_cores(base, online, holes)
    shown_l3s = _read_l3s(base, online, holes)
    shown_sockets = _read_sockets(base, online, cores, holes)
    near = (cores, shown_l3s, shown_sockets)
    nodes = _read_nodes(f"{root}/devices/system/node", proc, online, near, holes)
    # 3. Of sockets, dies and L3s what can be.
    l3s, doubts = whole_l3s(shown_l3s, nodes.of_cpu, shown_sockets, cores)
    clusters = _read_clusters(base, online, (cores, l3s, nodes.of_cpu), bool(offline), holes)
    sockets, more = whole_sockets(shown_sockets, cores, clusters, l3s, nodes.of_cpu)
    shown_dies = _read_dies(base, online, (cores, shown_l3s), holes)
    dies, others = whole_dies(shown_dies, shown_sockets, sockets, cores, (clusters, l3s, nodes.of_cpu))
    for doubt in (*doubts, *more, *others):
        holes.note(_Hole(f"{base}/cpu*/{doubt.file}", doubt.shows), doubt.instead)
    # 4. Every CPU's place.
    shown, cpus = (
        tuple(
            Cpu(c, cores[c], l3s_of.get(c), dies_of[c], nodes.of_cpu[c], sockets_of[c], clusters.get(c))
            for c in sorted(online)
        )
        for l3s_of, dies_of, sockets_of in ((shown_l3s, shown_dies, shown_sockets), (l3s, dies, sockets))
    )
    data = TopologyData(
        cpus=cpus,
        distance=nodes.distance,
        memory=nodes.memory,
        hugepages=nodes.hugepages,
        has_memory=nodes.has_memory,
        isolated=_optional_set(f"{base}/isolated", "no CPU is taken to be isolated", holes) or NO_CPUS,
        offline=offline,
        devices=_read_devices(f"{root}/bus/pci/devices", nodes.known, holes),
        vendor=_read_vendor(proc),
        core_types=_read_core_types(f"{root}/devices", online, holes),
        memory_bandwidth=nodes.memory_bandwidth,
    )
    return SysfsReading(data, holes.sentences(), shown)


def read_signature(root: Path = Path("/sys")) -> str:
    """What changes when CPUs or memory come and go: three small files, for a look every few seconds."""
    names = ("cpu/online", "node/online", "node/has_memory")
    return "\n".join(_optional_text(f"{root}/devices/system/{name}").strip() for name in names)


def read_free_memory(root: Path = Path("/sys")) -> dict[int, int]:
    """What new memory of each NUMA node can be made of at once, in bytes: free pages, and cached ones out of use."""
    base = f"{root}/devices/system/node"
    found = {}
    for node in sorted(_numbered(base, "node", "", _Holes())):
        meminfo = _optional_text(f"{base}/node{node}/meminfo")
        free, cached = _mem_field(meminfo, "MemFree"), _mem_field(meminfo, "Inactive(file)")
        if free is not None and cached is not None:
            found[node] = free + cached
    return found


# ---------------------------------------------------------------------- CPUs


def _read_cpu_sets(base: str, holes: _Holes) -> tuple[frozenset[int], frozenset[int]]:
    """The online CPUs, and the present ones that are offline."""
    try:
        online = _set(f"{base}/online")
        if not online:
            raise _Hole(f"{base}/online", "is empty")
    except _Hole as hole:
        # An offline CPU has no topology folder.
        folders = _numbered(base, "cpu", "no CPU is known", holes)
        online = frozenset(cpu for cpu in folders if os.path.isdir(f"{base}/cpu{cpu}/topology")) or folders
        if online:
            holes.note(hole, f"CPUs {format_cpus(online)} are taken to be online")
    # The file "offline" also names slots that hold no CPU: possible, but not present.
    lost = "offline CPUs may be overlooked"
    present = _optional_set(f"{base}/present", lost, holes)
    if present is None:
        named = _optional_set(f"{base}/offline", lost, holes) or NO_CPUS
        possible = _optional_set(f"{base}/possible", lost, holes)
        present = named if possible is None else named & possible
    return online, present - online


def _read_cores(base: str, online: frozenset[int], holes: _Holes) -> dict[int, int]:
    """The core of every CPU, named after its lowest online thread: a core_id repeats in every die."""
    groups: dict[int, frozenset[int]] = {}
    for cpu in sorted(online):
        folder = f"{base}/cpu{cpu}/topology"
        try:
            groups[cpu] = _group(_set_file(folder, _CORE_FILES), cpu, online)
        except _Hole as hole:
            holes.note(hole, "the core is what the other threads say", cpu)
    _note_contradictions(groups, f"{base}/cpu{{}}/topology/*_list", holes)
    for group in tuple(groups.values()):
        groups.update(dict.fromkeys(group - groups.keys(), group))
    alone = {cpu: frozenset([cpu]) for cpu in online}
    return _name_groups({**alone, **groups})


def _read_l3s(base: str, online: frozenset[int], holes: _Holes) -> dict[int, int]:
    """The L3 of every CPU that tells it, named after the lowest CPU of the group."""
    groups: dict[int, frozenset[int]] = {}
    for cpu in sorted(online):
        try:
            groups[cpu] = _read_l3(f"{base}/cpu{cpu}/cache", cpu, online)
        except _Hole as hole:
            holes.note(hole, "the L3 is not known", cpu)
    _note_contradictions(groups, f"{base}/cpu{{}}/cache/*/shared_cpu_list", holes)
    return _name_groups(groups)


def _read_l3(folder: str, cpu: int, online: frozenset[int]) -> frozenset[int]:
    # 1. The last index first: that is where the L3 is, and the files of the others are not opened.
    first_hole: Optional[_Hole] = None
    for index in sorted(_names(folder), reverse=True):
        if not index.startswith("index"):
            continue
        # 2. A hole in one index is no reason to miss the L3 in another.
        try:
            is_l3 = _number(f"{folder}/{index}/level") == 3
            if is_l3 and _optional_text(f"{folder}/{index}/type").strip() != "Instruction":
                return _group(_set_file(f"{folder}/{index}", _CACHE_FILES), cpu, online)
        except _Hole as hole:
            first_hole = first_hole or hole
    raise first_hole or _Hole(folder, "has no cache of level 3")


def _read_sockets(
    base: str, online: frozenset[int], cores: Mapping[int, int], holes: _Holes
) -> dict[int, int]:
    """The socket of every CPU: the CPUs that the kernel lists together, by the id of the first.

    Ids alone tell too little: on s390 they begin anew in every book. Some kernels know no packages: they have the id -1,
    and list each core by itself.
    """
    ids: dict[int, int] = {}
    for cpu in sorted(online):
        path = f"{base}/cpu{cpu}/topology/physical_package_id"
        try:
            ids[cpu] = max(_number(path), -1) if os.path.exists(path) else -1
        except _Hole as hole:
            holes.note(hole, "the socket is what the other CPUs say", cpu)
            ids[cpu] = -1
    # 1. By lists. Those of CPUs that an earlier list names are not read.
    groups: dict[int, frozenset[int]] = {}
    for cpu in sorted(online):
        path = _set_file(f"{base}/cpu{cpu}/topology", _SOCKET_FILES)
        if cpu in groups or not os.path.exists(path):
            continue
        try:
            group = _group(path, cpu, online).difference(groups)
        except _Hole as hole:
            holes.note(hole, "the socket is what the other CPUs say", cpu)
            continue
        groups.update(dict.fromkeys(group, group))
    told = {group: [ids[cpu] for cpu in sorted(group) if ids[cpu] >= 0] for group in groups.values()}
    if not any(told.values()) and are_single_cores(_name_groups(groups), cores):
        return dict.fromkeys(online, 0)
    # 2. The number of each: its id, or one that no socket has.
    spare = max(0, *ids.values())
    numbers: dict[frozenset[int], int] = {}
    for group in sorted(told, key=min):
        numbers[group] = told[group][0] if told[group] else 0
        if list(numbers.values()).count(numbers[group]) > 1:
            spare += 1
            numbers[group] = spare
    return {cpu: numbers[groups[cpu]] if cpu in groups else max(0, ids[cpu]) for cpu in online}


def _read_dies(
    base: str, online: frozenset[int], near: Sequence[Mapping[int, int]], holes: _Holes
) -> dict[int, int]:
    """The die of every CPU by its id, which begins anew in every socket; 0 where the kernel has none (before 5.2) or -1."""
    told: dict[int, int] = {}
    for cpu in sorted(online):
        path = f"{base}/cpu{cpu}/topology/die_id"
        try:
            if os.path.exists(path):
                told[cpu] = max(0, _number(path))
        except _Hole as hole:
            holes.note(hole, "the die is what the other CPUs say", cpu)
    return {cpu: told[cpu] if cpu in told else _nearby(cpu, told, near, 0) for cpu in online}


def _read_clusters(
    base: str,
    online: frozenset[int],
    places: tuple[Mapping[int, int], Mapping[int, int], Mapping[int, int]],
    some_offline: bool,
    holes: _Holes,
) -> dict[int, int]:
    """The cluster of every CPU that is in one, named after its lowest CPU. ``places``: their core, L3 and NUMA node.

    The file is there since Linux 5.16. On most machines it names the core or all of the L3 or socket: no clusters.
    """
    cores, l3s, nodes = places
    around: dict[tuple[Optional[int], int], set[int]] = {}
    for cpu in online:
        around.setdefault((l3s.get(cpu), nodes[cpu]), set()).add(cpu)
    groups: dict[int, frozenset[int]] = {}
    for cpu in sorted(online):
        path = _set_file(f"{base}/cpu{cpu}/topology", _CLUSTER_FILES)
        try:
            group = _group(path, cpu, online) if os.path.exists(path) else NO_CPUS
            l3s_of = {(l3s.get(mate), nodes[mate]) for mate in group}
            if len(l3s_of) > 1 and not all(around[l3] <= group for l3 in l3s_of):
                raise _Hole(
                    path, f"holds {_quoted(format_cpus(group))}, which are in several L3s or NUMA nodes"
                )
        except _Hole as hole:
            holes.note(hole, "the cluster is what the other CPUs say", cpu)
            continue
        if len(l3s_of) == 1:
            groups[cpu] = group
    # 1. What its CPUs do not agree on, or what parts a core, is no cluster.
    mates: dict[int, set[int]] = {}
    for cpu, core in cores.items():
        mates.setdefault(core, set()).add(cpu)
    first = {group: cpu for cpu, group in sorted(groups.items(), reverse=True)}
    for group, cpu in sorted(first.items(), key=lambda item: item[1]):
        if any(groups.get(mate, group) != group or not mates[cores[mate]] <= group for mate in group):
            path = f"{base}/cpu{cpu}/topology/cluster_cpus_list"
            holes.note(_Hole(path, "contradicts other lists"), "it is taken for no cluster")
            del first[group]
    # 2. By L3: cores that are each alone in one are in none. Where some are the others are no level (hybrid CPUs),
    #    unless their mates may be offline.
    by_l3: dict[tuple[Optional[int], int], set[frozenset[int]]] = {}
    for group, cpu in first.items():
        by_l3.setdefault((l3s.get(cpu), nodes[cpu]), set()).add(group)
    kept = []
    for there in by_l3.values():
        alone = [group for group in there if len({cores[cpu] for cpu in group}) == 1]
        if len(alone) < len(there) and (some_offline or not alone):
            kept.append(there)
    # 3. One that is all of its L3 is none, unless other L3s have several.
    if not any(len(there) > 1 for there in kept):
        return {}
    return _name_groups({cpu: group for there in kept for group in there for cpu in group})


def _read_core_types(devices: str, online: frozenset[int], holes: _Holes) -> dict[str, frozenset[int]]:
    """The CPUs of fast and of slow cores; nothing where all are alike.

    On x86 the kernel counts events of each type by a unit of its own, which names its CPUs. Elsewhere every CPU has its
    capacity, where such as differ by less than 5 % are alike, as for the scheduler.
    """
    alike = "cores are taken to be alike"
    units = [
        _optional_set(f"{devices}/{unit}/cpus", alike, holes) or NO_CPUS for unit in ("cpu_core", "cpu_atom")
    ]
    fast, slow = (unit & online for unit in units)
    if (
        not units[0]
        and not units[1]
        and os.path.exists(f"{devices}/system/cpu/cpu{min(online)}/cpu_capacity")
    ):
        try:
            paths = {cpu: f"{devices}/system/cpu/cpu{cpu}/cpu_capacity" for cpu in online}
            capacity = {cpu: _number(path) for cpu, path in paths.items()}
        except _Hole as hole:
            holes.note(hole, alike)
            return {}
        least, most = min(capacity.values()) * _ALIKE, max(capacity.values()) / _ALIKE
        if most > least:
            fast = frozenset(cpu for cpu, there in capacity.items() if there >= most)
            slow = frozenset(cpu for cpu, there in capacity.items() if there <= least)
    fast, slow = fast or (online - slow if slow else NO_CPUS), slow or (online - fast if fast else NO_CPUS)
    return {PERFORMANCE: fast, EFFICIENT: slow} if fast and slow else {}


def _group(path: str, cpu: int, online: frozenset[int]) -> frozenset[int]:
    """The online CPUs of a list (odd kernels leave offline ones in) that must name the CPU it belongs to."""
    group = _set(path)
    if cpu not in group:
        raise _Hole(path, f"holds {_quoted(format_cpus(group))}, which leaves out the CPU itself")
    return group if group <= online else group & online


def _name_groups(groups: Mapping[int, frozenset[int]]) -> dict[int, int]:
    names: dict[frozenset[int], int] = {}
    return {cpu: names.setdefault(group, cpu) for cpu, group in sorted(groups.items())}


def _note_contradictions(groups: Mapping[int, frozenset[int]], path: str, holes: _Holes) -> None:
    for group, cpu in {group: cpu for cpu, group in sorted(groups.items(), reverse=True)}.items():
        other = min((mate for mate in group if groups.get(mate, group) != group), default=None)
        if other is not None:
            hole = _Hole(path.format(cpu), f"names CPU {other}, whose own list is another one")
            holes.note(hole, "every CPU is believed about itself")


# ---------------------------------------------------------------------- NUMA nodes


@frozen
class _Nodes:
    """``known``: the nodes that have CPUs or memory, or of which we know that they have none."""

    of_cpu: dict[int, int]
    memory: dict[int, int]
    known: frozenset[int]
    hugepages: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    has_memory: Optional[frozenset[int]] = None
    distance: Optional[tuple[tuple[int, ...], ...]] = None
    memory_bandwidth: Mapping[int, int] = field(default_factory=dict)


def _read_nodes(
    base: str, proc: Path, online: frozenset[int], near: Sequence[Mapping[int, int]], holes: _Holes
) -> _Nodes:
    """``near``: what a CPU that no node names has its node from, by the other CPUs there; the smallest first."""
    folders = _numbered(base, "node", "the NUMA nodes are not known, one is taken", holes)
    if not folders:
        # A kernel without NUMA: one node that has everything.
        total = _mem_field(_optional_text(f"{proc}/meminfo"), "MemTotal")
        return _Nodes(dict.fromkeys(online, 0), {} if total is None else {0: total}, frozenset([0]))
    # 1. The nodes, in the order of the columns in "distance".
    columns = _optional_set(f"{base}/online", "every NUMA node is taken to be online", holes) or folders
    # 2. Their CPUs. No CPU is without a node, and a node with CPUs that run counts, whatever "online" says of it.
    of_cpu: dict[int, int] = {}
    for node in sorted(folders):
        try:
            there = _set(_set_file(f"{base}/node{node}", _NODE_FILES)) & online
        except _Hole as hole:
            holes.note(hole, f"the CPUs of NUMA node {node} are not known")
            continue
        for cpu in there:
            of_cpu.setdefault(cpu, node)
    ids = (columns & folders) | frozenset(of_cpu.values()) or folders
    told = dict(of_cpu)
    for cpu in sorted(online - of_cpu.keys()):
        of_cpu[cpu] = node = _nearby(cpu, told, near, min(ids))
        holes.note(_Hole(f"{base}/node*/cpulist", "leaves CPUs out"), f"NUMA node {node} is taken", cpu)
    # 3. Their memory. What is known of a node decides whether it counts, and so the size of the matrix.
    memory = _read_memory(base, ids, holes)
    has_memory = _optional_set(f"{base}/has_memory", "the sizes tell which NUMA nodes have memory", holes)
    has_memory = (has_memory or NO_CPUS) & ids or None
    known = frozenset(of_cpu.values()) | memory.keys() | (has_memory or NO_CPUS)
    distances = _read_distances(base, sorted(columns), known, holes)
    hugepages, bandwidth = _read_hugepages(base, ids, holes), _read_bandwidth(base, ids, holes)
    return _Nodes(of_cpu, memory, known, hugepages, has_memory, distances, bandwidth)


def _nearby(cpu: int, told: Mapping[int, int], near: Sequence[Mapping[int, int]], default: int) -> int:
    """What is told of the CPUs in one group with this one, in the first of ``near`` where something is."""
    for groups in near:
        found = [name for mate, name in told.items() if groups.get(mate, -1) == groups.get(cpu)]
        if found:
            return min(found)
    return default


def _read_memory(base: str, ids: frozenset[int], holes: _Holes) -> dict[int, int]:
    memory: dict[int, int] = {}
    for node in sorted(ids):
        path = f"{base}/node{node}/meminfo"
        try:
            total = _mem_field(_text(path), "MemTotal")
            if total is None:
                raise _Hole(path, "has no MemTotal")
            memory[node] = total
        except _Hole as hole:
            holes.note(hole, f"the memory of NUMA node {node} is not known")
    return memory


def _mem_field(meminfo: str, name: str) -> Optional[int]:
    """Bytes of ``MemTotal: 65771024 kB``, which nodeN/meminfo writes with ``Node N`` before it."""
    found = re.search(rf"^(?:Node +\d+ +)?{re.escape(name)}: *(\d{{1,{_DIGITS}}}) kB", meminfo, re.MULTILINE)
    return int(found.group(1)) * BYTES_PER_KB if found else None


def _read_hugepages(base: str, ids: frozenset[int], holes: _Holes) -> dict[int, dict[int, int]]:
    """The pages of the hugetlb pools, by size, from ``hugepages-2048kB/nr_hugepages``; pools without pages are none."""
    pools: dict[int, dict[int, int]] = {}
    for node in sorted(ids):
        folder = f"{base}/node{node}/hugepages"
        for name in sorted(_optional_names(folder, "its huge pages count as ordinary memory", holes)):
            size = name[len("hugepages-") : -len("kB")]
            try:
                count = _number(f"{folder}/{name}/nr_hugepages") if _is_number(size) else 0
            except _Hole as hole:
                holes.note(hole, "its huge pages count as ordinary memory")
                continue
            if count > 0:
                pools.setdefault(node, {})[int(size) * BYTES_PER_KB] = count
    return pools


def _read_bandwidth(base: str, ids: frozenset[int], holes: _Holes) -> dict[int, int]:
    """What the nearest CPUs read from each node, MB/s, where firmware tells (Linux 5.2 and newer)."""
    found = {}
    for node in sorted(ids):
        path = f"{base}/node{node}/access0/initiators/read_bandwidth"
        try:
            rate = _number(path) if os.path.exists(path) else 0
        except _Hole as hole:
            holes.note(hole, "the kind of memory goes by its size")
            continue
        if rate > 0:
            found[node] = rate
    return found


def _read_distances(
    base: str, columns: list[int], known: frozenset[int], holes: _Holes
) -> Optional[tuple[tuple[int, ...], ...]]:
    rows: list[tuple[int, ...]] = []
    try:
        for node in sorted(known):
            path = f"{base}/node{node}/distance"
            values = _text(path).split()
            if len(values) != len(columns) or not all(map(_is_number, values)):
                found = _quoted(" ".join(values))
                raise _Hole(path, f"holds {found} where {len(columns)} numbers are expected")
            rows.append(tuple(int(value) for column, value in zip(columns, values) if column in known))
    except _Hole as hole:
        holes.note(hole, "the usual distances are taken")
        return None
    return tuple(rows)


# ---------------------------------------------------------------------- devices, vendor


def _read_devices(base: str, nodes: frozenset[int], holes: _Holes) -> dict[str, int]:
    devices: dict[str, int] = {}
    for address in sorted(_optional_names(base, "no device is near a NUMA node", holes)):
        path = f"{base}/{address}/numa_node"
        try:
            node = _number(path) if os.path.exists(path) else -1
            if node >= 0 and node not in nodes:
                raise _Hole(path, f"names NUMA node {node}, which is not online")
        except _Hole as hole:
            holes.note(hole, "the device is near no NUMA node")
            continue
        if node >= 0:
            devices[address] = node
    return devices


def _read_vendor(proc: Path) -> str:
    # The first paragraph is enough: for 1,024 CPUs the file has more than a megabyte.
    with contextlib.suppress(OSError):
        for line in read_beginning(f"{proc}/cpuinfo", _PARAGRAPH_BYTES).decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
            if not name.strip():
                break
    return ""


# ---------------------------------------------------------------------- files and holes


class _Hole(Exception):
    """A file did not tell what it should: ``path`` and ``reason`` are the start of a sentence."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path, self.reason = path, reason


class _Holes:
    """The holes of one reading."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[tuple[_Hole, Optional[int]]]] = {}

    def note(self, hole: _Hole, consequence: str, cpu: Optional[int] = None) -> None:
        """Remember a hole. With ``cpu``, it is one sentence with the same hole of other CPUs."""
        alike = hole.path if cpu is None else hole.path.replace(f"/cpu{cpu}/", "/cpu*/")
        self._found.setdefault((alike, hole.reason, consequence), []).append((hole, cpu))

    def sentences(self) -> tuple[str, ...]:
        found: list[str] = []
        for (_, reason, consequence), items in self._found.items():
            cpus = [cpu for _, cpu in items if cpu is not None]
            whose = f"CPU{'s' if len(cpus) > 1 else ''} {format_cpus(cpus)}: " if cpus else ""
            found.append(f"{items[0][0].path} {reason}; {whose}{consequence}.")
        return tuple(found)


def _text(path: str) -> str:
    try:
        return read_bytes(path, KERNEL_BYTES).decode("ascii", errors="replace")
    except OSError as error:
        raise _Hole(path, _reason(error)) from None


def _optional_text(path: str) -> str:
    try:
        return _text(path)
    except _Hole:
        return ""


def _set_file(folder: str, names: Sequence[str]) -> str:
    """The first of these files that is there; where none is, the first is missing."""
    paths = [f"{folder}/{name}" for name in names]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _set(path: str) -> frozenset[int]:
    text = _text(path)
    is_mask = path.endswith(_MASKS)
    try:
        return _parse_mask(text) if is_mask else _parse(text)
    except BadCpuList:
        wanted = "mask such as 0000010f" if is_mask else "list such as 0-3,8"
        raise _Hole(path, f"holds {_quoted(text.strip())} where a {wanted} is expected") from None


# The files of the CPUs of one L3 hold the same text.
_parse = lru_cache(maxsize=256)(parse_cpus)
_parse_mask = lru_cache(maxsize=256)(parse_mask)


def _optional_set(path: str, consequence: str, holes: _Holes) -> Optional[frozenset[int]]:
    """A set from a file that need not exist (None); garbage in it is a hole."""
    try:
        return _set(path) if os.path.exists(path) else None
    except _Hole as hole:
        holes.note(hole, consequence)
        return None


def _number(path: str) -> int:
    text = _text(path).strip()
    if not _is_number(text[1:] if text.startswith("-") else text):
        raise _Hole(path, f"holds {_quoted(text)} where a number is expected")
    return int(text)


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS and text.isascii() and text.isdigit()


def _numbered(base: str, prefix: str, consequence: str, holes: _Holes) -> frozenset[int]:
    """The N of the folders ``prefixN``."""
    names = _optional_names(base, consequence, holes)
    tails = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return frozenset(int(tail) for tail in tails if _is_number(tail))


def _optional_names(folder: str, consequence: str, holes: _Holes) -> list[str]:
    """What is in a folder that need not exist; one that cannot be listed is a hole."""
    try:
        return _names(folder) if os.path.isdir(folder) else []
    except _Hole as hole:
        holes.note(hole, consequence)
        return []


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise _Hole(folder, _reason(error)) from None


def _reason(error: OSError) -> str:
    return "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
