"""sysfs is read as the machine is; a hole in it costs what the file would have told, and one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from cri_proxy.node.sysfs import SysfsError, read_free_memory, read_signature, read_sysfs
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData, remember
from policies.machine.topology_json import read_topology, write_topology
from tests import machines
from tests.agent import ROOT


def _capacity(cpus: str, capacity: int) -> dict[str, str]:
    return {f"system/cpu/cpu{cpu}/cpu_capacity": str(capacity) for cpu in parse_cpus(cpus)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory: a machine is thousands of files, which take seconds on a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="sysfs-") as name:
        yield Path(name)


def test_every_machine_has_a_name() -> None:
    assert sorted(machines.ALL_MACHINES) == sorted(path.stem for path in machines.FOLDER.glob("*.json"))


# ---------------------------------------------------------------------- whole machines


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_a_machine_is_read_as_it_is(name: str, folder: Path) -> None:
    sys = machines.write_sysfs(name, folder)
    reading = read_sysfs(sys, folder / "proc")
    found, wanted = Topology(reading.data), Topology(machines.machine(name))
    assert _boxes(found) == _boxes(wanted)
    assert found.node_ids == wanted.node_ids
    assert found.data.distance == wanted.data.distance
    assert found.data.memory == wanted.data.memory
    assert found.memory_nodes == wanted.memory_nodes
    assert (found.online, found.data.offline) == (wanted.online, wanted.data.offline)
    assert reading.data == machines.machine(name)
    assert len(reading.warnings) == (name in (machines.VM_NO_CACHE_INFO, machines.ALTRA_1S))


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_json_gives_back_what_was_written(name: str) -> None:
    text = json.dumps(write_topology(machines.machine(name)))
    assert read_topology(json.loads(text)) == machines.machine(name)


def test_the_machine_of_this_test_is_read() -> None:
    reading = read_sysfs()
    topology = Topology(reading.data)
    assert topology.online == parse_cpus(Path("/sys/devices/system/cpu/online").read_text())
    assert all(path.startswith("/") and path.endswith(".") for path in reading.warnings)
    assert read_topology(write_topology(reading.data)) == reading.data


def test_a_thousand_cpus_are_read_in_well_under_a_second(folder: Path) -> None:
    sys = machines.write_sysfs(machines.BIG_1024, folder)
    start = time.process_time()
    read_sysfs(sys, folder / "proc")
    # Of the processor, so that what else runs counts little: 0.15 s.
    assert time.process_time() - start < 1.5


def test_cache_ids_are_never_opened(folder: Path) -> None:
    sys = machines.write_sysfs(machines.CACHE_IDS_ODD, folder)
    for path in sys.glob("devices/system/cpu/cpu*/cache/index*/id"):
        path.write_text("0\n")
    assert read_sysfs(sys, folder / "proc").data == machines.machine(machines.CACHE_IDS_ODD)


def test_node_ids_may_be_sparse(folder: Path) -> None:
    data = machines.machine(machines.MEMORYLESS_NODE)
    ids = {0: 0, 1: 3, 2: 8, 3: 17}
    assert data.has_memory is not None
    sparse = replace(
        data,
        cpus=tuple(replace(c, numa=ids[c.numa]) for c in data.cpus),
        memory={ids[node]: size for node, size in data.memory.items()},
        has_memory=frozenset(ids[node] for node in data.has_memory),
    )
    assert read_sysfs(machines.write_sysfs(sparse, folder), folder / "proc").data == sparse


HYBRID = ("performance", "0-3"), ("efficient", "4-7")
CORE_TYPES: dict[str, tuple[dict[str, str], Any]] = {
    "x86": ({"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-7"}, HYBRID),
    "x86, one of the types offline": ({"cpu_core/cpus": "0-7"}, ()),
    "x86, one unit only": ({"cpu_atom/cpus": "4-7"}, HYBRID),
    "x86, a list that is none": ({"cpu_core/cpus": "0-3", "cpu_atom/cpus": "x"}, HYBRID),
    "Arm": ({**_capacity("0-3", 1024), **_capacity("4-7", 420)}, HYBRID),
    "Arm, with cores in between": (
        {**_capacity("0-1", 1024), **_capacity("2-3", 700), **_capacity("4-7", 420)},
        (("performance", "0-1"), ("efficient", "4-7")),
    ),
    "Arm, all alike but for the best": ({**_capacity("0", 1024), **_capacity("1-7", 1000)}, ()),
    "Arm, a hole": ({**_capacity("0-3", 1024), **_capacity("4-6", 420)}, ()),
    "nothing": ({}, ()),
}


@pytest.mark.parametrize("case", CORE_TYPES)
def test_types_of_cores_are_read_where_there_are_two(case: str, folder: Path) -> None:
    files, wanted = CORE_TYPES[case]
    sys = machines.write_sysfs(machines.VM_NO_CACHE_INFO, folder)
    for name, text in files.items():
        (sys / "devices" / name).parent.mkdir(parents=True, exist_ok=True)
        (sys / "devices" / name).write_text(f"{text}\n")
    found = read_sysfs(sys, folder / "proc").data
    assert {kind: format_cpus(cpus) for kind, cpus in found.core_types.items()} == dict(wanted)
    assert read_topology(json.loads(json.dumps(write_topology(found)))) == found
    assert ("core_types" in write_topology(found)) is bool(wanted)


def test_the_bandwidth_of_nodes_is_read_where_firmware_tells_it(folder: Path) -> None:
    data = replace(machines.machine(machines.CPULESS_MEMORY_NODE), memory_bandwidth={0: 250_000, 2: 900_000})
    found = read_sysfs(machines.write_sysfs(data, folder), folder / "proc").data
    assert found == data == read_topology(json.loads(json.dumps(write_topology(found))))
    assert Topology(found).high_bandwidth_nodes == {2}


def test_slots_without_a_cpu_are_not_offline_cpus(folder: Path) -> None:
    sys = machines.write_sysfs(machines.ONE_CPU, folder)
    _damage(sys, {"cpu/possible": "0-239", "cpu/offline": "1-239"})
    assert read_sysfs(sys, folder / "proc").data.offline == frozenset()


def test_a_machine_that_is_written_with_offline_places_is_read_without_them(folder: Path) -> None:
    cpus = tuple(Cpu(cpu, cpu, 0, 0, 0, 0) for cpu in range(4))
    data = TopologyData(cpus, offline=frozenset([3]), memory={0: machines.GIB}, has_memory=frozenset([0]))
    found = read_sysfs(machines.write_sysfs(data, folder), folder / "proc").data
    assert (found.cpus, found.offline) == (cpus[:3], frozenset([3]))


def test_cpus_that_go_offline_are_remembered_in_their_place(folder: Path) -> None:
    before = Topology(machines.machine(machines.HYGON_7285_2S))
    # The first CPU of a CCX, one whole core, one whole CCX.
    gone = parse_cpus("0,5,69,8-11,72-75")
    sys = machines.write_sysfs(machines.take_offline(before.data, gone), folder)
    after = Topology(remember(before, read_sysfs(sys, folder / "proc").data))
    assert _boxes(after) == _boxes(before)
    assert after.online == before.online - gone
    assert after.hash() == before.hash()


# ---------------------------------------------------------------------- clusters

CLUSTER = "cpu/cpu{}/topology/cluster_cpus_list"
CORE = "cpu/cpu{}/topology/core_cpus_list"


@pytest.mark.parametrize("one", ["the core", "the L3", "the socket", "nothing"])
def test_a_list_that_is_one_core_or_all_of_an_l3_is_no_cluster(one: str, folder: Path) -> None:
    data = machines.machine(machines.HYGON_7285_2S)
    sys = machines.write_sysfs(data, folder)
    group = {
        "the core": lambda c: c.core,
        "the L3": lambda c: c.l3,
        "the socket": lambda c: c.socket,
        "nothing": lambda c: 0,
    }[one]
    mates = {
        c.cpu: format_cpus(d.cpu for d in data.cpus if (d.socket, group(d)) == (c.socket, group(c)))
        for c in data.cpus
    }
    _damage(sys, {CLUSTER.format(cpu): cpus for cpu, cpus in mates.items() if one != "nothing"})
    reading = read_sysfs(sys, folder / "proc")
    assert (reading.data, reading.warnings) == (data, ())


def test_a_hybrid_cpus_clusters_are_no_level(folder: Path) -> None:
    # Two P-cores of two threads, each with an L2 of its own; two modules of four E-cores.
    cores = [0, 0, 1, 1, *range(4, 12)]
    cpus = tuple(
        Cpu(cpu, min(i for i, c in enumerate(cores) if c == core), 0, 0, 0, 0)
        for cpu, core in enumerate(cores)
    )
    data = TopologyData(cpus, ((10,),), memory={0: machines.GIB}, has_memory=frozenset([0]))
    sys = machines.write_sysfs(data, folder)
    lists = ["0-1", "0-1", "2-3", "2-3", *["4-7"] * 4, *["8-11"] * 4]
    _damage(sys, {CLUSTER.format(cpu): cpus for cpu, cpus in enumerate(lists)})
    reading = read_sysfs(sys, folder / "proc")
    assert (reading.data.cpus, reading.warnings) == (cpus, ())


def test_a_cluster_keeps_cpus_that_go_offline(folder: Path) -> None:
    before = Topology(machines.machine(machines.KUNPENG_48_2S), to_clusters=True)
    # The first CPU of a cluster, three of another, all of a third.
    gone = parse_cpus("4,9-11,16-19")
    sys = machines.write_sysfs(machines.take_offline(before.data, gone), folder)
    reading = read_sysfs(sys, folder / "proc")
    after = Topology(remember(before, reading.data), to_clusters=True)
    assert reading.warnings == ()
    assert _boxes(after) == _boxes(before)
    assert (after.online, after.hash()) == (before.online - gone, before.hash())


@pytest.mark.parametrize(
    ("files", "lost", "warning"),
    [
        ({CLUSTER.format(5): "4-x"}, "", "holds '4-x' where a list such as 0-3,8 is expected; CPU 5: the cluster is"),
        ({CLUSTER.format(5): b"\xff\x00"}, "", "cluster_cpus_list holds"),
        ({CLUSTER.format(5): ""}, "", "holds '', which leaves out the CPU itself; CPU 5: the cluster is what"),
        ({CLUSTER.format(5): "0-3"}, "", "which leaves out the CPU itself"),
        ({CLUSTER.format(5): None}, "", None),
        ({CLUSTER.format(cpu): "4-7,200-300" for cpu in range(4, 8)}, "", None),
        ({CLUSTER.format(5): "4-30"}, "", "holds '4-30', which are in several L3s or NUMA nodes; CPU 5: the cluster"),
        ({CLUSTER.format(c): "20-27" for c in range(20, 28)}, "20-27", "several L3s or NUMA nodes; CPUs 20-27:"),
        ({CLUSTER.format(c): None for c in range(4, 8)}, "4-7", None),
        ({CLUSTER.format(5): "4-8"}, "4-7", "cpu4/topology/cluster_cpus_list contradicts other lists; it is taken for"),
        ({CORE.format(c): "7-8" for c in (7, 8)}, "4-11", "cpu4/topology/cluster_cpus_list contradicts other lists"),
    ],
)  # fmt: skip
def test_a_cluster_list_that_cannot_be_costs_what_the_others_do_not_say(
    files: Files, lost: str, warning: Optional[str], folder: Path
) -> None:
    sys = machines.write_sysfs(machines.KUNPENG_48_2S, folder)
    _damage(sys, files)
    reading = read_sysfs(sys, folder / "proc")
    told = {
        c.cpu: None if c.cpu in parse_cpus(lost) else c.cluster
        for c in machines.machine(machines.KUNPENG_48_2S).cpus
    }
    assert {c.cpu: c.cluster for c in reading.data.cpus} == told
    if warning is None:
        assert reading.warnings == ()
    else:
        assert any(warning in sentence for sentence in reading.warnings)
        assert all(str(sys) in sentence and sentence.endswith(".") for sentence in reading.warnings)


# ---------------------------------------------------------------------- holes and garbage

# What stands in a file (None: there is no such file or folder; bytes: as they are), by its path below
# devices/system; what that changes for CPUs and for the machine; the one sentence, or None.
Files = Mapping[str, Union[str, bytes, None]]


def _hole(
    name: str,
    files: Files,
    cpus: Optional[Mapping[int, Mapping[str, Any]]] = None,
    warning: Optional[str] = None,
    **fields: Any,
) -> Any:
    return pytest.param(files, cpus or {}, fields, warning, id=name)


UNKNOWN_L3 = {5: {"l3": None}}
CACHE = "cpu/cpu5/cache/index3"

HOLES = [
    _hole(
        "no cache folder", {"cpu/cpu5/cache": None}, UNKNOWN_L3, "cpu5/cache does not exist; CPU 5: the L3"
    ),
    _hole("no level 3", {CACHE: None}, UNKNOWN_L3, "cpu5/cache has no cache of level 3; CPU 5: the L3 is"),
    _hole(
        "no list",
        {f"{CACHE}/shared_cpu_list": None},
        UNKNOWN_L3,
        "index3/shared_cpu_list does not exist; CPU 5: the L3 is not known.",
    ),
    _hole(
        "garbage in the list",
        {f"{CACHE}/shared_cpu_list": "3-x"},
        UNKNOWN_L3,
        "index3/shared_cpu_list holds '3-x' where a list such as 0-3,8 is expected; CPU 5: the L3",
    ),
    _hole(
        "bytes in the list", {f"{CACHE}/shared_cpu_list": b"\xff\x00"}, UNKNOWN_L3, "shared_cpu_list holds"
    ),
    _hole("empty list", {f"{CACHE}/shared_cpu_list": ""}, UNKNOWN_L3, "which leaves out the CPU itself"),
    _hole(
        "list without the CPU itself",
        {f"{CACHE}/shared_cpu_list": "0-2"},
        UNKNOWN_L3,
        "holds '0-2', which leaves out the CPU itself",
    ),
    _hole("garbage level", {f"{CACHE}/level": "L3"}, UNKNOWN_L3, "index3/level holds 'L3' where a number is"),
    _hole(
        "several CPUs, one sentence",
        {f"cpu/cpu{cpu}/cache": None for cpu in (3, 4, 5, 6)},
        {cpu: {"l3": None} for cpu in (3, 4, 5, 6)} | {cpu: {"l3": 17} for cpu in (17, 18, 19, 20)},
        "cpu3/cache does not exist; CPUs 3-6: the L3 is not known.",
    ),
    _hole("L3 of type Data", {f"cpu/cpu{cpu}/cache/index3/type": "Data" for cpu in range(28)}),
    _hole("L3 without a type", {f"{CACHE}/type": None}),
    _hole(
        "a level 3 instruction cache",
        {
            "cpu/cpu5/cache/index4/level": "3",
            "cpu/cpu5/cache/index4/type": "Instruction",
            "cpu/cpu5/cache/index4/shared_cpu_list": "5",
        },
    ),
    _hole("a level 4 above it", {"cpu/cpu5/cache/index4/level": "4"}),
    _hole(
        "L3 and siblings name CPUs that do not run",
        {f"cpu/cpu{c}/cache/index3/shared_cpu_list": "0-2,14-16,40" for c in (0, 1, 2, 14, 15, 16)}
        | {f"cpu/cpu{c}/topology/core_cpus_list": "0,14,40" for c in (0, 14)},
    ),
    _hole(
        "L3s that contradict each other",
        {f"{CACHE}/shared_cpu_list": "3-5"},
        {5: {"l3": 5}},
        "cpu5/cache/*/shared_cpu_list names CPU 3, whose own list is another one; every CPU is believed",
    ),
    _hole(
        "garbage siblings",
        {"cpu/cpu5/topology/core_cpus_list": "?"},
        {},
        "cpu5/topology/core_cpus_list holds '?'",
    ),
    _hole(
        "no siblings in any thread of a core",
        {
            f"cpu/cpu{cpu}/topology/{name}": None
            for cpu in (5, 19)
            for name in ("core_cpus_list", "thread_siblings_list")
        },
        {19: {"core": 19}},
        "topology/core_cpus_list does not exist; CPUs 5,19: the core is what the other threads say.",
    ),
    _hole(
        "siblings by the old name only", {f"cpu/cpu{cpu}/topology/core_cpus_list": None for cpu in range(28)}
    ),
    _hole("no package id", {"cpu/cpu5/topology/physical_package_id": None}),
    _hole("package id -1", {f"cpu/cpu{cpu}/topology/physical_package_id": "-1" for cpu in range(28)}),
    _hole(
        "garbage package id",
        {"cpu/cpu5/topology/physical_package_id": "one"},
        {},
        "physical_package_id holds 'one' where a number is expected; CPU 5: the socket is what the other",
    ),
    _hole("no die id", {"cpu/cpu12/topology/die_id": None}),
    _hole("garbage die id", {"cpu/cpu12/topology/die_id": "x"}, {}, "the die is what the other CPUs say."),
    _hole("no isolated file", {"cpu/isolated": None}),
    _hole("garbage isolated", {"cpu/isolated": "(null)"}, {}, "cpu/isolated holds '(null)'"),
    _hole("no present file", {"cpu/present": None}),
    _hole(
        "no files of CPU sets but online",
        {f"cpu/{name}": None for name in ("present", "possible", "offline")},
    ),
    _hole("no online file", {"cpu/online": None}, {}, "cpu/online does not exist; CPUs 0-27 are taken to be"),
    _hole(
        "empty online file", {"cpu/online": ""}, {}, "cpu/online is empty; CPUs 0-27 are taken to be online."
    ),
    _hole(
        "garbage present",
        {"cpu/present": "all"},
        {},
        "cpu/present holds 'all' where a list such as 0-3,8 is expected; offline CPUs may be overlooked.",
    ),
    _hole("no online nodes file", {"node/online": None}),
    _hole("garbage online nodes", {"node/online": "0-"}, {}, "node/online holds '0-'"),
    _hole(
        "garbage CPUs of a node",
        {"node/node1/cpulist": "7-"},
        {cpu: {"numa": 0} for cpu in (*range(7, 14), *range(21, 28))},
        "node/node1/cpulist holds '7-'",
    ),
    _hole(
        "a CPU without a node",
        {"node/node1/cpulist": "8-13,21-27"},
        {},
        "node/node*/cpulist leaves CPUs out; CPU 7: NUMA node 1 is taken.",
    ),
    _hole(
        "no meminfo of a node",
        {"node/node1/meminfo": None},
        {},
        "node/node1/meminfo does not exist; the memory of NUMA node 1 is not known.",
        memory={0: 32 * machines.GIB},
    ),
    _hole(
        "garbage meminfo of a node",
        {"node/node1/meminfo": "Node 1 MemTotal: much"},
        {},
        "node/node1/meminfo has no MemTotal",
        memory={0: 32 * machines.GIB},
    ),
    _hole("no has_memory", {"node/has_memory": None}, has_memory=None),
    _hole("garbage has_memory", {"node/has_memory": "-"}, {}, "node/has_memory holds '-'", has_memory=None),
    _hole(
        "no distance",
        {"node/node1/distance": None},
        {},
        "node1/distance does not exist; the usual",
        distance=None,
    ),
    _hole(
        "a distance too few",
        {"node/node1/distance": "16"},
        {},
        "node1/distance holds '16' where 2 numbers are expected; the usual distances are taken.",
        distance=None,
    ),
    _hole(
        "garbage distance", {"node/node1/distance": "16 near"}, {}, "holds '16 near' where 2", distance=None
    ),
]


@pytest.mark.parametrize(("files", "cpus", "fields", "warning"), HOLES)
def test_a_hole_costs_what_the_file_would_tell(
    files: Files,
    cpus: Mapping[int, Mapping[str, Any]],
    fields: Mapping[str, Any],
    warning: Optional[str],
    folder: Path,
) -> None:
    whole = machines.machine(machines.UNEVEN_CCX)
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    _damage(sys, files)
    reading = read_sysfs(sys, folder / "proc")
    places = tuple(replace(c, **cpus.get(c.cpu, {})) for c in whole.cpus)
    assert reading.data == replace(whole, **{**fields, "cpus": places})
    assert Topology(reading.data).online == Topology(whole).online
    if warning is None:
        assert reading.warnings == ()
    else:
        assert any(warning in sentence for sentence in reading.warnings)
        assert all(str(sys) in sentence and sentence.endswith(".") for sentence in reading.warnings)


def test_an_unreadable_file_is_a_hole_and_no_end(folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    path = sys / "devices/system/cpu/cpu5/cache/index3/shared_cpu_list"
    path.unlink()
    path.mkdir()
    reading = read_sysfs(sys, folder / "proc")
    assert reading.data.cpus[5].l3 is None
    reason = "it is a directory, expected a regular file"
    assert reading.warnings == (f"{path} cannot be read ({reason}); CPU 5: the L3 is not known.",)


#: Reads a machine as the daemon's unit does: root's files, and no right to what its owner has closed.
READER = """
import sys
from pathlib import Path
from cri_proxy.node.sysfs import read_sysfs

