"""An arm64 machine as Kunpeng's: QEMU's ``virt`` with NUMA nodes, and a device tree that tells L3s and clusters of cores.

QEMU's own tree has neither: ``virt`` describes no cache, and its map of CPUs no clusters that lie in an L3. So its tree
is written out, as source, and these parts are laid over it. The kernel reads caches from ``next-level-cache``
(drivers/base/cacheinfo.c) and the map from ``cpu-map`` (drivers/base/arch_topology.c): sockets and clusters since 6.0;
before, a cluster that holds cores is a package.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.vm.machine import Shape, distances, memory, plain_nodes

QEMU = "qemu-system-aarch64"
#: A core of ARMv8.0: emulation has least to do for it.
MODEL = "cortex-a72"
MACHINE = "virt,gic-version=3"
L2_BYTES, L3_BYTES_PER_CPU, LINE_BYTES = 512 << 10, 1 << 20, 64


def cpu_arguments(shape: Shape) -> list[str]:
    """-cpu, -smp, -m and -numa; for the boot, and for QEMU's own tree."""
    return [
        *("-cpu", MODEL, "-smp", f"{shape.cpus},sockets=1,clusters=1,cores={shape.cpus},threads=1"),
        *("-m", f"{shape.memory_mib}M", *memory(shape), *plain_nodes(shape), *distances(shape)),
    ]


def write_device_tree(shape: Shape, folder: Path) -> Path:
    """QEMU's tree with ours laid over it, as a file in that folder.

    :raises subprocess.CalledProcessError: QEMU or dtc refuses what it is given.
    """
    plain, made = folder / "plain.dtb", folder / "machine.dtb"
    dump = [
        QEMU,
        "-machine",
        f"{MACHINE},dumpdtb={plain}",
        *cpu_arguments(shape),
        "-display",
        "none",
        "-net",
        "none",
    ]
    subprocess.run(dump, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    dtc = ["dtc", "--quiet", "--in-format"]
    source = subprocess.run(
        [*dtc, "dtb", "--out-format", "dts", str(plain)], check=True, capture_output=True
    ).stdout
    whole = source + overlay(shape).encode()
    subprocess.run(
        [*dtc, "dts", "--out-format", "dtb", "--out", str(made)], input=whole, check=True, capture_output=True
    )
    return made


def overlay(shape: Shape) -> str:
    """What is appended to the source of QEMU's tree: an L2 a core, an L3 a CCX, and the map of CPUs."""
    lines = ["/ {", "cpus {", "/delete-node/ cpu-map;"]
    lines += [
        _cache(f"l3-{ccx}", 3, shape.cpus_per_ccx * L3_BYTES_PER_CPU, "") for ccx in range(len(shape.ccxs))
    ]
    for cpu in range(shape.cpus):
        lines.append(_cache(f"l2-{cpu}", 2, L2_BYTES, _reference(f"l3-{cpu // shape.cpus_per_ccx}")))
        lines.append(f"cpu@{cpu} {{ next-level-cache = {_reference(f'l2-{cpu}')}; }};")
    return "\n".join([*lines, _cpu_map(shape), "};", "};", ""])


def _cache(name: str, level: int, size: int, next_level: str) -> str:
    """A cache as the Devicetree Specification has it (3.8)."""
    sets = size // LINE_BYTES // 16
    words = f'compatible = "cache"; cache-unified; cache-level = <{level}>; cache-size = <{size}>;'
    words += f" cache-line-size = <{LINE_BYTES}>; cache-sets = <{sets}>;"
    return f"{name} {{ {words}{f' next-level-cache = {next_level};' if next_level else ''} }};"


def _reference(name: str) -> str:
    return f"<&{{/cpus/{name}}}>"


def _cpu_map(shape: Shape) -> str:
    per_socket, per_cluster = shape.cpus // shape.sockets, shape.cpus_per_cluster
    if not per_cluster:
        sockets = [
            _cluster(f"cluster{socket}", socket * per_socket, per_socket) for socket in range(shape.sockets)
        ]
        return f"cpu-map {{ {' '.join(sockets)} }};"
    sockets = []
    for socket in range(shape.sockets):
        clusters = [
            _cluster(f"cluster{number}", socket * per_socket + number * per_cluster, per_cluster)
            for number in range(per_socket // per_cluster)
        ]
        sockets.append(f"socket{socket} {{ {' '.join(clusters)} }};")
    return f"cpu-map {{ {' '.join(sockets)} }};"


def _cluster(name: str, first: int, size: int) -> str:
    cores = [f"core{core} {{ cpu = {_reference(f'cpu@{first + core}')}; }};" for core in range(size)]
    return f"{name} {{ {' '.join(cores)} }};"
