"""What the planner is asked, and how its answer is read."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_proxy.affinity.moves import describe, plan_of, waits_for, without_banned
from cri_proxy.affinity.problem import PlanningSnapshot, snapshot_of
from cri_proxy.affinity.settings import AffinitySettings, affinity_settings
from cri_proxy.config.constants import Constants
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from policies.affinity.graph.traffic import Edge, Traffic
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import BlockedMove, HeldPair, Proposal, ProposedMove, Vertex
from policies.hygon import TopologyAware
from policies.machine.cpus import parse_cpus
from policies.model import (
    AffinityTerm,
    Constraint,
    Container,
    Hint,
    MatchExpression,
    PlacementPreferences,
    Qos,
    Resources,
)
from tests.config.configs import read
from tests.machines import ALL_MACHINES, EPYC_NPS1_1S, GIB, HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, Number, engine_on, make_container, run, topology

SETTINGS = AffinitySettings()
CCX = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]
NODE = [node.cpus for node in topology(HYGON_7285_2S).at("numa")]


def both_ways(*edges: tuple[str, str, float]) -> Traffic:
    weights: dict[str, dict[str, float]] = {}
    for a, b, weight in edges:
        weights.setdefault(a, {})[b] = weight
        weights.setdefault(b, {})[a] = weight
    return Traffic(1, weights, {}, tuple(Edge(a, b, weight, weight * 64) for a, b, weight in edges))


NOBODY = both_ways()


def put(
    engine: Engine, key: str, where: frozenset[int], container: Optional[Container] = None, cpus: Number = 2
) -> None:
    """A container that runs there, without a cpuset of the caller's."""
    made = container or make_container(key, limit=cpus, request=cpus)
    run(engine, made, key, within=Constraint(where))
    engine.amend(replace(engine.grants[key], constraint=Constraint()))


def ask(engine: Engine, traffic: Traffic = NOBODY, now_s: float = 100.0, **changes: Any) -> PlanningSnapshot:
    engine.set_traffic(traffic)
    return snapshot_of(engine, replace(SETTINGS, **changes), now_s)


def vertices(question: PlanningSnapshot) -> dict[str, Vertex]:
    return {vertex.key: vertex for vertex in question.problem.vertices}


def moved_to(question: PlanningSnapshot, key: str, target: int) -> Proposal:
    source = vertices(question)[key].at
    return Proposal(True, (ProposedMove(key, source, target, 0.5),), 1, 0, 0, 0, 0, "it pays")


@pytest.fixture
def engine() -> Engine:
    return engine_on(HYGON_7285_2S)


# ---------------------------------------------------------------------- who may be moved, and where to


def test_a_container_may_have_every_domain_of_its_level(engine) -> None:
    put(engine, "a", CCX[3])
    put(engine, "b", NODE[1], cpus=12)
    asked = vertices(ask(engine))
    assert (asked["a"].at, asked["a"].sites, asked["a"].milli) == (3, tuple(range(16)), 2000)
    assert (asked["b"].at, len(asked["b"].sites), asked["b"].milli) == (17, 8, 12000)


def test_only_domains_that_hold_what_it_wants_are_offered(engine) -> None:
    put(engine, "a", CCX[3], cpus=8)
    run(engine, make_container("k", limit=1, qos=Qos.GUARANTEED), "k", within=Constraint(frozenset([0])))
    assert 0 not in vertices(ask(engine))["a"].sites


@pytest.mark.parametrize(("part", "is_movable"), [(0.4, False), (0.5, True)])
def test_a_container_of_whose_traffic_most_was_lost_stays_and_pulls_from_where_it_is(
    engine, part, is_movable
) -> None:
    put(engine, "a", CCX[3])
    put(engine, "b", CCX[5])
    asked = vertices(ask(engine, replace(both_ways(("a", "b", 5000.0)), trust={"a": part})))
    assert (len(asked["a"].sites) > 1) == is_movable
    assert asked["a"].at == 3
    assert len(asked["b"].sites) > 1


@pytest.mark.parametrize("name", ["young", "held", "released", "creating", "resized", "off"])
def test_who_is_not_to_be_moved_is_not_offered_a_place(engine, name) -> None:
    put(engine, "a", CCX[3])
    now_s = 100.0
    if name == "young":
        now_s = 59.0
    elif name == "held":
        engine.exited("a", 1, 0.0)
    elif name == "released":
        engine.release("a")
    elif name == "creating":
        engine = engine_on(HYGON_7285_2S)
        engine.admit(make_container("a", limit=2), Constraint(), 0.0)
    elif name == "resized":
        engine.resize("a", Resources(2000, 3000), Constraint(), 0.0)
    else:
        engine = engine_on(HYGON_7285_2S)
        run(engine, make_container("a", limit=24), "a")  # a node and a CCX
    assert ask(engine, now_s=now_s).problem.vertices == ()


