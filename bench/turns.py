"""Calls made several ways in turns: which is first in a round, and what each way adds beside direct.

A round is one turn of each way. What is compared is of the same round, as other work of the machine meets all ways of
it; the median of the rounds counts, with the quartiles beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.figures import percentile

Item = TypeVar("Item")
DIRECT = "direct"


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the quartiles."""

    median: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


@dataclass
class Turns:
    """One kind of call, one way: what each round has found."""

    #: How long each call took, by round.
    seconds: list[Sequence[float]] = field(default_factory=list)
    #: CPU time a call of the process in between, by round; of direct 0.
    cpu_s: list[float] = field(default_factory=list)

    def middle_s(self) -> list[float]:
        """The median call of each round."""
        return [percentile(each, 50) for each in self.seconds]

    def all_s(self) -> list[float]:
        return [each for turn in self.seconds for each in turn]


def rotated(items: Sequence[Item], number: int) -> list[Item]:
    """The order of a round: each item is first, and in each place, equally often; what is first in a round is slow."""
    at = number % len(items)
    return [*items[at:], *items[:at]]


def spread(values: Sequence[float]) -> Spread:
    """:raises ValueError: there are no values."""
    if not values:
        raise ValueError("no round was measured")
    low, median, high = statistics.quantiles(values if len(values) > 1 else [*values, *values], n=4)
    return Spread(median, low, high)


def added_s(by_way: Mapping[str, Turns], way: str) -> list[float]:
    """What the median call of each round took longer than direct's of that round."""
    return [own - direct for own, direct in zip(by_way[way].middle_s(), by_way[DIRECT].middle_s())]


def added_99_s(by_way: Mapping[str, Turns], way: str) -> float:
    """What the 99th percentile of all calls is above direct's: a turn is too short to have one."""
    return percentile(by_way[way].all_s(), 99) - percentile(by_way[DIRECT].all_s(), 99)


def of_each(own: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times the other's each round's own is. A round in which the other's is nothing has no ratio.

    :raises ValueError: no round has a ratio.
    """
    return spread([one / two for one, two in zip(own, other) if two > 0])
