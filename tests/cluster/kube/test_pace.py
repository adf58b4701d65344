"""The first write is at once; then there is at most one in a period."""

from __future__ import annotations

from cluster.kube.pace import AWAY_MOST_S, JITTER, Backoff, WriteRate
from cluster.kube.requests import ApiError, Unreachable


def test_the_first_write_is_at_once() -> None:
    assert WriteRate(10).wait_s(1234.5) == 0


def test_an_hour_of_changes_is_written_at_most_once_in_a_period() -> None:
    pace, writes = WriteRate(10), []
    for second in range(3600):
        if pace.wait_s(second) == 0:
            writes.append(second)
            pace.wrote(second, (second % 7) / 7)
    gaps = [after - before for before, after in zip(writes, writes[1:])]
    assert min(gaps) >= 10 and max(gaps) <= 10 * (1 + JITTER) + 1


def test_after_a_quiet_time_a_write_is_at_once_again() -> None:
    pace = WriteRate(10)
    pace.wrote(0, 1)
    assert pace.wait_s(100) == 0


def test_a_server_that_asks_for_patience_gets_it() -> None:
    pace = WriteRate(10)
    pace.wrote(0, 0)
    pace.wait_longer(0, 60)
    assert pace.wait_s(10) == 50
    pace.wait_longer(0, 5)
    assert pace.wait_s(10) == 50


AWAY, REFUSED = Unreachable("no route"), ApiError(503, "ServiceUnavailable", "etcd is not ready")


def test_a_server_that_is_away_is_tried_within_seconds_however_long_it_has_been_and_not_by_all_at_once() -> (
    None
):
    backoff = Backoff()
    for _ in range(100):
        backoff.after(AWAY, 0.0)
    waits = [backoff.after(AWAY, chance / 10) for chance in range(11)]
    assert (min(waits), max(waits)) == (AWAY_MOST_S / 2, AWAY_MOST_S)
    assert len(set(waits)) == 11


def test_refusals_of_a_server_that_comes_back_are_waited_for_from_the_beginning() -> None:
    backoff = Backoff()
    for _ in range(100):
        backoff.after(AWAY, 1.0)
    assert [backoff.after(REFUSED, 1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_server_that_asks_for_patience_gets_it_from_all_that_fail() -> None:
    assert Backoff().after(ApiError(429, "TooManyRequests", "later", 30.0), 0.5) == 30.0 * 1.05
