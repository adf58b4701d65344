"""What the tests on a real kube-apiserver share: one control plane with the CRDs in it, and nodes of several kinds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.api.names import NAMESPACE, OPERATOR
from tests.agent import Agent
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.node import RegisteredNode
from tests.cluster.real.parts import (
    PLACEMENTS,
    DescribedNode,
    Part,
    delete,
    node_agent,
    operator,
    until_in_force,
    until_ready,
    with_view_socket,
)
from tests.cluster.topology.crd import NODE_RESOURCE_TOPOLOGY
from tests.cri_client import CriClient
from tests.e2e.containerd import missing
from tests.e2e.runtime import RealRuntime
from tests.kubelet.real.conftest import LINES, SAID_ALWAYS
from tests.kubelet.real.conftest import described as described  # fixtures, of these tests too
from tests.kubelet.real.conftest import direct as direct
from tests.kubelet.real.conftest import runtime as runtime
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE
from tests.machines import EPYC_NPS4_1S, HYGON_7285_2S, machine
from tests.peers.programs import CLUSTER, find


@pytest.fixture(scope="session")
def cluster_programs() -> dict[str, Path]:
    """The programs by name; for root, that there are none is a failure."""
    if os.geteuid() != 0:
        pytest.skip("A real kube-apiserver is built and run as root only.")
    assert missing() == ""
    assert shutil.which("openssl") is not None, "openssl is not installed"
    return find(*CLUSTER)


@pytest.fixture(scope="session")
def program(cluster_programs: dict[str, Path]) -> Path:
    """The kubelet."""
    return cluster_programs["kubelet"]


@pytest.fixture(scope="session")
def api_server(cluster_programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A running control plane without nodes: server, controllers, scheduler."""
    # Its sockets' paths are short.
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    with ControlPlane(folder, cluster_programs["etcd"], cluster_programs["kube-apiserver"]) as running:
        running.start_controllers(
            cluster_programs["kube-controller-manager"], cluster_programs["kube-scheduler"]
        )
        yield running


@pytest.fixture(scope="session")
def kubectl(api_server: ControlPlane, cluster_programs: dict[str, Path]) -> Kubectl:
    return Kubectl(cluster_programs["kubectl"], api_server)


@pytest.fixture(scope="session")
def crds(api_server: ControlPlane, kubectl: Kubectl) -> ControlPlane:
    """The control plane, with our kinds of objects in it, and with the one of the scheduler's plugin."""
    api_server.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", NODE_RESOURCE_TOPOLOGY)
    kubectl.apply_crds()
    return api_server


@pytest.fixture(scope="session")
def rights(crds: ControlPlane, kubectl: Kubectl) -> ControlPlane:
    """The control plane with the accounts, rights and admission policies of our manifests, in force."""
    kubectl.apply_rights()
    until_in_force(crds)
    return crds


@pytest.fixture
async def started_operator(rights: ControlPlane, folder: Path) -> AsyncIterator[Part]:
    """An operator that runs, with the rights of its own account."""
    kubeconfig = rights.kubeconfig(
        folder / "operator.kubeconfig", token=rights.account_token(NAMESPACE, OPERATOR)
    )
    part = operator(folder, kubeconfig)
    await part.start()
    yield part
    # In good order: the Lease is given back, and the next operator need not wait for its end.
    await part.end(signal.SIGTERM)
    # Shown if the test fails.
    print("--- operator", *part.log().splitlines()[-LINES:], sep="\n")


@pytest.fixture
async def described_nodes(
    rights: ControlPlane, started_operator: Part, folder: Path
) -> AsyncIterator[list[DescribedNode]]:
    """Two nodes of different machines, with daemon and agent, ready."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name, described in (("hygon", HYGON_7285_2S), ("small", EPYC_NPS4_1S)):
            node = DescribedNode(rights, folder / name, f"{name}-{os.getpid()}", described)
            stack.push_async_callback(node.close)
            await node.start(kind=name)
            nodes.append(node)
        await until_ready(rights, *(node.name for node in nodes))
        yield nodes


@pytest.fixture
async def nodes(
    rights: ControlPlane, registered: RegisteredNode, described_nodes: list[DescribedNode], folder: Path
) -> AsyncIterator[list[str]]:
    """The names of three nodes that are ready: one has a kubelet, two are described."""
    # As on a host: kubelet's own certificate is the agent's too. Those of described nodes are in pods.
    agent = node_agent(folder, registered.name, registered.agent, folder / "kubelet.kubeconfig")
    await agent.start()
    await until_ready(rights, registered.name)
    yield [registered.name, *(node.name for node in described_nodes)]
    await agent.end()
    await delete(rights, f"{PLACEMENTS}/{registered.name}")
    print("--- agent", *agent.log().splitlines()[-LINES:], sep="\n")


@pytest.fixture
async def registered(
    api_server: ControlPlane,
    program: Path,
    runtime: RealRuntime,
    direct: CriClient,
    described: Path,
    folder: Path,
) -> AsyncIterator[RegisteredNode]:
    """A node that has registered: kubelet, our daemon, containerd. Its kubelet has a certificate of its own."""
    config = {
        "topology": {"cgroup_root": str(described / "cgroup")},
        "constants": {"reconcile_interval_s": 1, "reconcile_poll_s": 1},
    }
    agent = with_view_socket(Agent(runtime.socket, machine(MACHINE), config))
    name = f"node-{os.getpid()}"
    pair = api_server.certificate(f"system:node:{name}", "system:nodes")
    kubeconfig = api_server.kubeconfig(folder / "kubelet.kubeconfig", certificate=pair)
    host = RealKubeletHost(
        folder, program, runtime.cgroup_parent, name=name, sys=described / "sys", kubeconfig=kubeconfig
    )
    host.point_at(agent.socket)
    node = RegisteredNode(api_server, runtime, agent, direct, host)
    try:
        await agent.start()
        await node.start_kubelet()
        await node.until_registered()
        yield node
        await node.until_nothing_runs()
    finally:
        await asyncio.to_thread(host.close)
        await asyncio.to_thread(api_server.ask, "DELETE", f"/api/v1/nodes/{name}")
        # Shown if the test fails.
        told = [line for line in host.said() if not any(word in line for word in SAID_ALWAYS)]
        print(*told[-LINES:], "--- daemon", *agent.log().splitlines()[-LINES:], sep="\n")
        await agent.close()
