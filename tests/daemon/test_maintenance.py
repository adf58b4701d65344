"""Rounds: when the runtime is looked at again for what a comparison has left open."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Callable, Optional, cast

import pytest

from cri_proxy.daemon.maintenance import DOUBT_LOOK_S, Looks

INTERVAL_S = 30.0


class _Timer:
    def __init__(self, at_s: float, then: Callable[[], None]) -> None:
        self.at_s, self.then = at_s, then
        self.is_cancelled = False

    def __lt__(self, other: _Timer) -> bool:
        return self.at_s < other.at_s

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """An event loop of timers only, whose time passes when told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[_Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, then: Callable[[], None]) -> _Timer:
        timer = _Timer(self.now_s + delay_s, then)
        heapq.heappush(self.timers, timer)
        return timer

    def next(self) -> Optional[float]:
        """Let time pass to the next timer that was not cancelled; how long that took, None if there is none."""
        began_s = self.now_s
        while self.timers:
            timer = heapq.heappop(self.timers)
            if not timer.is_cancelled:
                self.now_s = timer.at_s
                timer.then()
                return self.now_s - began_s
        return None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looked(clock: Clock) -> list[float]:
    return []


@pytest.fixture
def looks(clock: Clock, looked: list[float]) -> Looks:
    loop = cast(asyncio.AbstractEventLoop, cast(Any, clock))
    return Looks(lambda: looked.append(clock.now_s), loop)


def test_what_is_left_open_is_looked_at_after_growing_pauses_until_it_is_settled(
    clock, looks, looked
) -> None:
    looks.soon()
    pauses = []
    for _ in range(8):
        pauses.append(clock.next())
        looks.compared(False, INTERVAL_S)
    assert pauses == [DOUBT_LOOK_S, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert len(looked) == 8
    clock.next()
    looks.compared(True, INTERVAL_S)
    assert clock.next() is None


def test_what_a_start_finds_open_is_looked_at_as_well(clock, looks) -> None:
    looks.compared(False, INTERVAL_S)
    assert clock.next() == DOUBT_LOOK_S


def test_something_new_is_looked_at_soon_however_long_the_pause_was(clock, looks) -> None:
    looks.soon()
    for _ in range(5):
        clock.next()
        looks.compared(False, INTERVAL_S)
    looks.soon()
    assert clock.next() == DOUBT_LOOK_S


def test_what_a_round_under_way_may_not_have_seen_is_looked_at_however_that_ends(clock, looks) -> None:
    looks.soon()
    looks.compared(True, INTERVAL_S)
    assert clock.next() == DOUBT_LOOK_S
    looks.compared(True, INTERVAL_S)
    assert clock.next() is None


def test_what_is_settled_before_its_look_needs_none_and_what_comes_then_has_one(clock, looks, looked) -> None:
    looks.compared(False, INTERVAL_S)
    looks.compared(True, INTERVAL_S)
    assert clock.next() is None and not looked
    looks.soon()
    assert clock.next() == DOUBT_LOOK_S


def test_what_comes_again_and_again_does_not_put_off_the_look(clock, looks) -> None:
    looks.soon()
    clock.now_s += 0.7
    looks.soon()
    assert clock.next() == pytest.approx(DOUBT_LOOK_S - 0.7)


def test_what_comes_while_a_look_is_under_way_has_a_look_of_its_own(clock, looks, looked) -> None:
    looks.soon()
    clock.next()
    looks.soon()
    looks.compared(False, INTERVAL_S)
    assert (clock.next(), len(looked)) == (DOUBT_LOOK_S, 2)


def test_rounds_in_between_change_nothing(clock, looks) -> None:
    looks.soon()
    for _ in range(3):
        looks.compared(False, INTERVAL_S)
    assert clock.next() == DOUBT_LOOK_S
    looks.compared(False, INTERVAL_S)
    assert clock.next() == 2 * DOUBT_LOOK_S
