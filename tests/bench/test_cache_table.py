"""What is read of runs in the virtual machine: which counts belong to which load, lines a request, medians."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cache.plugin import Counts
from bench.cache.table import (
    IDLE,
    Measurement,
    Row,
    Spread,
    agreement,
    background_share,
    beside_alone,
    markdown,
    per_request,
    read_runs_of_boot,
    rows,
)
from bench.cache.virtual import read_runs, show, write_runs

NOTHING = Counts(0, 0, 0, 0, 0, 0, 0)
APART, TOGETHER = ("0-3", "8-11"), ("0-3", "0-3")


def measured(
    placement: str, other_ccx: int, *, load: str = "nginx", requests: int = 100, guest_s: float = 2.0
) -> Measurement:
    counts = replace(NOTHING, other_ccx=other_ccx, l3_misses=other_ccx)
    return Measurement(placement, load, APART, requests, guest_s, counts)


def idle(other_ccx: int, guest_s: float = 1.0) -> Measurement:
    return measured("", other_ccx, load=IDLE, requests=0, guest_s=guest_s)


def said(placement: str, load: str) -> str:
    return json.dumps(
        {
            "placement": placement,
            "load": load,
            "cpus": APART,
            "requests": 100,
            "guest_s": 2.0,
            "answer_bytes": 9,
        }
    )


def test_the_nth_measurement_has_the_nth_marks_counts() -> None:
    counted = {
        "mark 1": replace(NOTHING, memory=1),
        "mark 2": replace(NOTHING, memory=2),
        "all": replace(NOTHING, memory=9),
    }
    (found,) = read_runs_of_boot(
        [f"observer: ebpf\n{said('limit', 'nginx')}", said("observer", "redis")], counted
    )
    assert [(one.placement, one.load, one.counts.memory) for one in found] == [
        ("limit", "nginx", 1),
        ("observer", "redis", 2),
    ]
    assert found[0].cpus == APART


def test_a_measurement_that_is_made_again_is_of_the_next_run() -> None:
    counted = {f"mark {number}": replace(NOTHING, memory=number) for number in range(1, 6)}
    told = [
        *(said("limit", "idle"), said("limit", "nginx"), said("limit", "redis"), said("limit", "nginx")),
        said("observer", "nginx"),
    ]
    first, second = read_runs_of_boot(told, counted)
    assert [(one.placement, one.load) for one in first] == [
        ("limit", "idle"),
        ("limit", "nginx"),
        ("limit", "redis"),
        ("observer", "nginx"),
    ]
    # What the idle machine counts is taken off each.
    assert [(one.load, one.counts.memory) for one in second] == [("idle", 1), ("nginx", 4)]


@pytest.mark.parametrize("marks", [1, 3])
def test_as_many_measurements_as_marks_are_wanted(marks: int) -> None:
    counted = {f"mark {number}": NOTHING for number in range(1, marks + 1)}
    with pytest.raises(ValueError, match=f"of 2 measurements, and the plugin of {marks}"):
        read_runs_of_boot([said("limit", "nginx"), said("limit", "redis")], counted)


def test_what_an_idle_machine_counts_in_the_same_time_is_taken_off() -> None:
    run = [idle(10), idle(1000, guest_s=50.0), idle(20), measured("limit", 540)]
    lines = {"other_ccx": 5.0, "other_socket": 0.0, "memory": 0.0, "l3_misses": 5.0}
    assert per_request(run) == {("limit", "nginx"): lines}
    assert background_share(run, "other_ccx") == pytest.approx(40 / 540)


def test_less_than_an_idle_machine_is_nothing() -> None:
    assert per_request([idle(1000), measured("limit", 7)])["limit", "nginx"]["other_ccx"] == 0.0


def test_without_an_idle_run_all_of_it_counts() -> None:
    assert per_request([measured("limit", 700)])["limit", "nginx"]["other_ccx"] == 7.0


def test_a_row_has_the_median_of_its_runs_and_their_quartiles() -> None:
    runs = [[measured("observer", 0), measured("limit", lines)] for lines in (1000, 9900, 1300, 100, 1100)]
    limit, observer = rows(runs)
    assert limit.lines["other_ccx"] == Spread(11.0, 10.0, 13.0)
    assert limit.lines["other_ccx"].relative == pytest.approx(2 / 11)
    assert observer.lines["other_ccx"].relative == 0.0
    assert agreement([limit, observer], "other_ccx") == pytest.approx(2 / 11)


def test_a_placement_that_a_run_lacks_has_fewer_runs() -> None:
    found = rows([[measured("limit", 100)], [measured("limit", 300), measured("demand", 500)]])
    assert [(row.placement, row.runs, row.lines["other_ccx"].median) for row in found] == [
        ("limit", 2, 2.0),
        ("demand", 1, 5.0),
    ]
    assert agreement(found[1:], "other_ccx") is None


def test_the_table_has_a_part_for_each_load() -> None:
    lines = {
        "other_ccx": Spread(1234.5, 1200.0, 1300.0),
        "other_socket": Spread(0.0, 0.0, 0.0),
        "memory": Spread(2.0, 1.0, 3.0),
        "l3_misses": Spread(9.96, 9.5, 10.0),
    }
    table = markdown([Row("limit", "nginx", APART, 3, lines), Row("limit", "redis", TOGETHER, 1, lines)])
    counters = "from another CCX of the socket | from another socket | from memory | L3 misses in all"
    head = f"| placement | runs | server on CPUs | client | {counters} |"
    assert table.splitlines() == [
        "nginx; lines a request:",
        "",
        head,
        "|---|---|---|---|---|---|---|---|",
        "| limit | 3 | 0-3 | 8-11 | 1,234 (1,200 to 1,300) | 0.0 (0.0 to 0.0) | 2.0 (1.0 to 3.0) | 10.0 (9.5 to 10) |",
        "",
        "redis; lines a request:",
        "",
        head,
        "|---|---|---|---|---|---|---|---|",
        "| limit | 1 | 0-3 | 0-3 | 1,234 | 0.0 | 2.0 | 10.0 |",
    ]


def test_runs_that_are_kept_are_read_as_they_were(tmp_path: Path) -> None:
    runs = [[idle(10), measured("limit", 540)], [idle(11), measured("limit", 440)]]
    write_runs(runs, tmp_path / "runs")
    assert read_runs(tmp_path / "runs") == runs
    assert read_runs(tmp_path / "none") == []


def test_what_is_shown_says_how_far_runs_agree_and_what_was_taken_off() -> None:
    said = show([[idle(20), measured("limit", 1040)], [idle(0), measured("limit", 900)]])
    assert "| limit | 2 | 0-3 | 8-11 | 9.5 (9.2 to 9.8) |" in said
    assert "Half of the runs lie within 3 % of their median: from another CCX of the socket." in said
    assert "at most 3.8 % of the L3 misses" in said


def test_what_a_neighbour_costs_is_told_in_times_of_the_misses_alone_and_in_this_order() -> None:
    places = ("neighbour in another CCX", "isolation at 30%", "neighbour", "alone")
    found = rows(
        [
            [measured(place, count) for place, count in zip(places, (110, 100 + run, 900, 100))]
            for run in (0, 10)
        ]
    )
    assert [row.placement for row in found] == list(reversed(places))
    assert beside_alone(found, "l3_misses") == {
        ("nginx", "neighbour"): 9.0,
        ("nginx", "isolation at 30%"): 1.05,
        ("nginx", "neighbour in another CCX"): 1.1,
    }
    assert beside_alone(rows([[measured("one L3", 5)]]), "l3_misses") == {}
