"""A CRI client that asks what kubelet asks, over a real unix socket.

`call` and `stream` speak protobuf; `call_bytes` shows the wire: the messages, both kinds of metadata, the
status. The config builders are plain functions, so a test can make the same pod without a server.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, Optional, Union

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri_api import runtime_v1_pb2 as cri

MetadataPairs = tuple[tuple[str, Union[str, bytes]], ...]

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Before it a connection that is being made is given up: not while a machine is busy.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Without it, clients of one process share a connection and its reconnect backoff.
    ("grpc.use_local_subchannel_pool", 1),
)

IMAGE_METHODS = frozenset(
    ("ListImages", "StreamImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
)

IMAGE = "docker.io/local/busybox:1"
CPU_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000  # kubelet's minQuotaPeriod
NODE_MEMORY_BYTES = 64 << 30  # only scales the oom_score_adj of burstable containers


@dataclass(frozen=True)
class RawReply:
    """All a client can see of a unary call; `code` is the number of the gRPC status, 0 is OK."""

    messages: tuple[bytes, ...]
    initial_metadata: MetadataPairs
    trailing_metadata: MetadataPairs
    code: int
    details: str


@dataclass(frozen=True)
class Pod:
    """A running sandbox, and the config that kubelet sends again with each container of it."""

    id: str
    uid: str
    name: str
    namespace: str
    config: cri.PodSandboxConfig


def cgroup_parent(qos: str, uid: str) -> str:
    """The pod's cgroup as kubelet names it (cgroupfs driver); qos: guaranteed, burstable, besteffort."""
    return f"/kubepods/pod{uid}" if qos == "guaranteed" else f"/kubepods/{qos}/pod{uid}"


def pod_config(
    name: str,
    *,
    namespace: str = "default",
    uid: Optional[str] = None,
    cgroup_parent: Optional[str] = None,
    annotations: Optional[dict[str, str]] = None,
    labels: Optional[dict[str, str]] = None,
    resources: Optional[cri.LinuxContainerResources] = None,
    overhead: Optional[cri.LinuxContainerResources] = None,
    host_network: bool = False,
) -> cri.PodSandboxConfig:
    """A PodSandboxConfig with kubelet's labels; log_directory stays empty: nothing has made it."""
    uid = uid or str(uuid.uuid4())
    parent = _burstable_parent(uid) if cgroup_parent is None else cgroup_parent
    network = cri.NODE if host_network else cri.POD
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
        hostname="" if host_network else name,  # as kubelet: the node's own has it already
        labels={**_pod_labels(name, namespace, uid), **(labels or {})},
        annotations=annotations or {},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=parent,
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=cri.NamespaceOption(network=network, pid=cri.CONTAINER)
            ),
            resources=resources,
            overhead=overhead,
        ),
    )


