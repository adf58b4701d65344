"""Batch containers are packed into few L3s, away from protected ones, where that costs nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, strategies
from hypothesis import settings as effort

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import HeldPair, Problem
from policies.affinity.planner.refine import Refinement
from policies.model import BATCH, PROTECTED
from tests.policies.affinity.problems import (
    FREE,
    SHIPPED,
    after,
    cost,
    loads,
    machine,
    problem,
    random_problem,
    vertex,
)

seeds = strategies.integers(0, 100_000)
TREE = machine()


def classed(asked: Problem, kinds: dict[str, str]) -> Problem:
    vertices = [replace(each, isolation=kinds.get(each.key, "")) for each in asked.vertices]
    return replace(asked, vertices=tuple(vertices))


def mixed(asked: Problem, seed: int) -> Problem:
    """The same problem with some protected and some batch containers."""
    random = Random(f"classes {seed}")
    return classed(asked, {v.key: random.choice((PROTECTED, BATCH, "", "standard")) for v in asked.vertices})


def by_brute_force(asked: Problem, at: dict[str, int]) -> float:
    """What meetings cost, from the definition; containers at L3s only."""
    total = 0.0
    for leaf in range(len(asked.tree.leaves)):
        here = [v.isolation for v in asked.vertices if at[v.key] == leaf]
        batch = here.count(BATCH)
        total += asked.settings.meeting_cpus * here.count(PROTECTED) * batch / (batch + 1)
    return total


@given(seeds, strategies.sampled_from((0.8, 1.5)))
@effort(max_examples=effort().max_examples // 6)
def test_with_one_class_alone_plans_are_those_without_classes(seed: int, full: float) -> None:
    asked = random_problem(seed, SHIPPED, full)
    for kind in (PROTECTED, BATCH, "standard"):
        every = classed(asked, {each.key: kind for each in asked.vertices})
        assert plan(every) == plan(asked)


@given(seeds)
@effort(max_examples=effort().max_examples // 6)
def test_a_meeting_that_costs_nothing_changes_no_plan(seed: int) -> None:
    asked = random_problem(seed, SHIPPED)
    free = replace(asked, settings=replace(asked.settings, meeting_cpus=0.0))
    assert plan(mixed(free, seed)) == plan(asked)


def test_a_batch_container_leaves_the_l3_of_a_protected_one() -> None:
    asked = problem(TREE, [vertex(TREE, "p", 0), vertex(TREE, "b", 0)], {}, SHIPPED)
    proposal = plan(classed(asked, {"p": PROTECTED, "b": BATCH}))
    assert proposal.accepted and len(proposal.moves) == 1
    assert "batch in L3s of protected containers" in proposal.why
    assert not plan(classed(asked, {"p": "standard", "b": BATCH})).accepted


def test_batch_comes_together_where_protected_containers_are_everywhere() -> None:
    leaves = range(len(TREE.leaves))
    vertices = [vertex(TREE, f"p{leaf}", leaf, 0.1, fixed=True) for leaf in leaves]
    vertices += [vertex(TREE, f"b{leaf}", leaf, 0.1) for leaf in leaves]
    kinds = {each.key: PROTECTED if each.key.startswith("p") else BATCH for each in vertices}
    asked = classed(problem(TREE, vertices, {}, SHIPPED), kinds)
    at = after(asked, plan(asked))
    places = {at[f"b{leaf}"] for leaf in leaves}
    assert len(places) < len(leaves) / 2


def test_where_one_container_has_memory_the_other_one_goes() -> None:
    heavy = vertex(TREE, "b", 0, memory_gib=7)
    asked = problem(TREE, [vertex(TREE, "p", 0), heavy], {}, SHIPPED)
    [move] = plan(classed(asked, {"p": PROTECTED, "b": BATCH})).moves
    here, there = (TREE.leaves[site].node for site in (move.source, move.target))
    assert move.key == "p" or here == there


def test_what_is_required_to_be_near_stays_near() -> None:
    asked = problem(TREE, [vertex(TREE, "p", 0), vertex(TREE, "b", 0)], {}, SHIPPED)
    kept = replace(classed(asked, {"p": PROTECTED, "b": BATCH}), held=(HeldPair(0, 1, 1, is_near=True),))
    at = after(kept, plan(kept))
    assert at["p"] == at["b"]


def test_traffic_that_costs_more_than_the_meeting_keeps_them_together() -> None:
    pair = [vertex(TREE, "p", 0), vertex(TREE, "b", 0)]
    asked = problem(TREE, pair, {("p", "b"): 1.0}, SHIPPED)
    assert not plan(classed(asked, {"p": PROTECTED, "b": BATCH})).accepted


@given(seeds, strategies.sampled_from((0.8, 1.0, 1.5)))
@effort(max_examples=effort().max_examples // 6)
def test_plans_are_as_sound_as_without_classes(seed: int, full: float) -> None:
    asked = mixed(random_problem(seed, SHIPPED, full), seed)
    proposal = plan(asked)
    assert proposal == plan(asked)
    at = after(asked, proposal)
    now = {each.key: each.at for each in asked.vertices}
    for each in asked.vertices:
        assert at[each.key] in each.sites
    capacities = [leaf.capacity_milli for leaf in asked.tree.leaves]
    excess = [
        sum(max(0, load - most * 1000) for load, most in zip(loads(asked, where), capacities))
        for where in (now, at)
    ]
    assert excess[1] <= excess[0]
    if excess[0] == excess[1] and proposal.accepted:
        assert cost(asked, at) < cost(asked, now)


@given(seeds)
@effort(max_examples=effort().max_examples // 8)
def test_the_cost_of_meetings_is_that_of_its_definition(seed: int) -> None:
    random = Random(seed)
    vertices = [vertex(TREE, f"c{i}", random.randrange(8), 0.1) for i in range(12)]
    asked = mixed(problem(TREE, vertices, {}, SHIPPED), seed)
    at = {each.key: each.at for each in vertices}
    expected = by_brute_force(asked, at) if asked.has_meetings else 0.0
    assert cost(asked, at) == pytest.approx(expected)


@given(seeds)
@effort(max_examples=effort().max_examples // 8)
def test_what_refinement_says_it_gains_is_what_the_cost_loses(seed: int) -> None:
    instance = Instance(mixed(random_problem(seed, FREE, 1.0), seed))
    at = [each.at for each in instance.problem.vertices]
    if min(at) < 0:
        return
    refinement = Refinement(Arrangement(instance, at), [[0.0] * len(instance.rows) for _ in at], 1e-12, True)
    refinement.run(range(len(at)), 20_000)
    gained = instance.cost(at) - instance.cost(refinement.arrangement.at)
    assert refinement.gained == pytest.approx(gained, abs=1e-9)
    anew = Arrangement(instance, refinement.arrangement.at)
    assert anew.fetched == refinement.arrangement.fetched


@pytest.mark.parametrize("seed", range(6))
def test_with_frozen_classes_plans_come_to_an_end(seed: int) -> None:
    asked = mixed(random_problem(seed), seed)
    for _ in range(4):
        at = after(asked, plan(asked))
        asked = replace(asked, vertices=tuple(replace(v, at=at[v.key]) for v in asked.vertices))
    assert not plan(asked).accepted
