"""Measures plans: counters are open for some seconds before a plan and for some after it, and never in between.

Nothing of it stalls the loop: counters are opened, read and closed by a thread. At most ``affinity_measure_descriptors``
are open at a time, for the containers that the plan moves and those they talk to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.affinity.effect.comparison import (
    WINDOWS,
    Subject,
    Window,
    compare,
    effect_row,
    in_order,
    windows_of,
)
from cri_proxy.affinity.effect.io.counting import Countable, Counting, L3Counts, read_countable
from cri_proxy.affinity.problem import PlanningSnapshot
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Life, Move
from cri_proxy.services.services import Services
from policies.affinity.planner.problem import Proposal

#: A window, seconds: with five of them a plan begins ten seconds later than it could.
WINDOW_S = 2.0
#: After the last move, seconds: caches are warm again, and memory has followed.
SETTLE_S = 20.0

Wait = Callable[[float], Awaitable[Any]]


@dataclass
class Measured:
    """The counts before a plan, and the plan's outcome since. ``made``: its moves that stand."""

    keys: tuple[str, ...]
    windows: tuple[Window, ...]
    l3: L3Counts
    cpus: frozenset[int]
    left_out: int
    made: list[Move] = field(default_factory=list)
    made_at_s: float = 0.0

    def note_made(self, made: Iterable[Move], now_s: float) -> None:
        """A part of the plan was made."""
        self.made += made
        self.made_at_s = now_s

    def note_gone(self, keys: Collection[str]) -> None:
        """The moves of these containers were taken back."""
        self.made = [move for move in self.made if move.id not in keys]


@dataclass
class _Counted:
    windows: tuple[Window, ...]
    l3: L3Counts
    left_out: int