def test_one_that_is_not_moved_pulls_from_where_it_is(engine) -> None:
    put(engine, "a", CCX[3])
    put(engine, "b", CCX[5])
    engine.exited("b", 1, 0.0)
    question = ask(engine, both_ways(("a", "b", 5000.0)))
    assert vertices(question)["b"] == Vertex("b", 0, 5, (5,))
    assert question.problem.edges == ((0, 1, 5000.0),)


@pytest.mark.parametrize(
    ("constraint", "sites"),
    [("0-127", 16), ("0-15,64-79", 4), ("12-15,76-79", 0)],
    ids=["all", "two nodes", "its own CCX"],
)
def test_behind_a_fence_only_whole_domains_inside_it_count(engine, constraint, sites) -> None:
    put(engine, "x", CCX[0])
    run(engine, make_container("a", limit=2), "a", within=Constraint(parse_cpus(constraint)))
    asked = vertices(ask(engine))
    assert len(asked["a"].sites if "a" in asked else ()) == sites


def test_nobody_is_taken_away_from_its_devices(engine) -> None:
    near = make_container("a", limit=2, hints=(Hint("devices", "/dev/x", frozenset([1])),))
    run(engine, near, "a")
    assert vertices(ask(engine))["a"].sites == (2, 3)


def test_who_has_much_memory_stays_in_its_node(engine) -> None:
    put(engine, "a", CCX[3], make_container("a", limit=2, memory=9))
    assert vertices(ask(engine))["a"].sites == (2, 3)
    in_use = snapshot_of(engine, SETTINGS, 100.0, {"a": GIB})
    assert len(vertices(in_use)["a"].sites) == 16


def test_a_container_with_exclusive_cpus_is_not_moved() -> None:
    engine = engine_on(HYGON_7285_2S, policy=TopologyAware(topology(HYGON_7285_2S), TOPOLOGY_AWARE))
    run(engine, make_container("a", limit=2, qos=Qos.GUARANTEED), "a")
    assert ask(engine).problem.vertices == ()


# ---------------------------------------------------------------------- what is left of the machine


def test_capacities_are_what_the_others_leave(engine) -> None:
    put(engine, "a", CCX[0])
    put(engine, "held", CCX[1])
    engine.exited("held", 1, 0.0)
    run(engine, make_container("k", limit=1, qos=Qos.GUARANTEED), "k", within=Constraint(frozenset([8])))
    leaves = ask(engine).problem.tree.leaves
    # Without the milli-CPU for rounding.
    assert [leaf.capacity_milli - 1 for leaf in leaves[:4]] == [8000, 6000, 7000, 8000]


def test_who_asks_for_nothing_counts_a_little_but_overfills_nothing(engine) -> None:
    put(engine, "full", CCX[0], cpus=8)
    put(engine, "idle", CCX[0], make_container("idle", limit=1))
    question = ask(engine)
    assert vertices(question)["idle"].milli == 100
    assert plan(question.problem).overfull_before == 0


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_every_machine_can_be_asked_about(name) -> None:
    engine = engine_on(name)
    run(engine, make_container("a", limit=0.5), "a")
    run(engine, make_container("b", limit=0.5), "b")
    question = ask(engine, both_ways(("a", "b", 1e6)))
    proposal = plan(question.problem)
    engine.apply(plan_of(engine, question, proposal, 10))
    assert broken_invariants(engine) == []
    assert engine.grants["a"].cpus == engine.grants["b"].cpus


# ---------------------------------------------------------------------- who pulls whom


def put_pair(engine: Engine, weight: int, required: bool = False) -> None:
    match = MatchExpression("name", "In", ("b",))
    term = AffinityTerm(MatchExpression("", "AlwaysTrue"), match, weight, required)
    preferences = PlacementPreferences(affinity=(term,))
    put(engine, "a", CCX[0], replace(make_container("a", limit=1), preferences=preferences))
    put(engine, "b", CCX[1])


def test_what_is_declared_counts_beside_what_was_seen(engine) -> None:
    put_pair(engine, 2)
    traffic = both_ways(("a", "b", 5000.0))
    assert ask(engine, traffic, declared_weight=1000.0).problem.edges == ((0, 1, 7000.0),)
    assert ask(engine, traffic, enabled=False).problem.edges == ((0, 1, 20_000.0),)
    assert ask(engine, traffic).problem.held == ()


