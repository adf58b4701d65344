"""What the tests on a real containerd share: one containerd for all of them, a new daemon for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, Node, remove_all_pods
from tests.e2e.observer import Observer, missing_for_ebpf
from tests.e2e.traffic import Pods
from tests.e2e.traffic_images import TRAFFIC, make_traffic_image, missing_for_traffic


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images' archive is kept; skips where no containerd can run."""
    if sentence := missing():
        pytest.skip(sentence)
    if not Path("/sys/devices/system/cpu/cpu1").exists():
        pytest.skip("These tests need CPUs 0 and 1.")
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
def shared_containerd(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    with Containerd(tmp_path_factory.mktemp("containerd") / "c", images=images, cpus=CPUS) as running:
        yield running


@pytest.fixture
def containerd(shared_containerd: Containerd) -> Containerd:
    """A running containerd. A module that kills it has one of its own instead."""
    return shared_containerd


@pytest.fixture
async def direct(containerd: Containerd) -> AsyncIterator[CriClient]:
    """A client past our daemon; in the end it removes all pods."""
    async with CriClient(str(containerd.socket)) as client:
        try:
            yield client
        finally:
            await remove_all_pods(client)


@pytest.fixture
async def stopped_node(containerd: Containerd, direct: CriClient) -> AsyncIterator[Node]:
    """A node whose daemon is configured, not started."""
    agent = Agent(containerd.socket, TWO_NODES, REAL_CGROUPS)
    try:
        async with CriClient(agent.socket) as kubelet:
            yield Node(containerd, agent, direct, kubelet)
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
async def traffic_pods(containerd: Containerd, direct: CriClient, images: Path) -> Pods:
    """Pods of the image with nginx, wrk and talk, made past our daemon."""
    if sentence := missing_for_traffic():
        pytest.skip(sentence)
    await asyncio.to_thread(containerd.add_image, make_traffic_image(images), TRAFFIC)
    return Pods(containerd, direct)


@pytest.fixture
async def make_observer(containerd: Containerd) -> AsyncIterator[Callable[..., Observer]]:
    """Makes observers, with options, that are not started yet; they end with the test."""
    made: list[Observer] = []

    def make(**options: Any) -> Observer:
        made.append(Observer(containerd.socket, **options))
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
