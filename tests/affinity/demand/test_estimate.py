"""How many CPUs a container needs: worked cases, and what holds for any load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.affinity.demand.estimate import (
    HOUR_S,
    Demand,
    DemandSample,
    DemandSettings,
    ShrinkBudget,
    Verdict,
    between,
    step_for,
    weighted_percentile,
)

#: Hygon, NPS4: a CCX, a node, a node and a CCX, two nodes, a socket, the machine.
STEPS = (8_000, 32_000, 40_000, 64_000, 128_000, 256_000)
S = 1_000_000_000
#: A window that a few samples fill.
SETTINGS = DemandSettings(window_s=60.0)


class Load:
    """A container whose counters go on, and what is said of it."""

    def __init__(
        self, settings: DemandSettings = SETTINGS, limit: int = 64_000, steps: Sequence[int] = STEPS
    ) -> None:
        self.demand = Demand(settings)
        self.steps, self.limit = steps, limit
        self.step = self.step_by_limit = step_for(steps, limit)
        self.sample = DemandSample(0, 0, 0, 0)
        self.demand.add(self.sample)

    @property
    def now_s(self) -> float:
        return self.sample.time_ns / 1e9

    def runs(
        self, milli: int, seconds: float = 5.0, waiting: Optional[float] = 0.0, throttled: float = 0.0
    ) -> Verdict:
        """Use so much for a time; the verdict then."""
        was, span = self.sample, int(seconds * S)
        self.sample = DemandSample(
            was.time_ns + span,
            was.usage_ns + milli * span // 1000,
            was.throttled_ns + int(throttled * span),
            None if waiting is None else (was.waited_ns or 0) + int(waiting * span),
        )
        self.demand.add(self.sample)
        return self.verdict()

    def verdict(self) -> Verdict:
        return self.demand.verdict(self.steps, self.step, self.step_by_limit, 1000, self.limit, self.now_s)

    def carry_out(self, verdict: Verdict) -> Verdict:
        if verdict.action != "keep":
            self.demand.changed(verdict, self.now_s)
        self.step = verdict.step
        return verdict

    def settle(self, milli: int) -> None:
        """Run evenly until nothing changes any more."""
        for _ in range(200):
            self.carry_out(self.runs(milli))


@pytest.fixture
def load() -> Load:
    return Load()


def test_it_starts_at_the_rung_of_its_limit_whatever_it_uses(load):
    verdict = load.runs(500)
    assert (verdict.action, load.steps[verdict.step]) == ("keep", 64_000)
    assert "window" in verdict.why


def test_a_full_window_of_little_use_shrinks_it_by_one_rung_and_another_window_by_another(load):
    actions = [load.carry_out(load.runs(3_000)).action for _ in range(30)]
    assert [at for at, action in enumerate(actions) if action == "shrink"] == [12, 25]
    assert load.steps[load.step] == 32_000


def test_in_the_end_it_has_the_smallest_place_that_holds_its_demand_with_headroom(load):
    load.settle(3_000)
    assert load.steps[load.step] == 8_000
    assert load.demand.milli_need(1000, load.limit) == 3_800


def test_headroom_keeps_a_container_out_of_a_place_that_it_would_just_fill(load):
    load.settle(7_000)
    assert load.steps[load.step] == 32_000


def test_waiting_grows_a_set_at_once(load):
    load.settle(3_000)
    verdict = load.runs(7_900, 0.5, waiting=0.6)
    assert (verdict.action, load.steps[verdict.step]) == ("grow", 32_000)
    assert "waited 60%" in verdict.why


def test_a_container_throttled_at_its_own_quota_does_not_grow():
    load = Load(limit=20_000)
    load.settle(3_000)
    verdict = load.runs(5_000, 0.5, waiting=0.6, throttled=0.6)
    assert verdict.action == "keep"


def test_without_psi_most_of_the_set_in_use_grows_it(load):
    load.settle(3_000)
    assert load.runs(7_000, 0.5, waiting=None).action == "grow"  # by its peak already: it needs 8.75
    load = Load(DemandSettings(window_s=60.0, headroom=0.0, percentile=0.5))
    load.settle(3_000)
    assert load.runs(7_000, 0.5, waiting=None).action == "keep"
    verdict = load.runs(7_300, 0.5, waiting=None)
    assert (verdict.action, verdict.why) == ("grow", "it used 7.3 of 8 CPUs")


def test_a_peak_of_half_a_second_counts_where_the_percentile_takes_it():
    load = Load(DemandSettings(window_s=60.0, percentile=1.0))
    load.settle(3_000)
    assert load.runs(7_900, 0.5).action == "grow"


def test_a_container_that_grows_too_often_goes_back_to_its_limit_for_an_hour_and_says_so():
    settings = DemandSettings(window_s=60.0, growths_per_hour=2)
    load = Load(settings, limit=30_000, steps=(8_000, 32_000))
    for _ in range(2):
        load.settle(3_000)
        assert load.carry_out(load.runs(7_900, 0.5, waiting=0.5)).action == "grow"
    load.settle(3_000)
    verdict = load.carry_out(load.runs(7_900, 0.5, waiting=0.5))
    assert (verdict.action, load.steps[verdict.step]) == ("limit", 32_000)
    assert "3 times within an hour" in verdict.why
    began = load.now_s
    while load.now_s - began < HOUR_S - 3_000:
        verdict = load.carry_out(load.runs(3_000))
        assert verdict.action == "keep"
        assert "3 times within an hour" in verdict.why
    load.settle(3_000)  # by then the first of them is more than an hour ago
    load.settle(3_000)
    load.settle(3_000)
    assert load.steps[load.step] == 8_000


def grows_again_after_s(load: Load) -> float:
    """Use three CPUs evenly, until the set is of eight; wait there; how long it has stayed larger than that."""
    grown_s = load.now_s
    while load.steps[load.step] > 8_000:
        load.carry_out(load.runs(3_000))
    lasted_s = load.now_s - grown_s
    assert load.carry_out(load.runs(3_000, 0.5, waiting=0.5)).action == "grow"
    return lasted_s


def test_a_size_at_which_tasks_waited_against_the_estimate_is_not_had_again_for_an_hour_then_two_then_four():
    load = Load(limit=30_000, steps=(8_000, 32_000))
    first, *later = [round(grows_again_after_s(load) / 60) for _ in range(4)]
    assert first < 5
    assert later == [60, 120, 240]


def test_while_a_size_is_barred_larger_ones_are_not_and_the_verdict_says_so(load):
    load.settle(3_000)
    load.carry_out(load.runs(3_000, 0.5, waiting=0.5))
    load.carry_out(load.runs(3_000, 0.5, waiting=0.5))
    assert load.steps[load.step] == 64_000
    load.carry_out(load.runs(3_000))
    verdict = [load.carry_out(load.runs(3_000)) for _ in range(40)][-1]
    assert load.steps[load.step] == 40_000
    assert "a cpuset of 32 CPUs was too small: not as small again for" in verdict.why


def test_growth_that_the_estimate_explains_bars_nothing():
    load = Load(limit=30_000, steps=(8_000, 32_000))
    load.settle(3_000)
    assert load.carry_out(load.runs(7_900, 5.0, waiting=0.5)).action == "grow"
    load.settle(3_000)
    assert load.steps[load.step] == 8_000


def test_growth_that_use_explains_a_moment_later_bars_nothing():
    load = Load(limit=30_000, steps=(8_000, 32_000))
    load.settle(3_000)
    assert load.carry_out(load.runs(3_000, 0.5, waiting=0.9)).action == "grow"
    load.carry_out(load.runs(20_000))
    load.settle(3_000)
    assert load.steps[load.step] == 8_000


def test_a_size_that_went_well_for_an_hour_after_its_bar_is_judged_as_if_for_the_first_time():
    load = Load(limit=30_000, steps=(8_000, 32_000))
    for _ in range(3):
        grows_again_after_s(load)
    while load.steps[load.step] > 8_000:
        load.carry_out(load.runs(3_000))
    began = load.now_s
    while load.now_s - began < HOUR_S:
        load.carry_out(load.runs(3_000))
    load.carry_out(load.runs(3_000, 0.5, waiting=0.5))
    assert round(grows_again_after_s(load) / 60) == 60


def test_a_limit_that_is_lowered_takes_the_set_down_with_it(load):
    load.step_by_limit = 0
    assert load.verdict().action == "start"


def test_counters_that_begin_anew_say_nothing():
    assert between(DemandSample(0, 500), DemandSample(S, 400)) is None
    assert between(DemandSample(0, 0), DemandSample(1000, 10)) is None


@pytest.mark.parametrize(
    ("values", "part", "expected"),
    [
        ([], 0.5, 0),
        ([(5.0, 1.0)], 0.95, 5),
        ([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)], 0.5, 2),
        ([(1.0, 1.0), (9.0, 3.0)], 0.5, 9),
        ([(1.0, 1.0), (9.0, 1.0)], 1.0, 9),
    ],
)
def test_the_percentile_goes_by_weight(values, part, expected):
    assert weighted_percentile(values, part) == expected


def test_only_so_many_sets_shrink_in_a_minute():
    budget = ShrinkBudget(2)
    assert [budget.take(at_s) for at_s in (0.0, 1.0, 2.0, 59.9, 60.0)] == [True, True, False, False, True]


loads = st.lists(
    st.tuples(
        st.integers(0, 64_000),
        st.sampled_from([0.5, 2.0, 5.0, 30.0]),
        st.one_of(st.none(), st.floats(0, 1)),
        st.floats(0, 1),
    ),
    max_size=60,
)


@given(loads, st.integers(1, 128_000))
def test_whatever_it_does_its_set_is_on_the_staircase_and_not_above_its_limits_rung(steps_of_load, limit):
    load = Load(limit=limit)
    for milli, seconds, waiting, throttled in steps_of_load:
        before = load.step
        verdict = load.carry_out(load.runs(milli, seconds, waiting, throttled))
        assert 0 <= verdict.step <= load.step_by_limit
        assert verdict.why
        if verdict.action == "shrink":
            assert verdict.step == before - 1
        if verdict.action == "grow":
            assert verdict.step > before
        assert (verdict.step == before) == (verdict.action == "keep")


@given(loads)
def test_a_set_never_shrinks_below_its_request(steps_of_load):
    load = Load()
    request = 10_000
    for milli, seconds, waiting, throttled in steps_of_load:
        load.runs(milli, seconds, waiting, throttled)
        verdict = load.demand.verdict(STEPS, load.step, load.step_by_limit, request, load.limit, load.now_s)
        load.carry_out(verdict)
        assert STEPS[load.step] >= request


@given(st.lists(st.integers(0, 64_000), min_size=1, max_size=50))
def test_demand_is_one_of_the_peaks_that_were_seen(usages):
    load = Load()
    for milli in usages:
        load.runs(milli)
    assert load.demand.milli_demand in usages


@given(st.lists(st.tuples(st.integers(0, 64_000), st.integers(1, 30)), min_size=1, max_size=50))
def test_in_a_window_that_is_shorter_than_a_peak_is_kept_the_last_peak_stays(samples):
    load = Load(DemandSettings(window_s=2.0))
    for milli, seconds in samples:
        load.runs(milli, seconds)
    assert load.demand.milli_demand in [milli for milli, _ in samples]
