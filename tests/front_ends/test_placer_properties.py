"""The same random sequence through all four front ends gives the same records and the same cpusets.

CRI calls, the NRI plugin, late placement and the simulator run as they are; the runtime is a dictionary of cpusets, to which
updates get at once. A container that is placed late runs before it is placed: a create that fails, or whose answer is lost
is not seen then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Callable, Optional

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.config import Config, read_config
from cri_proxy.cri.messages import read_create
from cri_proxy.engine.build import Machine, make_engine, make_host
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resync import UnannouncedContainer
from cri_proxy.front_ends.cri_calls import CriInterceptor
from cri_proxy.front_ends.late_placement import LatePlacement
from cri_proxy.metrics import Metrics
from cri_proxy.nri.io.plugin.placing import NriPlacing, Told
from cri_proxy.nri.view import view_resources
from cri_proxy.relay.interception import CallEnd, Forward
from cri_proxy.services import updates as sender
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.services import EventCount
from cri_proxy.simulator.daemon import SimulatedShell
from cri_proxy.text.sources import SettingsSource
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from tests.cri_client import container_config, container_resources, create_request, pod_config
from tests.machines import HYGON_7285_2S, machine
from tests.told_at_once import Store

MACHINE = machine(HYGON_7285_2S)
#: The pods, and the containers that each may have.
PODS, NAMES = ("p0", "p1", "p2"), ("a", "b")
Step = tuple[Any, ...]
KILLED = 137
#: The simulator's words for how a create ends.
RESULTS = {"create": "ok", "fail": "refused", "lose": "doubt"}


def config_of(policy: str) -> Config:
    return read_config([SettingsSource("test", values={"policy": {"Active": policy}})]).config


class Pod:
    """What a client says of a pod."""

    def __init__(self, name: str) -> None:
        self.name = self.uid = self.id = name
        self.namespace = "default"
        self.config = pod_config(name, uid=name)


def created(container_id: str, limit: int) -> cri.CreateContainerRequest:
    """Guaranteed, so that there are containers that own CPUs."""
    pod_name, name = container_id.split("-")[:2]
    config = container_config(
        name, cpu_limit=limit, cpu_request=limit, memory_limit=1 << 30, qos="guaranteed"
    )
    pod = Pod(pod_name)
    pod.config.linux.cgroup_parent = f"/kubepods/pod{pod_name}"
    return create_request(pod, config)  # type: ignore[arg-type]


def resized(container_id: str, limit: int) -> cri.UpdateContainerResourcesRequest:
    linux = container_resources(cpu_limit=limit, cpu_request=limit, memory_limit=1 << 30, qos="guaranteed")
    return cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)


def pod_resources(limit: int) -> cri.LinuxContainerResources:
    return container_resources(cpu_limit=limit, cpu_request=limit, memory_limit=1 << 30, qos="guaranteed")


class Updates(sender.Updates):
    """The runtime: what containers were told last. Updates get there at once, so none is ever on its way."""

    def __init__(self) -> None:
        runtime: Any = SimpleNamespace(update=None)
        super().__init__(runtime, Metrics("test"), structlog.get_logger())
        self.cpusets: dict[str, tuple[frozenset[int], frozenset[int]]] = {}

    def tell(self, key: str, cpus: frozenset[int], mems: frozenset[int]) -> None:
        before = self.cpusets.get(key, (frozenset(), frozenset()))
        self.cpusets[key] = (cpus or before[0], mems or before[1])

    def wake(self) -> None:
        engine = self.engine
        while engine is not None and (key := self._take()):
            update = self.begin(key)
            if update is not None and key in self.cpusets:
                self.tell(key, update.placement.cpus, update.placement.mems)
            self.end(engine, key, is_taken=True)
            self._taken.discard(key)


class FrontEnd:
    """One way to the same engine. ``created`` and ``resized`` return whether the runtime has done it."""

    def __init__(self, policy: str) -> None:
        config = config_of(policy)
        host, _ = make_host(config, Machine(Topology(MACHINE)))
        self.updates = Updates()
        store: Any = Store()
        self.state = NodeState(store, self.updates, Metrics("test"), structlog.get_logger())
        self.state.engine = make_engine(config, host)
        self.state.clock = lambda: self.now_s
        self.now_s = 0.0

    @property
    def engine(self) -> Engine:
        assert self.state.engine is not None
        return self.state.engine

    @property
    def cpusets(self) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
        return {key: told for key, told in self.updates.cpusets.items() if key in self.engine.grants}

    async def pod(self, pod: Pod) -> None:
        raise NotImplementedError

    async def create(self, key: str, request: cri.CreateContainerRequest, end: str) -> None:
        raise NotImplementedError

    async def resize(self, request: cri.UpdateContainerResourcesRequest) -> None:
        raise NotImplementedError

    async def resize_pod(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        raise NotImplementedError

    async def stop(self, key: str) -> None:
        raise NotImplementedError

    async def remove(self, key: str) -> None:
        raise NotImplementedError


def told_of(linux: cri.LinuxContainerResources) -> tuple[frozenset[int], frozenset[int]]:
    return parse_cpus(linux.cpuset_cpus), parse_cpus(linux.cpuset_mems)


class CriCalls(FrontEnd):
    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        restores: Any = None
        self.interceptor = CriInterceptor(self.state, EventCount(), restores)

    async def call(
        self,
        method: str,
        request: Any,
        reply: Optional[Any],
        make: Callable[[bytes], None] = lambda sent: None,
        otherwise: CallEnd = CallEnd.REFUSED,
    ) -> None:
        """``make``: what the runtime does with the request and what is appended; without a reply it ends ``otherwise``."""
        call = self.interceptor.open(f"/runtime.v1.RuntimeService/{method}")
        assert call is not None
        message = request.SerializeToString()
        outcome = await call.request(message)
        assert isinstance(outcome, Forward), outcome
        if reply is None:
            await call.ended(otherwise, 2, "no")
        else:
            make(bytes(message + outcome.delta))
            await call.replied(reply.SerializeToString())
            await call.ended(CallEnd.OK, 0, "")

    async def pod(self, pod: Pod) -> None:
        reply = cri.RunPodSandboxResponse(pod_sandbox_id=pod.id)
        await self.call("RunPodSandbox", cri.RunPodSandboxRequest(config=pod.config), reply)

    async def create(self, key: str, request: cri.CreateContainerRequest, end: str) -> None:
        def make(sent: bytes) -> None:
            self.updates.tell(
                key, *told_of(cri.CreateContainerRequest.FromString(sent).config.linux.resources)
            )

        reply = cri.CreateContainerResponse(container_id=key) if end == "create" else None
        how = CallEnd.UNKNOWN if end == "lose" else CallEnd.REFUSED
        await self.call("CreateContainer", request, reply, make, how)
        if end == "create":
            start = cri.StartContainerRequest(container_id=key)
            await self.call("StartContainer", start, cri.StartContainerResponse())

    async def resize(self, request: cri.UpdateContainerResourcesRequest) -> None:
        def make(sent: bytes) -> None:
            linux = cri.UpdateContainerResourcesRequest.FromString(sent).linux
            self.updates.tell(request.container_id, *told_of(linux))

        reply = cri.UpdateContainerResourcesResponse()
        await self.call("UpdateContainerResources", request, reply, make)

    async def resize_pod(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        await self.call("UpdatePodSandboxResources", request, cri.UpdatePodSandboxResourcesResponse())

    async def stop(self, key: str) -> None:
        request = cri.StopContainerRequest(container_id=key)
        await self.call("StopContainer", request, cri.StopContainerResponse())

    async def remove(self, key: str) -> None:
        request = cri.RemoveContainerRequest(container_id=key)
        await self.call("RemoveContainer", request, cri.RemoveContainerResponse())


class Plugin(FrontEnd):
    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        sender: Any = SimpleNamespace(is_ours=lambda key, linux: False)
        self.placing = NriPlacing(self.state, sender)
        self.pods: dict[str, nri.PodSandbox] = {}
        self.containers: dict[str, nri.Container] = {}

    def request(self, key: str, **more: Any) -> Any:
        container = self.containers[key]
        return SimpleNamespace(pod=self.pods[container.pod_sandbox_id], container=container, **more)

    def carry_out(self, updates: Iterable[nri.ContainerUpdate]) -> None:
        for update in updates:
            cpu = update.linux.resources.cpu
            linux = cri.LinuxContainerResources(cpuset_cpus=cpu.cpus, cpuset_mems=cpu.mems)
            self.updates.tell(update.container_id, *told_of(linux))

    async def pod(self, pod: Pod) -> None:
        linux = nri.LinuxPodSandbox(cgroup_parent=pod.config.linux.cgroup_parent)
        linux.pod_resources.CopyFrom(view_resources(pod.config.linux.resources))
        seen = nri.PodSandbox(id=pod.id, name=pod.name, uid=pod.uid, namespace=pod.namespace, linux=linux)
        seen.labels.update(pod.config.labels)
        self.pods[pod.id] = seen
        await self.placing.run_pod_sandbox(SimpleNamespace(pod=seen), Told("RunPodSandbox"))

    async def create(self, key: str, request: cri.CreateContainerRequest, end: str) -> None:
        config = request.config
        container = nri.Container(id=key, pod_sandbox_id=request.pod_sandbox_id, name=config.metadata.name)
        container.labels.update(config.labels)
        container.annotations.update(config.annotations)
        container.linux.resources.CopyFrom(view_resources(config.linux.resources))
        container.linux.oom_score_adj.value = config.linux.resources.oom_score_adj
        self.containers[key] = container
        reply: Any = await self.placing.create_container(self.request(key), Told("CreateContainer"))
        cpu = reply.adjust.linux.resources.cpu
        linux = cri.LinuxContainerResources(cpuset_cpus=cpu.cpus, cpuset_mems=cpu.mems)
        self.carry_out(reply.update)
        if end == "fail":
            await self.placing.remove_container(self.request(key), Told("RemoveContainer"))
        if end == "lose":
            self.placing.doubt()
        if end != "create":
            return
        self.updates.tell(key, *told_of(linux))
        await self.placing.post_create_container(self.request(key), Told("PostCreateContainer"))
        await self.placing.post_start_container(self.request(key), Told("PostStartContainer"))

    async def resize(self, request: cri.UpdateContainerResourcesRequest) -> None:
        key, told = request.container_id, Told("UpdateContainer")
        asked = self.request(key, linux_resources=view_resources(request.linux))
        reply: Any = await self.placing.update_container(asked, told)
        if reply is not None:
            self.carry_out(reply.update)
        await self.placing.post_update_container(self.request(key), Told("PostUpdateContainer"))

    async def resize_pod(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        asked = SimpleNamespace(
            pod=self.pods[request.pod_sandbox_id],
            linux_resources=view_resources(request.resources),
            overhead_linux_resources=view_resources(request.overhead),
        )
        await self.placing.update_pod_sandbox(asked, Told("UpdatePodSandbox"))
        await self.placing.post_update_pod_sandbox(asked, Told("PostUpdatePodSandbox"))

    async def stop(self, key: str) -> None:
        reply: Any = await self.placing.stop_container(self.request(key), Told("StopContainer"))
        self.carry_out(reply.update)

    async def remove(self, key: str) -> None:
        await self.placing.remove_container(self.request(key), Told("RemoveContainer"))


class Late(CriCalls):
    """Standalone: containers are seen once they run. How they go is told by the runtime's list, here at once."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        services: Any = SimpleNamespace(node_state=self.state)
        self.late = LatePlacement(services)

    async def create(self, key: str, request: cri.CreateContainerRequest, end: str) -> None:
        if end == "create":
            read = read_create(request.SerializeToString(), self.engine.pods, self.state.memory_bytes)
            self.updates.tell(key, frozenset(), frozenset())
            await self.late.place(
                self.engine, [UnannouncedContainer(key, read.container, read.constraint, read.uses)]
            )


