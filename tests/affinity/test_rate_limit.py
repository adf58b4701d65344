"""Token buckets: a minute's worth at once, and then so many a minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.affinity.io.rebalancer import Bucket, MoveRateLimit
from cri_proxy.affinity.settings import GIB, AffinitySettings


def test_a_bucket_starts_full() -> None:
    assert Bucket(10, 100.0).tokens(100.0) == 10


@pytest.mark.parametrize(("seconds", "tokens"), [(0, 0), (6, 1), (30, 5), (60, 10), (600, 10)])
def test_tokens_come_at_a_steady_rate_and_no_more_than_a_minutes_worth_is_kept(
    seconds: int, tokens: int
) -> None:
    bucket = Bucket(10)
    bucket.take(10, 0.0)
    assert bucket.tokens(float(seconds)) == pytest.approx(tokens)


def test_what_was_taken_in_advance_must_come_first() -> None:
    bucket = Bucket(10)
    bucket.take(20, 0.0)
    assert (bucket.tokens(60.0), bucket.tokens(120.0)) == (0, 10)


def test_a_clock_that_stands_still_gives_nothing() -> None:
    bucket = Bucket(10, 50.0)
    bucket.take(10, 50.0)
    assert bucket.tokens(40.0) == 0


def test_how_long_to_wait() -> None:
    bucket = Bucket(10)
    bucket.take(10, 0.0)
    assert (bucket.wait_s(1, 0.0), bucket.wait_s(100, 0.0), Bucket(0).wait_s(1, 0.0)) == (6, 60, float("inf"))


SETTINGS = AffinitySettings(moves_per_minute=4, most_memory_bytes=8 * GIB)


def test_moves_a_minute() -> None:
    pace = MoveRateLimit(SETTINGS)
    assert pace.allowed(0.0) == 4
    pace.spend(3, 0, 0.0)
    assert [pace.allowed(now_s) for now_s in (0.0, 14.0, 15.0, 60.0, 600.0)] == [1, 1, 2, 4, 4]


def test_no_moves_while_memory_is_still_following() -> None:
    pace = MoveRateLimit(SETTINGS)
    pace.spend(1, 12 * GIB, 0.0)
    assert (pace.allowed(29.0), pace.allowed(31.0)) == (0, 4)


def test_moves_ask_more_of_the_plans_after_them_and_are_forgotten() -> None:
    pace = MoveRateLimit(SETTINGS)
    assert pace.unrest(0.0) == 1.0
    pace.spend(3, 0, 0.0)
    assert [pace.unrest(hours * 3600.0) for hours in (0, 1, 2)] == [2.0, 1.5, 1.25]
    pace.spend(3, 0, 3600.0)
    assert pace.unrest(3600.0) == 2.5
    # A node that is filled is not held to its first hundred moves.
    pace.spend(300, 0, 3600.0)
    assert [pace.unrest(hours * 3600.0) for hours in (1, 2, 3)] == [4.0, 2.5, 1.75]
    # Nor does a clock that goes back make it more.
    assert pace.unrest(0.0) == 4.0


def test_no_moves_a_minute_freeze_all() -> None:
    assert MoveRateLimit(replace(SETTINGS, moves_per_minute=0)).allowed(1e6) == 0
