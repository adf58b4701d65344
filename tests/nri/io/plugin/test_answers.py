"""Answers to NRI events: when what is in them counts as told, and what becomes of what is not answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import structlog

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate, Life
from cri_proxy.metrics import Metrics
from cri_proxy.nri.io.plugin.placing import NriPlacing, Told
from cri_proxy.nri.io.plugin.session import Snapshot, follow_snapshot
from cri_proxy.nri.view import view_resources
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.updates import Updates
from policies.hygon import TopologyAware
from policies.machine.cpus import format_cpus
from policies.settings import EngineOptions
from tests.cri_client import container_resources
from tests.machines import HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, host_of, make_container, run
from tests.told_at_once import Store


class Scene:
    """``wide`` shares all CPUs; ``own`` is about to own some. ``sent``: what was sent by other means than answers."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        runtime: Any = SimpleNamespace(update=self._update)
        self.updates = Updates(runtime, Metrics("test"), structlog.get_logger())
        store: Any = Store()
        self.store = store
        self.state = NodeState(store, self.updates, Metrics("test"), structlog.get_logger())
        host = host_of(HYGON_7285_2S)
        self.engine = self.state.engine = Engine(
            host, TopologyAware(host.topology, TOPOLOGY_AWARE), EngineOptions()
        )
        self.state.clock = lambda: 10.0
        self.looks = 0
        self.state.on_doubt = self._look
        run(self.engine, make_container("wide", limit=120), "wide")
        sender: Any = SimpleNamespace(is_ours=lambda key, linux: False, forget=lambda key: None)
        self.placing = NriPlacing(self.state, sender)
        self.pod = nri.PodSandbox(id="p", name="p", uid="p", namespace="default")
        self.pod.linux.cgroup_parent = "/kubepods/podp"
        self.own = nri.Container(id="own", pod_sandbox_id="p", name="own")
        linux = container_resources(cpu_limit=4000, cpu_request=4000, memory_limit=1 << 30, qos="guaranteed")
        self.own.linux.resources.CopyFrom(view_resources(linux))

    def _look(self) -> None:
        self.looks += 1

    async def _update(self, update: CpusetUpdate) -> None:
        self.sent.append(f"{update.id}: {format_cpus(update.placement.cpus)}")

    def request(self) -> Any:
        return SimpleNamespace(pod=self.pod, container=self.own)

    async def create(self) -> list[str]:
        """The containers that the answer to the create tells."""
        self.placing.begin_event()
        reply: Any = await self.placing.create_container(self.request(), Told("CreateContainer"))
        assert self.engine.grants[next(iter(self.engine.tickets))].exclusive
        return [update.container_id for update in reply.update]

    def resize(self) -> Any:
        """An update of ``wide``, not awaited."""
        self.placing.begin_event()
        linux = view_resources(container_resources(cpu_limit=2000))
        container = nri.Container(id="wide", pod_sandbox_id="p", name="wide")
        request = SimpleNamespace(pod=self.pod, container=container, linux_resources=linux)
        return self.placing.update_container(request, Told("UpdateContainer"))

    @property
    def is_told(self) -> bool:
        """Whether ``wide`` is known to have what it should."""
        return not self.engine.lacks("wide")


@pytest_asyncio.fixture
async def scene() -> Any:
    scene = Scene()
    yield scene
    await scene.updates.close()


async def test_those_that_make_room_are_in_the_answer_and_told_by_the_post_event(scene) -> None:
    assert await scene.create() == ["wide"]
    assert not scene.is_told and scene.sent == []
    await scene.placing.post_create_container(scene.request(), Told("PostCreateContainer"))
    assert scene.is_told and scene.engine.not_alone("own") == ()
    await scene.updates.tried(["wide"], 1.0)
    assert scene.sent == []


@pytest.mark.parametrize("end", ["the connection is lost", "the runtime takes it back", "no event tells"])
async def test_of_an_answer_that_may_have_come_too_late_it_is_not_known_and_told_again(scene, end) -> None:
    await scene.create()
    if end == "the connection is lost":
        scene.placing.lost()
    elif end == "no event tells":
        scene.placing.doubt()
    else:
        await scene.placing.remove_container(scene.request(), Told("RemoveContainer"))
    assert not scene.engine.told["wide"].is_sure and not scene.engine.under_way
    assert scene.looks == (0 if end == "the runtime takes it back" else 1)
    await scene.updates.tried(["wide"], 20.0)
    assert scene.sent == [f"wide: {format_cpus(scene.engine.grants['wide'].cpus)}"] and scene.is_told


async def test_those_that_gain_are_in_the_answer_to_a_stop_and_told_by_the_next_event(scene) -> None:
    await scene.create()
    await scene.placing.post_create_container(scene.request(), Told("PostCreateContainer"))
    scene.placing.begin_event()
    await scene.placing.remove_container(scene.request(), Told("RemoveContainer"))
    other = nri.Container(id="another", pod_sandbox_id="p", name="another")
    asked = SimpleNamespace(pod=scene.pod, container=other)
    with scene.updates.held():
        reply: Any = await scene.placing.stop_container(asked, Told("StopContainer"))
        assert [update.container_id for update in reply.update] == ["wide"] and not scene.is_told
        scene.placing.begin_event()
        assert scene.is_told
    assert scene.sent == []