reading = read_sysfs(Path(sys.argv[1]), Path(sys.argv[2]))
nodes = sorted({cpu.numa for cpu in reading.data.cpus})
print(nodes, len(reading.data.devices), *reading.warnings, sep="\\n")
"""


@pytest.mark.parametrize(
    ("closed", "nodes", "consequence"),
    [
        ("devices/system/node", "[0]", "the NUMA nodes are not known, one is taken."),
        ("bus/pci/devices", "[0, 1]", "no device is near a NUMA node."),
    ],
    ids=["nodes", "devices"],
)
def test_a_folder_that_may_not_be_listed_costs_what_is_in_it(
    closed: str, nodes: str, consequence: str, folder: Path
) -> None:
    root = machines.write_sysfs(
        replace(machines.machine(machines.UNEVEN_CCX), devices={"0000:41:00.0": 1}), folder
    )
    (root / closed).chmod(0)
    command = [sys.executable, "-c", READER, str(root), str(folder / "proc")]
    if os.getuid() == 0:
        command = ["setpriv", "--bounding-set", "-all", "--no-new-privs", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    (root / closed).chmod(0o755)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:2] == [nodes, "0"]
    assert f"{root / closed} cannot be read (Permission denied); {consequence}" in lines[2:]


def test_an_online_cpu_without_a_folder_is_still_a_cpu(folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    shutil.rmtree(sys / "devices/system/cpu/cpu5")
    reading = read_sysfs(sys, folder / "proc")
    assert reading.data.cpus[5] == replace(machines.machine(machines.UNEVEN_CCX).cpus[5], l3=None)
    assert len(reading.warnings) == 2


def test_without_numa_there_is_one_node_with_all_memory(folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    shutil.rmtree(sys / "devices/system/node")
    data = read_sysfs(sys, folder / "proc").data
    assert {c.numa for c in data.cpus} == {0}
    assert (data.memory, data.has_memory, data.distance) == ({0: 64 * machines.GIB}, None, None)
    assert Topology(data).memory_nodes == {0}


def test_without_numa_and_meminfo_memory_is_not_known(folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    shutil.rmtree(sys / "devices/system/node")
    reading = read_sysfs(sys, folder / "no proc")
    assert (reading.data.memory, reading.data.vendor, reading.warnings) == ({}, "", ())


def test_a_node_of_which_nothing_is_known_is_left_out_of_the_distances(folder: Path) -> None:
    sys = machines.write_sysfs("cpuless-memory-node", folder)
    _damage(sys, {"node/node2/meminfo": None, "node/has_memory": "0-1"})
    data = read_sysfs(sys, folder / "proc").data
    assert data.distance == ((10, 21), (21, 10))
    assert Topology(data).node_ids == (0, 1)


# ---------------------------------------------------------------------- memory


def test_hugetlb_pools_are_read_by_node_and_size(folder: Path) -> None:
    pools = {0: {2 << 20: 512}, 1: {2 << 20: 3, 1 << 30: 2}}
    data = replace(machines.machine(machines.UNEVEN_CCX), hugepages=pools)
    assert read_sysfs(machines.write_sysfs(data, folder), folder / "proc").data == data


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("", "holds '' where a number is expected; its huge pages count as ordinary memory."),
        (None, "nr_hugepages does not exist; its huge pages count as ordinary memory."),
    ],
)
def test_a_pool_that_cannot_be_read_is_a_hole(text: Optional[str], warning: str, folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    _damage(sys, {"node/node1/hugepages/hugepages-2048kB/nr_hugepages": text})
    reading = read_sysfs(sys, folder / "proc")
    assert reading.data == machines.machine(machines.UNEVEN_CCX)
    assert len(reading.warnings) == 1 and reading.warnings[0].endswith(warning)


def test_what_is_free_now_is_free_pages_and_file_pages_out_of_use(folder: Path) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    assert read_free_memory(sys) == {0: 24 * machines.GIB, 1: 24 * machines.GIB}
    _damage(sys, {"node/node0/meminfo": "Node 0 MemTotal: 8 kB\nNode 0 MemFree: 4 kB"})
    assert read_free_memory(sys) == {1: 24 * machines.GIB}
    assert read_free_memory(folder / "nothing") == {}


DEVICES = [
    ("near a node", "1", {"0000:41:00.0": 1}, None),
    ("near no node", "-1", {}, None),
    ("no file", None, {}, None),
    ("garbage", "?", {}, "numa_node holds '?' where a number is expected; the device is near no NUMA node."),
    (
        "near a node that is not there",
        "9",
        {},
        "numa_node names NUMA node 9, which is not online; the device",
    ),
]


@pytest.mark.parametrize(
    ("text", "devices", "warning"), [case[1:] for case in DEVICES], ids=[c[0] for c in DEVICES]
)
def test_a_device_is_near_the_node_that_it_names(
    text: Optional[str], devices: dict[str, int], warning: Optional[str], folder: Path
) -> None:
    sys = machines.write_sysfs(machines.UNEVEN_CCX, folder)
    device = "../../bus/pci/devices/0000:41:00.0"
    _damage(sys, {f"{device}/class": "0", f"{device}/numa_node": text})
    reading = read_sysfs(sys, folder / "proc")
    assert reading.data.devices == devices
    assert [warning in sentence for sentence in reading.warnings if warning] == [True] * (warning is not None)


@pytest.mark.parametrize(
    ("cpuinfo", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: HygonGenuine\nflags\t\t: fpu\n", "HygonGenuine"),
        ("processor\t: 0\nCPU implementer\t: 0x48\n\nprocessor\t: 1\n", ""),
        ("", ""),
    ],
)
def test_the_vendor_is_read_for_the_report(cpuinfo: str, vendor: str, folder: Path) -> None:
    sys = machines.write_sysfs(machines.ONE_CPU, folder)
    (folder / "proc" / "cpuinfo").write_text(cpuinfo)
    assert read_sysfs(sys, folder / "proc").data.vendor == vendor


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="empty"),
        pytest.param({"cpu/online": "0-3"}, id="online CPUs without folders"),
        pytest.param({"cpu/online": "zero"}, id="garbage only"),
        pytest.param({"cpu/cpufreq/boost": "1"}, id="other folders only"),
    ],
)
def test_without_any_cpu_there_is_a_sentence_and_no_reading(files: Files, tmp_path: Path) -> None:
    _damage(tmp_path, files)
    with pytest.raises(SysfsError, match=r"no CPU found: .*/system/cpu should have folders cpu0, cpu1"):
        read_sysfs(tmp_path, tmp_path)


# ---------------------------------------------------------------------- the watcher's look


@pytest.mark.parametrize("name", ["cpu/online", "node/online", "node/has_memory"])
def test_the_signature_changes_with_each_of_its_files(name: str, folder: Path) -> None:
    sys = machines.write_sysfs(machines.ONE_CPU, folder)
    before = read_signature(sys)
    assert read_signature(sys) == before
    _damage(sys, {name: "0-1"})
    assert read_signature(sys) != before


def test_the_signature_needs_no_file(tmp_path: Path) -> None:
    assert read_signature(tmp_path) == read_signature(tmp_path / "nothing")


def test_the_signature_tells_offline_cpus(folder: Path) -> None:
    online = machines.write_sysfs(
        machines.take_offline(machines.machine(machines.OFFLINE_CPUS), {7}), folder / "less"
    )
    assert read_signature(online) != read_signature(
        machines.write_sysfs(machines.OFFLINE_CPUS, folder / "more")
    )


# ---------------------------------------------------------------------- helpers


def _boxes(topology: Topology) -> list[tuple[Any, ...]]:
    return [(d.levels, d.ids, d.cpus, d.nodes, d.socket, d.leaves) for d in topology.domains]


def _damage(sys: Path, files: Files) -> None:
    """Change files below devices/system: None removes, text and bytes are written."""
    for name, content in files.items():
        path = sys / "devices/system" / name
        if content is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode() + b"\n")