def test_between_those_that_are_declared_to_be_apart_traffic_does_not_count(engine) -> None:
    put_pair(engine, -2)
    problem = ask(engine, both_ways(("a", "b", 5e9)), declared_weight=1000.0).problem
    assert problem.edges == ((0, 1, -2000.0),)
    assert problem.held == (HeldPair(0, 1, 2),)


def test_required_nearness_is_held(engine) -> None:
    put_pair(engine, 1000, required=True)
    problem = ask(engine, both_ways(("a", "b", 1.0))).problem
    assert problem.held == (HeldPair(0, 1, 1000, is_near=True),)


def test_the_traffic_of_a_pod_is_divided_over_its_containers(engine) -> None:
    put(engine, "a", CCX[0])
    put(engine, "b", CCX[1])
    uid = engine.grants["b"].container.pod.uid
    assert ask(engine, both_ways(("a", f"pod:{uid}", 700.0))).problem.edges == ((0, 1, 700.0),)


def test_traffic_of_those_that_are_gone_is_left_out(engine) -> None:
    put(engine, "a", CCX[0])
    assert ask(engine, both_ways(("a", "gone", 700.0))).problem.edges == ()


def test_a_question_can_be_sent_to_another_process(engine) -> None:
    put(engine, "a", CCX[0])
    put(engine, "b", CCX[1])
    question = ask(engine, both_ways(("a", "b", 700.0)))
    assert pickle.loads(pickle.dumps(question)) == question


def test_the_settings_are_those_of_the_configuration() -> None:
    text = "affinity: {hysteresis: 0.2, rebalance: manual, most_memory_moved: 2}"
    constants = Constants(affinity_minimum_age_s=300)
    settings = affinity_settings(read(text, constants=constants).config)
    assert (settings.hysteresis, settings.is_automatic, settings.minimum_age_s) == (0.2, False, 300.0)
    assert settings.plan.max_migrated_bytes == 2 * GIB
    assert affinity_settings(read("{}").config) == AffinitySettings()


# ---------------------------------------------------------------------- the answer


@pytest.fixture
def apart() -> Engine:
    """Containers a, b, c, d on CCXs 0, 3, 6 and 9; a talks to b, c to d."""
    engine = engine_on(HYGON_7285_2S)
    for number, key in enumerate("abcd"):
        put(engine, key, CCX[3 * number])
    return engine


TALK = both_ways(("a", "b", 2e5), ("c", "d", 1e5))


def together(engine: Engine) -> set[str]:
    return {a + b for a, b in ("ab", "cd") if engine.grants[a].cpus == engine.grants[b].cpus}


def test_talkers_come_together_and_the_next_plan_is_empty(apart) -> None:
    question = ask(apart, TALK)
    apart.apply(plan_of(apart, question, plan(question.problem), 100))
    assert together(apart) == {"ab", "cd"}
    assert plan(ask(apart, TALK).problem).moves == ()


def test_the_rest_of_a_plan_goes_on_when_it_is_asked_for_again(apart) -> None:
    question = ask(apart, TALK)
    proposal = plan(question.problem)
    counts = []
    for _ in range(3):
        part = plan_of(apart, question, proposal, 1)
        counts.append(len(part.moves))
        apart.apply(part)
    assert counts == [1, 1, 0]
    assert together(apart) == {"ab", "cd"}


def test_moves_of_what_has_gone_or_has_been_moved_do_not_hold(apart) -> None:
    question = ask(apart, TALK)
    proposal = plan(question.problem)
    first, second = proposal.moves
    apart.remove(first.key)
    assert [move.id for move in plan_of(apart, question, proposal, 10).moves] == [second.key]
    apart.release(second.key)
    assert plan_of(apart, question, proposal, 10).moves == ()


def test_moves_say_whom_they_bring_near(apart) -> None:
    question = ask(apart, TALK)
    part = plan_of(apart, question, moved_to(question, "a", 3), 10, now_s=120.0)
    assert part.moves[0].why == "to be near default/pod-of-b/b (12.8 MB/s)"
    assert (part.why, part.at_s) == ("plan: it pays", 120.0)
    assert part.moves[0].was == apart.grants["a"].placement


def test_a_description_has_a_row_for_each_move(apart) -> None:
    question = ask(apart, TALK)
    [row] = describe(question, moved_to(question, "a", 5))
    assert row == {
        "id": "a",
        "container": "default/pod-of-a/a",
        "from": "L3 0",
        "to": topology(HYGON_7285_2S).leaves[5].name,
        "gain": 0.5,
        "exchange": 0,
        "why": "to be nearer to its peers",
    }


def test_each_minute_the_search_takes_other_chances_and_within_it_the_same(apart) -> None:
    first, again, later = (ask(apart, TALK, now_s).problem for now_s in (120.0, 179.0, 180.0))
    assert first == again
    assert later.settings.seed != first.settings.seed
    assert replace(later, settings=first.settings) == first


