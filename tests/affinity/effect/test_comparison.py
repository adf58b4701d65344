"""Before and after: an effect is what is beyond noise, and load is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cri_proxy.affinity.effect.comparison import (
    BETTER,
    NOISE,
    UNKNOWN,
    WORSE,
    Counts,
    Window,
    compare,
    windows_of,
)

QUIET = (2.0, 2.1, 1.9, 2.0, 2.0)


def windows(rates: Sequence[float], work: float = 1e9, key: str = "a") -> list[Window]:
    """Windows in which one container has these rates, for a thousand of its work."""
    return [{key: Counts(work, (rate * work / 1000,))} for rate in rates]


VERDICTS = {
    "more than twice the spread": ((3.0, 3.1, 2.9, 3.0, 3.0), WORSE),
    "fewer": ((0.5, 0.4, 0.6, 0.5, 0.5), BETTER),
    "the same": (QUIET, NOISE),
    "one window like those before": ((3.0, 3.1, 2.05, 3.0, 3.0), NOISE),
    "more, by less than twice the spread": ((2.3, 2.35, 2.3, 2.3, 2.35), NOISE),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_an_effect_is_beyond_the_spread_before(name: str) -> None:
    after, verdict = VERDICTS[name]
    effect = compare(windows(QUIET), windows(after), 1000)
    assert effect.verdict == verdict
    assert (effect.before[0], effect.after[0]) == pytest.approx((2.0, sum(after) / 5))
    assert effect.noise == pytest.approx(0.2)


def test_a_rise_of_less_than_a_tenth_is_none_though_nothing_varies() -> None:
    assert compare(windows([2.0] * 5), windows([2.19] * 5), 1000).verdict == NOISE
    assert compare(windows([2.0] * 5), windows([2.21] * 5), 1000).verdict == WORSE


def test_so_few_that_they_cost_nothing_are_no_effect() -> None:
    assert compare(windows([0.01] * 5), windows([0.05] * 5), 1000).verdict == NOISE


def test_ten_times_the_load_is_no_effect() -> None:
    effect = compare(windows(QUIET), windows(QUIET, work=1e10), 1000)
    assert (effect.verdict, effect.before, effect.after) == (NOISE, effect.after, effect.before)


def test_that_a_container_with_many_fills_has_more_to_do_than_another_is_no_effect() -> None:
    many, few = (lambda work: Counts(work, (work / 100,))), (lambda work: Counts(work, (0.0,)))
    before: list[Window] = [{"many": many(1e8), "few": few(9e8)}] * 5
    after: list[Window] = [{"many": many(9e8), "few": few(1e8)}] * 5
    effect = compare(before, after, 1000)
    assert effect.verdict == NOISE
    assert effect.after == pytest.approx(effect.before)


def test_a_container_that_is_idle_in_a_window_is_not_compared() -> None:
    idle = [*windows(QUIET, key="b")[:4], {"b": Counts(10.0, (10.0,))}]
    before = [{**a, **b} for a, b in zip(windows(QUIET), idle)]
    after = [{**a, **b} for a, b in zip(windows(QUIET), windows([9.0] * 5, key="b"))]
    effect = compare(before, after, 1000)
    assert (effect.verdict, effect.compared, effect.idle) == (NOISE, 1, 1)


def test_where_nothing_is_busy_on_both_sides_nothing_is_known() -> None:
    assert compare(windows(QUIET), windows(QUIET, key="b"), 1000).verdict == UNKNOWN
    assert compare(windows(QUIET, work=10.0), windows(QUIET), 1000).verdict == UNKNOWN
    assert compare([], windows(QUIET), 1000).verdict == UNKNOWN


def test_each_event_has_its_own_figures_and_the_verdict_is_of_their_sum() -> None:
    before: list[Window] = [{"a": Counts(1e9, (2e6, 0.0))}] * 5
    after: list[Window] = [{"a": Counts(1e9, (0.0, 2e6))}] * 5
    effect = compare(before, after, 1000)
    assert (effect.verdict, effect.before, effect.after) == (NOISE, (2.0, 0.0), (0.0, 2.0))


def test_windows_are_between_looks_and_of_those_that_all_looks_have() -> None:
    looks: list[Window] = [
        {"a": Counts(1, (10.0,)), "b": Counts(0, (0.0,))},
        {"a": Counts(3, (11.0,))},
        {"a": Counts(7, (15.0,)), "b": Counts(0, (0.0,))},
    ]
    assert windows_of(looks) == ({"a": Counts(2, (1.0,))}, {"a": Counts(4, (4.0,))})
    assert windows_of([]) == ()
