"""Quota turbo: a container that is throttled has more CPU quota for a while, as long as its L3s have idle CPUs. Pure.

What a round decides, of a container that may have it:

1. It has its own quota again where its L3s are not idle any more (less than ``KEEP_IDLE`` of their CPUs), or it needs no
   more: it was not throttled, and has used less than its own quota.
2. It has a step more where it was throttled, its L3s are idle (``RAISE_IDLE``), and stay so by ``KEEP_IDLE`` if it uses the
   step. Those that were throttled longest come first; what one is given is not idle for the next.
3. Never more than ``most`` of its limit, nor than the CPUs that it may run on. At most ``RAISES`` a minute for each
   container, and ``RAISES_OF_NODE`` for all; what takes quota back is not counted: there is one for each raise at most.

Rubik keeps the mean over 60 rounds at the limit, so what is always throttled gets nothing. Here there is no such mean: a
container may have ``most`` of its limit for as long as its L3s are idle, and loses it in one round when they are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Optional

from policies.frozen import frozen

OPTION = "isolation.turbo_most"
#: Seconds between two looks.
ROUND_S = 5.0
#: A step, as a part of the limit; the parts of an L3's CPUs that are idle before and after a raise.
STEP, RAISE_IDLE, KEEP_IDLE = 0.25, 0.3, 0.1
#: The smallest step, as a part of a period: systemd rounds quotas to hundredths of a CPU, and a step is more than that.
SMALLEST = 50
#: A container counts as throttled from this part of the time on.
THROTTLED = 0.01
#: Raises in a minute, of one container and of all.
RAISES, RAISES_OF_NODE, MINUTE_S = 6, 60, 60.0


@frozen
class IdleDomain:
    """How many CPUs an L3 has, and how many of them were idle since the last look."""

    cpus: int
    idle: float

    @property
    def share(self) -> float:
        return self.idle / self.cpus if self.cpus else 0.0


@frozen
class TurboContainer:
    """A container with a quota. ``now_us``: what it has of turbo, 0 = its own quota. ``cpus``: how many it may run on.

    ``domains``: its L3s. ``throttled``: the part of the time; ``used``: CPUs; both since the last look, None = not known.
    ``may``: it is of a class that may have more than its own.
    """

    key: str
    quota_us: int
    period_us: int
    cpus: int
    domains: tuple[int, ...]
    now_us: int = 0
    throttled: Optional[float] = None
    used: Optional[float] = None
    may: bool = True

    @property
    def limit(self) -> float:
        """Its limit in CPUs."""
        return self.quota_us / self.period_us

    def most_us(self, most: float) -> int:
        """The highest quota that it may have: never below its own."""
        return max(self.quota_us, min(int(self.quota_us * most), self.cpus * self.period_us))


@frozen
class TurboChange:
    """Another quota for a container; 0 = its own."""

    key: str
    quota_us: int
    why: str


def read_most(text: str) -> float:
    """The option as a part of the limit; 1 = off."""
    return 1.0 if text == "off" else int(text.rstrip("%")) / 100


def read_cpu_times(text: str) -> dict[int, tuple[int, int]]:
    """Of each CPU in /proc/stat: its ticks without work, and all of them. Ticks of guests are in those of users already."""
    found = {}
    for line in text.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(numbers) >= 5:
            ticks = [int(number) for number in numbers[:8]]
            found[int(name[3:])] = ticks[3] + ticks[4], sum(ticks)
    return found


def idle_domain(
    cpus: Iterable[int], before: Mapping[int, tuple[int, int]], now: Mapping[int, tuple[int, int]]
) -> IdleDomain:
    """How idle an L3 was between two readings. A CPU that was not in both, or did not run, counts as busy."""
    number, idle = 0, 0.0
    for cpu in cpus:
        number += 1
        first, last = before.get(cpu), now.get(cpu)
        if first is not None and last is not None and last[1] > first[1]:
            idle += min(max(last[0] - first[0], 0) / (last[1] - first[1]), 1.0)
    return IdleDomain(number, idle)


class Turbo:
    """The rule, and when it has raised what. One for a node."""

    def __init__(self) -> None:
        self._raised_s: dict[str, deque[float]] = {}
        self._of_node: deque[float] = deque()

    def decide(
        self,
        containers: Collection[TurboContainer],
        domains: Mapping[int, IdleDomain],
        most: float,
        now_s: float,
    ) -> list[TurboChange]:
        """What changes now; the raises are counted as made. ``most``: 1 = off, all have their own quota again."""
        self._forget({each.key for each in containers}, now_s)
        changes, wanting = [], []
        for each in containers:
            why = self._back(each, domains, most)
            if each.now_us and why:
                changes.append(TurboChange(each.key, 0, why))
            elif not why and (each.throttled or 0) >= THROTTLED:
                wanting.append(each)
        left = {number: domain.idle for number, domain in domains.items()}
        for each in sorted(wanting, key=lambda one: (-(one.throttled or 0), one.key)):
            change = self._raise(each, domains, left, most, now_s)
            if change is not None:
                changes.append(change)
        return changes

    def _back(self, each: TurboContainer, domains: Mapping[int, IdleDomain], most: float) -> str:
        """Why a container has its own quota, and no other; "" = nothing says so."""
        if not each.may or each.most_us(most) <= each.quota_us or each.now_us > each.most_us(most):
            return "it may not have that much"
        if _share(each, domains) < KEEP_IDLE:
            return "its L3s have no idle CPUs"
        if each.throttled is None or each.used is None:
            return "it cannot be looked at"
        if each.throttled < THROTTLED and each.used < each.limit:
            return "it needs no more than its own"
        return ""

    def _raise(
        self,
        each: TurboContainer,
        domains: Mapping[int, IdleDomain],
        left: dict[int, float],
        most: float,
        now_s: float,
    ) -> Optional[TurboChange]:
        # Its own may have become more than what it was raised to.
        has_us = max(each.now_us, each.quota_us)
        wanted_us = min(
            has_us + max(int(each.quota_us * STEP), each.period_us // SMALLEST), each.most_us(most)
        )
        more = (wanted_us - has_us) / each.period_us
        here = [number for number in each.domains if number in domains]
        cpus, idle = sum(domains[number].cpus for number in here), sum(left[number] for number in here)
        if more <= 0 or idle < RAISE_IDLE * cpus or idle - more < KEEP_IDLE * cpus:
            return None
        raised = self._raised_s.setdefault(each.key, deque())
        if len(raised) >= RAISES or len(self._of_node) >= RAISES_OF_NODE:
            return None
        raised.append(now_s)
        self._of_node.append(now_s)
        for number in here:
            left[number] -= more * left[number] / idle
        return TurboChange(each.key, wanted_us, "it was throttled, and its L3s have idle CPUs")

    def _forget(self, keys: Collection[str], now_s: float) -> None:
        for times in (self._of_node, *self._raised_s.values()):
            while times and now_s - times[0] >= MINUTE_S:
                times.popleft()
        for key in [key for key, times in self._raised_s.items() if not times and key not in keys]:
            del self._raised_s[key]


def _share(each: TurboContainer, domains: Mapping[int, IdleDomain]) -> float:
    here = [domains[number] for number in each.domains if number in domains]
    cpus = sum(domain.cpus for domain in here)
    return sum(domain.idle for domain in here) / cpus if cpus else 0.0