def exchanged(*steps: ProposedMove) -> Proposal:
    return Proposal(True, steps, 1, 0, 0, 0, 0, "it pays")


def test_an_exchange_is_whole_or_not_at_all_and_says_with_whom(apart) -> None:
    question = ask(apart, TALK)
    both = exchanged(ProposedMove("a", 0, 3, 1.0, 1), ProposedMove("b", 3, 0, 0.0, 1))
    moves = plan_of(apart, question, both, 1).moves
    assert [(move.id, move.home, move.exchange) for move in moves] == [("a", CCX[3], 1), ("b", CCX[0], 1)]
    assert "it changes places with default/pod-of-b/b" in moves[0].why
    assert plan_of(apart, question, both, 0).moves == ()
    assert without_banned(question, both, [("b", CCX[0])]).moves == ()
    apart.release("b")
    assert plan_of(apart, question, both, 10).moves == ()


def test_a_container_that_was_moved_stays_for_the_cooldown_and_pulls_from_where_it_is(apart) -> None:
    question = ask(apart, TALK)
    apart.apply(plan_of(apart, question, moved_to(question, "a", 3), 10, now_s=200.0))
    later = {at_s: snapshot_of(apart, AffinitySettings(cooldown_s=60.0), at_s) for at_s in (259.0, 260.0)}
    sites = {at_s: {v.key: len(v.sites) for v in each.problem.vertices} for at_s, each in later.items()}
    assert (sites[259.0]["a"], later[259.0].cooling) == (1, ("a",))
    assert (sites[260.0]["a"] > 1, later[260.0].cooling) == (True, ())
    assert sites[259.0]["b"] > 1
    assert waits_for(later[259.0], None) == ["for affinity.cooldown: 1 container moved lately"]


def test_a_container_that_is_kept_as_little_of_its_traffic_was_seen_is_told(apart) -> None:
    question = ask(apart, replace(TALK, trust={"a": 0.4, "b": 0.5}))
    assert question.distrusted == ("a",)
    assert waits_for(question, None) == [
        "for trust: less than 50% of the traffic of 1 container was seen, as tables were full: default/pod-of-a/a"
    ]
    both = ask(apart, replace(TALK, trust={"a": 0.4, "b": 0.1}))
    assert waits_for(both, None) == [
        "for trust: less than 50% of the traffic of 2 containers was seen, as tables were full: default/pod-of-a/a "
        "and others"
    ]


def test_what_is_blocked_is_told_by_name_with_what_is_in_its_way(apart) -> None:
    question = ask(apart, TALK)
    blocked = BlockedMove("a", 0, 3, ("b",), "containers with exclusive CPUs never overlap")
    answer = Proposal(False, (), 1, 1, 0, 0, 0, "0 moves save 0", 0.084, (blocked,))
    assert waits_for(question, answer) == [
        "for room: 84.0 mCPU more could be saved if 1 could move; default/pod-of-a/a waits for the place of "
        "default/pod-of-b/b, and containers with exclusive CPUs never overlap",
        "until it pays: 0 moves save 0",
    ]


def test_a_container_that_moves_before_it_changes_places_changes_them_the_next_time(apart) -> None:
    question = ask(apart, TALK)
    steps = exchanged(
        ProposedMove("a", 0, 5, 0.0), ProposedMove("a", 5, 3, 1.0, 1), ProposedMove("b", 3, 5, 0.0, 1)
    )
    assert [(move.id, move.home) for move in plan_of(apart, question, steps, 10).moves] == [("a", CCX[5])]


def test_a_container_that_goes_by_way_of_a_third_place_is_one_move(apart) -> None:
    question = ask(apart, TALK)
    steps = (ProposedMove("a", 0, 7, 0.0), ProposedMove("b", 3, 0, 0.0), ProposedMove("a", 7, 3, 0.0))
    proposal = Proposal(True, steps, 1, 0, 0, 0, 0, "it pays")
    assert [(move.id, move.home) for move in plan_of(apart, question, proposal, 10).moves] == [
        ("a", CCX[3]),
        ("b", CCX[0]),
    ]
    for _ in range(3):
        apart.apply(plan_of(apart, question, proposal, 1))
    assert (apart.grants["a"].cpus, apart.grants["b"].cpus) == (CCX[3], CCX[0])


def test_a_numa_node_is_a_domain_where_all_of_it_shares_one_l3() -> None:
    engine = engine_on(EPYC_NPS1_1S)
    run(engine, make_container("a", limit=1), "a")
    assert len(vertices(ask(engine))["a"].sites) == len(engine.host.topology.at("l3"))
