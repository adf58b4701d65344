"""Prints the tables of docs/benchmarks.md: ``python -m bench.demand``.

1. Four machines under five kinds of load: how far containers are spread, and what that costs them. 2. 20 to 300 containers.
3. What the kernel tells of waiting, or does not. 4. The options of the estimate, one at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Optional

import click
import numpy as np

from bench.demand.scheduler import build_scheduler
from bench.demand.simulation import Outcome, SimulatedNode, together
from bench.demand.traces import KINDS, Trace, loads
from bench.demand.ways import ByDemand, ByLimit, NoManager, Oracle, Way
from bench.figures import machine_line, print_row
from bench.placement import MACHINES, Machine
from cri_proxy.affinity.demand.estimate import DemandSettings
from policies.machine.topology import Topology

#: Those with several L3s a socket that are smaller than a node, or equal to it.
CHIPLETS = MACHINES[:4]
TABLES = ("machines", "containers", "kernels", "options")
COUNTS = (20, 100, 300)
SWEEP: dict[str, Sequence[Any]] = {
    "window_s": (120.0, 300.0, 600.0, 1200.0),
    "percentile": (0.5, 0.8, 0.95, 1.0),
    "headroom": (0.0, 0.1, 0.25, 0.5, 1.0),
    "waiting": (0.1, 0.2, 0.3, 0.5, 0.8),
}


class Bench:
    """The same traces for all ways, one of each seed. ``filled``: the part of a node's CPUs that is used in the mean."""

    def __init__(
        self,
        library: Any,
        seeds: Sequence[int],
        settle_s: float,
        measured_s: float,
        filled: float,
        wander: float,
    ) -> None:
        self._library, self._seeds, self._filled, self._wander = library, seeds, filled, wander
        self._settle_s, self._seconds = settle_s, settle_s + measured_s
        self._traces: tuple[object, list[Trace]] = (None, [])

    def _of(self, kind: str, count: int, cpus: int) -> list[Trace]:
        """The traces of all seeds; only the last ones are kept: they are large."""
        key = (kind, count, cpus)
        if self._traces[0] != key:
            made = [
                Trace(loads(kind, count, cpus, self._filled, seed), self._seconds, seed)
                for seed in self._seeds
            ]
            self._traces = (key, made)
        return self._traces[1]

    def run(self, kind: str, count: int, topology: Topology, make: Callable[[Trace], Way]) -> Outcome:
        """All seeds together."""
        outcomes = []
        for seed, trace in zip(self._seeds, self._of(kind, count, len(topology.cpus))):
            node = SimulatedNode(self._library, topology, trace, make(trace), self._wander, seed)
            outcomes.append(node.run(self._settle_s))
        return together(outcomes)

    def all_ways(self, kind: str, count: int, topology: Topology) -> tuple[Outcome, ...]:
        """None, limit, demand, oracle."""
        ways: tuple[Callable[[Trace], Way], ...] = (
            lambda _: NoManager(topology),
            lambda _: ByLimit(topology),
            lambda _: ByDemand(topology, DemandSettings()),
            lambda trace: Oracle(topology, trace.peaks(Oracle.KNOWN_S)),
        )
        return tuple([self.run(kind, count, topology, way) for way in ways])


def to_grow(times: Sequence[float]) -> str:
    """Median and p99 of times to grow, and how many there were."""
    if not times:
        return "–"
    return f"{np.percentile(times, 50):.2f}, {np.percentile(times, 99):.2f} s ({len(times)})"


def percent(part: float) -> str:
    return f"{part:.2%}"


WAYS_HEADER = (
    "L3s of a running CPU: none, limit, **demand**, oracle",
    "late in a shrunk set: **demand**, oracle",
    "late as others had the CPUs: none, limit, **demand**, oracle",
    "time to grow: p50, p99 (growths)",
    "changes of a set an hour",
)


def row_of(outcomes: tuple[Outcome, ...]) -> list[str]:
    """The cells under ``WAYS_HEADER``."""
    none, limit, demand, oracle = outcomes
    l3s = [f"{outcome.l3s:.2f}" for outcome in outcomes]
    others = [percent(outcome.late("late_whole", "late_node")) for outcome in (none, limit, demand, oracle)]
    return [
        f"{l3s[0]}, {l3s[1]}, **{l3s[2]}**, {l3s[3]}",
        f"**{percent(demand.late('late_shrunk'))}**, {percent(oracle.late('late_shrunk'))}",
        f"{others[0]}, {others[1]}, **{others[2]}**, {others[3]}",
        to_grow(demand.grown_s),
        f"{demand.changes_an_hour:.2f}",
    ]


def header(*cells: str) -> None:
    print_row(*cells)
    print("|---" * len(cells) + "|", flush=True)


