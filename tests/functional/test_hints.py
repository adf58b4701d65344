"""Containers run near the devices they use, as the machine's sysfs tells; without one, as the topology does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from policies.machine.topology import Topology
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import cpus_of
from tests.functional.support import start
from tests.machines import HYGON_7285_2S, machine, write_sysfs

GPU, NULL = "0000:41:00.0", "/dev/null"
ON_GPU = replace(machine(HYGON_7285_2S), devices={GPU: 3})


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-socket Hygon on which /dev/null is a device near node 3."""
    sys = write_sysfs(ON_GPU, tmp_path_factory.mktemp("machine"))
    number = os.stat(NULL).st_rdev
    link = sys / f"dev/char/{os.major(number)}:{os.minor(number)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys / "devices/pci0000:00" / GPU)
    return sys


@pytest_asyncio.fixture
async def real(runtime: FakeRuntime, sysfs: Path) -> AsyncIterator[Agent]:
    """A daemon that reads its machine from sysfs."""
    agent = Agent(runtime.socket, sysfs)
    try:
        await start(agent)
        yield agent
    finally:
        await agent.close()


async def create_with(client: CriClient, pod: Pod, name: str, *devices: str, **more: Any) -> str:
    config = container_config(name, cpu_request=500, cpu_limit=2000, **more)
    for path in devices:
        config.devices.add(host_path=path, container_path=path, permissions="rw")
    return str((await client.call("CreateContainer", create_request(pod, config))).container_id)


def nodes_of(runtime: FakeRuntime, container_id: str) -> frozenset[int]:
    return Topology(ON_GPU).nodes_of(cpus_of(runtime, container_id))


@pytest.mark.parametrize("path", [NULL, f"/sys/bus/pci/devices/{GPU}"])
async def test_a_container_runs_near_its_device(runtime, real, path) -> None:
    async with CriClient(real.socket) as client:
        for number in range(3):
            made = await create_with(client, await client.run_pod(f"p{number}"), "app", path)
            assert nodes_of(runtime, made) == {3}
        other = await create_with(client, await client.run_pod("q"), "app")
        assert nodes_of(runtime, other) != {3}


async def test_a_device_that_is_near_nothing_moves_nobody(runtime, sysfs) -> None:
    """Else the test above would show nothing."""
    agent = Agent(runtime.socket, sysfs)
    try:
        await start(agent)
        async with CriClient(agent.socket) as client:
            made = await create_with(client, await client.run_pod("p"), "app", "/dev/zero")
            assert nodes_of(runtime, made) == {0}
    finally:
        await agent.close()


async def test_where_a_file_tells_the_machine_a_devices_address_does(runtime, agent, client) -> None:
    assert machine(HYGON_7285_2S).devices[GPU] == 3
    near = await create_with(client, await client.run_pod("p"), "app", f"/dev/by-path/pci-{GPU}")
    far = await create_with(client, await client.run_pod("q"), "app", NULL)
    assert (nodes_of(runtime, near), nodes_of(runtime, far)) == ({3}, {0})
