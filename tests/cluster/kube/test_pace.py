"""The first write is at once; then there is at most one in a period."""

from __future__ import annotations

from cluster.kube.pace import JITTER, WriteRate


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
