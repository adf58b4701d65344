"""The policies as a scenario shows them: annotations, pods of every source of size, devices, another policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.machine.cpus import parse_cpus
from tests.machines import OFFLINE_CPUS
from tests.simulator.simulations import CCX, NUMA, STATE, containers, create, last, places, run

AWARE = "{policy: {Active: topology-aware}}"
GUARANTEED = {"qos": "guaranteed", "memory_limit": "1Gi"}


def own(container: str, cpus: Any, /, **fields: Any) -> dict[str, Any]:
    return create(container, cpus, **{**GUARANTEED, **fields})


def l3_of(line: dict[str, Any], container: str) -> set[int]:
    cpus = parse_cpus(containers(line)[container]["cpus"])
    return {index for index, ccx in enumerate(CCX) if parse_cpus(ccx) & cpus}


# ---------------------------------------------------------------- the size of a pod

ANNOTATED = json.dumps(
    {"containers": {n: {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}} for n in ("app", "side")}}
)
PODS = {
    "the sandbox's resources": {"cpu_request": "4", "cpu_limit": "4"},
    "Intel's annotation": {"annotations": {"intel.com/resources": ANNOTATED}},
    "nri-plugins' annotation": {"annotations": {"noderesource.dev/resources": ANNOTATED}},
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS.keys())
def test_a_pod_whose_size_is_told_goes_where_all_of_it_fits(pod: dict[str, Any]) -> None:
    """Three CPUs are left in the first CCX: the app alone would fit there best."""
    steps = [
        own("five", 5),
        {"op": "pod", "id": "p", "cgroup_parent": "/kubepods/podP", **pod},
        own("app", 2, pod="p", name="app"),
        own("side", 2, pod="p", name="side"),
        STATE,
    ]
    line = last(*steps, text=AWARE)
    assert (l3_of(line, "five"), l3_of(line, "app"), l3_of(line, "side")) == ({0}, {1}, {1})


def test_a_pod_whose_size_nobody_tells_is_learnt_and_stays_in_one_node() -> None:
    steps = [own("five", 5), own("app", 2, pod="p", name="app"), own("side", 2, pod="p", name="side"), STATE]
    line = last(*steps, text=AWARE)
    assert (l3_of(line, "app"), l3_of(line, "side")) == ({0}, {1})


def test_a_finished_init_container_gives_its_cpus_to_the_next_one() -> None:
    steps = [
        own("init", 8, pod="p", name="init", kind="init"),
        {"op": "exit", "id": "init", "code": 0},
        own("app", 8, pod="p", name="app"),
        STATE,
    ]
    line = last(*steps, text=AWARE)
    assert l3_of(line, "app") == {0}


# ---------------------------------------------------------------- annotations


def test_an_annotation_owns_cpus_under_hygon_too() -> None:
    annotations = {"cri-resmgr.io/cpus": "exclusive"}
    line = last(own("db", 4, annotations=annotations), STATE)
    assert containers(line)["db"]["exclusive"] == "0-1,64-65"


def test_mixed_containers_spread_over_empty_l3s_under_hygon() -> None:
    """Each in an L3 of its own, no shared part on the sibling of another one's CPU; only the fractions are charged there."""
    annotations = {"cri-resmgr.io/cpus": "exclusive"}
    sizes = {"a": 2.5, "b": 1.5, "c": 3.5}
    line = last(*[own(name, size, annotations=annotations) for name, size in sizes.items()], STATE)
    assert places(line) == dict(zip("abc", CCX))
    assert [containers(line)[name]["exclusive"] for name in sizes] == ["0,64", "4", "8-9,72"]
    free = [line["free"][f"L3 {index}"]["free_milli"] for index in range(4)]
    assert free == [5500, 6500, 4500, 8000]


def test_mixed_containers_go_beside_the_least_loaded_shared_ones() -> None:
    annotations = {"cri-resmgr.io/cpus": "exclusive"}
    # Every L3 has a shared container; that of the fifth asks for the least.
    shared = [create(f"s{i}", 6, cpu_request=0.1 if i == 5 else 1) for i in range(16)]
    line = last(*shared, own("db", 2.5, annotations=annotations), STATE)
    assert l3_of(line, "db") == l3_of(line, "s5") == {5}


def test_a_shared_part_keeps_off_the_siblings_of_others_own_cpus() -> None:
    """Two L3s with one CPU taken each: half a core of the first, which is asked for less, and a lone one of the second."""
    annotations = {"cri-resmgr.io/cpus": "exclusive"}
    steps = [
        own("half", 1, annotations=annotations, cpuset="0-3,64-67"),
        create("web", 8, cpu_request=1, cpuset="4-7,68-71"),
        own("db", 2.5, annotations=annotations, cpuset="0-7,64-71"),
        STATE,
    ]
    line = last(*steps)
    assert (l3_of(line, "half"), l3_of(line, "db")) == ({0}, {1})


def test_where_owning_is_the_rule_mixed_containers_leave_whole_l3s_whole() -> None:
    line = last(own("five", 5), own("mixed", 1.5), STATE, text=AWARE)
    assert l3_of(line, "five") == l3_of(line, "mixed") == {0}


def test_what_is_demanded_and_cannot_be_had_is_an_error_with_a_reason() -> None:
    annotations = {"cri-resmgr.io/l3": "require"}
    line = last(own("db", 12, annotations=annotations), text=AWARE)
    assert "wants 12 CPUs in one L3; the largest free L3 has 8" in line["error"]
    assert (line["cpus"], line["moved"]) == ("", [])


