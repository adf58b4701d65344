"""Containers that fetch more past an L3 than it can push each other apart, as far as that pays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, strategies
from hypothesis import settings as effort

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.distances import distance_ns, tree_of
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.order import ordered
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings, Problem, Vertex
from policies.affinity.planner.refine import Refinement
from policies.machine.topology import Topology
from tests.machines import KUNPENG_64_2S
from tests.machines import machine as hardware
from tests.policies.affinity.problems import (
    FREE,
    SHIPPED,
    after,
    cost,
    crowded,
    loads,
    machine,
    problem,
    random_problem,
    vertex,
)

seeds = strategies.integers(0, 100_000)
TREE = machine()
#: A line beyond saturation costs what one from another L3 does.
REPELLING = replace(SHIPPED, repel_ns=84.0)


def by_brute_force(asked: Problem, at: dict[str, int]) -> float:
    """What crowding costs, from the definition; containers at L3s only."""
    settings = asked.settings
    fetched = [
        sum([v.fills for v in asked.vertices if at[v.key] == leaf]) for leaf in range(len(asked.tree.leaves))
    ]
    return sum([max(0, each - settings.saturated_fills) for each in fetched]) * settings.repel_ns * 1e-9


@given(seeds, strategies.sampled_from((0.8, 1.5)))
@effort(max_examples=effort().max_examples // 6)
def test_with_a_weight_of_nothing_plans_are_those_without_counts(seed: int, full: float) -> None:
    asked = random_problem(seed, SHIPPED, full)
    assert plan(crowded(asked, seed, 0.0)) == plan(asked)


@given(seeds)
@effort(max_examples=effort().max_examples // 8)
def test_what_saturates_no_l3_changes_no_plan(seed: int) -> None:
    asked = random_problem(seed)
    counted = crowded(asked, seed)
    roomy = replace(counted, settings=replace(counted.settings, saturated_fills=10**12))
    # Which are looked at first may differ, what is found to pay does not: the cost is the same function.
    at = {each.key: each.sites[seed % len(each.sites)] for each in asked.vertices}
    assert cost(roomy, at) == cost(asked, at)
    if not any(each.fills for each in counted.vertices):
        assert plan(roomy) == plan(asked)


def test_two_that_saturate_an_l3_together_part_where_there_is_room() -> None:
    asked = problem(TREE, [vertex(TREE, "a", 0, fills=80), vertex(TREE, "b", 0, fills=90)], {}, REPELLING)
    answer = plan(asked)
    at = after(asked, answer)
    assert at["a"] != at["b"]
    assert len(answer.moves) == 1
    assert answer.cost_before == pytest.approx(70e6 * 84e-9)
    assert answer.cost_after == 0


def test_two_that_do_not_saturate_it_stay() -> None:
    asked = problem(TREE, [vertex(TREE, "a", 0, fills=40), vertex(TREE, "b", 0, fills=50)], {}, REPELLING)
    assert not plan(asked).accepted


def test_they_stay_where_no_other_l3_has_room() -> None:
    full = [vertex(TREE, f"full{leaf}", leaf, 8, fixed=True) for leaf in range(1, 8)]
    asked = problem(
        TREE, [vertex(TREE, "a", 0, 2, fills=80), vertex(TREE, "b", 0, 2, fills=90), *full], {}, REPELLING
    )
    assert not plan(asked).accepted


def test_traffic_that_outweighs_it_keeps_them_together() -> None:
    pair = [vertex(TREE, "a", 0, fills=80), vertex(TREE, "b", 0, fills=90)]
    for traffic, together in ((60.0, False), (80.0, True)):
        asked = problem(TREE, pair, {("a", "b"): traffic}, replace(REPELLING, hysteresis=0.0, kappa=0.0))
        at = after(asked, plan(asked))
        assert (at["a"] == at["b"]) == together, (
            f"{traffic} million lines a second between them, 70 beyond saturation"
        )


def test_one_with_traffic_stays_and_the_other_goes() -> None:
    """Of two, the one that goes is the one that loses nothing by it."""
    trio = [vertex(TREE, "a", 0, fills=80), vertex(TREE, "peer", 0), vertex(TREE, "b", 0, fills=90)]
    asked = problem(TREE, trio, {("a", "peer"): 50.0}, REPELLING)
    at = after(asked, plan(asked))
    assert (at["a"], at["peer"]) == (0, 0)
    assert at["b"] != 0


def test_those_that_cannot_move_push_too() -> None:
    fixed = [vertex(TREE, "fixed", 0, 0, fixed=True, fills=100)]
    asked = problem(TREE, [vertex(TREE, "a", 0, fills=30), *fixed], {}, REPELLING)
    assert after(asked, plan(asked))["a"] != 0


def test_on_full_l3s_they_change_places_with_others() -> None:
    tree = machine(1, 1, 2)
    asked = problem(
        tree,
        [
            vertex(tree, "a", 0, 4, fills=80),
            vertex(tree, "b", 0, 4, fills=90),
            vertex(tree, "c", 1, 4),
            vertex(tree, "d", 1, 4),
        ],
        {},
        REPELLING,
    )
    at = after(asked, plan(asked))
    assert at["a"] != at["b"]
    assert max(loads(asked, at)) <= 8_000_000


def test_three_are_spread_as_far_as_it_pays() -> None:
    """A term of the load, not of pairs: three of 45 % saturate an L3 together, though no two of them do."""
    asked = problem(TREE, [vertex(TREE, f"c{i}", 0, fills=45) for i in range(3)], {}, REPELLING)
    answer = plan(asked)
    assert len(answer.moves) == 1
    assert answer.cost_after == 0


def test_clusters_of_one_l3_are_one_l3() -> None:
    topology = Topology(hardware(KUNPENG_64_2S), to_clusters=True)
    tree = tree_of(topology, [4000] * len(topology.leaves), distance_ns(topology, 84.0, 4.1))
    first, second = topology.caches[0].leaves[:2]
    together = Problem(
        tree,
        tuple(Vertex(key, 1000, at, (at,), fills=80_000_000) for key, at in (("a", first), ("b", second))),
        (),
        REPELLING,
    )
    other_l3 = topology.caches[1].leaves[0]
    assert Instance(together).cost([first, second]) == pytest.approx(60e6 * 84e-9)
    assert Instance(together).cost([first, other_l3]) == 0


@given(seeds, strategies.sampled_from((0.8, 1.0, 1.5)))
@effort(max_examples=effort().max_examples // 4)
def test_the_gains_of_moves_are_what_the_objective_loses(seed: int, full: float) -> None:
    asked = crowded(random_problem(seed, FREE, full), seed)
    answer = plan(asked)
    before, then = after(asked, answer, 0), after(asked, answer)
    assert answer.cost_before == pytest.approx(cost(asked, before))
    assert answer.cost_after == pytest.approx(cost(asked, then))
    if not excess(asked, before):
        saved = answer.cost_before - answer.cost_after
        assert sum([move.gain for move in answer.moves]) == pytest.approx(saved, abs=1e-9)
        assert saved >= 0


def excess(asked: Problem, at: dict[str, int]) -> int:
    capacities = Instance(asked).capacities
    return sum([max(0, load - most) for load, most in zip(loads(asked, at), capacities)])


@given(seeds)
@effort(max_examples=effort().max_examples // 6)
def test_each_step_of_an_order_gains_what_the_objective_loses(seed: int) -> None:
    asked = crowded(random_problem(seed, FREE, 1.0), seed)
    instance, random = Instance(asked), Random(seed)
    present = [each.at for each in asked.vertices]
    wanted = [random.choice(each.sites) for each in asked.vertices]
    at, now = list(present), instance.cost(present)
    for step in ordered(instance, present, wanted)[0]:
        at[step.vertex] = step.target
        then = instance.cost(at)
        assert step.gain == pytest.approx(now - then, abs=1e-9)
        now = then


@given(seeds, strategies.booleans())
@effort(max_examples=effort().max_examples // 4)
def test_each_step_of_a_refinement_gains_what_it_says(seed: int, deep: bool) -> None:
    asked = crowded(random_problem(seed, FREE, 1.0), seed)
    instance = Instance(asked)
    rows = [[0.0] * len(instance.rows)] * len(instance.sizes)
    refinement = Refinement(Arrangement(instance, [each.at for each in asked.vertices]), rows, 1e-9, deep)
    at = refinement.arrangement.at
    for each in range(len(instance.sizes)):
        if not instance.movable[each]:
            continue
        before, gained = instance.cost(at), refinement.gained
        refinement.run([each], 1)
        assert refinement.gained - gained == pytest.approx(before - instance.cost(at), abs=1e-9)
        assert refinement.gained >= gained, "a move, a swap or a chain of two made it worse"


@given(seeds)
@effort(max_examples=effort().max_examples // 6)
def test_what_a_site_costs_is_the_difference_of_the_objective(seed: int) -> None:
    asked = crowded(random_problem(seed, FREE, 1.5), seed)
    instance, random = Instance(asked), Random(seed)
    rows = [[0.0] * len(instance.rows)] * len(instance.sizes)
    refinement = Refinement(Arrangement(instance, [each.at for each in asked.vertices]), rows, 0.0)
    for _ in range(10):
        each = random.randrange(len(instance.sizes))
        row, here = refinement.row(each), refinement.arrangement.at[each]
        before = instance.cost(refinement.arrangement.at)
        site = random.choice(instance.sites[each])
        refinement.move(each, site)
        now = instance.cost(refinement.arrangement.at)
        assert now - before == pytest.approx(row[site] - row[here], abs=1e-9)


@given(seeds)
@effort(max_examples=effort().max_examples // 8)
def test_the_cost_of_crowding_is_that_of_its_definition(seed: int) -> None:
    random = Random(seed)
    vertices = [
        vertex(TREE, f"c{i}", random.randrange(8), 0.1, fills=random.randrange(120)) for i in range(12)
    ]
    asked = problem(TREE, vertices, {}, REPELLING)
    at = {each.key: each.at for each in vertices}
    assert cost(asked, at) == pytest.approx(by_brute_force(asked, at))


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 20), marks=pytest.mark.long)])
def test_with_frozen_counts_plans_come_to_an_end(seeds: range) -> None:
    again = [0, 0]
    for seed in seeds:
        asked = crowded(random_problem(seed), seed)
        for number in range(2):
            at = after(asked, plan(asked))
            asked = replace(asked, vertices=tuple(replace(v, at=at[v.key]) for v in asked.vertices))
            again[number] += plan(asked).accepted
    assert again[0] <= 1
    assert again[1] == 0


def test_the_default_pushes_nothing_apart() -> None:
    assert PlanSettings().repel_ns == 0
