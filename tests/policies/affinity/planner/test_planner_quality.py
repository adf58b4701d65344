"""The planner against others on graphs of known applications, and against a partition that was planted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.affinity import overfull, planned
from bench.affinity_baselines import BASELINES, distance_per_byte
from bench.affinity_graphs import HYGON, KUNPENG, Case, applications, full_node, heavy_tailed, planted
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings

CASES = (applications(HYGON, 1, 5), applications(KUNPENG, 3, 5), heavy_tailed(HYGON, 200, 2, 5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plans_are_better_than_every_other_way_and_overfill_nothing(case: Case) -> None:
    places = planned(case)
    assert overfull(case, places) == 0
    mine = distance_per_byte(case, places)
    others = {name: distance_per_byte(case, make(case, 0)) for name, make in BASELINES.items()}
    assert mine < min(others.values()), f"{mine} against {others}"


def test_a_planted_partition_is_found_or_bettered() -> None:
    case, partition = planted(HYGON, 3)
    assert distance_per_byte(case, planned(case)) <= distance_per_byte(case, partition)


@pytest.mark.parametrize("seed", [8108, 8116, 8120])
def test_where_the_search_has_found_a_placement_for_all_none_stays_overfull_though_it_does_not_pay(
    seed: int,
) -> None:
    case, _ = full_node(seed, 1.0)
    random = Random(f"thrown {seed}")
    thrown = case.at([random.randrange(4) for _ in case.problem.vertices])
    answer = plan(replace(thrown, settings=PlanSettings(work=2000)))
    assert answer.overfull_before and not answer.overfull_after
    assert answer.accepted and answer.why.startswith("repair, without hysteresis: ")
