"""Memory nodes: near the CPUs, never promised more than they have, never one that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Topology
from policies.memory import FILL_PERCENT, MemoryChoice, MemoryNeed, choose_memory
from policies.model import Resident
from policies.node import Node
from policies.settings import PlacementSettings
from tests.machines import (
    ALL_MACHINES,
    CPULESS_MEMORY_NODE,
    GIB,
    HYGON_7285_2S,
    MEMORYLESS_NODE,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.scenes import Scene, constraint, make_container, make_pod, node_of, topology


def choose(
    node: Node, cpus: str, gib: float, mode: str = "prefer", only: str = "", within: Optional[str] = None
) -> MemoryChoice:
    allowed = None if within is None else parse_cpus(within)
    return choose_memory(node, parse_cpus(cpus), round(gib * GIB), mode, parse_cpus(only), allowed)


def fill(node: Node, **gib_by_node: float) -> None:
    charge = tuple((int(name[1:]), round(gib * GIB)) for name, gib in gib_by_node.items())
    node.add(f"filler-{len(node.residents)}", Resident("uid", 0, 0, NO_CPUS, memory_charge=charge))


def shown(memory: MemoryChoice) -> str:
    return format_cpus(memory.nodes)


def charged_gib(memory: MemoryChoice) -> dict[int, float]:
    return {node: size / GIB for node, size in memory.charge}


# ---------------------------------------------------------------------- the three modes

# hygon-7285-2s: 64 GiB a node, of which 57.6 may be promised.
MODES = [
    # mode, CPUs, limit in GiB, nodes
    ("prefer", "0-3", 0, ""),
    ("prefer", "0-3", 1, "0"),
    ("prefer", "0-3", 57.6, "0"),
    ("prefer", "0-3", 57.7, "0-1"),
    ("prefer", "0-15", 100, "0-1"),
    ("prefer", "0-15", 116, "0-2"),
    ("prefer", "0-3", 10_000, "0-7"),
    ("pin", "0-3", 0, "0"),
    ("pin", "0-3", 1, "0"),
    ("pin", "0-3", 64, "0"),
    ("pin", "0-3", 65, "0-1"),
    ("pin", "0-31", 1, "0-3"),
    ("off", "0-3", 1, ""),
]


@pytest.mark.parametrize(("mode", "cpus", "gib", "nodes"), MODES)
def test_the_nodes_of_a_container_on_an_empty_machine(mode, cpus, gib, nodes) -> None:
    assert shown(choose(node_of(HYGON_7285_2S), cpus, gib, mode)) == nodes


def test_prefer_widens_by_the_nearest_node_when_the_limits_would_fill_its_own_above_90_percent(node) -> None:
    fill(node, n0=50)
    assert shown(choose(node, "0-3", 7)) == "0"
    memory = choose(node, "0-3", 8)
    assert shown(memory) == "0-1"
    assert memory.why == "memory widened from NUMA node 0 to 0-1"


def test_prefer_widens_across_the_socket_before_it_leaves_it(node) -> None:
    fill(node, n4=57, n5=57)
    assert shown(choose(node, "32-35", 50)) == "4-6"


def test_prefer_does_not_widen_by_a_full_node(node) -> None:
    fill(node, n0=57.6, n1=57.6, n2=57.6)
    memory = choose(node, "0-3", 10)
    assert shown(memory) == "0,3"
    assert charged_gib(memory) == {3: 10}


def test_pin_does_not_look_at_what_others_were_promised(node) -> None:
    fill(node, n0=64)
    assert shown(choose(node, "0-3", 30, "pin")) == "0"


def test_widening_goes_by_distance_from_the_cpus_not_by_node_id() -> None:
    data = machine(HYGON_7285_2S)
    assert data.distance is not None
    rows = [list(row) for row in data.distance]
    rows[0][6] = 11
    node = node_of(Topology(replace(data, distance=tuple(tuple(row) for row in rows))))
    assert shown(choose(node, "0-3", 60)) == "0,6"


def test_a_limit_is_charged_in_proportion_to_what_is_free(node) -> None:
    fill(node, n0=47.6)
    memory = choose(node, "0-15", 40.56)
    assert charged_gib(memory) == pytest.approx({0: 6, 1: 34.56})


def test_charges_add_up_to_the_limit_to_the_byte(node) -> None:
    for odd in (1, 2, 3, 7, 100 * GIB + 1, 57 * GIB - 1):
        memory = choose_memory(node, parse_cpus("0-23"), odd, "prefer", NO_CPUS, None)
        assert sum(size for _, size in memory.charge) == odd


# ---------------------------------------------------------------------- nodes that are special


def test_a_node_without_memory_is_replaced_by_its_nearest_with_memory() -> None:
    node = node_of(MEMORYLESS_NODE)
    cpus = format_cpus(next(d for d in node.topology.at("numa") if d.nodes == {1}).cpus)
    assert shown(choose(node, cpus, 1)) == "0"
    assert shown(choose(node, cpus, 0, "pin")) == "0"
    assert shown(choose(node, "0-15", 1)) == "0"


def test_a_memory_node_without_cpus_is_used_only_if_it_is_named() -> None:
    # Node 2 is behind socket 0, nearer (14) than the other socket (21).
    node = node_of(CPULESS_MEMORY_NODE)
    assert shown(choose(node, "0-3", 180)) == "0-1"
    assert shown(choose(node, "0-3", 180, only="2")) == "0,2"
    assert shown(choose(node, "0-3", 100, only="2")) == "0"


def test_naming_a_node_that_is_not_there_changes_nothing() -> None:
    assert shown(choose(node_of(CPULESS_MEMORY_NODE), "0-3", 180, only="7")) == "0-1"


def test_nodes_that_kubelets_cgroup_does_not_allow_are_never_used() -> None:
    node = node_of(HYGON_7285_2S, mems="2-7")
    assert shown(choose(node, "0-3", 1)) == "2"
    assert shown(choose(node, "0-3", 10_000)) == "2-7"


@pytest.mark.parametrize(
    ("within", "gib", "nodes"),
    [("0", 60, "0"), ("1-2", 1, "1"), ("1-2", 60, "1-2"), ("0-7", 1, "0"), ("9", 1, "")],
)
def test_the_callers_mems_are_a_fence(within, gib, nodes) -> None:
    memory = choose(node_of(HYGON_7285_2S), "0-3", gib, within=within)
    assert shown(memory) == nodes
    if not nodes:
        assert memory.why == "memory not set: no NUMA node with memory is allowed"


def test_a_node_of_unknown_size_holds_everything() -> None:
    data = replace(machine(VM_NO_CACHE_INFO), memory={}, has_memory=None)
    node = node_of(Topology(data))
    memory = choose(node, "0-3", 10_000)
    assert (shown(memory), charged_gib(memory)) == ("0", {0: 10_000})


# ---------------------------------------------------------------------- what is free now

#: What is free now in GiB by node, the limit of a container on node 0 in GiB, and its nodes.
FREE_NOW = [
    ({}, 10, "0"),
    ({0: 10}, 10, "0"),
    ({0: 9}, 10, "1"),
    ({0: 9, 1: 9}, 10, "2"),
    ({0: 0, 1: 0, 2: 0, 3: 9.9}, 10, "4"),
    # Two nodes are needed by what is charged; of one of them the part of the limit is not free.
    ({0: 20}, 60, "1-2"),
    ({0: 30}, 60, "0-1"),
    # Nowhere: then it is fenced off nothing.
    (dict.fromkeys(range(8), 9), 10, "0-7"),
    (dict.fromkeys(range(8), 20), 100, "0-7"),
]


@pytest.mark.parametrize(("free_gib", "gib", "nodes"), FREE_NOW)
def test_a_node_that_has_not_as_much_free_now_is_left_out(node, free_gib, gib, nodes) -> None:
    node.free_memory = {n: round(size * GIB) for n, size in free_gib.items()}
    memory = choose(node, "0-3", gib)
    assert shown(memory) == nodes
    assert sum(charged_gib(memory).values()) == gib


def test_why_names_the_node_that_has_too_little_free(node) -> None:
    node.free_memory = {0: GIB}
    assert choose(node, "0-3", 10).why == "memory on NUMA node 1: NUMA node 0 has too little free now"
    node.free_memory = dict.fromkeys(range(8), GIB)
    assert choose(node, "0-3", 10).why == "no NUMA node has as much free memory now"


def test_pin_does_not_look_at_what_is_free_now(node) -> None:
    node.free_memory = dict.fromkeys(range(8), 0)
    assert shown(choose(node, "0-3", 10, "pin")) == "0"


def test_what_a_container_was_charged_before_need_not_be_free_again(node) -> None:
    node.free_memory = {0: 3 * GIB}
    anew = choose_memory(node, parse_cpus("0-3"), 10 * GIB, "prefer", NO_CPUS, None)
    grown = choose_memory(
        node, parse_cpus("0-3"), 10 * GIB, "prefer", NO_CPUS, None, MemoryNeed(had=((0, 8 * GIB),))
    )
    assert (shown(anew), shown(grown)) == ("1", "0")


# ---------------------------------------------------------------------- huge pages

TWO_MIB, ONE_GIB = 2 * 1024**2, GIB


def with_pools(pools: dict[int, dict[int, int]]) -> Node:
    return node_of(Topology(replace(machine(HYGON_7285_2S), hugepages=pools)))


#: 64 GiB a node, of which 24 on node 0 are huge pages: 36 may be promised.
POOLS = [("prefer", 36, "0"), ("prefer", 36.1, "0-1"), ("pin", 40, "0"), ("pin", 40.1, "0-1")]


@pytest.mark.parametrize(("mode", "gib", "nodes"), POOLS)
def test_hugetlb_pools_are_no_memory_for_limits(mode, gib, nodes) -> None:
    node = with_pools({0: {TWO_MIB: 8 * 512, ONE_GIB: 16}})
    assert shown(choose(node, "0-3", gib, mode)) == nodes


#: The pools by node, the sizes a container may have, what the caller allows, and its nodes.
PAGES = [
    ({5: {TWO_MIB: 1}}, {TWO_MIB}, None, "0,5"),
    ({5: {TWO_MIB: 1}}, {ONE_GIB}, None, "0"),
    ({5: {TWO_MIB: 1}}, set(), None, "0"),
    ({0: {TWO_MIB: 1}, 5: {TWO_MIB: 1}, 6: {ONE_GIB: 1}}, {TWO_MIB, ONE_GIB}, None, "0,5-6"),
    ({0: {TWO_MIB: 1}}, {TWO_MIB}, None, "0"),
    ({5: {TWO_MIB: 0}}, {TWO_MIB}, None, "0"),
    ({5: {TWO_MIB: 1}, 6: {TWO_MIB: 1}}, {TWO_MIB}, "0-5", "0,5"),
]


@pytest.mark.parametrize("mode", ["prefer", "pin"])
@pytest.mark.parametrize(("pools", "sizes", "within", "nodes"), PAGES)
def test_a_container_is_not_fenced_off_the_nodes_of_its_huge_pages(pools, sizes, within, nodes, mode) -> None:
    need = MemoryNeed(page_sizes=frozenset(sizes))
    allowed = None if within is None else parse_cpus(within)
    memory = choose_memory(with_pools(pools), parse_cpus("0-3"), GIB, mode, NO_CPUS, allowed, need)
    assert (shown(memory), charged_gib(memory)) == (nodes, {0: 1})
    assert ("for its huge pages" in memory.why) is (nodes != "0")


def test_the_nodes_of_huge_pages_stay_where_they_have_no_memory_free() -> None:
    node = with_pools({5: {TWO_MIB: 1}})
    node.free_memory = {0: 0, 5: 0}
    need = MemoryNeed(page_sizes=frozenset([TWO_MIB]))
    assert shown(choose_memory(node, parse_cpus("0-3"), GIB, "prefer", NO_CPUS, None, need)) == "1,5"


def test_the_policy_reads_the_sizes_of_huge_pages_from_the_container() -> None:
    scene = Scene(Topology(replace(machine(HYGON_7285_2S), hugepages={7: {TWO_MIB: 1}})))
    container = make_container(limit=2, memory=1)
    resources = replace(container.resources, hugepage_sizes=frozenset([TWO_MIB]))
    assert scene.place(replace(container, resources=resources)).placement.mems == {0, 7}


# ---------------------------------------------------------------------- the limit of a whole pod


def test_containers_with_the_limit_of_their_pod_are_charged_it_once(scene) -> None:
    pod = replace(make_pod("shared"), memory_limit_bytes=40 * GIB)
    for name in ("a", "b", "c"):
        decision = scene.put(make_container(name, limit=2, memory=40, pod=pod), key=name)
        assert decision.placement.mems == {0}, name
    assert scene.node.memory_charged(0) == 40 * GIB
    scene.put(make_container("own", limit=2, memory=10, pod=pod), key="own")
    assert scene.node.memory_charged(0) == 50 * GIB
    for name, left in (("a", 50), ("c", 50), ("own", 40), ("b", 0)):
        scene.node.remove(name)
        assert scene.node.memory_charged(0) == left * GIB, name


def test_a_second_container_under_a_pods_limit_needs_nothing_free(scene) -> None:
    pod = replace(make_pod("shared"), memory_limit_bytes=40 * GIB)
    scene.put(make_container("a", limit=2, memory=40, pod=pod))
    scene.node.free_memory = {0: 5 * GIB}
    assert scene.place(make_container("b", limit=2, memory=40, pod=pod)).placement.mems == {0}
    alone = make_container("c", limit=2, memory=40)
    assert scene.place(alone).placement.mems != {0}


# ---------------------------------------------------------------------- with the policy


def test_the_policy_sends_mems_for_limited_containers_only(scene) -> None:
    assert scene.place(make_container(limit=2, memory=1)).placement.mems == {0}
    assert not scene.place(make_container(limit=2)).placement.mems


def test_why_says_that_memory_was_widened() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=2, memory=60))
    assert decision.why.endswith("; memory widened from NUMA node 0 to 0-1")


def test_the_policy_reads_mode_and_named_nodes_from_its_settings() -> None:
    off = Scene(HYGON_7285_2S, PlacementSettings(memory="off"))
    assert not off.place(make_container(limit=2, memory=1)).placement.mems
    pin = Scene(HYGON_7285_2S, PlacementSettings(memory="pin"))
    assert pin.place(make_container(limit=2)).placement.mems == {0}
    named = Scene(CPULESS_MEMORY_NODE, PlacementSettings(memory_only_nodes=frozenset([2])))
    assert named.place(make_container(limit=2, memory=180)).placement.mems == {0, 2}


def test_the_policy_keeps_inside_the_callers_mems() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=2, memory=1), within=constraint(mems="5"))
    assert decision.placement.mems == {5}


# ---------------------------------------------------------------------- kinds of memory

KINDS = [
    # bandwidth by node, types, nodes
    pytest.param({}, "hbm", "2", id="the small node without CPUs"),
    pytest.param({}, "pmem", "3", id="the large one"),
    pytest.param({0: 300, 1: 300, 2: 100, 3: 900}, "hbm", "3", id="firmware counts before the size"),
    pytest.param({0: 300, 1: 300, 2: 100, 3: 900}, "pmem", "2", id="also for the others"),
    pytest.param({2: 100, 3: 900}, "hbm", "2", id="where it tells nothing of nodes with CPUs, the size"),
    pytest.param({0: 300, 2: 100, 3: 100}, "hbm", "2", id="of nodes that are not fast any one, the nearest"),
]


@pytest.mark.parametrize(("bandwidth", "kind", "nodes"), KINDS)
def test_nodes_without_cpus_are_of_a_kind_by_firmware_or_by_size(bandwidth, kind, nodes) -> None:
    data = machine(CPULESS_MEMORY_NODE)
    with_both = replace(
        data,
        memory={**data.memory, 3: 900 * GIB},
        has_memory=(data.has_memory or NO_CPUS) | {3},
        distance=((10, 21, 14, 17), (21, 10, 24, 17), (16, 28, 10, 20), (17, 17, 20, 10)),
        memory_bandwidth=bandwidth,
    )
    need = MemoryNeed(frozenset([kind]))
    found = choose_memory(node_of(Topology(with_both)), parse_cpus("0-3"), GIB, "prefer", NO_CPUS, None, need)
    assert shown(found) == nodes


def test_where_there_is_no_memory_of_a_kind_it_counts_as_not_asked_for() -> None:
    need = MemoryNeed(frozenset(["hbm"]))
    assert (
        shown(choose_memory(node_of(HYGON_7285_2S), parse_cpus("0-3"), GIB, "prefer", NO_CPUS, None, need))
        == "0"
    )


# ---------------------------------------------------------------------- the promise

MACHINES_WITH_NODES = [name for name in ALL_MACHINES if name != "big-1024"]


@pytest.mark.parametrize("name", MACHINES_WITH_NODES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_node_is_promised_more_than_90_percent_unless_all_are_full(name, data) -> None:
    scene = Scene(name)
    tree = topology(name)
    limits = {n: (tree.memory_bytes(n) or 0) * FILL_PERCENT // 100 for n in scene.node.mems & tree.root.nodes}
    largest = max(limits.values()) * 3 // 2
    keys: list[str] = []
    for _ in range(30):
        if keys and data.draw(st.integers(0, 2)) == 0:
            scene.node.remove(keys.pop(data.draw(st.integers(0, len(keys) - 1))))
            continue
        size = data.draw(st.integers(1, largest))
        cpus = data.draw(st.sampled_from([0.5, 1, 9, 20, 40]))
        container = make_container(limit=cpus)
        container = replace(container, resources=replace(container.resources, memory_limit_bytes=size))
        free = {n: max(0, limit - scene.node.memory_charged(n)) for n, limit in limits.items()}
        decision = scene.place(container)
        keys.append(scene.book(container, decision.placement))
        charge = dict(decision.placement.memory_charge)
        assert sum(charge.values()) == size
        assert decision.placement.mems.issuperset(charge)
        if size <= sum(free.values()):
            assert all(charged <= free[n] for n, charged in charge.items())
        else:
            assert decision.placement.mems == limits.keys()
    for key in keys:
        scene.node.remove(key)
    assert all(scene.node.memory_charged(n) == 0 for n in tree.node_ids)
