"""Traffic and plans in the simulation: who talks comes together, and whoever comes later is placed with its peers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cri_proxy.simulator.replay import run_simulation
from tests.machines import (
    EPYC_NPS1_1S,
    HYGON_7285_2S,
    KUNPENG_48_2S,
    SNC_2S,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.simulator.simulations import CCX, config, containers, create, moves, run

WAIT = {"op": "wait", "seconds": 60}
REBALANCE = {"op": "rebalance"}
STATE = {"op": "state"}
LABELS = {"pod-template-hash": "5d4f8c7b9d"}


def traffic(*pairs: str, bytes_per_s: float = 1e8) -> dict[str, Any]:
    """Ten seconds in which these talk: "ab" is a to b."""
    edges = [{"a": pair[0], "b": pair[1:], "bytes_per_s": bytes_per_s, "msgs_per_s": 1e3} for pair in pairs]
    return {"op": "traffic", "edges": edges}


def pod(name: str) -> dict[str, Any]:
    return {"op": "pod", "id": name, "labels": LABELS}


def test_two_that_talk_come_together() -> None:
    *_, line = run(create("a", 4), create("b", 4), traffic("ab"), WAIT, REBALANCE)
    assert moves(line) == {"b": CCX[0]}
    assert line["why"].endswith("; b to L3 0 to be near default/pod-of-a/app (5.3 MB/s)")
    assert (line["sent"], line["cpus"], line["error"]) == ({}, "", "")


def test_a_second_plan_moves_nobody() -> None:
    lines = run(create("a", 4), create("b", 4), traffic("ab"), WAIT, REBALANCE, REBALANCE, WAIT, REBALANCE)
    assert [bool(line["moved"]) for line in lines] == [*[False] * 4, True, False, False, False]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((traffic("ab"),), "too young"),
        ((WAIT,), "no traffic"),
        ((traffic("ab", bytes_per_s=10), {**WAIT, "seconds": 300}), "forgotten"),
        ((traffic("ab"), {"op": "exit", "id": "b", "code": 1}, WAIT), "one has ended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nobody_is_moved_without_a_reason(steps: tuple[dict[str, Any], ...], why: str) -> None:
    *_, line = run(create("a", 4), create("b", 4), *steps, REBALANCE)
    assert line["moved"] == [], why


def test_two_that_fill_a_domain_each_are_not_squeezed_into_one() -> None:
    lines = run(create("a", 8), create("b", 8), traffic("ab"), WAIT, REBALANCE)
    assert lines[-1]["moved"] == []


def test_a_replica_that_is_created_later_comes_to_its_peers_before_any_traffic() -> None:
    lines = run(
        create("x", 4),
        pod("web-5d4f8c7b9d-aaaaa"),
        create("a", 2, pod="web-5d4f8c7b9d-aaaaa", name="web"),
        create("b", 2, pod="db", name="db"),
        traffic("ab"),
        WAIT,
        REBALANCE,
        pod("web-5d4f8c7b9d-bbbbb"),
        create("c", 2, pod="web-5d4f8c7b9d-bbbbb", name="web"),
    )
    assert lines[-1]["cpus"] == CCX[1]
    assert "near default/db/db (about" in lines[-1]["why"]


def test_a_pod_that_is_replaced_comes_to_its_peers_again() -> None:
    steps = (create("a", 4), create("b", 4), traffic("ab"), {"op": "remove-pod", "id": "pod-of-b"})
    assert run(*steps, create("c", 4, pod="pod-of-b"))[-1]["cpus"] == CCX[0]


def test_the_observer_outlives_the_daemon() -> None:
    steps = (
        create("a", 4),
        create("b", 4),
        traffic("ab"),
        {"op": "restart", "state": "kept"},
        WAIT,
        REBALANCE,
    )
    assert moves(run(*steps)[-1]) == {"b": CCX[0]}


def test_on_the_fine_ladder_containers_that_talk_come_into_one_cluster_of_cores() -> None:
    steps = (create("a", 2), create("b", 2), traffic("ab"), WAIT, REBALANCE)
    lines = run(*steps, on=KUNPENG_48_2S, text="placement: {ladder: fine}")
    assert [line["level"] for line in lines[:2]] == ["cluster", "cluster"]
    (to,) = moves(lines[-1]).values()
    assert to in (lines[0]["cpus"], lines[1]["cpus"]) and lines[0]["cpus"] != lines[1]["cpus"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("affinity: {enabled: false}", "no better placement"),
        ("affinity: {provider: declared}", "no better placement"),
        ("affinity: {within: namespace}", ""),
        ("relay: {mode: observe}", "mode observe: nothing is moved"),
        ("relay: {mode: 'off'}", "mode off: nothing is moved"),
    ],
)
def test_what_the_configuration_says_against_it(text: str, why: str) -> None:
    steps = (create("a", 4, namespace="one"), create("b", 4, namespace="two"), traffic("ab"), WAIT, REBALANCE)
    *_, line = run(*steps, text=text)
    assert line["moved"] == []
    assert line["why"].startswith(why)


def test_a_configuration_of_later_counts_from_then_on() -> None:
    steps = (create("a", 4), create("b", 4), traffic("ab"), WAIT, {"op": "config", "file": "off"}, REBALANCE)
    assert run(*steps, files={"off": "affinity: {enabled: false}"})[-1]["moved"] == []


def test_who_owns_cpus_is_never_moved_unless_that_is_wanted() -> None:
    own = {"qos": "guaranteed", "memory_limit": "1Gi"}
    steps = (create("a", 4, **own), create("b", 4), traffic("ab"), WAIT, REBALANCE)
    *_, line = run(*steps, text="policy: {Active: topology-aware}")
    assert set(moves(line)) <= {"b"}


def test_the_same_scenario_gives_the_same_bytes() -> None:
    names = "abcdefgh"
    talk = traffic("ab", "cd", "ef", "gh", "ah", "ce")
    steps = [*(create(name, 2) for name in names), talk, WAIT, REBALANCE, STATE]
    first, second = (
        list(run_simulation(machine(HYGON_7285_2S), config(), steps, lambda _: config())) for _ in range(2)
    )
    assert first == second
    assert json.loads(first[-2])["moved"]


# ---------------------------------------------------------------------- whatever happens

NAMES = "abcdefghij"
STEPS = st.one_of(
    st.builds(
        lambda name, cpus, qos: ("create", name, cpus, qos),
        st.sampled_from(NAMES),
        st.sampled_from([None, 0.5, 1, 2, 3, 4, 8, 12, 20]),
        st.sampled_from(["", "", "guaranteed"]),
    ),
    st.builds(lambda pairs, size: ("traffic", pairs, size),
              st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=6),
              st.sampled_from([1e3, 1e6, 1e8, 1e10])),
    st.sampled_from([("remove", name) for name in NAMES]),
    st.just(("wait",)),
    st.just(("rebalance",)),
)  # fmt: skip


def scenario(drawn: list[Any]) -> list[dict[str, Any]]:
    """The drawn steps, without those that name containers that are not there."""
    steps: list[dict[str, Any]] = []
    there: set[str] = set()
    for kind, *fields in drawn:
        if kind == "create" and fields[0] not in there:
            name, cpus, qos = fields
            there.add(name)
            guaranteed = {"qos": qos, "memory_limit": "1Gi"} if qos and cpus else {}
            steps.append(create(name, cpus, **guaranteed))
        elif kind == "traffic":
            pairs = [a + b for a, b in fields[0] if a in there and b in there and a != b]
            steps.append(traffic(*pairs, bytes_per_s=fields[1]))
        elif kind == "remove" and fields[0] in there:
            there.discard(fields[0])
            steps.append({"op": "remove", "id": fields[0]})
        elif kind in ("wait", "rebalance"):
            steps.append(WAIT if kind == "wait" else REBALANCE)
    return steps


@pytest.mark.parametrize("policy", ["hygon", "topology-aware"])
@pytest.mark.parametrize("name", [HYGON_7285_2S, EPYC_NPS1_1S, UNEVEN_CCX, SNC_2S, VM_NO_CACHE_INFO])
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(STEPS, min_size=5, max_size=30))
def test_random_traffic_and_plans(name: str, policy: str, drawn: list[Any]) -> None:
    """The invariants hold after each step (``run`` looks), who owns CPUs is not moved, and plans come to an end."""
    steps = [*scenario(drawn), WAIT, REBALANCE, STATE, REBALANCE, REBALANCE, REBALANCE, REBALANCE, STATE]
    lines = run(*steps, on=name, text=f"policy: {{Active: {policy}}}")
    owned = {key: row["exclusive"] for key, row in containers(lines[-1]).items()}
    for line in (line for line in lines if line["op"] == "rebalance"):
        assert not [
            row for row in line["moved"] if row["exclusive"] and row["exclusive"] != owned.get(row["id"])
        ]
    # With weights that stay as they are the last of several plans is empty.
    assert lines[-2]["moved"] == []
