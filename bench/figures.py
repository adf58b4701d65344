"""What the benchmarks share: percentiles, what a process takes, and how it is all shown."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from tests.agent import ROOT


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


#: By variable and by option of mallopt(3). A heap that shrinks after a large message, or does not, by where its blocks
#: happen to lie, makes such a message cost twice the CPU time, or not.
_STEADY_HEAP = {"MALLOC_TRIM_THRESHOLD_": (-1, 1 << 28), "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 25)}


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """This process and those that it starts have one CPU, and heaps that do not shrink; its own heap stays so."""
    library = ctypes.CDLL(None)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cpus)})
    for name, (option, size) in _STEADY_HEAP.items():
        library.mallopt(option, size)
        os.environ[name] = str(size)
    try:
        yield
    finally:
        for name in _STEADY_HEAP:
            del os.environ[name]
        os.sched_setaffinity(0, cpus)


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
    """CPU time of a whole process so far, to the nanosecond (clock_getcpuclockid(3)); 0 is no process."""
    return time.clock_gettime((~pid << 3) | 2) if pid else 0.0


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
