"""The weight that placements go by: still while a flow is, at once another when the flow is another."""

from __future__ import annotations

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


def test_a_step_below_the_factor_is_followed_over_the_long_window() -> None:
    drifted = fed(graph(), *[1000.0] * 360, *[2000.0] * 60)
    assert 1250.0 < placed_by(drifted) < 1600.0
    assert placed_by(fed(drifted, *[2000.0] * 300)) == pytest.approx(2000.0, rel=0.1)


def test_the_steady_weight_outlives_a_restart_and_an_older_file_has_none() -> None:
    before = fed(graph(), *[1000.0] * 360, 5000.0)
    state, after, older = before.state(), graph(), graph()
    after.restore(state)
    assert placed_by(after) == pytest.approx(placed_by(before))
    older.restore({**state, "edges": [row[:7] for row in state["edges"]]})
    assert placed_by(older) == pytest.approx(told(before))
