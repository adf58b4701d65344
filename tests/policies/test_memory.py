"""Memory nodes: near the CPUs, never promised more than they have, never one that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.memory import FILL_PERCENT, Memory, choose_memory
from policies.node import Node, Resident
from policies.settings import PlacementSettings
from policies.topology import Topology
from tests.machines import (
    ALL_MACHINES,
    CPULESS_MEMORY_NODE,
    GIB,
    HYGON_7285_2S,
    MEMORYLESS_NODE,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.scenes import Scene, fence, make_container, node_of, topology


def choose(
    node: Node, cpus: str, gib: float, mode: str = "prefer", only: str = "", within: Optional[str] = None
) -> Memory:
    allowed = None if within is None else parse_cpus(within)
    return choose_memory(node, parse_cpus(cpus), round(gib * GIB), mode, parse_cpus(only), allowed)


def fill(node: Node, **gib_by_node: float) -> None:
    charge = tuple((int(name[1:]), round(gib * GIB)) for name, gib in gib_by_node.items())
    node.add(f"filler-{len(node.residents)}", Resident("uid", 0, 0, NO_CPUS, memory_charge=charge))


def shown(memory: Memory) -> str:
    return format_cpus(memory.nodes)


def charged_gib(memory: Memory) -> dict[int, float]:
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
def test_the_nodes_of_a_container_on_an_empty_machine(mode: str, cpus: str, gib: float, nodes: str) -> None:
    assert shown(choose(node_of(HYGON_7285_2S), cpus, gib, mode)) == nodes


def test_prefer_widens_by_the_nearest_node_when_the_limits_would_fill_its_own_above_90_percent() -> None:
    node = node_of(HYGON_7285_2S)
    fill(node, n0=50)
    assert shown(choose(node, "0-3", 7)) == "0"
    memory = choose(node, "0-3", 8)
    assert shown(memory) == "0-1"
    assert memory.why == "memory widened from node 0 to 0-1"


def test_prefer_widens_across_the_socket_before_it_leaves_it() -> None:
    node = node_of(HYGON_7285_2S)
    fill(node, n4=57, n5=57)
    assert shown(choose(node, "32-35", 50)) == "4-6"


def test_prefer_does_not_widen_by_a_full_node() -> None:
    node = node_of(HYGON_7285_2S)
    fill(node, n0=57.6, n1=57.6, n2=57.6)
    memory = choose(node, "0-3", 10)
    assert shown(memory) == "0,3"
    assert charged_gib(memory) == {3: 10}


def test_pin_does_not_look_at_what_others_were_promised() -> None:
    node = node_of(HYGON_7285_2S)
    fill(node, n0=64)
    assert shown(choose(node, "0-3", 30, "pin")) == "0"


def test_widening_goes_by_distance_from_the_cpus_not_by_node_id() -> None:
    data = machine(HYGON_7285_2S)
    assert data.distance is not None
    rows = [list(row) for row in data.distance]
    rows[0][6] = 11
    node = node_of(Topology(replace(data, distance=tuple(tuple(row) for row in rows))))
    assert shown(choose(node, "0-3", 60)) == "0,6"


def test_a_limit_is_charged_in_proportion_to_what_is_free() -> None:
    node = node_of(HYGON_7285_2S)
    fill(node, n0=47.6)
    memory = choose(node, "0-15", 40.56)
    assert charged_gib(memory) == pytest.approx({0: 6, 1: 34.56})


def test_charges_add_up_to_the_limit_to_the_byte() -> None:
    node = node_of(HYGON_7285_2S)
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
def test_the_callers_mems_are_a_fence(within: str, gib: float, nodes: str) -> None:
    memory = choose(node_of(HYGON_7285_2S), "0-3", gib, within=within)
    assert shown(memory) == nodes
    if not nodes:
        assert memory.why == "memory not set: no node with memory is allowed"


def test_a_node_of_unknown_size_holds_everything() -> None:
    data = replace(machine(VM_NO_CACHE_INFO), memory={}, has_memory=None)
    node = node_of(Topology(data))
    memory = choose(node, "0-3", 10_000)
    assert (shown(memory), charged_gib(memory)) == ("0", {0: 10_000})


# ---------------------------------------------------------------------- with the policy


def test_the_policy_sends_mems_for_limited_containers_only() -> None:
    scene = Scene(HYGON_7285_2S)
    assert scene.place(make_container(limit=2, memory=1)).placement.mems == {0}
    assert not scene.place(make_container(limit=2)).placement.mems


def test_why_says_that_memory_was_widened() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=2, memory=60))
    assert decision.why.endswith("; memory widened from node 0 to 0-1")


def test_the_policy_reads_mode_and_named_nodes_from_its_settings() -> None:
    off = Scene(HYGON_7285_2S, PlacementSettings(memory="off"))
    assert not off.place(make_container(limit=2, memory=1)).placement.mems
    pin = Scene(HYGON_7285_2S, PlacementSettings(memory="pin"))
    assert pin.place(make_container(limit=2)).placement.mems == {0}
    named = Scene(CPULESS_MEMORY_NODE, PlacementSettings(memory_only_nodes=frozenset([2])))
    assert named.place(make_container(limit=2, memory=180)).placement.mems == {0, 2}


def test_the_policy_keeps_inside_the_callers_mems() -> None:
    decision = Scene(HYGON_7285_2S).place(make_container(limit=2, memory=1), within=fence(mems="5"))
    assert decision.placement.mems == {5}


# ---------------------------------------------------------------------- the promise

MACHINES_WITH_NODES = [name for name in ALL_MACHINES if name != "big-1024"]


@pytest.mark.parametrize("name", MACHINES_WITH_NODES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_node_is_promised_more_than_90_percent_unless_all_are_full(name: str, data: st.DataObject) -> None:
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
