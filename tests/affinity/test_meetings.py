"""What the planner is asked where protected and batch containers are to be kept out of each other's L3s."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.affinity.moves import describe, plan_of
from cri_proxy.affinity.problem import DOMAIN, PlanningSnapshot, snapshot_of
from cri_proxy.engine.engine import Engine
from policies.affinity.planner.planner import plan
from policies.hygon import TopologyAware
from policies.model import (
    BATCH,
    PROTECTED,
    AffinityTerm,
    Container,
    MatchExpression,
    PlacementPreferences,
    Qos,
)
from policies.settings import ClassSelectors, EngineOptions
from tests.affinity.test_problem import CCX, NOBODY, NODE, SETTINGS, ask, both_ways, put, vertices
from tests.machines import HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, engine_on, host_of, make_container, make_pod

SELECTORS = ClassSelectors(protected=("namespace/shop",), batch=("namespace/night",))
NAMESPACES = {PROTECTED: "shop", BATCH: "night", "standard": "default"}


def of(
    kind: str, name: str, cpus: float = 2, preferences: Optional[PlacementPreferences] = None
) -> Container:
    made = make_container(name, limit=cpus, request=cpus, pod=make_pod(name, NAMESPACES[kind]))
    return made if preferences is None else replace(made, preferences=preferences)


def engine_with(keeps_apart: bool = True, classes: Optional[ClassSelectors] = SELECTORS) -> Engine:
    made: Engine = engine_on(HYGON_7285_2S, options=EngineOptions(classes=classes, keeps_apart=keeps_apart))
    return made


def pair(engine: Engine) -> None:
    put(engine, "p", CCX[0], of(PROTECTED, "p"))
    put(engine, "b", CCX[0], of(BATCH, "b"))


def strained(engine: Engine, *domains: frozenset[int]) -> PlanningSnapshot:
    return snapshot_of(engine, SETTINGS, 100.0, strained=domains)


def test_without_caches_and_bandwidth_the_question_is_the_one_without_isolation() -> None:
    watched, plain = engine_with(keeps_apart=False), engine_with(keeps_apart=False, classes=None)
    for engine in (watched, plain):
        pair(engine)
        put(engine, "wide", NODE[0], of(BATCH, "wide", 12))
    traffic = both_ways(("p", "b", 1e5))
    assert ask(watched, traffic).problem == ask(plain, traffic).problem


def test_the_question_has_the_classes_and_a_plan_parts_the_two() -> None:
    engine = engine_with()
    pair(engine)
    put(engine, "s", CCX[0], of("standard", "s"))
    question = ask(engine)
    assert {key: each.isolation for key, each in vertices(question).items()} == {
        "p": PROTECTED,
        "b": BATCH,
        "s": "",
    }
    proposal = plan(question.problem)
    made = plan_of(engine, question, proposal, 10, now_s=200.0)
    [move] = made.moves
    engine.apply(made)
    assert engine.grants["p"].cpus.isdisjoint(engine.grants["b"].cpus)
    assert engine.grants[move.id].placement.level == "ccx"
    assert [row["container"] for row in describe(question, proposal)]


def test_containers_that_stay_where_they_are_count_as_well() -> None:
    host = host_of(HYGON_7285_2S)
    options = EngineOptions(classes=SELECTORS, keeps_apart=True)
    engine = engine_on(host, policy=TopologyAware(host.topology, TOPOLOGY_AWARE), options=options)
    owner = make_container("p", limit=4, request=4, pod=make_pod("p", "shop"), qos=Qos.GUARANTEED)
    put(engine, "p", CCX[0], owner)
    assert engine.grants["p"].exclusive
    put(engine, "b", CCX[0], of(BATCH, "b", 1))
    asked = vertices(ask(engine))
    assert (asked["p"].isolation, asked["p"].milli, asked["p"].sites) == (PROTECTED, 0, (0,))
    question = ask(engine)
    [move] = plan(question.problem).moves
    assert move.key == "b" and move.source == 0


NEAR = AffinityTerm(
    MatchExpression("pod/namespace", "Matches", ("*",)), MatchExpression("name", "Equals", ("b",)), 1
)


@pytest.mark.parametrize("kind", [PROTECTED, BATCH])
def test_what_is_declared_to_be_near_stays_near_whatever_meets(kind: str) -> None:
    engine = engine_with()
    drawn = of(kind, "p", preferences=PlacementPreferences(affinity=(NEAR,)))
    put(engine, "p", CCX[0], drawn)
    put(engine, "b", CCX[0], of(BATCH, "b"))
    put(engine, "other", CCX[0], of(PROTECTED, "other"))
    question = ask(engine)
    moved = {move.key: move.target for move in plan(question.problem).moves}
    assert moved.get("p", 0) == moved.get("b", 0)


# ---------------------------------------------------------------------- one is asked to leave


def test_one_batch_container_leaves_a_strained_l3_whatever_traffic_says() -> None:
    engine = engine_with(keeps_apart=False)  # measured protection alone may ask
    pair(engine)
    put(engine, "c", CCX[0], of(BATCH, "c"))
    engine.set_traffic(both_ways(("p", "b", 1e7), ("p", "c", 2e7)))
    assert plan(snapshot_of(engine, SETTINGS, 100.0).problem).moves == ()
    question = strained(engine, CCX[0])
    proposal = plan(question.problem)
    assert [move.key for move in proposal.moves] == ["b"]
    assert "for what is to be apart" in proposal.why
    engine.apply(plan_of(engine, question, proposal, 10, now_s=200.0))
    assert engine.grants["b"].cpus.isdisjoint(CCX[0])


def test_a_strained_l3_without_a_batch_container_that_could_leave_changes_nothing() -> None:
    engine = engine_with()
    put(engine, "p", CCX[0], of(PROTECTED, "p"))
    put(engine, "s", CCX[0], of("standard", "s"))
    assert strained(engine, CCX[0]).problem == ask(engine).problem


def test_a_domain_is_no_container_in_what_people_are_told() -> None:
    engine = engine_with()
    pair(engine)
    question = strained(engine, CCX[0])
    assert any(vertex.key.startswith(DOMAIN) for vertex in question.problem.vertices)
    assert set(question.paths) == {"p", "b"}
    assert len(question.near) == len(question.problem.vertices)


def test_batch_in_a_whole_node_leaves_that_node_for_an_l3_of_it() -> None:
    engine = engine_with(keeps_apart=False)
    put(engine, "p", CCX[0], of(PROTECTED, "p"))
    put(engine, "wide", NODE[0], of(BATCH, "wide", 12))
    engine.set_traffic(NOBODY)
    question = strained(engine, CCX[0])
    [move] = plan(question.problem).moves
    assert move.key == "wide" and question.homes[move.target].isdisjoint(CCX[0])
