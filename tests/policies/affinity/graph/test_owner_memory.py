"""What owners have exchanged outlives their replicas, and is bounded."""

from __future__ import annotations

import pytest

from policies.affinity.graph.owner_memory import FORGOTTEN_AFTER_S, HALF_LIFE_S, MOST_EDGES, OwnerMemory

WEB_DB = ("db", "web")
BOTH = {"db": 1, "web": 3}


def test_the_weight_is_the_mean_of_what_was_exchanged_a_second() -> None:
    memory = OwnerMemory()
    memory.observe(10.0, {WEB_DB: 100.0}, BOTH)
    memory.observe(10.0, {WEB_DB: 300.0}, BOTH)
    assert memory.weights() == pytest.approx({WEB_DB: 20.0})
    memory.observe(20.0, {}, BOTH)
    assert memory.weights() == pytest.approx({WEB_DB: 10.0})


def test_later_what_lies_a_half_life_back_counts_half() -> None:
    memory = OwnerMemory()
    for _ in range(100):
        memory.observe(HALF_LIFE_S, {WEB_DB: 8 * HALF_LIFE_S}, BOTH)
    memory.observe(HALF_LIFE_S, {}, BOTH)
    assert memory.weights() == pytest.approx({WEB_DB: 4.0})


@pytest.mark.parametrize(
    ("key", "replicas", "fades"),
    [
        (WEB_DB, BOTH, True),
        (WEB_DB, {"web": 3}, False),
        (WEB_DB, {"db": 1, "web": 0}, False),
        # Among themselves replicas exchange nothing while there is one of them.
        (("web", "web"), {"web": 1}, False),
        (("web", "web"), {"web": 2}, True),
    ],
)
def test_it_fades_only_while_both_are_there(key, replicas, fades) -> None:
    memory = OwnerMemory()
    memory.observe(10.0, {key: 100.0}, {"db": 1, "web": 2})
    memory.observe(10.0, {}, replicas)
    assert memory.weights() == pytest.approx({key: 5.0 if fades else 10.0})


def test_those_that_have_exchanged_nothing_for_a_day_are_forgotten_and_a_word_between_is_enough() -> None:
    memory = OwnerMemory()
    memory.observe(10.0, {WEB_DB: 100.0}, BOTH)
    memory.observe(FORGOTTEN_AFTER_S, {}, {})
    assert memory.weights()
    memory.observe(1.0, {WEB_DB: 1.0}, BOTH)
    memory.observe(FORGOTTEN_AFTER_S, {}, {})
    assert memory.weights()
    memory.observe(1.0, {}, {})
    assert memory.weights() == {}


def test_of_too_many_the_heaviest_stay_and_of_equal_ones_the_first() -> None:
    heavy = {("a", f"z{number}"): 100.0 for number in range(10)}
    light = {("m", f"n{number:05}"): 10.0 for number in range(MOST_EDGES)}
    owners = {name: 1 for key in (*heavy, *light) for name in key}
    memory = OwnerMemory()
    memory.observe(10.0, {**light, **heavy}, owners)
    kept = memory.weights()
    assert kept.keys() == {*heavy, *sorted(light)[: MOST_EDGES - len(heavy)]}


def test_what_was_kept_goes_on_as_if_the_time_between_had_been_silent() -> None:
    memory, again = OwnerMemory(), OwnerMemory()
    memory.observe(10.0, {WEB_DB: 100.0}, BOTH)
    again.restore(memory.state(), FORGOTTEN_AFTER_S)
    assert again.weights() == memory.weights()
    again.restore(memory.state(), FORGOTTEN_AFTER_S + 1)
    assert again.weights() == {}
    for rows in ([["a", "b", -1.0, 0.0, 0.0]], [["a", "b"]], [["a", "b", "much", 0.0, 0.0]]):
        with pytest.raises(ValueError):
            again.restore(rows, 0.0)
