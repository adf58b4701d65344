"""Somebody else writes a container's cpuset: repaired, but never a fight."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.node import Node, Running, until

pytestmark = pytest.mark.containerd

SMALL = {"cpu_request": 100, "cpu_limit": 1000}


@pytest.fixture
async def looking_node(stopped_node: Node) -> Node:
    stopped_node.agent.write_config({"constants": {"reconcile_interval_s": 0.1, "reconcile_poll_s": 0.1}})
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return stopped_node


async def test_a_cpuset_that_was_changed_in_the_cgroup_is_repaired(looking_node: Node) -> None:
    node = looking_node
    made = await node.run("p", **SMALL)
    node.runtime.write_cpuset(made.id, "1")
    await until_it_is_on(node, made, "0")


async def test_a_cpuset_that_was_changed_past_us_is_repaired(looking_node: Node) -> None:
    node = looking_node
    made = await node.run("p", **SMALL)
    await node.direct.update(made.id, cpuset_cpus="1")
    await until_it_is_on(node, made, "0")
    status = await node.ask("status")
    assert status["counters"]["cri_resmgr_drift_total{result=repaired}"] == 1


async def test_a_container_that_has_moved_into_a_child_of_its_cgroup_is_looked_at_in_its_own(
    looking_node: Node,
) -> None:
    node = looking_node
    made = await node.run("p", **SMALL)
    cgroup = node.runtime.nest(made.id)
    # Only a daemon that has not looked yet learns where its process is.
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    (cgroup / "cpuset.cpus").write_text("0-1")
    row = await node.until_known(made, cpus="0")
    await until(lambda: asyncio.to_thread((cgroup / "cpuset.cpus").read_text), lambda cpus: cpus == "0\n")
    assert row["stance"] == "placed"


async def test_whoever_insists_has_the_container(looking_node: Node) -> None:
    node = looking_node
    made = await node.run("p", **SMALL)
    for _ in range(3):
        node.runtime.write_cpuset(made.id, "1")
        await until_it_is_on(node, made, "0")
    node.runtime.write_cpuset(made.id, "1")
    row = await node.until_known(made, stance="foreign")
    assert (row["cpus"], await node.cpus(made)) == ("1", "1")
    assert (await node.ask("status"))["foreign"] == ["default/p/main"]
    # It is charged where it runs.
    assert await node.cpus(await node.run("q", **SMALL)) == "0"


async def test_a_change_while_the_daemon_was_down_is_repaired(looking_node: Node) -> None:
    node = looking_node
    made = await node.run("p", **SMALL)
    await node.agent.kill()
    node.runtime.write_cpuset(made.id, "1")
    await node.agent.start()
    await until_it_is_on(node, made, "0")


async def test_containers_nobody_touches_get_no_updates(looking_node: Node) -> None:
    node = looking_node
    kinds = [SMALL, {"qos": "besteffort"}, {**SMALL, "memory_limit": 1 << 27}, {"cpu_limit": 2000}]
    for number, kind in enumerate(kinds):
        await node.run(f"p{number}", **kind)

    async def counters() -> dict[str, float]:
        return dict((await node.ask("status"))["counters"])

    rounds = "cri_resmgr_resyncs_total{result=ok}"
    before = (await counters())[rounds]
    found = await until(counters, lambda now: now[rounds] >= before + 5)
    assert [name for name in found if "updates" in name or "drift" in name] == []


async def until_it_is_on(node: Node, made: Running, cpus: str) -> None:
    async def place() -> str:
        return node.runtime.allowed_of(made.id)[0]

    await until(place, lambda found: found == cpus)
