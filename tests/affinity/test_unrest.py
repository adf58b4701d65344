"""What moves ask of the plans after them, where containers come and go."""

from __future__ import annotations

import pytest

from cri_proxy.affinity.unrest import Unrest

HOUR_S = 3600.0
FORTY = {str(number) for number in range(40)}


def churned(ended: int) -> Unrest:
    """A node with forty containers after so many have ended."""
    unrest = Unrest()
    unrest.see(FORTY | {f"old {number}" for number in range(ended)}, 0.0)
    unrest.see(FORTY, 0.0)
    return unrest


def test_moves_ask_more_of_the_plans_after_them_and_are_forgotten() -> None:
    unrest = churned(10)
    assert unrest.factor(0.0) == 1.0
    unrest.moved(3, 0.0)
    assert [unrest.factor(hours * HOUR_S) for hours in (0, 1, 2)] == [2.0, 1.5, 1.25]


def test_a_node_that_is_filled_is_not_held_to_its_first_hundred_moves() -> None:
    unrest = churned(10)
    unrest.moved(100, 0.0)
    assert [unrest.factor(hours * HOUR_S) for hours in (0, 1, 2)] == [4.0, 2.5, 1.75]


@pytest.mark.parametrize(("ended", "factor"), [(0, 1.0), (1, 1.1), (5, 1.5), (10, 2.0), (40, 2.0)])
def test_moves_count_by_how_many_containers_have_ended(ended: int, factor: float) -> None:
    unrest = churned(ended)
    unrest.moved(3, 0.0)
    assert unrest.factor(0.0) == pytest.approx(factor)


def test_containers_that_have_ended_are_forgotten_too_and_those_that_come_count_for_nothing() -> None:
    unrest = churned(10)
    unrest.see(FORTY | {"new"}, 8 * HOUR_S)
    unrest.moved(3, 8 * HOUR_S)
    assert unrest.factor(8 * HOUR_S) == pytest.approx(1.0, abs=0.01)


def test_a_clock_that_goes_back_stands_still() -> None:
    unrest = churned(10)
    unrest.moved(3, HOUR_S)
    assert unrest.factor(0.0) == unrest.factor(HOUR_S) > 1.9 / 2 + 0.5


def test_a_node_without_containers_is_at_rest() -> None:
    unrest = Unrest()
    unrest.see((), 0.0)
    unrest.moved(1, 0.0)
    assert unrest.factor(0.0) == 1.0
