"""What these tests share: one kubelet binary, one containerd 2; a kubelet and a daemon of its own for each."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import remove_all_pods
from tests.kubelet.real.gate import Gate
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE, make_cgroup, write_machine, write_runtime
from tests.kubelet.real.node import KubeletNode
from tests.machines import machine
from tests.peers.programs import CONTAINERD, find

#: How long pods have to go, seconds; they take one or two.
REMOVE_S = 60.0

#: How much of kubelet's log and of the daemon's is shown of a test that fails, and what kubelet says each second.
LINES = 60
SAID_ALWAYS = "Recording NodeHas", "Setting node annotation", "Pod status updated"


@pytest.fixture(scope="session")
def program() -> Path:
    """The kubelet: the one named by the environment, or the peer's. For root, that there is none is a failure."""
    if os.geteuid() != 0:
        pytest.skip("A real kubelet needs root.")
    assert missing() == ""
    return find("kubelet")["kubelet"]


@pytest.fixture(scope="session")
def described(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the machine that kubelet and daemon believe in."""
    folder = tmp_path_factory.mktemp("machine")
    write_machine(folder)
    write_runtime(folder)
    return folder


@pytest.fixture(scope="session")
def containerd(described: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    runtime = f'  BinaryName = "{described}/runc"\n'
    images = tmp_path_factory.mktemp("images")
    peers = find(*CONTAINERD)
    running = Containerd(
        tmp_path_factory.mktemp("c") / "c",
        peers["containerd"],
        images=images,
        more_config=runtime,
        path=[peers["runc"].parent],
    )
    try:
        start(running)
        yield running
    finally:
        running.close()


def start(containerd: Containerd) -> None:
    """Start one that has nothing yet, with the cgroup that kubelet wants."""
    containerd.start()
    make_cgroup(containerd.cgroup_parent)


@pytest.fixture
async def direct(containerd: Containerd) -> AsyncIterator[CriClient]:
    """A client past our daemon; in the end it removes all pods.

    containerd 1.6 may have one that it can never stop ("failed to delete task: container not running", where kubelet has
    removed its cgroup while it ended): then the next test gets a containerd that never had it.
    """
    async with CriClient(str(containerd.socket)) as client:
        yield client
        with contextlib.suppress(asyncio.TimeoutError, AssertionError, grpc.aio.AioRpcError):
            await asyncio.wait_for(remove_all_pods(client), REMOVE_S)
        left = (await client.call("ListPodSandbox", cri.ListPodSandboxRequest())).items
    if left:
        await asyncio.to_thread(containerd.close)
        await asyncio.to_thread(start, containerd)


@pytest.fixture
async def gate(containerd: Containerd, folder: Path) -> AsyncIterator[Gate]:
    """What the daemon takes for the runtime."""
    async with Gate(f"{folder}/gate.sock", str(containerd.socket)) as gate:
        yield gate


@pytest.fixture
async def stopped_node(
    program: Path, containerd: Containerd, direct: CriClient, gate: Gate, described: Path, folder: Path
) -> AsyncIterator[KubeletNode]:
    """A node on which neither our daemon nor kubelet was started; kubelet would speak to our daemon."""
    config = {
        "topology": {"cgroup_root": str(described / "cgroup")},
        "constants": {"reconcile_interval_s": 1, "reconcile_poll_s": 1},
    }
    agent = Agent(gate.socket, machine(MACHINE), config)
    host = RealKubeletHost(
        folder, program, containerd.cgroup_parent, name=f"node-{os.getpid()}", sys=described / "sys"
    )
    host.point_at(agent.socket)
    try:
        yield KubeletNode(containerd, agent, direct, host)
    finally:
        await asyncio.to_thread(host.close)
        # Shown if the test fails.
        told = [line for line in host.said() if not any(word in line for word in SAID_ALWAYS)]
        runtime = containerd.log.read_text(errors="replace").splitlines()
        print(*told[-LINES:], "--- daemon", *agent.log().splitlines()[-LINES:], sep="\n")
        print("--- containerd", *runtime[-LINES:], sep="\n")
        await agent.close()


@pytest.fixture
async def node(stopped_node: KubeletNode) -> KubeletNode:
    """A node on which all runs."""
    await stopped_node.agent.start()
    await stopped_node.start_kubelet()
    return stopped_node


@pytest.fixture
async def unmanaged_node(stopped_node: KubeletNode) -> KubeletNode:
    """A node on which all runs, and kubelet speaks to containerd."""
    runtime = str(stopped_node.containerd.socket)
    stopped_node.host.point_at(runtime)
    stopped_node.agent.write_config({"relay": {"runtime_endpoint": runtime}})
    await stopped_node.agent.start()
    await stopped_node.start_kubelet()
    return stopped_node
