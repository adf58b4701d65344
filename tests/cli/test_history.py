"""What people read of the history, and when `--since` is."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from cri_proxy.cli.history import BadTime, entry_lines, read_since
from cri_proxy.history.entries import entry_row, write_entry
from tests.history.records import id_of, moved_near, record, shrunk

WEB, DB = "default/web/app", "shop/db/db"
NOON_S = datetime(2026, 3, 1, 12, tzinfo=timezone.utc).timestamp()


def lines(one: Any, *paths: str) -> list[str]:
    entry = write_entry(one, "", NOON_S, {id_of(path): path for path in paths})
    return list(entry_lines(entry_row(1, entry), timezone.utc))


def test_a_decision_is_a_line_and_each_kind_of_change_one_more() -> None:
    others = [f"a/b/{number}" for number in range(5)]
    assert lines(record(1, WEB, outcome="created", changes=(shrunk(*others),)), *others) == [
        "2026-03-01 12:00:00  create default/web/app: 0-7 (ccx), reason 1 -> created",
        "    shrunk a/b/0, a/b/1, a/b/2 and 2 more: 1-7 (ccx)",
    ]


def test_a_move_says_what_it_is_nearer_to() -> None:
    assert lines(record(1, WEB, operation="rebalance", move=moved_near(WEB, DB)), DB)[1] == (
        "    nearer to shop/db/db"
    )


def test_a_cause_without_a_container_is_told_by_its_name() -> None:
    assert lines(record(1, "", operation="restart", id="", stance="", why="", changes=(shrunk(DB),)), DB) == [
        "2026-03-01 12:00:00  restart",
        "    shrunk shop/db/db: 1-7 (ccx)",
    ]


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2 d", 172_800), ("1w", 604_800), ("5min", 300)],
)
def test_since_is_so_long_ago(text: str, ago_s: float) -> None:
    assert read_since(text, 1e9) == 1e9 - ago_s


@pytest.mark.parametrize(
    "text", ["2026-03-01T12:00Z", "2026-03-01 12:00:00+00:00", "2026-03-01T14:00:00+02:00"]
)
def test_since_is_a_date_and_time(text: str) -> None:
    assert read_since(text, 0.0) == NOON_S


def test_a_time_without_a_zone_is_this_machines() -> None:
    assert read_since("2026-03-01", 0.0) == datetime(2026, 3, 1).timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "3", "2026-13-01", "-2h", "9" * 30])
def test_what_is_no_time_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(BadTime, match="expected a length of time such as 30m, 2h or 3d, or a time such as"):
        read_since(text, 0.0)
