"""Turns: each way is first equally often, a round is compared with itself, and medians count."""

from __future__ import annotations

import pytest

from bench.turns import DIRECT, Turns, added_99_s, added_s, of_each, rotated, spread


def test_each_way_has_each_place_equally_often() -> None:
    orders = [rotated("abc", number) for number in range(6)]
    assert orders[:3] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    for place in range(3):
        assert sorted(order[place] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_what_a_way_adds_is_above_direct_in_the_same_round() -> None:
    # The machine was slow in the second round: that is no cost of the way's.
    by_way = {DIRECT: Turns([[1, 1, 9], [5, 5, 5]], [0, 0]), "ours": Turns([[3, 3, 3], [7, 7, 99]], [1, 1])}
    assert added_s(by_way, "ours") == [2, 2]
    assert added_99_s(by_way, "ours") == 90


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0], (4, 4, 4)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], (4, 2, 6)),
        ([1.0, 1.0, 1.0, 50.0], (1, 1, 37.75)),
    ],
    ids=["one round", "quartiles", "one slow round moves no median"],
)
def test_the_spread_is_the_median_and_the_quartiles(values: list[float], expected: tuple[float, ...]) -> None:
    found = spread(values)
    assert (found.median, found.low, found.high) == expected


def test_a_spread_is_shown_in_one_form() -> None:
    assert f"{spread([0.1, 0.2, 0.3]):.1f}" == "0.2 (0.1 to 0.3)"


def test_a_ratio_is_of_each_round_and_one_without_the_others_cost_has_none() -> None:
    assert of_each([1, 2, 3], [2, 4, 0]).median == 0.5
    with pytest.raises(ValueError, match="no round"):
        of_each([1], [-1])
