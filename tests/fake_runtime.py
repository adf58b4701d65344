"""A container runtime without containers: a real grpc.aio server on a real unix socket.

`Runtime` is what containerd does with pods and containers, as plain calls on values. `FakeRuntime` serves it
through one stream-stream handler on raw bytes, records every call, and does as the scripts say instead.
A method it does not know is echoed, message by message.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri_api import runtime_v1_pb2 as cri

MetadataPairs = tuple[tuple[str, Union[str, bytes]], ...]
Code = Union[int, grpc.StatusCode]

SERVER_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
)
CRI_SERVICES = ("RuntimeService", "ImageService")
BUSYBOX = "docker.io/local/busybox:1"
EVENTS = "RuntimeService/GetContainerEvents"
#: Streamed lists, the list each of them is, and the name of its items.
STREAMED = {
    "RuntimeService/StreamContainers": ("RuntimeService/ListContainers", "containers"),
    "RuntimeService/StreamPodSandboxes": ("RuntimeService/ListPodSandbox", "items"),
}
STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
WAIT_S = 10  # a test that waits longer has failed


class Failure(Exception):
    """The status a method ends with."""

    def __init__(self, code: Code, details: str, trailing_metadata: MetadataPairs = ()) -> None:
        super().__init__(details)
        # grpc.aio takes numbers too, but makes UNKNOWN of 16 (UNAUTHENTICATED).
        self.code = STATUS_CODES[code] if isinstance(code, int) else code
        self.details = details
        self.trailing_metadata = tuple(trailing_metadata)


@dataclass(eq=False)
class Call:
    """A recorded call; `sequence` and `finished` count arrivals and ends on one scale, 0 while it runs."""

    sequence: int
    full_method: str
    request: tuple[bytes, ...]
    metadata: MetadataPairs
    time_remaining: Optional[float]
    finished: int = 0
    outcome: str = ""  # "ok", "error", "cancelled" once finished

    @property
    def is_unasked(self) -> bool:
        """Whether it was given up before its request came.

        The frame relay passes on the headers of a call at once and resets it where it answers itself: most servers
        see nothing of that, one that is quick a call without a request.
        """
        return not self.request and self.outcome not in ("ok", "error")

    @property
    def method(self) -> str:
        return self.full_method.rpartition("/")[2]

    @property
    def api(self) -> str:
        """The package of the service: "runtime.v1"."""
        return self.full_method[1:].rpartition("/")[0].rpartition(".")[0]

    @property
    def service_method(self) -> str:
        """Without the package: "RuntimeService/Version"."""
        return self.full_method.rpartition(".")[2]

    @property
    def message(self) -> Any:
        """The (first) request, parsed by the method's name."""
        name = "GetEvents" if self.method == "GetContainerEvents" else self.method
        return getattr(cri, f"{name}Request").FromString(self.request[0])


@dataclass
class Script:
    """What `FakeRuntime.script` has been told; `used` counts the calls it was applied to."""

    method: str
    delay_s: float = 0
    error: Optional[tuple[Any, ...]] = None
    reply: Union[bytes, tuple[bytes, ...], None] = None
    initial_metadata: MetadataPairs = ()
    trailing_metadata: MetadataPairs = ()
    hold: Optional[asyncio.Event] = None
    times: Optional[int] = None
    when: Optional[Callable[[bytes], bool]] = None
    then_hang: bool = False
    act_before_error: bool = False
    used: int = 0

    def applies_to(self, call: Call) -> bool:
        if self.method not in (call.method, call.full_method) or self.used == self.times:
            return False
        return self.when is None or self.when(b"".join(call.request[:1]))

    @property
    def reply_messages(self) -> tuple[bytes, ...]:
        if self.reply is None:
            return ()
        return (self.reply,) if isinstance(self.reply, bytes) else tuple(self.reply)


