"""What is free and what huge pages there are is read at each comparison; what is placed stays where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, rows
from tests.functional.support import compared, restart, start
from tests.machines import GIB, HYGON_7285_2S, write_sysfs

#: Huge pages of 2 MiB in a GiB.
PAGES_PER_GIB = 512


@pytest_asyncio.fixture
async def agent(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Agent]:
    """A daemon that reads a two-socket Hygon from a sysfs that can be written to."""
    agent = Agent(runtime.socket, write_sysfs(HYGON_7285_2S, tmp_path))
    try:
        await start(agent)
        yield agent
    finally:
        await agent.close()


def node_folder(tmp_path: Path, node: int) -> Path:
    return tmp_path / f"sys/devices/system/node/node{node}"


def leave_free(tmp_path: Path, node: int, gib: int) -> None:
    path = node_folder(tmp_path, node) / "meminfo"
    lines = [line for line in path.read_text().splitlines() if "MemFree" not in line and "(file)" not in line]
    lines += [f"Node {node} MemFree: {gib << 20} kB", f"Node {node} Inactive(file): 0 kB"]
    path.write_text("\n".join(lines))


async def create(client: CriClient, name: str, *page_sizes: str) -> str:
    config = container_config(name, cpu_request=500, cpu_limit=2000, memory_limit=10 * GIB)
    for size in page_sizes:
        config.linux.resources.hugepage_limits.append(cri.HugepageLimit(page_size=size, limit=GIB))
    pod = await client.run_pod(f"pod-{name}")
    return str((await client.call("CreateContainer", create_request(pod, config))).container_id)


async def test_a_node_without_as_much_free_memory_is_left_out_and_a_restart_moves_nothing(
    agent, runtime, tmp_path
) -> None:
    async with CriClient(agent.socket) as client:
        await create(client, "before")
        for node in set(range(8)) - {5}:
            leave_free(tmp_path, node, 9)
        await compared(agent)
        await create(client, "after")
        placed = await rows(agent)
        assert (placed["before"]["mems"], placed["after"]["mems"]) == ("0", "5")
        told = [row["free_bytes"] // GIB for row in (await ask(agent, "status"))["memory"]]
        assert told == [9, 9, 9, 9, 9, 48, 9, 9]
        # With the whole machine full nothing is moved, whichever daemon reads it.
        leave_free(tmp_path, 5, 0)
        await restart(agent)
        await compared(agent)
        assert {name: row["mems"] for name, row in (await rows(agent)).items()} == {
            "before": "0",
            "after": "5",
        }
        assert runtime.calls_of("UpdateContainerResources") == []


async def test_pools_of_huge_pages_that_are_filled_later_are_followed(agent, client, tmp_path) -> None:
    pool = node_folder(tmp_path, 6) / "hugepages/hugepages-2048kB/nr_hugepages"
    pool.write_text(str(4 * PAGES_PER_GIB))
    status = await compared(agent)
    assert [row["hugepage_bytes"] // GIB for row in status["memory"]] == [0, 0, 0, 0, 0, 0, 4, 0]
    await create(client, "small", "2MB")
    await create(client, "large", "1GB")
    placed = await rows(agent)
    assert placed["small"]["mems"] == "0,6"
    assert placed["large"]["mems"] == "0"  # there are none of that size
