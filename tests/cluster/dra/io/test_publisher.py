"""The slices of a node at an API server: what is written, how often, and what brings them back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.io.publisher import GATES_S, NODES, Publisher
from cluster.dra.slices import SLICES
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from tests.cluster.api_server import ApiServer, Call, Fault
from tests.cluster.dra.devices import devices, with_cpus

NODE, DRIVER = "node-1", "cpu.cri-resmgr.io"
COUNTERS, DEVICES = f"{NODE}-{DRIVER}-counters-0", f"{NODE}-{DRIVER}-devices-0"


class Time:
    """Waiting takes no time, and is remembered."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        self.clock = Clock(monotonic=lambda: self.now_s, sleep=self._sleep, random01=lambda: 0.0)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


class Published:
    """A publisher at work on an API server with its Node."""

    def __init__(self, api: ApiServer, client: Client) -> None:
        self.api, self.time = api, Time()
        self.publisher = Publisher(client, NODE, DRIVER, self.time.clock)
        self.api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    async def until(self, *names: str) -> list[dict[str, Any]]:
        """Wait until the driver's slices are these, and the publisher has seen it; they."""
        await self.api.until(lambda: {each["metadata"]["name"] for each in self.slices} == set(names))
        while not self.publisher.is_settled:
            await asyncio.sleep(0)
        return self.slices

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.api.objects(SLICES)

    @property
    def writes(self) -> list[str]:
        return [call.method for call in self.api.calls if is_write(call)]


def is_write(call: Call) -> bool:
    return "resourceslices" in call.path and call.method != "GET"


async def ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    made = Client(Access.kubeconfig(api.kubeconfig(tmp_path / "kubeconfig")), user_agent="test")
    yield made
    await made.close()


@pytest.fixture
async def node(api: ApiServer, client: Client) -> AsyncIterator[Published]:
    made = Published(api, client)
    task = asyncio.ensure_future(made.publisher.run())
    yield made
    await ended(task)


async def test_slices_appear_and_belong_to_the_node(node: Published) -> None:
    node.publisher.want(devices())
    counters, rows = await node.until(COUNTERS, DEVICES)
    assert counters["spec"]["sharedCounters"][0]["counters"].keys() == {"l3-0", "l3-1"}
    assert len(rows["spec"]["devices"]) == 5
    [owner] = rows["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", NODE)
    assert owner["uid"] == (node.api.object(NODES, NODE) or {})["metadata"]["uid"]


