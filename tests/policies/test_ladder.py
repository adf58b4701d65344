"""The ladder: which level n CPUs get on each machine, and which place of that level."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Callable, Optional

import pytest

from policies.ladder import ANY_LEVEL, BUDGET, FLOORS, Climb, Ladder, RungChoice
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import BudgetSpent
from policies.reasons import figures_of, plain
from tests import machines
from tests.scenes import Scene, topology


@cache
def ladder(tree: Topology, kind: str) -> Ladder:
    return Ladder(tree, kind)


def climb(
    scene: Scene,
    cpus: float,
    request: float = 0,
    kind: str = "manual",
    floor: str = "ccx",
    pod: Optional[str] = None,
    affinity: Optional[Callable[[frozenset[int]], float]] = None,
    constraint: Optional[str] = None,
) -> RungChoice:
    """``pod``: the CPUs of the leaves that are the pod's domain."""
    tree = scene.node.topology
    leaves = None
    if pod is not None:
        leaves = frozenset(i for i, leaf in enumerate(tree.leaves) if leaf.cpus & parse_cpus(pod))
    want = Climb(round(cpus * 1000), round(request * 1000), floor, leaves, affinity)
    capacity = scene.node.capacity(None if constraint is None else parse_cpus(constraint))
    return ladder(tree, kind).climb(capacity, scene.node, want)


# ---------------------------------------------------------------------- the rung


def rows_of(table: dict[str, dict[str, list[float]]]) -> list[tuple[str, float, str, int]]:
    """Machine, n, level, size."""
    rows = [(name, rung.split(), ns) for name, rungs in table.items() for rung, ns in rungs.items()]
    return [(name, n, level, int(size)) for name, (level, size), ns in rows for n in ns]


#: By machine: the level, how many CPUs that is, and n that get it. The last n of each level is its capacity.
MANUAL = {
    machines.HYGON_7285_2S: {
        "ccx 8": [0.001, 1, 8], "numa 16": [8.001, 9, 16], "numa+ccx 24": [17, 24], "2numa 32": [25, 32],
        "socket 64": [33, 64], "machine 128": [65, 128, 129],
    },
    machines.EPYC_NPS1_1S: {"ccx 8": [1, 8], "numa 64": [9, 64], "machine 64": [65]},
    machines.EPYC_NPS4_1S: {
        "ccx 8": [8], "numa 16": [9, 16], "numa+ccx 24": [17, 24], "2numa 32": [25, 32],
        "socket 64": [33, 64], "machine 64": [65],
    },
    machines.MONOLITHIC_2S: {"ccx 32": [1, 32], "numa+ccx 64": [33, 64], "machine 64": [65]},
    machines.SNC_2S: {"numa 16": [1, 16], "2numa 32": [17, 32], "machine 64": [33, 65]},
    machines.VM_NO_CACHE_INFO: {"numa 4": [1, 4], "2numa 8": [5, 8], "machine 8": [9]},
    machines.UNEVEN_CCX: {
        "ccx 6": [6], "ccx 8": [7, 8], "numa 14": [9, 14], "numa+ccx 20": [15], "numa+ccx 22": [21, 22],
        "2numa 28": [23], "machine 28": [29],
    },
    machines.OFFLINE_CPUS: {
        "ccx 8": [6, 8], "numa 14": [9, 14], "numa 15": [15], "numa 16": [16], "numa+ccx 21": [17],
        "numa+ccx 24": [24], "2numa 31": [31], "socket 60": [32, 60], "machine 60": [61],
    },
    machines.MEMORYLESS_NODE: {
        "ccx 8": [8], "numa 16": [16], "numa+ccx 24": [24], "2numa 32": [32], "machine 64": [33],
    },
    machines.CACHE_IDS_ODD: {"ccx 8": [8], "numa 16": [16], "numa+ccx 24": [24], "2numa 32": [32], "machine 64": [33]},
    machines.ONE_CPU: {"ccx 1": [0.5, 1], "machine 1": [2]},
    machines.BIG_1024: {
        "ccx 16": [16], "numa 128": [17, 128], "numa+ccx 144": [129, 144], "2numa 256": [145, 256],
        "socket 512": [257, 512], "machine 1024": [513],
    },
    machines.CPULESS_MEMORY_NODE: {"ccx 32": [32], "numa+ccx 64": [33], "machine 64": [65]},
    # Sockets are smaller than the one NUMA node here, so they come before it.
    machines.NODE_INTERLEAVED: {"ccx 8": [8], "socket 32": [9, 32], "numa 64": [33], "machine 64": [65]},
    machines.KUNPENG_48_2S: {"ccx 24": [1, 24], "numa+ccx 48": [25, 48], "machine 96": [49]},
    machines.KUNPENG_64_2S: {"ccx 32": [4, 32], "numa+ccx 64": [33, 64], "machine 128": [65]},
    machines.KUNPENG_64_OLD_KERNEL: {"ccx 32": [4], "numa+ccx 64": [33], "machine 128": [65]},
    machines.ALTRA_1S: {"numa 80": [1, 80], "machine 80": [81]},
    machines.E_CORES_1S: {"ccx 144": [4, 144], "machine 144": [145]},
}  # fmt: skip


