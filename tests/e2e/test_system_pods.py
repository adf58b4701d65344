"""Pods below a cgroup that allows less than kubelet's others: fenced by that, and the others are not."""

from __future__ import annotations

import uuid

import pytest

from tests.cri_client import Pod
from tests.e2e.cgroups import limit_cpus
from tests.e2e.node import Node

pytestmark = pytest.mark.containerd

SMALL = {"cpu_request": 100, "cpu_limit": 1000}


@pytest.fixture
def system(node: Node) -> str:
    """The parent of system pods: CPU 1 alone."""
    kubepods = f"{node.runtime.cgroup_parent}/kubepods"
    limit_cpus(kubepods, "0-1")
    limit_cpus(f"{kubepods}/system", "1")
    return f"{kubepods}/system"


async def pod_below(node: Node, parent: str, name: str) -> Pod:
    uid = str(uuid.uuid4())
    return await node.kubelet.run_pod(name, uid=uid, cgroup_parent=f"{parent}/pod{uid}")


async def test_a_system_pod_is_placed_inside_of_its_parents_cpus(node: Node, system: str) -> None:
    made = [await node.run(await pod_below(node, system, name), **SMALL) for name in ("s", "t")]
    assert [await node.cpus(container) for container in made] == ["1", "1"]
    other = await node.run("p", cpu_request=100, cpu_limit=2000)
    assert await node.cpus(other) == "0-1"
    explained = await node.ask("explain", container="default/s/main")
    assert [row["pod_cpus"] for row in explained["containers"]] == ["1"]
    assert (await node.ask("status"))["usable"] == "0-1"


async def test_a_daemon_that_comes_back_knows_it(node: Node, system: str) -> None:
    pod = await pod_below(node, system, "s")
    first = await node.run(pod, **SMALL)
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    assert (await node.row(first))["cpus"] == "1"
    assert await node.cpus(await node.run(pod, "second", **SMALL)) == "1"
