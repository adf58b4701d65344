"""Pods of several sizes that kubelet starts: where they run, and where they are after a resize."""

from __future__ import annotations

import pytest

from policies.machine.cpus import parse_cpus
from tests.cri_client import CPU_PERIOD_US, CriClient
from tests.e2e.node import until
from tests.kubelet.real.node import KubeletNode

pytestmark = pytest.mark.kubelet

#: Pod by name: what it asks for; its rung and how many CPUs that has.
SIZES = {
    "small": ({"cpu": "500m", "limit": "4"}, "ccx", 8),
    "numa": ({"cpu": "2", "limit": "12"}, "numa", 16),
    "socket": ({"cpu": "4", "limit": "40"}, "socket", 64),
    "whole": ({"cpu": "4", "limit": "100"}, "machine", 128),
    "guaranteed": ({"limit": "6"}, "ccx", 8),
    "unlimited": ({"cpu": "1"}, "numa", 16),
}


async def test_each_size_has_its_rung(node: KubeletNode) -> None:
    found = {}
    for name, (pod, _, _) in SIZES.items():
        container = await node.run(name, **pod)
        cpus = parse_cpus(await node.cpus(container))
        found[name] = ((await node.row(container))["level"], len(cpus))
    assert found == {name: (level, count) for name, (_, level, count) in SIZES.items()}
    await node.all_is_well()


async def test_equal_pods_spread_over_empty_l3s(node: KubeletNode) -> None:
    places = [await node.cpus(await node.run(f"p{i}", cpu="2", limit="8")) for i in range(4)]
    assert len(set(places)) == 4


async def test_exclusive_cpus_are_one_pods_own(stopped_node: KubeletNode) -> None:
    node = stopped_node
    node.agent.write_config({"policy": {"Active": "topology-aware"}})
    await node.agent.start()
    await node.start_kubelet()
    shared = await node.run("shared", cpu="500m", limit="100")
    db, cache = await node.run("db", limit="4"), await node.run("cache", limit="2")
    own = [parse_cpus((await node.row(container))["exclusive"]) for container in (db, cache)]
    assert [len(cpus) for cpus in own] == [4, 2]
    assert not own[0] & own[1]
    assert [parse_cpus(await node.cpus(container)) for container in (db, cache)] == own
    assert not parse_cpus(await node.cpus(shared)) & (own[0] | own[1])
    await node.remove("db")

    async def shared_cpus() -> frozenset[int]:
        return parse_cpus(node.told(shared))

    await until(shared_cpus, lambda cpus: cpus >= own[0])
    await node.all_is_well()


async def test_a_resize_on_our_socket_moves_it_and_kubelet_leaves_it(node: KubeletNode) -> None:
    web = await node.run("web", cpu="1", limit="12")
    assert len(parse_cpus(await node.cpus(web))) == 16
    async with CriClient(node.agent.socket) as caller:
        quota = 4 * CPU_PERIOD_US
        await caller.update(web, cpu_quota=quota, cpu_period=CPU_PERIOD_US, cpu_shares=512)
    assert len(parse_cpus(await node.cpus(web))) == 8
    assert node.runtime.quota_of(web) == quota
    await node.until_compared()
    assert await node.running("web", attempt=0) == web