@dataclass
class PodRecord:
    id: str
    config: cri.PodSandboxConfig
    runtime_handler: str = ""
    state: int = cri.SANDBOX_READY
    created_at: int = field(default_factory=time.time_ns)

    @property
    def unique_name(self) -> str:
        metadata = self.config.metadata
        return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"

    def status(self) -> cri.PodSandboxStatus:
        return cri.PodSandboxStatus(**self._shown())

    def item(self) -> cri.PodSandbox:
        return cri.PodSandbox(**self._shown())

    def _shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "metadata": self.config.metadata,
            "state": self.state,
            "created_at": self.created_at,
            "labels": self.config.labels,
            "annotations": self.config.annotations,
            "runtime_handler": self.runtime_handler,
        }


@dataclass
class ContainerRecord:
    """`resources` are as created and then updated; `create_bytes` is the request as it came."""

    id: str
    sandbox_id: str
    config: cri.ContainerConfig
    create_bytes: bytes
    unique_name: str
    resources: cri.LinuxContainerResources
    pid: int
    state: int = cri.CONTAINER_CREATED
    exit_code: int = 0
    created_at: int = field(default_factory=time.time_ns)
    started_at: int = 0
    finished_at: int = 0

    @property
    def name(self) -> str:
        return self.config.metadata.name

    @property
    def attempt(self) -> int:
        return self.config.metadata.attempt

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config.labels)

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.config.annotations)

    def status(self) -> cri.ContainerStatus:
        return cri.ContainerStatus(
            **self._shown(),
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            mounts=self.config.mounts,
            resources=cri.ContainerResources(linux=self.resources),
        )

    def item(self) -> cri.Container:
        return cri.Container(**self._shown(), pod_sandbox_id=self.sandbox_id)

    def _shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "metadata": self.config.metadata,
            "state": self.state,
            "created_at": self.created_at,
            "image": self.config.image,
            "image_ref": _image_id(self.config.image.image),
            "labels": self.labels,
            "annotations": self.annotations,
        }


