"""goresctrl itself beside our reading of an ``rdt`` section: the same schemata on machines made up by chance."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.isolation.model import ResctrlInfo
from tests.isolation.rdt_machines import (
    CASES,
    as_the_kernel_takes,
    described,
    files,
    machine_of_chance,
    mounts,
    resolved,
    section_of_chance,
)
from tests.peers.programs import Unavailable, find

SEEDS = range(200)

Case = tuple[ResctrlInfo, dict[str, Any]]


@pytest.fixture(scope="module")
def goresctrl() -> Path:
    try:
        return find("goresctrl")["goresctrl"]
    except Unavailable as reason:
        pytest.skip(f"The schemata are goresctrl's: {reason}.")


def test_sections_give_the_schemata_that_goresctrl_gives(goresctrl: Path, tmp_path: Path) -> None:
    cases = [case_of_chance(seed) for seed in SEEDS]
    differ, refused = {}, 0
    for seed, (info, document), answer in zip(SEEDS, cases, answers(goresctrl, cases, tmp_path)):
        ours = resolved(document, info)
        if ours.errors or "error" in answer:
            refused += 1
            if not (ours.errors and "error" in answer):
                differ[seed] = (answer, ours, document, info)
            continue
        found = {one.group: one.schemata for one in ours.classes.values() if one.schemata}
        # The root's is told in any case: where no class is the root's it is as it was.
        told = {name: text for name, text in answer["schemata"].items() if name or name in found}
        wanted = {name: as_the_kernel_takes(text, info) for name, text in told.items()}
        if {name: value for name, value in wanted.items() if value} != found:
            differ[seed] = (wanted, found, document, info)
    assert differ == {}
    assert len(SEEDS) / 4 < refused < 3 * len(SEEDS) / 4


def test_the_cases_that_are_kept_are_goresctrls(goresctrl: Path, tmp_path: Path) -> None:
    cases = [(described(case["machine"]), case["section"]) for case in CASES]
    found = answers(goresctrl, cases, tmp_path)
    kept = {case["name"]: case["schemata"] for case in CASES}
    assert kept == {
        case["name"]: {
            name: answer["schemata"][name].splitlines()
            for name in {*answer["schemata"], ""} & case["schemata"].keys()
        }
        for case, answer in zip(CASES, found)
    }


def case_of_chance(seed: int) -> Case:
    chance = random.Random(seed)
    info = machine_of_chance(chance)
    return info, section_of_chance(chance, info)


def answers(goresctrl: Path, cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """What the peer says of each case."""
    folders = [lay_out(folder / str(number), *case) for number, case in enumerate(cases)]
    done = subprocess.run([goresctrl, *folders], capture_output=True, text=True, timeout=120, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases)
    return found


def lay_out(folder: Path, info: ResctrlInfo, document: dict[str, Any]) -> Path:
    """A folder with a machine's resctrl and a configuration, as the peer takes it."""
    for path, text in files(info).items():
        target = folder / "resctrl" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (folder / "mounts").write_text(mounts(str(folder / "resctrl"), info))
    (folder / "config.json").write_text(json.dumps(document))
    return folder
