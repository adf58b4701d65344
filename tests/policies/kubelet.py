"""What kubelet's static CPU manager would do: its packed algorithm, with ``prefer-align-cpus-by-uncorecache``.

Written anew from a description of ``takeByTopologyNUMAPacked`` (pkg/kubelet/cm/cpumanager/cpu_assignment.go),
to compare with. It sees a machine as kubelet does: rows of ids, and sizes that are divisions of totals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Optional

from policies.machine.topology import Cpu, Topology, TopologyData

CASES = Path(__file__).parents[1] / "data" / "kubelet_l3_cases.json"


@dataclass(frozen=True)
class Row:
    """One CPU in kubelet's view."""

    cpu: int
    core: int
    l3: int
    numa: int
    socket: int


@dataclass(frozen=True)
class Rows:
    """A machine in kubelet's view: its CPUs, and the totals it divides."""

    rows: tuple[Row, ...]
    cores: int
    l3s: int
    nodes: int
    sockets: int

    def topology(self) -> Topology:
        """The same machine as a tree."""
        return Topology(TopologyData(tuple(Cpu(r.cpu, r.core, r.l3, 0, r.numa, r.socket) for r in self.rows)))


@dataclass(frozen=True)
class Reach:
    """What a set of CPUs spans: each of it is better when smaller."""

    nodes: int
    l3s: int
    split_cores: int

    def excess(self, other: Reach) -> list[str]:
        """In what it is larger than another."""
        return [
            f"{name}: {mine}, not {theirs}"
            for name, mine, theirs in (
                ("NUMA nodes", self.nodes, other.nodes),
                ("L3s", self.l3s, other.l3s),
                ("split cores", self.split_cores, other.split_cores),
            )
            if mine > theirs
        ]


@cache
def cases() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(CASES.read_text())
    return document


@cache
def rows_of(name: str) -> Rows:
    """A topology of the cases."""
    found = cases()["topologies"][name]
    rows = tuple(Row(*row) for row in found["threads"])
    return Rows(rows, found["cores"], found["uncore"], found["numa"], found["sockets"])


@cache
def tree_of(name: str) -> Topology:
    return rows_of(name).topology()


def reach(machine: Rows, cpus: Iterable[int]) -> Reach:
    """NUMA nodes and L3s touched, and cores of which only a part is in the set. A core's name is its socket's."""
    owned = frozenset(cpus)
    mine = [r for r in machine.rows if r.cpu in owned]
    assert len(mine) == len(owned), f"{sorted(owned)} are not all CPUs of the machine"
    return Reach(
        len({r.numa for r in mine}),
        len({r.l3 for r in mine}),
        len(
            {(r.socket, r.core) for r in mine}
            & {(r.socket, r.core) for r in machine.rows if r.cpu not in owned}
        ),
    )


def take(machine: Rows, free: Iterable[int], count: int, align_l3: bool = True) -> Optional[frozenset[int]]:
    """The CPUs kubelet gives; None = not enough are free."""
    taker = _Taker(machine, {r.cpu: r for r in machine.rows if r.cpu in frozenset(free)}, count)
    return taker.take(align_l3)


class _Taker:
    """kubelet's accumulator: what is free, what is taken, how many are missing."""

    def __init__(self, machine: Rows, free: dict[int, Row], count: int) -> None:
        self.machine, self.free, self.missing = machine, free, count
        self.taken: set[int] = set()
        self.nodes_first = machine.sockets >= machine.nodes
        self.sizes = {
            "core": len(machine.rows) // machine.cores,
            "l3": len(machine.rows) // machine.l3s,
            "numa": len(machine.rows) // machine.nodes,
            "socket": len(machine.rows) // machine.sockets,
        }

    def take(self, align_l3: bool) -> Optional[frozenset[int]]:
        if self.missing > len(self.free):
            return None
        # 1. Whole NUMA nodes and sockets, the smaller kind first.
        for level in ("numa", "socket") if self.nodes_first else ("socket", "numa"):
            self._take_whole(level, self._in_order(level))
        # 2. Whole L3s, and one L3 for all of the rest.
        for l3 in self._l3s() if align_l3 else ():
            self._take_whole("l3", self._l3s())
            if not self.missing:
                break
            self._take_part_of_l3(l3)
        # 3. Whole cores, then single threads; L3s no longer matter.
        self._take_whole("core", self._cores())
        for core in self._cores():
            self._claim(self._cpus("core", core)[: self.missing])
        return frozenset(self.taken)

    def _claim(self, cpus: list[int]) -> None:
        for cpu in cpus:
            del self.free[cpu]
        self.taken.update(cpus)
        self.missing -= len(cpus)

    def _cpus(self, level: str, number: int) -> list[int]:
        return sorted(cpu for cpu, row in self.free.items() if getattr(row, level) == number)

    def _sorted(self, level: str, outer: str = "", outside: int = 0) -> list[int]:
        """Domains with free CPUs, those with the fewest first; of all, or of those inside another."""
        counts: dict[int, int] = {}
        for row in self.free.values():
            if not outer or getattr(row, outer) == outside:
                number = getattr(row, level)
                counts[number] = counts.get(number, 0) + 1
        return sorted(counts, key=lambda number: (counts[number], number))

    def _in_order(self, level: str) -> list[int]:
        outer = "numa" if self.nodes_first else "socket"
        return self._sorted(level) if level == outer else self._inside(level, outer)

    def _inside(self, level: str, outer: str) -> list[int]:
        found = [
            number for outside in self._in_order(outer) for number in self._sorted(level, outer, outside)
        ]
        return list(dict.fromkeys(found))

    def _l3s(self) -> list[int]:
        return self._inside("l3", "numa")

    def _cores(self) -> list[int]:
        return self._inside("core", "socket" if self.nodes_first else "numa")

    def _take_whole(self, level: str, order: list[int]) -> None:
        size = self.sizes[level]
        for number in order:
            cpus = self._cpus(level, number)
            if len(cpus) == size and self.missing >= size:
                self._claim(cpus)

    def _take_part_of_l3(self, l3: int) -> None:
        cores = sorted({row.core for row in self.free.values() if row.l3 == l3})
        first = cores[: -(-self.missing // self.sizes["core"])]
        cpus = sorted(cpu for cpu, row in self.free.items() if row.core in first)
        if len(cpus) == self.missing + 1 and self.missing % 2:
            cpus = cpus[:-1]
        if len(cpus) == self.missing:
            self._claim(cpus)
