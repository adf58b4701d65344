"""The picture of a machine shows every CPU once, in its box, and fits the terminal."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from cri_proxy.cli.topology_drawing import draw_topology
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData, remember
from tests import machines

WIDTHS = (80, 100, 120)


def _topology(name: str) -> Topology:
    return Topology(machines.machine(name), to_clusters=True)


# ---------------------------------------------------------------------- whole pictures


def test_two_ccxs_in_two_nodes() -> None:
    assert draw_topology(_topology(machines.UNEVEN_CCX), width=80) == (
        """\
AuthenticAMD: 1 socket, 2 NUMA nodes, 4 L3 slices (CCX), 14 cores, 28 CPUs,
64 GiB
Boxes: machine = socket > die = NUMA node > L3 of 3 to 4 cores

┌ socket 0 ───────────────────────────────────┐
│ ┌ NUMA 0, 32 GiB ───┐ ┌ NUMA 1, 32 GiB ───┐ │
│ │ ┌ L3 0, 3 cores ┐ │ │ ┌ L3 2, 3 cores ┐ │ │
│ │ │ 0-2,14-16     │ │ │ │ 7-9,21-23     │ │ │
│ │ └───────────────┘ │ │ └───────────────┘ │ │
│ │ ┌ L3 1, 4 cores ┐ │ │ ┌ L3 3, 4 cores ┐ │ │
│ │ │ 3-6,17-20     │ │ │ │ 10-13,24-27   │ │ │
│ │ └───────────────┘ │ │ └───────────────┘ │ │
│ └───────────────────┘ └───────────────────┘ │
└─────────────────────────────────────────────┘

NUMA distances
to NUMA      0   1
NUMA 0      10  16
NUMA 1      16  10
"""
    )


def test_one_cpu_in_ascii() -> None:
    assert draw_topology(_topology(machines.ONE_CPU), ascii=True) == (
        """\
GenuineIntel: 1 socket, 1 NUMA node, 1 L3 cache, 1 core, 1 CPU, 4 GiB
Boxes: machine = socket = die = NUMA node = L3 of 1 core

+ socket 0 = NUMA 0 = L3 0, 4 GiB +
| 0                               |
+---------------------------------+
"""
    )


def test_a_virtual_machine_with_containers_and_cpus_that_are_not_ours() -> None:
    topology = _topology(machines.VM_NO_CACHE_INFO)
    text = draw_topology(topology, usable=frozenset(range(1, 8)), labels={1: ["db/postgres", "web/nginx"]})
    assert text == (
        """\
HygonGenuine: 2 sockets, 2 NUMA nodes, L3 not known, 8 cores, 8 CPUs, 16 GiB
Boxes: socket = die = NUMA node of 4 cores

┌ socket 0 = NUMA 0, 8 GiB ┐ ┌ socket 1 = NUMA 1, 8 GiB ┐
│ 0-3                      │ │ 4-7                      │
│ not usable 0             │ │ db/postgres              │
│                          │ │ web/nginx                │
└──────────────────────────┘ └──────────────────────────┘

