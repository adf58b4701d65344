"""CPU time of real containers: what isolation writes into cgroups is in the way of nothing that the runtime writes there."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent import Agent
from tests.cri_client import CPU_PERIOD_US, CriClient, cgroup_parent
from tests.e2e.cgroups import limit_cpu_time
from tests.e2e.node import CPUS, GIB, REAL_CGROUPS, TWO_NODES, Node, Running, until
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.e2e.test_nri_plugin import start

pytestmark = pytest.mark.containerd

QUOTA_US = CPU_PERIOD_US // 2


@pytest.fixture(scope="module")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path_factory.mktemp("nri") / "c", cpus=CPUS, has_nri=True) as running:
        yield running


@pytest.fixture(params=["relay", "plugin"])
async def node(
    runtime: RealRuntime, direct: CriClient, request: pytest.FixtureRequest
) -> AsyncIterator[Node]:
    """The daemon between kubelet and the runtime, or beside it as a plugin."""
    is_plugin = request.param == "plugin"
    agent = Agent(runtime.socket, TWO_NODES, {**REAL_CGROUPS, "isolation": {"cpu": "enforce"}})
    try:
        if is_plugin:
            agent.write_config({"nri": {"plugin": {"socket": str(runtime.nri_socket)}}})
        async with CriClient(str(runtime.socket) if is_plugin else agent.socket) as kubelet:
            made = Node(runtime, agent, direct, kubelet)
            if is_plugin:
                await start(made)
            else:
                await agent.start()
                await made.until_runtime_is_known()
            yield made
    finally:
        await agent.close()


async def run(node: Node, qos: str, quota_us: int = 0, **more: Any) -> tuple[Running, Path]:
    """A container of a pod as kubelet makes it, and the pod's cgroup."""
    uid = str(uuid.uuid4())
    parent = node.runtime.cgroup_parent + cgroup_parent(qos, uid)
    cgroup = limit_cpu_time(parent, quota_us or -1, CPU_PERIOD_US)
    pod = await node.pod(f"p{uid[:8]}", qos=qos, uid=uid)
    if quota_us:
        more.update(cpu_limit=quota_us * 1000 // CPU_PERIOD_US, memory_limit=GIB // 8)
    return await node.run(pod, qos=qos, **more), cgroup


def burst_of(node: Node, container: Running, cgroup: Path) -> tuple[str, str]:
    """Of the container and of its pod."""
    name = "cpu.cfs_burst_us" if (cgroup / "cpu.cfs_burst_us").exists() else "cpu.max.burst"
    return node.runtime.cgroup_file_of(container.id, "cpu", name), (cgroup / name).read_text().strip()


async def has_burst(node: Node, container: Running, cgroup: Path, wanted_us: int) -> None:
    async def seen() -> tuple[str, str]:
        return burst_of(node, container, cgroup)

    await until(seen, lambda found: found == (str(wanted_us), str(wanted_us)))


async def test_a_limit_is_resized_downwards_at_once_while_the_container_has_a_burst(node: Node) -> None:
    made, cgroup = await run(node, "guaranteed", QUOTA_US)
    if not any((cgroup / name).exists() for name in ("cpu.cfs_burst_us", "cpu.max.burst")):
        pytest.skip("this kernel has no burst")
    await has_burst(node, made, cgroup, QUOTA_US)
    for quota_us in (QUOTA_US // 2, QUOTA_US // 4, QUOTA_US // 5):
        # As kubelet shrinks a pod in place: the container first, then its cgroup.
        await node.kubelet.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=quota_us, cpu_shares=512)
        limit_cpu_time(node.runtime.cgroup_parent + f"/kubepods/pod{made.pod.uid}", quota_us, CPU_PERIOD_US)
        assert node.runtime.quota_of(made.id) == quota_us
        await has_burst(node, made, cgroup, quota_us)
    await node.ask("release", all=True, container="")
    await has_burst(node, made, cgroup, 0)


async def test_containers_of_an_idle_pod_are_updated_as_all_others(node: Node) -> None:
    made, cgroup = await run(node, "besteffort")
    if not (cgroup / "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")

    async def idle() -> str:
        return (cgroup / "cpu.idle").read_text().strip()

    await until(idle, lambda text: text == "1")
    await node.kubelet.update(made.id, cpu_shares=2, cpuset_cpus="1")
    await node.kubelet.update(made.id, cpu_shares=2, cpu_period=CPU_PERIOD_US, cpu_quota=QUOTA_US)
    assert node.runtime.quota_of(made.id) == QUOTA_US and await idle() == "1"
    assert node.runtime.cpuset_of(made.id)[0] == "1"
    second = await node.run(made.pod, "second", qos="besteffort")
    await node.kubelet.update(second.id, cpu_shares=2, cpuset_cpus="0")
    await node.ask("release", all=True, container="")
    await until(idle, lambda text: text == "0")
