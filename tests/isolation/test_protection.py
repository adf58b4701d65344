"""Measured protection in a closed loop: what containers measure depends on what the controller leaves to batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cri_proxy.isolation.baselines import CPU_PRESSURE, LEAST_WINDOWS
from cri_proxy.isolation.model import Step
from cri_proxy.isolation.protection import (
    ASKED,
    BACK,
    HOLD_S,
    HOUR_S,
    LESS,
    MOST_CHANGES,
    TAKEN_BACK,
    WINDOW_S,
    Protection,
    ProtectionSettings,
    Watched,
)
from tests.isolation.neighbours import MISSES, SETTINGS, Neighbour, Node, beyond, none

FLOOR = Step(0.1, 0.1)
SEEDS = range(5)


def beside(*neighbours: Neighbour, seed: int = 1, settings: ProtectionSettings = SETTINGS) -> Node:
    """A node whose containers have a baseline and meet batch from now on."""
    node = Node(list(neighbours), settings, seed)
    node.learn()
    return node


def directions(node: Node) -> list[str]:
    return [change.direction for _, change in node.changes]


# ---------------------------------------------------------------------- levels


def test_each_level_is_two_thirds_of_that_before_down_to_the_floor() -> None:
    assert SETTINGS.levels == 3
    assert [SETTINGS.step(level).cache for level in (0, 1, 2, 3)] == [
        None,
        pytest.approx(0.2),
        pytest.approx(0.133, abs=0.001),
        pytest.approx(0.1),
    ]


@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_no_level_is_below_the_floor_or_above_what_is_configured(cache, bandwidth) -> None:
    settings = ProtectionSettings(cache, bandwidth)
    for level in range(1, settings.levels + 1):
        step = settings.step(level)
        assert step.cache is None or 0.1 <= step.cache <= cache
        assert step.bandwidth is None or 0.1 <= step.bandwidth <= bandwidth
    floor = settings.step(settings.levels)
    assert floor.cache is None or floor.cache == pytest.approx(0.1)


def test_what_is_configured_below_the_floor_stays() -> None:
    assert ProtectionSettings(0.05, 0.3).step(3) == Step(None, 0.1)
    assert ProtectionSettings(0.05, 0.1).levels == 0


def test_a_subject_that_is_off_has_no_steps() -> None:
    assert ProtectionSettings(0.3, None).step(3) == Step(0.1, None)
    assert ProtectionSettings(None, None).levels == 0


# ---------------------------------------------------------------------- less


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_gets_less_within_a_minute_of_the_harm(seed) -> None:
    node = beside(Neighbour("a", harm=beyond(0.2)), seed=seed)
    assert [change.direction for change in node.run(60)] == [LESS]
    node.run(100)
    assert node.protection.steps(SETTINGS) == {0: Step(pytest.approx(0.2), pytest.approx(0.2))}


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_gets_less_only_until_it_hurts_no_more(seed) -> None:
    node = beside(Neighbour("a", harm=beyond(0.14)), seed=seed)
    assert [change.direction for change in node.run(HOLD_S)] == [LESS, LESS]
    assert node.level() == 2


def test_only_the_domain_with_the_harm_loses() -> None:
    node = beside(Neighbour("a", frozenset({3}), harm=beyond(0.2)), Neighbour("b", frozenset({4}), harm=none))
    node.run(300)
    assert node.protection.steps(SETTINGS).keys() == {3}


def test_a_container_in_two_domains_protects_itself_in_both() -> None:
    node = beside(Neighbour("a", frozenset({3, 4}), harm=beyond(0.2)))
    node.run(100)
    assert node.protection.steps(SETTINGS).keys() == {3, 4}


def test_one_hurt_container_among_many_is_enough() -> None:
    others = [Neighbour(f"o{number}", harm=none) for number in range(9)]
    node = beside(*others, Neighbour("a", harm=beyond(0.2)))
    node.run(60)
    assert node.level() == 1
    assert "default/a/main: fills from memory" in str(node.row()["why"])


def test_a_burst_of_two_windows_changes_nothing() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.batch = lambda domain, now_s: 1.0 if now_s % 120 < 20 else 0.001
    node.run(HOUR_S)
    assert node.changes == []


def test_the_containers_own_phases_are_its_baseline() -> None:
    def phase(now_s: float) -> float:
        return 3.0 if now_s % 300 < 100 else 1.0

    node = beside(Neighbour("a", harm=none, phase=phase))
    node.run(4 * HOUR_S)
    assert node.changes == []


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_alone_changes_nothing(seed) -> None:
    node = beside(Neighbour("a", harm=none), Neighbour("b", harm=none, noise=0.02), seed=seed)
    node.run(2 * HOUR_S)
    assert node.changes == []


def test_without_a_baseline_nothing_changes_and_the_row_says_so() -> None:
    node = Node([Neighbour("a", harm=beyond(0.2))])
    node.run(HOUR_S)
    assert node.changes == []
    assert "batch has always run beside it" in str(node.row()["protected"])


def test_a_replica_without_windows_of_its_own_is_protected_by_its_workloads_baseline() -> None:
    node = beside(Neighbour("a", harm=beyond(0.2), workload="default/web/main"))
    node.neighbours = [replace(node.neighbours[0], key="b")]
    node.run(60)
    assert node.level() == 1
    assert "its workload's" in str(node.row()["protected"])


def test_windows_in_which_batch_slept_are_windows_without_batch() -> None:
    protection = Protection()
    for number in range(LEAST_WINDOWS):
        watched = Watched("a", "default/a/main", "", frozenset({0}), {MISSES: 2.0}, batch_ran=False)
        assert protection.round([watched], SETTINGS, 10.0 * number) == ()
    assert protection.baselines.of("a", "", MISSES) is not None


def test_pressure_protects_where_nothing_counts() -> None:
    slow = Neighbour("a", usual=0.05, harm=lambda share: share, signal=CPU_PRESSURE)
    node = beside(slow)
    node.run(200)
    assert node.level() == 3
    assert "waited for CPUs" in str(node.row()["why"])


def both(misses: float, waits: float) -> Watched:
    return Watched("a", "default/a/main", "", frozenset({0}), {MISSES: misses, CPU_PRESSURE: waits})


def test_a_counter_outranks_pressure_where_its_baseline_is_known() -> None:
    protection, now_s = Protection(), 0.0
    for now_s in range(0, 10 * LEAST_WINDOWS, 10):
        protection.round([replace(both(2.0, 0.0), batch_ran=False)], SETTINGS, now_s)
    for _ in range(10):
        now_s += WINDOW_S
        assert protection.round([both(2.0, 0.9)], SETTINGS, now_s) == ()
    assert [row["signal"] for row in protection.rows(SETTINGS, now_s)[0]["protected"]] == ["counter"]


def test_a_counter_without_a_baseline_leaves_it_to_pressure() -> None:
    protection, now_s = Protection(), 0.0
    alone = Watched("a", "default/a/main", "", frozenset(), {CPU_PRESSURE: 0.0})
    for now_s in range(0, 10 * LEAST_WINDOWS, 10):
        protection.round([alone], SETTINGS, now_s)
    for _ in range(3):
        now_s += WINDOW_S
        protection.round([both(2.0, 0.9)], SETTINGS, now_s)
    assert protection.steps(SETTINGS).keys() == {0}


# ---------------------------------------------------------------------- back


def test_batch_gets_back_slower_than_it_lost() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.run(200)
    assert node.level() == 3
    node.batch = lambda domain, now_s: 0.001
    began_s = node.now_s
    node.run(HOUR_S)
    back = [at_s - began_s for at_s, change in node.changes if change.direction == BACK]
    assert len(back) == 3 and node.level() == 0
    assert back[-1] - back[0] >= 2 * HOLD_S
    assert node.protection.steps(SETTINGS) == {}


def test_batch_gets_back_where_the_meeting_is_over() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.run(200)
    node.neighbours = []
    node.run(HOUR_S)
    assert node.protection.steps(SETTINGS) == {}
    node.run(2 * HOUR_S)
    assert node.protection.rows(SETTINGS, node.now_s) == []


def test_an_idle_protected_container_needs_no_protection() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.run(200)
    node.neighbours[0].is_idle = True
    node.run(HOUR_S)
    assert node.level() == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_level_that_is_needed_is_tested_ever_more_rarely(seed) -> None:
    node = beside(Neighbour("a", harm=beyond(0.2)), seed=seed)
    node.run(4 * HOUR_S)
    node.changes.clear()
    node.run(4 * HOUR_S)
    assert len(node.changes) <= 10
    assert {change.direction for _, change in node.changes} <= {LESS, BACK}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_container_is_hurt_a_small_part_of_the_time(seed) -> None:
    node = beside(Neighbour("a", harm=beyond(0.2)), seed=seed)
    over = 0
    for _ in range(6 * 360):
        over += node.share(0) > 0.21
        node.window()
    assert over / (6 * 360) < 0.03


# ---------------------------------------------------------------------- did it help


def test_that_a_step_helped_is_shown_with_its_figures() -> None:
    node = beside(Neighbour("a", harm=beyond(0.2)))
    node.run(120)
    helped = node.row()["helped"]
    assert isinstance(helped, dict)
    assert helped["helped"] is True
    assert helped["before"] > 7 and helped["after"] < 2.5 and 1.9 < helped["usual"] < 2.1


@pytest.mark.parametrize("seed", SEEDS)
def test_what_brought_nothing_is_taken_back_and_not_tried_again_for_a_while(seed) -> None:
    node = beside(Neighbour("a", harm=beyond(0.01)), seed=seed)
    node.run(300)
    assert directions(node) == [LESS, LESS, LESS, TAKEN_BACK, ASKED]
    assert node.protection.steps(SETTINGS) == {}
    row = node.row()
    assert row["not_below"] == 0 and "brought nothing" in str(row["why"])
    assert isinstance(row["helped"], dict) and row["helped"]["helped"] is False
    node.run(1200)
    assert LESS not in directions(node)[5:]
    node.run(600)
    assert LESS in directions(node)[5:]


def test_each_time_that_it_brings_nothing_the_wait_is_longer() -> None:
    node = beside(Neighbour("a", harm=beyond(0.01)))
    node.run(24 * HOUR_S)
    at_s = [when_s for when_s, change in node.changes if change.direction == TAKEN_BACK]
    gaps = [later - earlier for earlier, later in zip(at_s, at_s[1:])]
    assert gaps[0] < 2200 and gaps[1] > 3600 and max(gaps) < 15_000
    assert gaps == sorted(gaps) or max(abs(a - b) for a, b in zip(gaps[3:], gaps[4:])) < 300


def test_batch_goes_back_to_the_largest_share_that_is_no_worse_than_the_floor() -> None:
    node = beside(Neighbour("a", noise=0.02, harm=lambda share: 9.0 if share > 0.21 else 4.0))
    node.run(300)
    assert directions(node) == [LESS, LESS, LESS, TAKEN_BACK, ASKED]
    assert node.level() == 1


# ---------------------------------------------------------------------- the planner


def test_at_the_floor_the_planner_is_asked_ever_more_rarely() -> None:
    node = beside(Neighbour("a", noise=0.02, harm=lambda share: 60 * share - 4))
    node.run(8 * HOUR_S)
    asked_s = [at_s for at_s, change in node.changes if change.direction == ASKED]
    assert node.level() == 3
    assert [round((later - earlier) / 600) for earlier, later in zip(asked_s, asked_s[1:])][:3] == [1, 2, 4]
    assert node.row()["asks"] == len(asked_s)


def test_where_nothing_can_be_divided_the_planner_is_asked() -> None:
    node = beside(Neighbour("a", harm=beyond(0.0)), settings=ProtectionSettings(0.05, None))
    assert [change.direction for change in node.run(300)] == [ASKED]


# ---------------------------------------------------------------------- modes


def test_observing_changes_nothing_and_says_what_would_be() -> None:
    node = beside(Neighbour("a", harm=beyond(0.2)), settings=ProtectionSettings(enforces=False))
    node.run(HOUR_S)
    assert node.changes == [] and node.protection.steps(node.settings) == {}
    assert str(node.row()["why"]).startswith("batch would get less: default/a/main")


def test_what_was_taken_comes_back_at_once_where_it_is_only_observed() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.run(200)
    node.settings = ProtectionSettings(enforces=False)
    node.run(WINDOW_S)
    assert node.protection.steps(node.settings) == {}


def test_another_configured_share_has_levels_of_its_own() -> None:
    node = beside(Neighbour("a", harm=beyond(0.1)))
    node.run(200)
    node.settings = ProtectionSettings(0.15, 0.15)
    node.run(WINDOW_S)
    assert node.protection.steps(node.settings) == {0: FLOOR}


# ---------------------------------------------------------------------- whatever happens


@examples(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.1, 0.3, 0.7, 1.0]), st.integers(1, 3))
def test_whatever_is_measured_levels_change_so_often_at_most_and_stay_in_bounds(
    seed, configured, domains
) -> None:
    """Containers come and go, are idle, meet batch or not, and measure anything."""
    chance = random.Random(seed)
    settings = ProtectionSettings(configured, configured)
    protection, changed = Protection(), {number: [] for number in range(domains)}
    keys = [f"c{number}" for number in range(4)]
    mood = 1.0
    for number in range(720):
        now_s = WINDOW_S * number
        if chance.random() < 0.05:
            mood = chance.choice([0.0, 1.0, 1.0, 3.0, 10.0, 100.0])
        watched = [
            Watched(
                key,
                f"default/{key}/main",
                "w",
                frozenset(n for n in range(domains) if number > 60 and chance.random() < 0.95),
                {MISSES: mood * chance.random()} if chance.random() < 0.95 else {},
                chance.random() < 0.95,
            )
            for key in keys
            if chance.random() < 0.98
        ]
        for change in protection.round(watched, settings, now_s):
            if change.direction != ASKED:
                changed[change.domain].append(now_s)
        for step in protection.steps(settings).values():
            assert step.cache is not None and 0.1 <= step.cache <= configured
        protection.rows(settings, now_s)
    for times in changed.values():
        assert all(sum(1 for at_s in times if end - HOUR_S < at_s <= end) <= MOST_CHANGES for end in times)
        assert all(later - earlier >= 2 * WINDOW_S for earlier, later in zip(times, times[1:]))


@examples(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 20), st.floats(0.1, 0.3), st.floats(2.0, 20.0), st.floats(0.01, 0.15))
def test_steady_harm_above_some_share_ends_at_or_below_that_share(seed, knee, rise, noise) -> None:
    node = beside(Neighbour("a", harm=beyond(knee, rise), noise=noise), seed=seed)
    node.run(HOUR_S)
    over = 0
    for _ in range(360):
        over += node.share(0) > knee + 1e-6
        node.window()
    assert over <= 36, "a tenth of the hour goes into trying whether it is needed still"


@examples(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 20))
def test_the_same_windows_lead_to_the_same_changes(seed) -> None:
    one, other = (beside(Neighbour("a"), Neighbour("b", harm=none), seed=seed) for _ in range(2))
    assert one.run(HOUR_S) == other.run(HOUR_S)
