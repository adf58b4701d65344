"""What the containers of a node would run, tick by tick: loads that are made up, from a seed.

Requests come by chance (Poisson) at a rate that the kind of a load gives, and each keeps a thread busy for a while
(exponential); what is offered in a tick is the number of requests under way, each with a thread that has a tick of work. So
every load is as ragged at the scale of ticks as many small requests are, on top of its profile:

steady    one rate, with slow noise of some per cent
diurnal   a day, shrunk to ``DAY_S``: between a fifth of its highest rate and that
bursts    little, and now and then up to its limit for 50 ms to two minutes, short ones more often
batch     a number of threads that run for half a minute to ten, and nothing for as long or longer
startup   steady, but ``START_S`` of threads that compile and fill caches after each start; it starts anew now and then
mixed     all of these side by side
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import numpy as np

from bench.demand.scheduler import MOST_THREADS, TICKS_PER_S

KINDS = ("steady", "diurnal", "bursts", "batch", "startup")
DAY_S = 3600.0
#: Of a start: from, to.
START_S = (10.0, 40.0)
#: How long a container of the kind startup lives, in the mean.
LIFE_S = 1800.0
#: They begin one after another within so many minutes, and use nothing before.
FIRST_MINUTES = 10
#: Seconds that are made at a time, and how far ahead of a tick the mean of what is offered looks.
BLOCK_S, AHEAD_S = 60, 1
#: A request keeps a thread busy for so long, in the mean, seconds: from, to.
REQUEST_S = (0.01, 0.1)
#: Milli-CPUs. The larger the fewer, as in clusters.
LIMITS = (1000, 2000, 4000, 8000, 16_000, 32_000)
SHARES_OF_LIMITS = (0.2, 0.25, 0.25, 0.15, 0.1, 0.05)
#: Of a node with few containers.
SHARES_OF_LARGE = (0.0, 0.05, 0.15, 0.3, 0.3, 0.2)
#: What a container uses in the mean is between these parts of its limit, before all are made to fill the node.
USED = (0.1, 0.45)
#: The request, as a part of mean use.
REQUESTED = (0.4, 1.1)


@dataclass(frozen=True)
class Load:
    """One container. ``cpus``: what it uses in the mean (of a day; of a batch: of its time); limits are milli-CPUs.

    ``request_s``: how long a request keeps a thread busy, in the mean.
    """

    kind: str
    milli_request: int
    milli_limit: int
    cpus: float
    request_s: float


def loads(kind: str, count: int, cpus: int, filled: float, seed: int) -> list[Load]:
    """Containers of a kind, or of all ("mixed"), that use this part of a node's CPUs in the mean, or as much of that as
    fits below half of their limits."""
    random = np.random.default_rng([seed, count, cpus])
    shares = SHARES_OF_LARGE if count <= 40 else SHARES_OF_LIMITS
    limits = random.choice(LIMITS, size=count, p=shares) / 1000
    used = limits * random.uniform(*USED, size=count)
    for _ in range(20):  # those at the cap leave the rest to others
        used = np.minimum(used * (filled * cpus / used.sum()), USED[1] * limits)
    used = np.maximum(used, 0.01)
    requests = np.minimum(used * random.uniform(*REQUESTED, size=count), limits)
    lasting = random.uniform(*REQUEST_S, size=count)
    return [
        Load(
            KINDS[index % len(KINDS)] if kind == "mixed" else kind,
            max(10, int(requests[index] * 1000) // 10 * 10),
            int(limits[index] * 1000),
            float(used[index]),
            float(lasting[index]),
        )
        for index in range(count)
    ]


@dataclass(frozen=True)
class Block:
    """Ticks from ``start`` on. ``offered``, ``ahead``: what ``Scheduler.run`` takes; ``starts``: containers that begin anew
    with it."""

    start: int
    offered: np.ndarray
    ahead: np.ndarray
    starts: tuple[int, ...]


class Trace:
    """What all containers of a node are offered. The same arguments give the same ticks, whatever is done with them."""

    def __init__(self, containers: list[Load], seconds: float, seed: int) -> None:
        self.containers = containers
        self.seconds = seconds
        self._profiles = [
            _Profile(load, seconds, np.random.default_rng([seed, index]))
            for index, load in enumerate(containers)
        ]
        self._seed = seed
        self._made: list[np.ndarray] = []

    def blocks(self) -> Iterator[Block]:
        """All of it, a minute at a time."""
        if not self._made:
            self._made = self._make()
        ticks, more = BLOCK_S * TICKS_PER_S, AHEAD_S * TICKS_PER_S
        caps = np.array([load.milli_limit / 1000 for load in self.containers], dtype=np.float32)
        for number, (offered, then) in enumerate(zip(self._made, self._made[1:])):
            capped = np.minimum(np.concatenate([offered, then[:more]]), caps)
            sums = np.cumsum(capped, axis=0, dtype=np.float64)
            sums = np.concatenate([np.zeros((1, len(caps))), sums])
            ahead = ((sums[more:] - sums[:-more]) / more)[:ticks].astype(np.float32)
            starts = tuple([i for i, profile in enumerate(self._profiles) if number in profile.starts])
            yield Block(number * ticks, offered, np.ascontiguousarray(ahead), starts)

    def _make(self) -> list[np.ndarray]:
        """By minute, and one more, what is offered by tick and container."""
        sources = [
            _requests(load, profile, np.random.default_rng([self._seed, index, 1]))
            for index, (load, profile) in enumerate(zip(self.containers, self._profiles))
        ]
        minutes = int(self.seconds // BLOCK_S) + 1
        return [
            np.ascontiguousarray(np.stack([next(source) for source in sources], axis=1))
            for _ in range(minutes)
        ]

    def peaks(self, window_s: float) -> np.ndarray:
        """What an oracle would know: by window and container the most CPUs that are offered in any second of it."""
        found: list[np.ndarray] = []
        for block in self.blocks():
            seconds = block.ahead[:: TICKS_PER_S // 4]
            each = int(window_s * 4)
            found += [seconds[at : at + each].max(axis=0) for at in range(0, len(seconds), each)]
        return np.stack(found)


class _Profile:
    """``rate``: by step, ``STEPS_PER_S`` of them a second, the CPUs that a load would use; ``starts``: the minutes in which
    it begins anew."""

    def __init__(self, load: Load, seconds: float, random: np.random.Generator) -> None:
        steps = int((seconds + 2 * BLOCK_S) * STEPS_PER_S)
        self.starts: frozenset[int] = frozenset()
        at_s = np.arange(steps) / STEPS_PER_S
        if load.kind == "diurnal":
            phase = random.uniform(0, 2 * np.pi)
            self.rate = load.cpus * (0.6 + 0.4 * np.sin(2 * np.pi * at_s / DAY_S + phase)) / 0.6
        elif load.kind == "bursts":
            self.rate = _bursts(load, steps, random)
        elif load.kind == "batch":
            self.rate = _batches(load, steps, random)
        else:
            slow = np.repeat(random.normal(1, 0.05, size=steps // (10 * STEPS_PER_S) + 1), 10 * STEPS_PER_S)
            self.rate = load.cpus * np.maximum(slow[:steps], 0.5)
        if load.kind == "startup":
            minutes = int(seconds // BLOCK_S)
            first = int(random.integers(0, FIRST_MINUTES))
            again = np.flatnonzero(random.random(minutes) < BLOCK_S / LIFE_S).tolist()
            self.starts = frozenset([first, *[minute for minute in again if minute > first]]) - {0}
            self.rate[: first * BLOCK_S * STEPS_PER_S] = 0
            for minute in (first, *self.starts):
                begins = minute * BLOCK_S * STEPS_PER_S
                ends = begins + int(random.uniform(*START_S) * STEPS_PER_S)
                self.rate[begins:ends] = random.uniform(0.7, 1.0) * load.milli_limit / 1000


#: Steps of a profile: 50 ms, the shortest burst.
STEPS_PER_S = 20


def _bursts(load: Load, steps: int, random: np.random.Generator) -> np.ndarray:
    """Half of the use comes in bursts; each is between twice the mean and the limit, and as long as chance has it, evenly
    over the orders of magnitude."""
    limit = load.milli_limit / 1000
    rate = np.full(steps, load.cpus / 2)
    work = load.cpus / 2 * steps
    while work > 0:
        length = int(np.exp(random.uniform(np.log(1), np.log(120 * STEPS_PER_S))))
        height = np.exp(random.uniform(np.log(min(2 * load.cpus, limit)), np.log(limit)))
        at = int(random.integers(0, steps))
        rate[at : at + length] = np.maximum(rate[at : at + length], height)
        # Long ones hold most of the work: one that is too long for what is left is the last, and made shorter.
        work -= length * height
    return rate


def _batches(load: Load, steps: int, random: np.random.Generator) -> np.ndarray:
    limit = load.milli_limit / 1000
    rate = np.zeros(steps)
    at = int(random.uniform(0, 300) * STEPS_PER_S)
    while at < steps:
        height = random.uniform(min(1.5 * load.cpus, limit), min(4 * load.cpus, limit))
        length = int(np.exp(random.uniform(np.log(30), np.log(600))) * STEPS_PER_S)
        rate[at : at + length] = height
        # Idle for as long as makes the mean what it is to be.
        at += int(length * height / load.cpus)
    return rate


def _requests(load: Load, profile: _Profile, random: np.random.Generator) -> Iterator[np.ndarray]:
    """By tick how many requests are under way, a minute at a time; most threads of a batch run all through it."""
    ticks = BLOCK_S * TICKS_PER_S
    per_step = TICKS_PER_S // STEPS_PER_S
    lasts = load.request_s * TICKS_PER_S
    changes = np.zeros(ticks, dtype=np.int64)
    later: Optional[np.ndarray] = None
    busy = 0
    number = 0
    while True:
        steps = profile.rate[number * BLOCK_S * STEPS_PER_S : (number + 1) * BLOCK_S * STEPS_PER_S]
        rate = np.repeat(steps, per_step)
        rate = np.concatenate([rate, np.zeros(ticks - len(rate))])
        number += 1
        if load.kind == "batch":
            yield np.minimum(np.round(rate), MOST_THREADS).astype(np.uint8)
            continue
        # A burst is there at once, and over at once: requests last no longer than it does.
        come = random.poisson(rate / lasts)
        begins = np.repeat(np.arange(ticks), come)
        ends = begins + random.geometric(1 / lasts, size=len(begins))
        changes = np.bincount(begins, minlength=ticks).astype(np.int64)
        gone = np.bincount(ends, minlength=2 * ticks)[: 2 * ticks]
        changes -= gone[:ticks]
        if later is not None:
            changes -= later
        later = gone[ticks:].astype(np.int64)
        running = busy + np.cumsum(changes)
        busy = int(running[-1])
        yield np.clip(running, 0, MOST_THREADS).astype(np.uint8)