class Runtime:
    """Pods and containers as containerd keeps them; `emit` gets each event."""

    def __init__(
        self, name: str, version: str, id_seed: str, emit: Callable[[cri.ContainerEventResponse], None]
    ) -> None:
        self.name = name
        self.version = version
        self.pods: dict[str, PodRecord] = {}
        self.containers: dict[str, ContainerRecord] = {}
        self.images = {BUSYBOX}
        #: What containerd says of its CRI plugin's configuration.
        self.cri_config: dict[str, Any] = {"containerd": {"runtimes": {}}}
        self._id_seed = id_seed
        self._made = 0
        self._emit = emit

    def actions(self) -> dict[str, Callable[[Any, Call], Message]]:
        return {
            "RuntimeService/Version": self.report_version,
            "RuntimeService/Status": self.report_status,
            "RuntimeService/RunPodSandbox": self.run_pod,
            "RuntimeService/StopPodSandbox": self.stop_pod,
            "RuntimeService/RemovePodSandbox": self.remove_pod,
            "RuntimeService/PodSandboxStatus": self.pod_status,
            "RuntimeService/ListPodSandbox": self.list_pods,
            "RuntimeService/RestorePod": self.restore_pod,
            "RuntimeService/CreateContainer": self.create,
            "RuntimeService/StartContainer": self.start,
            "RuntimeService/StopContainer": self.stop,
            "RuntimeService/RemoveContainer": self.remove,
            "RuntimeService/ListContainers": self.list_containers,
            "RuntimeService/ContainerStatus": self.container_status,
            "RuntimeService/UpdateContainerResources": self.update,
            "RuntimeService/ListContainerStats": self.list_stats,
            "ImageService/ListImages": self.list_images,
            "ImageService/ImageStatus": self.image_status,
            "ImageService/ImageFsInfo": self.image_fs_info,
            "ImageService/PullImage": self.pull_image,
        }

    # Pods

    def report_version(self, _request: cri.VersionRequest, call: Call) -> Message:
        api = call.api.rpartition(".")[2]
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name=self.name,
            runtime_version=self.version,
            runtime_api_version=api,
        )

    def report_status(self, request: cri.StatusRequest, _call: Call) -> Message:
        conditions = [
            cri.RuntimeCondition(type="RuntimeReady", status=True),
            cri.RuntimeCondition(type="NetworkReady", status=True),
        ]
        info = {"config": json.dumps(self.cri_config)} if request.verbose else {}
        return cri.StatusResponse(status=cri.RuntimeStatus(conditions=conditions), info=info)

    def run_pod(self, request: cri.RunPodSandboxRequest, _call: Call) -> Message:
        pod = PodRecord(self._new_id(), request.config, request.runtime_handler)
        self._reserve("sandbox", pod.unique_name, self.pods.values())
        self.pods[pod.id] = pod
        self._emit_of(pod, pod.id, cri.CONTAINER_CREATED_EVENT)
        self._emit_of(pod, pod.id, cri.CONTAINER_STARTED_EVENT)
        return cri.RunPodSandboxResponse(pod_sandbox_id=pod.id)

    def stop_pod(self, request: cri.StopPodSandboxRequest, _call: Call) -> Message:
        pod = _find(self.pods, request.pod_sandbox_id)
        if pod:
            for container in self._containers_of(pod):
                self.exit(container, 137)
            if pod.state == cri.SANDBOX_READY:
                pod.state = cri.SANDBOX_NOTREADY
                self._emit_of(pod, pod.id, cri.CONTAINER_STOPPED_EVENT)
        return cri.StopPodSandboxResponse()

    def remove_pod(self, request: cri.RemovePodSandboxRequest, call: Call) -> Message:
        pod = _find(self.pods, request.pod_sandbox_id)
        if pod:
            self.stop_pod(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), call)
            for container in self._containers_of(pod):
                self._drop(container)
            del self.pods[pod.id]
            self._emit_of(pod, pod.id, cri.CONTAINER_DELETED_EVENT)
        return cri.RemovePodSandboxResponse()

    def pod_status(self, request: cri.PodSandboxStatusRequest, _call: Call) -> Message:
        pod = self._pod(request.pod_sandbox_id)
        info = {}
        if request.verbose:
            inner = {
                "pid": 1,
                "runtimeHandler": pod.runtime_handler,
                "runtimeType": "io.containerd.runc.v2",
                "config": _go_json(pod.config),
            }
            info = {"info": json.dumps(inner)}
        return cri.PodSandboxStatusResponse(status=pod.status(), info=info)

    def list_pods(self, request: cri.ListPodSandboxRequest, _call: Call) -> Message:
        pods = [pod.item() for pod in self.pods.values()]
        return cri.ListPodSandboxResponse(items=[pod for pod in pods if _matches(pod, request.filter)])

    def restore_pod(self, request: cri.RestorePodRequest, call: Call) -> Message:
        pod = cri.RunPodSandboxRequest(config=request.config, runtime_handler=request.runtime_handler)
        pod_id = self.run_pod(pod, call).pod_sandbox_id
        reply = cri.RestorePodResponse(pod_sandbox_id=pod_id)
        for config in request.container_configs:
            create = cri.CreateContainerRequest(pod_sandbox_id=pod_id, config=config)
            made = self.create(create, call).container_id
            reply.restored_containers.add(name=config.metadata.name, container_id=made)
        return reply

    # Containers

    def create(self, request: cri.CreateContainerRequest, call: Call) -> Message:
        pod = self._pod(request.pod_sandbox_id)
        if pod.state != cri.SANDBOX_READY:
            raise Failure(2, "failed to get sandbox container task: no running task found")
        metadata = request.config.metadata
        owner = pod.config.metadata
        name = f"{metadata.name}_{owner.name}_{owner.namespace}_{owner.uid}_{metadata.attempt}"
        self._reserve("container", name, self.containers.values())
        container = ContainerRecord(
            id=self._new_id(),
            sandbox_id=pod.id,
            config=request.config,
            create_bytes=call.request[0],
            unique_name=name,
            resources=cri.LinuxContainerResources.FromString(
                request.config.linux.resources.SerializeToString()
            ),
            pid=100_000 + self._made,
        )
        self.containers[container.id] = container
        self._emit_of(pod, container.id, cri.CONTAINER_CREATED_EVENT)
        return cri.CreateContainerResponse(container_id=container.id)

    def start(self, request: cri.StartContainerRequest, _call: Call) -> Message:
        container = self._container(request.container_id)
        if container.state != cri.CONTAINER_CREATED:
            state = cri.ContainerState.Name(container.state)
            raise Failure(2, f"failed to set starting state for container: container is in {state} state")
        container.state = cri.CONTAINER_RUNNING
        container.started_at = time.time_ns()
        self._emit_of(self.pods[container.sandbox_id], container.id, cri.CONTAINER_STARTED_EVENT)
        return cri.StartContainerResponse()

    def stop(self, request: cri.StopContainerRequest, _call: Call) -> Message:
        container = _find(self.containers, request.container_id)
        if container:
            self.exit(container, 137)
        return cri.StopContainerResponse()

    def remove(self, request: cri.RemoveContainerRequest, _call: Call) -> Message:
        container = _find(self.containers, request.container_id)
        if container:
            self.exit(container, 137)
            self._drop(container)
        return cri.RemoveContainerResponse()

    def list_containers(self, request: cri.ListContainersRequest, _call: Call) -> Message:
        containers = [container.item() for container in self.containers.values()]
        chosen = [container for container in containers if _matches(container, request.filter)]
        return cri.ListContainersResponse(containers=chosen)

    def container_status(self, request: cri.ContainerStatusRequest, _call: Call) -> Message:
        container = self._container(request.container_id)
        info = {}
        if request.verbose:
            inner = {
                "sandboxID": container.sandbox_id,
                "pid": container.pid if container.state == cri.CONTAINER_RUNNING else 0,
                "removing": False,
                "snapshotter": "overlayfs",
                "runtimeType": "io.containerd.runc.v2",
                "config": _go_json(container.config),
                "runtimeSpec": {"linux": {"resources": _oci_resources(container.resources)}},
            }
            info = {"info": json.dumps(inner)}
        return cri.ContainerStatusResponse(status=container.status(), info=info)

    def update(self, request: cri.UpdateContainerResourcesRequest, _call: Call) -> Message:
        container = self._container(request.container_id, "failed to find container")
        if container.state == cri.CONTAINER_EXITED:
            raise Failure(9, f"failed to update resources: container {container.id} is not running")
        if request.linux.hugepage_limits:
            del container.resources.hugepage_limits[:]
        # MergeFrom is containerd's rule: what is zero or empty stays as it was.
        container.resources.MergeFrom(request.linux)
        return cri.UpdateContainerResourcesResponse()

    def list_stats(self, request: cri.ListContainerStatsRequest, _call: Call) -> Message:
        now = time.time_ns()
        stats = [
            cri.ContainerStats(
                attributes=cri.ContainerAttributes(
                    id=container.id,
                    metadata=container.config.metadata,
                    labels=container.labels,
                    annotations=container.annotations,
                ),
                cpu=cri.CpuUsage(
                    timestamp=now,
                    usage_core_nano_seconds=cri.UInt64Value(value=now - container.started_at),
                ),
                memory=cri.MemoryUsage(timestamp=now, working_set_bytes=cri.UInt64Value(value=1 << 20)),
            )
            for container in self.containers.values()
            if container.state == cri.CONTAINER_RUNNING and _matches(container.item(), request.filter)
        ]
        return cri.ListContainerStatsResponse(stats=stats)

    def exit(self, container: ContainerRecord, code: int) -> None:
        """Ends the container with a STOPPED event; nothing happens to one that has exited."""
        if container.state == cri.CONTAINER_EXITED:
            return
        container.state = cri.CONTAINER_EXITED
        container.exit_code = code
        container.finished_at = time.time_ns()
        self._emit_of(self.pods[container.sandbox_id], container.id, cri.CONTAINER_STOPPED_EVENT)

    # Images

    def list_images(self, _request: cri.ListImagesRequest, _call: Call) -> Message:
        return cri.ListImagesResponse(images=[_image(name) for name in sorted(self.images)])

    def image_status(self, request: cri.ImageStatusRequest, _call: Call) -> Message:
        name = request.image.image
        return cri.ImageStatusResponse(image=_image(name) if name in self.images else None)

    def pull_image(self, request: cri.PullImageRequest, _call: Call) -> Message:
        self.images.add(request.image.image)
        return cri.PullImageResponse(image_ref=_image_id(request.image.image))

    def image_fs_info(self, _request: cri.ImageFsInfoRequest, _call: Call) -> Message:
        usage = cri.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=cri.FilesystemIdentifier(mountpoint="/var/lib/containerd"),
            used_bytes=cri.UInt64Value(value=1 << 30),
            inodes_used=cri.UInt64Value(value=1000),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[usage])

    # What they share

    def _new_id(self) -> str:
        self._made += 1
        return hashlib.sha256(f"{self._id_seed} {self._made}".encode()).hexdigest()

    def _pod(self, pod_id: str) -> PodRecord:
        pod: Optional[PodRecord] = _find(self.pods, pod_id)
        if pod is None:
            raise Failure(5, f'failed to find sandbox id "{pod_id}": not found')
        return pod

    def _container(
        self, container_id: str, what: str = "an error occurred when try to find container"
    ) -> ContainerRecord:
        container: Optional[ContainerRecord] = _find(self.containers, container_id)
        if container is None:
            raise Failure(5, f'{what} "{container_id}": not found')
        return container

    def _containers_of(self, pod: PodRecord) -> list[ContainerRecord]:
        return [container for container in self.containers.values() if container.sandbox_id == pod.id]

    def _reserve(self, kind: str, name: str, records: Iterable[Any]) -> None:
        for record in records:
            if record.unique_name == name:
                reserved = f'name "{name}" is reserved for "{record.id}"'
                raise Failure(2, f'failed to reserve {kind} name "{name}": {reserved}')

    def _drop(self, container: ContainerRecord) -> None:
        del self.containers[container.id]
        self._emit_of(self.pods[container.sandbox_id], container.id, cri.CONTAINER_DELETED_EVENT)

    def _emit_of(self, pod: PodRecord, container_id: str, event_type: int) -> None:
        event = cri.ContainerEventResponse(
            container_id=container_id,
            container_event_type=event_type,
            created_at=time.time_ns(),
            pod_sandbox_status=pod.status(),
            containers_statuses=[container.status() for container in self._containers_of(pod)],
        )
        self._emit(event)


