"""What these tests share: a control plane, and one node with its containerd, daemon, agent and kubelet."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.api.names import NAMESPACE
from tests.agent import Agent
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import node_agent, operator, with_view_socket
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.kubelet.real.conftest import LINES, SAID_ALWAYS, start
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE, write_hugepages, write_machine, write_runtime
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.node import SharedNode
from tests.machines import machine
from tests.peers.programs import CLUSTER, find

#: A runtime handler as virtual machines have it, by the name that our default leaves alone; here it is runc.
HANDLER = "kata-of-the-tests"
RUNTIMES = """\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}.options]
  BinaryName = "{runc}"
"""
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


@pytest.fixture(scope="package")
def programs() -> dict[str, Path]:
    """The programs of a cluster by name; for root, that there are none is a failure."""
    if os.geteuid() != 0:
        pytest.skip("A real kubelet needs root.")
    assert missing() == ""
    return find(*CLUSTER)


@pytest.fixture(scope="package")
def described(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the machine that kubelet and daemon believe in; it has huge pages."""
    folder = tmp_path_factory.mktemp("machine")
    write_hugepages(write_machine(folder))
    write_runtime(folder)
    return folder


@pytest.fixture(scope="package")
def containerd(
    programs: dict[str, Path], described: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """With a handler besides that pods name by a RuntimeClass."""
    running = Containerd(
        tmp_path_factory.mktemp("c") / "c",
        programs["containerd"],
        images=tmp_path_factory.mktemp("images"),
        more_config=RUNTIMES.format(runc=described / "runc", handler=HANDLER),
        path=[programs["runc"].parent],
        runc=described / "runc",
    )
    try:
        start(running)
        yield running
    finally:
        running.close()


@pytest.fixture(scope="package")
def api(programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A control plane with the controllers and the scheduler, and our kinds of objects."""
    # Its sockets' paths are short.
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    with ControlPlane(folder, programs["etcd"], programs["kube-apiserver"]) as running:
        running.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"])
        running.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield running


@pytest.fixture(scope="package")
def kubectl(api: ControlPlane, programs: dict[str, Path]) -> Kubectl:
    kubectl = Kubectl(programs["kubectl"], api)
    kubectl.apply_crds()
    return kubectl


@pytest.fixture(scope="package")
def logind() -> Iterator[Logind]:
    """A logind that kubelet asks, on a bus of its own; not started."""
    logind = Logind(Path(tempfile.mkdtemp(prefix="crl-")))
    yield logind
    logind.close()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def whole(
    programs: dict[str, Path],
    api: ControlPlane,
    kubectl: Kubectl,
    containerd: Containerd,
    described: Path,
    logind: Logind,
) -> AsyncIterator[SharedNode]:
    """The node, on which all runs."""
    folder = Path(tempfile.mkdtemp(prefix="crf-"))
    name = f"node-{os.getpid()}"
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
        environment={"DBUS_SYSTEM_BUS_ADDRESS": logind.address},
        settings=SETTINGS,
    )
    size = ("mount", "-t", "tmpfs", "-o", f"size={NODE_FS},mode=755", "tmpfs", str(folder / "k"))
    await asyncio.to_thread(subprocess.run, size, check=True)
    (folder / "k" / "config.yaml").symlink_to(host.root / "var/lib/kubelet/config.yaml")
    config = {
        "topology": {"cgroup_root": str(described / "cgroup")},
        "constants": {"reconcile_interval_s": 1, "reconcile_poll_s": 1},
        "kubelet": {"directory": str(folder / "k")},
    }
    agent = with_view_socket(Agent(containerd.socket, machine(MACHINE), config))
    host.point_at(agent.socket)
    admin = api.kubeconfig(folder / "admin.kubeconfig", token=ADMIN_TOKEN)
    parts = operator(folder, admin), node_agent(folder, name, agent, admin)
    try:
        async with CriClient(str(containerd.socket)) as direct:
            node = SharedNode(api, kubectl, containerd, agent, direct, host)
            await agent.start()
            await node.start_kubelet()
            await node.until_registered()
            for part in parts:
                await part.start()
            yield node
            await node.until_nothing_runs()
            for part in parts:
                await part.end()
    finally:
        await asyncio.to_thread(host.close)
        await agent.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session")
async def node(whole: SharedNode) -> AsyncIterator[SharedNode]:
    """The node without pods; a test may leave some, which are gone before the next."""
    since = [len(whole.host.said()), len(whole.agent.log().splitlines())]
    yield whole
    # Shown if the test fails.
    told = [line for line in whole.host.said()[since[0] :] if not any(word in line for word in SAID_ALWAYS)]
    daemon = whole.agent.log().splitlines()[since[1] :]
    runtime = whole.runtime.log.read_text(errors="replace").splitlines()
    print(*told[-LINES:], "--- daemon", *daemon[-LINES:], sep="\n")
    print("--- containerd", *runtime[-LINES:], sep="\n")
    await whole.until_nothing_is_left()
