"""A daemon's parts around one fake runtime, for tests of what moves containers. Time passes when the test says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.affinity.effect.io.effect_meter import EffectMeter
from cri_proxy.affinity.io.executor import MoveOutcome, Mover
from cri_proxy.affinity.io.planner_process import PlannerWorker
from cri_proxy.affinity.io.rebalancer import AffinityController
from cri_proxy.config.config import Config, read_config
from cri_proxy.config.constants import Constants
from cri_proxy.engine.build import Machine, make_engine, make_host
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate, Orders, Plan
from cri_proxy.front_ends.events import EventCount
from cri_proxy.metrics import Metrics
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services import logs
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.services import Health, Services
from cri_proxy.services.updates import Updates
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter
from cri_proxy.text.ages import Old
from cri_proxy.text.sources import SettingsSource
from policies.affinity.graph.traffic import Edge, Traffic
from policies.affinity.planner.problem import Problem, Proposal
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, topology


class ToldTraffic:
    """What is known of the traffic: whatever the test says."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    def old(self) -> Optional[Old]:
        return Old(0.0, self.traffic.frozen) if self.traffic.frozen else None

    def status(self) -> dict[str, Any]:
        return {"provider": "replay"}


class CgroupPaths:
    """In the place of the reconciler: where each container's cgroup is."""

    def cgroup_of(self, container_id: str) -> str:
        return f"/kubepods/{container_id}"