class FakeRuntime:
    """Serves a `Runtime` on `socket`; may be stopped and started again, its containers stay."""

    def __init__(
        self,
        socket: str,
        *,
        api_versions: tuple[str, ...] = ("runtime.v1", "runtime.v1alpha2"),
        runtime_name: str = "containerd",
        runtime_version: str = "1.7.0",
        event_streams: str = "many",
        items_a_part: int = 0,
        most_bytes: int = 16 << 20,
    ) -> None:
        """`items_a_part`: streamed lists come so; 0: there are none. `most_bytes`: of a message, as containerd has it."""
        if event_streams not in ("many", "single", "none"):
            raise ValueError(f"event_streams is many, single or none, not {event_streams!r}")
        self.socket = socket
        self.api_versions = api_versions
        self.event_streams = event_streams
        self.items_a_part = items_a_part
        self.most_bytes = most_bytes
        self.calls: list[Call] = []
        self.scripts: list[Script] = []
        self.sequence = 0
        self.runtime = Runtime(runtime_name, runtime_version, socket, self.emit)
        self.pods = self.runtime.pods
        self.containers = self.runtime.containers
        self._actions = self.runtime.actions()
        self._running: list[Call] = []
        self._subscribers: list[asyncio.Queue[bytes]] = []
        self._single_queue: Optional[asyncio.Queue[bytes]] = None
        self._waiters: list[asyncio.Future[None]] = []
        self._server: Any = None

    # Life

    async def start(self) -> None:
        self._single_queue = asyncio.Queue()
        self._server = grpc.aio.server(handlers=[_AnyMethod(self._serve)], options=SERVER_OPTIONS)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self, grace: Optional[float] = 0) -> None:
        """Ends all calls after `grace` seconds; events nobody has read are lost, the containers stay."""
        if self._server is None:
            return
        server, self._server, self._single_queue = self._server, None, None
        await server.stop(grace)
        await self.wait_until(lambda: not self._running)

    async def __aenter__(self) -> FakeRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    # For tests

    def script(self, method: str, **what: Any) -> Script:
        """Changes the next calls of `method` (short name or "/service/Method"); the fields of `Script`.

        The oldest script that applies is used. A call waits for `hold`, then `delay_s`; then it hangs
        (`then_hang`), or gives `reply` (bytes, or several messages) and ends with `error` (code, details[,
        trailing metadata]). Without these three it acts as always, with the script's metadata added.
        `act_before_error` acts before all that: the runtime has done it, only the answer is late or bad.
        """
        script = Script(method, **what)
        self.scripts.append(script)
        return script

    def calls_of(self, method: str) -> list[Call]:
        """The recorded calls of a short name or "/service/Method", in order of arrival; not what is unasked."""
        return [c for c in self.calls if method in (c.method, c.full_method) and not c.is_unasked]

    @property
    def subscribers(self) -> int:
        """How many GetContainerEvents streams are open."""
        return len(self._subscribers)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Returns once `condition` holds; it is asked again after each call, request, end of call and subscription."""
        await asyncio.wait_for(self._wait(condition), timeout_s)

    async def wait_for_call(self, method: str, count: int = 1, timeout_s: float = WAIT_S) -> Call:
        """The `count`th call of `method`, as soon as it has arrived; it may still be running."""
        await self.wait_until(lambda: len(self.calls_of(method)) >= count, timeout_s)
        return self.calls_of(method)[count - 1]

    def emit(self, event: cri.ContainerEventResponse) -> None:
        """Sends an event to the subscribers: each ("many"), whoever reads first ("single"), or nobody."""
        if self.event_streams == "many":
            queues = list(self._subscribers)
        else:
            queues = [self._single_queue] if self._single_queue else []
        for queue in queues:
            queue.put_nowait(event.SerializeToString())

    def exit_container(self, container_id: str, code: int = 0) -> None:
        """Its process ends by itself."""
        self.runtime.exit(self.containers[container_id], code)

    def cpuset(self, container_id: str) -> str:
        return self.containers[container_id].resources.cpuset_cpus

    def set_cpuset(self, container_id: str, cpus: str) -> None:
        """A second writer, behind the proxy's back."""
        self.containers[container_id].resources.cpuset_cpus = cpus

    def add_pod(self, config: cri.PodSandboxConfig, runtime_handler: str = "") -> str:
        """A sandbox nobody asked for through the socket; its id."""
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        return self.runtime.run_pod(request, _unrecorded(request)).pod_sandbox_id

    def add_container(
        self, pod_id: str, config: cri.ContainerConfig, state: int = cri.CONTAINER_RUNNING
    ) -> str:
        """A container of the pod that existed before anyone connected; its id."""
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod_id, config=config, sandbox_config=self.pods[pod_id].config
        )
        container_id = self.runtime.create(request, _unrecorded(request)).container_id
        record = self.containers[container_id]
        record.state = state
        record.started_at = record.created_at if state != cri.CONTAINER_CREATED else 0
        return container_id

    # The one handler

    async def _serve(self, full_method: str, _requests: Any, context: Any) -> None:
        call = await self._record(full_method, context)
        try:
            await self._answer(call, context)
            call.outcome = "ok"
        except Failure as failure:
            call.outcome = "error"
            self._finish(call)
            await context.abort(failure.code, failure.details, failure.trailing_metadata)
        finally:
            # Neither answered nor failed: the client has gone, or the server is stopping.
            call.outcome = call.outcome or "cancelled"
            self._finish(call)

    async def _answer(self, call: Call, context: Any) -> None:
        script = self._take_script(call)
        # 1. A method nobody knows and nobody scripted is echoed while its request is still coming.
        if script is None and self._is_unknown(call):
            await self._echo(call, context)
            return
        # 2. The whole request; then the deed, if it comes before everything else.
        async for message in _messages(context):
            call.request += (message,)
        self._changed()
        script = script or Script(call.method)
        acted = None
        if script.act_before_error and call.service_method in self._actions:
            acted = self._act(call)
        # 3. Waiting.
        if script.hold is not None:
            await script.hold.wait()
        if script.delay_s:
            await asyncio.sleep(script.delay_s)
        if script.then_hang:
            await asyncio.get_running_loop().create_future()
        # 4. Metadata, messages, status.
        if script.initial_metadata:
            await context.send_initial_metadata(script.initial_metadata)
        context.set_trailing_metadata(tuple(script.trailing_metadata))
        for message in script.reply_messages:
            await context.write(message)
        if script.error is not None:
            raise Failure(*script.error)
        if script.reply is None:
            await self._reply(call, acted, context)

    async def _reply(self, call: Call, acted: Optional[bytes], context: Any) -> None:
        if call.service_method == EVENTS:
            await self._stream_events(call, context)
        elif call.service_method in STREAMED:
            await self._stream_list(call, context)
        elif self._is_unknown(call):
            await self._echo(call, context)
        else:
            await context.write(self._act(call) if acted is None else acted)

    async def _echo(self, call: Call, context: Any) -> None:
        self._check_api(call)
        for message in call.request:
            await context.write(message)
        async for message in _messages(context):
            call.request += (message,)
            await context.write(message)

    def _act(self, call: Call) -> bytes:
        self._check_api(call)
        if len(call.request) != 1:
            raise Failure(13, f"cardinality violation: {len(call.request)} messages in a unary call")
        return self._sendable(self._actions[call.service_method](call.message, call).SerializeToString())

    def _sendable(self, message: bytes) -> bytes:
        if len(message) > self.most_bytes:
            sizes = f"({len(message)} vs. {self.most_bytes})"
            raise Failure(8, f"grpc: trying to send message larger than max {sizes}")
        return message

    def _check_api(self, call: Call) -> None:
        service = call.full_method[1:].rpartition("/")[0]
        if service.endswith(CRI_SERVICES) and call.api not in self.api_versions:
            raise Failure(12, f"unknown service {service}")

    def _is_unknown(self, call: Call) -> bool:
        return call.service_method not in (EVENTS, *STREAMED, *self._actions)

    async def _stream_list(self, call: Call, context: Any) -> None:
        self._check_api(call)
        if not self.items_a_part:
            raise Failure(12, f"method {call.method} not implemented")
        method, name = STREAMED[call.service_method]
        # The messages have the same numbers, only the names differ.
        whole = self._actions[method](call.message, call)
        items = getattr(whole, name)
        for start in range(0, len(items), self.items_a_part):
            part = type(whole)(**{name: items[start : start + self.items_a_part]})
            await context.write(self._sendable(part.SerializeToString()))

    async def _stream_events(self, call: Call, context: Any) -> None:
        self._check_api(call)
        if self.event_streams == "none":
            raise Failure(12, "method GetContainerEvents not implemented")
        # As with grpc-go, the initial metadata goes out with the first event, not before.
        queue = self._single_queue if self.event_streams == "single" else asyncio.Queue()
        assert queue is not None
        self._subscribers.append(queue)
        self._changed()
        try:
            while True:
                await context.write(await queue.get())
        finally:
            self._subscribers.remove(queue)
            self._changed()

    async def _record(self, full_method: str, context: Any) -> Call:
        remaining = context.time_remaining()
        metadata = tuple((key, value) for key, value in context.invocation_metadata())
        first = await context.read()
        request = () if first is grpc.aio.EOF else (first,)
        self.sequence += 1
        call = Call(self.sequence, full_method, request, metadata, remaining)
        self.calls.append(call)
        self._running.append(call)
        self._changed()
        return call

    def _finish(self, call: Call) -> None:
        if not call.finished:
            self.sequence += 1
            call.finished = self.sequence
            self._running.remove(call)
            self._changed()

    def _take_script(self, call: Call) -> Optional[Script]:
        for script in self.scripts:
            if script.applies_to(call):
                script.used += 1
                return script
        return None

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _AnyMethod(grpc.GenericRpcHandler):
    """Every method is one coroutine on raw messages: no serializers."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self._serve = serve

    def service(self, handler_call_details: Any) -> Any:
        # Not a partial: Python 3.9 does not see that one of a method is a coroutine function.
        async def serve(requests: Any, context: Any) -> None:
            await self._serve(handler_call_details.method, requests, context)

        return grpc.stream_stream_rpc_method_handler(serve)


async def _messages(context: Any) -> Any:
    while True:
        message = await context.read()
        if message is grpc.aio.EOF:
            return
        yield message


def _unrecorded(request: Message) -> Call:
    return Call(0, "", (request.SerializeToString(),), (), None)


def _find(records: dict[str, Any], wanted: str) -> Any:
    """By id, or as containerd does by the only id that begins so; None otherwise."""
    if wanted in records:
        return records[wanted]
    found = [record for id_, record in records.items() if wanted and id_.startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _matches(item: Any, wanted: Any) -> bool:
    """Whether a PodSandbox or Container passes its list's filter, or a stats filter; empty passes all."""
    fields = wanted.DESCRIPTOR.fields_by_name
    if wanted.id and not item.id.startswith(wanted.id):
        return False
    if "state" in fields and wanted.HasField("state") and item.state != wanted.state.state:
        return False
    if "pod_sandbox_id" in fields and not item.pod_sandbox_id.startswith(wanted.pod_sandbox_id):
        return False
    return all(item.labels.get(key) == value for key, value in wanted.label_selector.items())


def _image_id(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def _image(name: str) -> cri.Image:
    return cri.Image(id=_image_id(name), repo_tags=[name], size=1 << 20, spec=cri.ImageSpec(image=name))


def _oci_resources(resources: cri.LinuxContainerResources) -> dict[str, Any]:
    cpu = {
        "shares": resources.cpu_shares,
        "quota": resources.cpu_quota,
        "period": resources.cpu_period,
        "cpus": resources.cpuset_cpus,
        "mems": resources.cpuset_mems,
    }
    return {"cpu": {key: value for key, value in cpu.items() if value}}


def _go_json(value: Any) -> Any:
    """As Go's encoding/json writes the CRI structs: proto field names, 64 bit and enums as numbers."""
    if isinstance(value, Message):
        return {field.name: _go_json(part) for field, part in value.ListFields()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "items"):
        return {str(key): _go_json(part) for key, part in value.items()}
    return [_go_json(part) for part in value]
