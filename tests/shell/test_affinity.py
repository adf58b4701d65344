"""The controller: what goes to the engine, when plans are made and carried out, and what is taken back."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import grpc
import pytest
import pytest_asyncio

from cri_proxy.core.assemble import Machine, make_engine, make_host
from cri_proxy.core.config import read_config
from cri_proxy.core.config_text import Source
from cri_proxy.core.engine import Engine
from cri_proxy.shell import logs
from cri_proxy.shell.affinity import AffinityController, CannotRebalance
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.event_stream import EventCount
from cri_proxy.shell.health import Health
from cri_proxy.shell.keeper import Keeper
from cri_proxy.shell.machine import MachineReader
from cri_proxy.shell.metrics import Metrics
from cri_proxy.shell.moving import Mover
from cri_proxy.shell.parts import Parts
from cri_proxy.shell.planner_worker import PlannerWorker
from cri_proxy.shell.runtime import Runtime
from cri_proxy.shell.store import Store
from cri_proxy.shell.updates import Updates
from policies.affinity.traffic import Edge, Traffic
from policies.cpus import parse_cpus
from policies.model import NO_FENCE
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, topology


class ToldTraffic:
    """What is known of the traffic: whatever the test says."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    def status(self) -> dict[str, Any]:
        return {"provider": "replay"}


class CgroupPaths:
    """In the place of the reconciler: where each container's cgroup is."""

    def cgroup_of(self, container_id: str) -> str:
        return f"/kubepods/{container_id}"


