"""A place that the kernel refuses shows at a container's start, on CRI-O at its creation; the next is left untouched."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from policies.machine.topology import Cpu, TopologyData
from tests.e2e.node import GIB, Node, problem_of

pytestmark = pytest.mark.containerd

#: CPUs that are not there, of which a file claims that kubelet's cgroup has them.
NO_SUCH_CPUS = TopologyData(
    cpus=tuple(Cpu(cpu, cpu, cpu, 0, 0, 0) for cpu in (4094, 4095)), parent_cpus=frozenset([4094, 4095])
)
#: Of two NUMA nodes the one that is not there has all the memory.
NO_SUCH_MEMORY = TopologyData(
    cpus=(Cpu(0, 0, 0, 0, 0, 0), Cpu(1, 1, 1, 0, 63, 0)), memory={0: 0, 63: GIB}, parent_mems=frozenset([63])
)


@pytest.fixture
async def wrong_node(stopped_node: Node) -> Node:
    stopped_node.pretend(NO_SUCH_CPUS)
    await stopped_node.agent.start()
    return stopped_node


async def test_the_attempt_after_the_one_that_cannot_start_runs_untouched(wrong_node: Node) -> None:
    node = wrong_node
    pod = await node.pod("p")
    code, details = await problem_of(node.run(pod, cpu_limit=1000))
    assert (code, "cpuset.cpus" in details) == (grpc.StatusCode.UNKNOWN, True)
    for first in await node.direct.list_containers():
        await node.kubelet.remove(first.id)
    second = await node.run(pod, attempt=1, cpu_limit=1000)
    assert await node.cpus(second) == await node.cpus(await node.run("without-us", by=node.direct))


async def test_that_is_told_in_status_and_explain(wrong_node: Node) -> None:
    node = wrong_node
    pod = await node.pod("p")
    await problem_of(node.run(pod, cpu_limit=1000))
    second = await node.run(pod, attempt=1, cpu_limit=1000)
    status = await node.ask("status")
    assert status["distrusted"] == ["default/p/main"]
    assert status["counters"]["cri_resmgr_start_failures_total{next_create=untouched}"] == 1
    explained = await node.ask("explain", container="default/p/main")
    failed, untouched = explained["history"]
    assert untouched["id"] == second.id
    assert failed["outcome"].startswith(("start failed: ", "not created: "))
    assert "cpuset.cpus" in failed["outcome"]
    assert (untouched["stance"], untouched["cpus"]) == ("untouched", "")
    assert "failed to start" in untouched["why"]


async def test_other_containers_and_other_pods_are_still_placed(wrong_node: Node) -> None:
    node = wrong_node
    pod = await node.pod("p")
    await problem_of(node.run(pod, cpu_limit=1000))
    await problem_of(node.run(pod, "sidecar", cpu_limit=1000))
    await problem_of(node.run("q", cpu_limit=1000))


async def test_the_distrust_outlives_a_restart_of_the_daemon(wrong_node: Node) -> None:
    node = wrong_node
    pod = await node.pod("p")
    await problem_of(node.run(pod, cpu_limit=1000))
    await node.agent.kill()
    await node.agent.start()
    await node.run(pod, attempt=1, cpu_limit=1000)


async def test_memory_nodes_that_are_not_there_are_noticed_too(stopped_node: Node) -> None:
    node = stopped_node
    node.pretend(NO_SUCH_MEMORY)
    await node.agent.start()
    pod = await node.pod("p")
    _, details = await problem_of(node.run(pod, cpu_limit=1000, memory_limit=GIB // 4))
    assert "cpuset.mems" in details
    await node.run(pod, attempt=1, cpu_limit=1000, memory_limit=GIB // 4)


async def test_a_container_that_fails_for_its_own_reasons_is_left_untouched_after_the_second_time(
    node: Node,
) -> None:
    pod = await node.pod("p")
    stances = []
    for attempt in range(3):
        try:
            made = await node.kubelet.create(
                pod, "main", attempt=attempt, cpu_limit=1000, command=("no-such",)
            )
        except grpc.aio.AioRpcError:
            pytest.skip("This runtime looks for the program when it creates the container.")
        stances.append((await node.row(made))["stance"])
        await problem_of(node.kubelet.start(made))
        await node.kubelet.remove(made)
    assert stances == ["placed", "placed", "untouched"]
