"""The planner against others on graphs of known applications, and against a partition that was planted."""

from __future__ import annotations

import pytest

from bench.affinity import overfull, planned
from bench.affinity_baselines import BASELINES, distance_per_byte
from bench.affinity_graphs import HYGON, KUNPENG, Case, applications, heavy_tailed, planted

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
