"""What ``explain`` says of what is declared, and moves that would keep it worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.declared import declared_rows
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Move, Plan
from cri_proxy.engine.moves import apply
from policies.machine.cpus import parse_cpus
from policies.model import AffinityTerm, Constraint, Container, MatchExpression, PlacementPreferences, Qos
from tests.machines import HYGON_7285_2S
from tests.scenes import Number, engine_on, make_container, run

CCX = [parse_cpus(f"{4 * i}-{4 * i + 3},{64 + 4 * i}-{64 + 4 * i + 3}") for i in range(16)]
NODE = [CCX[2 * i] | CCX[2 * i + 1] for i in range(8)]


def declaring(name: str, to: str, weight: int, cpus: Number = 1, required: bool = False) -> Container:
    term = AffinityTerm(
        MatchExpression("", "AlwaysTrue"), MatchExpression("name", "In", (to,)), weight, required
    )
    container: Container = make_container(name, limit=cpus, request=cpus)
    return replace(container, preferences=PlacementPreferences(affinity=(term,)))


@pytest.fixture
def engine() -> Engine:
    return engine_on(HYGON_7285_2S)


def texts(engine: Engine, key: str) -> list[str]:
    return [row["text"] for row in declared_rows(engine, engine.grants[key])]


def within(cpus: frozenset[int]) -> Constraint:
    return Constraint(cpus)


@pytest.mark.parametrize(
    ("a", "b", "where"),
    [(0, 1, "different L3s"), (0, 2, "different NUMA nodes"), (0, 15, "different sockets")],
)
def test_it_says_at_which_level_a_pair_is_kept_apart(engine, a, b, where) -> None:
    run(engine, declaring("a", "b", -1), "a", within=within(CCX[a]))
    run(engine, make_container("b", limit=1), "b", within=within(CCX[b]))
    assert texts(engine, "a") == [f"declared to be apart from default/pod-of-b/b: kept in {where}"]
    assert texts(engine, "b") == [f"declared to be apart from default/pod-of-a/a: kept in {where}"]


def test_it_says_in_one_sentence_why_a_pair_is_not_kept_apart(engine) -> None:
    head = "declared to be apart from default/pod-of-b/b: not kept, as "
    # 1. As wide as the machine.
    run(engine, declaring("a", "b", -1, cpus=100), "a")
    run(engine, make_container("b", limit=1), "b")
    assert texts(engine, "a") == [head + "each place that holds it has an L3 in common with the other"]
    # 2. Its caller lets it be nowhere else, which the plan is not told of; 3. there is room elsewhere.
    engine = engine_on(HYGON_7285_2S)
    run(engine, declaring("a", "b", -1), "a", within=within(CCX[0]))
    run(engine, make_container("b", limit=1), "b", within=within(CCX[0]))
    no_room = "no other L3 that holds it has room, or more is declared against it there"
    assert texts(engine, "a") == [head + no_room]
    grant = engine.grants["a"]
    engine.put(replace(grant, constraint=Constraint(None)))
    assert texts(engine, "a") == [head + "there is room by now: the next plan moves it there"]


def test_it_says_how_near_what_is_required_is(engine) -> None:
    head = "required to be near default/pod-of-b/b: "
    run(engine, make_container("b", limit=1), "b", within=within(CCX[0]))
    run(engine, declaring("a", "b", 1000, required=True), "a")
    assert texts(engine, "a") == [f"{head}kept in one L3"]
    engine = engine_on(HYGON_7285_2S)
    run(engine, make_container("b", limit=1), "b", within=within(CCX[0]))
    run(engine, declaring("a", "b", 1000, required=True), "a", within=within(CCX[1]))
    [text] = texts(engine, "a")
    assert text.startswith(f"{head}kept in one NUMA node, as no other L3 that holds it has room")


def test_a_plan_that_knows_no_better_does_not_bring_a_pair_together(engine) -> None:
    run(engine, declaring("a", "b", -1), "a")
    run(engine, make_container("b", limit=1), "b")
    there = engine.grants["a"].placement.home
    was = engine.grants["b"].placement
    apply(engine, Plan(engine.version, (Move("b", there, "ccx", "near", was),), "plan", 100.0))
    assert engine.grants["b"].placement == was


def test_nothing_is_said_where_nothing_is_declared(engine) -> None:
    run(engine, make_container("a", limit=1, qos=Qos.GUARANTEED), "a")
    assert texts(engine, "a") == []