def test_every_named_machine_has_its_table() -> None:
    assert set(MANUAL) == set(machines.ALL_MACHINES)


@pytest.mark.parametrize(("name", "cpus", "level", "size"), rows_of(MANUAL))
def test_n_cpus_get_the_lowest_rung_that_holds_them(name, cpus, level, size) -> None:
    choice = climb(Scene(name), cpus)
    assert (choice.site.level, len(choice.cpus)) == (level, size)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_a_larger_n_never_gets_fewer_cpus(name) -> None:
    scene = Scene(name)
    sizes = [len(climb(scene, n).cpus) for n in range(1, len(scene.node.usable) + 2)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(scene.node.usable)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_every_n_up_to_the_whole_machine_gets_at_least_n_cpus(name) -> None:
    scene = Scene(name)
    for n in range(1, len(scene.node.usable) + 1):
        assert len(climb(scene, n).cpus) >= n


FINE = {
    machines.EPYC_NPS1_1S: {"ccx 8": [8], "nccx 16": [9, 16], "nccx 24": [17], "nccx 56": [49, 56], "numa 64": [57]},
    machines.BIG_1024: {"ccx 16": [16], "nccx 32": [17], "nccx 48": [33], "nccx 112": [112], "numa 128": [113]},
    # A node of two CCXs has nothing between one of them and the whole.
    machines.HYGON_7285_2S: {"ccx 8": [8], "numa 16": [9], "numa+ccx 24": [17]},
    machines.VM_NO_CACHE_INFO: {"numa 4": [4], "2numa 8": [5]},
    machines.NODE_INTERLEAVED: {"socket 32": [9], "nccx 40": [33]},
}  # fmt: skip


@pytest.mark.parametrize(("name", "cpus", "level", "size"), rows_of(FINE))
def test_the_fine_ladder_adds_the_fewest_ccxs_of_one_node(name, cpus, level, size) -> None:
    choice = climb(Scene(name), cpus, kind="fine")
    assert (choice.site.level, len(choice.cpus)) == (level, size)


CLUSTERS = {
    machines.KUNPENG_48_2S: {"cluster 4": [0.1, 4], "ccx 24": [4.001], "numa+ccx 48": [25]},
    machines.ALTRA_1S: {"cluster 2": [2], "numa 80": [3]},
    machines.E_CORES_1S: {"cluster 4": [4], "ccx 144": [5]},
    machines.HYGON_7285_2S: {"ccx 8": [4], "numa 16": [9]},
    machines.EPYC_NPS1_1S: {"ccx 8": [8], "nccx 16": [9], "numa 64": [57]},
}  # fmt: skip


@pytest.mark.parametrize(("name", "cpus", "level", "size"), rows_of(CLUSTERS))
def test_the_fine_ladder_begins_at_clusters(name, cpus, level, size) -> None:
    scene = Scene(Topology(machines.machine(name), to_clusters=True))
    choice = climb(scene, cpus, kind="fine", floor=ANY_LEVEL)
    assert (choice.site.level, len(choice.cpus)) == (level, size)
    # Of containers without a limit the lowest level that may be configured is the L3.
    assert climb(scene, cpus, kind="fine").site.level != "cluster"
    assert climb(scene, cpus, kind="manual", floor=ANY_LEVEL).site.level != "cluster"


def test_several_ccxs_may_have_clusters() -> None:
    # Four L3s of two clusters of two cores in one node.
    cpus = tuple(Cpu(cpu, cpu, cpu // 4, 0, 0, 0, cpu // 2) for cpu in range(16))
    scene = Scene(Topology(TopologyData(cpus), to_clusters=True))
    scene.occupy("4-7", request=1)
    found = [climb(scene, n, kind="fine", floor=ANY_LEVEL) for n in (2, 4, 5, 12, 13)]
    assert [(f.site.level, format_cpus(f.cpus)) for f in found] == [
        ("cluster", "0-1"),
        ("ccx", "0-3"),
        ("nccx", "0-3,8-11"),
        ("nccx", "0-3,8-15"),
        ("numa", "0-15"),
    ]


def test_a_pods_containers_share_a_cluster() -> None:
    scene = Scene(Topology(machines.machine(machines.KUNPENG_48_2S), to_clusters=True))
    scene.occupy("0-3", request=1)
    assert format_cpus(climb(scene, 1, kind="fine", floor=ANY_LEVEL).cpus) == "4-7"
    assert format_cpus(climb(scene, 1, kind="fine", floor=ANY_LEVEL, pod="0-3").cpus) == "0-3"


def test_the_fine_ladder_takes_the_least_loaded_ccxs() -> None:
    scene = Scene(machines.EPYC_NPS1_1S)
    for ccx in ("0-7", "8-15", "24-31"):
        scene.occupy(ccx, request=1)
    choice = climb(scene, 16, kind="fine")
    assert format_cpus(choice.cpus) == "16-23,32-39"
    assert choice.site.name == "L3 2, L3 4"


def test_the_fine_ladder_leaves_the_pods_ccxs_where_they_have_no_room() -> None:
    scene = Scene(machines.EPYC_NPS1_1S)
    scene.occupy("0-15", request=16)
    choice = climb(scene, 16, request=16, kind="fine", pod="0-15")
    assert (choice.site.level, format_cpus(choice.cpus)) == ("nccx", "16-31")


def test_the_fine_ladder_counts_ccxs_of_different_sizes() -> None:
    # CCXs of 6, 7, 8, 8, ... CPUs. The two small ones are the least loaded, but hold 22 with no third one.
    scene = Scene(machines.EPYC_NPS1_1S, usable="2-7,9-63")
    for ccx in ("16-23", "24-31", "32-39", "40-47", "48-55", "56-63"):
        scene.occupy(ccx, request=1)
    choice = climb(scene, 22, kind="fine")
    assert (choice.site.level, format_cpus(choice.cpus)) == ("nccx", "2-7,16-31")


# ---------------------------------------------------------------------- where the climb starts


@pytest.mark.parametrize(
    ("name", "floor", "level", "size"),
    [
        (machines.HYGON_7285_2S, "ccx", "ccx", 8),
        (machines.HYGON_7285_2S, "numa", "numa", 16),
        (machines.HYGON_7285_2S, "socket", "socket", 64),
        (machines.HYGON_7285_2S, "machine", "machine", 128),
        (machines.VM_NO_CACHE_INFO, "ccx", "numa", 4),
        (machines.VM_NO_CACHE_INFO, "numa", "numa", 4),
        (machines.VM_NO_CACHE_INFO, "socket", "socket", 4),
        (machines.SNC_2S, "ccx", "numa", 16),
        (machines.SNC_2S, "numa", "numa", 16),
        (machines.SNC_2S, "socket", "socket", 32),
        (machines.NODE_INTERLEAVED, "numa", "numa", 64),
        (machines.NODE_INTERLEAVED, "socket", "socket", 32),
        (machines.ONE_CPU, "machine", "machine", 1),
    ],
)
def test_a_floor_is_the_lowest_level_given(name, floor, level, size) -> None:
    choice = climb(Scene(name), 1, floor=floor)
    assert (choice.site.level, len(choice.cpus)) == (level, size)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
@pytest.mark.parametrize("floor", FLOORS)
def test_every_machine_has_a_rung_for_every_floor(name, floor) -> None:
    assert climb(Scene(name), 1, floor=floor).cpus


def test_a_floor_does_not_keep_a_container_below_what_it_needs() -> None:
    assert climb(Scene(machines.HYGON_7285_2S), 40, floor="numa").site.level == "socket"


# ---------------------------------------------------------------------- pairs


def test_the_ccx_beside_a_node_is_one_of_the_nearest_node_of_its_socket(scene) -> None:
    # All of socket 0 is busier than socket 1, so the pair would be torn apart if distance did not count.
    scene.occupy("0-31", request=8)
    choice = climb(scene, 20)
    assert choice.site.name == "NUMA node 4 + L3 10"
    assert choice.site.nodes == {4, 5}


def test_two_nodes_are_of_one_socket_where_a_socket_has_two(scene) -> None:
    # One node of each socket is empty: still no pair across the sockets.
    scene.occupy("8-31,72-95", request=10)
    scene.occupy("40-63,104-127", request=10)
    choice = climb(scene, 32)
    assert choice.site.name == "NUMA node 0 + NUMA node 1"


def test_two_nodes_are_of_two_sockets_where_a_socket_is_one_node() -> None:
    assert climb(Scene(machines.VM_NO_CACHE_INFO), 8).site.name == "NUMA node 0 + NUMA node 1"


def test_the_nearest_pair_is_found_where_distances_differ_in_a_socket() -> None:
    data = machines.machine(machines.EPYC_NPS4_1S)
    rows = ((10, 12, 30, 30), (12, 10, 30, 30), (30, 30, 10, 11), (30, 30, 11, 10))
    scene = Scene(Topology(replace(data, distance=rows)))
    assert climb(scene, 32).site.name == "NUMA node 2 + NUMA node 3"
    assert climb(scene, 20).site.nodes == {2, 3}


# ---------------------------------------------------------------------- the order of candidates, one test a criterion


def test_room_comes_first(scene) -> None:
    # L3 0 is where the pod is and where its peers pull it, but there is no room.
    scene.occupy("0-3,64-67", request=7)
    choice = climb(scene, 2, request=2, pod="0-3,64-67", affinity=lambda cpus: 0.0 if 0 in cpus else 9.0)
    assert choice.site.name == "L3 1"
    assert "15 with room" in choice.why


def test_the_pods_domain_comes_before_affinity(scene) -> None:
    choice = climb(scene, 2, pod="4-7,68-71", affinity=lambda cpus: 0.0 if 8 in cpus else 9.0)
    assert choice.site.name == "L3 1"
    assert choice.why.endswith("of 16 that hold it the nearest to its pod or its former place")


def test_a_place_around_the_pods_domain_is_as_good_as_one_inside_it() -> None:
    choice = climb(Scene(machines.HYGON_7285_2S), 12, pod="20-23,84-87")
    assert choice.site.name == "NUMA node 2"


def test_affinity_comes_before_distance_and_load(scene) -> None:
    scene.occupy("12-15,76-79", request=4)
    choice = climb(scene, 2, affinity=lambda cpus: 1.0 if 12 in cpus else 2.5)
    assert choice.site.name == "L3 3"
    assert plain(choice.why).endswith(
        "of 16 that hold it the nearest to its peers: 60% less distance to them than in the next"
    )
    assert figures_of(choice.why) == ("affinity 1, next 2.5",)


def test_what_is_to_be_far_from_others_has_no_distance_to_them(scene) -> None:
    choice = climb(scene, 2, affinity=lambda cpus: -1.0 if 12 in cpus else 2.5)
    assert plain(choice.why).endswith("the nearest to its peers")


def test_distance_comes_before_load() -> None:
    data = machines.machine(machines.EPYC_NPS4_1S)
    rows = ((10, 11, 30, 30), (11, 10, 30, 30), (30, 30, 10, 12), (30, 30, 12, 10))
    scene = Scene(Topology(replace(data, distance=rows)))
    scene.occupy("0-31", request=8)
    choice = climb(scene, 30)
    assert choice.site.name == "NUMA node 0 + NUMA node 1"
    assert choice.why.endswith(
        "of 6 that hold it the one whose NUMA nodes are nearest to each other: distance 22, 24 in the next"
    )


def test_the_smallest_charged_share_comes_before_the_number_of_containers(scene) -> None:
    for _ in range(5):
        scene.occupy("0-3,64-67", request=0.1)
    for ccx in range(1, 16):
        scene.occupy(format_cpus(scene.node.topology.leaves[ccx].cpus), request=0.8)
    choice = climb(scene, 2)
    assert choice.site.name == "L3 0"
    assert plain(choice.why) == (
        "2 CPUs wanted: one CCX (8 CPUs), L3 0, the emptiest of 16 that hold it: "
        "0.5 of 8 CPUs requested there, 0.8 in the next"
    )
    assert figures_of(choice.why) == ("allocated share 62m a CPU, next 100m",)
    # As many digits as tell them apart.
    scene.occupy("4-7,68-71", request=0.02)
    scene.occupy("0-3,64-67", request=0.31)
    assert plain(climb(scene, 2).why).endswith("L3 2, the first of 14 alike, of 16 that hold it")


def test_where_as_much_is_requested_what_runs_without_a_request_decides(scene) -> None:
    for ccx in range(1, 16):
        scene.occupy(format_cpus(scene.node.topology.leaves[ccx].cpus))
    assert plain(climb(scene, 2).why).endswith(
        "L3 0, the emptiest of 16 that hold it: 0 of 8 CPUs requested there, and more runs in the next"
    )


def test_the_share_is_per_cpu_so_that_small_ccxs_are_not_preferred() -> None:
    scene = Scene(machines.UNEVEN_CCX)
    sizes = [len(leaf) for leaf in scene.node.capacity().cpus]
    assert sizes == [6, 8, 6, 8]
    for index, leaf in enumerate(scene.node.topology.leaves):
        scene.occupy(format_cpus(leaf.cpus), request=1 if index != 3 else 1.1)
    assert climb(scene, 2).site.name == "L3 1"  # 1/8 < 1.1/8 < 1/6


def test_containers_without_a_request_count_ten_milli_cpus_and_so_spread(scene) -> None:
    names = []
    for _ in range(16):
        choice = climb(scene, 2)
        scene.occupy(format_cpus(choice.cpus))
        names.append(choice.site.name)
    assert sorted(names) == sorted(f"L3 {i}" for i in range(16))


def test_the_number_of_containers_comes_before_the_id(scene) -> None:
    # Charged alike, but on L3 0 by two containers.
    scene.occupy("0-3,64-67", request=0.1)
    scene.occupy("0-3,64-67", request=0.1)
    for ccx in range(1, 16):
        scene.occupy(format_cpus(scene.node.topology.leaves[ccx].cpus), request=0.2)
    choice = climb(scene, 2)
    assert choice.site.name == "L3 1"


def test_the_number_of_containers_is_named_where_it_decides() -> None:
    scene = Scene(machines.VM_NO_CACHE_INFO)
    scene.occupy("0-3", request=0.1)
    scene.occupy("0-3", request=0.1)
    scene.occupy("4-7", request=0.2)
    choice = climb(scene, 2)
    assert choice.site.name == "NUMA node 1"
    assert choice.why.endswith("of 2 that hold it the one with the fewest containers: 1, 2 in the next")


def test_the_lowest_id_is_last() -> None:
    choice = climb(Scene(machines.HYGON_7285_2S), 2)
    assert choice.site.name == "L3 0"
    assert choice.why == "2 CPUs wanted: one CCX (8 CPUs), L3 0, the first of 16 that hold it, all alike"


def test_a_candidate_without_rivals_is_the_only_one() -> None:
    assert (
        climb(Scene(machines.ONE_CPU), 1).why
        == "1 CPU wanted: one CCX (1 CPU), L3 0, the only one that holds it"
    )


# ---------------------------------------------------------------------- no room


def test_a_rung_is_open_when_some_domain_holds_n_whatever_is_charged_there(scene) -> None:
    scene.occupy("0-127", request=128)
    assert climb(scene, 8).site.level == "ccx"


def test_where_the_rung_has_no_room_a_later_one_that_has_is_taken_and_why_says_so(scene) -> None:
    for leaf in scene.node.topology.leaves:
        scene.occupy(format_cpus(leaf.cpus), request=3)
    choice = climb(scene, 8, request=6)
    assert (choice.site.level, choice.has_room) == ("numa", False)
    assert choice.why.startswith("no room in one CCX; 8 CPUs wanted: one NUMA node (16 CPUs)")


def test_where_nothing_has_room_the_least_loaded_of_the_rung_is_taken(scene) -> None:
    for index, leaf in enumerate(scene.node.topology.leaves):
        scene.occupy(format_cpus(leaf.cpus), request=8 if index != 5 else 7.9)
    choice = climb(scene, 4, request=4)
    assert (choice.site.name, choice.has_room) == ("L3 5", False)
    assert choice.why == "no room anywhere for 4000m: the least loaded one CCX, L3 5"


def test_more_than_the_machine_gets_all_of_it(scene) -> None:
    choice = climb(scene, 200, request=100)
    assert (choice.site.level, len(choice.cpus), choice.has_room) == ("machine", 128, True)
    assert choice.why == "200 CPUs wanted: the whole machine has 128, all of them"
    scene.occupy("0-127", request=60)
    assert not climb(scene, 200, request=100).has_room


def test_no_usable_cpu_at_all_is_an_error() -> None:
    scene = Scene(machines.HYGON_7285_2S, usable="0-63")
    with pytest.raises(LookupError, match="no CPU may be used"):
        climb(scene, 1, constraint="64-127")


# ---------------------------------------------------------------------- what may be used


def test_cpus_of_others_are_not_counted(scene) -> None:
    for leaf in scene.node.topology.leaves[:15]:
        scene.occupy(format_cpus(sorted(leaf.cpus)[:1]), exclusive=True)
    assert climb(scene, 8).site.name == "L3 15"
    assert climb(scene, 7).site.level == "ccx"
    scene.occupy("60", exclusive=True)
    assert climb(scene, 8).site.level == "numa"
    assert len(climb(scene, 8).cpus) == 14


def test_reserved_cpus_are_not_counted() -> None:
    scene = Scene(machines.HYGON_7285_2S, reserved="0,64")
    choices = [climb(scene, 8, pod="0-3,64-67") for _ in range(2)]
    assert choices[0].site.name == "L3 1"
    assert not choices[0].cpus & {0, 64}


def test_reserved_cpus_are_used_when_no_shared_cpu_is_left_at_all() -> None:
    scene = Scene(machines.HYGON_7285_2S, reserved="0,64")
    scene.occupy("1-63,65-127", exclusive=True)
    assert climb(scene, 1).cpus == {0, 64}


def test_a_fence_bounds_both_the_choice_and_the_capacity(scene) -> None:
    choice = climb(scene, 8, constraint="2-15")
    assert (choice.site.level, format_cpus(choice.cpus)) == ("numa", "8-15")
    assert format_cpus(climb(scene, 4, constraint="2-15").cpus) == "4-7"


def test_offline_cpus_belong_to_the_home_but_are_not_sent() -> None:
    scene = Scene(machines.HYGON_7285_2S, usable="1-127")
    choice = climb(scene, 2, pod="0-3,64-67")
    assert format_cpus(choice.cpus) == "1-3,64-67"
    assert format_cpus(choice.site.home) == "0-3,64-67"


# ---------------------------------------------------------------------- the work budget


def test_the_largest_machine_is_far_from_the_budget() -> None:
    ladder = Ladder(topology(machines.BIG_1024), "fine")
    assert sum(len(sites) for _, sites in ladder.rungs) < BUDGET // 100


def test_a_spent_budget_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr("policies.ladder.BUDGET", 100)
    with pytest.raises(BudgetSpent, match="more than 100 places"):
        climb(Scene(machines.HYGON_7285_2S), 20)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_the_same_inputs_give_the_same_choice(name) -> None:
    for n in (1, 7, 20, 40):
        first, second = (climb(Scene(name), n, request=n, kind="fine") for _ in range(2))
        assert first == second
