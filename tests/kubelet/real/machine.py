"""The machine that the node of these tests believes in: a Hygon server, whatever the real one is."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from sys import executable

from policies.machine.cpus import format_cpus
from tests.e2e.cgroups import cgroup_mounts
from tests.machines import HYGON_7285_2S, machine, write_sysfs

#: 2 sockets, 8 NUMA nodes, 16 L3s of 4 cores with 2 threads.
MACHINE = HYGON_7285_2S
#: Of 2 MiB, in each of its NUMA nodes.
HUGE_PAGES = 64


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


def write_hugepages(sys: Path, pages: int = HUGE_PAGES) -> None:
    """Pages of 2 MiB in every NUMA node of the described sysfs, and for kubelet in ``kernel/mm/hugepages``."""
    nodes = sorted(machine(MACHINE).memory)
    counts = {sys / f"devices/system/node/node{node}/hugepages": pages for node in nodes}
    for folder, count in {**counts, sys / "kernel/mm/hugepages": pages * len(nodes)}.items():
        pool = folder / "hugepages-2048kB"
        pool.mkdir(parents=True, exist_ok=True)
        for name in ("nr_hugepages", "free_hugepages"):
            (pool / name).write_text(f"{count}\n")


def write_runtime(folder: Path) -> Path:
    """The runc that writes cpusets down for this machine; its folder ``cgroup`` looks like the cgroups' root."""
    shutil.copy(Path(__file__).with_name("cpusets.py"), folder)
    # Not one of PATH: that may be a script which looks for a Python first, at every call of runc.
    script = Path(__file__).with_name("runc").read_text().replace("python3", shlex.quote(executable))
    (folder / "runc").write_text(script)
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