async def test_the_same_again_is_no_request(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    before = len(node.api.calls)
    node.publisher.want(devices())
    assert node.publisher.is_settled
    assert len(node.api.calls) == before
    assert node.writes == ["POST", "POST"]


async def test_changes_that_come_fast_are_written_a_second_apart(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    began_s, before = node.time.now_s, len(node.writes)
    for cpus in range(2, 8):
        node.publisher.want(with_cpus(devices(), l3_0=cpus))
        await node.until(COUNTERS, DEVICES)
    assert set(node.writes[before:]) == {"PUT"}
    assert node.time.now_s - began_s >= len(node.writes[before:])


async def test_what_changes_while_a_write_waits_is_written_once(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    before = len(node.writes)
    for cpus in range(2, 8):
        node.publisher.want(with_cpus(devices(), l3_0=cpus))
    [_, rows] = await node.until(COUNTERS, DEVICES)
    assert rows["spec"]["devices"][0]["capacity"]["cpu"]["value"] == "7"
    assert node.writes[before:] == ["PUT"]


async def test_slices_that_something_deletes_come_back(node: Published) -> None:
    """As kubelet deletes all slices of its node when it starts."""
    node.publisher.want(devices())
    for slice_ in await node.until(COUNTERS, DEVICES):
        node.api.remove(SLICES, slice_["metadata"]["name"])
    await node.api.called(is_write, 4)
    await node.until(COUNTERS, DEVICES)


async def test_a_slice_that_something_changes_is_put_right(node: Published) -> None:
    node.publisher.want(devices())
    [_, rows] = await node.until(COUNTERS, DEVICES)
    node.api.put(SLICES, {**rows, "spec": {**rows["spec"], "devices": []}})
    await node.api.called(is_write, 3)
    [_, rows] = await node.until(COUNTERS, DEVICES)
    assert len(rows["spec"]["devices"]) == 5


async def test_a_node_that_was_made_anew_owns_what_is_made_for_it(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    node.api.remove(NODES, NODE)
    new = node.api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    for name in (COUNTERS, DEVICES):  # as the garbage collector does
        node.api.remove(SLICES, name)
    await node.api.called(is_write, 4)
    for slice_ in await node.until(COUNTERS, DEVICES):
        assert slice_["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]


async def test_switched_off_none_is_left(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    node.publisher.want({"enabled": False})
    assert await node.until() == []


async def test_slices_of_other_drivers_and_nodes_are_left_alone(node: Published) -> None:
    for name, driver, of in (("a", "gpu.example.com", NODE), ("b", DRIVER, "node-2")):
        spec = {"driver": driver, "nodeName": of, "pool": {"name": of, "generation": 1}}
        node.api.put(SLICES, {"metadata": {"name": name}, "spec": spec})
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES, "a", "b")
    node.publisher.want({})
    await node.until("a", "b")


async def test_the_next_process_takes_over_what_is_there(node: Published, client: Client) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    before = len(node.writes)
    other = Publisher(client, NODE, DRIVER, Time().clock)
    other.want(devices())
    task = asyncio.ensure_future(other.run())
    await node.api.until(lambda: other.is_settled)
    await ended(task)
    assert len(node.writes) == before


@pytest.mark.parametrize("kind", ["reset", "lost", "refuse", "text"])
async def test_a_write_that_fails_is_tried_again(node: Published, kind: str) -> None:
    node.api.faults.append(Fault(kind, times=3, path="resourceslices", is_watch=False))
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    assert len(node.time.slept) >= 3


async def test_an_api_server_that_was_away_is_written_to_when_it_is_back(node: Published) -> None:
    node.publisher.want(devices())
    await node.until(COUNTERS, DEVICES)
    await node.api.stop()
    node.publisher.want(with_cpus(devices(), l3_0=3))
    while len(node.time.slept) < 5:
        await asyncio.sleep(0)
    await node.api.start()
    await node.api.until(lambda: node.slices[1]["spec"]["devices"][0]["capacity"]["cpu"]["value"] == "3")


async def test_a_server_without_lists_gets_slices_without_them(node: Published) -> None:
    node.api.put(SLICES, {"metadata": {"name": COUNTERS}, "spec": {"driver": DRIVER, "nodeName": NODE}})
    node.api.faults.append(Fault("refuse", status=422, method="POST", path="resourceslices"))
    node.publisher.want(devices(pcieRoot=["pci0000:00", "pci0000:40"]))
    [_, rows] = await node.until(COUNTERS, DEVICES)
    name = "resource.kubernetes.io/pcieRoot"
    assert all(name not in device["attributes"] for device in rows["spec"]["devices"])
    assert node.writes == ["PUT", "POST", "POST"]


class WithoutGates(ApiServer):
    """A server that drops what shared devices need, while a gate of it is off."""

    gates_are_off = True

    def _create(self, call: Call, where: Any) -> dict[str, Any]:
        for device in call.body["spec"].get("devices", ()) if self.gates_are_off else ():
            device.pop("allowMultipleAllocations", None)
        return super()._create(call, where)


async def test_where_cpus_would_be_allocated_twice_nothing_is_published(tmp_path: Path) -> None:
    async with WithoutGates() as api:
        client = Client(Access.kubeconfig(api.kubeconfig(tmp_path / "kubeconfig")), user_agent="test")
        node = Published(api, client)
        node.publisher.want(devices())
        task = asyncio.ensure_future(node.publisher.run())
        await api.called(lambda call: call.method == "DELETE", 4)  # it is tried again, rarely
        assert not node.publisher.is_settled
        assert node.time.now_s >= GATES_S
        api.gates_are_off = False
        await node.until(COUNTERS, DEVICES)
        await ended(task)
        await client.close()


async def test_where_the_node_may_not_be_read_slices_have_no_owner(node: Published) -> None:
    node.api.refuse = lambda call: "no" if "/nodes/" in call.path else ""
    node.publisher.want(devices())
    for slice_ in await node.until(COUNTERS, DEVICES):
        assert "ownerReferences" not in slice_["metadata"]
