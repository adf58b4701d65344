"""What holds for every plan: capacity at every step, fixed containers, an end, and the same answer each time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from math import log

import pytest
from hypothesis import given, strategies
from hypothesis import settings as effort

from bench.affinity_graphs import full_node
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings, Problem
from tests.policies.affinity.problems import (
    FREE,
    SHIPPED,
    after,
    cost,
    loads,
    memory_left,
    random_problem,
    with_memory,
)

seeds = strategies.integers(0, 100_000)


def excess(asked: Problem, at: dict[str, int]) -> int:
    capacities = Instance(asked).capacities
    return sum([max(0, load - most) for load, most in zip(loads(asked, at), capacities)])


@given(seeds, strategies.sampled_from((SHIPPED, FREE)), strategies.sampled_from((0.8, 1.0, 1.5)))
@effort(max_examples=effort().max_examples // 4)
def test_every_prefix_of_a_plan_keeps_capacities_and_sites(
    seed: int, settings: PlanSettings, full: float
) -> None:
    asked = random_problem(seed, settings, full)
    answer = plan(asked)
    start = loads(asked, after(asked, answer, 0))
    most = [max(pair) for pair in zip(Instance(asked).capacities, start)]
    capacities = Instance(asked).capacities
    for count in range(len(answer.moves) + 1):
        now = loads(asked, after(asked, answer, count))
        rest = answer.moves[count:]
        inside = bool(
            count and rest and rest[0].exchange and rest[0].exchange == answer.moves[count - 1].exchange
        )
        allowed = [limit + inside * capacity for limit, capacity in zip(most, capacities)]
        assert all(load <= limit for load, limit in zip(now, allowed)), f"after {count} moves: {now}"
    exchanges = [number for number, _ in groupby([move.exchange for move in answer.moves]) if number]
    assert len(exchanges) == len(set(exchanges)), "the moves of an exchange do not follow each other"
    sites = {vertex.key: vertex.sites for vertex in asked.vertices}
    assert all(move.target in sites[move.key] for move in answer.moves)
    assert all(len(sites[move.key]) > 1 for move in answer.moves), "a fixed container moved"


def problem_of(kind: str, seed: int, settings: PlanSettings, full: float) -> Problem:
    """A graph with containers of all levels, or one whose L3s are as full as they can be."""
    if kind == "random":
        return random_problem(seed, settings, full)
    case, places = full_node(seed, full)
    return replace(case.at(places), settings=settings)


@given(
    seeds,
    strategies.sampled_from(("random", "full")),
    strategies.sampled_from((SHIPPED, FREE)),
    strategies.sampled_from((0.75, 0.9, 0.95, 0.98)),
    strategies.booleans(),
)
@effort(max_examples=effort().max_examples // 2)
def test_wherever_a_plan_is_stopped_it_is_no_dearer_than_its_start_and_memory_has_found_room(
    seed: int, kind: str, settings: PlanSettings, full: float, memory: bool
) -> None:
    asked = problem_of(kind, seed, settings, full)
    asked = with_memory(asked, seed) if memory else asked
    answer = plan(asked)
    start = cost(asked, after(asked, answer, 0))
    for count in range(len(answer.moves) + 1):
        now = after(asked, answer, count)
        left = memory_left(asked, now)
        assert all(free >= 0 for free in left.values()), f"after {count} moves: {left}"
        inside = 0 < count < len(answer.moves) and answer.moves[count - 1].exchange
        if not inside or inside != answer.moves[count].exchange:
            assert cost(asked, now) <= start * (1 + 1e-6), f"after {count} of {len(answer.moves)} moves"


@given(seeds, strategies.sampled_from((0.8, 1.5)))
@effort(max_examples=effort().max_examples // 5)
def test_the_figures_of_a_plan_are_true_and_gain_what_they_must(seed: int, full: float) -> None:
    asked = random_problem(seed, SHIPPED, full)
    answer = plan(asked)
    before, then = after(asked, answer, 0), after(asked, answer)
    assert answer.cost_before == pytest.approx(cost(asked, before))
    assert answer.cost_after == pytest.approx(cost(asked, then))
    assert answer.accepted == bool(answer.moves)
    if answer.accepted and excess(asked, then) == excess(asked, before):
        saved = answer.cost_before - answer.cost_after
        assert saved > 0.1 * answer.cost_before
        assert saved > answer.move_cost / asked.settings.horizon_s
        assert sum([move.gain for move in answer.moves]) == pytest.approx(saved)


@given(seeds, strategies.sampled_from((0.8, 1.5)))
@effort(max_examples=effort().max_examples // 10)
def test_with_frozen_weights_plans_come_to_an_end(seed: int, full: float) -> None:
    asked = random_problem(seed, SHIPPED, full)
    value = (excess(asked, after(asked, plan(asked), 0)), plan(asked).cost_before)
    first, rounds = value[1], 0
    while True:
        answer = plan(asked)
        if not answer.accepted:
            break
        at = after(asked, answer)
        left = excess(asked, at)
        assert left < value[0] or (left == value[0] and answer.cost_after < 0.9 * value[1]), (
            "a plan went back"
        )
        # A repair may cost; the count begins anew there, as there are fewer overfull CPUs each time.
        first, rounds = (answer.cost_after, 0) if left < value[0] else (first, rounds + 1)
        value = (left, answer.cost_after)
        asked = replace(
            asked, vertices=tuple(replace(vertex, at=at[vertex.key]) for vertex in asked.vertices)
        )
        if value[1] > 0:
            assert rounds <= log(first / value[1]) / -log(0.9) + 1e-9


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 30), marks=pytest.mark.long)])
def test_after_one_plan_hardly_anything_moves_while_the_weights_stay_and_after_two_nothing(
    seeds: range,
) -> None:
    again = [0, 0]
    for seed in seeds:
        asked = random_problem(seed)
        for number in range(2):
            at = after(asked, plan(asked))
            asked = replace(asked, vertices=tuple(replace(v, at=at[v.key]) for v in asked.vertices))
            again[number] += plan(asked).accepted
    assert again[0] <= 1
    assert again[1] == 0


def test_the_same_problem_gives_the_same_plan_whatever_the_hash_seed() -> None:
    code = (
        "from policies.affinity.planner.planner import plan\n"
        "from tests.policies.affinity.problems import random_problem\n"
        "print([repr(plan(random_problem(seed, full=1.2))) for seed in range(12)])"
    )
    answers = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        answers.add(done.stdout)
    assert len(answers) == 1
