"""What places the containers of a sequence: our engine, and kubelet's algorithm; other programs are in ``rivals``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional, Protocol

from bench.placement.judge import Given, Tally
from bench.placement.machines import Machine
from bench.placement.sequences import Create, Step, request_of
from cri_proxy.config.config import SettingsSource, engine_options, placement_settings, read_config
from cri_proxy.cri.messages import read_create
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.model import PlacementRefused
from policies.registry import POLICIES
from tests.policies.kubelet import Row, Rows, take


class Placer(Protocol):
    """One machine that begins empty; the core of CPU 0 is reserved."""

    async def create(self, create: Create) -> None:
        """The container is in ``given`` now, or it was refused."""

    async def remove(self, number: int) -> None:
        """One that is there goes."""

    def given(self) -> Mapping[int, Given]:
        """Of all containers that are there, by number; as it was now, also after later calls."""


async def play(
    placer: Placer, tree: Topology, steps: Sequence[Step], tally: Tally, whole: Optional[Topology] = None
) -> None:
    """One sequence on an empty machine, which is empty again after it. ``whole``: what is judged by, if not ``tree``."""
    for step in steps:
        before = placer.given()
        if isinstance(step, Create):
            await placer.create(step)
            # As it is now: others may have given up what they did not need.
            others = dict(placer.given())
            given = others.pop(step.number, None)
            owned = NO_CPUS.union(*(other.owned for other in others.values()))
            tally.made(whole or tree, step, given, owned)
        elif step.number in before:
            await placer.remove(step.number)
        tally.passed(before, placer.given())
    for number in list(placer.given()):
        await placer.remove(number)


class Ours:
    """The engine of a daemon with its configurations, without the daemon."""

    def __init__(self, tree: Topology, *configurations: str) -> None:
        sources = [SettingsSource(f"bench {number}", text) for number, text in enumerate(configurations)]
        config = read_config(sources).config
        policy = POLICIES[config["policy.Active"]](tree, placement_settings(config))
        host = Host(tree, tree.online, tree.memory_nodes, tree.online, tree.core_mates(0))
        self._engine = Engine(host, policy, engine_options(config))
        self._now_s = 0.0

    async def create(self, create: Create) -> None:
        self._now_s += 1
        read = read_create(request_of(create).SerializeToString(), self._engine.pods)
        try:
            admission = self._engine.admit(read.container, read.constraint, self._now_s)
        except PlacementRefused:
            return
        self._engine.bind(admission.ticket, str(create.number), self._now_s)

    async def remove(self, number: int) -> None:
        self._now_s += 1
        self._engine.remove(str(number))

    def wait(self, seconds: float) -> None:
        """Time passes, in which what was kept for a while is given back."""
        self._now_s += seconds
        self._engine.tick(self._now_s)

    def given(self) -> Mapping[int, Given]:
        places = {int(key): grant.placement for key, grant in self._engine.grants.items()}
        return {number: Given(place.cpus, place.exclusive, place.mems) for number, place in places.items()}


class Kubelet:
    """The algorithm of kubelet's static CPU manager with L3 alignment, as tests know it; for exclusive CPUs only."""

    def __init__(self, machine: Machine, tree: Topology) -> None:
        rows = tuple(Row(c.cpu, c.core, c.l3 or 0, c.numa, c.socket) for c in tree.cpus.values())
        self._view = Rows(rows, len(tree.cores), machine.l3s, machine.nodes, machine.sockets)
        self._tree = tree
        self._free = tree.online - tree.core_mates(0)
        self._given: dict[int, Given] = {}

    async def create(self, create: Create) -> None:
        cpus = take(self._view, self._free, create.cpus)
        if cpus is None:
            return
        self._free -= cpus
        self._given[create.number] = Given(cpus, cpus, self._tree.nodes_of(cpus))

    async def remove(self, number: int) -> None:
        self._free |= self._given.pop(number).owned

    def given(self) -> Mapping[int, Given]:
        return dict(self._given)
