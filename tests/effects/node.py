"""A node in one process: a daemon of which nothing is left out but sockets and threads, on a clock that does not wait.

``World`` is what outlives the daemon: state directory, runtime, cgroups, and what kubelet was told. ``Life`` is one daemon
on it. Before each effect of a life (cri_proxy/effects.py) the world is as a kill at that instant leaves it: ``World.copy``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, TypeVar

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy import effects
from cri_proxy.config.constants import Constants
from cri_proxy.config.io.files import Files
from cri_proxy.daemon.commands import Commands
from cri_proxy.daemon.daemon import Daemon, RunOptions
from cri_proxy.daemon.proxy import Proxy
from cri_proxy.engine.engine import Engine
from cri_proxy.front_ends.protocol import FrontEndMaker
from cri_proxy.nri.io.host.host import Merged, NriHost
from cri_proxy.nri.merge import Merge
from cri_proxy.relay.http2.wire import Ended, ReplyReceived, RequestReceived
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.call import Done, FrameCall
from cri_proxy.relay.status import Code, Metadata, RpcError
from policies.machine.topology import TopologyData
from policies.machine.topology_json import write_topology
from tests.cri_client import CPU_PERIOD_US, cgroup_parent, container_config, create_request, pod_config
from tests.cri_client import Pod as ClientPod
from tests.fake_runtime import Call, ContainerRecord, Failure, Runtime

Result = TypeVar("Result")

#: What a plugin says to a create: an adjustment, or it raises PluginRefused.
Answer = Callable[[nri.Container], nri.ContainerAdjustment]

RUNTIME = "/runtime.v1.RuntimeService/"
#: Where small files are read and written fastest.
FOLDERS = "/dev/shm" if Path("/dev/shm").is_dir() else None
#: The longest that anything in the daemon goes on by itself: a ticket in doubt ends after two minutes.
LONG_S = 300.0
#: A turn of the runtime: what else the daemon is at comes between a request and its reply.
TURN_S = 0.001
#: How long a write takes that nothing waits for.
DISK_S = {"quick": 0.0, "slow": 0.02}


class Loop(asyncio.SelectorEventLoop):
    """Where nothing is ready the time is that of the next timer: it never waits."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def time(self) -> float:
        return self._world.now_s

    def _run_once(self) -> None:
        timers: Any = self._scheduled
        if not self._ready and timers:
            self._world.now_s = max(self._world.now_s, timers[0].when())
        super()._run_once()  # type: ignore[misc]