def container_resources(
    *,
    cpu_request: Optional[int] = None,
    cpu_limit: Optional[int] = None,
    memory_limit: Optional[int] = None,
    qos: str = "burstable",
    cpuset: str = "",
    mems: str = "",
) -> cri.LinuxContainerResources:
    """What kubelet's calculateLinuxResources makes of milli CPUs and bytes; no request means the limit."""
    request = cpu_limit if cpu_request is None else cpu_request
    return cri.LinuxContainerResources(
        cpu_period=CPU_PERIOD_US,
        cpu_quota=max(cpu_limit * CPU_PERIOD_US // 1000, MIN_QUOTA_US) if cpu_limit else 0,
        cpu_shares=max((request or 0) * 1024 // 1000, 2),
        memory_limit_in_bytes=memory_limit or 0,
        oom_score_adj=oom_score_adj(qos, memory_limit or 0),
        cpuset_cpus=cpuset,
        cpuset_mems=mems,
    )


def oom_score_adj(qos: str, memory_bytes: int) -> int:
    """kubelet's GetContainerOOMScoreAdjust."""
    if qos == "guaranteed":
        return -997
    if qos == "besteffort":
        return 1000
    return min(max(1000 - 1000 * memory_bytes // NODE_MEMORY_BYTES, 2), 999)


def container_config(
    name: str,
    *,
    attempt: int = 0,
    image: str = IMAGE,
    command: tuple[str, ...] = ("sleep", "1000000"),
    annotations: Optional[dict[str, str]] = None,
    labels: Optional[dict[str, str]] = None,
    envs: tuple[tuple[str, str], ...] = (),
    mounts: tuple[cri.Mount, ...] = (),
    devices: tuple[str, ...] = (),
    cdi: tuple[str, ...] = (),
    **resources: Any,
) -> cri.ContainerConfig:
    """A ContainerConfig; `resources` are the arguments of `container_resources`."""
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=image, user_specified_image=image),
        command=command,
        envs=[cri.KeyValue(key=key, value=value.encode()) for key, value in envs],
        mounts=mounts,
        devices=[cri.Device(host_path=path, container_path=path) for path in devices],
        CDI_devices=[cri.CDIDevice(name=name) for name in cdi],
        labels={"io.kubernetes.container.name": name, **(labels or {})},
        annotations={"io.kubernetes.container.restartCount": str(attempt), **(annotations or {})},
        linux=cri.LinuxContainerConfig(
            resources=container_resources(**resources),
            security_context=cri.LinuxContainerSecurityContext(
                namespace_options=cri.NamespaceOption(pid=cri.CONTAINER)
            ),
        ),
    )


def create_request(pod: Pod, config: cri.ContainerConfig) -> cri.CreateContainerRequest:
    """The request for one container: its config gets the pod's labels, the pod's config goes with it."""
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    for key, value in _pod_labels(pod.name, pod.namespace, pod.uid).items():
        request.config.labels[key] = value
    return request


def _pod_labels(name: str, namespace: str, uid: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }


def _burstable_parent(uid: str) -> str:
    return cgroup_parent("burstable", uid)


class EventStream:
    """One GetContainerEvents call, open from the moment it is made until `cancel` or the client's end."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> cri.ContainerEventResponse:
        event = await self._call.read()
        if event is grpc.aio.EOF:
            raise StopAsyncIteration
        return event

    async def next(self, timeout_s: float = 10) -> cri.ContainerEventResponse:
        """The next event; after the timeout the call itself is cancelled too."""
        return await asyncio.wait_for(self.__anext__(), timeout_s)

    def cancel(self) -> None:
        self._call.cancel()


class CriClient:
    """Use as `async with CriClient(socket) as client`; `api` chooses the services' package, `options` are its channel's."""

    def __init__(
        self, socket: str, api: str = "runtime.v1", options: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        self.socket = socket
        self.api = api
        self._options = (*CHANNEL_OPTIONS, *options)
        self._channel: Any = None

    async def __aenter__(self) -> CriClient:
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=self._options)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._channel.close()

    def full_method(self, method: str) -> str:
        service = "ImageService" if method in IMAGE_METHODS else "RuntimeService"
        return f"/{self.api}.{service}/{method}"

    async def call(
        self, method: str, request: Message, *, timeout: Optional[float] = None, metadata: MetadataPairs = ()
    ) -> Any:
        """The reply of a unary method, e.g. "CreateContainer"; grpc.aio.AioRpcError for a status."""
        invoke = self._channel.unary_unary(self.full_method(method), **_serializers(method))
        return await invoke(request, timeout=timeout, metadata=metadata)

    def stream(
        self, method: str, request: Message, *, timeout: Optional[float] = None, metadata: MetadataPairs = ()
    ) -> Any:
        """The grpc.aio call of a server-streaming method: `async for` over it, or read(), and cancel()."""
        invoke = self._channel.unary_stream(self.full_method(method), **_serializers(method))
        return invoke(request, timeout=timeout, metadata=metadata)

    async def call_bytes(
        self,
        full_method: str,
        message: bytes,
        *,
        timeout: Optional[float] = None,
        metadata: MetadataPairs = (),
    ) -> RawReply:
        """One message out, then all that comes back; no gRPC status raises."""
        # unary_stream sends like a unary call, but shows also no message, or two, or one before an error.
        call = self._channel.unary_stream(full_method)(message, timeout=timeout, metadata=metadata)
        messages = []
        try:
            while True:
                reply = await call.read()
                if reply is grpc.aio.EOF:
                    break
                messages.append(reply)
        except grpc.aio.AioRpcError:
            pass  # The status is asked for below.
        return RawReply(
            messages=tuple(messages),
            initial_metadata=tuple(await call.initial_metadata()),
            trailing_metadata=tuple(await call.trailing_metadata()),
            code=(await call.code()).value[0],
            details=await call.details() or "",
        )

    def events(self) -> EventStream:
        """Subscribes at once; the runtime knows of it only after a turn of the loop."""
        return EventStream(self.stream("GetContainerEvents", cri.GetEventsRequest()))

    async def run_pod(self, name: str, *, runtime_handler: str = "", **config: Any) -> Pod:
        """Runs a sandbox; `config` are the arguments of `pod_config`."""
        request = cri.RunPodSandboxRequest(config=pod_config(name, **config), runtime_handler=runtime_handler)
        reply = await self.call("RunPodSandbox", request)
        metadata = request.config.metadata
        return Pod(reply.pod_sandbox_id, metadata.uid, name, metadata.namespace, request.config)

    async def create(self, pod: Pod, name: str, *, timeout: Optional[float] = None, **config: Any) -> str:
        """Creates a container, returns its id; `config` as for `container_config`, resources included."""
        request = create_request(pod, container_config(name, **config))
        return (await self.call("CreateContainer", request, timeout=timeout)).container_id

    async def start(self, container_id: str) -> None:
        await self.call("StartContainer", cri.StartContainerRequest(container_id=container_id))

    async def stop(self, container_id: str, timeout_s: int = 0) -> None:
        request = cri.StopContainerRequest(container_id=container_id, timeout=timeout_s)
        await self.call("StopContainer", request)

    async def remove(self, container_id: str) -> None:
        await self.call("RemoveContainer", cri.RemoveContainerRequest(container_id=container_id))

    async def stop_pod(self, pod_id: str) -> None:
        await self.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod_id))

    async def remove_pod(self, pod_id: str) -> None:
        await self.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod_id))

    async def update(self, container_id: str, **resources: Any) -> None:
        """UpdateContainerResources with these LinuxContainerResources fields, e.g. cpu_shares=512."""
        linux = cri.LinuxContainerResources(**resources)
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        await self.call("UpdateContainerResources", request)

    async def list_containers(self, **filter_: Any) -> list[cri.Container]:
        """All containers, or those that match these ContainerFilter fields."""
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**filter_) if filter_ else None)
        return list((await self.call("ListContainers", request)).containers)

    async def status(self, container_id: str, verbose: bool = False) -> cri.ContainerStatusResponse:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return await self.call("ContainerStatus", request)

    async def exec(self, container_id: str, *argv: str, timeout_s: int = 10) -> tuple[str, str, int]:
        """Runs a command in the container: (stdout, stderr, exit code)."""
        request = cri.ExecSyncRequest(container_id=container_id, cmd=argv, timeout=timeout_s)
        reply = await self.call("ExecSync", request)
        return reply.stdout.decode(), reply.stderr.decode(), reply.exit_code


def _serializers(method: str) -> dict[str, Any]:
    request, response = f"{method}Request", f"{method}Response"
    if method == "GetContainerEvents":
        request, response = "GetEventsRequest", "ContainerEventResponse"
    return {
        "request_serializer": getattr(cri, request).SerializeToString,
        "response_deserializer": getattr(cri, response).FromString,
    }
