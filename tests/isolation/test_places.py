"""A line of a file, or a word of one, is a place: what it says, what has it said, and what says that there is none."""

from __future__ import annotations

import pytest

from cri_proxy.isolation.places import file_place

MAX = "8:0 rbps=max wbps=4096 riops=max wiops=7\n259:1 rbps=1048576 wbps=max riops=max wiops=max\n"
WEIGHT = "default 100\n8:0 200\n"
QOS = (
    "8:0 enable=1 ctrl=user rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=100.00 max=100.00\n"
    "8:16 enable=1 ctrl=auto rpct=95.00 rlat=25000 wpct=95.00 wlat=50000 min=1.00 max=10000.00\n"
)


@pytest.mark.parametrize(
    ("place", "text", "value", "written"),
    [
        ("cpu.idle", "1\n", "1", "1\n"),
        ("io.max#8:0 wbps", MAX, "4096", "8:0 wbps=4096\n"),
        ("io.max#259:1 rbps", MAX, "1048576", "259:1 rbps=1048576\n"),
        ("io.max#8:16 rbps", MAX, "max", "8:16 rbps=max\n"),
        ("io.max#8:0 rbps", "", "max", "8:0 rbps=max\n"),
        ("io.weight#default", WEIGHT, "100", "default 100\n"),
        ("io.weight#8:0", WEIGHT, "200", "8:0 200\n"),
        ("io.bfq.weight#8:16", WEIGHT, "default", "8:16 default\n"),
        ("blkio.bfq.weight_device#8:16", WEIGHT, "default", "8:16 default\n"),
        ("blkio.throttle.read_bps_device#8:0", "8:0 5\n8:1 6\n", "5", "8:0 5\n"),
        ("blkio.throttle.read_bps_device#8:16", "8:0 5\n", "0", "8:16 0\n"),
        ("io.cost.qos#8:16", QOS, "enable=1 ctrl=auto", "8:16 enable=1 ctrl=auto\n"),
        ("io.cost.qos#8:32", QOS, "enable=0 ctrl=auto", "8:32 enable=0 ctrl=auto\n"),
        ("io.cost.model#8:32", "", "ctrl=auto", "8:32 ctrl=auto\n"),
        # What a shell would take for a comment is a name to the kernel.
        ("pod#8:0/cpu.idle", "1\n", "1", "1\n"),
    ],
)
def test_a_value_that_is_written_is_the_value_that_is_read(
    place: str, text: str, value: str, written: str
) -> None:
    found = file_place(f"file:/sys/fs/cgroup/{place}")
    assert found.value_in(text) == value
    assert found.written(value) == written


def test_numbers_that_somebody_has_set_are_part_of_the_value() -> None:
    value = "enable=1 ctrl=user rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=100.00 max=100.00"
    assert file_place("file:/sys/fs/cgroup/io.cost.qos#8:0").value_in(QOS) == value
