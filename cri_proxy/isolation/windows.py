"""What protected containers have measured between two looks, and which are looked at. Pure.

Both are taken of a container that is counted, its counter and its pressure: it may be without a counter when batch comes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Optional

from cri_proxy.affinity.effect.comparison import Counts
from cri_proxy.affinity.effect.events import EventSet
from cri_proxy.isolation.baselines import CPU_PRESSURE, MEMORY_PRESSURE, Signal, counted
from policies.frozen import frozen

#: A container that runs fewer instructions in a window (nanoseconds of CPU time, where that is counted) tells nothing: half
#: a per cent of a core.
LEAST_WORK = 5e7
#: Looks that are nearer or further from each other are no window, seconds.
SHORTEST_S, LONGEST_S = 5.0, 60.0
#: How long a container runs before its windows count, seconds: what it reads first it misses.
WARM_S = 60.0
#: CPUs that batch must have used in a window, of all that it meets, to have run beside a container.
BATCH_RAN = 0.01
#: Containers without batch are looked at for so long, so many together, to learn what is usual; and again after so long,
#: sooner where that is not known (they were idle).
SESSION_S, MOST_LEARNING = 200.0, 50
AGAIN_S, SOONER_S = 1800.0, 300.0


@frozen
class Reading:
    """One look at a protected container. ``counts`` None: it is not counted. Waits: microseconds since it exists; None: the
    kernel does not tell."""

    at_s: float
    counts: Optional[Counts] = None
    cpu_waited_us: Optional[int] = None
    memory_waited_us: Optional[int] = None


def signal_of(events: EventSet) -> Signal:
    """The signal that a set of events with one event gives."""
    return counted(f"{events.events[0].words} per {events.per_words}")


def values_of(earlier: Optional[Reading], later: Reading, events: Optional[EventSet]) -> dict[Signal, float]:
    """What a container has measured in a window; {}: nothing can be said, or it hardly ran."""
    if earlier is None or not SHORTEST_S <= later.at_s - earlier.at_s <= LONGEST_S:
        return {}
    found: dict[Signal, float] = {}
    if events is not None and earlier.counts is not None and later.counts is not None:
        window = later.counts.since(earlier.counts)
        if window.work < LEAST_WORK or window.events[0] < 0:
            return {}  # idle, or opened anew in between
        found[signal_of(events)] = events.per * window.events[0] / window.work
    passed_us = (later.at_s - earlier.at_s) * 1e6
    for signal, then, now in (
        (CPU_PRESSURE, earlier.cpu_waited_us, later.cpu_waited_us),
        (MEMORY_PRESSURE, earlier.memory_waited_us, later.memory_waited_us),
    ):
        if then is not None and now is not None and now >= then:
            found[signal] = min((now - then) / passed_us, 1.0)
    return found


def batch_ran(
    batch: Iterable[str], earlier: Mapping[str, tuple[float, int]], later: Mapping[str, tuple[float, int]]
) -> bool:
    """Whether one of these batch containers has used CPU time between two looks, (seconds, nanoseconds used) by key. One of
    which that is not known may have."""
    for key in batch:
        then, now = earlier.get(key), later.get(key)
        if then is None or now is None or now[0] <= then[0]:
            return True
        if (now[1] - then[1]) / 1e9 / (now[0] - then[0]) >= BATCH_RAN:
            return True
    return False


@frozen
class Wanting:
    """A container that may be counted, on so many CPUs. ``meets``: batch may run beside it now, so it comes first."""

    key: str
    cpus: int
    meets: bool


def in_budget(
    wanting: Iterable[Wanting], opened: Collection[str], per_cpu: int, descriptors: int
) -> frozenset[str]:
    """The containers to count: those that meet batch first, and of equals those whose counters are open already."""
    chosen: set[str] = set()
    left = descriptors
    for each in sorted(wanting, key=lambda each: (not each.meets, each.key not in opened, each.key)):
        needed = per_cpu * each.cpus
        if 0 < needed <= left:
            chosen.add(each.key)
            left -= needed
    return frozenset(chosen)


class Sessions:
    """Which containers without batch beside them are looked at. Times in seconds, given by the caller."""

    def __init__(self) -> None:
        self._begun_s: dict[str, float] = {}

    def chosen(self, candidates: Mapping[str, bool], now_s: float) -> frozenset[str]:
        """Those whose session goes on, and as many more as there is room for, those that waited longest first.

        ``candidates``: whether a baseline is known, by key.
        """
        self._begun_s = {
            key: at_s for key, at_s in self._begun_s.items() if key in candidates or now_s - at_s < AGAIN_S
        }
        going = {key for key in candidates if now_s - self._begun_s.get(key, -math.inf) <= SESSION_S}
        due = [
            (self._begun_s.get(key, -math.inf), key)
            for key, is_known in candidates.items()
            if now_s - self._begun_s.get(key, -math.inf) >= (AGAIN_S if is_known else SOONER_S)
        ]
        new = [key for _, key in sorted(due)[: max(0, MOST_LEARNING - len(going))]]
        self._begun_s |= dict.fromkeys(new, now_s)
        return frozenset(going.union(new))
