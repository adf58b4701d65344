"""A node with all its parts as processes: containerd is given; daemon, node agent, kubelet and the operator are started."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Optional, TypeVar

from tests.agent import Agent, merged
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import node_agent, operator, with_view_socket
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd
from tests.kubelet.real.conftest import LINES, SAID_ALWAYS, start
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE, write_hugepages, write_machine, write_runtime
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.node import SharedNode
from tests.machines import machine

#: All that kubelet's own folder has, and how much of it must be left: a pod can fill it, and nothing else is filled.
NODE_FS, NODE_FS_LEFT = "64m", "16Mi"
#: When that is too little, how soon it is enough again, and how soon the node tells.
SETTINGS = {
    "nodeStatusUpdateFrequency": "1s",
    "evictionHard": {
        "memory.available": "1Mi",
        "nodefs.available": NODE_FS_LEFT,
        "nodefs.inodesFree": "0%",
        "imagefs.available": "0%",
        "imagefs.inodesFree": "0%",
    },
    "evictionPressureTransitionPeriod": "1s",
}
#: Where a runtime and all that describe devices to it have their files.
CDI = "var/run/cdi"

Kind = TypeVar("Kind", bound=SharedNode)


def described_in(folder: Path) -> Path:
    """The folder, with the machine that kubelet and daemon believe in; it has huge pages."""
    write_hugepages(write_machine(folder))
    write_runtime(folder)
    return folder


@contextmanager
def containerd_in(
    folder: Path, programs: Mapping[str, Path], described: Path, images: Path, more_config: str = ""
) -> Iterator[Containerd]:
    """A containerd for that machine until the end of the block; NRI is on, as it is shipped."""
    runtime = Containerd(
        folder,
        programs["containerd"],
        images=images,
        more_config=more_config,
        path=[programs["runc"].parent],
        runc=described / "runc",
        has_nri=True,
    )
    try:
        start(runtime)
        yield runtime
    finally:
        runtime.close()


@asynccontextmanager
async def running(
    kind: type[Kind],
    kubelet: Path,
    api: ControlPlane,
    kubectl: Kubectl,
    containerd: Containerd,
    described: Path,
    logind: Logind,
    config: Optional[Mapping[str, Any]] = None,
    as_kubelet: bool = False,
    front_end: str = "proxy",
) -> AsyncIterator[Kind]:
    """The node, registered, until the end of the block.

    ``config``: more of the daemon's. ``as_kubelet``: the agent has kubelet's rights, as on a host, not the administrator's.
    ``front_end``: the daemon's; with NRI on in containerd it may be any.
    """
    folder = Path(tempfile.mkdtemp(prefix="crf-"))
    name = f"node-{os.getpid()}"
    pair = api.certificate(f"system:node:{name}", "system:nodes")
    host = RealKubeletHost(
        folder,
        kubelet,
        containerd.cgroup_parent,
        name=name,
        sys=described / "sys",
        kubeconfig=api.kubeconfig(folder / "kubelet.kubeconfig", certificate=pair),
        shares_volumes=True,
        mounts={"/sys/kernel/mm/hugepages": described / "sys/kernel/mm/hugepages"},
        environment={"DBUS_SYSTEM_BUS_ADDRESS": logind.address},
        settings=SETTINGS,
    )
    size = ("mount", "-t", "tmpfs", "-o", f"size={NODE_FS},mode=755", "tmpfs", str(folder / "k"))
    await asyncio.to_thread(subprocess.run, size, check=True)
    (folder / "k" / "config.yaml").symlink_to(host.root / "var/lib/kubelet/config.yaml")
    usual = {
        "topology": {"cgroup_root": str(described / "cgroup")},
        "constants": {"reconcile_interval_s": 1, "reconcile_poll_s": 1},
        "kubelet": {"directory": str(folder / "k")},
        "nri": {"plugin": {"socket": str(containerd.nri_socket)}},
    }
    agent = with_view_socket(
        Agent(containerd.socket, machine(MACHINE), merged(usual, config or {}), front_end=front_end)
    )
    one_folder_of_devices(agent, containerd)
    host.point_at(agent.for_kubelet)
    admin = api.kubeconfig(folder / "admin.kubeconfig", token=ADMIN_TOKEN)
    operates = operator(folder, admin)
    agents = folder / "kubelet.kubeconfig" if as_kubelet else admin
    reports = node_agent(folder, name, agent, agents, f"--kubelet-dir={folder}/k")
    try:
        async with CriClient(str(containerd.socket)) as direct:
            node = kind(api, kubectl, containerd, agent, direct, host, reports)
            await agent.start()
            await node.start_kubelet()
            await node.until_registered()
            for part in (operates, reports):
                await part.start()
            yield node
            await node.until_nothing_runs()
    finally:
        # A run that is interrupted leaves none of them either.
        for part in (operates, reports):
            if part.process is not None:
                await part.end()
        await asyncio.to_thread(host.close)
        await agent.close()
        shutil.rmtree(folder, ignore_errors=True)


def one_folder_of_devices(agent: Agent, containerd: Containerd) -> None:
    """What the daemon describes in its own /var/run/cdi is what containerd looks up."""
    folder = agent.folder / "root" / CDI
    folder.parent.mkdir(parents=True)
    (containerd.folder / "cdi").mkdir(exist_ok=True)
    folder.symlink_to(containerd.folder / "cdi")


@asynccontextmanager
async def shown(node: SharedNode) -> AsyncIterator[None]:
    """What the parts of a node have said in this block is printed at its end: shown if the test fails."""

    def logs() -> dict[str, list[str]]:
        return {
            "kubelet": node.host.said(),
            "daemon": node.agent.log().splitlines(),
            "node agent": node.reports.log().splitlines(),
            "containerd": node.runtime.log.read_text(errors="replace").splitlines(),
        }

    since = {part: len(lines) for part, lines in logs().items()}
    yield
    for part, lines in logs().items():
        told = [line for line in lines[since[part] :] if not any(word in line for word in SAID_ALWAYS)]
        print(f"--- {part}", *told[-LINES:], sep="\n")