class Simulated(FrontEnd):
    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        self.shell = SimulatedShell(MACHINE, config_of(policy))
        self.state.engine = self.shell.engine

    @property
    def cpusets(self) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
        processes = self.shell.runtime.containers
        return {key: told_of(p.linux) for key, p in processes.items() if key in self.engine.grants}

    async def pod(self, pod: Pod) -> None:
        request = cri.RunPodSandboxRequest(config=pod.config)
        self.shell.run_sandbox(pod.id, request.SerializeToString())

    async def create(self, key: str, request: cri.CreateContainerRequest, end: str) -> None:
        self.shell.now_s = self.now_s
        self.shell.create(key, request.SerializeToString(), RESULTS[end])

    async def resize(self, request: cri.UpdateContainerResourcesRequest) -> None:
        self.shell.now_s = self.now_s
        process = self.shell.runtime.containers[request.container_id]
        self.shell.update(process, request.SerializeToString(), "ok")

    async def resize_pod(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        self.shell.now_s = self.now_s
        self.shell.resize_pod(request.pod_sandbox_id, request.SerializeToString())

    async def stop(self, key: str) -> None:
        self.shell.now_s = self.now_s
        # StopContainer does not tell a code: that it has finished well is not known.
        self.shell.exit(self.shell.runtime.containers[key], KILLED)

    async def remove(self, key: str) -> None:
        self.shell.now_s = self.now_s
        self.shell.remove(self.shell.runtime.containers[key])


LIMITS = st.sampled_from([500, 1000, 2000, 4000, 6000, 8000, 12000, 16000, 40000])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "resize", "stop", "remove", "fail", "lose"]),
        st.sampled_from([f"{pod}-{name}" for pod in PODS for name in NAMES]),
        LIMITS,
    ),
    max_size=20,
)


