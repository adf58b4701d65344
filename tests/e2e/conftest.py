"""What the tests on a real runtime share: one runtime for all of them, a new daemon for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e import runtimes
from tests.e2e.containerd import missing
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, Node, remove_all_pods
from tests.e2e.observer import Observer, missing_for_ebpf
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.e2e.traffic import Pods
from tests.e2e.traffic_images import TRAFFIC, make_traffic_image, missing_for_traffic
from tests.peers.programs import Unavailable


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images' archive is kept; skips where no runtime can run."""
    if sentence := missing():
        pytest.skip(sentence)
    if not Path("/sys/devices/system/cpu/cpu1").exists():
        pytest.skip("These tests need CPUs 0 and 1.")
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
def make_runtime(images: Path, request: pytest.FixtureRequest) -> MakeRuntime:
    """Makes a runtime of the kind that ``--runtime`` names, in a folder and with options, that is not started yet."""
    name = request.config.getoption("--runtime")

    def make(folder: Path, **options: Any) -> RealRuntime:
        try:
            return runtimes.make(name, folder, images=images, **options)
        except Unavailable as reason:
            # What was asked for by name is not left out.
            (pytest.skip if name == runtimes.DEFAULT else pytest.fail)(str(reason))

    return make


@pytest.fixture(scope="session")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path_factory.mktemp("runtime") / "c", cpus=CPUS) as running:
        yield running


@pytest.fixture
def runtime(shared_runtime: RealRuntime) -> RealRuntime:
    """A running runtime. A module that kills it has one of its own instead."""
    return shared_runtime


@pytest.fixture
async def direct(runtime: RealRuntime) -> AsyncIterator[CriClient]:
    """A client past our daemon; in the end it removes all pods."""
    async with CriClient(str(runtime.socket)) as client:
        try:
            yield client
        finally:
            await remove_all_pods(client)


@pytest.fixture
async def stopped_node(runtime: RealRuntime, direct: CriClient) -> AsyncIterator[Node]:
    """A node whose daemon is configured, not started."""
    agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
    try:
        async with CriClient(agent.socket) as kubelet:
            yield Node(runtime, agent, direct, kubelet)
    finally:
        await agent.close()


@pytest.fixture
async def node(stopped_node: Node) -> Node:
    """A node whose daemon runs."""
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return stopped_node


# --- pods that talk, and who sees them


@pytest.fixture
async def traffic_pods(runtime: RealRuntime, direct: CriClient, images: Path) -> Pods:
    """Pods of the image with nginx, wrk and talk, made past our daemon."""
    if sentence := missing_for_traffic():
        pytest.skip(sentence)
    await asyncio.to_thread(runtime.add_image, make_traffic_image(images), TRAFFIC)
    return Pods(runtime, direct)


@pytest.fixture
async def make_observer(runtime: RealRuntime) -> AsyncIterator[Callable[..., Observer]]:
    """Makes observers, with options, that are not started yet; they end with the test."""
    made: list[Observer] = []

    def make(**options: Any) -> Observer:
        made.append(Observer(runtime.socket, **options))
        return made[-1]

    yield make
    for observer in made:
        await observer.close()


@pytest.fixture
def observer(make_observer: Callable[..., Observer]) -> Observer:
    """An observer that is not started yet and sees by eBPF; skips where that cannot be."""
    if sentence := missing_for_ebpf():
        pytest.skip(sentence)
    return make_observer(provider="ebpf")
