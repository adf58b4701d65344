"""Containers that ran before the daemon's first start: known as they are, and not moved."""

from __future__ import annotations

from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CPU_PERIOD_US
from tests.e2e.node import GIB, Node, until

pytestmark = pytest.mark.containerd

KINDS: dict[str, dict[str, Any]] = {
    "besteffort": {"qos": "besteffort"},
    "burstable": {"cpu_request": 250, "cpu_limit": 1500},
    "fenced": {"cpu_request": 100, "cpuset": "1", "mems": "0"},
    "guaranteed": {"qos": "guaranteed", "cpu_limit": 2000, "memory_limit": GIB // 8},
}


async def test_they_are_known_as_they_are(stopped_node: Node) -> None:
    node = stopped_node
    made = {name: await node.run(name, by=node.direct, **kind) for name, kind in KINDS.items()}
    places = {name: await node.place(container) for name, container in made.items()}
    await node.agent.start()
    await node.until_runtime_is_known()
    found = {name: dict(await node.row(container)) for name, container in made.items()}
    shown = ("qos", "cpu_request_milli", "cpu_limit_milli")
    assert {name: tuple(row[key] for key in shown) for name, row in found.items()} == {
        "besteffort": ("besteffort", 0, None),
        "burstable": ("burstable", 250, 1500),
        "fenced": ("burstable", 100, None),
        "guaranteed": ("guaranteed", 2000, 2000),
    }
    assert {(row["stance"], row["state"], row["container"]) for row in found.values()} == {
        ("adopted", "running", "main")
    }
    assert {name: row["cpus"] for name, row in found.items()} == {
        name: place[0] for name, place in places.items()
    }
    assert {name: await node.place(container) for name, container in made.items()} == places
    assert (await node.ask("status"))["counters"].get("cri_resmgr_updates_total{result=sent}", 0) == 0


async def test_new_ones_are_placed_around_them(stopped_node: Node) -> None:
    node = stopped_node
    await node.run("busy", by=node.direct, cpu_request=500, cpuset="0", mems="0")
    await node.agent.start()
    await node.until_runtime_is_known()
    assert await node.cpus(await node.run("p", cpu_request=100, cpu_limit=1000)) == "1"


async def test_their_next_attempt_is_placed(stopped_node: Node) -> None:
    node = stopped_node
    first = await node.run("p", by=node.direct, cpu_request=100, cpu_limit=1000)
    await node.agent.start()
    await node.until_runtime_is_known()
    await node.kubelet.stop(first.id)
    second = await node.run(first.pod, attempt=1, cpu_request=100, cpu_limit=1000)
    assert await node.cpus(second) == "0"


@pytest.mark.parametrize("past_us", [False, True])
async def test_one_that_is_resized_is_placed_by_its_new_resources(stopped_node: Node, past_us: bool) -> None:
    node = stopped_node
    node.agent.write_config({"constants": {"reconcile_poll_s": 0.1, "reconcile_interval_s": 0.2}})
    made = await node.run("p", by=node.direct, cpu_request=100, cpu_limit=2000)
    await node.agent.start()
    await node.until_runtime_is_known()
    by = node.direct if past_us else node.kubelet
    await by.update(made.id, cpu_period=CPU_PERIOD_US, cpu_quota=CPU_PERIOD_US, cpu_shares=512)
    row = await node.until_known(made, stance="placed", cpu_limit_milli=1000, cpu_request_milli=500)
    assert await until(lambda: node.cpus(made), lambda cpus: cpus == row["cpus"]) in ("0", "1")
    assert node.runtime.quota_of(made.id) == CPU_PERIOD_US


async def test_what_ended_or_was_not_started_is_no_trouble(stopped_node: Node) -> None:
    node = stopped_node
    ended = await node.run("ended", by=node.direct, cpu_limit=1000)
    await node.direct.stop(ended.id)
    pod = await node.pod("created", by=node.direct)
    created = await node.direct.create(pod, "main", cpu_request=100, cpu_limit=1000)
    await node.agent.start()
    await node.until_runtime_is_known()
    assert await node.row(ended) == {}
    assert (await node.row(created))["state"] == "created"
    await node.kubelet.start(created)
    await node.until_known(created, state="running", stance="adopted")


async def test_what_was_not_started_in_a_pod_that_has_ended_is_not_adopted(stopped_node: Node) -> None:
    node = stopped_node
    pod = await node.pod("p", by=node.direct)
    created = await node.direct.create(pod, "main", cpu_request=100)
    await node.direct.stop_pod(pod.id)
    await node.agent.start()
    await node.until_runtime_is_known()
    # It is still listed, as if it could be started.
    # CRI-O shows it as one that has exited.
    [found] = await node.direct.list_containers()
    assert found.state in (cri.CONTAINER_CREATED, cri.CONTAINER_EXITED)
    assert await node.row(created) == {}
