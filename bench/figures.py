"""What the benchmarks share: percentiles, and a line that says what they ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import grpc


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


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
