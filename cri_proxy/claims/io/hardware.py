"""Reads from sysfs what devices tell of the machine beside its topology: sizes of L3s, frequencies, PCIe root complexes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cri_proxy.bounded_files import read_number, read_text
from cri_proxy.claims.devices import Hardware
from cri_proxy.engine.model import id_at
from policies.machine.topology import Topology

#: A root complex below /sys/devices, which is what ``resource.kubernetes.io/pcieRoot`` is called by, and a device of one.
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_hardware(sys: Path, topology: Topology) -> Hardware:
    """What cannot be read is left out."""
    l3_bytes = {id_at(l3, "l3"): size for l3 in topology.at("l3") if (size := _size(sys, min(l3.cpus)))}
    max_mhz = {cpu: most for cpu in sorted(topology.cpus) if (most := _max_mhz(sys, cpu))}
    return Hardware(l3_bytes, max_mhz, _roots(sys))


def _size(sys: Path, cpu: int) -> int:
    """The size of a CPU's L3 in bytes, 0 = not known."""
    try:
        text = read_text(sys / f"devices/system/cpu/cpu{cpu}/cache/index3/size").strip()  # "32768K"
        return read_number(text.removesuffix("K")) * 1024 if text.endswith("K") else 0
    except (OSError, ValueError):
        return 0


def _max_mhz(sys: Path, cpu: int) -> int:
    """The highest frequency of a CPU in MHz, 0 = not known, as in most virtual machines."""
    try:
        return read_number(read_text(sys / f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")) // 1000
    except (OSError, ValueError):
        return 0


def _roots(sys: Path) -> dict[int, tuple[str, ...]]:
    """Root complexes by NUMA node. Those that firmware says nothing of have none."""
    found: dict[int, list[str]] = {}
    for root in sorted(filter(_ROOT.fullmatch, _listed(sys / "devices"))):
        nodes = set()
        for device in filter(_DEVICE.fullmatch, _listed(sys / "devices" / root)):
            try:
                nodes.add(int(read_text(sys / "devices" / root / device / "numa_node")))
            except (OSError, ValueError):
                continue
        for node in nodes - {-1}:
            found.setdefault(node, []).append(root)
    return {node: tuple(roots) for node, roots in found.items()}


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
