"""The reference driver beside ours: the claims that both get, L3s that are counted, calls in an audit log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.dra.audit import counted, is_of_claims, read_calls, shown, step_times
from bench.dra.sequences import Come, Go, Tally, l3s, needed, sequence
from tests.machines import HYGON_7285_2S, machine

MACHINE = machine(HYGON_7285_2S)


def test_claims_come_and_go_the_same_way_for_the_same_seed() -> None:
    made = sequence(7, 4, 128, 0.75, 0.5)
    assert made == sequence(7, 4, 128, 0.75, 0.5) != sequence(8, 4, 128, 0.75, 0.5)
    assert len(made) == 4 and {type(step) for step in made[0]} == {Come}


def test_claims_leave_as_much_as_they_are_to_and_fill_it_again() -> None:
    live: dict[str, int] = {}
    for number, steps in enumerate(sequence(7, 6, 128, 0.75, 0.5)):
        kinds = [type(step) for step in steps]
        assert kinds == sorted(kinds, key=lambda kind: kind is Come)
        for step in steps:
            if isinstance(step, Go):
                del live[step.name]
        assert number == 0 or 64 - 8 < sum(live.values()) <= 64
        live.update({step.name: step.cpus for step in steps if isinstance(step, Come)})
        assert 96 <= sum(live.values()) < 96 + 8


@pytest.mark.parametrize(("cpus", "count"), [({0, 1, 64, 65}, 1), ({0, 4}, 2), (range(128), 16), ((), 0)])
def test_the_l3s_of_cpus_are_counted(cpus: Any, count: int) -> None:
    assert l3s(frozenset(cpus), MACHINE) == count


@pytest.mark.parametrize(("cpus", "count"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_cpus_need_as_many_l3s_as_they_fill(cpus: int, count: int) -> None:
    assert needed(cpus, MACHINE) == count


@pytest.mark.parametrize(
    ("given", "cell"),
    [
        ([1, 1, 1], "3 of 3"),
        ([1, 2, None], "1 of 3, 1 over 2, 1 refused"),
        ([2, 3, 2], "0 of 3, 3 over 2 to 3"),
        ([], "0 of 0"),
    ],
)
def test_a_cell_says_how_many_have_no_more_l3s_than_they_need(given: list[Any], cell: str) -> None:
    assert Tally(given).cell(1) == cell


def line(verb: str, resource: str, second: int, name: str = "", **said: Any) -> str:
    of, _, sub = resource.partition("/")
    when = f"2026-11-30T10:00:{second:02}.500000Z"
    usual = {
        "stage": "ResponseComplete",
        "verb": verb,
        "userAgent": "dracpu/v0.0.0 (linux/amd64)",
        "user": {"username": "dra.cpu"},
        "objectRef": {"resource": of, "subresource": sub, "name": name},
        "requestReceivedTimestamp": when,
        "stageTimestamp": when,
    }
    return json.dumps({**usual, **said})


BEGAN_S = 1_796_032_800.0


def test_calls_are_counted_by_program_account_and_time() -> None:
    lines = [
        line("create", "resourceslices", 1),
        line("get", "resourceclaims", 2),
        line("watch", "resourceslices", 3, stage="ResponseStarted"),
        line("watch", "resourceslices", 4),  # its end
        line("patch", "resourceclaims/status", 5),
        line("create", "events", 5, userAgent="kubelet/v1.36.3"),
        line("create", "events", 5, user={"username": "other"}),
        line("update", "resourceslices", 30),
        line("get", "", 5, objectRef=None),
        '{"kind": "Ev',
    ]
    found = counted(read_calls(lines), "dracpu", "dra.cpu", BEGAN_S, BEGAN_S + 20)
    assert all(is_of_claims(what) for what in found)
    assert not is_of_claims("patch leases")
    assert shown(found, True) == "1 create resourceslices, 1 patch resourceclaims/status"
    assert shown(found, False) == "1 get resourceclaims, 1 watch resourceslices"
    assert shown({}, True) == "none"


def test_a_pods_steps_are_found_by_its_name_and_its_claims() -> None:
    scheduler = {"userAgent": "kube-scheduler/v1.36.3"}
    lines = [
        line("create", "pods/binding", 1, "pod-1", **scheduler),  # of an earlier pod of that name
        line("patch", "resourceclaims/status", 11, "pod-1-cpus-x", **scheduler),
        line("create", "pods/binding", 12, "pod-1", **scheduler),
        line("create", "pods/binding", 12, "pod-10", **scheduler),
        line("get", "resourceclaims", 13, "pod-1-cpus-x"),
        line("get", "resourceclaims", 14, "pod-1-cpus-x"),
    ]
    found = step_times(read_calls(lines), "pod-1", BEGAN_S + 10)
    assert [each - BEGAN_S for each in found] == [11.5, 12.5, 13.5]
    assert step_times([], "pod-1", 0) == (0, 0, 0)
