"""Counters of a cgroup, really counted by this kernel: its own events, which need no hardware."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.affinity.effect.events import TYPE_SOFTWARE, Event
from cri_proxy.affinity.effect.io.counting import CounterGroup, open_group
from tests.affinity.effect.io.counted_cgroup import CPU_TIME, PAGE_FAULTS, busy_in, cgroup_in, counted_root

ROOT = counted_root() if os.getuid() == 0 else None
pytestmark = pytest.mark.skipif(ROOT is None, reason="needs root, and a kernel that counts by cgroup")
CPU = min(os.sched_getaffinity(0))


@pytest.fixture
def cgroup() -> Iterator[Path]:
    assert ROOT is not None
    with cgroup_in(ROOT) as path:
        yield path


@pytest.fixture
def group(cgroup: Path) -> Iterator[CounterGroup]:
    descriptor = os.open(cgroup, os.O_RDONLY)
    opened = open_group([CPU_TIME, PAGE_FAULTS], CPU, descriptor)
    os.close(descriptor)  # the counters hold the cgroup by themselves
    yield opened
    opened.close()


def until_more(group: CounterGroup, than: float, index: int) -> float:
    """What the counter says once it says more."""
    while (counted := group.read()[index]) <= than:
        time.sleep(0.01)
    return counted


def test_what_a_cgroup_does_is_counted(group: CounterGroup, cgroup: Path) -> None:
    assert group.read() == (0.0, 0.0)
    with busy_in(cgroup, CPU, pages=64):
        faults = until_more(group, 0, 1)
        until_more(group, faults + 1000, 1)
    work, _ = group.read()
    assert work > 0
    assert group.read()[0] == work, "no process is left in it"


def test_what_another_cgroup_does_is_not(group: CounterGroup, cgroup: Path) -> None:
    assert ROOT is not None
    with cgroup_in(ROOT, f"cri-resmgr-other-{os.getpid()}") as other, busy_in(other, CPU, pages=64):
        descriptor = os.open(other, os.O_RDONLY)
        others = open_group([CPU_TIME, PAGE_FAULTS], CPU, descriptor)
        os.close(descriptor)
        until_more(others, 100, 1)
        others.close()
    assert group.read() == (0.0, 0.0)


def test_descriptors_are_given_back(cgroup: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    descriptor = os.open(cgroup, os.O_RDONLY)
    group = open_group([CPU_TIME, PAGE_FAULTS], CPU, descriptor)
    assert len(os.listdir("/proc/self/fd")) == before + 3
    group.close()
    with pytest.raises(OSError, match="No such"):
        open_group([CPU_TIME, Event("none", "", 999, "", TYPE_SOFTWARE)], CPU, descriptor)
    os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_is_no_cgroup_is_refused(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError) as refused:
            open_group([CPU_TIME], CPU, descriptor)
    finally:
        os.close(descriptor)
    assert refused.value.errno == errno.EBADF
