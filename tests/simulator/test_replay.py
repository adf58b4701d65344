"""The simulation, container by container: creates and their results, resizes, exits, removals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cri_proxy.simulator.replay import run_simulation
from policies.machine.cpus import parse_cpus
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO, machine
from tests.simulator.simulations import (
    CCX,
    KEYS,
    NUMA,
    STATE,
    config,
    containers,
    create,
    kubelets,
    last,
    moves,
    places,
    run,
)

EXIT = {"op": "exit", "id": "a", "code": 1}

# ---------------------------------------------------------------- the output


def test_a_line_is_one_compact_json_object_with_its_keys_in_order() -> None:
    (line,) = run_simulation(machine(HYGON_7285_2S), config(), [create("a", 4, memory_limit="1Gi")], config)
    why = json.dumps(json.loads(line)["why"])
    assert line == (
        '{"step":0,"op":"create","id":"a","cpus":"0-3,64-67","mems":"0","exclusive":"","cpu_quota":400000,'
        '"cpu_shares":4096,"level":"ccx","sent":{"cpuset_cpus":"0-3,64-67","cpuset_mems":"0"},'
        f'"why":{why},"moved":[],"error":"",'
        '"notes":["policy hygon, usable CPUs 0-127, reserved none"]}'
    )
    assert tuple(json.loads(line)) == KEYS


def test_steps_are_counted_from_0_and_run_when_their_line_is_asked_for() -> None:
    lines = run_simulation(machine(HYGON_7285_2S), config(), [create("a", 4), EXIT, EXIT], config)
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


def test_a_scenario_without_steps_has_no_lines() -> None:
    assert run() == []


# ---------------------------------------------------------------- the ladder

RUNGS = [
    ("ccx", 8, range(1, 9)),
    ("numa", 16, range(9, 17)),
    ("numa+ccx", 24, range(17, 25)),
    ("2numa", 32, range(25, 33)),
    ("socket", 64, range(33, 65)),
    ("machine", 128, range(65, 129)),
]


@pytest.mark.parametrize(("level", "size", "wanted"), RUNGS, ids=[level for level, _, _ in RUNGS])
def test_each_size_of_container_gets_its_rung(level: str, size: int, wanted: range) -> None:
    steps = [step for n in wanted for step in (create("a", str(n)), {"op": "remove", "id": "a"})]
    for line in run(*steps)[::2]:
        assert (line["level"], len(parse_cpus(line["cpus"]))) == (level, size)
        assert line["sent"] == {"cpuset_cpus": line["cpus"]}


WITHOUT_LIMIT: dict[str, tuple[dict[str, Any], str, str]] = {
    "BestEffort": ({}, "{}", "numa"),
    "BestEffort as configured": ({}, "placement: {besteffort: ccx}", "ccx"),
    "Burstable without a limit": ({"cpu_request": "1"}, "{}", "numa"),
    "never below the rung of its request": ({"cpu_request": "40"}, "{}", "socket"),
    "more than the machine has": ({"cpu_request": "1", "cpu_limit": "500"}, "{}", "machine"),
    "a limit only": ({"cpu_limit": "4"}, "{}", "ccx"),
}


@pytest.mark.parametrize(("fields", "text", "level"), WITHOUT_LIMIT.values(), ids=WITHOUT_LIMIT.keys())
def test_a_container_is_placed_by_what_it_asks_for(fields: dict[str, Any], text: str, level: str) -> None:
    assert last({"op": "create", "id": "a", "pod": "p", **fields}, text=text)["level"] == level


def test_the_same_ladder_on_a_machine_without_cache_information_begins_at_the_numa_node() -> None:
    assert last(create("a", 1), on=VM_NO_CACHE_INFO)["level"] == "numa"


# ---------------------------------------------------------------- what the runtime is told

FIGURES: dict[str, tuple[dict[str, Any], int, int]] = {
    "whole CPUs": ({"cpu_request": "4", "cpu_limit": "4"}, 4096, 400000),
    "milli-CPUs": ({"cpu_request": "750m", "cpu_limit": "1500m"}, 768, 150000),
    "numbers": ({"cpu_request": 0.5, "cpu_limit": 2}, 512, 200000),
    "the request is the limit where it is not given": ({"cpu_limit": "2"}, 2048, 200000),
    "no limit": ({"cpu_request": "500m"}, 512, 0),
    "nothing": ({"cpu_request": "", "cpu_limit": None}, 2, 0),
    "the most shares there are": ({"cpu_limit": "300"}, 262144, 30000000),
    "kubelet's smallest quota": ({"cpu_limit": "5m"}, 5, 1000),
}


@pytest.mark.parametrize(("fields", "shares", "quota"), FIGURES.values(), ids=FIGURES.keys())
def test_shares_and_quota_are_kubelets(fields: dict[str, Any], shares: int, quota: int) -> None:
    line = last({"op": "create", "id": "a", "pod": "p", **fields})
    assert (line["cpu_shares"], line["cpu_quota"]) == (shares, quota)


def test_a_container_without_a_memory_limit_gets_no_memory_nodes() -> None:
    assert last(create("a", 4))["mems"] == ""


# ---------------------------------------------------------------- pods


def test_the_containers_of_a_pod_that_one_ccx_holds_share_it() -> None:
    pod = {"op": "pod", "id": "p", "cpu_request": "8", "cpu_limit": "8"}
    steps = [create("other", 1), pod, create("a", 6, pod="p"), create("b", 2, pod="p"), STATE]
    assert places(last(*steps)) == {"other": CCX[0], "a": CCX[1], "b": CCX[1]}


def test_the_containers_of_a_larger_pod_get_two_ccxs_of_one_node() -> None:
    pod = {"op": "pod", "id": "p", "cpu_request": "10", "cpu_limit": "10"}
    assert places(last(pod, create("a", 8, pod="p"), create("b", 2, pod="p"), STATE)) == {
        "a": CCX[0],
        "b": CCX[1],
    }


def test_the_size_of_a_pod_is_read_back() -> None:
    line = last({"op": "pod", "id": "p", "namespace": "web", "cpu_request": "6", "cpu_limit": "8"})
    assert (line["id"], line["cpus"], line["level"]) == ("p", "", "none")
    assert line["why"] == "pod web/p, 6000m requested in all"


def test_a_create_makes_its_pod_in_its_namespace() -> None:
    text = "placement: {unmanaged_namespaces: [ops]}"
    one, other, elsewhere = run(
        create("a", 1, pod="p", namespace="ops"), create("b", 1, pod="p"), create("c", 1), text=text
    )
    assert one["why"] == other["why"] == "namespace ops is not managed"
    assert elsewhere["cpus"] == CCX[0]


OPTED_OUT: dict[str, dict[str, Any]] = {
    "by annotation": {"annotations": {"cri-resmgr.io/manage": "false"}},
    "by annotation for this container": {"annotations": {"cri-resmgr.io/manage/container.app": "false"}},
    "by its runtime handler": {"runtime_handler": "kata"},
}


@pytest.mark.parametrize("fields", OPTED_OUT.values(), ids=OPTED_OUT.keys())
def test_an_opted_out_container_is_untouched(fields: dict[str, Any]) -> None:
    line = last({"op": "pod", "id": "p", **fields}, create("a", 4, pod="p", cpuset="8-11"))
    assert (line["sent"], line["cpus"], line["level"], line["exclusive"]) == ({}, "8-11", "none", "")


def test_removing_a_pod_ends_its_containers_and_their_holds() -> None:
    steps = [create("a", 8, pod="p"), create("b", 8, pod="p"), EXIT, {"op": "remove-pod", "id": "p"}, STATE]
    empty, *_, gone, state = run(STATE, *steps)
    assert (gone["id"], gone["why"]) == ("p", "the pod is gone, with a, b")
    assert (state["containers"], state["free"]) == ([], empty["free"])


def test_a_pod_may_come_again_once_it_is_gone() -> None:
    line = last(create("a", 1, pod="p"), {"op": "remove-pod", "id": "p"}, create("a", 1, pod="p"))
    assert line["cpus"] == CCX[0]


# ---------------------------------------------------------------- the caller's own cpusets


def test_a_container_is_placed_inside_the_cpuset_of_its_request() -> None:
    line = last(create("a", 2, cpuset="6-9", mems="0", memory_limit="1Gi"))
    assert line["sent"] == {"cpuset_cpus": "6-7", "cpuset_mems": "0"}


def test_a_cpuset_without_usable_cpus_is_left_alone() -> None:
    line = last(create("a", 2, cpuset="200-203"))
    assert (line["cpus"], line["sent"], line["level"]) == ("200-203", {}, "none")


def test_cpus_that_kubelet_gave_to_one_container_leave_all_other_sets() -> None:
    steps = [create("a", 4), create("b", 12), kubelets("k", "1,65", 2), {"op": "remove", "id": "k"}]
    _, _, taken, back = run(*steps)
    assert (taken["cpus"], taken["exclusive"], taken["sent"], taken["level"]) == ("1,65", "1,65", {}, "none")
    shrunk = {"id": "a", "cpus": "0,2-3,64,66-67", "mems": "", "exclusive": "", "level": "ccx"}
    assert taken["moved"] == [shrunk]
    assert moves(back) == {"a": CCX[0]}


def test_a_cpuset_as_large_as_a_guaranteed_request_is_a_fence_unless_it_is_kubelets() -> None:
    given, first = {"qos": "guaranteed", "memory_limit": "1Gi", "cpuset": "1,65"}, create("a", 4)
    for step in (create("k", 2, **given), {"op": "update", "id": "k", "cpuset": "1,65"}):
        before = [] if step["op"] == "create" else [create("k", 2, **{**given, "cpuset": ""})]
        *_, fenced = run(first, *before, step)
        assert (fenced["cpus"], fenced["exclusive"], fenced["moved"]) == ("1,65", "", [])
        *_, own = run(first, *before, {**step, "kubelets": True})
        assert (own["cpus"], own["exclusive"], [m["id"] for m in own["moved"]]) == ("1,65", "1,65", ["a"])


def test_an_update_of_the_cpuset_is_a_new_fence() -> None:
    _, inside, outside = run(
        create("a", 4),
        {"op": "update", "id": "a", "cpuset": "0-7"},
        {"op": "update", "id": "a", "cpuset": "16-31"},
    )
    assert (inside["cpus"], inside["sent"]) == ("0-3", {"cpuset_cpus": "0-3"})
    assert (outside["cpus"], outside["level"]) == ("16-19", "ccx")
    assert (outside["cpu_quota"], outside["cpu_shares"]) == (400000, 4096)


# ---------------------------------------------------------------- what the runtime answers


def test_a_refused_create_leaves_no_trace() -> None:
    before, _, refused, _, after = run(
        STATE, create("a", 4), create("b", 4, result="refused"), {"op": "remove", "id": "a"}, STATE
    )
    assert (refused["error"], refused["cpu_quota"]) == ("refused by the runtime", 0)
    assert refused["sent"] == {"cpuset_cpus": CCX[1]}
    assert (before["containers"], before["free"]) == (after["containers"], after["free"])


def test_a_refused_create_gives_others_back_what_they_lost() -> None:
    _, refused, state = run(create("a", 4), {**kubelets("k", "0-1", 2), "result": "refused"}, STATE)
    assert (refused["moved"], places(state)) == ([], {"a": CCX[0]})


def test_the_id_of_a_refused_create_is_not_taken() -> None:
    assert last(create("a", 4, result="refused"), create("a", 4))["cpus"] == CCX[0]


def test_a_create_in_doubt_keeps_its_place_until_the_next_look() -> None:
    create_line, state, waited, bound = run(
        create("a", 8, result="doubt"), STATE, {"op": "wait", "seconds": 1}, STATE
    )
    assert (create_line["cpus"], create_line["error"]) == (CCX[0], "")
    assert containers(state)["a"]["state"] == "in doubt"
    assert state["free"]["L3 0"]["free_milli"] == 0
    assert waited["why"] == "1 s have passed; bound: a"
    assert (containers(bound)["a"]["state"], bound["free"]) == ("created", state["free"])


def test_a_create_in_doubt_that_is_not_there_is_cancelled_after_two_minutes() -> None:
    steps = [create("a", 8, result="doubt"), {"op": "remove", "id": "a"}]
    for seconds, free in ((120, 0), (121, 8000)):
        state = last(*steps, {"op": "wait", "seconds": seconds}, STATE)
        assert state["free"]["L3 0"]["free_milli"] == free


def test_after_a_failed_start_the_next_attempts_go_through_untouched_for_ten_minutes() -> None:
    failed = create("a", 4, pod="p", name="app", result="start-fails")
    again = create("b", 4, pod="p", name="app", attempt=1)
    for seconds, untouched in ((0, True), (599, True), (600, False)):
        first, _, second = run(failed, {"op": "wait", "seconds": seconds}, again)
        assert (first["error"], first["cpus"]) == ("", CCX[0])
        assert (second["sent"] == {}) is untouched


def test_a_failed_start_of_one_container_is_no_matter_for_another() -> None:
    line = last(create("a", 4, pod="p", result="start-fails"), create("b", 4, pod="p", name="other"))
    assert line["sent"] != {}


# ---------------------------------------------------------------- resizes


def test_a_resize_climbs_and_comes_down_again() -> None:
    sizes = ["8", "12", "20", "30", "60", "100", "4"]
    steps = [{"op": "resize", "id": "a", "cpu_request": n, "cpu_limit": n} for n in sizes]
    _, *lines = run(create("a", 4), *steps)
    levels = ["ccx", "numa", "numa+ccx", "2numa", "socket", "machine", "ccx"]
    assert [line["level"] for line in lines] == levels
    assert [line["cpu_quota"] for line in lines] == [int(n) * 100000 for n in sizes]
    assert [line["cpu_shares"] for line in lines] == [int(n) * 1024 for n in sizes]


def test_a_resize_inside_its_rung_moves_nothing() -> None:
    _, line = run(create("a", 4), {"op": "resize", "id": "a", "cpu_request": "8", "cpu_limit": "8"})
    assert (line["cpus"], line["sent"]) == (CCX[0], {"cpuset_cpus": CCX[0]})


def test_what_a_resize_does_not_name_stays() -> None:
    _, request, limit, lifted = run(
        create("a", 4),
        {"op": "resize", "id": "a", "cpu_request": "2"},
        {"op": "resize", "id": "a", "cpu_limit": "6"},
        {"op": "resize", "id": "a", "cpu_limit": "0"},
    )
    assert (request["cpu_shares"], request["cpu_quota"]) == (2048, 400000)
    assert (limit["cpu_shares"], limit["cpu_quota"]) == (2048, 600000)
    assert (lifted["cpu_quota"], lifted["level"]) == (-1, "numa")


def test_a_refused_resize_changes_nothing() -> None:
    resize = {"op": "resize", "id": "a", "cpu_request": "12", "cpu_limit": "12", "result": "refused"}
    _, before, line, after = run(create("a", 4), STATE, resize, STATE)
    assert line["error"] == "refused by the runtime"
    assert (line["cpu_quota"], line["cpu_shares"]) == (400000, 4096)
    assert line["sent"] == {"cpuset_cpus": NUMA[0]}
    assert (before["containers"], before["free"]) == (after["containers"], after["free"])


def test_a_resize_of_a_container_we_do_not_know_yet_passes_as_it_is() -> None:
    _, line = run(create("a", 4, result="doubt"), {"op": "resize", "id": "a", "cpu_limit": "6"})
    assert (line["sent"], line["cpu_quota"]) == ({}, 600000)


RESIZES_IN_DOUBT = {"doubt": (NUMA[0], 1_200_000), "lost": (CCX[0], 400_000)}


@pytest.mark.parametrize("result", RESIZES_IN_DOUBT)
def test_a_resize_in_doubt_keeps_both_places_until_the_next_look(result: str) -> None:
    cpus, quota = RESIZES_IN_DOUBT[result]
    resize = {"op": "resize", "id": "a", "cpu_request": "12", "cpu_limit": "12", "result": result}
    _, line, open_one, waited, ended = run(create("a", 4), resize, STATE, {"op": "wait", "seconds": 1}, STATE)
    assert (line["cpus"], line["cpu_quota"], line["error"]) == (cpus, quota, "")
    assert line["why"].endswith("in doubt: no answer came back, its place stays reserved")
    machine_free = [state["free"]["the machine"]["free_milli"] for state in (open_one, ended)]
    assert machine_free == [128_000 - 16_000, 128_000 - quota // 100]
    assert (waited["moved"], places(ended)) == ([], {"a": cpus})


# ---------------------------------------------------------------- ends and next attempts


def attempt(number: int, **fields: Any) -> dict[str, Any]:
    return create(f"a{number}", 8, pod="p", name="app", attempt=number, **fields)


HOLDS = {
    "a failure is held for five minutes": (1, 299, True),
    "and no longer": (1, 301, False),
    "an end without error is held for half a minute": (0, 29, True),
    "and not a whole one": (0, 31, False),
}


@pytest.mark.parametrize(("code", "seconds", "held"), HOLDS.values(), ids=HOLDS.keys())
def test_the_place_of_a_container_that_ended_is_held(code: int, seconds: int, held: bool) -> None:
    ended, _, state = run(
        create("a", 8), {"op": "exit", "id": "a", "code": code}, {"op": "wait", "seconds": seconds}, STATE
    )[1:]
    assert ended["cpus"] == CCX[0]
    row = containers(state)["a"]
    assert (row["state"], row["cpus"]) == (("held", CCX[0]) if held else ("exited", ""))
    assert state["free"]["L3 0"]["free_milli"] == (0 if held else 8000)


def test_the_next_attempt_gets_the_held_place_also_after_its_predecessor_is_removed() -> None:
    busy = [create("x", 8), create("y", 8)]
    lines = run(
        attempt(0),
        *busy,
        {"op": "exit", "id": "a0", "code": 1},
        {"op": "remove", "id": "x"},
        attempt(1),
        STATE,
    )
    assert lines[-2]["cpus"] == lines[0]["cpus"]
    assert containers(lines[-1])["a0"] == {**containers(lines[-1])["a0"], "state": "exited", "cpus": ""}


def test_removing_an_old_attempt_keeps_the_new_ones_place() -> None:
    steps = [
        attempt(0),
        {"op": "exit", "id": "a0", "code": 1},
        attempt(2),
        {"op": "remove", "id": "a0"},
        STATE,
    ]
    state = last(*steps)
    assert places(state) == {"a2": CCX[0]}
    assert state["free"]["L3 0"]["free_milli"] == 0


def test_a_held_place_is_the_last_choice_of_others_and_is_given_up_for_them() -> None:
    crowd = [create(f"c{i}", 8) for i in range(16)]
    lines = run(*crowd, {"op": "exit", "id": "c3", "code": 1}, create("new", 8))
    assert lines[-1]["cpus"] == lines[3]["cpus"]
    assert lines[-1]["why"].endswith("the place held for default/pod-of-c3/app was given up")


def test_an_init_container_makes_room_for_the_app() -> None:
    init = create("i", 8, pod="p", name="init", kind="init")
    lines = run(init, {"op": "exit", "id": "i"}, create("a", 8, pod="p", name="app", kind="app"), STATE)
    assert (lines[2]["cpus"], lines[3]["free"]["L3 0"]["free_milli"]) == (CCX[0], 0)


def test_an_exit_that_is_told_twice_counts_once() -> None:
    assert last(create("a", 8), EXIT, {**EXIT, "code": 0})["why"] == "it had ended before"


def test_a_container_that_is_gone_has_no_figures() -> None:
    line = last(create("a", 8), {"op": "remove", "id": "a"})
    assert (line["cpus"], line["cpu_quota"], line["cpu_shares"], line["level"]) == ("", 0, 0, "none")


def test_the_id_of_a_container_that_ended_may_be_used_again() -> None:
    again = {**create("a", 8), "attempt": 1}
    assert places(last(create("a", 8), EXIT, again, STATE)) == {"a": CCX[0]}
