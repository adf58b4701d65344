"""Triggers of this machine's own kernel: what it tells reaches the one that listens."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.affinity.demand.io.triggers import PressureTriggers

PRESSURE = Path("/proc/pressure/cpu")
#: A kernel takes it without CAP_SYS_RESOURCE (from 6.5 on).
WINDOW_S = 2.0
#: Of the time: 2 ms in a window, which four times as many loops as CPUs wait at once.
WAITING = 0.001


@pytest.fixture
def triggers(tmp_path: Path) -> Iterator[PressureTriggers]:
    """Of a tree in which two containers have the machine's own pressure, and one has none."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu.pressure").symlink_to(PRESSURE)
    made = PressureTriggers(tmp_path, WINDOW_S)
    made.keep({"first": "/first", "second": "/second", "none": "/none"}, WAITING)
    yield made
    made.close()


@pytest.fixture
def load() -> Iterator[None]:
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(4 * (os.cpu_count() or 1))]
    yield
    for one in loops:
        one.kill()
        one.wait()


def test_what_the_kernel_tells_is_told_on_each_time(triggers: PressureTriggers, load: None) -> None:
    """Twice each: an event that was taken away by something else would not be there."""
    if triggers.problem:
        pytest.skip(f"No triggers here: {triggers.problem}.")
    assert triggers.keys == {"first", "second"}
    heard: queue.Queue[list[str]] = queue.Queue()
    triggers.listen(heard.put)
    times = {"first": 0, "second": 0}
    while min(times.values()) < 2:
        for key in heard.get(timeout=60):
            times[key] += 1


def test_triggers_are_made_anew_where_they_are_to_wait_for_more_or_for_less(tmp_path: Path) -> None:
    """A pipe in the place of the kernel's file keeps what is written to it."""
    (tmp_path / "c").mkdir()
    pipe = tmp_path / "c" / "cpu.pressure"
    os.mkfifo(pipe)
    triggers = PressureTriggers(tmp_path, WINDOW_S)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for waiting, threshold_us in ((0.1, 200_000), (0.2, 400_000), (0.05, 100_000)):
            assert triggers.lacks(["c"], waiting)
            triggers.keep({"c": "/c"}, waiting)
            assert os.read(descriptor, 100).decode() == f"some {threshold_us} 2000000\n"
            assert not triggers.lacks(["c"], waiting)
            triggers.keep({"c": "/c"}, waiting)
            with pytest.raises(BlockingIOError):
                os.read(descriptor, 100)
    finally:
        triggers.close()
        os.close(descriptor)


def test_the_thread_that_listens_ends_with_it(tmp_path: Path) -> None:
    triggers = PressureTriggers(tmp_path)
    triggers.listen(list)
    (listening,) = [thread for thread in threading.enumerate() if thread.name == "pressure"]
    triggers.close()
    assert not listening.is_alive()


def test_a_node_without_descriptors_for_a_moment_has_triggers_with_the_next_try(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "cpu.pressure").symlink_to(PRESSURE)
    triggers = PressureTriggers(tmp_path, WINDOW_S)
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        triggers.keep({"first": "/first"}, WAITING)
        assert (triggers.problem, triggers.keys) == ("", frozenset())
        assert triggers.lacks({"first"}, WAITING)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    triggers.keep({"first": "/first"}, WAITING)
    assert triggers.problem or triggers.keys == {"first"}
    triggers.close()
