"""The node seen from inside: the runtime that is set up here, kubelet's calls, and what the kernel says of a container."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy import control
from tests.cri_client import CriClient, MetadataPairs, Pod, cgroup_parent
from tests.vm.guest.installation import CONTROL, RELAY, run
from tests.vm.machine import Shape

RUNTIME = Path("/run/containerd/containerd.sock")
TASKS = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
CNI_PLUGINS = "/usr/lib/cni"
CALL_TIMEOUT_S = 60.0  # programs in Go are slow under emulation
UNTIL_TIMEOUT_S = 90.0
GIB = 1 << 30

#: Runtime handlers, with what makes the cgroups of their containers; a system may have no crun. Where there is one, pods
#: that name no handler have it: in C, so that it starts under emulation in a fraction of runc's time.
HANDLERS = {"runc": "systemd", "runc-cgroupfs": "cgroupfs", "crun": "systemd", "crun-cgroupfs": "cgroupfs"}

_CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  # Its default is to pass over limits of huge pages, whoever asks for them.
  disable_hugetlb_controller = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "{default}"
"""
_HANDLER = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
  BinaryName = "{program}"
  SystemdCgroup = {systemd}
"""
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
        }
    ],
}


#: Kubelet's (remote_runtime.go): it waits longer for a connection than the tests' client, whose daemons are near.
#: For the answer to one it waits 5 s (minConnectionTimeout), and emulation is twenty times slower than a node.
#: Calls that no server has begun are made again, as grpc-go does: a client may read that a connection ends
#: between choosing it for a call and sending that.
_CHANNEL_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 100_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Kubelet(CriClient):
    """The client whose calls end in time, and that is patient as kubelet is."""

    call_timeout_s = CALL_TIMEOUT_S

    async def __aenter__(self) -> Kubelet:
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=_CHANNEL_OPTIONS)
        return self

    async def call(
        self, method: str, request: Any, *, timeout: Optional[float] = None, metadata: MetadataPairs = ()
    ) -> Any:
        return await super().call(method, request, timeout=timeout or self.call_timeout_s, metadata=metadata)


@dataclass(frozen=True)
class Running:
    """A container that was started."""

    pod: Pod
    id: str


@dataclass
class Node:
    """What checks work with. ``driver``: cgroupfs or systemd, who makes the cgroups; ``api``: of CRI."""

    shape: Shape
    driver: str
    api: str
    kubelet: Kubelet
    job: Path
    #: Containers that outlive the check that made them; they are in the shared pod.
    residents: list[Running] = field(default_factory=list)
    _shared: Optional[Pod] = None

    # --- what kubelet does

    async def pod(self, name: str, *, qos: str = "burstable", **config: Any) -> Pod:
        """A sandbox in its class's cgroup; on the host's network, as CNI's programs take longer than all else."""
        uid = str(uuid.uuid4())
        config.setdefault("host_network", True)
        return await self.kubelet.run_pod(name, uid=uid, cgroup_parent=self._parent(qos, uid), **config)

    async def run(
        self, name: str, *, qos: str = "burstable", pod: Optional[Pod] = None, **config: Any
    ) -> Running:
        """A running container, in a pod of its own unless one is given; ``config`` as for container_config."""
        of_pod = {key: config.pop(key) for key in ("labels", "host_network") if key in config}
        annotations = config.get("annotations")
        pod = pod or await self.pod(name, qos=qos, annotations=annotations, **of_pod)
        container = await self.kubelet.create(pod, name, qos=qos, **config)
        await self.kubelet.start(container)
        return Running(pod, container)

    async def shared_pod(self) -> Pod:
        """For all containers that need no pod of their own: to make one and to end it takes seconds each.

        Another one where it has ended, as kubelet does it: a runtime that was restarted gives up shims that do not
        answer in time, which happens on a busy machine.
        """
        if self._shared is not None:
            asked = cri.PodSandboxStatusRequest(pod_sandbox_id=self._shared.id)
            if (await self.kubelet.call("PodSandboxStatus", asked)).status.state != cri.SANDBOX_READY:
                self._shared = None
        if self._shared is None:
            self._shared = await self.pod("shared")
        return self._shared

    async def remove(self, *pods: Pod) -> None:
        """Stop and remove pods; if none is named, all but the residents and the shared pod itself."""
        chosen = {pod.id for pod in pods}
        if not pods:
            listed = await self.kubelet.call("ListPodSandbox", cri.ListPodSandboxRequest())
            chosen = {pod.id for pod in listed.items}
            if self._shared is not None:
                chosen.discard(self._shared.id)
                await self._empty(self._shared)
        for pod_id in chosen:
            await self.kubelet.stop_pod(pod_id)
            await self.kubelet.remove_pod(pod_id)

    async def _empty(self, pod: Pod) -> None:
        staying = {container.id for container in self.residents}
        for container in await self.kubelet.list_containers(pod_sandbox_id=pod.id):
            if container.id not in staying:
                await self.kubelet.remove(container.id)

    def forget(self) -> None:
        """Nothing is resident any more: the next `remove` takes everything."""
        self.residents.clear()
        self._shared = None

    def _parent(self, qos: str, uid: str) -> str:
        if self.driver == "cgroupfs":
            return cgroup_parent(qos, uid)
        name = f"pod{uid.replace('-', '_')}.slice"
        return f"/kubepods.slice/kubepods-{name}" if qos == "guaranteed" else (
            f"/kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-{name}"
        )  # fmt: skip

    # --- what came of it

    def place(self, container: Running) -> tuple[str, str]:
        """CPUs and memory nodes that the container's first process may use."""
        pid = (TASKS / container.id / "init.pid").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
        cpus, mems = re.findall(r"^(?:Cpus|Mems)_allowed_list:\s*(\S*)$", status, re.MULTILINE)
        return cpus, mems

    def cpus(self, container: Running) -> str:
        return self.place(container)[0]

    def places(self, containers: Sequence[Running]) -> list[tuple[str, str]]:
        return [self.place(container) for container in containers]

    async def place_inside(self, container: Running) -> tuple[str, str]:
        """The same, as a program sees it that is started in the container."""
        out, problem, code = await self.kubelet.exec(container.id, "cat", "/proc/self/status", timeout_s=60)
        assert code == 0, problem
        inside = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
        return inside["Cpus_allowed_list"], inside["Mems_allowed_list"]

    # --- what the daemon says

    def ask(self, command: str, **arguments: Any) -> Any:
        """What the daemon answers; without the program, which takes seconds to start under emulation."""
        return control.ask(CONTROL, command, arguments, UNTIL_TIMEOUT_S)

    def row(self, container: Running) -> dict[str, Any]:
        """What the daemon knows of a container; {} if nothing."""
        return next((row for row in self.ask("placements") if row["id"] == container.id), {})


