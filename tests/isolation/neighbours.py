"""A model of protected containers beside batch, for the controller of measured protection: what they measure depends on what
batch has, on what batch does, on themselves, and on noise that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cri_proxy.isolation.baselines import Signal, counted
from cri_proxy.isolation.protection import WINDOW_S, Change, Protection, ProtectionSettings, Watched

MISSES = counted("fills from memory for a thousand instructions")
SETTINGS = ProtectionSettings()

#: Misses that batch adds, by its share of the cache in a domain.
Harm = Callable[[float], float]


def proportional(share: float) -> float:
    """As at 30 %: four times the usual misses; at the floor still a little more than usual."""
    return 20.0 * share


def beyond(knee: float, rise: float = 6.0) -> Harm:
    """None up to a share, all of it above."""
    return lambda share: rise if share > knee + 1e-9 else 0.0


def none(share: float) -> float:
    return 0.0


@dataclass
class Neighbour:
    """One protected container. ``usual``: misses without batch; ``phase``: what they are multiplied by at a time."""

    key: str
    domains: frozenset[int] = frozenset({0})
    usual: float = 2.0
    noise: float = 0.1
    harm: Harm = proportional
    phase: Callable[[float], float] = lambda now_s: 1.0
    workload: str = ""
    signal: Signal = MISSES
    is_idle: bool = False


@dataclass
class Node:
    """A loop that is closed: the controller's steps are what the next window is measured with."""

    neighbours: list[Neighbour]
    settings: ProtectionSettings = SETTINGS
    seed: int = 1
    protection: Protection = field(default_factory=Protection)
    now_s: float = 1000.0
    #: How much batch does, by domain: 0 = nothing runs there, 1 = as the harm has it.
    batch: Callable[[int, float], float] = lambda domain, now_s: 1.0
    changes: list[tuple[float, Change]] = field(default_factory=list)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def share(self, domain: int) -> float:
        step = self.protection.steps(self.settings).get(domain)
        assert self.settings.cache is not None
        return self.settings.cache if step is None or step.cache is None else step.cache

    def window(self) -> None:
        watched = []
        for each in self.neighbours:
            doing = {domain: self.batch(domain, self.now_s) for domain in sorted(each.domains)}
            met = frozenset(domain for domain, amount in doing.items() if amount)
            harm = max(
                (amount * each.harm(self.share(domain)) for domain, amount in doing.items()), default=0.0
            )
            value = (each.usual * each.phase(self.now_s) + harm) * max(
                0.1, self._random.gauss(1.0, each.noise)
            )
            values: Mapping[Signal, float] = {} if each.is_idle else {each.signal: value}
            watched.append(Watched(each.key, f"default/{each.key}/main", each.workload, met, values))
        self.protection.keep({each.key for each in watched})
        self.changes += [
            (self.now_s, change) for change in self.protection.round(watched, self.settings, self.now_s)
        ]
        self.now_s += WINDOW_S

    def run(self, seconds: float) -> list[Change]:
        """The changes of so long."""
        begin = len(self.changes)
        for _ in range(round(seconds / WINDOW_S)):
            self.window()
        return [change for _, change in self.changes[begin:]]

    def learn(self, seconds: float = 600.0) -> None:
        """No batch runs for so long."""
        batch, self.batch = self.batch, lambda domain, now_s: 0.0
        assert self.run(seconds) == []
        self.batch = batch

    def level(self, domain: int = 0) -> int:
        levels = {row["domain"]: row["level"] for row in self._rows()}
        return int(levels.get(domain, 0))

    def row(self, domain: int = 0) -> dict[str, Any]:
        return next(row for row in self._rows() if row["domain"] == domain)

    def _rows(self) -> list[dict[str, Any]]:
        return self.protection.rows(self.settings, self.now_s)
