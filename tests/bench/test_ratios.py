"""The table of ratios: what is worse, what is measured again, and that every ratio has its row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import ratios
from bench.ratios import Kept

KEPT = {"relay": Kept(ratio=1.0, tolerance=0.25), "writes": Kept(ratio=40, tolerance=0.05)}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ({"relay": 1.2, "writes": 41}, []),
        ({"relay": 1.3, "writes": 41}, ["relay"]),
        ({"relay": 0.5, "writes": 43}, ["writes"]),
        ({"writes": 20}, []),
    ],
    ids=["within", "one worse", "better does not make up for worse", "only what was measured"],
)
def test_a_ratio_that_exceeds_its_tolerance_is_worse(found: Mapping[str, float], names: list[str]) -> None:
    assert ratios.worse(found, KEPT) == names


def test_the_rows_say_worse_and_better() -> None:
    rows = ratios.judge({"relay": 1.3, "writes": 20}, KEPT)
    assert rows == ["| relay | 1.3 | 1 | 1.25 | **WORSE** |", "| writes | 20 | 40 | 42 | better |"]


def test_what_is_worse_is_measured_once_more_and_the_lower_counts() -> None:
    runs = iter([{"relay": 1.5, "writes": 39.0}, {"relay": 1.1, "writes": 40.0}])
    assert ratios.hold(lambda: next(runs), KEPT) == {"relay": 1.1, "writes": 39.0}


def test_what_is_worse_twice_stays_worse() -> None:
    assert ratios.worse(ratios.hold(lambda: {"relay": 1.5, "writes": 40.0}, KEPT), KEPT) == ["relay"]


def test_what_is_within_is_measured_once() -> None:
    runs = iter([{"relay": 1.0}])
    assert ratios.hold(lambda: next(runs), KEPT) == {"relay": 1.0}


def test_what_is_measured_is_entered_and_tolerances_stay(tmp_path: Path) -> None:
    table = tmp_path / "ratios.json"
    table.write_text(
        '{"relay": {"ratio": 1.0, "tolerance": 0.25}, "writes": {"ratio": 40, "tolerance": 0.05}}'
    )
    ratios.write({"relay": 0.87654}, table)
    assert ratios.read(table) == {"relay": Kept(0.877, 0.25), "writes": KEPT["writes"]}


def test_a_longer_bench_says_what_is_worse_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "ratios.json"
    table.write_text('{"relay": {"ratio": 1.0, "tolerance": 0.25}}')
    assert ratios.tell({"relay": 1.2}, table) == 0
    assert ratios.tell({"relay": 1.3}, table) == 1
    assert "| relay | 1.3 | 1 | 1.25 | **WORSE** |" in capsys.readouterr().out


def test_tolerances_of_the_table_can_be_exceeded() -> None:
    for name, kept in ratios.read().items():
        assert kept.ratio > 0 and 0 < kept.tolerance <= 0.5, name