def machines(bench: Bench, chosen: Sequence[Machine], count: int) -> None:
    """Every machine under every kind of load."""
    print(f"\n## Four machines, {count} containers\n")
    header("machine", "load", *WAYS_HEADER)
    grown_s: list[float] = []
    for kind in KINDS:  # all machines have as many CPUs: one trace serves them all
        for machine in chosen:
            outcomes = bench.all_ways(kind, count, machine.topology())
            grown_s += outcomes[2].grown_s
            print_row(machine.name, kind, *row_of(outcomes))
    print(f"\nAll times to grow: {to_grow(grown_s)}.")


def containers(bench: Bench, machine: Machine) -> None:
    """More and smaller ones, of all kinds."""
    print(f"\n## Containers of all kinds, {machine.name}\n")
    header("containers", *WAYS_HEADER)
    for count in COUNTS:
        print_row(str(count), *row_of(bench.all_ways("mixed", count, machine.topology())))


OPTIONS_HEADER = (
    "L3s of a running CPU",
    "late in a shrunk set",
    "of the worst container",
    "late as others had the CPUs",
    "time to grow: p50, p99 (growths)",
    "changes of a set an hour",
)


def option_cells(outcome: Outcome) -> list[str]:
    """The cells under ``OPTIONS_HEADER``."""
    return [
        f"{outcome.l3s:.2f}",
        percent(outcome.late("late_shrunk")),
        percent(outcome.worst),
        percent(outcome.late("late_whole", "late_node")),
        to_grow(outcome.grown_s),
        f"{outcome.changes_an_hour:.2f}",
    ]


def kernels(bench: Bench, machine: Machine, count: int) -> None:
    """With PSI triggers, with counters of PSI alone, without PSI."""
    print(f"\n## What the kernel tells, {count} containers of all kinds, {machine.name}\n")
    topology = machine.topology()
    header("PSI", *OPTIONS_HEADER)
    for psi in ("triggers", "counters", "none"):
        outcome = bench.run("mixed", count, topology, partial(_by_demand, topology, DemandSettings(), psi))
        print_row(psi, *option_cells(outcome))


def options(bench: Bench, machine: Machine, count: int) -> None:
    """Each option of the estimate by itself."""
    print(f"\n## Options, {count} containers of all kinds, {machine.name}\n")
    topology = machine.topology()
    default = DemandSettings()
    header("option", *OPTIONS_HEADER)
    print_row("by limit", *option_cells(bench.run("mixed", count, topology, lambda _: ByLimit(topology))))
    rows = {"**defaults**": default}
    for name, values in SWEEP.items():
        for value in values:
            if value != getattr(default, name):
                rows[f"{name.removesuffix('_s')} {value:g}"] = replace(default, **{name: value})
    for title, settings in rows.items():
        outcome = bench.run("mixed", count, topology, partial(_by_demand, topology, settings, "triggers"))
        print_row(title, *option_cells(outcome))


def _by_demand(topology: Topology, settings: DemandSettings, psi: str, trace: Trace) -> Way:
    return ByDemand(topology, settings, psi)


@click.command()
@click.option(
    "--seeds", default="1:1", help="First and number: loads, traces, the scheduler.", show_default=True
)
@click.option("--settle", "settle_s", default=3600, help="Seconds before anything counts.", show_default=True)
@click.option("--measure", "measured_s", default=1800, help="Seconds that count.", show_default=True)
@click.option("--count", default=40, help="Containers, where a table does not say.", show_default=True)
@click.option(
    "--filled", default=0.3, help="The part of the CPUs that is used in the mean.", show_default=True
)
@click.option(
    "--wander", default=0.1, help="How often a thread that wakes up is drawn elsewhere.", show_default=True
)
@click.option("--machine", "number", type=click.IntRange(1, len(CHIPLETS)), help="One of the machines only.")
@click.option("--only", type=click.Choice(TABLES), help="One table.")
def main(
    seeds: str,
    settle_s: int,
    measured_s: int,
    count: int,
    filled: float,
    wander: float,
    number: Optional[int],
    only: Optional[str],
) -> None:
    """All tables, or one."""
    first, number_of_seeds = [int(part) for part in seeds.split(":")]
    print(machine_line())
    print(
        f"seeds {seeds}, {settle_s} s and then {measured_s} s that count, {filled:.0%} of the CPUs used, wander {wander:g}"
    )
    chosen = CHIPLETS if number is None else (CHIPLETS[number - 1],)
    with tempfile.TemporaryDirectory() as folder:
        library, all_seeds = build_scheduler(Path(folder)), range(first, first + number_of_seeds)
        bench = Bench(library, all_seeds, settle_s, measured_s, filled, wander)
        tables: dict[str, Callable[[], None]] = {
            "machines": lambda: machines(bench, chosen, count),
            "containers": lambda: containers(bench, chosen[0]),
            "kernels": lambda: kernels(bench, chosen[0], count),
            "options": lambda: options(bench, chosen[0], count),
        }
        for name, table in tables.items():
            if only in (None, name):
                table()


if __name__ == "__main__":
    main()
