"""The machine that the node of these tests believes in: a Hygon server, whatever the real one is."""

from __future__ import annotations

import shutil
from pathlib import Path

from policies.machine.cpus import format_cpus
from tests.e2e.cgroups import cgroup_mounts
from tests.machines import HYGON_7285_2S, machine, write_sysfs

#: 2 sockets, 8 NUMA nodes, 16 L3s of 4 cores with 2 threads.
MACHINE = HYGON_7285_2S


def write_machine(folder: Path) -> Path:
    """The described machine's sysfs, with what kubelet reads of one besides; the path of its ``sys``."""
    sys = write_sysfs(MACHINE, folder)
    for cache in sys.glob("devices/system/cpu/cpu[0-9]*/cache/index*"):
        (cache / "size").write_text("8192K\n")
        (cache / "shared_cpu_map").write_text("1\n")
    for cpu in machine(MACHINE).cpus:
        node = sys / f"devices/system/node/node{cpu.numa}"
        (node / f"cpu{cpu.cpu}").symlink_to(f"../../cpu/cpu{cpu.cpu}")
        (node / "hugepages").mkdir(exist_ok=True)
    return sys


def write_runtime(folder: Path) -> Path:
    """The runc that writes cpusets down for this machine; its folder ``cgroup`` looks like the cgroups' root."""
    for name in ("runc", "cpusets.py"):
        shutil.copy(Path(__file__).with_name(name), folder / name)
    (folder / "runc").chmod(0o755)
    cpusets = folder / "cgroup" / "cpuset"
    cpusets.mkdir(parents=True)
    (folder / "places").mkdir()
    described = machine(MACHINE)
    nodes = format_cpus(described.memory)
    for name, value in (("cpus", format_cpus(cpu.cpu for cpu in described.cpus)), ("mems", nodes)):
        for file in (f"cpuset.{name}", f"cpuset.effective_{name}"):
            (cpusets / file).write_text(f"{value}\n")
    return folder / "runc"


def make_cgroup(path: str) -> None:
    """A cgroup of this name in every hierarchy: kubelet makes its own below it, and asks for all of them.

    Its ``kubepods`` too: kubelet from 1.28 on makes that with the CPUs it believes in.
    """
    for root, controllers in cgroup_mounts():
        folder = root
        for name in (*path.strip("/").split("/"), "kubepods"):
            above, folder = folder, folder / name
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems") if "cpuset" in controllers else ():
                if not (folder / file).read_text().strip():
                    (folder / file).write_text((above / file).read_text())
