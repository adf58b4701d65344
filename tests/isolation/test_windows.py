"""What a window says of a container, and which containers are looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.affinity.effect.comparison import Counts
from cri_proxy.affinity.effect.events import CpuModel, misses_of
from cri_proxy.isolation.baselines import CPU_PRESSURE, MEMORY_PRESSURE
from cri_proxy.isolation.windows import (
    AGAIN_S,
    MOST_LEARNING,
    SESSION_S,
    SOONER_S,
    Reading,
    Sessions,
    Wanting,
    batch_ran,
    in_budget,
    signal_of,
    values_of,
)

EVENTS = misses_of(CpuModel("HygonGenuine", 24, 1))
MISSES = signal_of(EVENTS)
THEN = Reading(100.0, Counts(1e9, (5e6,)), 1_000_000, 0)
NOW = Reading(110.0, Counts(2e9, (7e6,)), 2_000_000, 500_000)
PRESSURE = {CPU_PRESSURE: 0.1, MEMORY_PRESSURE: 0.05}


def test_of_a_counted_container_pressure_is_taken_as_well() -> None:
    assert values_of(THEN, NOW, EVENTS) == {MISSES: 2.0, **PRESSURE}


def test_a_container_without_a_counter_has_pressure() -> None:
    then, now = Reading(100.0, None, 1_000_000, 0), Reading(110.0, None, 2_000_000, 500_000)
    assert values_of(then, now, EVENTS) == PRESSURE
    assert values_of(then, now, None) == PRESSURE


def test_a_container_that_hardly_runs_says_nothing() -> None:
    idle = Reading(110.0, Counts(1e9 + 1e6, (6e6,)), 2_000_000, 0)
    assert values_of(THEN, idle, EVENTS) == {}


def test_counters_opened_anew_say_nothing() -> None:
    assert values_of(THEN, Reading(110.0, Counts(0.0, (0.0,))), EVENTS) == {}


def test_a_first_look_and_looks_too_near_or_too_far_apart_are_no_window() -> None:
    assert values_of(None, NOW, EVENTS) == {}
    assert values_of(THEN, Reading(101.0, NOW.counts), EVENTS) == {}
    assert values_of(THEN, Reading(400.0, NOW.counts), EVENTS) == {}


def test_pressure_that_is_not_told_or_begins_anew_says_nothing() -> None:
    then = Reading(100.0, None, 1_000_000, None)
    assert values_of(then, Reading(110.0, None, 5, None), None) == {}


def test_the_signal_names_what_is_counted() -> None:
    assert MISSES.words == "fills from memory per thousand instructions"


# ---------------------------------------------------------------------- batch


def test_batch_ran_if_one_of_it_used_a_hundredth_of_a_cpu() -> None:
    then = {"b": (100.0, 0), "c": (100.0, 0)}
    assert not batch_ran({"b", "c"}, then, {"b": (110.0, 90_000_000), "c": (110.0, 0)})
    assert batch_ran({"b", "c"}, then, {"b": (110.0, 110_000_000), "c": (110.0, 0)})


def test_batch_of_which_nothing_is_known_may_have_run() -> None:
    assert batch_ran({"b"}, {}, {"b": (110.0, 0)})
    assert batch_ran({"b"}, {"b": (100.0, 0)}, {})
    assert not batch_ran((), {}, {})


# ---------------------------------------------------------------------- the budget of counters


def test_those_that_meet_batch_are_counted_before_those_that_learn() -> None:
    wanting = [Wanting("a", 4, False), Wanting("b", 4, True)]
    assert in_budget(wanting, {"a"}, 2, 8) == {"b"}


def test_of_equals_those_that_are_open_already_stay() -> None:
    wanting = [Wanting("a", 4, True), Wanting("b", 4, True)]
    assert in_budget(wanting, {"b"}, 2, 8) == {"b"}
    assert in_budget(wanting, (), 2, 8) == {"a"}


def test_one_too_wide_for_the_rest_is_passed_over() -> None:
    wanting = [Wanting("a", 64, True), Wanting("b", 4, True)]
    assert in_budget(wanting, (), 2, 100) == {"b"}


@given(
    st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=30),
    st.sets(st.integers(0, 29)),
    st.integers(0, 600),
)
def test_the_budget_is_kept_and_a_second_look_changes_nothing(rows, opened, descriptors) -> None:
    wanting = [Wanting(str(number), cpus, meets) for number, (cpus, meets) in enumerate(rows)]
    chosen = in_budget(wanting, {str(number) for number in opened}, 2, descriptors)
    assert sum(2 * each.cpus for each in wanting if each.key in chosen) <= descriptors
    assert in_budget(wanting, chosen, 2, descriptors) == chosen


# ---------------------------------------------------------------------- sessions


def test_a_container_is_looked_at_for_a_session_and_again_half_an_hour_later() -> None:
    sessions = Sessions()
    looked = [at_s for at_s in range(0, 2200, 10) if sessions.chosen({"a": at_s > 100}, float(at_s))]
    assert looked == [
        *range(0, int(SESSION_S) + 10, 10),
        *range(int(AGAIN_S), int(AGAIN_S + SESSION_S) + 10, 10),
    ]


def test_one_that_taught_nothing_is_looked_at_sooner() -> None:
    sessions = Sessions()
    sessions.chosen({"a": False}, 0.0)
    assert sessions.chosen({"a": False}, SOONER_S - 10) == frozenset()
    assert sessions.chosen({"a": False}, SOONER_S) == {"a"}


def test_all_have_their_turn_and_no_more_than_so_many_at_a_time() -> None:
    sessions, had = Sessions(), set()
    keys = dict.fromkeys((f"c{number:03}" for number in range(3 * MOST_LEARNING)), True)
    for at_s in range(0, 1000, 10):
        chosen = sessions.chosen(keys, float(at_s))
        assert len(chosen) <= MOST_LEARNING
        had |= chosen
    assert had == keys.keys()