class Node:
    """A daemon's parts around one fake runtime, without a daemon. Time passes when the test says so."""

    def __init__(self, runtime: FakeRuntime, folder: Path, config: Optional[dict[str, Any]] = None) -> None:
        self.runtime, self.folder = runtime, folder
        self.now_s = 1000.0
        self.source = ToldTraffic()
        self.parts = self._parts(read_config([Source("test", values=config or {})]).config)
        self.mover = Mover(self.parts, folder / "cgroup", wait=self._wait)
        self.affinity = AffinityController(self.parts, self.source, PlannerWorker(), self.mover)
        host, _ = make_host(self.parts.config, Machine(topology(HYGON_7285_2S)))
        self.parts.keeper.engine = make_engine(self.parts.config, host)
        #: What containers wait while the guard does, in seconds by name.
        self.pressure: dict[str, float] = {}
        self.ids: dict[str, str] = {}

    def _parts(self, config: Any) -> Parts:
        log, metrics = logs.set_up("error", "console"), Metrics("test")
        runtime = Runtime(self.runtime.socket)
        store = Store(self.folder / "state")
        keeper = Keeper(store, Updates(runtime, metrics, log), metrics, log)
        keeper.clock = self.clock
        cgroups = Cgroups(self.folder / "cgroup")
        return Parts(
            config=config, log=log, metrics=metrics, health=Health(metrics, log, lambda: keeper.mode),
            runtime=runtime, store=store, keeper=keeper, cgroups=cgroups,
            machine=MachineReader(Path("/sys"), cgroups, self.folder),
            reconciler=CgroupPaths(),  # type: ignore[arg-type]
            events=EventCount(lambda: None), look=asyncio.Event(),
        )  # fmt: skip

    def clock(self) -> float:
        return self.now_s

    @property
    def engine(self) -> Engine:
        assert self.parts.keeper.engine is not None
        return self.parts.keeper.engine

    async def create(self, client: CriClient, name: str, cpus: float = 1, memory: int = 0) -> str:
        """A container that runs, placed by the engine as a create would be."""
        pod = await client.run_pod(name)
        admission = self.engine.admit(
            make_container(name, limit=cpus, request=cpus, pod=make_pod(name), memory=memory),
            NO_FENCE,
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

    async def round(self) -> None:
        """What the controller does when an interval is over."""
        await self.affinity._round_or_note()

    async def close(self) -> None:
        await self.affinity.close()
        await self.parts.keeper.updates.close()
        self.parts.store.close()
        await self.parts.runtime.close()


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    with tempfile.TemporaryDirectory(prefix="crt-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            yield runtime


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(runtime.socket) as client:
        yield client


@pytest_asyncio.fixture
async def node(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(runtime, tmp_path)
    yield node
    await node.close()


async def apart(node: Node, client: CriClient, *names: str) -> None:
    """Containers that the ladder has spread, old enough to be moved."""
    for name in names:
        await node.create(client, name)
    assert len({node.leaf(name) for name in names}) == len(names)
    node.now_s += 100


# ---------------------------------------------------------------------- by itself


async def test_those_who_talk_are_moved_together_and_the_others_stay(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db", "other")
    before = node.leaf("other")
    node.talk(("web", "db"))
    await node.round()
    assert node.together("web", "db")
    assert node.leaf("other") == before
    [*_, last] = node.engine.history
    assert last.operation == "rebalance"
    assert "near default/" in node.engine.grants[last.id].why
    assert node.affinity.status()["last_plan"]["moved"] == 1


async def test_a_plan_is_written_down_before_it_is_sent(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    hold = asyncio.Event()
    node.runtime.script("UpdateContainerResources", hold=hold)
    going = asyncio.ensure_future(node.round())
    await node.runtime.wait_for_call("UpdateContainerResources")
    saved = node.parts.store.load().of("grant")
    hold.set()
    await going
    assert {grant.placement.home for grant in saved.values()} == {node.leaf("web")}


async def test_a_second_plan_moves_nobody_any_more(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await node.round()
    await node.round()  # the rest of the plan: nothing
    calls = len(node.runtime.calls_of("UpdateContainerResources"))
    for _ in range(3):
        node.now_s += 60
        await node.round()
    assert len(node.runtime.calls_of("UpdateContainerResources")) == calls


async def test_a_container_with_much_memory_in_use_stays_in_its_node(node: Node, client: CriClient) -> None:
    """Whatever its limit says; the other one may come to it."""
    await apart(node, client, "web", "db")
    assert len(topology(HYGON_7285_2S).nodes_of(node.leaf("web") | node.leaf("db"))) == 1
    for name in ("e", "f", "g"):
        await node.create(client, name)
    node.now_s += 100
    folder = node.folder / "cgroup" / "kubepods" / node.ids["g"]
    folder.mkdir(parents=True)
    (folder / "memory.current").write_text(str(9 << 30))
    before = node.leaf("g")
    assert not topology(HYGON_7285_2S).nodes_of(before) <= topology(HYGON_7285_2S).nodes_of(node.leaf("web"))
    node.talk(("web", "g"))
    await node.round()
    assert node.leaf("g") == before == node.leaf("web")


@pytest.mark.parametrize(
    ("config", "mode", "frozen", "by_hand", "reason"),
    [
        ({"affinity": {"enabled": False}}, "enforce", "", False, "affinity.enabled is off"),
        ({"affinity": {"rebalance": "manual"}}, "enforce", "", False, "affinity.rebalance is manual"),
        ({"affinity": {"moves_per_minute": 0}}, "enforce", "", False, "affinity.moves_per_minute is 0"),
        ({}, "observe", "", False, "mode observe"),
        ({}, "off", "", False, "mode off"),
        ({}, "enforce", "the observer is gone", False, "the picture of the traffic is old: the observer is gone"),
        ({}, "enforce", "", True, "frozen by command (cri-resmgr rebalance --unfreeze)"),
    ],
)  # fmt: skip
async def test_nothing_moves_by_itself(
    runtime: FakeRuntime, client: CriClient, tmp_path: Path,
    config: dict[str, Any], mode: str, frozen: str, by_hand: bool, reason: str,
) -> None:  # fmt: skip
    node = Node(runtime, tmp_path, config)
    try:
        await apart(node, client, "web", "db")
        node.talk(("web", "db"), frozen=frozen)
        node.parts.keeper.mode = mode
        node.affinity.freeze(by_hand)
        await node.round()
        assert not runtime.calls_of("UpdateContainerResources")
        assert node.affinity.planner.pid is None, "no process for nothing"
        assert node.affinity.status()["rebalance"] == f"containers are not moved: {reason}"
    finally:
        await node.close()


async def test_where_nobody_talks_no_planner_is_started(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    await node.round()
    assert node.affinity.planner.pid is None


async def test_the_rest_of_a_plan_follows_as_tokens_come(
    runtime: FakeRuntime, client: CriClient, tmp_path: Path
) -> None:
    node = Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1}})
    try:
        names = ["a", "b", "c", "d", "e", "f"]
        await apart(node, client, *names)
        pairs = [("a", "b"), ("c", "d"), ("e", "f")]
        node.talk(*pairs)
        moved = []
        for _ in range(3):
            await node.round()
            moved.append(sum(node.together(*pair) for pair in pairs))
            await node.round()  # no token yet
            node.now_s += 60
        assert moved == [1, 2, 3]
        assert 'cri_resmgr_plans_total{result="accepted"} 1.0' in node.parts.metrics.text(), "weighed once"
    finally:
        await node.close()


async def test_a_planner_that_fails_is_a_warning_and_nothing_else(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.affinity.planner = PlannerWorker(("/nowhere/python",))
    await node.round()
    [warning] = node.parts.health.warnings
    assert warning.startswith("the planner does not work: the planner could not be started")
    node.affinity.planner = PlannerWorker()
    await node.round()
    assert node.together("web", "db")
    assert node.parts.health.warnings == []


# ---------------------------------------------------------------------- taken back


async def test_what_the_runtime_refuses_is_back_at_its_place(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    before = {name: node.leaf(name) for name in ("web", "db")}
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no such cgroup"))
    await node.round()
    for name, cpus in before.items():
        assert node.leaf(name) == cpus
        assert node.engine.grants[node.ids[name]].cpus == cpus
    assert node.parts.keeper.updates.unsettled == frozenset()
    assert "the runtime refused it: no such cgroup" in " ".join(g.why for g in node.engine.grants.values())


async def test_a_refused_move_is_not_tried_again_at_once(node: Node, client: CriClient) -> None:
    """Only one of the two can be moved to the other, then; and not for ten minutes the way that was refused."""
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no"))
    for _ in range(3):
        await node.round()
        node.now_s += 60
    targets = [(c.message.container_id, c.message.linux.cpuset_cpus)
               for c in node.runtime.calls_of("UpdateContainerResources")]  # fmt: skip
    assert len(targets) == len(set(targets))


async def test_a_runtime_that_is_away_is_no_refusal(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script(
        "UpdateContainerResources", error=(grpc.StatusCode.UNAVAILABLE, "restarting"), times=1
    )
    await node.round()
    assert len(node.parts.keeper.updates.unsettled) == 1
    node.parts.keeper.updates.retry()
    await node.runtime.wait_for_call("UpdateContainerResources", 2)
    while node.parts.keeper.updates.unsettled:
        await asyncio.sleep(0.01)
    assert node.together("web", "db")


async def test_a_move_that_makes_containers_wait_is_taken_back_and_not_made_again(
    node: Node, client: CriClient
) -> None:
    await apart(node, client, "web", "db")
    before = {name: node.leaf(name) for name in ("web", "db")}
    node.talk(("web", "db"))
    await _looked_twice(node, "web", "db")
    node.pressure = {"web": 11.0, "db": 1.0}  # 10 of the 20 seconds
    node.now_s += 60
    await node.round()
    assert {name: node.leaf(name) for name in before} == before
    assert node.affinity.status()["last_plan"]["taken_back"] == 1
    assert "wait for CPUs" in " ".join(g.why for g in node.engine.grants.values())
    assert 'cri_resmgr_moves_total{result="taken_back"} 1.0' in node.parts.metrics.text()
    made = [(c.message.container_id, c.message.linux.cpuset_cpus)
            for c in node.runtime.calls_of("UpdateContainerResources")]  # fmt: skip
    node.pressure = {}
    await node.round()
    again = [(c.message.container_id, c.message.linux.cpuset_cpus)
             for c in node.runtime.calls_of("UpdateContainerResources")][len(made):]  # fmt: skip
    assert made[0] not in again


async def test_a_move_under_which_nobody_waits_stays(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await _looked_twice(node, "web", "db")
    node.pressure = {"web": 1.1, "db": 1.0}
    node.now_s += 60
    await node.round()
    assert node.together("web", "db")
    assert node.affinity.status()["guard"] == "moves are guarded by pressure (PSI)"


async def _looked_twice(node: Node, *names: str) -> None:
    """The controller knows how long containers wait before there is a plan."""
    node.affinity.freeze(True)
    for name in names:
        node.waited(name, 1.0)
    await node.round()
    node.affinity.freeze(False)


async def test_without_pressure_files_the_status_says_that_there_is_no_guard(
    node: Node, client: CriClient
) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await node.round()
    assert node.together("web", "db")
    assert node.affinity.status()["guard"] == (
        "moves are not guarded: no container's cgroup tells pressure or throttling"
    )


# ---------------------------------------------------------------------- by command


async def test_a_dry_run_shows_the_moves_and_makes_none(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    document = await node.affinity.rebalance(dry_run=True)
    assert document["accepted"]
    [move] = document["moves"]
    assert move["container"] in ("default/web/web", "default/db/db")
    assert move["from"] != move["to"]
    assert move["gain"] > 0
    assert not node.runtime.calls_of("UpdateContainerResources")
    assert not node.together("web", "db")


async def test_whoever_asks_gets_all_moves_at_once(
    runtime: FakeRuntime, client: CriClient, tmp_path: Path
) -> None:
    node = Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1, "rebalance": "manual"}})
    try:
        await apart(node, client, "a", "b", "c", "d", "e", "f")
        node.talk(("a", "b"), ("c", "d"), ("e", "f"))
        document = await node.affinity.rebalance(dry_run=False)
        assert (document["moved"], document["failed"]) == (3, [])
        assert all(node.together(*pair) for pair in ("ab", "cd", "ef"))
    finally:
        await node.close()


async def test_an_old_picture_is_planned_by_if_a_person_asks_and_it_is_said(
    node: Node, client: CriClient
) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"), frozen="the observer is gone")
    document = await node.affinity.rebalance(dry_run=False)
    assert document["notes"] == ["the picture of the traffic is old: the observer is gone"]
    assert document["moved"] == 1


async def test_a_refused_move_is_told_to_whoever_asked(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no such cgroup"))
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == 0
    assert [failed["error"] for failed in document["failed"]] == ["no such cgroup"]


async def test_in_mode_observe_only_a_dry_run_is_possible(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.parts.keeper.mode = "observe"
    with pytest.raises(
        CannotRebalance, match="in mode observe nothing is moved; --dry-run shows what would be"
    ):
        await node.affinity.rebalance(dry_run=False)
    assert (await node.affinity.rebalance(dry_run=True))["accepted"]


async def test_a_planner_that_fails_is_told_to_whoever_asked(node: Node, client: CriClient) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.affinity.planner = PlannerWorker(("/nowhere/python",))
    with pytest.raises(CannotRebalance, match="the planner could not be started"):
        await node.affinity.rebalance(dry_run=True)


async def test_a_new_engine_knows_the_traffic_from_the_first_decision_on(
    node: Node, client: CriClient
) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    engine = make_engine(node.parts.config, node.engine.host)
    node.affinity.follow(engine)
    assert engine.traffic is node.source.traffic