async def until(
    ask: Callable[[], Any], is_right: Callable[[Any], Any] = bool, timeout_s: float = UNTIL_TIMEOUT_S
) -> Any:
    """The first answer that is right; an error that shows the last one if none is in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = await asyncio.to_thread(ask)
        if is_right(answer):
            return answer
        assert time.monotonic() < deadline_s, f"still wrong after {timeout_s:g} s: {answer!r}"
        await asyncio.sleep(0.2)


async def until_served(client: CriClient, timeout_s: float = UNTIL_TIMEOUT_S) -> Any:
    """The runtime's version, once whoever serves this client's socket can reach it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return await client.call("Version", cri.VersionRequest())
        except grpc.aio.AioRpcError:
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(0.2)


def start_runtime(node: Node) -> None:
    """The distribution's containerd, with a network and the images of the job."""
    config = Path("/etc/containerd/config.toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    handlers = {**HANDLERS, "runc": node.driver}
    chosen = [
        _HANDLER.format(name=name, program=name.split("-")[0], systemd=str(driver == "systemd").lower())
        for name, driver in handlers.items()
    ]
    default = next(
        (
            name
            for name in ("crun", "crun-cgroupfs")
            if shutil.which("crun") and handlers[name] == node.driver
        ),
        "runc",
    )
    config.write_text(_CONTAINERD.format(plugins=CNI_PLUGINS, default=default) + "".join(chosen))
    network = Path("/etc/cni/net.d/pods.conflist")
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(json.dumps(_NETWORK))
    # Overlays of containers cannot lie on the overlay that is the guest's root.
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/containerd")
    run("ip", "link", "set", "lo", "up")
    run("systemctl", "start", "containerd.service")
    run("ctr", "--namespace", "k8s.io", "images", "import", str(node.job / "images.tar"))
    shutil.copy(node.job / "talk", "/run/talk")


def connect(api: str, socket: Path = RELAY) -> Kubelet:
    """A client; use it as a context manager."""
    return Kubelet(str(socket), api)
