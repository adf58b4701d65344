"""One node under a trace with one way of making sets: what its containers have had, and what was changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.demand.scheduler import COLUMNS, TICKS_PER_S, CpuRow, Scheduler
from bench.demand.traces import Trace
from bench.demand.ways import ByDemand, Oracle, Way
from cri_proxy.affinity.demand.estimate import TRIGGER_S, DemandSample
from policies.machine.topology import Topology

#: From what a kernel tells to the cpuset that follows from it, ticks: a read, a decision, an update by the runtime.
DELAY_TICKS = 3
NS_PER_TICK = 1_000_000_000 // TICKS_PER_S


@dataclass
class Outcome:
    """After ``settled_s``: ``counters`` by container and ``COLUMNS``, ticks; times to grow, and how long shortages lasted
    that passed before their set grew, seconds; changes of sets.

    ``moved``: changes to CPUs that are neither all of the old ones nor some of them. ``actions``: what was decided.
    """

    counters: np.ndarray
    hours: float = 0.0
    grown_s: list[float] = field(default_factory=list)
    passed_s: list[float] = field(default_factory=list)
    changed: int = 0
    moved: int = 0
    actions: Counter[str] = field(default_factory=Counter)

    def total(self, *columns: str) -> float:
        """Of all containers, and these columns together."""
        return float(self.of(*columns).sum())

    def of(self, *columns: str) -> np.ndarray:
        """By container, these columns together."""
        found: np.ndarray = self.counters[:, [COLUMNS.index(column) for column in columns]].sum(axis=1)
        return found

    @property
    def l3s(self) -> float:
        """Over how many L3s the container of a running CPU has run within a second, in the mean over running CPUs."""
        return self.total("spans_used") / self.total("used")

    @property
    def changes_an_hour(self) -> float:
        """Of a container's set."""
        return self.changed / len(self.counters) / self.hours

    def late(self, *columns: str) -> float:
        """The part of what was offered that did not run in its tick, for these reasons."""
        return self.total(*columns) / self.total("offered")

    @property
    def worst(self) -> float:
        """The part of what was offered to a container that came late in a set that was too small, of the worst one."""
        return float((self.of("late_shrunk") / np.maximum(self.of("offered"), 1)).max())


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Those of several seeds, as long as each other, as if of one node."""
    found = Outcome(np.concatenate([outcome.counters for outcome in outcomes]), outcomes[0].hours)
    for outcome in outcomes:
        found.grown_s += outcome.grown_s
        found.passed_s += outcome.passed_s
        found.changed += outcome.changed
        found.moved += outcome.moved
        found.actions.update(outcome.actions)
    return found


class SimulatedNode:
    """Drives a scheduler and a way through a trace."""

    def __init__(
        self, library: Any, topology: Topology, trace: Trace, way: Way, wander: float = 0.1, seed: int = 1
    ) -> None:
        self._trace, self._way = trace, way
        self._scheduler = Scheduler(library, rows_of(topology), len(trace.containers), wander, seed=seed)
        self._sent: dict[int, frozenset[int]] = {}
        self._triggers: dict[int, float] = {}
        #: When sets were decided that are not in force yet, and those of them that are new.
        self._pending: list[int] = []
        self._is_settled = False
        self._past = np.zeros_like(self._scheduler.counters)
        self.outcome = Outcome(self._past)

    def run(self, settled_s: float) -> Outcome:
        """All of it; what is before ``settled_s`` does not count."""
        scheduler, way = self._scheduler, self._way
        for number in range(len(self._trace.containers)):
            self._begin(number)
        base = self._past
        for block in self._trace.blocks():
            now_s = scheduler.now / TICKS_PER_S
            if not self._is_settled and now_s >= settled_s:
                self._is_settled = True
                base = self._past + scheduler.counters
                scheduler.shortages()
            for number in block.starts:
                self._past[number] += scheduler.counters[number]
                way.end(number, now_s)
                scheduler.end(number)
                del self._sent[number]
                self._triggers.pop(number, None)
                self._begin(number)
            if isinstance(way, Oracle):
                way.look(now_s)
                self._apply()
            self._run(block.offered, block.ahead)
            self._note_shortages()
        self.outcome.counters = self._past + scheduler.counters - base
        self.outcome.hours = (scheduler.now / TICKS_PER_S - settled_s) / 3600
        scheduler.close()
        return self.outcome

    def _begin(self, number: int) -> None:
        load, now_s = self._trace.containers[number], self._scheduler.now / TICKS_PER_S
        self._way.begin(number, load, now_s)
        cpus = self._way.sets()[number]
        # Programs have a thread for each CPU that they see, and some that do other things.
        threads = 4 + max(self._way.most(number), load.milli_limit // 1000)
        self._scheduler.begin(number, cpus, threads, load.milli_limit / 1000, load.milli_request)
        self._sent[number] = cpus
        self._apply()

    def _run(self, offered: np.ndarray, ahead: np.ndarray) -> None:
        scheduler, way = self._scheduler, self._way
        at, end = 0, len(offered)
        while at < end:
            now = scheduler.now
            if self._pending and self._pending[0] <= now:
                self._pending.clear()
                self._apply()
            stop = end
            if self._pending:
                stop = min(stop, at + self._pending[0] - now)
            if isinstance(way, ByDemand):
                due = int(np.ceil(way.next_due_s(now / TICKS_PER_S) * TICKS_PER_S - 1e-6))
                if due <= now:
                    self._decide(way, way.due(now / TICKS_PER_S + 1e-6), [])
                    continue
                stop = min(stop, at + due - now)
            done, fired = scheduler.run(offered[at:stop], ahead[at:stop])
            at += done
            if fired and isinstance(way, ByDemand):
                self._decide(way, [], fired)

    def _decide(self, way: ByDemand, due: list[int], fired: list[int]) -> None:
        now = self._scheduler.now
        for number in (*due, *fired):
            way.sample(number, self._sample(number, way.psi != "none"), bool(fired))
        made = way.decide(now / TICKS_PER_S)
        if self._is_settled:
            self.outcome.actions.update(made)
        if made and not self._pending:
            self._pending.append(now + DELAY_TICKS)

    def _sample(self, number: int, has_psi: bool) -> DemandSample:
        row = self._scheduler.counters[number]
        used, throttled, some = [
            int(row[COLUMNS.index(name)] * NS_PER_TICK) for name in ("used", "throttled", "some")
        ]
        return DemandSample(self._scheduler.now * NS_PER_TICK, used, throttled, some if has_psi else None)

    def _apply(self) -> None:
        """What has changed goes to the scheduler."""
        way, scheduler = self._way, self._scheduler
        for number, cpus in way.sets().items():
            was = self._sent.get(number)
            if cpus == was or was is None:
                continue
            scheduler.set(number, cpus, len(cpus) >= way.most(number))
            self._sent[number] = cpus
            if self._is_settled:
                self.outcome.changed += 1
                self.outcome.moved += not (cpus <= was or was <= cpus)
        triggers = dict(way.triggers()) if isinstance(way, ByDemand) else {}
        for number in triggers.keys() | self._triggers.keys():
            if triggers.get(number) != self._triggers.get(number):
                scheduler.trigger(number, triggers.get(number, 0.0), TRIGGER_S)
        self._triggers = triggers

    def _note_shortages(self) -> None:
        for each in self._scheduler.shortages():
            if self._is_settled:
                lasted = self.outcome.grown_s if each.grown else self.outcome.passed_s
                lasted.append((each.until - each.since) / TICKS_PER_S)


def rows_of(topology: Topology) -> list[CpuRow]:
    """The CPUs of a machine as the scheduler has them; they must be numbered from 0 without gaps."""
    l3s = {l3: number for number, l3 in enumerate(sorted({c.l3 or 0 for c in topology.cpus.values()}))}
    nodes = {node: number for number, node in enumerate(sorted({c.numa for c in topology.cpus.values()}))}
    rows = []
    for cpu in sorted(topology.cpus):
        its = topology.cpus[cpu]
        mates = topology.core_mates(cpu) - {cpu}
        rows.append(CpuRow(l3s[its.l3 or 0], nodes[its.numa], min(mates, default=cpu)))
    return rows