class EffectMeter:
    """Measures the plans of one daemon."""

    def __init__(
        self,
        services: Services,
        cgroup_root: Path,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        wait: Optional[Wait] = None,
        countable: Optional[Countable] = None,
    ) -> None:
        """``wait``: for so many seconds. ``countable``: in the place of the counters in ``sys`` and ``proc``."""
        self._services = services
        self._cgroup_root, self._sys, self._proc = cgroup_root, sys, proc
        self._wait = wait or asyncio.sleep
        self._countable = countable
        self._problem = ""
        self._last: dict[str, Any] = {}
        self._last_at_s = 0.0
        self._lock = asyncio.Lock()

    # ------------------------------------------------------------------ around a plan

    async def before(
        self, engine: Engine, question: PlanningSnapshot, proposal: Proposal, settings: AffinitySettings
    ) -> Optional[Measured]:
        """Count what a plan is going to move, before it does. None: it is not measured; the status says why."""
        if not settings.measure_effect:
            return None
        if self._countable is None:
            self._countable = await asyncio.to_thread(read_countable, self._sys, self._proc)
        if self._countable.events is None:
            return None
        keys = [vertex.key for vertex in question.problem.vertices]
        wanted = in_order(keys, {move.key for move in proposal.moves}, question.near)
        targets = [question.homes[move.target] for move in proposal.moves]
        cpus = frozenset().union(
            *targets, *(engine.grants[key].cpus for key in wanted if key in engine.grants)
        )
        counted = await self._count(engine, wanted, cpus, settings)
        if counted is None:
            return None
        measured = frozenset().union(*counted.windows)
        keys_in_order = tuple(key for key in wanted if key in measured)
        return Measured(keys_in_order, counted.windows, counted.l3, cpus, counted.left_out)

    async def after(self, engine: Engine, measured: Measured, settings: AffinitySettings) -> None:
        """Count the same containers where they are now, and note for the status how that compares, if it can be counted."""
        waited_s = self._services.node_state.clock() - measured.made_at_s
        await self._wait(max(0.0, SETTLE_S - waited_s))
        counted = await self._count(engine, measured.keys, measured.cpus, settings)
        if counted is None or self._countable is None or self._countable.events is None:
            return
        events = self._countable.events
        effect = compare(measured.windows, counted.windows, events.per)
        row = effect_row(events, effect, measured.left_out)
        self._last = {**row, "l3": _l3_row(measured.l3, counted.l3)}
        self._last_at_s = self._services.node_state.clock()
        self._services.metrics.effects.labels(effect.verdict).inc()
        for event in row["events"]:
            for when in ("before", "after"):
                self._services.metrics.effect_rate.labels(event["name"], when).set(event[when])
        self._services.log.info(
            "the effect of a plan", **{key: row[key] for key in ("verdict", "per", "events")}
        )

    async def _count(
        self, engine: Engine, keys: Iterable[str], cpus: frozenset[int], settings: AffinitySettings
    ) -> Optional[_Counted]:
        """Windows of the containers that can be counted, and keep their CPUs meanwhile."""
        assert self._countable is not None
        async with self._lock:
            counting = Counting(self._countable, self._cgroup_root, self._sys)
            subjects = self._subjects(engine, keys)
            try:
                return await self._windows(engine, counting, subjects, cpus, settings.measure_descriptors)
            finally:
                counting.close()

    async def _windows(
        self,
        engine: Engine,
        counting: Counting,
        subjects: tuple[Subject, ...],
        cpus: frozenset[int],
        descriptors: int,
    ) -> Optional[_Counted]:
        await asyncio.to_thread(counting.open, subjects, cpus, descriptors)
        self._problem = counting.problem
        if not counting.keys:
            if subjects and not self._problem:
                self._problem = f"{descriptors} counters are too few for a container of the last plan"
            return None
        looks = [await asyncio.to_thread(counting.look)]
        for _ in range(WINDOWS):
            await self._wait(WINDOW_S)
            looks.append(await asyncio.to_thread(counting.look))
        left_out = len(subjects) - len(counting.keys)
        await asyncio.to_thread(counting.close)
        stayed = {each.key for each in subjects if _cpus_of(engine, each.key) == each.cpus}
        counts = [{key: look.counts[key] for key in look.counts if key in stayed} for look in looks]
        return _Counted(windows_of(counts), looks[-1].l3.since(looks[0].l3), left_out)

    def _subjects(self, engine: Engine, keys: Iterable[str]) -> tuple[Subject, ...]:
        path_of = self._services.reconciler.cgroup_of
        return tuple(
            Subject(key, path, engine.grants[key].cpus)
            for key in keys
            if key in engine.grants and engine.grants[key].life is Life.RUNNING and (path := path_of(key))
        )

    # ------------------------------------------------------------------ the status

    def status(self, settings: AffinitySettings) -> dict[str, Any]:
        """``how``: whether plans are measured, a sentence; ``last``: the last one that was, {} = none yet."""
        last = self._last
        age_s = round(self._services.node_state.clock() - self._last_at_s, 1)
        return {"how": self._how(settings), "last": {**last, "age_s": age_s} if last else {}}

    def _how(self, settings: AffinitySettings) -> str:
        unguarded = "moves are unguarded by measurements:"
        if not settings.measure_effect:
            return f"{unguarded} affinity.measure_effect is off"
        if self._countable is None:
            return "the first plan shows whether moves can be measured"
        if why := self._countable.why or self._problem:
            return f"{unguarded} {why}"
        assert self._countable.events is not None
        return f"moves are measured by counters of {self._countable.events.cpu}; what makes it worse is told"


def _cpus_of(engine: Engine, key: str) -> Optional[frozenset[int]]:
    grant = engine.grants.get(key)
    return None if grant is None else grant.cpus


def _l3_row(before: L3Counts, after: L3Counts) -> dict[str, Any]:
    """Shares, as load changes the counts themselves: words, before, after."""
    shares = []
    if before.lookups and after.lookups and before.misses is not None and after.misses is not None:
        words = "lookups in the plan's L3s that missed"
        shares.append((words, before.misses / before.lookups, after.misses / after.lookups))
    if (
        before.memory_bytes
        and after.memory_bytes
        and None not in (before.own_node_bytes, after.own_node_bytes)
    ):
        words = "memory traffic of the plan's L3s with other NUMA nodes"
        shares.append((words, _remote(before), _remote(after)))
    return {"shares": shares} if shares else {}


def _remote(counts: L3Counts) -> float:
    total, own = counts.memory_bytes or 1.0, counts.own_node_bytes or 0.0
    return max(0.0, 1.0 - own / total)
