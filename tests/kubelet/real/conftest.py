"""What these tests share: one kubelet binary, one runtime; a kubelet and a daemon of its own for each."""

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
from tests.e2e import runtimes
from tests.e2e.containerd import missing
from tests.e2e.node import remove_all_pods
from tests.e2e.runtime import RealRuntime
from tests.kubelet.real.gate import Gate
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import MACHINE, make_cgroup, write_machine, write_runtime
from tests.kubelet.real.node import KubeletNode
from tests.machines import machine
from tests.peers.programs import find

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
def runtime(
    described: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[RealRuntime]:
    """The one that ``--runtime`` names, else containerd 2; its runc is the described machine's."""
    running = runtimes.make(
        runtimes.for_peers(pytestconfig.getoption("--runtime")),
        tmp_path_factory.mktemp("c") / "c",
        images=tmp_path_factory.mktemp("images"),
        path=[find("runc")["runc"].parent],
        runc=described / "runc",
    )
    try:
        start(running)
        yield running
    finally:
        running.close()


def start(runtime: RealRuntime) -> None:
    """Start one that has nothing yet, with the cgroup that kubelet wants."""
    runtime.start()
    make_cgroup(runtime.cgroup_parent)


@pytest.fixture
async def direct(runtime: RealRuntime) -> AsyncIterator[CriClient]:
    """A client past our daemon; in the end it removes all pods.

    containerd 1.6 may have one that it can never stop ("failed to delete task: container not running", where kubelet has
    removed its cgroup while it ended): then the next test gets a runtime that never had it.
    """
    async with CriClient(str(runtime.socket)) as client:
        yield client
        with contextlib.suppress(asyncio.TimeoutError, AssertionError, grpc.aio.AioRpcError):
            await asyncio.wait_for(remove_all_pods(client), REMOVE_S)
        left = (await client.call("ListPodSandbox", cri.ListPodSandboxRequest())).items
    if left:
        await asyncio.to_thread(runtime.close)
        await asyncio.to_thread(start, runtime)


@pytest.fixture
async def gate(runtime: RealRuntime, folder: Path) -> AsyncIterator[Gate]:
    """What the daemon takes for the runtime, and knows for it by the end of its name."""
    socket = folder / "gate" / runtime.socket.relative_to(runtime.folder)
    socket.parent.mkdir(parents=True)
    async with Gate(str(socket), str(runtime.socket)) as gate:
        yield gate


@pytest.fixture
async def stopped_node(
    program: Path, runtime: RealRuntime, direct: CriClient, gate: Gate, described: Path, folder: Path
) -> AsyncIterator[KubeletNode]:
    """A node on which neither our daemon nor kubelet was started; kubelet would speak to our daemon."""
    config = {
        "topology": {"cgroup_root": str(described / "cgroup")},
        "constants": {"reconcile_interval_s": 1, "reconcile_poll_s": 1},
    }
    agent = Agent(gate.socket, machine(MACHINE), config)
    host = RealKubeletHost(
        folder,
        program,
        runtime.cgroup_parent,
        name=f"node-{os.getpid()}",
        sys=described / "sys",
        mounts=usual_place(runtime, folder),
    )
    host.point_at(agent.socket)
    try:
        yield KubeletNode(runtime, agent, direct, host)
    finally:
        await asyncio.to_thread(host.close)
        # Shown if the test fails.
        told = [line for line in host.said() if not any(word in line for word in SAID_ALWAYS)]
        lines = runtime.log.read_text(errors="replace").splitlines()
        print(*told[-LINES:], "--- daemon", *agent.log().splitlines()[-LINES:], sep="\n")
        print("--- runtime", *lines[-LINES:], sep="\n")
        await agent.close()


def usual_place(runtime: RealRuntime, folder: Path) -> dict[str, Path]:
    """What kubelet has at /run: its statistics of CRI-O's containers come by a name that cannot be configured."""
    socket = runtime.socket.relative_to(runtime.folder)
    if socket.parts[0] != "run":
        return {}
    link = folder / "machine" / socket
    link.parent.mkdir(parents=True)
    link.symlink_to(runtime.socket)
    return {"/run": folder / "machine" / "run"}


@pytest.fixture
async def node(stopped_node: KubeletNode) -> KubeletNode:
    """A node on which all runs."""
    await stopped_node.agent.start()
    await stopped_node.start_kubelet()
    return stopped_node


@pytest.fixture
async def unmanaged_node(stopped_node: KubeletNode) -> KubeletNode:
    """A node on which all runs, and kubelet speaks to the runtime."""
    socket = str(stopped_node.runtime.socket)
    stopped_node.host.point_at(socket)
    stopped_node.agent.write_config({"relay": {"runtime_endpoint": socket}})
    await stopped_node.agent.start()
    await stopped_node.start_kubelet()
    return stopped_node
