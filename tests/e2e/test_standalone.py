"""Standalone on a real containerd: pods are made past us, as by a kubelet that may not be touched."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from tests.cri_client import CPU_PERIOD_US
from tests.e2e.node import ONE_NODE, Node, Running, until
from tests.e2e.observer import Observer
from tests.e2e.test_traffic_placement import PORT, place, talking, until_daemon_sees
from tests.e2e.traffic import Pods, Talker

pytestmark = pytest.mark.containerd

SMALL: dict[str, Any] = {"cpu_request": 100, "cpu_limit": 1000}
EVERYWHERE = "0-1"


@pytest.fixture
async def standalone(stopped_node: Node) -> Node:
    """A node whose daemon follows what runs; pods are made by ``node.direct``."""
    await stopped_node.agent.start("--standalone")
    await stopped_node.until_runtime_is_known()
    return stopped_node


async def placed(node: Node, container: Running) -> str:
    """The CPUs of a container, once they are those that the daemon has for it."""
    row = await node.until_known(container, stance="placed", state="running")
    return await until(lambda: node.cpus(container), lambda cpus: cpus == row["cpus"])


async def test_containers_that_were_started_behind_our_back_are_placed(standalone: Node) -> None:
    node = standalone
    made = [await node.run(f"p{i}", by=node.direct, **SMALL) for i in range(3)]
    places = [await placed(node, one) for one in made]
    # Spread over the two L3s.
    assert sorted(places[:2]) == ["0", "1"]
    assert places[2] in ("0", "1")
    # What the container sees at its start is the whole machine: it is late, and the log says how late.
    assert len(await node.agent.logged("late_ms=", 3)) == 3


async def test_what_it_was_not_asked_for_stays(stopped_node: Node) -> None:
    node = stopped_node
    before = await node.run("before", by=node.direct, **SMALL)
    there = await node.place(before)
    await node.agent.start("--standalone")
    await node.until_runtime_is_known()
    fenced = await node.run("fenced", by=node.direct, cpuset="1", mems="0", **SMALL)
    left = {"cri-resmgr.io/manage": "false"}
    opted_out = await node.run(
        await node.pod("opted-out", by=node.direct, annotations=left), by=node.direct, **SMALL
    )
    assert await placed(node, fenced) == "1"
    await node.until_known(opted_out, stance="opted out")
    assert await node.cpus(opted_out) == EVERYWHERE
    assert await node.place(before) == there
    assert (await node.row(before))["stance"] == "adopted"


async def test_a_restart_moves_nothing(standalone: Node) -> None:
    node = standalone
    made = [await node.run(f"p{i}", by=node.direct, **SMALL) for i in range(2)]
    places = [await placed(node, one) for one in made]
    await node.agent.kill()
    await node.agent.start("--standalone")
    await node.until_runtime_is_known()
    assert [await placed(node, one) for one in made] == places
    status = await node.ask("status")
    assert (status["containers"], status["invariants"]) == ({"placed": 2}, [])
    assert status["counters"].get("cri_resmgr_updates_total{result=sent}", 0) == 0


async def test_a_resize_by_kubelet_is_followed(stopped_node: Node) -> None:
    node = stopped_node
    node.agent.write_config({"constants": {"reconcile_poll_s": 0.1, "reconcile_interval_s": 0.2}})
    await node.agent.start("--standalone")
    await node.until_runtime_is_known()
    made = await node.run("p", by=node.direct, **SMALL)
    assert await placed(node, made) in ("0", "1")
    await node.direct.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=2 * CPU_PERIOD_US, cpu_shares=1536)
    await node.until_known(made, cpu_limit_milli=2000, cpu_request_milli=1500)
    assert await placed(node, made) == EVERYWHERE
    assert node.runtime.quota_of(made.id) == 2 * CPU_PERIOD_US


async def test_who_talks_comes_together(
    stopped_node: Node, traffic_pods: Pods, make_observer: Callable[..., Observer]
) -> None:
    node, pods = stopped_node, traffic_pods
    observer = make_observer(half_life_s=20.0, least_share=0.01, message_lines=30)
    await observer.start()
    affinity = {
        "socket": str(observer.socket),
        "rebalance": "manual",
        "cooldown": "1ms",
    }
    constants = {"affinity_minimum_age_s": 0.001, "affinity_least_gain": 0}
    node.agent.write_config({"affinity": affinity, "constants": constants})
    node.pretend(ONE_NODE)
    await node.agent.start("--standalone")
    await node.until_runtime_is_known()

    async def arrived(talker: Talker) -> str:
        return await placed(node, Running(talker.pod, talker.id))

    config = {"cpu_request": 200, "cpu_limit": 1000}
    servers = [await pods.serve(f"s{i}", "tcp", str(PORT), 100, 10_000, **config) for i in (0, 1)]
    first, second = [await arrived(server) for server in servers]
    assert {first, second} == {"0", "1"}
    client = await pods.run("client", **config)
    # By load alone it goes to L3 0; it is to talk to the server in the other.
    mine = await arrived(client)
    server = servers[0] if mine == second else servers[1]
    async with talking([(client, server)]):
        await until_daemon_sees(node, [(client, server)])
        code, out, err = await node.agent.cli("rebalance")
        assert code == 0, (out, err)
        assert await place(node, client) == await place(node, server), out
