"""Two checkouts side by side: what differs is found, and nothing else; a number stands for one scenario."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cri_proxy.cli.main import cli
from cri_proxy.config.config import BadConfig
from cri_proxy.simulator.scenario import FIELDS, read_scenario
from tests.config.configs import read
from tests.differential.__main__ import DIFFERENT, EQUAL, NOT_RUN, main
from tests.differential.checkout import Played
from tests.differential.comparison import compare
from tests.differential.scenarios import MACHINES, VARIANTS, Scenario, scenario_of
from tests.machines import UNEVEN_CCX, VM_NO_CACHE_INFO

ROOT = Path(__file__).parents[2]
#: Machines on which scenarios take milliseconds.
SMALL = ("--machine", VM_NO_CACHE_INFO, UNEVEN_CCX, "--python", sys.executable)


def run(before: Path, after: Path, *options: str) -> int:
    return main([str(before), str(after), *SMALL, *options])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout of its own, without what playing scenarios does not need."""
    for package in ("cri_proxy", "policies", "cri_api"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return tmp_path


def change(checkout: Path, path: str, old: str, new: str) -> None:
    file = checkout / path
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


# ---------------------------------------------------------------------- scenarios


def test_a_number_and_a_seed_stand_for_one_scenario() -> None:
    assert scenario_of(1, 5) == scenario_of(1, 5)
    assert len({json.dumps(vars(scenario_of(seed, number))) for seed in (1, 2) for number in range(20)}) == 40


def test_a_scenario_does_not_depend_on_how_texts_are_hashed() -> None:
    program = "from tests.differential.scenarios import *; print([scenario_of(1, n) for n in range(20)])"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_scenarios_can_be_read_and_have_every_step_result_policy_and_machine() -> None:
    scenarios = [scenario_of(1, number) for number in range(150)]
    steps = [step for scenario in scenarios for step in scenario.steps]
    for scenario in scenarios:
        read_scenario(scenario.steps)
        read(scenario.config)
        for name, text in scenario.files.items():
            if scenario.policies[name]:
                read(text)
            else:
                with pytest.raises(BadConfig):
                    read(text)
    assert {step["op"] for step in steps} == FIELDS.keys() - {"state"}
    for op, more in (("create", "start-fails"), ("resize", "lost")):
        results = {step.get("result", "ok") for step in steps if step["op"] == op}
        assert results == {"ok", "refused", "doubt", more}
    assert {policy for s in scenarios for policy in s.policies.values()} == {*VARIANTS, ""}
    assert {s.machine for s in scenarios} == {*MACHINES}


# ---------------------------------------------------------------------- two checkouts


def test_a_checkout_does_what_its_copy_does(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ROOT, copy, "--scenarios", "8", "--whole") == EQUAL
    assert "equal: 8; different: 0" in capsys.readouterr().out.splitlines()


def test_a_changed_rule_of_a_policy_is_found_and_told_by_its_scenario(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(copy, "policies/ladder.py", "best = min(first_sites,", "best = max(first_sites,")
    assert run(ROOT, copy, "--policy", "hygon", "--scenarios", "8") == DIFFERENT
    out = capsys.readouterr().out
    assert "create under hygon: " in out
    number = out.partition("the first is scenario ")[2].partition(",")[0]
    where = out.partition(f"the first is scenario {number}, ")[2].partition(":")[0]
    what = out.partition("before | after: ")[2].partition("\n")[0]
    folder = copy / "written"
    assert run(ROOT, copy, "--policy", "hygon", "--only", number, "--write", str(folder)) == DIFFERENT
    told = capsys.readouterr().out
    assert f"different at {where}, create under hygon; before | after: {what}" in told
    assert "\nbefore: {" in told
    assert "\nafter: {" in told


def test_what_the_files_of_a_scenario_say_by_hand_is_what_was_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ROOT, ROOT, "--only", "3", "--write", str(tmp_path)) == EQUAL
    command = capsys.readouterr().out.splitlines()[1].split()[1:]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0
    assert all(line.startswith("step ") for line in result.stderr.splitlines())
    steps = json.loads((tmp_path / "scenario.json").read_text())
    assert [json.loads(line)["op"] for line in result.stdout.splitlines()] == [step["op"] for step in steps]


def test_an_error_in_the_code_is_a_difference(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(copy, "policies/ladder.py", "best = min(first_sites,", "best = nothing(first_sites,")
    assert run(ROOT, copy, "--policy", "hygon", "--scenarios", "3") == DIFFERENT
    assert "a crash: no | NameError: name 'nothing' is not defined" in capsys.readouterr().out


def test_a_checkout_that_cannot_be_run_is_said(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(ROOT, copy / "policies", "--scenarios", "1") == NOT_RUN
    assert "is no checkout of cri-resmgr" in capfd.readouterr().err
    change(copy, "policies/registry.py", "class PolicyFactory", "klass PolicyFactory")
    assert run(ROOT, copy, "--scenarios", "1") == NOT_RUN
    assert f"the child of {copy} has ended" in capfd.readouterr().err


# ---------------------------------------------------------------------- one step


SCENARIO = Scenario(
    7, VM_NO_CACHE_INFO, "{}", {}, {"": "hygon"}, [{"op": "create", "id": "a"}, {"op": "exit", "id": "a"}]
)
LINE = {"error": "", "why": "", "sent": {}, "moved": []}


def played(cpus: str = "0-3", error: str = "", why: str = "") -> Played:
    row = {"id": "a", "cpus": cpus, "exclusive": "", "mems": "0"}
    containers = [] if error else [row]
    return Played({**LINE, "error": error, "why": why}, {"containers": containers, "invariants": "ok"})


def what_differs(before: Played, after: Played, whole: bool = False) -> str:
    difference = compare(SCENARIO, [before], [after], whole).difference
    return "" if difference is None else difference.what


def test_what_differs_is_told_in_words() -> None:
    assert what_differs(played(), played()) == ""
    assert what_differs(played(), played("0-7")) == "a: cpus 0-3 | 0-7"
    assert what_differs(played(), played(error="no room")) == "refused: no | no room"
    unfit = Played({}, {}, unfit="there is no container 'a'")
    assert what_differs(played(), unfit) == "a step that cannot be run: no | there is no container 'a'"


def test_the_reasons_given_count_only_with_whole() -> None:
    assert what_differs(played(why="by lowest id"), played(why="by share")) == ""
    assert what_differs(played(error="no room"), played(error="there is no room")) == ""
    assert what_differs(played(why="by lowest id"), played(why="by share"), whole=True) == "what is told: why"


def test_steps_that_neither_can_run_are_left_out_of_the_scenario() -> None:
    unfit = Played({}, {}, unfit="there is no container 'a'")
    refused = played(error="no room")
    compared = compare(SCENARIO, [refused, unfit], [refused, unfit], whole=False)
    assert (compared.difference, compared.steps) == (None, SCENARIO.steps[:1])
    assert compared.outcomes == {("create", "refused by the policy"): 1}


def test_only_the_first_step_that_differs_is_told() -> None:
    difference = compare(SCENARIO, [played(), played()], [played("4"), played("5")], whole=False).difference
    assert difference is not None
    assert (difference.step, difference.op, difference.policy) == (0, "create", "hygon")