NUMA distances
to NUMA      0   1
NUMA 0      10  20
NUMA 1      20  10
"""
    )


# ---------------------------------------------------------------------- what holds for all


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    topology = _topology(name)
    labels = {index: [f"namespace/pod-{index}/container"] for index in range(len(topology.leaves))}
    for text in (draw_topology(topology, width=width), draw_topology(topology, labels=labels, width=width)):
        assert max(map(len, text.splitlines())) <= width
        assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_every_leaf_and_all_its_cpus_are_shown(name: str, width: int) -> None:
    topology = _topology(name)
    text = draw_topology(topology, width=width)
    for leaf in topology.leaves:
        assert leaf.name.replace("NUMA node", "NUMA") in text
        for part in format_cpus(leaf.cpus).split(","):
            assert re.search(rf"(?<![\d-]){part}(?![\d-])", text)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_ascii_is_ascii_and_the_same_picture(name: str) -> None:
    topology = _topology(name)
    text = draw_topology(topology, ascii=True)
    assert text.isascii()
    assert [len(line) for line in text.splitlines()] == [len(s) for s in draw_topology(topology).splitlines()]


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_boxes_are_closed(name: str) -> None:
    text = draw_topology(_topology(name))
    assert len({text.count(corner) for corner in "┌┐└┘"}) == 1
    assert text.count("│") % 2 == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [n for n in machines.ALL_MACHINES if n != machines.BIG_1024])
def test_a_machine_of_128_cpus_fits_on_a_screen(name: str, width: int) -> None:
    assert len(draw_topology(_topology(name), width=width).splitlines()) <= 45


def test_a_thousand_cpus_get_one_line_for_each_l3() -> None:
    lines = draw_topology(_topology(machines.BIG_1024), labels={5: ["db/postgres", "web/nginx"]}).splitlines()
    leaves = [line for line in lines if line.lstrip().startswith("L3 ")]
    assert len(leaves) == 64
    assert "    L3 5   40-47,552-559, db/postgres, web/nginx" in leaves
    assert "  NUMA 7, 384 GiB" in lines
    assert len(lines) < 100


# ---------------------------------------------------------------------- what is special


@pytest.mark.parametrize(
    ("name", "headline", "legend"),
    [
        (
            machines.HYGON_7285_2S,
            "HygonGenuine: 2 sockets, 8 NUMA nodes, 16 L3 slices (CCX), 64 cores, 128 CPUs, 512 GiB",
            "Boxes: socket > die = NUMA node > L3 of 4 cores",
        ),
        (
            machines.EPYC_NPS1_1S,
            "AuthenticAMD: 1 socket, 1 NUMA node, 8 L3 slices (CCX), 64 cores, 64 CPUs, 256 GiB",
            "Boxes: machine = socket = die = NUMA node > L3 of 8 cores",
        ),
        (
            machines.MONOLITHIC_2S,
            "GenuineIntel: 2 sockets, 2 NUMA nodes, 2 L3 caches, 32 cores, 64 CPUs, 384 GiB",
            "Boxes: socket = die = NUMA node = L3 of 16 cores",
        ),
        (
            machines.SNC_2S,
            "GenuineIntel: 2 sockets, 4 NUMA nodes, 2 L3 caches, 32 cores, 64 CPUs, 384 GiB",
            "Boxes: socket = die = L3 > NUMA node of 8 cores",
        ),
        (
            machines.NODE_INTERLEAVED,
            "AuthenticAMD: 2 sockets, 1 NUMA node, 8 L3 slices (CCX), 32 cores, 64 CPUs, 256 GiB",
            "Boxes: machine = NUMA node > socket = die > L3 of 4 cores",
        ),
        (
            machines.KUNPENG_48_2S,
            "Unknown vendor: 2 sockets, 4 NUMA nodes, 4 L3 slices (CCX), 24 clusters, 96 cores, 96 CPUs, 512 GiB",
            "Boxes: socket = die > NUMA node = L3 > cluster of 4 cores",
        ),
        (
            machines.KUNPENG_64_OLD_KERNEL,
            "Unknown vendor: 2 sockets, 4 NUMA nodes, 4 L3 slices (CCX), 128 cores, 128 CPUs, 512 GiB",
            "Boxes: socket = die > NUMA node = L3 of 32 cores",
        ),
        (
            machines.ALTRA_1S,
            "Unknown vendor: 1 socket, 1 NUMA node, L3 not known, 40 clusters, 80 cores, 80 CPUs, 256 GiB",
            "Boxes: machine = socket = die = NUMA node > cluster of 2 cores",
        ),
        (
            machines.E_CORES_1S,
            "GenuineIntel: 1 socket, 1 NUMA node, 1 L3 cache, 36 clusters, 144 cores, 144 CPUs, 256 GiB",
            "Boxes: machine = socket = die = NUMA node = L3 > cluster of 4 cores",
        ),
    ],
)
def test_the_head_counts_and_says_once_which_levels_are_one(name: str, headline: str, legend: str) -> None:
    assert draw_topology(_topology(name), width=110).splitlines()[:2] == [headline, legend]


def test_offline_and_isolated_cpus_are_named() -> None:
    text = draw_topology(_topology(machines.OFFLINE_CPUS))
    assert "60 CPUs (4 more offline)" in text
    assert "│ isolated 3,35 " in text
    assert "\noffline, place not known: 5,8,37,50\n" in text


def test_offline_cpus_whose_place_is_remembered_are_named_in_their_box() -> None:
    before = _topology(machines.HYGON_7285_2S)
    gone = parse_cpus("5,36-39,100-103")
    text = draw_topology(Topology(remember(before, machines.take_offline(before.data, gone))))
    assert "│ offline 5 " in text
    assert "│ no CPU online " in text
    assert "place not known" not in text


def test_memory_is_told_by_node() -> None:
    assert "NUMA 1, no memory" in draw_topology(_topology(machines.MEMORYLESS_NODE))
    expander = _topology(machines.CPULESS_MEMORY_NODE)
    assert "\nNUMA 2: no CPUs, 128 GiB\n" in draw_topology(expander)
    told = Topology(replace(expander.data, memory_bandwidth={0: 250_000, 1: 250_000, 2: 900_000}))
    assert "\nNUMA 2: no CPUs, 128 GiB, of high bandwidth (HBM)\n" in draw_topology(told)


def test_slow_cores_are_named_where_there_are_fast_ones() -> None:
    types = {"performance": parse_cpus("0-3"), "efficient": parse_cpus("4-7")}
    text = draw_topology(Topology(replace(machines.machine(machines.VM_NO_CACHE_INFO), core_types=types)))
    assert "│ efficient 4-7 " in text
    assert "GiB" not in draw_topology(Topology(replace(machines.machine(machines.HYGON_7285_2S), memory={})))


def test_distances_are_told_by_direction() -> None:
    lines = draw_topology(_topology(machines.CPULESS_MEMORY_NODE)).splitlines()
    assert lines[-4:] == [
        "to NUMA      0   1   2",
        "NUMA 0      10  21  14",
        "NUMA 1      21  10  24",
        "NUMA 2      16  28  10",
    ]


def test_distances_that_the_firmware_does_not_tell_are_marked() -> None:
    text = draw_topology(Topology(replace(machines.machine(machines.HYGON_7285_2S), distance=None)))
    assert "NUMA distances (the usual ones: the firmware tells none)" in text


def test_many_nodes_tell_their_distances_in_lists() -> None:
    cpus = tuple(Cpu(cpu, cpu, cpu, 0, cpu, cpu // 16) for cpu in range(32))
    text = draw_topology(Topology(TopologyData(cpus)), width=80)
    assert "NUMA 17: 10 to 17, 20 to 16,18-31, 32 to 0-15" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_cpu_without_cache_information_has_its_own_box() -> None:
    data = machines.machine(machines.HYGON_7285_2S)
    hole = replace(data, cpus=tuple(replace(c, l3=None) if c.cpu == 5 else c for c in data.cpus))
    text = draw_topology(Topology(hole))
    assert "no L3, 1 core " in text
    assert "Boxes: socket > die = NUMA node > L3 of 4 cores" in text


# ---------------------------------------------------------------------- labels


def test_labels_stand_in_the_box_of_their_leaf() -> None:
    text = draw_topology(
        _topology(machines.EPYC_NPS1_1S), labels={6: ["web/nginx"], 1: ["db/postgres", "db/backup"]}, width=80
    )
    boxes = [line for line in text.splitlines() if "postgres" in line]
    assert boxes == [line for line in text.splitlines() if re.match(r"│ │ +│ │ db/postgres ", line)]
    assert text.count("web/nginx") == text.count("db/backup") == 1


def test_labels_make_their_boxes_wider_and_only_long_ones_are_cut() -> None:
    labels = {0: ["default/web-0/nginx"], 1: ["kube-system/coredns-5d78c9869d-x2x9z/coredns"]}
    text = draw_topology(_topology(machines.EPYC_NPS1_1S), labels=labels)
    assert "default/web-0/nginx" in text
    assert "kube-system/coredns-5d7…" in text
    assert "kube-system/coredns-5d7~" in draw_topology(
        _topology(machines.EPYC_NPS1_1S), labels=labels, ascii=True
    )


def test_nobody_waits_for_the_picture_of_many_containers() -> None:
    # The costliest: 32 boxes, and CPUs numbered alternately in the two sockets.
    cpus = tuple(Cpu(cpu, cpu // 2, cpu // 32, 0, cpu // 2 % 2, cpu // 2 % 2) for cpu in range(512))
    topology = Topology(TopologyData(cpus))
    labels = {index: ["namespace/a-long-name/container"] * 3 for index in range(32)}
    start = time.process_time()
    text = draw_topology(topology, labels=labels, width=80)
    assert len(topology.leaves) == 32
    assert text.count("namespace/") == 96
    # Of the processor; it takes 0.5 s.
    assert time.process_time() - start < 3
