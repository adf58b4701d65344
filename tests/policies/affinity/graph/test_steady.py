"""The weight that placements go by: still while a flow is, at once another when the flow is another."""

from __future__ import annotations

from json import dumps, loads
from random import Random

import pytest

from bpf.sources.samples import Flow
from policies.affinity.graph.graph import Graph, GraphSettings
from policies.affinity.graph.traffic import LINE_BYTES

SAMPLE_S = 10.0


def fed(graph: Graph, *lines: float) -> Graph:
    """One sample after another, of so many lines a second between a and b."""
    for rate in lines:
        graph.observe(SAMPLE_S, [Flow("a", "b", bytes_ab=int(rate * LINE_BYTES * SAMPLE_S))])
    return graph


def graph() -> Graph:
    return Graph(GraphSettings(half_life_s=66.0, least_weight=1.0))


def placed_by(graph: Graph) -> float:
    return graph.traffic().edges["a"]["b"]


def told(graph: Graph) -> float:
    [edge] = graph.edges
    return edge.weight


def test_a_new_flow_counts_as_fast_as_it_is_seen() -> None:
    new = fed(graph(), *[1000.0] * 10)
    assert placed_by(new) == pytest.approx(told(new)) == pytest.approx(650.0, abs=5.0)


def test_of_bursts_placements_see_the_mean_and_the_table_the_last_minutes() -> None:
    random = Random(1)
    noisy, by_weight, by_steady = graph(), [], []
    for number in range(1080):
        fed(noisy, 2000.0 if random.random() < 0.5 else 0.0)
        if number >= 360:
            by_weight.append(told(noisy))
            by_steady.append(placed_by(noisy))
    assert max(by_weight) > 1500.0 and min(by_weight) < 600.0
    assert max(by_steady) < 1250.0 and min(by_steady) > 700.0


@pytest.mark.parametrize(
    ("was", "becomes", "least", "most"), [(1000, 20_000, 5000, 20_000), (20_000, 100, 0, 7000)]
)
def test_another_rate_counts_within_two_plans(was: float, becomes: float, least: float, most: float) -> None:
    changed = fed(graph(), *[was] * 360)
    assert placed_by(changed) == pytest.approx(was, rel=0.02)
    fed(changed, *[becomes] * 13)
    assert least < placed_by(changed) < most


def test_a_burst_of_one_sample_is_no_change() -> None:
    assert placed_by(fed(graph(), *[1000.0] * 360, 20_000.0, 0.0, *[1000.0] * 6)) < 1300.0


@pytest.mark.parametrize(("one_in", "periods"), [(10, 6), (30, 4)])
def test_of_a_flow_that_talks_one_minute_in_many_placements_see_the_mean(one_in: int, periods: int) -> None:
    silent, found = 6 * (one_in - 1), graph()
    pattern = [1000.0 * one_in] * 6 + [0.0] * silent
    fed(found, *pattern * periods)
    seen = []
    for rate in pattern * 3:
        seen.append(placed_by(fed(found, rate)))
    assert 600.0 < min(seen) < max(seen) < 1700.0


@pytest.mark.parametrize("samples", [12, 60])
def test_of_a_flow_that_goes_to_and_fro_placements_see_the_mean(samples: int) -> None:
    found, seen = fed(graph(), *([500.0] * samples + [5000.0] * samples) * (480 // samples)), []
    for rate in ([500.0] * samples + [5000.0] * samples) * 2:
        seen.append(placed_by(fed(found, rate)))
    assert 2200.0 < min(seen) < max(seen) < 3500.0


def test_a_bursty_flow_of_another_rate_is_another_pattern() -> None:
    """Bursts that are higher than all before count at once; lower ones once tens of minutes have less than ever."""
    lower, higher = graph(), graph()
    pattern = [10_000.0] * 6 + [0.0] * 54
    fed(lower, *pattern * 12)
    fed(higher, *pattern * 12, *[200_000.0] * 6)
    assert placed_by(higher) > 20_000.0
    fed(lower, *([500.0] * 6 + [0.0] * 54) * 6)
    assert placed_by(lower) < 300.0


def test_a_steady_flow_that_stops_is_no_burst() -> None:
    assert placed_by(fed(graph(), *[1000.0] * 720, *[0.0] * 18)) < 250.0


def test_a_step_below_the_factor_is_followed_over_the_long_window() -> None:
    drifted = fed(graph(), *[1000.0] * 360, *[2000.0] * 60)
    assert 1250.0 < placed_by(drifted) < 1600.0
    assert placed_by(fed(drifted, *[2000.0] * 300)) == pytest.approx(2000.0, rel=0.1)


def test_the_steady_weight_outlives_a_restart_and_an_older_file_has_none() -> None:
    before = fed(graph(), *[1000.0] * 360, 5000.0)
    state, after, older = before.state(), graph(), graph()
    after.restore(state)
    assert placed_by(after) == pytest.approx(placed_by(before))
    older.restore({**state, "edges": [row[:7] for row in state["edges"]], "pasts": []})
    assert placed_by(older) == pytest.approx(told(before))


@pytest.mark.parametrize("at", [3, 30, 300])
def test_a_pattern_outlives_a_restart(at: int) -> None:
    pattern = [30_000.0] * 6 + [0.0] * 174
    before, after = fed(graph(), *pattern * 3, *pattern[:at]), graph()
    after.restore(loads(dumps(before.state())))
    rest = pattern[at:] + pattern
    assert placed_by(fed(after, *rest)) == pytest.approx(placed_by(fed(before, *rest)), rel=1e-3)


def test_a_file_of_the_version_before_begins_a_past() -> None:
    before, after = fed(graph(), *[1000.0] * 360), graph()
    state = before.state()
    del state["pasts"]
    after.restore(state)
    assert placed_by(after) == pytest.approx(placed_by(before))


@pytest.mark.parametrize(
    "past", [["a"], ["a", "x", 0, 1, 1, 1, 1, [], []], ["a", "b", 0, 1, 1, 1, 1, [-1], []], 7]
)
def test_a_past_that_cannot_be_read_is_said_and_nothing_is_taken_over(past: object) -> None:
    state, after = fed(graph(), 1000.0).state(), graph()
    with pytest.raises(ValueError):
        after.restore({**state, "pasts": [past]})
    assert after.edges == []
