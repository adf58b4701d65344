"""Claims that come and go, and over how many L3s their CPUs are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Optional, Union

from policies.machine.topology import TopologyData

#: CPUs of the claims that come and go.
SIZES = (1, 2, 2, 3, 4, 4, 6, 8)
#: CPUs of the claims that are looked at between.
PROBES = (2, 4, 8, 12, 16)


@dataclass(frozen=True)
class Come:
    """A claim of so many CPUs."""

    name: str
    cpus: int


@dataclass(frozen=True)
class Go:
    """The claim of this name ends, if it was given anything."""

    name: str


Step = Union[Come, Go]


def sequence(seed: int, rounds: int, cpus: int, load: float, leave: float) -> list[list[Step]]:
    """Rounds of claims: each begins with some that go, until ``leave`` of so many CPUs is claimed, and ends with some that
    come, until ``load`` of them is. The same for the same arguments, whatever is refused."""
    random = Random(seed)
    live: dict[str, int] = {}
    made: list[list[Step]] = []
    count = 0
    for _ in range(rounds):
        steps: list[Step] = []
        while sum(live.values()) > leave * cpus:
            name = random.choice(sorted(live))
            del live[name]
            steps.append(Go(name))
        while sum(live.values()) < load * cpus:
            name, count = f"c{count}", count + 1
            live[name] = random.choice(SIZES)
            steps.append(Come(name, live[name]))
        made.append(steps)
    return made


def l3s(cpus: Collection[int], machine: TopologyData) -> int:
    """How many L3s these CPUs are in."""
    return len({cpu.l3 for cpu in machine.cpus if cpu.cpu in cpus})


def needed(cpus: int, machine: TopologyData) -> int:
    """How many L3s so many CPUs need at least on an empty machine whose L3s are of one size."""
    size = max(sum(1 for cpu in machine.cpus if cpu.l3 == l3) for l3 in {cpu.l3 for cpu in machine.cpus})
    return -(-cpus // size)


@dataclass
class Tally:
    """What claims of one size were given, in the order in which they came: L3s; None = refused."""

    given: list[Optional[int]] = field(default_factory=list)

    def cell(self, needed_: int) -> str:
        """As a table has it: how many have no more L3s than such a claim needs, have more, were refused."""
        placed = [each for each in self.given if each is not None]
        wide = [each for each in placed if each > needed_]
        refused = len(self.given) - len(placed)
        parts = [f"{len(placed) - len(wide)} of {len(self.given)}"]
        parts += [f"{len(wide)} over {_range(wide)}"] if wide else []
        return ", ".join([*parts, *([f"{refused} refused"] if refused else [])])


def _range(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least} to {most}"