def seen(front_end: FrontEnd) -> dict[str, Any]:
    """What its records say, besides when and why."""
    grants = front_end.engine.grants
    return {
        key: (g.placement, g.stance, g.life, g.exclusive, g.container.resources, g.container.qos)
        for key, g in grants.items()
    }


async def play(
    front_end: FrontEnd, steps: list[Step], sizes: Optional[dict[str, int]] = None
) -> list[tuple[Any, Any]]:
    """The records and cpusets after each step.

    ``sizes``: of pods with resources of their own. Kubelet writes these into each of their containers, and into a
    container that is updated the limit only (see policies/pod_share.py).
    """
    of_pod = dict(sizes or {})
    story = []
    running: dict[str, str] = {}
    stopped: dict[str, str] = {}
    for pod in PODS:
        seen_pod = Pod(pod)
        seen_pod.config.linux.cgroup_parent = f"/kubepods/pod{pod}"
        if pod in of_pod:
            seen_pod.config.linux.resources.CopyFrom(pod_resources(of_pod[pod]))
        await front_end.pod(seen_pod)
    for number, (operation, name, limit) in enumerate(steps):
        front_end.now_s += 1.0
        if operation in RESULTS and name not in running:
            key = f"{name}-{number}"
            await front_end.create(key, created(key, of_pod.get(name.split("-")[0], limit)), operation)
            if operation == "create":
                running[name] = key
        elif operation == "resize" and name.split("-")[0] in of_pod:
            pod = name.split("-")[0]
            of_pod[pod] = limit
            for which in [key for other, key in running.items() if other.startswith(f"{pod}-")]:
                asked = resized(which, limit)
                asked.linux.cpu_shares = 2
                await front_end.resize(asked)
            request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod, resources=pod_resources(limit))
            await front_end.resize_pod(request)
        elif operation == "resize" and name in running:
            await front_end.resize(resized(running[name], limit))
        elif operation == "stop" and name in running:
            stopped[name] = running.pop(name)
            await front_end.stop(stopped[name])
        elif operation == "remove" and name in stopped:
            await front_end.remove(stopped.pop(name))
        await asyncio.sleep(0)
        assert all(ticket.in_doubt for ticket in front_end.engine.tickets.values())
        story.append((seen(front_end), front_end.cpusets))
    return story


