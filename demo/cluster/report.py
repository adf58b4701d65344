"""What wrk has said, and how it is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One measurement of wrk."""

    requests_a_second: float
    median: str
    p99: str


def measurements(log: str) -> list[Measured]:
    """Those that a log of wrk has, oldest first; one that is under way is none."""
    found = re.findall(
        r"^\s+50%\s+(\S+)$.*?^\s+99%\s+(\S+)$.*?^Requests/sec:\s+(\S+)$", log, re.MULTILINE | re.DOTALL
    )
    return [Measured(float(rate), median, p99) for median, p99, rate in found]


def table(rows: list[tuple[str, str, str, list[Measured]]]) -> str:
    """Lines of text: name, CPUs of nginx, CPUs of wrk, each measurement."""
    lines = [
        f"{'':<22} {'nginx on CPUs':<14} {'wrk on CPUs':<12} {'requests/s':>24}  {'median':>8} {'99%':>8}"
    ]
    for name, nginx, wrk, measured in rows:
        rates = ", ".join(f"{m.requests_a_second:,.0f}" for m in measured)
        last = measured[-1]
        lines.append(f"{name:<22} {nginx:<14} {wrk:<12} {rates:>24}  {last.median:>8} {last.p99:>8}")
    return "\n".join(lines)
