"""How busy a CPU was, from what the kernel counts (proc(5))."""

from __future__ import annotations

from cri_proxy.view.snapshot import loads, mean_load, read_times

BEFORE = """cpu  10 0 10 100 0 0 0 0 0 0
cpu0 10 0 10 100 20 0 0 0 0 0
cpu1 0 0 0 50 0 0 0 0 0 0
cpu3 5 5 5 5 5 5 5 5 9 9
intr 12345 0 0
ctxt 5
"""
NOW = """cpu  10 0 10 100 0 0 0 0 0 0
cpu0 40 0 30 130 40 0 0 0 0 0
cpu1 0 0 0 150 0 0 0 0 0 0
cpu2 100 0 0 0 0 0 0 0 0 0
"""


def test_idle_and_waiting_for_a_disk_is_not_busy() -> None:
    assert loads(read_times(BEFORE), read_times(NOW)) == {0: 0.5, 1: 0.0}


def test_a_guests_time_counts_once() -> None:
    assert read_times(BEFORE)[3] == (30, 40)


def test_counters_that_go_back_and_two_readings_at_once_are_not_told() -> None:
    times = read_times(NOW)
    assert loads(times, times) == {}
    assert loads({0: (50, 1000)}, {0: (60, 900)}) == {}


def test_the_mean_is_that_of_the_cpus_that_are_known() -> None:
    assert mean_load([0, 1, 7], {0: 0.5, 1: 0.0}) == 0.25
    assert mean_load([7], {0: 0.5}) is None
