"""The machine's sockets, NUMA nodes and L3s as the affinity service tells them, from sysfs.

For clients of the service that place by themselves; cri-resmgr has a reader of its own that forgives more.
An L3 is the set of CPUs that share it, never its id (Documentation/ABI/testing/sysfs-devices-system-cpu).
"""

from __future__ import annotations

import os
import re

from bpf.kernel.procfs import read_text
from cri_api import affinity_pb2 as pb
from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus

_L3 = "3"


def read_machine(sysfs: str = "/sys") -> pb.NodeTopology:
    """What there is; a level about which sysfs says nothing has no domains."""
    base = f"{sysfs}/devices/system"
    sockets: dict[int, set[int]] = {}
    l3s: set[frozenset[int]] = set()
    for cpu in sorted(_list(f"{base}/cpu/online")):
        package = _text(f"{base}/cpu/cpu{cpu}/topology/physical_package_id")
        if package.isdigit():
            sockets.setdefault(int(package), set()).add(cpu)
        shared = _l3_of(f"{base}/cpu/cpu{cpu}/cache")
        l3s |= {shared} if shared else set()
    nodes = _numbers(f"{base}/node", r"node(\d+)")
    found = pb.NodeTopology()
    for package_id, cpus in sorted(sockets.items()):
        found.sockets.add(name=f"socket {package_id}", id=package_id, cpus=format_cpus(frozenset(cpus)))
    for node in nodes:
        cpus_of_node = format_cpus(_list(f"{base}/node/node{node}/cpulist"))
        found.numa_nodes.add(name=f"NUMA node {node}", id=node, cpus=cpus_of_node)
        found.distances.add(
            to=[int(d) for d in _text(f"{base}/node/node{node}/distance").split() if d.isdigit()]
        )
    for number, shared in enumerate(sorted(l3s, key=min)):
        found.l3s.add(name=f"L3 {number}", id=number, cpus=format_cpus(shared))
    return found


def _l3_of(folder: str) -> frozenset[int]:
    for index in _numbers(folder, r"index(\d+)"):
        if _text(f"{folder}/index{index}/level") == _L3:
            return _list(f"{folder}/index{index}/shared_cpu_list")
    return frozenset()


def _numbers(folder: str, pattern: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(found[1]) for found in (re.fullmatch(pattern, name) for name in names) if found)


def _list(path: str) -> frozenset[int]:
    try:
        return parse_cpus(_text(path))
    except BadCpuList:
        return frozenset()


def _text(path: str) -> str:
    return (read_text(path) or "").strip()
