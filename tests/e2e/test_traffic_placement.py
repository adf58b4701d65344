"""Who talks comes together: real pods, the real observer, our daemon; seen in the cgroups.

The machine it pretends to be has two L3s of one CPU. Pods are made so that each pair is apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Callable

import pytest

from policies.machine.topology import TopologyData
from tests.e2e.node import ONE_NODE, TWO_NODES, Node, Running, until
from tests.e2e.observer import Observer
from tests.e2e.traffic import Pods, Talker

pytestmark = pytest.mark.containerd

PORT = 8080
SMALL: dict[str, Any] = {"cpu_request": 200, "cpu_limit": 1000}
Pair = tuple[Talker, Talker]


@pytest.fixture
async def live_observer(make_observer: Callable[..., Observer]) -> Observer:
    """An observer that remembers for as long as such a test takes, and is believed at once."""
    observer = make_observer(half_life_s=20.0, least_share=0.01, message_lines=30)
    await observer.start()
    return observer


@pytest.fixture
def affine_node(stopped_node: Node, traffic_pods: Pods, live_observer: Observer) -> Node:
    """A node whose daemon follows that observer, and is not started yet."""
    affinity = {
        "socket": str(live_observer.socket),
        "rebalance": "manual",
        "cooldown": "1ms",
    }
    constants = {"affinity_minimum_age_s": 0.001, "affinity_least_gain": 0}
    stopped_node.agent.write_config({"affinity": affinity, "constants": constants})
    return stopped_node


async def start(node: Node, machine: TopologyData = ONE_NODE) -> Pods:
    """Start the daemon; pods are made through it."""
    node.pretend(machine)
    await node.agent.start()
    await node.until_runtime_is_known()
    return Pods(node.runtime, node.kubelet)


async def two_pairs_apart(node: Node, pods: Pods) -> list[Pair]:
    """A server in each L3, then clients, so that each is where its server is not."""
    servers = [await pods.serve(f"s{i}", "tcp", str(PORT), 100, 10_000, **SMALL) for i in (0, 1)]
    clients = [await pods.run(f"c{i}", **SMALL) for i in (1, 0)]
    places = [await place(node, one) for one in (*servers, *clients)]
    assert places == ["0", "1", "0", "1"]
    return [(clients[1], servers[0]), (clients[0], servers[1])]


async def place(node: Node, talker: Talker) -> str:
    return await node.cpus(Running(talker.pod, talker.id))


@asynccontextmanager
async def talking(pairs: list[Pair]) -> AsyncIterator[None]:
    """They talk all the time."""
    options: dict[str, Any] = {"count": 1_000_000, "per_connection": 500, "pause_ms": 1}
    calls = [
        asyncio.ensure_future(
            client.client.exec(
                client.id, "talk", "call", "tcp", f"{server.address}:{PORT}", "100", "10000",
                *(f"{name}={value}" for name, value in options.items()), timeout_s=300,
            )
        )
        for client, server in pairs
    ]  # fmt: skip
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def until_daemon_sees(node: Node, pairs: list[Pair]) -> None:
    """Once its picture has an edge for each pair, and none between pairs (others may test on this machine)."""
    wanted = {frozenset((client.id, server.id)) for client, server in pairs}
    ours = frozenset().union(*wanted)

    async def seen() -> set[frozenset[str]]:
        told = await node.agent.ask("affinity")
        edges = {frozenset((edge["a"], edge["b"])) for edge in told["edges"]}
        return {edge for edge in edges if edge & ours}

    await until(seen, lambda edges: edges == wanted)


@pytest.mark.parametrize("machine", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
async def test_rebalance_puts_each_pair_in_one_l3(affine_node: Node, machine: TopologyData) -> None:
    node = affine_node
    pods = await start(node, machine)
    pairs = await two_pairs_apart(node, pods)
    async with talking(pairs):
        await until_daemon_sees(node, pairs)
        # 1. Looking changes nothing.
        code, out, err = await node.agent.cli("rebalance", "--dry-run")
        assert code == 0, err
        assert [await place(node, one) for one in pairs[0]] == ["1", "0"]
        # 2. Each pair has its L3, and the pairs are not in the same.
        code, out, err = await node.agent.cli("rebalance")
        assert code == 0, (out, err)
        places = [[await place(node, one) for one in pair] for pair in pairs]
        assert sorted(places) == [["0", "0"], ["1", "1"]], out
        # 3. There is nothing left to do.
        told = await node.agent.ask("rebalance", "--dry-run")
        assert told["moves"] == []
    assert (await node.ask("status"))["invariants"] == []


async def test_it_happens_by_itself(affine_node: Node) -> None:
    node = affine_node
    node.agent.write_config(
        {"affinity": {"rebalance": "auto"}, "constants": {"affinity_rebalance_interval_s": 0.2}}
    )
    pods = await start(node)
    pairs = await two_pairs_apart(node, pods)

    async def places() -> list[list[str]]:
        return sorted([[await place(node, one) for one in pair] for pair in pairs])

    async with talking(pairs):
        await until(places, lambda found: found == [["0", "0"], ["1", "1"]])


async def test_a_new_replica_starts_near_whom_the_others_talk_to(affine_node: Node) -> None:
    node = affine_node
    pods = await start(node)
    labels = {"pod-template-hash": "5d4f8c7b9"}
    server = await pods.serve("db-0", "tcp", str(PORT), 100, 10_000, **SMALL)
    other = await pods.run("other", **SMALL)
    client = await pods.run("web-5d4f8c7b9-aaaaa", labels=labels, **SMALL)
    assert [await place(node, one) for one in (server, other, client)] == ["0", "1", "0"]
    async with talking([(client, server)]):
        await until_daemon_sees(node, [(client, server)])
        # Names come from the runtime a moment later; then workloads are remembered.
        await until(lambda: node.agent.ask("affinity"), lambda told: "web" in str(told["owner_edges"]))
        # By load alone it would be the other L3.
        replica = await pods.run("web-5d4f8c7b9-bbbbb", labels=labels, **SMALL)
        assert await place(node, replica) == "0"
        told = await node.agent.cli("explain", replica.id)
        assert "db-0" in told[1], told


async def test_without_its_observer_the_daemon_goes_on_and_says_so(
    affine_node: Node, live_observer: Observer
) -> None:
    node = affine_node
    pods = await start(node)
    pairs = await two_pairs_apart(node, pods)
    async with talking(pairs):
        await until_daemon_sees(node, pairs)
    # 1. It dies: the picture stays, and is said to be old.
    await live_observer.kill()
    await until(lambda: node.agent.ask("affinity"), lambda told: told["frozen"] != "")
    await until_daemon_sees(node, pairs)
    before = [[await place(node, one) for one in pair] for pair in pairs]
    # 2. Pods start as ever.
    assert await place(node, await pods.run("next", **SMALL)) in ("0", "1")
    assert [[await place(node, one) for one in pair] for pair in pairs] == before
    # 3. It comes back.
    await live_observer.start()
    await until(lambda: node.agent.ask("affinity"), lambda told: told["frozen"] == "")
