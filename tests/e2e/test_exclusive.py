"""CPUs of one's own on a real containerd: who has them, who leaves them, and that a restart does not lose them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.agent import kubelet_gives
from tests.cri_client import CPU_PERIOD_US, CriClient
from tests.e2e.node import GIB, ONE_NODE, Node, Running, until

pytestmark = pytest.mark.containerd

OTHER = {"0": "1", "1": "0"}


@pytest.fixture
async def node(stopped_node: Node) -> Node:
    """Two L3s of one CPU in one NUMA node, under the policy that gives Guaranteed containers CPUs of their own."""
    stopped_node.agent.write_config({"policy": {"Active": "topology-aware"}})
    stopped_node.pretend(ONE_NODE)
    await stopped_node.agent.start()
    return stopped_node


async def own(node: Node, name: str, cpus: float = 1) -> Running:
    return await node.run(
        name,
        qos="guaranteed",
        cpu_request=int(cpus * 1000),
        cpu_limit=int(cpus * 1000),
        memory_limit=GIB // 8,
    )


async def until_on(node: Node, container: Running, cpus: str) -> None:
    """Growing comes after the reply."""

    async def now() -> str:
        return await node.cpus(container)

    await until(now, lambda found: found == cpus)


async def test_shared_containers_leave_before_and_come_back_after(node: Node) -> None:
    shared = await node.run("shared")
    assert await node.cpus(shared) == "0-1"
    db = await own(node, "db")
    mine = await node.cpus(db)
    assert mine in OTHER
    assert await node.cpus(shared) == OTHER[mine]
    late = await node.run("late", cpu_limit=2000)
    assert await node.cpus(late) == OTHER[mine]
    row = await node.row(db)
    assert (row["exclusive"], row["cpus"]) == (mine, mine)
    await node.kubelet.stop(db.id)
    await node.kubelet.remove(db.id)
    for container in (shared, late):
        await until_on(node, container, "0-1")


async def test_a_resize_takes_cpus_and_gives_them_back(node: Node) -> None:
    shared = await node.run("shared")
    db = await own(node, "db", 0.5)
    assert (await node.row(db))["exclusive"] == ""
    await node.kubelet.update(db.id, cpu_quota=CPU_PERIOD_US, cpu_period=CPU_PERIOD_US, cpu_shares=1024)
    mine = await node.cpus(db)
    assert (await node.row(db))["exclusive"] == mine
    assert await node.cpus(shared) == OTHER[mine]
    half = CPU_PERIOD_US // 2
    await node.kubelet.update(db.id, cpu_quota=half, cpu_period=CPU_PERIOD_US, cpu_shares=512)
    assert (await node.row(db))["exclusive"] == ""
    await until_on(node, shared, "0-1")


async def test_the_last_shared_cpu_is_nobodys_own(node: Node) -> None:
    shared = await node.run("shared")
    first, second = await own(node, "first"), await own(node, "second")
    mine = (await node.row(first))["exclusive"]
    assert (await node.row(second))["exclusive"] == ""
    assert await node.cpus(second) == await node.cpus(shared) == OTHER[mine]


async def test_a_killed_daemon_gives_nothing_away_and_takes_nothing(node: Node) -> None:
    shared = await node.run("shared")
    db = await own(node, "db")
    before = await node.cpus(db), await node.cpus(shared)
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    assert (await node.cpus(db), await node.cpus(shared)) == before
    assert await node.cpus(await node.run("late")) == before[1]


@pytest.mark.parametrize("why", ["state lost", "reset-policy"])
async def test_what_runs_owns_its_cpu_before_the_first_comparison_has_ended(node: Node, why: str) -> None:
    db = await own(node, "db")
    mine, pod = await node.cpus(db), await node.pod("late", qos="guaranteed")
    if why == "state lost":
        await node.agent.kill()
        for file in node.agent.state.glob("state.db*"):
            file.unlink()
        await node.agent.start()
        begun = asyncio.ensure_future(asyncio.sleep(0, {}))
    else:
        begun = asyncio.ensure_future(node.ask("reset-policy"))
    # At once: whatever is known by then.
    late = await node.run(pod, qos="guaranteed", cpu_request=1000, cpu_limit=1000, memory_limit=GIB // 8)
    assert (await node.cpus(db), await node.cpus(late)) == (mine, OTHER[mine])
    await begun
    await until(
        lambda: node.ask("status"), lambda status: not status["books"] and not status["updates_waiting"]
    )
    assert (await node.cpus(db), await node.cpus(late)) == (mine, OTHER[mine])
    assert (await node.row(db))["exclusive"] == mine
    # A create that reset-policy overtakes is found as it runs.
    assert (await node.row(late))["stance"] in ("placed", "adopted")


async def test_the_next_attempt_of_a_container_has_the_same_cpu(node: Node) -> None:
    db = await own(node, "db")
    mine = await node.cpus(db)
    await node.kubelet.stop(db.id)
    shared = await node.run("shared")
    assert await node.cpus(shared) == OTHER[mine]
    again = await node.kubelet.create(
        db.pod, "main", attempt=1, qos="guaranteed", cpu_request=1000, cpu_limit=1000, memory_limit=GIB // 8
    )
    await node.kubelet.start(again)
    await node.kubelet.remove(db.id)
    assert await node.cpus(Running(db.pod, again)) == mine
    assert (await node.row(again))["exclusive"] == mine


async def test_what_kubelets_static_policy_gave_away_is_nobody_elses(node: Node) -> None:
    # Kubelet gives a Guaranteed container CPU 1, and puts everybody else on its shared set.
    kubelet_gives(node.agent.folder, "uid-static", "main", "1")
    pod = await node.pod("static", uid="uid-static", qos="guaranteed")
    given = await node.run(
        pod, qos="guaranteed", cpu_request=1000, cpu_limit=1000, memory_limit=GIB // 8, cpuset="1"
    )
    assert await node.cpus(given) == "1"
    assert (await node.row(given))["stance"] == "kubelet-exclusive"
    shared = await node.run("shared", cpuset="0")
    unfenced = await node.run("unfenced")
    db = await own(node, "db")
    assert [await node.cpus(container) for container in (shared, unfenced, db)] == ["0", "0", "0"]
    assert (await node.row(db))["exclusive"] == ""
    # What it keeps in its state file counts before the container exists.
    await node.kubelet.stop(given.id)
    await node.kubelet.remove(given.id)
    kubelet_gives(node.agent.folder, "uid-static", "main", "")
    node.agent.reload()
    await until_on(node, unfenced, "0-1")
    kubelet_gives(node.agent.folder, "uid-next", "app", "1")
    node.agent.reload()
    await until_on(node, unfenced, "0")


async def test_the_attempt_that_never_ran_after_a_kill_has_nothing_beside_kubelets_next_one(
    node: Node,
) -> None:
    shared = await node.run("shared")
    pod = await node.pod("db", qos="guaranteed")
    size: dict[str, Any] = {"cpu_limit": 1000, "memory_limit": GIB // 8, "qos": "guaranteed"}
    creating = asyncio.ensure_future(node.kubelet.create(pod, "main", **size))

    async def created() -> list[str]:
        found = await node.direct.list_containers(pod_sandbox_id=pod.id)
        return [container.id for container in found]

    [first] = await until(created, lambda ids: ids != [])
    await node.agent.kill()
    await asyncio.wait([creating])
    creating.exception()
    await node.agent.start()
    async with CriClient(node.agent.socket) as kubelet:
        second = Running(pod, await kubelet.create(pod, "main", attempt=1, **size))
        await kubelet.start(second.id)
    mine = await node.cpus(second)
    await until_on(node, shared, OTHER[mine])
    for _ in range(2):
        await node.agent.kill()
        await node.agent.start()
        await node.until_runtime_is_known()
        assert (await node.cpus(second), await node.cpus(shared)) == (mine, OTHER[mine])
        assert (await node.row(first), (await node.row(second))["exclusive"]) == ({}, mine)