async def test_a_create_that_is_repeated_takes_over_the_cpus_of_one_that_no_event_has_ended(scene) -> None:
    """CRI-O does not tell of a create that another plugin has refused."""
    for again in range(3):
        scene.own.id = f"own{again}"
        await scene.create()
    [ticket] = scene.engine.tickets
    assert [key for key, grant in scene.engine.grants.items() if grant.exclusive] == [ticket]
    assert not scene.engine.tickets[ticket].in_doubt
    await scene.placing.post_create_container(scene.request(), Told("PostCreateContainer"))
    assert not scene.engine.tickets
    assert [key for key, grant in scene.engine.grants.items() if grant.exclusive] == ["own2"]


async def test_a_create_is_in_doubt_once_its_pod_has_ended(scene) -> None:
    await scene.create()
    [ticket] = scene.engine.tickets
    await scene.placing.stop_pod_sandbox(
        SimpleNamespace(pod=nri.PodSandbox(id="other")), Told("StopPodSandbox")
    )
    assert not scene.engine.tickets[ticket].in_doubt
    await scene.placing.stop_pod_sandbox(scene.request(), Told("StopPodSandbox"))
    assert scene.engine.tickets[ticket].in_doubt and scene.looks == 1


@pytest.mark.parametrize("event", ["create", "update"])
@pytest.mark.parametrize("why", ["late", "failed"])
async def test_what_is_not_answered_is_taken_back_and_looked_at(scene, event, why) -> None:
    before, reached = dict(scene.engine.grants), asyncio.Event()

    async def settled() -> None:
        reached.set()
        if why == "failed":
            raise OSError("no disk")
        await asyncio.Event().wait()

    scene.store.settled = settled
    asking = asyncio.ensure_future(scene.create() if event == "create" else scene.resize())
    await reached.wait()
    if why == "late":
        assert scene.engine.tickets
        asking.cancel()  # as when its time is over
    [error] = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(error, OSError if why == "failed" else asyncio.CancelledError)
    assert not scene.engine.tickets and scene.looks == 1
    assert {key: grant.placement for key, grant in scene.engine.grants.items()} == {
        key: grant.placement for key, grant in before.items()
    }
    # The runtime has made it as it was asked for: that is looked at.
    if event == "create":
        await scene.placing.post_create_container(scene.request(), Told("PostCreateContainer"))
    for _ in range(2):
        container = SimpleNamespace(pod=scene.pod, container=nri.Container(id="wide"))
        await scene.placing.post_update_container(container, Told("PostUpdateContainer"))
    assert scene.engine.grants.keys() == before.keys()
    assert scene.looks == (1 if event == "create" else 2)


async def test_a_container_that_is_started_and_not_known_is_told(scene) -> None:
    started: list[str] = []
    scene.state.on_started = started.append
    await scene.placing.post_start_container(scene.request(), Told("PostStartContainer"))
    assert started == ["own"]


@pytest.mark.parametrize("end", ["stop", "remove"])
async def test_the_end_of_a_container_that_a_comparison_has_found_made_is_not_lost(scene, end) -> None:
    await scene.create()
    [ticket] = scene.engine.tickets
    scene.placing.lost()
    scene.engine.bind(ticket, "own", 11.0)
    tell = scene.placing.stop_container if end == "stop" else scene.placing.remove_container
    await tell(scene.request(), Told("StopContainer"))
    left = {key: grant.life for key, grant in scene.engine.grants.items() if key == "own"}
    assert left == ({"own": Life.HELD} if end == "stop" else {})


@pytest.mark.parametrize("end", ["stop_container", "remove_container"])
async def test_a_container_that_ends_while_a_snapshot_is_followed_is_not_taken_for_running(
    scene, end
) -> None:
    snapshot = Snapshot()
    scene.own.state = nri.CONTAINER_RUNNING
    snapshot.add(nri.SynchronizeRequest(pods=[scene.pod], containers=[scene.own]), 10.0)
    scene.placing.ended = snapshot.ended

    async def welcome(engine: Engine, found: Any) -> Any:
        await getattr(scene.placing, end)(scene.request(), Told(end))
        return found

    async def place_late(engine: Engine, found: Any) -> None:
        assert not found

    await follow_snapshot(scene.state, snapshot, welcome, place_late)
    assert "own" not in scene.engine.grants


async def test_before_a_start_what_is_to_be_done_is_waited_for_and_the_container_is_known_by_its_id() -> None:
    scene = Scene()
    await scene.create()
    started: list[str] = []

    async def on_start(key: str) -> None:
        assert scene.engine.grants[key].life is Life.CREATED
        started.append(key)

    assert await scene.placing.start_container(scene.request(), Told("StartContainer")) is None
    assert scene.engine.grants["own"].life is Life.CREATED
    scene.state.on_start = on_start
    await scene.placing.start_container(scene.request(), Told("StartContainer"))
    assert started == ["own"]


async def test_what_a_quota_must_find_changed_is_waited_for_before_the_runtime_writes_it(scene) -> None:
    quotas: list[tuple[str, int]] = []

    async def on_quota(key: str, quota_us: int) -> None:
        quotas.append((key, quota_us))

    scene.state.on_quota = on_quota
    await scene.resize()
    linux = view_resources(container_resources(cpu_limit=3000))
    pod = nri.UpdatePodSandboxRequest(pod=scene.pod, linux_resources=linux)
    await scene.placing.update_pod_sandbox(pod, Told("UpdatePodSandbox"))
    assert quotas == [("wide", 200_000), ("p", 300_000)]
