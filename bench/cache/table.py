"""What a run in the virtual machine has counted, per request, and the table of several runs. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Optional

from bench.cache.plugin import Counts

IDLE, ALONE = "idle", "alone"
#: Rows in this order; the guest measures in another, as a pair lives through several.
PLACEMENTS = (
    *("no manager", "a NUMA node each", "one NUMA node", "one L3", "limit", "observer", "demand"),
    # In one L3, with a neighbour (neighbour.py); isolation is told with a share: "isolation at 30%".
    *(ALONE, "neighbour", "isolation", "neighbour in another CCX"),
)
#: Columns: counter, title.
COLUMNS = (
    ("other_ccx", "from another CCX of the socket"),
    ("other_socket", "from another socket"),
    ("memory", "from memory"),
    ("l3_misses", "L3 misses in all"),
)


@dataclass(frozen=True)
class Measurement:
    """What lay between one pair of marks. ``cpus``: of the server's container and of the client's, as Linux writes them."""

    placement: str
    load: str
    cpus: tuple[str, str]
    requests: int
    guest_s: float
    counts: Counts


@dataclass(frozen=True)
class Spread:
    """Of a number over several runs: median and quartiles."""

    median: float
    lower: float
    upper: float

    @property
    def relative(self) -> float:
        """How far the quartile that is farther off lies from the median, of that."""
        farther = max(self.upper - self.median, self.median - self.lower)
        return farther / self.median if self.median else 0.0


@dataclass(frozen=True)
class Row:
    """A placement under a load; ``lines``: a spread for each of ``COLUMNS``, lines a request."""

    placement: str
    load: str
    cpus: tuple[str, str]
    runs: int
    lines: Mapping[str, Spread]


def read_runs_of_boot(said: Iterable[str], counted: Mapping[str, Counts]) -> list[list[Measurement]]:
    """Runs of one boot, from what its checks have printed and the plugin's counts; a run has each load under each
    placement once, and all measurements of the idle machine.

    :raises ValueError: there are not as many measurements as pairs of marks, so which is whose cannot be told.
    """
    told = [
        json.loads(line) for text in said for line in text.splitlines() if line.startswith('{"placement"')
    ]
    marks = [name for name in counted if name.startswith("mark ")]
    if len(told) != len(marks):
        raise ValueError(f"the guest tells of {len(told)} measurements, and the plugin of {len(marks)}")
    idle: list[Measurement] = []
    runs: list[list[Measurement]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for number, one in enumerate(told, start=1):
        key = one["placement"], one["load"]
        cpus = one["cpus"][0], one["cpus"][1]
        made = Measurement(*key, cpus, one["requests"], one["guest_s"], counted[f"mark {number}"])
        if one["load"] == IDLE:
            idle.append(made)
            continue
        if seen[key] == len(runs):
            runs.append([])
        runs[seen[key]].append(made)
        seen[key] += 1
    return [[*idle, *run] for run in runs]


def per_request(run: Sequence[Measurement]) -> dict[tuple[str, str], dict[str, float]]:
    """By placement and load: lines a request of each of ``COLUMNS``, less what the idle machine counts in that time.

    Of several idle measurements of a run the median counts; below zero is zero.
    """
    idle = [one for one in run if one.load == IDLE]
    found = {}
    for one in run:
        if one.load == IDLE:
            continue
        lines = {}
        for counter, _ in COLUMNS:
            own = [getattr(other.counts, counter) / other.guest_s for other in idle]
            background = median(own) * one.guest_s if own else 0.0
            lines[counter] = max(getattr(one.counts, counter) - background, 0.0) / one.requests
        found[one.placement, one.load] = lines
    return found


def background_share(run: Sequence[Measurement], counter: str) -> float:
    """The part of a counter that the idle machine makes: the largest of all measurements."""
    lines = per_request(run)
    counted = {
        (one.placement, one.load): getattr(one.counts, counter) / one.requests for one in run if one.requests
    }
    return max((1 - lines[key][counter] / count for key, count in counted.items() if count), default=0.0)


def rows(runs: Sequence[Sequence[Measurement]]) -> list[Row]:
    """In the order of ``PLACEMENTS``; a placement that a run lacks has fewer runs. CPUs are those of the first run."""
    by_run = [per_request(run) for run in runs]
    cpus: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        for one in run:
            if one.load != IDLE:
                cpus.setdefault((one.placement, one.load), one.cpus)
    made = []
    for (placement, load), places in sorted(cpus.items(), key=lambda item: _place_in_table(item[0][0])):
        found = [run[placement, load] for run in by_run if (placement, load) in run]
        lines = {counter: _spread([one[counter] for one in found]) for counter, _ in COLUMNS}
        made.append(Row(placement, load, places, len(found), lines))
    return made


def _place_in_table(placement: str) -> int:
    return PLACEMENTS.index(placement.partition(" at ")[0])


def beside_alone(of: Sequence[Row], counter: str) -> dict[tuple[str, str], float]:
    """By load and placement: the median over that of the pair alone, where that was measured."""
    alone = {row.load: row.lines[counter].median for row in of if row.placement == ALONE}
    return {
        (row.load, row.placement): row.lines[counter].median / alone[row.load]
        for row in of
        if row.placement != ALONE and alone.get(row.load)
    }


def _spread(values: Sequence[float]) -> Spread:
    lower, middle, upper = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(middle, lower, upper)


def markdown(of: Sequence[Row]) -> str:
    """A table for each load: medians, and in brackets the quartiles."""
    lines: list[str] = []
    for load in dict.fromkeys(row.load for row in of):
        lines += ["", f"{load}; lines a request:", ""]
        lines.append(
            f"| placement | runs | server on CPUs | client | {' | '.join(title for _, title in COLUMNS)} |"
        )
        lines.append("|---" * (4 + len(COLUMNS)) + "|")
        for row in (row for row in of if row.load == load):
            cells = [_cell(row.lines[counter], row.runs) for counter, _ in COLUMNS]
            lines.append(
                f"| {row.placement} | {row.runs} | {row.cpus[0]} | {row.cpus[1]} | {' | '.join(cells)} |"
            )
    return "\n".join(lines[1:])


def _cell(lines: Spread, runs: int) -> str:
    return _number(lines.median) if runs == 1 else (
        f"{_number(lines.median)} ({_number(lines.lower)} to {_number(lines.upper)})"
    )  # fmt: skip


def _number(lines: float) -> str:
    return f"{lines:.1f}" if lines < 10 else f"{lines:,.0f}"


def agreement(of: Sequence[Row], counter: str) -> Optional[float]:
    """How far a quartile lies from the median at most, of that, over rows of several runs; None if there is none."""
    found = [row.lines[counter].relative for row in of if row.runs > 1]
    return max(found) if found else None
