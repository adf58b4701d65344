"""A policy is taken back for signs that came with it, held, and are named by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.agent.commands import HOLD_S, WITHIN_S, AgentMemory, Signs, signs_of
from cluster.agent.spec import PolicyDocument, Spec
from tests.cluster.agent.reports import report

POLICY = PolicyDocument("dense", 1, "h", {}, ("Degraded", "NotReady"))
MEMORY = AgentMemory(Spec(policy=POLICY), POLICY, applied_at_s=1000)


def against(memory: AgentMemory, signs: set[str], held_s: float, age_s: float = 60) -> str:
    found = Signs()
    found.see(frozenset(signs), 0)
    found.see(frozenset(signs), held_s)
    return found.against(memory, held_s, 1000 + age_s)


@pytest.mark.parametrize(
    ("name", "memory", "signs", "held_s", "age_s", "sign"),
    [
        ("held long enough", MEMORY, {"Degraded"}, HOLD_S, 60, "Degraded"),
        ("not yet held long enough", MEMORY, {"Degraded"}, HOLD_S - 1, 60, ""),
        ("nothing is wrong", MEMORY, set(), HOLD_S, 60, ""),
        ("a sign that the policy does not name", MEMORY, {"DoctorErrors"}, HOLD_S, 60, ""),
        (
            "there before it was applied",
            replace(MEMORY, baseline=("Degraded",)),
            {"Degraded"},
            HOLD_S,
            60,
            "",
        ),
        ("long after it was applied", MEMORY, {"Degraded"}, HOLD_S, WITHIN_S, ""),
        ("a clock that went back", MEMORY, {"Degraded"}, HOLD_S, -5, ""),
        ("no policy in force", AgentMemory(), {"Degraded"}, HOLD_S, 60, ""),
        ("taken back already", replace(MEMORY, taken_back="h"), {"Degraded"}, HOLD_S, 60, ""),
        (
            "another policy is asked for by now",
            replace(MEMORY, spec=Spec(policy=replace(POLICY, hash="other"))),
            {"Degraded"},
            HOLD_S,
            60,
            "",
        ),
    ],
)
def test_when_a_policy_goes(
    name: str, memory: AgentMemory, signs: set[str], held_s: float, age_s: float, sign: str
) -> None:
    assert against(memory, signs, held_s, age_s) == sign


def test_a_sign_that_comes_and_goes_has_not_held() -> None:
    found = Signs()
    for second in range(60):
        found.see(frozenset({"Degraded"} if second % 9 else ()), second)
        assert found.against(MEMORY, second, 1060) == ""


@pytest.mark.parametrize(
    ("changes", "trouble", "problems", "signs"),
    [
        ({}, "", None, set()),
        ({}, "away", None, {"NotReady"}),
        ({"machine": None}, "", None, {"NotReady"}),
        ({"degraded": {"a": "b"}}, "", [], {"Degraded"}),
        ({}, "", [{"severity": "warning"}], set()),
        ({}, "", [{"severity": "error"}], {"DoctorErrors"}),
    ],
)
def test_signs(changes: dict[str, Any], trouble: str, problems: Any, signs: set[str]) -> None:
    assert signs_of(report(**changes), trouble, problems) == signs
