"""A container on a real containerd reads its CPUs inside, as they change."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.node import GIB, ONE_NODE, Node, Running, until

pytestmark = pytest.mark.containerd

FILE = "/run/cri-resmgr.io/cpuset"


@pytest.fixture
async def node(stopped_node: Node) -> Node:
    """Two L3s of one CPU in one NUMA node, under the policy that gives Guaranteed containers CPUs of their own."""
    stopped_node.agent.write_config(
        {"policy": {"Active": "topology-aware"}, "placement": {"cpuset_file": "all"}}
    )
    stopped_node.pretend(ONE_NODE)
    await stopped_node.agent.start()
    return stopped_node


async def told(node: Node, container: Running) -> dict[str, str]:
    text, problem, code = await node.direct.exec(container.id, "cat", FILE)
    assert code == 0, problem
    return dict(line.split("=") for line in text.splitlines())


async def test_it_is_read_inside_follows_the_cpuset_and_cannot_be_written(node: Node) -> None:
    shared = await node.run("shared")
    assert (await told(node, shared))["cpus"] == await node.cpus(shared) == "0-1"
    # 1. Another container gets a CPU of its own.
    db = await node.run("db", qos="guaranteed", cpu_request=1000, cpu_limit=1000, memory_limit=GIB // 8)
    mine = await node.cpus(db)
    inside = await told(node, db)
    assert (inside["cpus"], inside["exclusive"]) == (mine, mine)
    left = await node.cpus(shared)
    await until(lambda: told(node, shared), lambda found: found["cpus"] == left)
    # 2. It is nothing that the container can change.
    _, problem, code = await node.direct.exec(shared.id, "sh", "-c", f"echo cpus=0-63 > {FILE}")
    assert code != 0 and "Read-only file system" in problem
    # 3. A restart of the daemon, and what it finds then.
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    await node.kubelet.stop(db.id)
    await node.kubelet.remove(db.id)
    await node.kubelet.stop_pod(db.pod.id)
    await until(lambda: told(node, shared), lambda found: found["cpus"] == "0-1")
    # 4. With the container its folder goes.
    folders = node.agent.folder / "cpusets"
    assert len(list(folders.iterdir())) == 1
    await node.kubelet.stop(shared.id)
    await node.kubelet.remove(shared.id)
    await node.kubelet.stop_pod(shared.pod.id)
    await until(lambda: asyncio.to_thread(lambda: list(folders.iterdir())), lambda found: not found)
