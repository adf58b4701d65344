"""Counts how many lines a second containers fetch from memory, for some seconds before a plan, where that is asked for.

The counters are those of ``counting``, by thread, and at most ``affinity.measure_descriptors`` are open at a time. What does
not fit into one window is counted in the next, and what does not fit before one plan before a later one: those that were not
counted for the longest time come first. A rate is smoothed over plans; a container that was never counted pushes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.affinity.effect.comparison import Counts
from cri_proxy.affinity.effect.events import EventSet
from cri_proxy.affinity.effect.io.counting import Countable, Counting, Look, read_countable
from cri_proxy.affinity.effect.subjects import Subject, fitting
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Life
from cri_proxy.services.services import Services

#: A window, seconds, and how many there are before a plan.
WINDOW_S, MOST_WINDOWS = 2.0, 5
#: What a new count is worth beside what was known: a burst of one window does not make a plan.
NEW_PART = 0.3
#: A rate that is older than this tells nothing, seconds.
LONGEST_S = 600.0

Wait = Callable[[float], Awaitable[Any]]


class FillMeter:
    """What the containers of one daemon fetch from memory."""

    def __init__(
        self,
        services: Services,
        cgroup_root: Path,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        wait: Optional[Wait] = None,
        countable: Optional[Countable] = None,
    ) -> None:
        """``wait``: for so many seconds. ``countable``: in the place of what is found in ``sys`` and ``proc``."""
        self._services = services
        self._cgroup_root, self._sys, self._proc = cgroup_root, sys, proc
        self._wait = wait or asyncio.sleep
        self._countable = countable
        self._problem = ""
        self._events: Optional[EventSet] = None
        #: By id: lines a second, smoothed; and when that was counted last.
        self._rates: dict[str, float] = {}
        self._at_s: dict[str, float] = {}

    @property
    def rates(self) -> Mapping[str, int]:
        """Lines a second by container id, as far as they were counted."""
        return {key: round(rate) for key, rate in self._rates.items()}

    @property
    def why_not(self) -> str:
        """Why nothing can be counted; "" = it can, or that is not known yet."""
        return (self._countable.why if self._countable is not None else "") or self._problem

    async def count(self, engine: Engine, settings: AffinitySettings) -> Mapping[str, int]:
        """Count the containers of an engine for some seconds; the rates known then. {} where the option is off, or
        nothing counts."""
        if not (settings.enabled and settings.repel):
            self._rates, self._at_s, self._problem = {}, {}, ""
            return {}
        if self._countable is None:
            self._countable = await asyncio.to_thread(read_countable, self._sys, self._proc)
        known = self._countable.events
        if known is None:
            return {}
        if not known.fills:
            self._problem = f"no event of {known.cpu} counts what comes from memory"
            return {}
        self._events = replace(known, base=known.fills[0], events=known.fills[1:])
        self._forget(engine)
        left = self._subjects(engine)
        self._problem = ""
        for _ in range(MOST_WINDOWS):
            chosen = fitting(left, len(self._events.all), settings.measure_descriptors)
            if not chosen:
                break
            await self._window(engine, chosen, settings.measure_descriptors)
            taken = {each.key for each in chosen}
            left = [each for each in left if each.key not in taken]
        if self._rates:
            self._problem = ""
        elif left and not self._problem:
            self._problem = f"affinity.measure_descriptors ({settings.measure_descriptors}) is too small for any container"
        return self.rates

    async def _window(self, engine: Engine, subjects: tuple[Subject, ...], descriptors: int) -> None:
        assert self._countable is not None
        countable = replace(self._countable, events=self._events, l3_type=0)
        counting = Counting(countable, self._cgroup_root, self._sys)
        clock = self._services.node_state.clock
        try:
            await asyncio.to_thread(counting.open, subjects, frozenset(), descriptors)
            self._problem = self._problem or ("" if counting.keys else counting.problem)
            if not counting.keys:
                return
            first, began_s = await asyncio.to_thread(counting.look), clock()
            await self._wait(WINDOW_S)
            last, ended_s = await asyncio.to_thread(counting.look), clock()
        finally:
            counting.close()
        for subject in subjects:
            grant = engine.grants.get(subject.key)
            if subject.key in last.counts and grant is not None and grant.cpus == subject.cpus:
                self._note(
                    subject.key, _lines(first, last, subject.key) / max(ended_s - began_s, 0.001), ended_s
                )

    def _note(self, key: str, rate: float, now_s: float) -> None:
        known = self._rates.get(key)
        self._rates[key] = rate if known is None else known + NEW_PART * (rate - known)
        self._at_s[key] = now_s

    def _forget(self, engine: Engine) -> None:
        """Containers that are gone, or could not be counted for long."""
        oldest_s = self._services.node_state.clock() - LONGEST_S
        self._at_s = {
            key: at_s for key, at_s in self._at_s.items() if key in engine.grants and at_s >= oldest_s
        }
        self._rates = {key: self._rates[key] for key in self._at_s}

    def _subjects(self, engine: Engine) -> list[Subject]:
        """All that run, first those that were not counted for the longest time."""
        path_of = self._services.reconciler.cgroup_of
        keys = [key for key, grant in engine.grants.items() if grant.life is Life.RUNNING and grant.cpus]
        keys.sort(key=lambda key: (self._at_s.get(key, 0.0), key))
        return [Subject(key, path, engine.grants[key].cpus) for key in keys if (path := path_of(key))]

    def status(self, settings: AffinitySettings) -> str:
        """Whether containers push each other apart, a sentence; "" where that is not asked for."""
        if not settings.repel:
            return ""
        if self.why_not:
            return f"containers do not push each other apart: {self.why_not}"
        if self._countable is None or self._countable.events is None:
            return "the first plan shows whether containers can push each other apart"
        count = len(self._rates)
        return (
            f"containers push each other apart by counters of {self._countable.events.cpu}: {count} counted, "
            f"{sum(rate >= settings.least_fills for rate in self._rates.values())} of them fetch enough from memory to count"
        )


def _lines(first: Look, last: Look, key: str) -> float:
    counts: Counts = last.counts[key].since(first.counts[key])
    return counts.work + sum(counts.events)


__all__ = ["FillMeter"]
