"""The tree of a machine: one box for levels that coincide, sets and never ids, and nothing invented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import (
    LEVELS,
    LOCAL_DISTANCE,
    REMOTE_DISTANCE,
    SOCKET_DISTANCE,
    BadTopology,
    Cpu,
    Domain,
    Topology,
    TopologyData,
    remember,
)
from policies.machine.topology_json import read_topology, write_topology
from tests import machines

# ---------------------------------------------------------------------- the shape of the tree

SHAPES = {
    machines.HYGON_7285_2S: "1 machine > 2 socket > 8 die=numa > 16 l3",
    machines.EPYC_NPS1_1S: "1 machine=socket=die=numa > 8 l3",
    machines.EPYC_NPS4_1S: "1 machine=socket=die > 4 numa > 8 l3",
    machines.MONOLITHIC_2S: "1 machine > 2 socket=die=numa=l3",
    machines.SNC_2S: "1 machine > 2 socket=die=l3 > 4 numa",
    machines.VM_NO_CACHE_INFO: "1 machine > 2 socket=die=numa",
    machines.UNEVEN_CCX: "1 machine=socket > 2 die=numa > 4 l3",
    machines.OFFLINE_CPUS: "1 machine=socket > 4 die=numa > 8 l3",
    machines.MEMORYLESS_NODE: "1 machine > 2 socket > 4 die=numa > 8 l3",
    machines.CACHE_IDS_ODD: "1 machine > 2 socket=die > 4 numa > 8 l3",
    machines.ONE_CPU: "1 machine=socket=die=numa=l3",
    machines.BIG_1024: "1 machine > 2 socket=die > 8 numa > 64 l3",
    machines.CPULESS_MEMORY_NODE: "1 machine > 2 socket=die=numa=l3",
    machines.NODE_INTERLEAVED: "1 machine=numa > 2 socket=die > 8 l3",
    machines.KUNPENG_48_2S: "1 machine > 2 socket=die > 4 numa=l3",
    machines.KUNPENG_64_2S: "1 machine > 2 socket=die > 4 numa=l3",
    machines.KUNPENG_64_OLD_KERNEL: "1 machine > 2 socket=die > 4 numa=l3",
    machines.ALTRA_1S: "1 machine=socket=die=numa",
    machines.E_CORES_1S: "1 machine=socket=die=numa=l3",
}
CLUSTERS = {
    machines.KUNPENG_48_2S: " > 24 cluster",
    machines.KUNPENG_64_2S: " > 32 cluster",
    machines.ALTRA_1S: " > 40 cluster",
    machines.E_CORES_1S: " > 36 cluster",
}


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_levels_that_hold_the_same_cpus_are_one_box(name: str) -> None:
    assert _shape(Topology(machines.machine(name))) == SHAPES[name]


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_clusters_are_leaves_of_a_tree_that_is_to_have_them(name: str) -> None:
    plain, fine = Topology(machines.machine(name)), Topology(machines.machine(name), to_clusters=True)
    assert _shape(fine) == SHAPES[name] + CLUSTERS.get(name, "")
    assert fine.has_cluster_leaves == (name in machines.CLUSTER_MACHINES)
    assert [(d.levels, d.ids, d.cpus) for d in fine.caches] == [
        (d.levels, d.ids, d.cpus) for d in plain.leaves
    ]
    assert plain.caches == plain.leaves
    assert fine.hash() == plain.hash()


def test_the_hash_tells_clusters_and_not_what_they_are_called() -> None:
    with_clusters, without = (
        machines.machine(machines.KUNPENG_64_2S),
        machines.machine(machines.KUNPENG_64_OLD_KERNEL),
    )
    renamed = replace(
        with_clusters, cpus=tuple(replace(c, cluster=1000 - (c.cluster or 0)) for c in with_clusters.cpus)
    )
    assert Topology(with_clusters).hash() != Topology(without).hash()
    assert Topology(with_clusters).hash() == Topology(renamed).hash()


def test_an_l3_with_cores_outside_of_clusters_is_a_leaf() -> None:
    data = machines.machine(machines.KUNPENG_64_2S)
    cpus = tuple(replace(c, cluster=None) if c.cpu == 5 else c for c in data.cpus)
    tree = Topology(replace(data, cpus=cpus), to_clusters=True)
    assert [format_cpus(leaf.cpus) for leaf in tree.leaves[:3]] == ["0-31", "32-35", "36-39"]
    assert len(tree.leaves) == 1 + 3 * 8


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_the_children_of_a_box_are_its_parts(name: str) -> None:
    topology = Topology(machines.machine(name))
    for domain in topology.domains:
        if domain.children:
            assert len(domain.children) > 1
            assert sum(len(child.cpus) for child in domain.children) == len(domain.cpus)
            assert frozenset().union(*(child.cpus for child in domain.children)) == domain.cpus
            assert tuple(i for child in domain.children for i in child.leaves) == domain.leaves
        assert frozenset().union(*(topology.leaves[i].cpus for i in domain.leaves)) == domain.cpus
        assert domain.nodes == topology.nodes_of(domain.cpus)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_every_level_of_a_box_finds_it_by_its_id(name: str) -> None:
    topology = Topology(machines.machine(name))
    for level in LEVELS:
        boxes = topology.at(level)
        ids = [box.ids[box.levels.index(level)] for box in boxes]
        assert ids == sorted(ids)
        if level not in ("machine", "die"):
            assert len(set(ids)) == len(ids)


def test_a_ccx_is_a_set_of_cpus_of_any_size() -> None:
    leaves = Topology(machines.machine(machines.UNEVEN_CCX)).leaves
    assert [format_cpus(leaf.cpus) for leaf in leaves] == [
        "0-2,14-16",
        "3-6,17-20",
        "7-9,21-23",
        "10-13,24-27",
    ]


def test_first_threads_come_before_their_siblings_on_a_hygon() -> None:
    topology = Topology(machines.machine(machines.HYGON_7285_2S))
    assert format_cpus(topology.leaves[0].cpus) == "0-3,64-67"
    assert format_cpus(topology.leaves[15].cpus) == "60-63,124-127"
    assert topology.core_mates(66) == {2, 66}
    assert topology.node_of(127) == 7


def test_an_l3_larger_than_a_node_stands_above_it() -> None:
    topology = Topology(machines.machine(machines.SNC_2S))
    l3 = topology.at("l3")[1]
    assert l3.children == topology.at("numa")[2:]
    assert [leaf.levels for leaf in topology.leaves] == [("numa",)] * 4


def test_an_l3_label_may_repeat_in_another_socket() -> None:
    cpus = tuple(Cpu(cpu, cpu, cpu % 4 // 2, 0, cpu // 4, cpu // 4) for cpu in range(8))
    assert [format_cpus(box.cpus) for box in Topology(TopologyData(cpus)).at("l3")] == [
        "0-1",
        "2-3",
        "4-5",
        "6-7",
    ]


def test_a_cpu_without_cache_information_is_a_box_of_its_node() -> None:
    data = _change(machines.machine(machines.HYGON_7285_2S), {5: {"l3": None}, 9: {"l3": None}})
    node = Topology(data).at("numa")[0]
    assert [(box.levels, format_cpus(box.cpus)) for box in node.children] == [
        (("l3",), "0-3,64-67"),
        (("l3",), "4,6-7,68-71"),
        (("rest",), "5"),
    ]
    assert len(Topology(data).at("l3")) == 16


def test_nodes_without_cache_information_do_not_move_the_l3s_of_the_others() -> None:
    # One L3 in every node, two nodes in every socket; the second socket shows no caches.
    cpus = tuple(Cpu(cpu, cpu, None if cpu >= 8 else cpu // 4, 0, cpu // 4, cpu // 8) for cpu in range(16))
    assert _shape(Topology(TopologyData(cpus))) == "1 machine > 2 socket=die > 2 numa 2 numa=l3"


def test_a_node_some_of_whose_cpus_tell_no_l3_is_not_cut_at_the_l3_of_the_others() -> None:
    # One L3 holds the nodes 0 and 1, another one lies in node 2, whose first CPU tells none.
    l3s, nodes = (0, 0, None, 3, 3, 3), (0, 1, 2, 2, 2, 2)
    tree = Topology(TopologyData(tuple(Cpu(c, c, l3s[c], 0, nodes[c], 0) for c in range(6))))
    assert [format_cpus(node.cpus) for node in tree.at("numa")] == ["0", "1", "2-5"]


def test_names_are_for_sentences() -> None:
    hygon = Topology(machines.machine(machines.HYGON_7285_2S))
    assert [d.name for d in (hygon.root, hygon.at("socket")[1], hygon.at("numa")[3], hygon.leaves[9])] == [
        "the machine",
        "socket 1",
        "NUMA node 3",
        "L3 9",
    ]
    assert Topology(machines.machine(machines.MONOLITHIC_2S)).leaves[1].name_at("socket") == "socket 1"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no CPUs", {"cpus": ()}, "the machine has no CPUs"),
    ("a CPU twice", {"cpus": (Cpu(0, 0, 0, 0, 0, 0), Cpu(0, 0, 0, 0, 0, 0))}, "CPU 0 is listed twice"),
    ("all CPUs offline", {"offline": frozenset(range(128))}, "every CPU of the machine is offline"),
    (
        "too few distances",
        {"distance": ((10, 16), (16, 10))},
        r"distance is not a 8 x 8 matrix; the NUMA nodes",
    ),
]


@pytest.mark.parametrize(("fields", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_machine_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadTopology, match=message):
        Topology(replace(machines.machine(machines.HYGON_7285_2S), **fields))


# ---------------------------------------------------------------------- memory and distances


def test_a_node_without_memory_is_no_memory_node() -> None:
    topology = Topology(machines.machine(machines.MEMORYLESS_NODE))
    assert topology.memory_nodes == {0, 2, 3}
    assert (topology.memory_bytes(1), topology.memory_bytes(2)) == (0, 64 * machines.GIB)


def test_a_node_without_cpus_has_memory_and_no_box() -> None:
    topology = Topology(machines.machine(machines.CPULESS_MEMORY_NODE))
    assert topology.node_ids == (0, 1, 2)
    assert topology.memory_nodes == {0, 1, 2}
    assert len(topology.at("numa")) == 2


def test_memory_that_is_not_told_is_unlimited() -> None:
    topology = Topology(replace(machines.machine(machines.HYGON_7285_2S), memory={}, has_memory=None))
    assert topology.memory_nodes == frozenset(range(8))
    assert topology.memory_bytes(0) is None


def test_distances_go_by_the_rank_of_the_node_ids() -> None:
    cpus = (Cpu(0, 0, 0, 0, 3, 0), Cpu(1, 1, 1, 0, 8, 0))
    topology = Topology(TopologyData(cpus, distance=((10, 14), (15, 10))))
    assert (topology.distance(3, 8), topology.distance(8, 3)) == (14, 15)
    assert topology.spread([3, 8]) == 29


def test_distances_may_differ_by_direction() -> None:
    topology = Topology(machines.machine(machines.CPULESS_MEMORY_NODE))
    assert (topology.distance(0, 2), topology.distance(2, 0)) == (14, 16)


DEFAULTS = [
    ("inside a node", 1, 1, LOCAL_DISTANCE),
    ("in a socket", 0, 3, SOCKET_DISTANCE),
    ("across sockets", 3, 4, REMOTE_DISTANCE),
    ("to memory that is in no socket", 0, 9, REMOTE_DISTANCE),
    ("inside memory that is in no socket", 9, 9, LOCAL_DISTANCE),
]


@pytest.mark.parametrize(("a", "b", "distance"), [c[1:] for c in DEFAULTS], ids=[c[0] for c in DEFAULTS])
def test_distances_that_are_not_told_are_the_usual_ones(a: int, b: int, distance: int) -> None:
    data = machines.machine(machines.HYGON_7285_2S)
    topology = Topology(replace(data, distance=None, memory={**data.memory, 9: machines.GIB}))
    assert topology.distance(a, b) == topology.distance(b, a) == distance


# ---------------------------------------------------------------------- CPUs that come and go

OFFLINE = [
    ("one thread", "70"),
    ("the first CPU of a core and a CCX", "0"),
    ("the first CPUs of all CCXs of a node", "0,4"),
    ("a core", "5,69"),
    ("a CCX", "4-7,68-71"),
    ("a NUMA node", "0-7,64-71"),
    ("a socket", "0-31,64-95"),
    ("all first threads", "0-63"),
    ("all but one CPU", "0-126"),
]


@pytest.mark.parametrize("gone", [c[1] for c in OFFLINE], ids=[c[0] for c in OFFLINE])
def test_a_cpu_that_goes_offline_keeps_its_place(gone: str) -> None:
    before = Topology(machines.machine(machines.HYGON_7285_2S))
    after = Topology(remember(before, machines.take_offline(before.data, parse_cpus(gone))))
    assert _tree(after) == _tree(before)
    assert after.online == before.online - parse_cpus(gone)
    assert after.hash() == before.hash()
    assert [after.core_mates(cpu) for cpu in range(128)] == [before.core_mates(cpu) for cpu in range(128)]


def test_places_are_remembered_over_any_number_of_changes() -> None:
    whole = machines.machine(machines.HYGON_7285_2S)
    topology = first = Topology(whole)
    for gone in ("0", "0-3", "1-3,64-67", "0-7,64-70", "1-7,64-71", "0-62,64-127", ""):
        topology = Topology(remember(topology, machines.take_offline(whole, parse_cpus(gone))))
        assert _tree(topology) == _tree(first)
        assert topology.hash() == first.hash()
        assert topology.online == first.online - parse_cpus(gone)


def test_a_cpu_that_is_gone_for_good_is_forgotten() -> None:
    before = Topology(machines.machine(machines.HYGON_7285_2S))
    without = replace(machines.take_offline(before.data, {127}), offline=frozenset())
    after = Topology(remember(before, without))
    assert 127 not in after.cpus
    assert after.hash() != before.hash()


def test_a_cpu_that_was_never_seen_has_no_place() -> None:
    data = machines.machine(machines.OFFLINE_CPUS)
    assert remember(Topology(data), data) == data


def test_a_node_that_goes_with_its_cpus_keeps_its_distances_and_has_no_memory() -> None:
    before = Topology(machines.machine(machines.HYGON_7285_2S))
    left = machines.take_offline(before.data, parse_cpus("8-15,72-79"))
    assert left.distance is not None and left.has_memory is not None
    others = [0, 2, 3, 4, 5, 6, 7]
    now = replace(
        left,
        distance=tuple(tuple(left.distance[a][b] + 1 for b in others) for a in others),
        memory={node: left.memory[node] for node in others},
        has_memory=frozenset(others),
    )
    after = Topology(remember(before, now))
    assert _tree(after) == _tree(before)
    assert after.memory_nodes == set(others)
    assert (after.distance(0, 1), after.distance(1, 7), after.distance(0, 2)) == (16, 28, 17)


def test_a_cpu_that_was_moved_changes_the_hash() -> None:
    data = machines.machine(machines.HYGON_7285_2S)
    moved = _change(data, {127: {"l3": 0}})
    assert Topology(moved).hash() != Topology(data).hash()


def test_what_a_reader_calls_cores_and_l3s_does_not_change_the_hash() -> None:
    data = machines.machine(machines.HYGON_7285_2S)
    renamed = replace(data, cpus=tuple(replace(c, core=c.core + 500, l3=(c.l3 or 0) + 9) for c in data.cpus))
    assert Topology(renamed).hash() == Topology(data).hash()


# ---------------------------------------------------------------------- JSON

PLAIN = {"cpus": [{"cpu": 0}, {"cpu": 1, "core": 1, "l3": 0, "die": 0, "numa": 0, "socket": 0}]}


def test_only_cpus_are_needed() -> None:
    assert read_topology({"cpus": [{"cpu": 3}]}) == TopologyData((Cpu(3, 3, None, 0, 0, 0),))


def test_an_l3_that_is_not_known_is_not_written() -> None:
    assert all("l3" not in cpu for cpu in write_topology(machines.machine(machines.VM_NO_CACHE_INFO))["cpus"])


def test_parents_are_written_and_read() -> None:
    data = replace(machines.machine(machines.ONE_CPU), parent_cpus=frozenset([0]), parent_mems=frozenset([0]))
    assert read_topology(write_topology(data)) == data


def test_hugetlb_pools_are_written_and_read() -> None:
    data = replace(
        machines.machine(machines.HYGON_7285_2S), hugepages={0: {2 << 20: 512, 1 << 30: 4}, 3: {2 << 20: 1}}
    )
    assert read_topology(write_topology(data)) == data
    tree = Topology(data)
    assert [tree.hugepage_bytes(node) for node in (0, 1, 3)] == [5 << 30, 0, 2 << 20]
    assert [tree.ordinary_bytes[node] for node in (0, 1)] == [59 << 30, 64 << 30]
    assert tree.nodes_with_pages([2 << 20]) == {0, 3}
    assert tree.nodes_with_pages([1 << 30, 1 << 16]) == {0}
    assert not tree.nodes_with_pages([])


def test_empty_parents_mean_not_told() -> None:
    data = read_topology({**PLAIN, "parent_cpus": "", "parent_mems": "", "has_memory": ""})
    assert (data.parent_cpus, data.parent_mems, data.has_memory) == (None, None, None)


BAD_DOCUMENTS: list[tuple[str, Any, str]] = [
    ("no object", [], 'a topology is a JSON object with a list "cpus"'),
    ("no cpus", {}, 'a topology is a JSON object with a list "cpus"'),
    ("cpus are no list", {"cpus": "0-3"}, 'a topology is a JSON object with a list "cpus"'),
    (
        "unknown key",
        {**PLAIN, "numa": {}},
        "unknown key 'numa'; known are core_types, cpus, devices, distance",
    ),
    ("a CPU is a number", {"cpus": [0]}, 'cpus[0]: expected an object with a number "cpu", found 0'),
    ("a CPU has no number", {"cpus": [{"cpu": 0}, {"core": 1}]}, "cpus[1]: expected an object with"),
    ("a CPU is true", {"cpus": [{"cpu": True}]}, "cpus[0]: expected an object with a number"),
    ("unknown key of a CPU", {"cpus": [{"cpu": 4, "L3": 1}]}, "cpus[0] (CPU 4): unknown key 'L3'; known are"),
    (
        "a core is text",
        {"cpus": [{"cpu": 4, "core": "1"}]},
        "cpus[0] (CPU 4): core is '1', expected a number",
    ),
    ("a negative socket", {"cpus": [{"cpu": 4, "socket": -1}]}, "cpus[0] (CPU 4): socket is -1, expected a"),
    ("a node is null", {"cpus": [{"cpu": 4, "numa": None}]}, "cpus[0] (CPU 4): numa is None, expected"),
    ("offline is no list", {**PLAIN, "offline": "1-x"}, "offline: '1-x' is not a CPU list: '1-x' is neither"),
    ("isolated is a number", {**PLAIN, "isolated": 3}, 'isolated is 3, expected a list such as "0-7"'),
    (
        "has_memory is a list",
        {**PLAIN, "has_memory": [0]},
        'has_memory is [0], expected a list such as "0-7"',
    ),
    ("parent_cpus", {**PLAIN, "parent_cpus": "5-2"}, "parent_cpus: '5-2' is not a CPU list: the range"),
    ("memory is a list", {**PLAIN, "memory": [1]}, "memory: expected an object of numbers, found [1]"),
    ("memory of no node", {**PLAIN, "memory": {"a": 1}}, "memory: 'a' is not the number of a NUMA node"),
    (
        "memory with a unit",
        {**PLAIN, "memory": {"0": "4G"}},
        "memory['0'] is '4G', expected a number of 0 or",
    ),
    ("huge pages are a list", {**PLAIN, "hugepages": [1]}, "hugepages: expected numbers of pages by size"),
    (
        "huge pages of no size",
        {**PLAIN, "hugepages": {"0": 7}},
        "hugepages: expected numbers of pages by size",
    ),
    (
        "huge pages of no node",
        {**PLAIN, "hugepages": {"a": {"4096": 1}}},
        "hugepages: 'a' is not the number of a NUMA node",
    ),
    (
        "huge pages by name",
        {**PLAIN, "hugepages": {"0": {"2MB": 1}}},
        "hugepages['0']: '2MB' is not the size of a page in bytes",
    ),
    (
        "huge pages without number",
        {**PLAIN, "hugepages": {"0": {"2097152": "1"}}},
        "0['2097152'] is '1', expected a number",
    ),
    (
        "a device by name",
        {**PLAIN, "devices": {"0000:01:00.0": "0"}},
        "devices['0000:01:00.0'] is '0', expected",
    ),
    (
        "a type of cores of another name",
        {**PLAIN, "core_types": {"fast": "0"}},
        "core_types: expected lists of CPUs by performance and efficient, found",
    ),
    (
        "no list of CPUs",
        {**PLAIN, "core_types": {"efficient": "0-"}},
        "efficient: ",
    ),
    (
        "distance is a number",
        {**PLAIN, "distance": 10},
        "distance: expected a list of lists of numbers, found 10",
    ),
    (
        "distance is one row",
        {**PLAIN, "distance": [10]},
        "distance: expected a list of lists of numbers, found",
    ),
    (
        "a distance is text",
        {**PLAIN, "distance": [[10, "x"]]},
        "distance[0]: 'x' is not a number of 0 or more",
    ),
]


@pytest.mark.parametrize(
    ("document", "message"), [c[1:] for c in BAD_DOCUMENTS], ids=[c[0] for c in BAD_DOCUMENTS]
)
def test_a_bad_document_is_refused_by_the_name_of_the_place(document: Any, message: str) -> None:
    with pytest.raises(BadTopology) as caught:
        read_topology(document)
    assert str(caught.value).startswith(message)


# ---------------------------------------------------------------------- helpers


def _shape(topology: Topology) -> str:
    """``1 machine > 2 socket > 8 die=numa``: the boxes of every depth, by their levels."""
    rows: list[str] = []
    row: tuple[Domain, ...] = (topology.root,)
    while row:
        levels = sorted("=".join(domain.levels) for domain in row)
        rows.append(" ".join(f"{levels.count(name)} {name}" for name in dict.fromkeys(levels)))
        row = tuple(child for domain in row for child in domain.children)
    return " > ".join(rows)


def _tree(topology: Topology) -> list[tuple[Any, ...]]:
    return [(d.levels, d.ids, d.cpus, d.nodes, d.socket, d.leaves) for d in topology.domains]


def _change(data: TopologyData, cpus: dict[int, dict[str, Optional[int]]]) -> TopologyData:
    changed = tuple(replace(c, **cpus.get(c.cpu, {})) for c in data.cpus)  # type: ignore[arg-type]
    return replace(data, cpus=changed)
