"""How containers' sets come about, side by side: by the kernel alone, by limit, by demand, and by what an oracle knows.

All but the first are the real engine with the default policy; by demand the controller decides as it does in the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from bench.demand.traces import Load
from cri_proxy.affinity.demand.controller import ContainerSet, DemandController
from cri_proxy.affinity.demand.estimate import DemandSample, DemandSettings, step_for
from cri_proxy.config.engine_options import EngineOptions
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.host import Host
from policies.hygon import Hygon
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, Container, Pod, Qos, Resources
from policies.settings import PlacementSettings


class Way(Protocol):
    """What a simulated node asks of it; containers are numbers, times seconds since the trace began."""

    name: str

    def begin(self, number: int, load: Load, now_s: float) -> None:
        """A container begins, for the first time or anew."""
        ...

    def end(self, number: int, now_s: float) -> None: ...

    def sets(self) -> Mapping[int, frozenset[int]]:
        """The cpuset of each container that is there."""
        ...

    def most(self, number: int) -> int:
        """How many CPUs its set can have at most."""
        ...


class NoManager:
    """All containers on all CPUs."""

    name = "none"

    def __init__(self, topology: Topology) -> None:
        self._cpus = topology.online
        self._there: dict[int, frozenset[int]] = {}

    def begin(self, number: int, load: Load, now_s: float) -> None:
        self._there[number] = self._cpus

    def end(self, number: int, now_s: float) -> None:
        del self._there[number]

    def sets(self) -> Mapping[int, frozenset[int]]:
        return self._there

    def most(self, number: int) -> int:
        return len(self._cpus)


class ByLimit:
    """The engine as it is by default."""

    name = "limit"

    def __init__(self, topology: Topology, size: str = "limit") -> None:
        host = Host(topology, topology.online, topology.memory_nodes, topology.online)
        self.engine = Engine(host, Hygon(topology, PlacementSettings(size=size)), EngineOptions())
        self.keys: dict[int, str] = {}
        self._most: dict[int, int] = {}
        self._begun = 0

    def begin(self, number: int, load: Load, now_s: float) -> None:
        self._begun += 1
        key = f"c{self._begun}"
        pod = Pod(f"s-{key}", f"u-{key}", f"pod-{self._begun}", "bench")
        resources = Resources(milli_request=load.milli_request, milli_limit=load.milli_limit)
        admission = self.engine.admit(
            Container(pod, "app", 0, Qos.BURSTABLE, resources), NO_CONSTRAINT, now_s
        )
        self.engine.bind(admission.ticket, key, now_s)
        self.engine.started(key)
        self.engine.drain()
        self.keys[number] = key
        self._most[number] = len(self.engine.grants[key].cpus)

    def end(self, number: int, now_s: float) -> None:
        self.engine.remove(self.keys.pop(number))
        self.engine.drain()

    def sets(self) -> Mapping[int, frozenset[int]]:
        grants = self.engine.grants
        return {number: grants[key].cpus for number, key in self.keys.items()}

    def most(self, number: int) -> int:
        return self._most[number]


class _Sizing(ByLimit):
    """Containers that start at their limit's rung, and whose sets may become others."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, "demand")
        self._number_of: dict[str, int] = {}

    def begin(self, number: int, load: Load, now_s: float) -> None:
        super().begin(number, load, now_s)
        self._number_of[self.keys[number]] = number

    def end(self, number: int, now_s: float) -> None:
        del self._number_of[self.keys[number]]
        super().end(number, now_s)


class ByDemand(_Sizing):
    """The controller's, as the daemon drives it."""

    name = "demand"

    def __init__(self, topology: Topology, settings: DemandSettings, psi: str = "triggers") -> None:
        """``psi``: triggers; counters, where no trigger may be set; none."""
        super().__init__(topology)
        self.psi, self.name = psi, self.name if psi == "triggers" else f"{self.name}, PSI {psi}"
        self.controller = DemandController(settings)

    def begin(self, number: int, load: Load, now_s: float) -> None:
        super().begin(number, load, now_s)
        self._follow()

    def end(self, number: int, now_s: float) -> None:
        super().end(number, now_s)
        self._follow()

    def _follow(self) -> None:
        grants = self.engine.grants
        sets = {}
        for each in self.engine.sized_sets():
            resources = grants[each.key].container.resources
            sets[each.key] = ContainerSet(
                each.steps, each.milli_set, resources.milli_request, resources.milli_limit
            )
        self.controller.follow(sets)
        if self.psi == "triggers":
            self.controller.set_triggers(self.controller.wants_trigger)

    def triggers(self) -> Mapping[int, float]:
        """The containers with a PSI trigger, with the part of ``TRIGGER_S`` that it is for."""
        if self.psi != "triggers":
            return {}
        return {
            self._number_of[key]: self.controller.settings.waiting for key in self.controller.wants_trigger
        }

    def next_due_s(self, now_s: float) -> float:
        return self.controller.next_due_s(now_s)

    def due(self, now_s: float) -> list[int]:
        return [self._number_of[key] for key in self.controller.due(now_s)]

    def sample(self, number: int, sample: DemandSample, is_triggered: bool) -> None:
        self.controller.sample(self.keys[number], sample, is_triggered)

    def decide(self, now_s: float) -> list[str]:
        """Whatever follows from the samples; what was made, as ``Resize.action`` has it."""
        made: list[str] = []
        for resize in self.controller.decide(now_s):
            if self.engine.size(resize.key, resize.milli_size, resize.why, now_s) is None:
                self.controller.refused(resize, now_s)
                made.append(f"{resize.action} refused")
                continue
            self.controller.made(resize, now_s)
            made.append(resize.action)
        if uses := self.controller.uses():
            self.engine.note_use(uses)
        if made:
            self._follow()
        self.engine.drain()
        return made


class Oracle(_Sizing):
    """Knows what is offered: each set holds the most of any second until ``KNOWN_S`` from now, and no more."""

    name = "oracle"
    KNOWN_S = 60.0

    def __init__(self, topology: Topology, peaks: np.ndarray) -> None:
        """``peaks``: by windows of ``KNOWN_S`` and container, CPUs."""
        super().__init__(topology)
        self._peaks = peaks

    def look(self, now_s: float) -> None:
        """Make all sets those of this window."""
        needs = np.ceil(self._peaks[int(now_s // self.KNOWN_S)] * 1000)
        wanted = []
        for each in self.engine.sized_sets():
            container = self.engine.grants[each.key].container
            need = max(int(needs[self._number_of[each.key]]), container.resources.milli_request)
            step = step_for(each.steps, need)
            if step != step_for(each.steps, each.milli_set):
                is_whole = step == len(each.steps) - 1
                wanted.append((each.steps[step], each.key, None if is_whole else need))
        # What becomes smaller makes room for what grows.
        for _, key, size in sorted(wanted, key=lambda each: each[:2]):
            self.engine.size(key, size, "known", now_s)
        self.engine.drain()
