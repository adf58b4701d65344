"""Test support: a runtime's end of NRI that does as it is told, on a real socket, over the real wire protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional, Union

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.connection import NriConnection
from cri_proxy.nri.subscription import MASK_CLASSIC

WAIT_S = 10.0
REQUEST_S = 2.0


class ScriptedHost:
    """Serves one plugin after the other. ``known``: the events it knows; ``nri_version``: "" as those before 0.12."""

    def __init__(self, path: Union[str, Path], *, nri_version: str = "", known: int = MASK_CLASSIC) -> None:
        self.path = str(path)
        self.known = known
        self.configure = nri.ConfigureRequest(
            runtime_name="containerd", runtime_version="1.7.24", NRI_version=nri_version
        )
        self.pods: list[nri.PodSandbox] = []
        self.containers: list[nri.Container] = []
        #: Into how many messages Synchronize is cut; 0: there is none.
        self.chunks = 1
        self.registered: list[nri.RegisterPluginRequest] = []
        self.masks: list[int] = []
        self.replies: list[nri.SynchronizeResponse] = []
        self.updates: list[nri.ContainerUpdate] = []
        #: Whether updates that nobody asked for fail.
        self.fails = False
        self.connection: Optional[NriConnection] = None
        self._ready = asyncio.Event()
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> ScriptedHost:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        Path(self.path).unlink(missing_ok=True)

    def drop(self) -> None:
        """Close the connection, as a runtime that ends."""
        if self.connection is not None:
            self.connection.close("dropped")
        self._ready.clear()

    async def launch(self) -> socket.socket:
        """One end of a connection for a plugin that is launched; the other is served."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return theirs

    async def ready(self) -> None:
        """Once a plugin has been through the handshake."""
        await asyncio.wait_for(self._ready.wait(), WAIT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers = {"RegisterPlugin": self._register, "UpdateContainers": self._update}
        connection = NriConnection(reader, writer, "host", handlers)
        self.connection = connection
        await connection.run()

    async def _register(self, message: bytes, timeout_s: float) -> bytes:
        self.registered.append(nri.RegisterPluginRequest.FromString(message))
        task = asyncio.ensure_future(self._shake_hands())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return b""

    async def _update(self, message: bytes, timeout_s: float) -> bytes:
        updates = nri.UpdateContainersRequest.FromString(message).update
        self.updates += updates
        failed = updates if self.fails else []
        return bytes(nri.UpdateContainersResponse(failed=failed).SerializeToString())

    async def _shake_hands(self) -> None:
        connection = self.connection
        assert connection is not None
        reply = await connection.call("Configure", self.configure.SerializeToString(), REQUEST_S)
        self.masks.append(nri.ConfigureResponse.FromString(reply).events)
        if self.masks[-1] & ~self.known:
            connection.close("invalid plugin events")
            return
        for request in self._synchronize_requests():
            reply = await connection.call("Synchronize", request.SerializeToString(), REQUEST_S)
            self.replies.append(nri.SynchronizeResponse.FromString(reply))
        self._ready.set()

    def _synchronize_requests(self) -> Iterable[nri.SynchronizeRequest]:
        for number in range(self.chunks):
            yield nri.SynchronizeRequest(
                pods=self.pods[number :: self.chunks],
                containers=self.containers[number :: self.chunks],
                more=number + 1 < self.chunks,
            )

    # ------------------------------------------------------------------ events

    async def call(self, method: str, request: Any) -> Any:
        """One event, and the plugin's answer to it."""
        assert self.connection is not None
        payload = await self.connection.call(method, request.SerializeToString(), REQUEST_S)
        reply = "Empty" if method == "StateChange" else f"{method}Response"
        return getattr(nri, reply).FromString(payload)

    async def tell(self, method: str, pod: nri.PodSandbox, container: Optional[nri.Container] = None) -> Any:
        """An event about a pod or a container of it."""
        about = {"pod": pod} if container is None else {"pod": pod, "container": container}
        return await self.call(method, getattr(nri, f"{method}Request")(**about))

    async def create(self, pod: nri.PodSandbox, container: nri.Container) -> Any:
        """CreateContainer as far as the answer; what it has become is told by ``created``."""
        return await self.tell("CreateContainer", pod, container)

    async def run(self, pod: nri.PodSandbox, container: nri.Container) -> str:
        """A container that is created and started; the CPUs it was given."""
        reply = await self.create(pod, container)
        await self.tell("PostCreateContainer", pod, container)
        await self.tell("PostStartContainer", pod, container)
        return str(reply.adjust.linux.resources.cpu.cpus)


def make_pod(name: str, namespace: str = "default", **fields: Any) -> nri.PodSandbox:
    """A burstable pod."""
    parent = f"/kubepods/burstable/poduid-{name}"
    return nri.PodSandbox(
        id=f"sandbox-{name}",
        name=name,
        uid=f"uid-{name}",
        namespace=namespace,
        linux=nri.LinuxPodSandbox(cgroup_parent=parent),
        **fields,
    )


def make_container(
    pod: nri.PodSandbox, name: str = "app", cpu_limit: int = 1000, attempt: Optional[int] = 0, **fields: Any
) -> nri.Container:
    """A container as containerd shows it: numbers that kubelet does not give are there, and 0."""
    number = 0 if attempt is None else attempt
    resources = nri.LinuxResources(
        cpu=nri.LinuxCPU(
            shares=nri.OptionalUInt64(value=max(cpu_limit * 1024 // 1000, 2)),
            quota=nri.OptionalInt64(value=cpu_limit * 100),
            period=nri.OptionalUInt64(value=100_000),
        ),
        memory=nri.LinuxMemory(limit=nri.OptionalInt64()),
    )
    counted = {} if attempt is None else {"io.kubernetes.container.restartCount": str(attempt)}
    return nri.Container(
        id=f"{pod.name}-{name}-{number}",
        pod_sandbox_id=pod.id,
        name=name,
        annotations={**counted, **fields.pop("annotations", {})},
        linux=nri.LinuxContainer(resources=resources, oom_score_adj=nri.OptionalInt(value=900)),
        **fields,
    )


def running(container: nri.Container) -> nri.Container:
    """The same as Synchronize shows it."""
    copy = nri.Container()
    copy.CopyFrom(container)
    copy.state = nri.CONTAINER_RUNNING
    return copy