class _AtOnce(ThreadPoolExecutor):
    """What a thread would do, done at once."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


class _Jobs:
    """``JobThread``, by the loop: each job some time after it was asked for, in its order."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def put(self, job: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, job)

    def begin(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def do() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self.put(do)
        return done

    def tell(self, call: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(call, *arguments)

    def end(self) -> None:
        pass


# ---------------------------------------------------------------------- what outlives a daemon


@dataclass
class World:
    """``mine``: the containers as they would be without us; ``known``: those whose creation kubelet was told, by name."""

    folder: Path
    runtime: Runtime
    mine: dict[str, cri.LinuxContainerResources] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    #: Called with each request on its way to the runtime: its method, its bytes, and as kubelet made it (None: its ours).
    on_way: Callable[[str, bytes, Optional[bytes]], object] = lambda method, message, raw: None
    #: Containers that an update of ours has told what they had.
    needless: list[str] = field(default_factory=list)
    #: Kubelet's creates by the container's name; and the cpuset that a plugin gives to what it has no own.
    asked: dict[str, bytes] = field(default_factory=dict)
    fence: str = ""
    #: Whether a container is one that plugins have agreed to: no other may be left.
    is_agreed: Callable[[ContainerRecord], bool] = lambda container: True
    #: Whether the runtime has died; and how long each half of a call takes it, by method.
    is_away: bool = False
    turns_s: dict[str, float] = field(default_factory=dict)
    #: Since boot.
    now_s: float = 1_000.0
    #: Methods of which the next call fails.
    failing: dict[str, Failure] = field(default_factory=dict)

    @classmethod
    def make(cls, machine: TopologyData, config: Mapping[str, Any]) -> World:
        folder = Path(tempfile.mkdtemp(prefix="cut-", dir=FOLDERS))
        for name in ("state", "run", "cgroup"):
            (folder / name).mkdir()
        (folder / "machine.json").write_text(json.dumps(write_topology(machine)))
        (folder / "config").write_text(json.dumps(config))
        return cls(folder, Runtime("containerd", "1.7.0", "seed", lambda event: None))

    def copy(self) -> World:
        """As it is now."""
        folder = Path(tempfile.mkdtemp(prefix="cut-", dir=FOLDERS))
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
        runtime = Runtime("containerd", "1.7.0", "seed", lambda event: None)
        runtime.pods.update({key: replace(pod) for key, pod in self.runtime.pods.items()})
        runtime.containers.update({key: _copied(c) for key, c in self.runtime.containers.items()})
        runtime._made = self.runtime._made
        mine = {key: _resources(resources) for key, resources in self.mine.items()}
        return World(
            folder,
            runtime,
            mine,
            dict(self.limits),
            dict(self.known),
            asked=self.asked,
            fence=self.fence,
            is_agreed=self.is_agreed,
            now_s=self.now_s,
        )

    def essence(self) -> tuple[Any, ...]:
        """What a next daemon finds, to be compared."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        contents = tuple((str(path), path.read_bytes()) for path in files if not path.name.endswith("-shm"))
        containers = tuple(
            (c.id, c.state, c.resources.SerializeToString(deterministic=True))
            for c in self.runtime.containers.values()
        )
        pods = tuple((pod.id, pod.state) for pod in self.runtime.pods.values())
        return contents, containers, pods, tuple(self.known.items())

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # What the runtime does, for the daemon and for kubelet.

    def act(self, method: str, message: bytes, raw: Optional[bytes] = None) -> bytes:
        """``raw``: the request as kubelet made it.

        :raises Failure: the runtime's.
        """
        if method in self.failing:
            raise self.failing.pop(method)
        call = Call(0, f"{RUNTIME}{method}", (message,), (), None)
        action = self.runtime.actions().get(f"RuntimeService/{method}")
        if action is None:
            raise Failure(12, f"unknown method {method}")
        before = self._resources_of(method, call.message)
        reply = action(call.message, call)
        if method == "UpdateContainerResources":
            key = call.message.container_id
            if raw is not None:
                request = cri.UpdateContainerResourcesRequest.FromString(raw)
                self.mine[key].MergeFrom(request.linux)
            elif before == self._resources_of(method, call.message):
                self.needless.append(key)
        elif method == "CreateContainer":
            # One that is hosted is made by a call of the daemon's own.
            asked = raw or self.asked[call.message.config.metadata.name]
            mine = cri.CreateContainerRequest.FromString(asked).config.linux.resources
            mine.cpuset_cpus = mine.cpuset_cpus or self.fence
            self.mine[reply.container_id] = mine
        self.write_cgroups(getattr(call.message, "container_id", ""))
        return bytes(reply.SerializeToString())

    def write_cgroups(self, container_id: str) -> None:
        """The files of a container that runs."""
        container = self.runtime.containers.get(container_id)
        if container is None or container.state != cri.CONTAINER_RUNNING:
            return
        parent = self.runtime.pods[container.sandbox_id].config.linux.cgroup_parent
        path, now = f"{parent}/{container.id}", container.resources
        cgroup, proc = self.folder / "cgroup" / path.lstrip("/"), self.folder / "proc" / str(container.pid)
        for folder in (cgroup, proc):
            folder.mkdir(parents=True, exist_ok=True)
        (proc / "cgroup").write_text(f"0::{path}\n")
        quota = now.cpu_quota if now.cpu_quota > 0 else "max"
        files = {
            "cpuset.cpus": now.cpuset_cpus,
            "cpuset.mems": now.cpuset_mems,
            "cpuset.cpus.effective": now.cpuset_cpus or self.cpus,
            "cpu.max": f"{quota} {now.cpu_period or CPU_PERIOD_US}",
            "cpu.weight": str(1 + (max(now.cpu_shares, 2) - 2) * 9999 // 262142),
        }
        for name, text in files.items():
            (cgroup / name).write_text(text)

    @property
    def cpus(self) -> str:
        return f"0-{len(json.loads((self.folder / 'machine.json').read_text())['cpus']) - 1}"

    def _resources_of(self, method: str, message: Any) -> bytes:
        if method != "UpdateContainerResources" or message.container_id not in self.runtime.containers:
            return b""
        found = self.runtime.containers[message.container_id].resources
        return found.SerializeToString(deterministic=True)

    def forget(self, container_id: str) -> None:
        """Kubelet has it removed: it need not be there any more."""
        self.known = {name: key for name, key in self.known.items() if key != container_id}

    def limit_file(self, parent: str) -> Path:
        return self.folder / "cgroup" / parent.lstrip("/") / "cpu.max"

    def set_limit(self, parent: str, milli: int) -> None:
        """As kubelet does with a pod's cgroup."""
        file = self.limit_file(parent)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.limits[parent] = f"{milli * CPU_PERIOD_US // 1000} {CPU_PERIOD_US}"
        file.write_text(self.limits[parent])


def _copied(record: ContainerRecord) -> ContainerRecord:
    return replace(record, resources=_resources(record.resources))


def _resources(resources: cri.LinuxContainerResources) -> cri.LinuxContainerResources:
    copied = cri.LinuxContainerResources()
    copied.CopyFrom(resources)
    return copied


# ---------------------------------------------------------------------- the runtime, without a socket


class Channel:
    """As ``Channel``: the runtime takes each call a turn after it was sent, and the reply comes a turn after that."""

    path = "runtime"

    def __init__(self, world: World) -> None:
        self._world = world
        #: Whether its daemon has been killed: what its tasks still do as they end reaches no runtime.
        self.is_over = False

    @property
    def is_connected(self) -> bool:
        return not self._world.is_away

    async def unary(
        self, method: str, message: bytes, timeout_s: Optional[float] = None, metadata: Any = ()
    ) -> bytes:
        if self.is_over:
            raise RpcError(Code.UNAVAILABLE, "the daemon has been killed")
        effects.before(effects.CALL, method)
        short = method.rpartition("/")[2]
        if self._world.is_away:
            raise RpcError(Code.UNAVAILABLE, "the runtime is away")
        self._world.on_way(short, message, None)
        turn_s = self._world.turns_s.get(short, TURN_S)
        await self._turn(turn_s)
        reply = await self.act(short, message)
        await self._turn(turn_s)
        return reply

    async def act(self, method: str, message: bytes) -> bytes:
        """The runtime does it.

        :raises RpcError: it fails.
        """
        try:
            return self._world.act(method, message)
        except Failure as failure:
            raise RpcError(failure.code.value[0], failure.details) from None

    async def _turn(self, turn_s: float) -> None:
        await asyncio.sleep(turn_s)
        if self._world.is_away:
            raise RpcError(Code.UNAVAILABLE, "the connection was lost", in_doubt=True)

    def stream(
        self, method: str, message: bytes, timeout_s: Optional[float] = None, metadata: Any = ()
    ) -> Any:
        return self

    async def read(self) -> None:
        raise RpcError(Code.UNIMPLEMENTED, "no such stream")

    def cancel(self) -> None:
        pass

    async def wait_ready(self) -> None:
        while self._world.is_away:
            await asyncio.sleep(TURN_S)

    async def wait_lost(self) -> None:
        while not self._world.is_away:
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        pass


class _Link:
    """A client's call, without its connection: ``CallLink``."""

    def __init__(self, life: Life, method: str, message: bytes) -> None:
        self._life = life
        self._method = method
        self._message = message
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.reply = b""
        self.call: Any = None

    def forward(self, stream: int, delta: bytes) -> None:
        self._life.world.on_way(self._method, self._message + delta, self._message)
        self._life.spawn(self._forward(delta))

    async def _forward(self, delta: bytes) -> None:
        await asyncio.sleep(TURN_S)
        code, details = 0, ""
        try:
            reply = self._life.world.act(self._method, self._message + delta, self._message)
        except Failure as failure:
            code, details = failure.code.value[0], failure.details
        else:
            self.call.add(ReplyReceived(self.call, (reply,)), lambda instead: self.answer(stream, instead[0]))
        stream = 1
        end = CallEnd.REFUSED if code else CallEnd.OK
        await asyncio.sleep(TURN_S)
        self.call.add(
            Ended(stream, self.call, end, code, details), lambda _: self.finish(stream, code, details)
        )

    def take_over(self, stream: int) -> None:
        pass

    def answer(self, stream: int, message: bytes) -> None:
        self.reply = message
        if self._method == "CreateContainer":
            made = cri.CreateContainerResponse.FromString(message).container_id
            config = cri.CreateContainerRequest.FromString(self._message).config
            self._life.world.known[config.metadata.name] = made

    def finish(self, stream: int, code: int, details: str, metadata: Metadata = ()) -> None:
        if not self.ended.done():
            self.ended.set_result((code, details))

    def failed_open(self, error: Exception) -> None:
        raise error


# ---------------------------------------------------------------------- a daemon


class Refused(Exception):
    """The status of a call of kubelet's, or a command's error."""


class Life:
    """One daemon on a world. ``play`` runs a coroutine function with it, and all else that goes on meanwhile."""

    def __init__(self, world: World, disk: str = "quick", front_end: FrontEndMaker = Proxy) -> None:
        self.world = world
        self._disk = disk
        self._front_end = front_end
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Between comparisons that nothing asks for.
        self.interval_s = 3600.0
        #: Whether what it does is cut from now on.
        self.is_cut = False

    def cut(self) -> None:
        """The stage is set."""
        self.is_cut = True

    def configure(self, config: Mapping[str, Any]) -> None:
        """Change its configuration, for its next reload and for the next daemon."""
        (self.world.folder / "config").write_text(
            json.dumps({**json.loads((self.world.folder / "config").read_text()), **config})
        )
        self._write_config()

    def play(
        self,
        work: Callable[[Life], Coroutine[Any, Any, Result]],
        before: Callable[[str, str], None] = lambda kind, about: None,
    ) -> Result:
        """Begin the daemon, do ``work``, and end it as a kill does. ``before``: given each effect of both."""
        loop = Loop(self.world)
        asyncio.set_event_loop(loop)
        loop.set_default_executor(_AtOnce(1))
        seam, effects.before = effects.before, before
        try:
            return loop.run_until_complete(self._live(work))
        finally:
            effects.before = lambda kind, about: None
            self._end(loop)
            effects.before = seam

    async def _live(self, work: Callable[[Life], Coroutine[Any, Any, Result]]) -> Result:
        await self._start()
        return await work(self)

    def make_channel(self) -> Channel:
        """Its way to the runtime."""
        return Channel(self.world)

    def _write_config(self) -> Path:
        folder = self.world.folder
        own = {
            "relay": {
                "socket": str(folder / "k.sock"),
                "extra_sockets": [],
                "runtime_endpoint": "/runtime.sock",
            },
            "state": {"directory": str(folder / "state")},
            "control": {"socket": str(folder / "run" / "c.sock")},
            "topology": {"source": str(folder / "machine.json"), "cgroup_root": str(folder / "cgroup")},
            "kubelet": {"directory": str(folder / "kubelet")},
            "affinity": {"socket": str(folder / "a.sock")},
            "history": {"entries": 0},
            "nri": {"host": "off", "plugin_path": "", "socket": str(folder / "nri.sock")},
            "log": {"level": "error"},
        }
        config = folder / "config.yaml"
        config.write_text(json.dumps(_merged(own, json.loads((folder / "config").read_text()))))
        return config

    async def _start(self) -> None:
        folder, config = self.world.folder, self._write_config()
        constants = Constants(
            topology_interval_s=3600,
            reconcile_interval_s=self.interval_s,
            reconcile_poll_s=self.interval_s,
            state_wait_s=5.0,
        )
        files = Files(config=config, root=folder / "root", constants=constants)
        self.daemon = daemon = Daemon(RunOptions(files, front_end=self._front_end))
        daemon._configure()
        daemon.rounds._afterwards = _nothing
        services = daemon.services
        services.store._thread = _Jobs(DISK_S[self._disk])  # type: ignore[assignment]
        services.runtime.channel = self._channel = self.make_channel()  # type: ignore[assignment]
        services.cgroups.proc = folder / "proc"
        services.node_state.clock = asyncio.get_running_loop().time
        daemon._front = self._front_end(services)
        self.commands = Commands(daemon).table()
        await daemon.assembly.activate()
        await daemon._keep()
        if services.config["nri.host"] != "off":
            await daemon.front._nri.start()  # type: ignore[attr-defined]
            self.spawn(daemon.front._nri.run())  # type: ignore[attr-defined]
        self.spawn(daemon.rounds.follow_runtime(lambda: None))
        self.spawn(daemon.rounds.reconcile())
        self.spawn(daemon.orders.run())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, loop: Loop) -> None:
        async def end() -> None:
            if hasattr(self, "_channel"):
                self._channel.is_over = True
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if hasattr(self, "daemon") and self.daemon.services.config["nri.host"] != "off":
                await self.daemon.front._nri.host.close()  # type: ignore[attr-defined]

        loop.run_until_complete(end())
        if hasattr(self, "daemon"):
            self.daemon.services.store.store._disconnect()
        loop.close()
        asyncio.set_event_loop(None)

    @property
    def engine(self) -> Engine:
        engine = self.daemon.services.node_state.engine
        assert engine is not None, self.daemon.health.reasons
        return engine

    # ------------------------------------------------------------------ time

    async def rest(self, seconds: float = 5.0) -> None:
        """Let it be, for so long."""
        await asyncio.sleep(seconds)

    # ------------------------------------------------------------------ kubelet and an operator

    async def call(self, method: str, request: Any, reply: Any) -> Any:
        """:raises Refused: the status, if it is not OK."""
        message, full_method = request.SerializeToString(), f"{RUNTIME}{method}"
        link = _Link(self, method, message)
        interceptor = self.daemon.front._interceptor  # type: ignore[attr-defined]
        interception = interceptor.open(full_method)
        if interception is None:  # bytes pass
            link.forward(1, b"")
            link.call = _Passing()
        else:
            link.call = FrameCall(full_method, interception, link)
            self.spawn(link.call.run(RequestReceived(1, link.call, message)))
        code, details = await link.ended
        if code:
            raise Refused(details)
        return reply.FromString(link.reply)

    async def command(self, name: str, /, **arguments: Any) -> Any:
        return await self.commands[name](arguments)

    async def run_pod(self, name: str, qos: str = "burstable", milli: int = 0, **more: Any) -> ClientPod:
        """``milli``: the limit that kubelet writes to its cgroup, whose is first."""
        parent = cgroup_parent(qos, f"uid-{name}")
        if milli:
            self.world.set_limit(parent, milli)
        config = pod_config(name, uid=f"uid-{name}", cgroup_parent=parent, **more)
        request = cri.RunPodSandboxRequest(config=config)
        made = await self.call("RunPodSandbox", request, cri.RunPodSandboxResponse)
        return ClientPod(made.pod_sandbox_id, f"uid-{name}", name, config.metadata.namespace, config)

    async def create(self, pod: ClientPod, name: str, **config: Any) -> str:
        request = create_request(pod, container_config(name, **config))
        self.world.asked[name] = request.SerializeToString()
        made = await self.call("CreateContainer", request, cri.CreateContainerResponse)
        return str(made.container_id)

    async def start(self, container_id: str) -> None:
        request = cri.StartContainerRequest(container_id=container_id)
        await self.call("StartContainer", request, cri.StartContainerResponse)

    async def stop(self, container_id: str) -> None:
        request = cri.StopContainerRequest(container_id=container_id)
        await self.call("StopContainer", request, cri.StopContainerResponse)

    async def remove(self, container_id: str) -> None:
        self.world.forget(container_id)
        request = cri.RemoveContainerRequest(container_id=container_id)
        await self.call("RemoveContainer", request, cri.RemoveContainerResponse)

    async def end_pod(self, pod: ClientPod) -> None:
        for container in self.world.runtime.containers.values():
            if container.sandbox_id == pod.id:
                self.world.forget(container.id)
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=pod.id)
        await self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id)
        await self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)

    async def update(self, container_id: str, **resources: Any) -> None:
        linux = cri.LinuxContainerResources(**resources)
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        await self.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    def plug(self, answer: Answer) -> None:
        """Connect an NRI plugin that gives this answer to every create; what it has agreed to is as ``agreed`` says."""
        host = self.daemon.front._nri.host  # type: ignore[attr-defined]

        async def create(_: Any, pod: Any, container: Any) -> Merged:
            effects.before(effects.NRI, "CreateContainer")
            await asyncio.sleep(TURN_S)
            merge = Merge(container.message)
            merge.add("10-test", answer(container.message))
            return Merged(merge.adjust, [], merge.owners)

        host.__class__ = type("Plugged", (NriHost,), {"connected": True, "create": create})

    async def carry_late(self, method: str, message: bytes, raw: Optional[bytes]) -> None:
        """The runtime does what it had got from the daemon before.

        :raises Failure: it cannot any more.
        """
        self.world.act(method, message, raw)

    async def look(self) -> None:
        """A comparison with the runtime."""
        await self.daemon.services.reconciler.run()


async def _nothing() -> None:
    pass


class _Passing:
    """Of a call that passes as bytes each step is carried out at once."""

    def add(self, step: Any, done: Done) -> None:
        done(list(getattr(step, "messages", ())))


def _merged(base: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in extra.items():
        result[key] = _merged(result.get(key, {}), value) if isinstance(value, Mapping) else value
    return result
