"""A baseline is what a container measures without batch, and it is told from noise by a rule."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.isolation.baselines import (
    CPU_PRESSURE,
    LEAST_WINDOWS,
    MOST_WORKLOADS,
    Baselines,
    baseline_of,
    counted,
)

MISSES = counted("misses")
WEB, OTHER = "default/web/main", "default/other/main"


def learnt(windows: int, value: float = 2.0, key: str = "a", workload: str = WEB) -> Baselines:
    baselines = Baselines()
    for _ in range(windows):
        baselines.learn(key, workload, MISSES, value)
    return baselines


def test_few_windows_are_no_baseline() -> None:
    assert learnt(LEAST_WINDOWS - 1).of("a", WEB, MISSES) is None
    assert learnt(LEAST_WINDOWS).of("a", WEB, MISSES) is not None


def test_a_restarted_replica_has_the_baseline_of_its_workload() -> None:
    baselines = learnt(LEAST_WINDOWS)
    baselines.keep(())
    baseline = baselines.of("b", WEB, MISSES)
    assert baseline is not None and baseline.of_workload and baseline.usual == 2.0
    assert baselines.of("b", OTHER, MISSES) is None


def test_a_containers_own_windows_count_before_those_of_its_workload() -> None:
    baselines = learnt(LEAST_WINDOWS)
    for _ in range(LEAST_WINDOWS):
        baselines.learn("b", WEB, MISSES, 5.0)
    baseline = baselines.of("b", WEB, MISSES)
    assert baseline is not None and not baseline.of_workload and baseline.usual == 5.0


def test_a_container_without_a_workload_teaches_none() -> None:
    assert learnt(LEAST_WINDOWS, workload="").of("b", "", MISSES) is None


def test_signals_have_baselines_of_their_own() -> None:
    assert learnt(LEAST_WINDOWS).of("a", WEB, CPU_PRESSURE) is None


def test_the_margin_is_a_tenth_of_what_was_high() -> None:
    baseline = baseline_of([2.0] * 40, MISSES)
    assert (baseline.usual, round(baseline.limit, 6)) == (2.0, 2.2)
    assert (round(baseline.excess(2.2), 6), baseline.excess(2.0)) == (1.0, 0.0)


def test_where_hardly_anything_is_missed_the_margin_is_what_costs_one_per_cent() -> None:
    assert baseline_of([0.01] * 40, MISSES).limit == 0.01 + 0.05


def test_pressure_has_a_margin_of_a_tenth_of_the_time() -> None:
    assert baseline_of([0.0] * 40, CPU_PRESSURE).limit == 0.1


def test_phases_that_were_seen_are_below_the_limit() -> None:
    baseline = baseline_of([1.0, 1.0, 3.0] * 20, MISSES)
    assert (baseline.usual, baseline.limit) == (1.0, 4.0)


def test_an_outlier_among_many_windows_does_not_move_the_limit() -> None:
    assert baseline_of([2.0] * 57 + [50.0] * 3, MISSES) == baseline_of([2.0] * 60, MISSES)


def test_it_is_known_of_which_containers_there_are_windows_enough() -> None:
    assert not learnt(LEAST_WINDOWS - 1).has("a")
    assert learnt(LEAST_WINDOWS).has("a") and not learnt(LEAST_WINDOWS).has("b")


def test_the_memory_of_workloads_is_bounded() -> None:
    baselines = Baselines()
    for number in range(MOST_WORKLOADS + 10):
        for _ in range(LEAST_WINDOWS):
            baselines.learn("a", f"w{number}", MISSES, 1.0)
    baselines.keep(())
    assert baselines.of("b", "w0", MISSES) is None
    assert baselines.of("b", f"w{MOST_WORKLOADS + 9}", MISSES) is not None
    assert len(baselines._of_workload) == MOST_WORKLOADS


def test_what_was_learnt_of_workloads_is_recalled() -> None:
    after = Baselines()
    after.recall(json.loads(json.dumps(learnt(LEAST_WINDOWS).rows())))
    baseline = after.of("b", WEB, MISSES)
    assert baseline is not None and baseline == learnt(LEAST_WINDOWS).of("b", WEB, MISSES)
    assert after.of("b", WEB, counted("cycles")) is None, "another figure"
    assert after.rows() == learnt(LEAST_WINDOWS).rows()


def test_what_is_learnt_anew_counts_before_what_is_recalled() -> None:
    after = learnt(LEAST_WINDOWS, 7.0)
    after.recall(learnt(LEAST_WINDOWS).rows())
    baseline = after.of("b", WEB, MISSES)
    assert baseline is not None and baseline.usual == 7.0
    assert [row[3] for row in after.rows()] == [7.0]


@pytest.mark.parametrize(
    "rows",
    [
        5,
        [["w"]],
        [["w", "counter", "misses", "many", 3, 10]],
        [["w", "counter", "misses", 3, 2, 10]],
        [["w", "counter", "misses", float("nan"), 2, 10]],
        [["w", "counter", "misses", 1, float("inf"), 10]],
    ],
)
def test_rows_that_are_none_are_refused(rows) -> None:
    with pytest.raises((ValueError, TypeError)):
        Baselines().recall(rows)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_no_window_of_a_short_baseline_is_over_it(windows) -> None:
    baseline = baseline_of(windows, MISSES)
    assert baseline.usual < baseline.limit
    if len(windows) < 30:
        assert all(baseline.excess(value) < 1 for value in windows)