class InterruptedPlanner(PlannerWorker):
    """The planner; while it thinks, ``meanwhile`` happens."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def plan(self, problem: Problem) -> Proposal:
        answer = await super().plan(problem)
        self.meanwhile()
        return answer


class FaultyMover(Mover):
    """The mover; it fails as long as it has a ``bug``."""

    bug: Optional[Exception] = None

    async def make(self, engine: Engine, plan: Plan) -> MoveOutcome:
        if self.bug is not None:
            raise self.bug
        return await super().make(engine, plan)


def config_of(**values: Any) -> Config:
    """A configuration of these sections; ``constants``: those that differ."""
    constants = Constants(**values.pop("constants", {}))
    return read_config([SettingsSource("test", values=values)], constants=constants).config


class Node:
    """A daemon's parts around one fake runtime, without a daemon. Time passes when the test says so."""

    def __init__(
        self,
        runtime: FakeRuntime,
        folder: Path,
        config: Optional[dict[str, Any]] = None,
        machine: Optional[Topology] = None,
        meter: Optional[Callable[[Node], EffectMeter]] = None,
    ) -> None:
        """By default of a Hygon with two sockets, whose counters cannot be had."""
        self.runtime, self.folder = runtime, folder
        self.now_s = 1000.0
        self.source = ToldTraffic()
        self.services = self._services(config_of(**(config or {})))
        self.mover = FaultyMover(self.services, folder / "cgroup", wait=self._wait)
        self.planner = InterruptedPlanner()
        self.meter = meter(self) if meter else EffectMeter(self.services, folder, folder, folder, self._wait)
        self.affinity = AffinityController(self.services, self.source, self.planner, self.mover, self.meter)
        host, _ = make_host(self.services.config, Machine(machine or topology(HYGON_7285_2S)))
        self.services.node_state.engine = make_engine(self.services.config, host)
        #: What containers wait while the guard does, in seconds by name.
        self.pressure: dict[str, float] = {}
        self.ids: dict[str, str] = {}
        #: What the runtime was told before a daemon that starts would have known it; there must be none.
        self.unwritten: list[CpusetUpdate] = []
        updates = self.services.node_state.updates
        self._send, updates.deliver = updates.deliver, self._deliver

    async def _deliver(self, update: CpusetUpdate) -> None:
        grants = self.engine.grants
        grant = grants.get(update.id)
        record = (await self.services.store.load()).of("grant").get(update.id)
        is_newest = grants.get(update.id) is grant  # else the record may be a newer one by now
        if record is None or (is_newest and record.placement.cpus != update.placement.cpus):
            self.unwritten.append(update)
        await self._send(update)

    def _services(self, config: Any) -> Services:
        log, metrics = logs.set_up("error", "console"), Metrics("test")
        runtime = RuntimeClient(self.runtime.socket)
        store = StateWriter(Store(self.folder / "state"), metrics, log)
        node_state = NodeState(store, Updates(runtime, metrics, log), metrics, log)
        node_state.clock = self.clock
        cgroups = Cgroups(self.folder / "cgroup")
        return Services(
            config=config, log=log, metrics=metrics, health=Health(metrics, log, lambda: node_state.mode),
            runtime=runtime, store=store, node_state=node_state, cgroups=cgroups,
            machine=MachineReader(Path("/sys"), cgroups, self.folder),
            reconciler=CgroupPaths(),  # type: ignore[arg-type]
            events=EventCount(lambda: None), look=asyncio.Event(),
        )  # fmt: skip

    def clock(self) -> float:
        return self.now_s

    @property
    def engine(self) -> Engine:
        assert self.services.node_state.engine is not None
        return self.services.node_state.engine

    def freeze(self, on: bool) -> None:
        """What the command does; without keeping it."""
        self.services.node_state.set_orders(Orders(freeze=on))

    async def create(self, client: CriClient, name: str, cpus: float = 1, memory: int = 0) -> str:
        """A container that runs, placed by the engine as a create would be."""
        pod = await client.run_pod(name)
        admission = self.engine.admit(
            make_container(name, limit=cpus, request=cpus, pod=make_pod(name), memory=memory),
            NO_CONSTRAINT,
            self.now_s,
        )
        key = await client.create(pod, name, cpu_limit=round(cpus * 1000))
        self.runtime.set_cpuset(key, ",".join(map(str, sorted(admission.placement.cpus))))
        self.engine.bind(admission.ticket, key, self.now_s)
        self.engine.started(key)
        self.ids[name] = key
        return key

    def talk(self, *pairs: tuple[str, str], frozen: str = "") -> None:
        """These pairs exchange 640 MB/s, and nobody else anything; the daemon hears of it."""
        edges: dict[str, dict[str, float]] = {}
        listed = []
        for a, b in pairs:
            one, other = self.ids[a], self.ids[b]
            edges.setdefault(one, {})[other] = edges.setdefault(other, {})[one] = 1e7
            listed.append(Edge(one, other, 1e7, 64e7, 1000, ("tcp",)))
        self.source.traffic = Traffic(self.source.traffic.version + 1, edges, {}, tuple(listed), frozen)
        self.affinity.follow()

    def leaf(self, name: str) -> frozenset[int]:
        """The CPUs a container has at the runtime."""
        return parse_cpus(self.runtime.cpuset(self.ids[name]))

    def together(self, a: str, b: str) -> bool:
        assert self.leaf(a) == self.engine.grants[self.ids[a]].cpus, "engine and runtime differ"
        return self.leaf(a) == self.leaf(b)

    def waited(self, name: str, seconds: float) -> None:
        """How long a container has waited for CPUs in all, as its cgroup tells."""
        folder = self.folder / "cgroup" / "kubepods" / self.ids[name]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.pressure").write_text(f"some avg10=0 avg60=0 avg300=0 total={round(seconds * 1e6)}\n")

    async def _wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name, waited_s in self.pressure.items():
            self.waited(name, waited_s)

    def made(self) -> list[str]:
        """The containers that the runtime was told new CPUs of, in order."""
        return [call.message.container_id for call in self.runtime.calls_of("UpdateContainerResources")]

    def plans(self, result: str = "accepted") -> int:
        """How many plans there were."""
        lines = self.services.metrics.text().splitlines()
        found = [line for line in lines if line.startswith(f'cri_resmgr_plans_total{{result="{result}"}}')]
        return sum(int(float(line.split()[-1])) for line in found)

    async def round(self) -> None:
        """What the controller does when an interval is over."""
        await self.affinity._round_or_note()

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.affinity.close()
        await self.services.node_state.updates.close()
        await self.services.store.close()
        await self.services.runtime.close()
        assert self.unwritten == []


async def apart(node: Node, client: CriClient, *names: str) -> None:
    """Containers that the ladder has spread, old enough to be moved."""
    for name in names:
        await node.create(client, name)
    assert len({node.leaf(name) for name in names}) == len(names)
    node.now_s += 100


async def looked_twice(node: Node, *names: str) -> None:
    """The controller knows how long containers wait before there is a plan."""
    node.freeze(True)
    for name in names:
        node.waited(name, 1.0)
    await node.round()
    node.freeze(False)
