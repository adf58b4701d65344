"""Where containers made through our socket really run: seen inside them and in their cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import Agent, kubelet_gives
from tests.cri_client import CPU_PERIOD_US, CriClient
from tests.e2e.node import GIB, ONE_NODE, REAL_CGROUPS, TWO_NODES, Node, problem_of, until
from tests.e2e.runtime import MakeRuntime, RealRuntime

pytestmark = pytest.mark.containerd


async def test_containers_of_one_cpu_take_the_l3s_in_turn(node: Node) -> None:
    made = [await node.run(f"p{i}", cpu_request=200, cpu_limit=1000) for i in range(4)]
    assert [await node.cpus(container) for container in made] == ["0", "1", "0", "1"]


async def test_a_container_of_two_cpus_gets_both_l3s(node: Node) -> None:
    made = await node.run("p", cpu_limit=2000)
    assert await node.cpus(made) == "0-1"
    assert (await node.row(made))["level"] == "numa+ccx"


async def test_containers_of_one_pod_get_an_l3_each_by_their_own_limit(node: Node) -> None:
    pod = await node.pod("p")
    made = [await node.run(pod, name, cpu_limit=1000) for name in ("app", "sidecar")]
    assert sorted([await node.cpus(container) for container in made]) == ["0", "1"]


@pytest.mark.parametrize("qos", ["besteffort", "burstable"])
async def test_a_container_without_a_limit_gets_one_numa_node(node: Node, qos: str) -> None:
    busy = await node.run("busy", cpu_request=500, cpu_limit=1000)
    free = await node.run("free", qos=qos)
    assert (await node.cpus(busy), await node.cpus(free)) == ("0", "1")


async def test_where_both_l3s_are_in_one_numa_node_a_container_without_a_limit_gets_both(
    stopped_node: Node,
) -> None:
    node = stopped_node
    node.pretend(ONE_NODE)
    await node.agent.start()
    assert await node.cpus(await node.run("p", qos="besteffort")) == "0-1"
    assert await node.cpus(await node.run("q", cpu_limit=1000)) == "0"


async def test_memory_comes_from_the_nearest_node_that_has_some(node: Node) -> None:
    made = [await node.run(f"p{i}", cpu_limit=1000, memory_limit=GIB // 4) for i in range(2)]
    # CPU 1 is in NUMA node 1, which has none.
    assert [await node.place(container) for container in made] == [("0", "0"), ("1", "0")]
    assert [(await node.row(container))["mems"] for container in made] == ["0", "0"]


async def test_a_resize_gives_the_cpus_of_its_rung_and_the_quota_that_was_asked_for(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000)
    quotas, cpus = [node.runtime.quota_of(made.id)], [await node.cpus(made)]
    for limit in (2, 1):
        quota = limit * CPU_PERIOD_US
        await node.kubelet.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=quota, cpu_shares=1024 * limit)
        quotas.append(node.runtime.quota_of(made.id))
        cpus.append(await node.cpus(made))
    assert cpus == ["0", "0-1", "0"]
    assert quotas == [CPU_PERIOD_US, 2 * CPU_PERIOD_US, CPU_PERIOD_US]


async def test_a_resize_that_the_runtime_refuses_changes_nothing(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000)
    through = await problem_of(node.kubelet.update(made.id, cpu_period=1, cpu_quota=2, cpu_shares=2048))
    # The runtime has written the cpuset of two CPUs before it came to the period.
    assert await until(lambda: node.cpus(made), lambda cpus: cpus == "0")
    past = await problem_of(node.direct.update(made.id, cpu_period=1, cpu_quota=2, cpu_shares=2048))
    assert through == past
    assert await node.cpus(made) == "0"
    assert (await node.row(made))["cpus"] == "0"


async def test_a_callers_cpuset_is_a_fence(node: Node) -> None:
    made = [await node.run(f"p{i}", cpu_request=100, cpu_limit=1000, cpuset="1", mems="0") for i in range(2)]
    assert [await node.place(container) for container in made] == [("1", "0"), ("1", "0")]
    wide = await node.run("wide", cpu_request=100, cpu_limit=1000, cpuset="0-1")
    assert await node.cpus(wide) == "0"


async def test_a_cpuset_in_an_update_is_a_fence_from_then_on(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000)
    await node.kubelet.update(made.id, cpuset_cpus="1")
    assert await node.cpus(made) == "1"
    await node.kubelet.update(made.id, cpu_shares=512)
    assert await node.cpus(made) == "1"
    assert (await node.row(made))["cpus"] == "1"


async def test_cpus_that_kubelet_gave_to_one_container_are_nobody_elses(node: Node) -> None:
    """As its static CPU manager does; without its word that cpuset is a fence, of whatever size."""
    resources = {"cpu_limit": 1000, "memory_limit": GIB // 8}
    fenced = await node.run("fenced", qos="guaranteed", cpuset="1", **resources)
    assert ((await node.row(fenced))["stance"], await node.cpus(fenced)) == ("placed", "1")
    kubelet_gives(node.agent.folder, "uid-owner", "main", "0")
    pod = await node.pod("owner", uid="uid-owner", qos="guaranteed")
    owner = await node.run(pod, qos="guaranteed", cpuset="0", **resources)
    others = [await node.run(f"p{i}", cpu_request=100, cpu_limit=1000) for i in range(3)]
    assert (await node.row(owner))["stance"] == "kubelet-exclusive"
    assert [await node.cpus(container) for container in (owner, *others)] == ["0", "1", "1", "1"]


async def test_a_pod_that_opts_out_runs_where_it_would_without_us(node: Node) -> None:
    pod = await node.pod("p", annotations={"cri-resmgr.io/manage": "false"})
    without_us = await node.run("without-us", by=node.direct)
    assert await node.cpus(await node.run(pod)) == await node.cpus(without_us)


async def test_in_mode_observe_nothing_is_set_and_the_place_is_told(stopped_node: Node) -> None:
    node = stopped_node
    node.agent.write_config({"relay": {"mode": "observe"}})
    await node.agent.start()
    without_us = await node.run("without-us", by=node.direct)
    made = await node.run("p", cpu_limit=1000)
    assert await node.cpus(made) == await node.cpus(without_us)
    assert (await node.row(made))["stance"] == "observed"


@pytest.fixture
def small_runtime(make_runtime: MakeRuntime, tmp_path: Path) -> Iterator[RealRuntime]:
    """One whose pods may use CPU 1 only: the daemon has to find that out."""
    with make_runtime(tmp_path / "c", cpus="1") as running:
        yield running


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_no_cpu_is_used_that_kubelets_cgroup_does_not_allow(
    small_runtime: RealRuntime, restarted: bool
) -> None:
    async with CriClient(str(small_runtime.socket)) as direct:
        agent = Agent(small_runtime.socket, TWO_NODES, REAL_CGROUPS)
        async with agent, CriClient(agent.socket) as kubelet:
            node = Node(small_runtime, agent, direct, kubelet)
            made = [
                await node.run("p0", cpu_request=100, cpu_limit=1000),
                await node.run("p1", cpu_limit=2000),
            ]
            if restarted:
                await agent.kill()
                await agent.start()
                await node.until_runtime_is_known()
            assert [await node.cpus(container) for container in made] == ["1", "1"]
            assert [(await node.row(container))["cpus"] for container in made] == ["1", "1"]
            assert "cri_resmgr_updates_total" not in str((await node.ask("status"))["counters"])