@given(policy=st.sampled_from(["hygon", "topology-aware", "balloons"]), steps=STEPS)
def test_all_front_ends_tell_the_same_story(policy: str, steps: list[Step]) -> None:
    stories = {
        kind.__name__: asyncio.run(play(kind(policy), steps)) for kind in (CriCalls, Plugin, Simulated)
    }
    assert stories["Plugin"] == stories["CriCalls"]
    assert stories["Simulated"] == stories["CriCalls"]


@given(policy=st.sampled_from(["hygon", "topology-aware", "balloons"]), steps=STEPS)
def test_placed_late_is_placed_the_same(policy: str, steps: list[Step]) -> None:
    seen_to_run = [step for step in steps if step[0] not in ("fail", "lose")]
    late, told = (asyncio.run(play(kind(policy), seen_to_run)) for kind in (Late, CriCalls))
    assert late == told


@settings(max_examples=40)
@given(
    policy=st.sampled_from(["hygon", "topology-aware", "balloons"]),
    steps=STEPS,
    sizes=st.dictionaries(st.sampled_from(PODS), LIMITS, min_size=1),
)
def test_all_front_ends_know_the_resources_of_pods(
    policy: str, steps: list[Step], sizes: dict[str, int]
) -> None:
    stories = {
        kind.__name__: asyncio.run(play(kind(policy), steps, sizes)) for kind in (CriCalls, Plugin, Simulated)
    }
    assert stories["Plugin"] == stories["CriCalls"]
    assert stories["Simulated"] == stories["CriCalls"]
