"""The report names zones as they are, adds up, and tells of every container that the runtime has."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import zone_around, zones_of
from cri_proxy.engine.report import container_row, group_rows, machine_document, running, zone_rows
from policies.affinity.graph.groups import groups_of
from policies.affinity.graph.traffic import Edge, Traffic, traffic_of
from policies.machine.cpus import parse_cpus
from policies.model import NO_CONSTRAINT, PlacementPreferences, Qos
from policies.settings import PlacementSettings
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S, ONE_CPU, SNC_2S, VM_NO_CACHE_INFO
from tests.scenes import HYGON, TOPOLOGY_AWARE, engine_on, host_of, make_container, make_pod, run, topology


def zones_by_name(engine: Engine) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in zone_rows(engine.node, zones_of(engine.host.topology))}


@pytest.mark.parametrize("name", [HYGON_7285_2S, MONOLITHIC_2S, SNC_2S, VM_NO_CACHE_INFO, ONE_CPU])
def test_zones_are_named_once_and_have_parents_that_are_zones(name) -> None:
    rows = zone_rows(engine_on(name).node, zones_of(topology(name)))
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert row["parent"] == "" or row["parent"] in names
        assert row["name"].startswith(f"{row['type'].lower()}-")
    assert sum(row["capacity_milli_cpus"] for row in rows if row["type"] == "Node") == 1000 * len(
        topology(name).online
    )


def test_an_l3_is_in_its_numa_node_and_that_in_its_socket() -> None:
    zones = zones_by_name(engine_on(HYGON_7285_2S))
    assert zones["l3-0"]["parent"] == "node-0"
    assert zones["node-7"]["parent"] == "socket-1"
    assert zones["socket-0"]["parent"] == ""


def test_what_is_charged_and_what_is_free_add_up_to_the_allocatable() -> None:
    engine = engine_on(HYGON_7285_2S, settings=TOPOLOGY_AWARE)
    run(engine, make_container("own", limit=4, qos=Qos.GUARANTEED), "aa1")
    run(engine, make_container("shares", limit=2, request=1), "ab2")
    for row in zones_by_name(engine).values():
        assert row["charged_milli_cpus"] + row["free_milli_cpus"] == row["allocatable_milli_cpus"], row
    by_type: dict[str, int] = {}
    for row in zones_by_name(engine).values():
        by_type[row["type"]] = by_type.get(row["type"], 0) + row["charged_milli_cpus"]
    assert by_type == {"Socket": 5000, "Node": 5000, "L3": 5000}


def test_reserved_cpus_are_not_allocatable() -> None:
    zones = zones_by_name(engine_on(host_of(HYGON_7285_2S, reserved="0,64")))
    assert zones["l3-0"]["allocatable_milli_cpus"] == zones["l3-0"]["capacity_milli_cpus"] - 2000


@pytest.mark.parametrize(
    ("cpus", "zone"), [("0-3", "l3-0"), ("0-7", "node-0"), ("0-31", "socket-0"), ("0,63", ""), ("", "")]
)
def test_the_zone_of_a_place_is_the_smallest_that_holds_it(cpus, zone) -> None:
    assert zone_around(zones_of(topology(HYGON_7285_2S)), parse_cpus(cpus)) == zone


def test_each_container_that_the_runtime_has_is_a_row(engine) -> None:
    run(engine, make_container("app", limit=2, request=1, pod=make_pod("web")), "aa1")
    run(engine, make_container("gone", limit=1), "ab2")
    engine.exited("ab2", 1, 5.0)
    engine.admit(make_container("late", limit=1), NO_CONSTRAINT, 1.0)
    zones = zones_of(engine.host.topology)
    [row] = [container_row(engine, grant, zones) for grant in running(engine)]
    assert (row["namespace"], row["pod"], row["container"]) == ("default", "web", "app")
    assert (row["container_id"], row["milli_cpus"], row["state"]) == ("aa1", 1000, "managed")
    assert (row["level"], row["zone"], row["exclusive"]) == ("ccx", "l3-0", False)
    assert row["why"] and "\n" not in row["why"]


@pytest.mark.parametrize(
    ("preferences", "settings", "demand"),
    [
        (PlacementPreferences(), HYGON, ""),
        (PlacementPreferences(numa="require"), HYGON, "numa"),
        (PlacementPreferences(l3="require"), HYGON, "l3"),
        (PlacementPreferences(), PlacementSettings(l3="require"), "l3"),
    ],
)
def test_a_row_tells_the_place_that_its_container_demands(preferences, settings, demand) -> None:
    engine = engine_on(HYGON_7285_2S, settings=settings)
    run(engine, make_container("app", limit=2, request=1, preferences=preferences), "aa1")
    zones = zones_of(engine.host.topology)
    assert [container_row(engine, grant, zones)["demand"] for grant in running(engine)] == [demand]


def test_memory_that_is_charged_and_memory_that_is_free_add_up_to_the_allocatable(engine) -> None:
    run(engine, make_container("app", limit=2, request=1, memory=1), "aa1")
    row = zones_by_name(engine)["node-0"]
    assert row["memory_charged_bytes"] == 1 << 30
    assert row["memory_charged_bytes"] + row["memory_free_bytes"] == row["memory_allocatable_bytes"]
    assert row["memory_allocatable_bytes"] < row["memory_bytes"]


def test_the_machine_has_every_numa_node_with_all_its_distances() -> None:
    document = machine_document(topology(HYGON_7285_2S))
    nodes = document["numa_nodes"]
    assert len(nodes) == 8 and all(len(node["distances"]) == 8 for node in nodes)
    assert nodes[0]["distances"]["0"] == 10
    assert {node["socket"] for node in nodes} == {0, 1}
    assert {l3["numa_node"] for l3 in document["l3s"]} == set(range(8))


# ---------------------------------------------------------------------- groups


def talking(*ends: tuple[str, str]) -> Traffic:
    return traffic_of(1, [Edge(a, b, 50_000.0, bytes_per_s=3_000_000.0) for a, b in ends], {})


def groups(engine: Engine, traffic: Traffic, still: str = "") -> list[dict[str, Any]]:
    zones = zones_of(engine.host.topology)
    return group_rows(engine, zones, groups_of(traffic.listed), traffic, still)


def test_a_group_in_one_numa_node_is_together(engine) -> None:
    run(engine, make_container("app", limit=1, request=1, pod=make_pod("web")), "aa1")
    run(engine, make_container("app", limit=1, request=1, pod=make_pod("db")), "ab2")
    assert engine.grants["aa1"].cpus.isdisjoint(engine.grants["ab2"].cpus)
    [row] = groups(engine, talking(("aa1", "ab2")))
    assert [member["pod"] for member in row["members"]] == ["db", "web"]
    assert row["bytes_per_s"] == 3_000_000
    assert (row["together"], row["zone"], row["why_not"]) == (True, "node-0", "")


def test_a_group_that_asks_for_more_than_a_numa_node_has_says_so(engine) -> None:
    for number in range(3):
        run(engine, make_container("app", limit=8, request=8, pod=make_pod(f"p{number}")), f"a{number}")
    [row] = groups(engine, talking(("a0", "a1"), ("a1", "a2")))
    assert not row["together"]
    assert row["why_not"] == "together they ask for 24000m, and the largest NUMA node has 16000m"


def test_a_group_that_may_not_be_moved_says_why(engine) -> None:
    for number in range(3):
        run(engine, make_container("app", limit=4, request=4, pod=make_pod(f"p{number}")), f"a{number}")
    [row] = groups(engine, talking(("a0", "a2")), still="affinity.rebalance is manual")
    assert row["why_not"] == "containers are not moved: affinity.rebalance is manual"
