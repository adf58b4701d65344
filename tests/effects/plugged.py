"""The same node with the daemon as a plugin of the runtime's own NRI: all but the connection itself.

The runtime asks it in an event, carries out the answer, and tells it what was made; one event at a time. Where the daemon
dies while it is asked, the runtime goes on without an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy import effects
from cri_proxy.front_ends.protocol import FrontEnd
from cri_proxy.nri.containers import cri_resources
from cri_proxy.nri.io.connection import CallFailed
from cri_proxy.nri.io.plugin.plugin import NriPlugin, PluginOptions, ToldConfig
from cri_proxy.nri.io.plugin.session import Hooks, NriSession
from cri_proxy.nri.view import view_container, view_pod, view_resources
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.services.services import Services
from tests.effects.node import TURN_S, Channel, Life, Refused, World
from tests.fake_runtime import Failure

EVENT_S = 2.0
UPDATE = "UpdateContainerResources"


def _plugin(services: Services) -> FrontEnd:
    return NriPlugin(services, PluginOptions(ToldConfig("nri")))


class _AskingChannel(Channel):
    """As the runtime's socket: an update of the daemon's own comes back to its plugin as an event."""

    def __init__(self, life: PluggedLife) -> None:
        super().__init__(life.world)
        self._life = life

    async def act(self, method: str, message: bytes) -> bytes:
        if method != UPDATE:
            return await super().act(method, message)
        try:
            async with self._life.host:
                await self._life.update_told(cri.UpdateContainerResourcesRequest.FromString(message), None)
        except Refused as refused:
            raise RpcError(Code.UNKNOWN, str(refused)) from None
        return b""


class _Host:
    """What of the connection the daemon calls by itself, where the host lets plugins update containers at any time."""

    def __init__(self, life: PluggedLife) -> None:
        self._life = life

    async def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        effects.before(effects.NRI, method)
        async with self._life.host:
            await asyncio.sleep(TURN_S)
            failed = self._life.carry_out(nri.UpdateContainersRequest.FromString(message).update)
        return bytes(nri.UpdateContainersResponse(failed=failed).SerializeToString())


class PluggedLife(Life):
    """``nri_version``: as the host tells it; "": it is older than 0.12, and lets no plugin update unasked."""

    def __init__(self, world: World, disk: str = "quick", nri_version: str = "") -> None:
        super().__init__(world, disk, _plugin)
        self._nri_version = nri_version

    def make_channel(self) -> Channel:
        return _AskingChannel(self)

    async def _start(self) -> None:
        #: One event at a time.
        self.host = asyncio.Lock()
        await super()._start()
        front: Any = self.daemon.front
        front._is_up.set()
        hooks = Hooks(front._configured, front._synchronized, front._shut_down)
        session: Any = NriSession(self.daemon.services.node_state, front._placing, hooks, front._is_small)
        front._session, session._connection = session, _Host(self)
        self._handlers = session._handlers()
        async with self.host:
            told = nri.ConfigureRequest(
                runtime_name="containerd", runtime_version="1.7.0", NRI_version=self._nri_version
            )
            await self._ask("Configure", told)
            pods = [self._pod(key) for key in self.world.runtime.pods]
            containers = [self._container(key) for key in self.world.runtime.containers]
            await self._ask("Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers))
        self.spawn(front._sweep())

    # ------------------------------------------------------------------ the runtime

    async def _ask(self, method: str, request: Any) -> bytes:
        """:raises Refused: the plugin does."""
        try:
            reply: bytes = await self._handlers[method](request.SerializeToString(), EVENT_S)
        except CallFailed as error:
            raise Refused(error.message) from None
        finally:
            effects.before(effects.NRI, method)
        return reply

    async def _tell(self, method: str, pod: str, container: Optional[nri.Container] = None) -> bytes:
        request = getattr(nri, f"{method}Request")(pod=self._pod(pod))
        if container is not None:
            request.container.CopyFrom(container)
        return await self._ask(method, request)

    def _pod(self, key: str) -> nri.PodSandbox:
        pod = self.world.runtime.pods.get(key)
        return view_pod(key, None if pod is None else pod.config)

    def _container(self, key: str) -> nri.Container:
        record = self.world.runtime.containers[key]
        config = cri.ContainerConfig.FromString(record.config.SerializeToString())
        config.linux.resources.CopyFrom(record.resources)
        return self._shown(key, record.sandbox_id, config, record.state)

    def _shown(self, key: str, sandbox: str, config: cri.ContainerConfig, state: Any) -> nri.Container:
        status = cri.ContainerStatusResponse(status=cri.ContainerStatus(id=key, state=state))
        return view_container(
            sandbox, status, config, self.world.runtime.pods[sandbox].config.linux.cgroup_parent
        )

    async def _act(self, method: str, request: Any, raw: Optional[Any]) -> bytes:
        """The runtime does it, and goes on doing it if the daemon dies meanwhile.

        :raises Refused: it fails.
        """
        message = request.SerializeToString()
        asked = None if raw is None else raw.SerializeToString()
        self.world.on_way(method, message, asked)
        await asyncio.sleep(TURN_S)
        try:
            return self.world.act(method, message, asked)
        except Failure as failure:
            raise Refused(failure.details) from None

    def carry_out(self, updates: Any) -> list[nri.ContainerUpdate]:
        """Updates of containers by a plugin; returns those that failed."""
        failed = []
        for update in updates:
            linux = cri_resources(update.linux.resources)
            request = cri.UpdateContainerResourcesRequest(container_id=update.container_id, linux=linux)
            self.world.on_way(UPDATE, request.SerializeToString(), None)
            try:
                self.world.act(UPDATE, request.SerializeToString())
            except Failure:
                failed.append(update)
        return failed

    async def update_told(self, request: Any, raw: Optional[Any]) -> None:
        key = request.container_id
        record = self.world.runtime.containers.get(key)
        if record is None:
            raise Refused(f"no container {key}")
        if raw is not None:  # without an answer it is made as it was asked for
            self.world.on_way(UPDATE, raw.SerializeToString(), raw.SerializeToString())
        event = nri.UpdateContainerRequest(
            pod=self._pod(record.sandbox_id),
            container=self._container(key),
            linux_resources=view_resources(request.linux),
        )
        reply = nri.UpdateContainerResponse.FromString(await self._ask("UpdateContainer", event))
        self.carry_out(update for update in reply.update if update.container_id != key)
        for update in reply.update:
            if update.container_id == key:
                request.linux.MergeFrom(cri_resources(update.linux.resources))
        await self._act(UPDATE, request, raw)
        if key in self.world.runtime.containers:
            await self._tell("PostUpdateContainer", record.sandbox_id, self._container(key))

    async def carry_late(self, method: str, message: bytes, raw: Optional[bytes]) -> None:
        """With the events that tell the next plugin of it; what is created late is started as well."""
        kind: Any = getattr(cri, f"{method}Request", None)
        request: Any = kind.FromString(message)
        made = self.world.act(method, message, raw)
        async with self.host:
            if method == "CreateContainer":
                key = cri.CreateContainerResponse.FromString(made).container_id
                await self._tell("PostCreateContainer", request.pod_sandbox_id, self._container(key))
                await self._StartContainer(cri.StartContainerRequest(container_id=key))
            elif method in ("StartContainer", UPDATE):
                event = "PostStartContainer" if method == "StartContainer" else "PostUpdateContainer"
                container = self._container(request.container_id)
                await self._tell(event, container.pod_sandbox_id, container)

    # ------------------------------------------------------------------ kubelet

    async def call(self, method: str, request: Any, reply: Any) -> Any:
        async with self.host:
            own = getattr(self, f"_{method}", None)
            done = await (self._act(method, request, request) if own is None else own(request))
        return done if isinstance(done, reply) else reply.FromString(done or b"")

    async def _RunPodSandbox(self, request: Any) -> bytes:
        done = await self._act("RunPodSandbox", request, request)
        await self._tell("RunPodSandbox", cri.RunPodSandboxResponse.FromString(done).pod_sandbox_id)
        return done

    async def _CreateContainer(self, request: Any) -> bytes:
        runtime, sandbox = self.world.runtime, request.pod_sandbox_id
        raw = request.SerializeToString()
        key = hashlib.sha256(f"{runtime._id_seed} {runtime._made + 1}".encode()).hexdigest()
        container = self._shown(key, sandbox, request.config, cri.CONTAINER_CREATED)
        self.world.on_way("CreateContainer", raw, raw)
        told = await self._tell("CreateContainer", sandbox, container)
        reply = nri.CreateContainerResponse.FromString(told)
        self.carry_out(reply.update)
        asked = cri.CreateContainerRequest.FromString(raw)
        asked.config.linux.resources.MergeFrom(cri_resources(reply.adjust.linux.resources))
        try:
            done = await self._act("CreateContainer", asked, request)
        except Refused:
            await self._tell("StopContainer", sandbox, container)
            await self._tell("RemoveContainer", sandbox, container)
            raise
        await self._tell("PostCreateContainer", sandbox, self._container(key))
        self.world.known[request.config.metadata.name] = key
        return done

    async def _StartContainer(self, request: Any) -> None:
        key = request.container_id
        await self._act("StartContainer", request, request)
        await self._tell(
            "PostStartContainer", self.world.runtime.containers[key].sandbox_id, self._container(key)
        )

    async def _UpdateContainerResources(self, request: Any) -> None:
        raw = cri.UpdateContainerResourcesRequest.FromString(request.SerializeToString())
        await self.update_told(request, raw)

    async def _StopContainer(self, request: Any) -> None:
        await self._act("StopContainer", request, request)
        await self._stopped(request.container_id)

    async def _stopped(self, key: str) -> None:
        told = await self._tell(
            "StopContainer", self.world.runtime.containers[key].sandbox_id, self._container(key)
        )
        self.carry_out(nri.StopContainerResponse.FromString(told).update)

    async def _RemoveContainer(self, request: Any) -> None:
        container = self._container(request.container_id)
        await self._act("RemoveContainer", request, request)
        await self._tell("RemoveContainer", container.pod_sandbox_id, container)

    async def _StopPodSandbox(self, request: Any) -> None:
        key = request.pod_sandbox_id
        running = [
            c.id
            for c in self.world.runtime.containers.values()
            if c.sandbox_id == key and c.state != cri.CONTAINER_EXITED
        ]
        await self._act("StopPodSandbox", request, request)
        for container in running:
            await self._stopped(container)
        await self._tell("StopPodSandbox", key)

    async def _RemovePodSandbox(self, request: Any) -> None:
        key = request.pod_sandbox_id
        gone = [self._container(c.id) for c in self.world.runtime.containers.values() if c.sandbox_id == key]
        pod = self._pod(key)
        await self._act("RemovePodSandbox", request, request)
        for container in gone:
            await self._ask("RemoveContainer", nri.RemoveContainerRequest(pod=pod, container=container))
        await self._ask("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=pod))
