"""The simulation, as the node changes: CPUs, restarts of the daemon, other writers of cpusets, time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.config.config import BadConfig
from cri_proxy.simulator.replay import BadScenario, run_simulation, simulate
from policies.machine.cpus import parse_cpus
from tests.machines import HYGON_7285_2S, KUNPENG_48_2S, machine
from tests.simulator.simulations import (
    CCX,
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

CROWD = [
    create("small", 2, memory_limit="1Gi"),
    create("ccx", 8),
    create("node", 16, memory_limit="40Gi"),
    create("wide", 20),
    create("idle"),
    kubelets("own", "60-61", 2),
]

# ---------------------------------------------------------------- the state


def test_the_state_shows_every_container_and_every_domain() -> None:
    pod = {"op": "pod", "id": "p", "cpu_request": "4"}
    state = last(pod, create("a", 4, pod="p", name="app", memory_limit="1Gi"), STATE)
    assert state["containers"] == [
        {
            "id": "a",
            "pod": "p",
            "name": "app",
            "cpus": CCX[0],
            "mems": "0",
            "exclusive": "",
            "level": "ccx",
            "state": "running",
        }
    ]
    assert state["free"]["L3 0"] == {"cpus": CCX[0], "free_milli": 4000}
    assert state["free"]["NUMA node 0"] == {"cpus": NUMA[0], "free_milli": 12000}
    large = ["the machine", "socket 0", "socket 1"]
    small = [f"NUMA node {i}" for i in range(8)] + [f"L3 {i}" for i in range(16)]
    assert list(state["free"]) == large + small


def test_free_cpus_are_those_for_anybody() -> None:
    state = last(kubelets("k", "0-3", 4), STATE, text="policy: {ReservedResources: {CPU: '4,68'}}")
    assert state["free"]["L3 0"]["cpus"] == "64-67"
    assert state["free"]["L3 1"]["cpus"] == "5-7,69-71"


# ---------------------------------------------------------------- CPUs go and come


def test_when_cpus_return_everybody_has_the_first_place_again() -> None:
    before, gone, back, after = run(
        *CROWD, STATE, {"op": "cpus", "offline": "0-3,9"}, {"op": "cpus", "online": "0-3,9"}, STATE
    )[-4:]
    assert gone["why"] == "online: 4-8,10-127"
    assert moves(gone)["small"] == "64-67"
    assert {row["id"] for row in gone["moved"]} == {row["id"] for row in back["moved"]}
    assert (before["containers"], before["free"]) == (after["containers"], after["free"])


def test_a_container_without_cpus_is_placed_anew_and_returns() -> None:
    _, gone, back = run(
        create("a", 4), {"op": "cpus", "offline": CCX[0]}, {"op": "cpus", "online": CCX[0], "offline": ""}
    )
    (moved,) = gone["moved"]
    assert (moved["level"], moved["cpus"]) == ("ccx", CCX[1])
    assert moves(back) == {"a": CCX[0]}


def test_the_last_cpu_cannot_go_offline() -> None:
    _, line, state = run(create("a", 4), {"op": "cpus", "offline": "0-127"}, STATE)
    assert line["error"] == "every CPU of the machine is offline"
    assert places(state) == {"a": CCX[0]}


# ---------------------------------------------------------------- restarts of the daemon


def test_a_restart_that_finds_its_state_changes_nothing_at_all() -> None:
    steps = [
        *CROWD,
        create("dead", 4),
        {"op": "exit", "id": "dead", "code": 1},
        {"op": "wait", "seconds": 10},
    ]
    before, line, after = run(*steps, STATE, {"op": "restart", "state": "kept"}, STATE)[-3:]
    assert (line["moved"], line["why"]) == ([], "the state was kept")
    assert (before["containers"], before["free"]) == (after["containers"], after["free"])


def test_holds_distrust_and_the_clock_go_on_through_a_restart() -> None:
    failed = create("f", 4, pod="p", name="app", result="start-fails")
    again = create("g", 4, pod="p", name="app", attempt=1)
    restart, wait = {"op": "restart"}, {"op": "wait", "seconds": 150}
    steps = [create("a", 8), {"op": "exit", "id": "a", "code": 1}, failed, wait, restart, STATE, again]
    *_, state, untouched = run(*steps)
    assert containers(state)["a"]["state"] == "held"
    assert untouched["sent"] == {}
    assert containers(last(*steps, wait, STATE))["a"]["state"] == "exited"


def test_a_create_in_doubt_is_found_after_a_restart() -> None:
    line = last(create("a", 4, result="doubt"), {"op": "restart", "state": "kept"})
    assert line["why"] == "the state was kept; bound: a"


@pytest.mark.parametrize("state", ["lost", "corrupt"])
def test_without_its_state_it_adopts_what_runs_and_moves_nothing(state: str) -> None:
    steps = [*CROWD, create("dead", 4), {"op": "exit", "id": "dead", "code": 1}]
    before, line, after = run(*steps, STATE, {"op": "restart", "state": state}, STATE)[-3:]
    assert line["moved"] == []
    assert line["why"].endswith("; adopted: small, ccx, node, wide, idle, own")
    assert {**places(before), "dead": ""} == places(after)
    assert containers(after)["own"]["exclusive"] == "60-61"
    assert {row["level"] for row in after["containers"]} == {"none"}


def test_a_corrupt_state_is_set_aside_even_if_there_is_hardly_any() -> None:
    assert last({"op": "restart", "state": "corrupt"})["why"].startswith("the state was set aside: ")


def test_adopted_containers_are_charged_and_make_room_for_kubelets_own() -> None:
    lost, taken = {"op": "restart", "state": "lost"}, kubelets("k", "0-1", 2)
    steps = [create("a", 4), create("b", 6), lost, create("c", 6), taken]
    lines = run(*steps)
    assert lines[3]["cpus"] == CCX[2]
    assert moves(lines[4]) == {"a": "2-3,64-67"}


def test_the_pod_of_an_adopted_container_keeps_its_runtime_handler() -> None:
    kata = {"op": "pod", "id": "p", "runtime_handler": "kata"}
    lost = {"op": "restart", "state": "lost"}
    assert last(kata, create("a", 4, pod="p"), lost, create("b", 4, pod="p"))["sent"] == {}


def test_what_kubelet_gave_back_is_shared_again_after_a_restart() -> None:
    lost, gone = {"op": "restart", "state": "lost"}, {"op": "exit", "id": "k"}
    lines = run(create("a", 4), kubelets("k", "0-1", 2), {"op": "restart"}, gone)
    assert (moves(lines[2]), moves(lines[3])) == ({}, {"a": CCX[0]})
    assert last(kubelets("k", "0-1", 2), lost, gone, create("a", 4))["cpus"] == CCX[0]


# ---------------------------------------------------------------- other writers


def test_a_changed_cpuset_is_repaired() -> None:
    line = last(create("a", 4), {"op": "drift", "id": "a", "cpus": "9"})
    assert (line["cpus"], line["sent"]) == (CCX[0], {"cpuset_cpus": CCX[0]})
    assert line["why"] == "repaired: its cpuset had been changed"


def drifts(waits: int) -> list[dict[str, Any]]:
    return [{"op": "drift", "id": "a", "cpus": "9"}, {"op": "wait", "seconds": waits}] * 4


def test_a_cpuset_that_changes_back_three_times_within_a_minute_is_somebody_elses() -> None:
    *_, line, _, state = run(create("a", 4), *drifts(10), STATE)
    assert (line["cpus"], line["sent"], line["level"]) == ("9", {}, "none")
    assert line["why"] == "left alone from now on: another writer keeps changing its cpuset"
    assert state["free"]["L3 2"]["free_milli"] == 4000
    assert state["free"]["L3 0"]["free_milli"] == 8000


def test_a_cpuset_that_changes_now_and_then_is_repaired_each_time() -> None:
    assert all(line["cpus"] == CCX[0] for line in run(create("a", 4), *drifts(61))[1::2])


DRIFTS_NOT_OURS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "the same CPUs": ([create("a", 4)], CCX[0]),
    "an adopted container": ([create("a", 4), {"op": "restart", "state": "lost"}], "8-9"),
    "an opted-out container": (
        [{"op": "pod", "id": "pod-of-a", "runtime_handler": "kata"}, create("a", 4)],
        "8-9",
    ),
}


@pytest.mark.parametrize(("steps", "cpus"), DRIFTS_NOT_OURS.values(), ids=DRIFTS_NOT_OURS.keys())
def test_what_is_not_ours_or_has_not_changed_is_not_repaired(steps: list[dict[str, Any]], cpus: str) -> None:
    line = last(*steps, {"op": "drift", "id": "a", "cpus": cpus})
    assert (line["cpus"], line["sent"]) == (cpus, {})
    assert line["why"].startswith("nothing to repair")


def test_a_container_that_has_ended_has_no_cpuset_to_change() -> None:
    line = last(create("a", 4), {"op": "exit", "id": "a", "code": 1}, {"op": "drift", "id": "a", "cpus": "9"})
    assert (line["cpus"], line["sent"]) == (CCX[0], {})


# ---------------------------------------------------------------- configuration


def test_a_new_configuration_moves_nothing_that_need_not_move() -> None:
    files = {"b.yaml": "placement: {ladder: fine, besteffort: ccx}"}
    line, after = run(*CROWD, {"op": "config", "file": "b.yaml"}, create("later"), files=files)[-2:]
    assert (line["moved"], line["why"]) == ([], "mode enforce, policy hygon")
    assert after["level"] == "ccx"


def test_the_ladder_may_turn_fine_and_back_where_clusters_of_cores_are_known() -> None:
    files = {"fine.yaml": "placement: {ladder: fine}", "manual.yaml": "{}"}
    lines = run(
        create("a", 2),
        {"op": "config", "file": "fine.yaml"},
        create("b", 2),
        create("c", 6),
        {"op": "config", "file": "manual.yaml"},
        create("d", 2),
        {"op": "resize", "id": "b", "cpu_request": "3", "cpu_limit": "3"},
        on=KUNPENG_48_2S,
        files=files,
    )
    placed = {line["id"]: (line["level"], len(parse_cpus(line["cpus"]))) for line in lines if line["id"]}
    assert placed == {"a": ("ccx", 24), "b": ("ccx", 24), "c": ("ccx", 24), "d": ("ccx", 24)}
    assert (lines[2]["level"], lines[2]["cpus"]) == ("cluster", "24-27")
    assert not any(line["moved"] for line in lines)


def test_reserved_cpus_are_taken_from_those_who_may_not_use_them() -> None:
    files = {"b.yaml": "policy: {ReservedResources: {CPU: 'cpuset:0,64'}}"}
    line, system = run(
        create("a", 4),
        {"op": "config", "file": "b.yaml"},
        create("s", 1, namespace="kube-system"),
        files=files,
    )[1:]
    assert moves(line) == {"a": "1-3,65-67"}
    assert (system["cpus"], system["level"]) == ("0,64", "reserved")


def test_a_bad_configuration_leaves_the_one_before_in_force() -> None:
    files = {"b.yaml": "placement: {ladder: steep}"}
    line, after = run({"op": "config", "file": "b.yaml"}, create("a", 4), files=files)
    assert line["error"].startswith("the configuration before it stays: ")
    assert after["cpus"] == CCX[0]


def test_a_configuration_that_cannot_be_read_is_an_error_of_the_scenario() -> None:
    def load(name: str) -> Any:
        raise FileNotFoundError(2, "No such file", name)

    lines = simulate(machine(HYGON_7285_2S), config(), [{"op": "config", "file": "b.yaml"}], load)
    with pytest.raises(BadScenario, match=r"step 0 .*'file'.*No such file"):
        next(lines)


def test_intels_form_is_a_configuration() -> None:
    text = json.dumps(
        {
            "policy": {
                "Active": "topology-aware",
                "ReservedResources": {"CPU": "cpuset:0"},
                "AvailableResources": {"CPU": "cpuset:1-15"},
            }
        }
    )
    assert parse_cpus(last(create("a", 4), text=text)["cpus"]) <= set(range(1, 16))


MODES = {
    "observe": ("observe", "mode observe, nothing is sent: "),
    "off": ("'off'", "mode off: requests pass as they are"),
}


@pytest.mark.parametrize(("mode", "why"), MODES.values(), ids=MODES.keys())
def test_other_modes_touch_nothing(mode: str, why: str) -> None:
    resize = {"op": "resize", "id": "a", "cpu_limit": "12"}
    others = [
        create("b", 4, result="refused"),
        create("c", 4, result="doubt"),
        create("d", 4, result="start-fails"),
    ]
    ends = [{"op": "exit", "id": "a"}, {"op": "remove", "id": "a"}, {"op": "remove-pod", "id": "pod-of-a"}]
    drift, restart = {"op": "drift", "id": "a", "cpus": "9"}, {"op": "restart", "state": "kept"}
    lines = run(create("a", 4), resize, drift, restart, *others, *ends, text=f"relay: {{mode: {mode}}}")
    assert lines[0]["why"].startswith(why)
    assert [line["cpus"] for line in lines[:3]] == ["", "", "9"]
    assert all(line["sent"] == {} and line["moved"] == [] for line in lines)


def test_a_daemon_switched_on_adopts_what_came_meanwhile() -> None:
    files = {"on": "{}", "off": "relay: {mode: 'off'}"}
    steps = [{"op": "config", "file": "off"}, create("a", 4), {"op": "config", "file": "on"}, create("b", 4)]
    *_, line, after = run(*steps, files=files)
    assert line["why"] == "mode enforce, policy hygon; adopted: a"
    assert after["sent"] != {}


@pytest.mark.parametrize("mode", ["observe", "'off'"])
def test_a_daemon_switched_on_again_follows_what_was_resized_meanwhile(mode: str) -> None:
    files = {"on": "{}", "other": f"relay: {{mode: {mode}}}"}
    resize = {"op": "resize", "id": "a", "cpu_limit": "12"}
    made, _, resized, line = run(
        create("a", 4), {"op": "config", "file": "other"}, resize, {"op": "config", "file": "on"}, files=files
    )
    assert (resized["cpus"], resized["moved"]) == (made["cpus"], [])
    assert line["why"] == "mode enforce, policy hygon; resized: a"
    [moved] = line["moved"]
    assert (moved["id"], moved["level"]) == ("a", "numa")


def test_policy_none_places_nothing() -> None:
    line = last(create("a", 4), text="policy: {Active: none}")
    assert (line["sent"], line["level"], line["error"]) == ({}, "none", "")


# ---------------------------------------------------------------- time and traffic (test_replay_affinity.py has plans)


def test_traffic_takes_ten_seconds_and_moves_nothing() -> None:
    ended = {"op": "exit", "id": "c", "code": 0}
    traffic = {"op": "traffic", "edges": [{"a": "a", "b": "b", "bytes_per_s": 1e6, "msgs_per_s": 1e3}]}
    lines = run(
        create("a", 4), create("b", 4), create("c", 4), ended, traffic, STATE, traffic, traffic, STATE
    )
    assert (lines[4]["why"], lines[4]["moved"]) == ("10 s of traffic were seen", [])
    # An end without error is held for half a minute.
    assert [containers(line)["c"]["state"] for line in (lines[5], lines[-1])] == ["held", "exited"]


def test_rebalance_says_that_nothing_moves() -> None:
    line = last(create("a", 4), {"op": "rebalance"})
    assert line["why"].startswith("no better placement than the present one was found")
    assert line["moved"] == []


# ---------------------------------------------------------------- the same, to the byte

EVERYTHING: list[Mapping[str, Any]] = [
    {"op": "pod", "id": "p", "labels": {"b": "1", "a": "2"}, "annotations": {"y": "1", "x": "2"}},
    create("first", 4, pod="p", labels={"l": "1", "k": "2"}, devices=["0000:41:00.0"]),
    *CROWD,
    create("f", 4, result="start-fails"),
    create("d", 4, result="doubt"),
    create("r", 4, result="refused"),
    {"op": "exit", "id": "ccx", "code": 1},
    {"op": "cpus", "offline": "0-7,64-71"},
    {"op": "drift", "id": "small", "cpus": "1"},
    {"op": "wait", "seconds": 1.5},
    {"op": "restart", "state": "kept"},
    STATE,
    {"op": "restart", "state": "corrupt"},
    {"op": "remove-pod", "id": "p"},
    {"op": "cpus", "online": "0-7,64-71"},
    STATE,
]


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    script = (
        "import json, sys; from tests.simulator.simulations import config; from tests.machines import machine;"
        "from cri_proxy.simulator.replay import run_simulation;"
        "print('\\n'.join(run_simulation(machine('hygon-7285-2s'), config(), json.load(sys.stdin), config)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(EVERYTHING),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    here = "".join(
        f"{line}\n" for line in run_simulation(machine(HYGON_7285_2S), config(), EVERYTHING, config)
    )
    assert outputs == {here}


def test_bad_configuration_is_the_loaders_to_raise() -> None:
    with pytest.raises(BadConfig):
        config("placement: {ladder: steep}")


def test_huge_pages_of_a_described_machine_are_followed() -> None:
    data = replace(machine(HYGON_7285_2S), hugepages={6: {2 << 20: 512}})
    scenario = [create("a", 2, memory_limit="1Gi", hugepages=["2MB"]), create("b", 2, memory_limit="1Gi")]
    first, second = simulate(data, config(), scenario, config)
    assert (first["sent"]["cpuset_mems"], second["sent"]["cpuset_mems"]) == ("0,6", "0")
