"""Sysfs of all kinds: what guests, old kernels and other architectures show, and what is made of it.

The rows are facts of real machines (public dumps of hwloc and util-linux among them), written down as groups of CPUs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

import pytest

from cri_proxy.node.sysfs import SysfsReading, read_sysfs
from policies.ladder import Climb, Ladder
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData, remember
from policies.node import Node


@dataclass(frozen=True)
class Shape:
    """A sysfs: groups of CPUs by level, separated by spaces. ``ids``: of the sockets, None = no such file.

    ``cores`` None: a CPU each. ``nodes`` None: a kernel without NUMA; by number. ``text``: how a set is written, by the
    name of its file without ``_list`` or ``_map``. ``more``: other files below devices/system, None = to be removed.
    """

    online: str
    sockets: str
    ids: Optional[tuple[int, ...]] = None
    cores: Optional[str] = None
    l3s: str = ""
    clusters: str = ""
    dies: Optional[Mapping[str, int]] = None
    nodes: Optional[Mapping[int, str]] = None
    masks: bool = False
    end: str = "\n"
    more: Mapping[str, Optional[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """What is made of it: the groups of each level, where a limit of one CPU is placed, and a word of each warning."""

    sockets: str
    l3s: str
    nodes: str
    place: str
    warnings: tuple[str, ...] = ()
    clusters: str = ""
    dies: int = 1
    cores: Optional[str] = None


def each(cpus: str) -> str:
    return " ".join(map(str, sorted(parse_cpus(cpus))))


def mask(cpus: frozenset[int]) -> str:
    """As the kernel writes it, in words of 32 bits."""
    bits = sum(1 << cpu for cpu in cpus)
    words = [f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(cpus, default=0) + 1, 32)]
    return ",".join(reversed(words))


JOINED = "are taken for one socket"
NO_CACHES = "cache does not exist; CPUs"

SHAPES: dict[str, tuple[Shape, Read]] = {
    "KVM on a Loongson: each of 32 CPUs a socket, one L3": (
        Shape("0-31", each("0-31"), tuple(range(32)), l3s="0-31", nodes={0: "0-31"}),
        Read("0-31", "0-31", "0-31", "0-31", (JOINED,)),
    ),
    "a Hygon guest without <topology>: an L3 for eight APIC ids": (
        Shape("0-15", each("0-15"), tuple(range(16)), l3s="0-7 8-15", nodes={0: "0-15"}),
        Read("0-7 8-15", "0-7 8-15", "0-15", "0-7", (JOINED,)),
    ),
    "the same with two sockets of six CPUs: an L3 over their border": (
        Shape("0-11", "0-5 6-11", (0, 1), l3s="0-7 8-11", nodes={0: "0-11"}),
        Read("0-11", "0-7 8-11", "0-11", "0-7", (JOINED,)),
    ),
    "Xen: a socket and an L3 for each CPU": (
        Shape("0-7", each("0-7"), tuple(range(8)), l3s=each("0-7"), nodes={0: "0-3", 1: "4-7"}),
        Read("0-3 4-7", "", "0-3 4-7", "0-3", ("an L3 for each socket of one core; no L3 is known", JOINED)),
    ),
    "VMware: a socket for each CPU, no NUMA": (
        Shape("0-3", each("0-3"), (0, 2, 4, 6), l3s=each("0-3")),
        Read("0-3", "", "0-3", "0-3", ("no L3 is known", JOINED)),
    ),
    "a socket of two threads each": (
        Shape("0-7", "0-1 2-3 4-5 6-7", (0, 1, 2, 3), cores="0-1 2-3 4-5 6-7", nodes={0: "0-7"}),
        Read("0-7", "", "0-7", "0-7", (NO_CACHES, JOINED), cores="0-1 2-3 4-5 6-7"),
    ),
    "an EPYC 7F52 without SMT: an L3 for each core of a real socket": (
        Shape("0-15", "0-15", (0,), l3s=each("0-15"), nodes={0: "0-15"}),
        Read("0-15", each("0-15"), "0-15", "0"),
    ),
    "a phone: its clusters called packages, one L3": (
        Shape("0-7", "0-2 3-6 7", (0, 1, 2), l3s="0-7"),
        Read("0-7", "0-7", "0-7", "0-7", (JOINED,)),
    ),
    "a core whose threads are two sockets": (
        Shape("0-3", "0,2 1,3", (0, 1), cores="0-1 2-3", nodes={0: "0-3"}),
        Read("0-3", "", "0-3", "0-3", (NO_CACHES, JOINED), cores="0-1 2-3"),
    ),
    "a cluster over two sockets, no caches": (
        Shape("0-7", "0-1 2-3 4-7", (0, 1, 2), clusters="0-3 4-7", nodes={0: "0-7"}),
        Read("0-3 4-7", "", "0-7", "0-7", (NO_CACHES, JOINED), clusters="0-3 4-7"),
    ),
    "a NUMA node with parts of two sockets": (
        Shape("0-7", "0-3 4-7", (0, 1), nodes={0: "0-2", 1: "3-7"}),
        Read("0-7", "", "0-2 3-7", "0-2", (NO_CACHES, JOINED)),
    ),
    "an L3 with parts of two NUMA nodes": (
        Shape("0-7", "0-7", (0,), l3s="0-3 4-7", nodes={0: "0-2", 1: "3-7"}),
        Read("0-7", "4-7", "0-2 3-7", "4-7", ("parts of several NUMA nodes; these L3s count as not known",)),
    ),
    "sub-NUMA clustering: an L3 of two whole nodes": (
        Shape("0-15", "0-7 8-15", (0, 1), l3s="0-7 8-15", nodes={0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}),
        Read("0-7 8-15", "0-7 8-15", "0-3 4-7 8-11 12-15", "0-3"),
    ),
    "a node that interleaves two whole sockets": (
        Shape("0-7", "0-3 4-7", (0, 1), l3s="0-1 2-3 4-5 6-7", nodes={0: "0-7"}),
        Read("0-3 4-7", "0-1 2-3 4-5 6-7", "0-7", "0-1"),
    ),
    "dies of three cores, L3s of four": (
        Shape("0-8", "0-8", (0,), l3s="0-3 4-7 8", dies={"0-2": 0, "3-5": 1, "6-8": 2}, nodes={0: "0-8"}),
        Read("0-8", "0-3 4-7 8", "0-8", "0-3", ("die_id cuts cores, caches or NUMA nodes; dies are not told",)),
    ),
    "a die for each CPU": (
        Shape("0-3", "0-3", (0,), dies={"0": 0, "1": 1, "2": 2, "3": 3}, nodes={0: "0-3"}),
        Read("0-3", "", "0-3", "0-3", (NO_CACHES,)),
    ),
    "dies of sockets that are one": (
        Shape("0-7", "0-3 4-7", (0, 1), l3s="0-7", dies={"0-1,4-5": 0, "2-3,6-7": 1}, nodes={0: "0-7"}),
        Read("0-7", "0-7", "0-7", "0-7", (JOINED,)),
    ),
    "dies as Cascade Lake AP has them": (
        Shape("0-7", "0-7", (0,), l3s="0-3 4-7", dies={"0-3": 0, "4-7": 1}, nodes={0: "0-3", 1: "4-7"}),
        Read("0-7", "0-3 4-7", "0-3 4-7", "0-3", dies=2),
    ),
    "s390: socket ids that begin anew in every book": (
        Shape("0-7", "0-1 2-4 5-7", (0, 0, 1)),
        Read("0-1 2-4 5-7", "", "0-7", "0-7", (NO_CACHES,)),
    ),
    "s390: sockets without ids, one of a single core": (
        Shape("1-6", "1-2 3-5 6", (-1, -1, -1)),
        Read("1-2 3-5 6", "", "1-6", "1-6", (NO_CACHES,)),
    ),
    "POWER7: no ids, and each core listed as a package": (
        Shape("0-7", "0-3 4-7", (-1, -1), cores="0-3 4-7", nodes={0: "0-7"}),
        Read("0-7", "", "0-7", "0-7", (NO_CACHES,), cores="0-3 4-7"),
    ),
    "sockets by lists alone": (
        Shape("0-7", "0-3 4-7", None, l3s="0-3 4-7", nodes={0: "0-7"}),
        Read("0-3 4-7", "0-3 4-7", "0-7", "0-3"),
    ),
    "Kunpeng 920: lists and masks that end with a NUL": (
        Shape("0-63", "0-63", (36,), l3s="0-31 32-63", clusters=" ".join(f"{c}-{c + 3}" for c in range(0, 64, 4)),
              nodes={0: "0-31", 1: "32-63"}, end="\n\0"),
        Read("0-63", "0-31 32-63", "0-31 32-63", "0-31",
             clusters=" ".join(f"{c}-{c + 3}" for c in range(0, 64, 4))),
    ),
    "a Xeon of Linux 2.6: masks alone": (
        Shape("0-15", "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15", (0, 1, 2, 3),
              cores="0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15", l3s="0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15",
              nodes={0: "0-15"}, masks=True),
        Read("0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15", "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15", "0-15", "0,4,8,12",
             cores="0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15"),
    ),
    "masks of more words than one, with a NUL": (
        Shape("0-127", "0-63 64-127", (0, 1), l3s="0-31 32-63 64-95 96-127", clusters="0-15 16-31 32-47 48-63 64-127",
              nodes={0: "0-63", 1: "64-127"}, masks=True, end="\n\0"),
        Read("0-63 64-127", "0-31 32-63 64-95 96-127", "0-63 64-127", "0-31", clusters="0-15 16-31 32-47 48-63"),
    ),
    "a mask that is none": (
        Shape("0-3", "0-3", (0,), l3s="0-3", nodes={0: "0-3"}, masks=True,
              more={"cpu/cpu2/cache/index3/shared_cpu_map": "0x0f"}),
        Read("0-3", "0-1,3", "0-3", "0-1,3",
             ("shared_cpu_map holds '0x0f' where a mask such as 0000010f is expected; CPU 2: the L3",)),
    ),
    "CPU 0 and NUMA node 0 are offline": (
        Shape("4-11", "4,6,8,10 5,7,9,11", (0, 1), l3s="4,6,8,10 5,7,9,11", nodes={1: "5,7,9,11"}),
        Read("4,6,8,10 5,7,9,11", "4,6,8,10 5,7,9,11", "4-11", "4,6,8,10",
             ("cpulist leaves CPUs out; CPUs 4,6,8,10: NUMA node 1 is taken",)),
    ),
    "a node that has CPUs and is not called online": (
        Shape("0-7", "0-7", (0,), l3s="0-3 4-7", nodes={0: "0-3", 1: "4-7"}, more={"node/online": "0"}),
        Read("0-7", "0-3 4-7", "0-3 4-7", "0-3", ("distance",)),
    ),
    "a CPU that no node lists is where its L3 is": (
        Shape("0-7", "0-7", (0,), l3s="0-3 4-7", nodes={0: "0-3", 1: "4-5,7"}),
        Read("0-7", "0-3 4-7", "0-3 4-7", "0-3", ("CPU 6: NUMA node 1 is taken",)),
    ),
    "a CPU that two nodes list is of the first": (
        Shape("0-7", "0-7", (0,), l3s="0-3 4-7", nodes={0: "0-3", 1: "3-7"}),
        Read("0-7", "0-3 4-7", "0-3 4-7", "0-3"),
    ),
    "a hybrid client: two LP-E cores have no L3": (
        Shape("0-11", "0-11", (0,), l3s="0-9", nodes={0: "0-11"}),
        Read("0-11", "0-9", "0-11", "0-9", ("CPUs 10-11: the L3 is not known",)),
    ),
}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="sysfs-") as name:
        yield Path(name)


@pytest.mark.parametrize("name", SHAPES)
def test_a_sysfs_is_read_as_the_machine_can_be(name: str, folder: Path) -> None:
    shape, wanted = SHAPES[name]
    reading = write_and_read(shape, folder)
    assert read_of(reading) == Read(
        wanted.sockets,
        wanted.l3s,
        wanted.nodes,
        wanted.place,
        reading.warnings,
        wanted.clusters,
        wanted.dies,
        wanted.cores or each(shape.online),
    )
    assert len(reading.warnings) == len(wanted.warnings), reading.warnings
    assert [word for word in wanted.warnings if not any(word in told for told in reading.warnings)] == []
    assert all(told.startswith(str(folder)) and told.endswith(".") for told in reading.warnings)


@pytest.mark.parametrize("name", SHAPES)
def test_what_the_kernel_shows_is_there_for_the_doctor(name: str, folder: Path) -> None:
    shape, _ = SHAPES[name]
    reading = write_and_read(shape, folder)
    no_ids = shape.ids is not None and set(shape.ids) == {-1} and shape.sockets == shape.cores
    assert groups(reading.shown, lambda c: c.socket) == (
        format_cpus(parse_cpus(shape.online)) if no_ids else shape.sockets
    )
    damaged = parse_cpus("2") if name == "a mask that is none" else frozenset()
    l3s = " ".join(format_cpus(parse_cpus(text) - damaged) for text in shape.l3s.split())
    assert groups(reading.shown, lambda c: c.l3) == l3s


@pytest.mark.parametrize("gone", ["0", "5", "0-3"])
def test_a_joined_socket_keeps_cpus_that_go_offline(gone: str, folder: Path) -> None:
    shape, _ = SHAPES["a Hygon guest without <topology>: an L3 for eight APIC ids"]
    before = Topology(write_and_read(shape, folder / "before").data)
    left = before.online - parse_cpus(gone)
    fewer = Shape(
        format_cpus(left),
        each(format_cpus(left)),
        tuple(sorted(left)),
        l3s=" ".join(format_cpus(parse_cpus(l3) & left) for l3 in shape.l3s.split()),
        nodes={0: format_cpus(left)},
        more={"cpu/present": shape.online},
    )
    after = Topology(remember(before, write_and_read(fewer, folder / "after").data))
    assert [d.cpus for d in after.domains] == [d.cpus for d in before.domains]
    assert after.online == left


# ---------------------------------------------------------------------- helpers


def read_of(reading: SysfsReading) -> Read:
    data = reading.data
    return Read(
        groups(data.cpus, lambda c: c.socket),
        groups(data.cpus, lambda c: c.l3),
        groups(data.cpus, lambda c: c.numa),
        place_of_one(data),
        reading.warnings,
        groups(data.cpus, lambda c: c.cluster),
        len({(c.socket, c.die) for c in data.cpus}) - len({c.socket for c in data.cpus}) + 1,
        groups(data.cpus, lambda c: c.core),
    )


def place_of_one(data: TopologyData) -> str:
    """Where the ladder places a container with a limit of one CPU on the empty machine."""
    tree = Topology(data)
    node = Node(tree, tree.online, tree.memory_nodes, NO_CPUS)
    return format_cpus(Ladder(tree).climb(node.capacity(), node, Climb(1000, 0)).cpus)


def groups(cpus: tuple[Cpu, ...], key: Callable[[Cpu], Optional[int]]) -> str:
    found: dict[int, list[int]] = {}
    for cpu in cpus:
        name = key(cpu)
        if name is not None:
            found.setdefault(name, []).append(cpu.cpu)
    return " ".join(format_cpus(group) for group in found.values())


def write_and_read(shape: Shape, folder: Path) -> SysfsReading:
    files: dict[str, Optional[str]] = {"cpu/online": shape.online, "cpu/present": shape.online}
    sets: dict[str, str] = {}
    for cpu in parse_cpus(shape.online):
        topology = f"cpu/cpu{cpu}/topology"
        sets[f"{topology}/core_cpus"] = around(cpu, shape.cores or each(shape.online))
        sets[f"{topology}/package_cpus"] = around(cpu, shape.sockets)
        if shape.clusters:
            sets[f"{topology}/cluster_cpus"] = around(cpu, shape.clusters)
        if shape.ids is not None:
            number = shape.sockets.split().index(around(cpu, shape.sockets))
            files[f"{topology}/physical_package_id"] = str(shape.ids[number])
        for cpus, die in (shape.dies or {}).items():
            if cpu in parse_cpus(cpus):
                files[f"{topology}/die_id"] = str(die)
        if around(cpu, shape.l3s):
            files[f"cpu/cpu{cpu}/cache/index3/level"] = "3"
            sets[f"cpu/cpu{cpu}/cache/index3/shared_cpu"] = around(cpu, shape.l3s)
    for node, cpus in (shape.nodes or {}).items():
        sets[f"node/node{node}/cpu"] = cpus
        files[f"node/node{node}/meminfo"] = f"Node {node} MemTotal: 1048576 kB"
        files[f"node/node{node}/distance"] = " ".join(
            "10" if node == other else "20" for other in shape.nodes or {}
        )
        files["node/online"] = format_cpus(shape.nodes or {})
    for name, cpus in sets.items():
        old = {"core_cpus": "thread_siblings", "package_cpus": "core_siblings"}
        path, _, last = name.rpartition("/")
        if shape.masks:
            suffix = {"shared_cpu": "_map", "cpu": "map"}.get(last, "")
            files[f"{path}/{old.get(last, last)}{suffix}"] = mask(parse_cpus(cpus)) + shape.end
        else:
            files[f"{path}/{last}{'list' if last == 'cpu' else '_list'}"] = cpus + shape.end
    for name, text in {**files, **shape.more}.items():
        file = folder / "sys/devices/system" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            file.write_text(text if text.endswith(("\n", "\0")) else text + "\n")
    return read_sysfs(folder / "sys", folder / "proc")


def around(cpu: int, listed: str) -> str:
    """The one of some groups that a CPU is in; "" if none is."""
    return next((cpus for cpus in listed.split() if cpu in parse_cpus(cpus)), "")
