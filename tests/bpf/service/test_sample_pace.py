"""When samples are due: sooner while the table of pairs is more than half full, within bounds, and never in a bunch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.service.service import SamplePace, next_pause_s

intervals = st.floats(0.02, 3600.0)
#: What an earlier interval has left, too.
pauses = st.floats(0.001, 10_000.0)
fills = st.floats(0.0, 1.5)


@given(intervals, pauses, fills)
def test_a_pause_is_between_a_quarter_of_the_interval_and_the_whole(
    interval_s: float, pause_s: float, fill: float
) -> None:
    assert interval_s / 4 <= next_pause_s(interval_s, pause_s, fill) <= interval_s


@given(intervals, pauses, fills, fills)
def test_a_fuller_table_is_never_looked_at_later(
    interval_s: float, pause_s: float, one: float, other: float
) -> None:
    least, most = sorted((one, other))
    assert next_pause_s(interval_s, pause_s, most) <= next_pause_s(interval_s, pause_s, least)


@given(intervals, st.floats(0.25, 0.5), st.floats(0.25, 1.0))
def test_between_a_quarter_and_half_the_pace_is_kept(interval_s: float, fill: float, part: float) -> None:
    pause_s = interval_s * part
    assert next_pause_s(interval_s, pause_s, fill) == pause_s


@given(intervals, st.floats(0.0, 4.0))
def test_a_steady_rate_of_pairs_is_held_where_a_quarter_of_the_interval_holds_it(
    interval_s: float, fill_of_an_interval: float
) -> None:
    pause_s, fills_seen = interval_s, []
    for _ in range(10):
        fills_seen.append(fill_of_an_interval * pause_s / interval_s)
        pause_s = next_pause_s(interval_s, pause_s, fills_seen[-1])
    assert fills_seen[-1] <= 1.0
    # It has settled: nothing swings between two paces.
    assert len(set(fills_seen[-3:])) == 1


@given(intervals, st.lists(fills, max_size=20))
def test_an_empty_table_ends_it_after_two_samples(interval_s: float, before: list[float]) -> None:
    pace = SamplePace(interval_s, 0.0)
    for fill in [*before, 0.0, 0.0]:
        pace.follow(interval_s, fill)
    assert pace.pause_s == pytest.approx(interval_s)


DUE = {
    "an empty table": ([0.0, 0.0, 0.0], [10, 20, 30, 40]),
    "one that fills": ([0.6, 0.6, 0.6], [10, 15, 17.5, 20]),
    "one that empties": ([0.6, 0.6, 0.3, 0.1, 0.1], [10, 15, 17.5, 20, 25, 35]),
}


@pytest.mark.parametrize("name", DUE)
def test_samples_are_due_a_pause_apart(name: str) -> None:
    found, due = DUE[name]
    pace = SamplePace(10.0, 0.0)
    at_s = [pace.due_after(0.0)]
    for fill in found:
        pace.follow(10.0, fill)
        # The sample has taken its time: the next is due as if it had not.
        at_s.append(pace.due_after(at_s[-1] + 0.5))
    assert at_s == due


@given(st.lists(st.tuples(fills, st.floats(0.0, 100.0)), min_size=2, max_size=20))
def test_samples_that_were_missed_are_not_made_up_for(samples: list[tuple[float, float]]) -> None:
    pace, now_s, due = SamplePace(10.0, 0.0), 0.0, []
    for fill, took_s in samples:
        due.append(pace.due_after(now_s))
        assert due[-1] >= now_s
        now_s = due[-1] + took_s
        pace.follow(10.0, fill)
    assert all(later - earlier > 2.499 for earlier, later in zip(due, due[1:]))


def test_a_new_interval_bounds_the_next_pause() -> None:
    pace = SamplePace(10.0, 0.0)
    pace.follow(1.0, 0.0)
    assert pace.pause_s == 1.0
    pace.follow(60.0, 0.3)
    assert pace.pause_s == 15.0
