"""What the benchmarks share: percentiles, what a process takes, and how it is all shown."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from tests.agent import ROOT


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@contextlib.contextmanager
def process(*words: str) -> Iterator[int]:
    """A program of ours that says "ready"; its pid."""
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, cwd=ROOT) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
            yield started.pid
        finally:
            started.terminate()


def cpu_s(pid: int) -> float:
    """User and system time of a process so far; 0 is no process."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def memory_mb(pid: int) -> tuple[float, float, float]:
    """Resident memory of a process, its share of what it shares with others, and the most that was resident."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {
        words[0]: int(words[1]) / 1024 for line in rollup + status if (words := line.split())[-1] == "kB"
    }
    return found["Rss:"], found["Pss:"], found["VmHWM:"]


def print_row(*cells: str) -> None:
    """A row of a table in Markdown."""
    print("| " + " | ".join(cells) + " |", flush=True)


def machine_line() -> str:
    """CPU, their number, kernel, Python, grpcio."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cpus = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{model}, {cpus} CPUs, Linux {platform.release()}, Python {python}, grpcio {grpc.__version__}"
