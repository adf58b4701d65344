"""A node with Kubernetes' own driver of CPUs, ``dra.cpu``: its containerd has NRI, and nothing of ours runs.

The driver has no options for the places that it uses. It sees the described machine, this node's kubelet and this node's
runtime at the usual ones, by mounts of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Optional

from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane, free_port
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import delete, node_agent, with_view_socket
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd
from tests.e2e.node import until
from tests.kubelet.real.dra.node import CLASSES, SLICES, ClaimNode
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.whole import SETTINGS, one_folder_of_devices
from tests.machines import machine

REFERENCE = "dra.cpu"
CAPACITY = f"{REFERENCE}/cpu"
#: Where the driver has its sockets, below kubelet's folder.
SOCKETS = f"plugins/{REFERENCE}/dra.sock", f"plugins_registry/{REFERENCE}-reg.sock"
#: What its own manifests give it (manifests/base/clusterrole-dracpu.part.yaml).
MAY = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "deviceclasses"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
]
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
#: Against a second.
END_TIMEOUT_S = 30.0
#: The mounts are the driver's own. In the end it is the same process.
_START = """\
mount --bind {sys}/devices/system/cpu /sys/devices/system/cpu
mount --bind {sys}/devices/system/node /sys/devices/system/node
mount --bind {kubelet} /var/lib
mount --bind {run} /run
exec "$@"
"""


def allow_reference(api: ControlPlane) -> Path:
    """The driver's class and credentials, once a control plane; the path of its kubeconfig."""
    api.ask("POST", f"{RIGHTS}/clusterroles", {"metadata": {"name": REFERENCE}, "rules": MAY})
    bound = {
        "metadata": {"name": REFERENCE},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": REFERENCE},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": REFERENCE}],
    }
    api.ask("POST", f"{RIGHTS}/clusterrolebindings", bound)
    selected = [{"cel": {"expression": f'device.driver == "{REFERENCE}"'}}]
    api.ask("POST", CLASSES, {"metadata": {"name": REFERENCE}, "spec": {"selectors": selected}})
    return api.kubeconfig(api.folder / "dracpu.kubeconfig", certificate=api.certificate(REFERENCE))


def number_cores(sys: Path) -> None:
    """Give cores ids that are unique in their socket. The described machine's begin anew in each die, as Hygon's do; the
    driver takes those of one socket with one id for one core."""
    for cpu in machine(MACHINE).cpus:
        (sys / f"devices/system/cpu/cpu{cpu.cpu}/topology/core_id").write_text(f"{cpu.core}\n")


def group_share(cpus: int, *, name: str = "cpus") -> dict[str, Any]:
    """A request of so many CPUs of one of the driver's groups."""
    exactly = {"deviceClassName": REFERENCE, "capacity": {"requests": {CAPACITY: str(cpus)}}}
    return {"name": name, "exactly": exactly}


class ReferenceNode(ClaimNode):
    """``agent`` and ``reports``, our daemon and our node agent, are not started: a test may have them beside the driver."""

    #: Set before anything is started.
    program: Path
    credentials: Path
    sys: Path
    process: Optional[subprocess.Popen[bytes]] = None

    async def start_driver(self, *more: str) -> None:
        """Returns once kubelet has registered it and its slices are there. ``more``: of its options."""
        folder = self.host.folder
        runs = folder / "run-of-driver"
        (runs / "nri").mkdir(parents=True, exist_ok=True)
        for link, place in (
            (runs / "cdi", self.runtime.cdi),
            (runs / "nri/nri.sock", self.runtime.nri_socket),
        ):
            if not link.is_symlink():
                link.symlink_to(place)
        start = _START.format(sys=self.sys, kubelet=self.host.root / "var/lib", run=runs)
        with (folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation", "slave", "sh", "-ec", start, "sh"),
                    str(self.program),
                    f"--kubeconfig={self.credentials}",
                    f"--hostname-override={self.name}",
                    # By default it listens on all addresses.
                    f"--bind-address=127.0.0.1:{free_port()}",
                    "--v=4",
                    *more,
                ],
                stdout=log,
                stderr=log,
            )
        await until(self._has_started, bool, TIMEOUT_S)
        await self.until_published()

    async def _has_started(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.driver_log()[-4000:]
        return "driver started" in self.driver_log()

    def driver_log(self) -> str:
        return (self.host.folder / "driver.log").read_text(errors="replace")

    async def end_driver(self) -> None:
        """By the signal that it answers with an orderly end; its slices stay."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(self.process.wait, END_TIMEOUT_S)
            self.process = None

    async def slices(self) -> list[Mapping[str, Any]]:
        """What this driver has published for this node."""
        listed = (await asyncio.to_thread(self.api.ask, "GET", SLICES))["items"]
        own = [each["spec"] for each in listed if each["spec"]["driver"] == REFERENCE]
        return [each for each in own if each["nodeName"] == self.name]


@asynccontextmanager
async def reference_node(
    programs: Mapping[str, Path],
    api: ControlPlane,
    kubectl: Kubectl,
    containerd: Containerd,
    described: Path,
    credentials: Path,
    name: str,
    options: Sequence[str] = (),
    config: Optional[Mapping[str, Any]] = None,
) -> AsyncIterator[ReferenceNode]:
    """The node with its driver, registered. ``containerd`` has NRI; ``config``: of our daemon, which is not started."""
    folder = Path(tempfile.mkdtemp(prefix="crf-"))
    pair = api.certificate(f"system:node:{name}", "system:nodes")
    host = RealKubeletHost(
        folder,
        programs["kubelet"],
        containerd.cgroup_parent,
        name=name,
        sys=described / "sys",
        kubeconfig=api.kubeconfig(folder / "kubelet.kubeconfig", certificate=pair),
        shares_volumes=True,
        mounts={"/sys/kernel/mm/hugepages": described / "sys/kernel/mm/hugepages"},
        settings=SETTINGS,
    )
    (folder / "k" / "config.yaml").symlink_to(host.root / "var/lib/kubelet/config.yaml")
    # The driver names its sockets to kubelet as it sees them itself.
    for part in ("plugins", "plugins_registry"):
        (folder / "k" / part).mkdir()
        (host.root / "var/lib/kubelet" / part).symlink_to(folder / "k" / part)
    usual = {"topology": {"cgroup_root": str(described / "cgroup")}, "kubelet": {"directory": f"{folder}/k"}}
    agent = with_view_socket(Agent(containerd.socket, machine(MACHINE), usual))
    agent.write_config(config or {})
    one_folder_of_devices(agent, containerd)
    host.point_at(str(containerd.socket))
    kubeconfig = folder / "kubelet.kubeconfig"
    reports = node_agent(folder, name, agent, kubeconfig, f"--kubelet-dir={folder}/k")
    try:
        async with CriClient(str(containerd.socket)) as direct:
            node = ReferenceNode(api, kubectl, containerd, agent, direct, host, reports)
            node.program, node.credentials, node.sys = programs["dracpu"], credentials, described / "sys"
            await node.start_kubelet()
            await node.until_registered()
            try:
                await node.start_driver(*options)
                yield node
                await node.until_nothing_runs()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await node.end_driver()
    finally:
        await asyncio.to_thread(host.close)
        await agent.close()
        await delete(api, f"/api/v1/nodes/{name}")
        shutil.rmtree(folder, ignore_errors=True)
