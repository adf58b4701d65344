"""The bench of placements: its sequences, what it counts, and how it drives other programs."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.placement import rivals
from bench.placement.judge import Given, Tally
from bench.placement.machines import MACHINES
from bench.placement.placers import Kubelet, Ours, play
from bench.placement.search import fewest, search
from bench.placement.sequences import (
    ALL_KINDS,
    BURSTABLE,
    EXCLUSIVE,
    LIMITS,
    MIXED,
    OWNING,
    Create,
    Delete,
    Step,
    request_of,
    scheduled,
)
from cri_proxy.config.config import SettingsSource, read_config
from policies.machine.cpus import NO_CPUS, parse_cpus
from tests.agent import ROOT

#: Two sockets of four NUMA nodes of two L3s of four cores: 0-3,64-67 is the first L3, 0-7,64-71 the first node.
MACHINE = MACHINES[0]
TREE = MACHINE.topology()


def given(cpus: str, owned: str = "", mems: str = "0") -> Given:
    return Given(parse_cpus(cpus), parse_cpus(owned), parse_cpus(mems))


def counted(create: Create, found: Given, others: str = "") -> set[str]:
    """What is counted of one create, without how many there were."""
    tally = Tally()
    tally.made(TREE, create, found, parse_cpus(others))
    return {key for key, value in vars(tally).items() if value and key not in ("created", "owners")}


@pytest.mark.parametrize(
    ("create", "found", "others", "expected"),
    [
        (Create(0, EXCLUSIVE, 4), given("1-2,65-66", "1-2,65-66"), "", set()),
        (
            Create(0, EXCLUSIVE, 4),
            given("1,4,65,68", "1,4,65,68"),
            "",
            {"l3s", "l3s_avoidable", "wide_l3s", "wide_l3s_avoidable"},
        ),
        (
            Create(0, EXCLUSIVE, 4),
            given("1,4,65,68", "1,4,65,68"),
            "2-3,66-67,5-63,69-127",
            {"l3s", "wide_l3s"},
        ),
        (
            Create(0, EXCLUSIVE, 2),
            given("1,8", "1,8", "0-1"),
            "65",
            {"l3s", "l3s_avoidable", "nodes", "nodes_avoidable", "split"}
            | {"wide_l3s", "wide_l3s_avoidable", "wide_nodes", "wide_nodes_avoidable"},
        ),
        (Create(0, EXCLUSIVE, 2), given("1,65", "1"), "", {"shared"}),
        (Create(0, EXCLUSIVE, 2), given("1,65", "1,65"), "65", {"shared"}),
        (Create(0, MIXED, 2), given("1,65,2", "1,65"), "", set()),
        (
            Create(0, MIXED, 7),
            given("1-8,65", "1-3,5-7,65", "0-1"),
            "",
            {"l3s", "l3s_avoidable", "wide_l3s", "wide_l3s_avoidable", "wide_nodes", "wide_nodes_avoidable"},
        ),
        (Create(0, BURSTABLE, 8), given("4-7,68-71"), "", set()),
        (Create(0, BURSTABLE, 8), given("4-7,68-70"), "", {"few"}),
        (Create(0, BURSTABLE, 2), given("1,65", mems="0-1"), "", {"mems"}),
    ],
    ids=[
        "one L3",
        "two L3s for what fits in one",
        "two L3s, as none has enough left",
        "two nodes, and beside another owner",
        "too few of its own",
        "another owns one of them",
        "mixed",
        "mixed, wide",
        "a limit's L3",
        "fewer than the limit",
        "memory of a node without its CPUs",
    ],
)
def test_what_is_counted(create: Create, found: Given, others: str, expected: set[str]) -> None:
    assert counted(create, found, others) == expected


def test_a_refused_create_is_counted_as_such() -> None:
    tally = Tally()
    tally.made(TREE, Create(0, EXCLUSIVE, 4), None, NO_CPUS)
    assert (tally.created, tally.owners, tally.refused, tally.shared) == (1, 1, 1, 0)


def test_of_those_that_stay_the_changed_ones_are_counted() -> None:
    tally = Tally()
    tally.passed(
        {0: given("0-3"), 1: given("4-5"), 2: given("6-7")},
        {0: given("0-2"), 1: given("4-5"), 3: given("6-7")},
    )
    assert (tally.beside_running, tally.changed) == (2, 1)


@pytest.mark.parametrize("draw", [OWNING, LIMITS, ALL_KINDS], ids=["owning", "limits", "all kinds"])
def test_sequences_are_the_same_for_the_same_seed(draw) -> None:
    assert draw.sequences(3) == draw.sequences(3) != draw.sequences(4)
    creates = [step for steps in draw.sequences(3) for step in steps if isinstance(step, Create)]
    assert {create.kind for create in creates} == {*draw.kinds}
    assert min(c.cpus for c in creates) >= 1 and max(c.cpus for c in creates) <= draw.largest


def test_what_does_not_fit_beside_the_others_reaches_no_node() -> None:
    steps: list[Step] = [
        Create(0, EXCLUSIVE, 4),
        Create(1, MIXED, 4),
        Create(2, BURSTABLE, 8),
        Delete(1),
        Delete(0),
        Create(3, EXCLUSIVE, 4),
    ]
    assert scheduled(steps, 8000) == [steps[0], steps[2], steps[4], steps[5]]


def test_a_request_says_what_kubelet_would_say() -> None:
    resources = request_of(Create(7, BURSTABLE, 3)).config.linux.resources
    assert (resources.cpu_shares, resources.cpu_quota) == (1536, 300_000)
    pod = request_of(Create(7, MIXED, 3)).sandbox_config
    assert (pod.metadata.name, pod.linux.cgroup_parent) == ("pod-7", "/kubepods/poduid-7")


def test_the_best_that_is_found_leaves_those_out_that_own_nothing() -> None:
    steps: list[Step] = [Create(0, BURSTABLE, 8), Create(1, EXCLUSIVE, 6), Create(2, EXCLUSIVE, 6)]
    assert search(steps, [8, 8], 8, goal=2) == 0
    assert fewest([3, 8, 4], 9) == 2


@pytest.mark.parametrize("policy", [*rivals.PROGRAMS])
def test_both_read_one_configuration(policy: str) -> None:
    text = rivals.configuration(policy, parse_cpus("0,64"), allocatorTopologyBalancing=True)
    assert read_config([SettingsSource("bench", text)], strict=True).config["policy.Active"] == policy


async def test_our_engine_gives_each_kind_what_it_is_to_have_and_is_empty_after_it() -> None:
    ours = Ours(TREE, rivals.configuration("topology-aware", TREE.core_mates(0)))
    tally = Tally()
    steps: list[Step] = [Create(0, EXCLUSIVE, 4), Create(1, MIXED, 3), Create(2, BURSTABLE, 8), Delete(0)]
    for step in steps[:3]:
        assert isinstance(step, Create)
        await ours.create(step)
    owned: Mapping[int, int] = {number: len(found.owned) for number, found in ours.given().items()}
    assert owned == {0: 4, 1: 3, 2: 0}
    for number in (0, 1, 2):
        await ours.remove(number)
    await play(ours, TREE, steps, tally)
    assert (tally.created, tally.owners, tally.refused, tally.wide_l3s) == (3, 2, 0, 0)
    assert not ours.given()


async def test_kubelets_algorithm_gives_whole_l3s_and_takes_them_back() -> None:
    kubelet = Kubelet(MACHINE, TREE)
    await kubelet.create(Create(0, EXCLUSIVE, 8))
    assert kubelet.given()[0] == given("4-7,68-71", "4-7,68-71", "0")
    await kubelet.remove(0)
    assert not kubelet.given()


def program(folder: Path, *lines: str) -> Path:
    path = folder / "program"
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_a_process_that_asks_for_nothing_has_containers_on_all_cpus(tmp_path: Path) -> None:
    """It is a plugin that answers every call: what is noted is what it was asked for."""
    told = 'for word; do case $word in --nri-socket=*) socket=${word#*=};; esac; done; cd "' + str(ROOT) + '"'
    path = program(tmp_path, told, f"exec {sys.executable} -m bench.nri_plugin $socket 90-idle")
    async with rivals.running("balloons", path, "", TREE, tmp_path, tmp_path) as rival:
        await rival.create(Create(5, EXCLUSIVE, 2))
        assert rival.given() == {5: Given(TREE.online, TREE.online)}
        await rival.remove(5)
        assert not rival.given()


async def test_a_process_that_ends_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(rivals.RivalEnded, match="no such machine"):
        async with rivals.running(
            "balloons", program(tmp_path, "echo no such machine", "exit 1"), "", TREE, tmp_path, tmp_path
        ):
            pass
