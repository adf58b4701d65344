"""The named machines that tests speak of, and a sysfs for each of them.

A machine is a few lines of JSON in ``data/topologies``. The keys, with their defaults:

    about                what is special about it
    vendor               "": vendor_id of /proc/cpuinfo
    sockets              1
    dies_per_socket      1
    nodes_per_socket     1; 0 = one NUMA node holds all sockets
    l3_per_socket        1; 0 = the machine shows no caches
    clusters_per_socket  0: L2s or L3 tags that several cores share, in cluster_cpus_list; 0 = a kernel before 5.16
    cores_per_socket     1: core slots, of which dies, nodes, L3s and clusters get equal runs
    threads              1
    fused_cores          []: [socket, slot] of the slots that hold no core
    numbering            "siblings-last": all first threads, then all second ones; or "siblings-adjacent"
    offline, isolated    "": CPU lists
    memory_gib           1: of every NUMA node
    memory_gib_of        {}: of some nodes; a node that has no CPUs is made by naming it
    distance             {"same_socket": 20, "other_socket": 32}, or the whole matrix
    cache_ids            what the L3s' files ``id`` hold, null = no such file; default: counted
    devices              {}: NUMA node by PCI address
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Optional, Union

from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Cpu, TopologyData

FOLDER = Path(__file__).parent / "data" / "topologies"
GIB = 1024**3

HYGON_7285_2S = "hygon-7285-2s"
EPYC_NPS1_1S = "epyc-nps1-1s"
EPYC_NPS4_1S = "epyc-nps4-1s"
MONOLITHIC_2S = "monolithic-2s"
SNC_2S = "snc-2s"
VM_NO_CACHE_INFO = "vm-no-cache-info"
UNEVEN_CCX = "uneven-ccx"
OFFLINE_CPUS = "offline-cpus"
MEMORYLESS_NODE = "memoryless-node"
CACHE_IDS_ODD = "cache-ids-odd"
ONE_CPU = "one-cpu"
BIG_1024 = "big-1024"
CPULESS_MEMORY_NODE = "cpuless-memory-node"
NODE_INTERLEAVED = "node-interleaved"
KUNPENG_48_2S = "kunpeng-920-48-2s"
KUNPENG_64_2S = "kunpeng-920-64-2s"
KUNPENG_64_OLD_KERNEL = "kunpeng-920-64-old-kernel"
ALTRA_1S = "altra-80-1s"
E_CORES_1S = "e-cores-1s"

ALL_MACHINES = (
    HYGON_7285_2S,
    EPYC_NPS1_1S,
    EPYC_NPS4_1S,
    MONOLITHIC_2S,
    SNC_2S,
    VM_NO_CACHE_INFO,
    UNEVEN_CCX,
    OFFLINE_CPUS,
    MEMORYLESS_NODE,
    CACHE_IDS_ODD,
    ONE_CPU,
    BIG_1024,
    CPULESS_MEMORY_NODE,
    NODE_INTERLEAVED,
    KUNPENG_48_2S,
    KUNPENG_64_2S,
    KUNPENG_64_OLD_KERNEL,
    ALTRA_1S,
    E_CORES_1S,
)
#: Those whose kernel tells clusters.
CLUSTER_MACHINES = (KUNPENG_48_2S, KUNPENG_64_2S, ALTRA_1S, E_CORES_1S)

_DEFAULTS: dict[str, Any] = {
    "about": "",
    "vendor": "",
    "sockets": 1,
    "dies_per_socket": 1,
    "nodes_per_socket": 1,
    "l3_per_socket": 1,
    "clusters_per_socket": 0,
    "cores_per_socket": 1,
    "threads": 1,
    "fused_cores": [],
    "numbering": "siblings-last",
    "offline": "",
    "isolated": "",
    "memory_gib": 1,
    "memory_gib_of": {},
    "distance": {},
    "cache_ids": None,
    "devices": {},
}


@cache
def machine(name: str) -> TopologyData:
    """The named machine, as ``read_sysfs`` reads it."""
    spec = _spec(name)
    cpus = _cpus(spec)
    nodes = {c.numa: c.socket for c in cpus}
    memory_gib = {**dict.fromkeys(nodes, spec["memory_gib"]), **_by_node(spec["memory_gib_of"])}
    full = TopologyData(
        cpus=cpus,
        distance=_distances(spec["distance"], nodes),
        memory={node: size * GIB for node, size in sorted(memory_gib.items())},
        has_memory=frozenset(node for node, size in memory_gib.items() if size),
        isolated=parse_cpus(spec["isolated"]),
        devices=spec["devices"],
        vendor=spec["vendor"],
    )
    return take_offline(full, parse_cpus(spec["offline"]))


def take_offline(data: TopologyData, cpus: Iterable[int]) -> TopologyData:
    """The machine after these CPUs went offline, as sysfs shows it: their places are gone."""
    gone = frozenset(cpus)
    left = [c for c in data.cpus if c.cpu not in gone]
    return replace(data, cpus=_named_by_lowest(left), offline=data.offline | gone)


def write_sysfs(machine_or_name: Union[str, TopologyData], folder: Path) -> Path:
    """Write the machine's ``sys`` and ``proc`` below ``folder``; returns the path of ``sys``.

    CPUs that are offline get no topology and no caches, also where the data knows their place.
    """
    if isinstance(machine_or_name, str):
        data, cache_ids = machine(machine_or_name), _spec(machine_or_name)["cache_ids"]
    else:
        data, cache_ids = machine_or_name, None
    online = [c for c in data.cpus if c.cpu not in data.offline]
    files = {
        **_cpu_files(data, [c.cpu for c in online]),
        **_place_files(online),
        **_cache_files(online, cache_ids),
        **_node_files(data, online),
        **_proc_files(data, online),
        **_kind_files(data),
    }
    for address, node in {"0000:00:00.0": -1, **data.devices}.items():
        files[f"sys/devices/pci0000:00/{address}/numa_node"] = str(node)
    for parent in sorted({name.rpartition("/")[0] for name in files}):
        os.makedirs(f"{folder}/{parent}", exist_ok=True)
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(text + "\n")
    for c in online:
        (folder / f"sys/devices/system/cpu/cpu{c.cpu}/node{c.numa}").symlink_to(f"../../node/node{c.numa}")
    for address in ("0000:00:00.0", *data.devices):
        link = folder / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/{address}")
    return folder / "sys"


# ---------------------------------------------------------------------- a machine from its lines


def _spec(name: str) -> dict[str, Any]:
    spec = json.loads((FOLDER / f"{name}.json").read_text())
    unknown = sorted(set(spec) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"{name}.json: unknown key {unknown[0]!r}")
    return {**_DEFAULTS, **spec}


def _cpus(spec: Mapping[str, Any]) -> tuple[Cpu, ...]:
    slots = [
        (socket, slot)
        for socket in range(spec["sockets"])
        for slot in range(spec["cores_per_socket"])
        if [socket, slot] not in spec["fused_cores"]
    ]
    cpus = []
    for core, (socket, slot) in enumerate(slots):
        for thread in range(spec["threads"]):
            adjacent = spec["numbering"] == "siblings-adjacent"
            cpu = core * spec["threads"] + thread if adjacent else thread * len(slots) + core
            die, node, l3, cluster = (
                slot * spec[key] // spec["cores_per_socket"]
                for key in ("dies_per_socket", "nodes_per_socket", "l3_per_socket", "clusters_per_socket")
            )
            numa = socket * spec["nodes_per_socket"] + node
            has_l3, has_cluster = spec["l3_per_socket"], spec["clusters_per_socket"]
            places = (l3 if has_l3 else None, die, numa, socket, cluster if has_cluster else None)
            cpus.append(Cpu(cpu, core, *places))
    return _named_by_lowest(cpus)


def _named_by_lowest(cpus: Iterable[Cpu]) -> tuple[Cpu, ...]:
    """The CPUs in order, cores, L3s and clusters named after their first CPU."""
    cores: dict[tuple[int, int], int] = {}
    l3s: dict[tuple[int, Optional[int]], int] = {}
    clusters: dict[tuple[int, Optional[int]], int] = {}
    named = []
    for c in sorted(cpus, key=lambda c: c.cpu):
        core = cores.setdefault((c.socket, c.core), c.cpu)
        l3 = None if c.l3 is None else l3s.setdefault((c.socket, c.l3), c.cpu)
        cluster = None if c.cluster is None else clusters.setdefault((c.socket, c.cluster), c.cpu)
        named.append(replace(c, core=core, l3=l3, cluster=cluster))
    return tuple(named)


def _distances(wanted: Any, socket_of_node: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    if isinstance(wanted, list):
        return tuple(tuple(row) for row in wanted)
    near, far = wanted.get("same_socket", 20), wanted.get("other_socket", 32)
    nodes = sorted(socket_of_node.items())
    return tuple(tuple(10 if a == b else near if s == t else far for b, t in nodes) for a, s in nodes)


def _by_node(sizes: Mapping[str, int]) -> dict[int, int]:
    return {int(node): size for node, size in sizes.items()}


# ---------------------------------------------------------------------- the files of sysfs and procfs


def _cpu_files(data: TopologyData, online: list[int]) -> dict[str, str]:
    base = "sys/devices/system/cpu"
    present = sorted(data.offline.union(online))
    return {
        f"{base}/possible": format_cpus(present),
        f"{base}/present": format_cpus(present),
        f"{base}/online": format_cpus(online),
        f"{base}/offline": format_cpus(data.offline),
        f"{base}/isolated": format_cpus(data.isolated),
        # The boot CPU cannot go offline and has no such file.
        **{f"{base}/cpu{cpu}/online": str(int(cpu in online)) for cpu in present if cpu},
        f"{base}/cpu0/uevent": "DRIVER=processor",
    }


def _place_files(online: list[Cpu]) -> dict[str, str]:
    files: dict[str, str] = {}
    cores = _lists(online, lambda c: (c.socket, c.core))
    packages = _lists(online, lambda c: c.socket)
    clusters = _lists(online, lambda c: (c.socket, c.cluster))
    # As on EPYC "Naples" and Hygon, core ids start at 0 again in every die.
    core_ids: dict[tuple[int, int], dict[int, int]] = {}
    for c in online:
        in_die = core_ids.setdefault((c.socket, c.die), {})
        folder = f"sys/devices/system/cpu/cpu{c.cpu}/topology"
        files[f"{folder}/physical_package_id"] = str(c.socket)
        files[f"{folder}/die_id"] = str(c.die)
        files[f"{folder}/core_id"] = str(in_die.setdefault(c.core, len(in_die)))
        files[f"{folder}/thread_siblings_list"] = cores[c.socket, c.core]
        files[f"{folder}/core_cpus_list"] = cores[c.socket, c.core]
        files[f"{folder}/package_cpus_list"] = packages[c.socket]
        if c.cluster is not None:
            files[f"{folder}/cluster_id"] = str(c.cluster)
            files[f"{folder}/cluster_cpus_list"] = clusters[c.socket, c.cluster]
    return files


def _cache_files(online: list[Cpu], cache_ids: Optional[list[Optional[int]]]) -> dict[str, str]:
    files: dict[str, str] = {}
    cores = _lists(online, lambda c: (c.socket, c.core))
    l3s = _lists(online, lambda c: (c.socket, c.l3))
    ranks = {key: rank for rank, key in enumerate(l3s)}
    for c in online:
        if c.l3 is None:
            continue
        core, l3 = cores[c.socket, c.core], l3s[c.socket, c.l3]
        rank = ranks[c.socket, c.l3]
        l3_id = rank if cache_ids is None else cache_ids[rank]
        caches = (
            (1, "Data", "32K", core, c.core),
            (1, "Instruction", "64K", core, c.core),
            (2, "Unified", "512K", core, c.core),
            (3, "Unified", "8192K", l3, l3_id),
        )
        for index, (level, kind, size, shared, cache_id) in enumerate(caches):
            folder = f"sys/devices/system/cpu/cpu{c.cpu}/cache/index{index}"
            files[f"{folder}/level"] = str(level)
            files[f"{folder}/type"] = kind
            files[f"{folder}/size"] = size
            files[f"{folder}/shared_cpu_list"] = shared
            if cache_id is not None:
                files[f"{folder}/id"] = str(cache_id)
    return files


def _node_files(data: TopologyData, online: list[Cpu]) -> dict[str, str]:
    base = "sys/devices/system/node"
    cpus = _lists(online, lambda c: c.numa)
    nodes = sorted(cpus.keys() | data.memory.keys())
    has_memory = data.has_memory if data.has_memory is not None else [n for n in nodes if data.memory.get(n)]
    files = {
        f"{base}/possible": format_cpus(range(max(nodes) + 1)),
        f"{base}/online": format_cpus(nodes),
        f"{base}/has_cpu": format_cpus(cpus),
        f"{base}/has_memory": format_cpus(has_memory),
        f"{base}/has_normal_memory": format_cpus(has_memory),
    }
    for rank, node in enumerate(nodes):
        total_kb = data.memory.get(node, 0) // 1024
        files[f"{base}/node{node}/cpulist"] = cpus.get(node, "")
        files[f"{base}/node{node}/meminfo"] = (
            f"Node {node} MemTotal:       {total_kb} kB\nNode {node} MemFree:        {total_kb // 2} kB\n"
            f"Node {node} Inactive(anon):  {total_kb // 3} kB\nNode {node} Inactive(file):  {total_kb // 4} kB"
        )
        # As on a running kernel, also where there are no pages of a size.
        for size_kb in (2048, 1048576):
            count = data.hugepages.get(node, {}).get(size_kb * 1024, 0)
            files[f"{base}/node{node}/hugepages/hugepages-{size_kb}kB/nr_hugepages"] = str(count)
        if data.distance is not None:
            files[f"{base}/node{node}/distance"] = " ".join(map(str, data.distance[rank]))
    return files


def _kind_files(data: TopologyData) -> dict[str, str]:
    """What tells types of cores and kinds of memory apart, as on x86."""
    units = {"performance": "cpu_core", "efficient": "cpu_atom"}
    files = {
        f"sys/devices/{units[kind]}/cpus": format_cpus(cpus - data.offline)
        for kind, cpus in data.core_types.items()
    }
    for node, rate in data.memory_bandwidth.items():
        files[f"sys/devices/system/node/node{node}/access0/initiators/read_bandwidth"] = str(rate)
    return files


def _proc_files(data: TopologyData, online: list[Cpu]) -> dict[str, str]:
    paragraphs = [f"processor\t: {c.cpu}\nvendor_id\t: {data.vendor}\ncpu family\t: 24\n" for c in online]
    total_kb = sum(data.memory.values()) // 1024
    meminfo = f"MemTotal:       {total_kb} kB\nMemFree:        {total_kb // 2} kB"
    return {"proc/cpuinfo": "\n".join(paragraphs), "proc/meminfo": meminfo}


def _lists(cpus: list[Cpu], key: Any) -> dict[Any, str]:
    """The CPU list of every group, groups in order of their first CPU."""
    groups: dict[Any, list[int]] = {}
    for c in cpus:
        groups.setdefault(key(c), []).append(c.cpu)
    return {name: format_cpus(group) for name, group in groups.items()}
