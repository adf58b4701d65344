"""What a node would say in status and log besides: a simulation says it, at the step with which it begins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cri_proxy.simulator.replay import simulate
from tests.agent import ROOT
from tests.config.configs import read
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S, machine, write_sysfs
from tests.simulator.simulations import STATE, create

WAIT = {"op": "wait", "seconds": 1}

#: The configuration, what the reader of the machine said, and the notes of the first step.
NOTES: dict[str, tuple[str, Sequence[str], list[str]]] = {
    "all is well": ("{}", (), ["policy hygon, usable CPUs 0-127, reserved none"]),
    "CPUs that are chosen": (
        "policy: {ReservedResources: {CPU: 1500m}}", (), ["policy hygon, usable CPUs 0-127, reserved 0,64"],
    ),
    "a key that is not known": (
        "policy: {Actve: none}", (),
        ["policy hygon, usable CPUs 0-127, reserved none", "c.yaml:1: unknown key policy.Actve"],
    ),
    "reserved CPUs that cut a core": (
        "policy: {ReservedResources: {CPU: 'cpuset:0'}}", (),
        ["policy hygon, usable CPUs 0-127, reserved 0", "the reserved cpuset 0 cuts physical cores: CPUs 64 share"],
    ),
    "reserved CPUs that are not there": (
        "policy: {ReservedResources: {CPU: 'cpuset:0,64,128'}}", (),
        ["policy hygon, usable CPUs 0-127, reserved 0,64", "reserved CPUs 128 are not usable here"],
    ),
    "all CPUs are reserved": (
        "policy: {ReservedResources: {CPU: 500}}", (),
        ["policy hygon, usable CPUs 0-127, reserved 0-127", "every usable CPU is reserved; others will use them too"],
    ),
    "no available CPU is there": (
        "policy: {AvailableResources: {CPU: 'cpuset:128-130'}}", (),
        ["policy hygon, usable CPUs 0-127, reserved none", "no CPU of AvailableResources is one of kubelet's cgroup"],
    ),
    "a cgroup that is not there": (
        "policy: {AvailableResources: {CPU: 'cgroup:/ours'}}", (),
        ["policy hygon, usable CPUs 0-127, reserved none",
         "policy.AvailableResources.CPU names the cgroup /ours, which has no cpuset; it counts as not given"],
    ),
    "a machine with holes": (
        "policy: {Active: balloons}", ("cpu3 tells nothing.",),
        ["policy balloons, usable CPUs 0-127, reserved none", "cpu3 tells nothing."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_a_node_would_say_is_said_once(name: str) -> None:
    text, warnings, wanted = NOTES[name]
    steps = [create("a", 2), STATE, WAIT]
    first, state, last = simulate(machine(HYGON_7285_2S), read(text), steps, read, warnings)
    assert len(first["notes"]) == len(wanted), first["notes"]
    assert all(told.startswith(word) for told, word in zip(first["notes"], wanted)), first["notes"]
    assert (state["notes"], last["notes"]) == ([], [])


def test_another_configuration_and_other_cpus_say_what_is_news() -> None:
    texts = {
        "half.yaml": "policy: {AvailableResources: {CPU: 'cpuset:0-63'}, ReservedResources: {CPU: 'cpuset:0'}}",
        "typo.yaml": "policy: {AvailableResources: {CPU: 'cpuset:0-63'}, ReservedResources: {CPU: 'cpuset:0'}, Actve: x}",
    }
    steps = [
        WAIT,
        {"op": "config", "file": "half.yaml"},
        {"op": "config", "file": "typo.yaml"},
        {"op": "cpus", "offline": "1"},
        {"op": "config", "file": "half.yaml"},
    ]
    lines = list(simulate(machine(MONOLITHIC_2S), read("{}"), steps, lambda name: read(texts[name])))
    _, half, typo, offline, back = (line["notes"] for line in lines)
    assert half[0] == "policy hygon, usable CPUs 0-63, reserved 0"
    assert half[1:] == ["the reserved cpuset 0 cuts physical cores: CPUs 32 share a core with it"]
    assert len(typo) == 1 and "unknown key policy.Actve" in typo[0]
    assert offline == ["policy hygon, usable CPUs 0,2-63, reserved 0"]
    assert back == []


def test_the_state_has_what_status_says_of_the_engine() -> None:
    steps = [create("a", 2), {"op": "drift", "id": "a", "cpus": "9"}, STATE]
    *_, state = simulate(machine(HYGON_7285_2S), read("policy: {ReservedResources: {CPU: 1}}"), steps, read)
    status = state["status"]
    assert (status["policy"], status["reserved"]) == ("hygon", "0,64")
    assert status["containers"] == {"placed": 1}
    assert status["invariants"] == []


def test_the_command_says_it_on_stderr_and_in_its_lines(tmp_path: Path) -> None:
    root = write_sysfs(MONOLITHIC_2S, tmp_path)
    (root / "devices/system/node/node1/distance").unlink()
    scenario, config = tmp_path / "scenario.json", tmp_path / "config.yaml"
    scenario.write_text(json.dumps([create("a", 2), WAIT]))
    config.write_text("policy: {Actve: none}\n")
    options = ["--topology", str(root), "--config", str(config)]
    command = [sys.executable, "-m", "cri_proxy", "simulate", *options, str(scenario)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    cpus, typo, hole = first["notes"]
    assert cpus == "policy hygon, usable CPUs 0-63, reserved none"
    assert "unknown key policy.Actve" in typo
    assert "node1/distance does not exist" in hole
    assert second["notes"] == []
    assert done.stderr.splitlines() == [f"step 0: {note}" for note in first["notes"]]
