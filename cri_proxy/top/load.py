"""How busy CPUs are, from two readings of ``/proc/stat`` (proc(5)). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

#: Ticks that a CPU was busy, and all of its ticks.
Times = Mapping[int, tuple[int, int]]


def read_times(stat: str) -> dict[int, tuple[int, int]]:
    """The ticks of each CPU. Idle and waiting for a disk is not busy; a guest's time is in that of its host."""
    found = {}
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name[:3] == "cpu" and name[3:].isdigit():
            ticks = [int(word) for word in rest.split()[:8]]
            if len(ticks) >= 5:
                total = sum(ticks)
                found[int(name[3:])] = total - ticks[3] - ticks[4], total
    return found


def loads(before: Times, now: Times) -> dict[int, float]:
    """The part of the time between two readings that each CPU was busy, 0 to 1; of CPUs that are in both."""
    found = {}
    for cpu, (busy, total) in now.items():
        if cpu in before:
            passed = total - before[cpu][1]
            if passed > 0:
                found[cpu] = min(1.0, max(0.0, (busy - before[cpu][0]) / passed))
    return found


def mean_load(cpus: Iterable[int], by_cpu: Mapping[int, float]) -> Optional[float]:
    """Of some CPUs; None: of none of them it is known."""
    known = [by_cpu[cpu] for cpu in cpus if cpu in by_cpu]
    return sum(known) / len(known) if known else None