def test_what_is_not_understood_is_said_and_ignored() -> None:
    line = last(own("db", 4, annotations={"cri-resmgr.io/smt": "sideways"}), text=AWARE)
    assert line["error"] == "" and line["exclusive"] and "sideways" in line["why"]


def test_affinity_draws_both_ways() -> None:
    everywhere = {"key": "pod/namespace", "operator": "Equals", "values": ["default"]}
    near_a = {"scope": everywhere, "match": {"key": "name", "operator": "Equals", "values": ["a"]}}
    wish = {"cri-resmgr.io/affinity": json.dumps({"b": [near_a]})}
    apart = last(create("a", 2, name="a"), create("b", 2, name="b"), STATE)
    assert places(apart)["a"] != places(apart)["b"]
    near = last(create("a", 2, name="a"), create("b", 2, name="b", annotations=wish), STATE)
    assert places(near)["a"] == places(near)["b"]


def test_quota_is_lifted_where_all_cpus_are_owned() -> None:
    line = last(own("db", 4, annotations={"cri-resmgr.io/cfs-quota": "lift"}), text=AWARE)
    assert line["sent"]["cpu_quota"] == -1 and line["cpu_quota"] == -1


# ---------------------------------------------------------------- isolated CPUs


@pytest.mark.parametrize("policy", ["hygon", "topology-aware"])
def test_isolated_cpus_are_no_shared_ones(policy: str) -> None:
    """Cores 3 and 35 of the first CCX are isolated: six CPUs are left of it for those who share."""
    steps = [create(f"c{i}", limit) for i, limit in enumerate((None, 0.5, 6, 8, 20, 100))]
    line = last(*steps, STATE, on=OFFLINE_CPUS, text=f"{{policy: {{Active: {policy}}}}}")
    assert all(parse_cpus(cpus).isdisjoint({3, 35}) for cpus in places(line).values())


def test_under_hygon_isolated_cpus_are_owned_where_that_is_asked_for() -> None:
    annotations = {"cri-resmgr.io/isolated": "require"}
    line = last(own("db", 2, annotations=annotations), on=OFFLINE_CPUS)
    assert line["exclusive"] == "3,35"


# ---------------------------------------------------------------- resize, restart, another policy


def test_a_resize_of_what_is_owned_keeps_every_cpu() -> None:
    steps = [own("db", 2), {"op": "resize", "id": "db", "cpu_request": "5", "cpu_limit": "5"}, STATE]
    first, second, _ = run(*steps, text=AWARE)
    assert first["exclusive"] == "0,64" and second["exclusive"] == "0-2,64-65"


def test_what_is_owned_grows_out_of_a_full_l3_as_a_whole() -> None:
    """Not with a part of it in each of two L3s; in its NUMA node as long as that has one."""
    grown = {"op": "resize", "id": "sidecar", "cpu_request": "3", "cpu_limit": "3"}
    line = last(own("sidecar", 2, pod="p"), own("app", 6, pod="p"), grown, STATE, text=AWARE)
    assert places(line) == {"sidecar": "4-5,68", "app": "1-3,65-67"}


def test_what_is_owned_and_needs_several_l3s_keeps_what_it_has() -> None:
    steps = [own("db", 8), {"op": "resize", "id": "db", "cpu_request": "10", "cpu_limit": "10"}, STATE]
    assert places(last(*steps, text=AWARE)) == {"db": "0-4,64-68"}


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_restart_leaves_what_is_owned(state: str) -> None:
    steps = [own("db", 4), create("web", 8), STATE, {"op": "restart", "state": state}, STATE]
    lines = run(*steps, text=AWARE)
    before, after = containers(lines[2]), containers(lines[4])
    assert {k: (r["cpus"], r["exclusive"]) for k, r in before.items()} == {
        k: (r["cpus"], r["exclusive"]) for k, r in after.items()
    }


def test_another_policy_moves_nobody_who_need_not_move() -> None:
    steps = [own("db", 4), create("web", 8), {"op": "config", "file": "b.yaml"}, STATE]
    lines = run(*steps, text=AWARE, files={"b.yaml": "{policy: {Active: hygon}}"})
    assert lines[2]["moved"] == []


# ---------------------------------------------------------------- what owning takes from others

#: A container with a limit of 16 in the first NUMA node, one with a limit of 1 in every L3 of the others.
OTHERS = [
    create("wide", 16, cpu_request="100m"),
    *[create(f"s{i}", 1, cpu_request="100m") for i in range(14)],
]


@pytest.mark.parametrize(
    "pod", [{}, {"cpu_request": "4", "cpu_limit": "4"}, {"cpu_request": "6", "cpu_limit": "6"}]
)
def test_owned_cpus_are_taken_where_no_other_gets_fewer_than_its_limit(pod: dict[str, Any]) -> None:
    announced = {"op": "pod", "id": "p", "cgroup_parent": "/kubepods/podP", **pod}
    line = last(*OTHERS, announced, own("four", 4, pod="p"), STATE, text=AWARE)
    assert l3_of(line, "four") == {2}
    assert parse_cpus(places(line)["wide"]) == parse_cpus(NUMA[0])


def test_what_is_taken_from_containers_adds_up() -> None:
    """Every L3 has to give; where two containers would lose as much each, more is lost, though they ask for less."""
    eights = [create(f"e{i}", 8, cpu_request="300m" if 0 < i < 16 else "100m") for i in range(17)]
    line = last(*eights, own("four", 4), STATE, text=AWARE)
    shared = {key: parse_cpus(cpus) for key, cpus in places(line).items()}
    assert len(shared["e0"]) == len(shared["e16"]) == 8
    assert shared["e0"] == shared["e16"]
