"""Real cgroups, processes in them, and events of the kernel's own that any machine counts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable, Optional

from cri_proxy.affinity.effect.events import TYPE_SOFTWARE, Event, EventSet
from cri_proxy.affinity.effect.io.counting import open_group

_SOURCE = "include/uapi/linux/perf_event.h"
CPU_TIME = Event("cpu_time", "nanoseconds of CPU time", 1, _SOURCE, TYPE_SOFTWARE)
PAGE_FAULTS = Event("page_faults", "page faults", 2, _SOURCE, TYPE_SOFTWARE)
SWITCHES = Event("context_switches", "context switches", 3, _SOURCE, TYPE_SOFTWARE)
#: In the place of a core's events: page faults for a millisecond of CPU time.
SOFTWARE = EventSet("software", CPU_TIME, 1e6, "millisecond of CPU time", (PAGE_FAULTS,))

#: Runs for ever; maps, touches and unmaps so many pages in each round, or none. SIGUSR1: the other way round.
BUSY = """
import mmap, signal, sys
pages = int(sys.argv[1])
def turn(*_):
    global pages
    pages = 0 if pages else 64
signal.signal(signal.SIGUSR1, turn)
print(flush=True)
while True:
    if pages:
        with mmap.mmap(-1, pages * 4096) as memory:
            for page in range(pages):
                memory[page * 4096] = 1
    sum(range(20000))
"""


def counted_root() -> Optional[Path]:
    """A directory of the hierarchy that the kernel counts by, and in which cgroups can be made; None = there is none."""
    for root in (Path("/sys/fs/cgroup/perf_event"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if not (root / "cgroup.procs").exists():
            continue
        try:
            with cgroup_in(root) as made:
                descriptor = os.open(made, os.O_RDONLY)
                try:
                    open_group([SWITCHES], min(os.sched_getaffinity(0)), descriptor).close()
                finally:
                    os.close(descriptor)
        except OSError:
            continue
        return root
    return None


@contextlib.contextmanager
def cgroup_in(root: Path, name: str = "") -> Iterator[Path]:
    """A cgroup of its own, empty at the end."""
    path = root / (name or f"cri-resmgr-effect-{os.getpid()}")
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


@contextlib.contextmanager
def busy_in(cgroup: Path, cpu: int, pages: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that cgroup on one CPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(pages)],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: (os.sched_setaffinity(0, {cpu}), (cgroup / "cgroup.procs").write_text("0"))[0],
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def worked_in(cgroup: Path, cpus: Iterable[int]) -> Iterator[Callable[[], float]]:
    """Tells the CPU time of a cgroup on these CPUs, nanoseconds, as the kernel's counters have it.

    Files of /proc are behind them by up to a tick of the scheduler.
    """
    directory = os.open(cgroup, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, directory)
        groups = [open_group([CPU_TIME], cpu, directory) for cpu in cpus]
        for group in groups:
            stack.callback(group.close)
        yield lambda: sum(group.read()[0] for group in groups)
