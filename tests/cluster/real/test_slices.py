"""ResourceSlices on a real kube-apiserver: it takes them as they are, from a node's own credentials, and stores few."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.io.publisher import Publisher
from cluster.dra.slices import contents_of
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from tests.cluster.dra.devices import devices, with_cpus
from tests.cluster.real.control_plane import ControlPlane
from tests.e2e.node import until

pytestmark = pytest.mark.cluster

PATH = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "cpu.cri-resmgr.io"
#: So many roots a NUMA node has on a large server.
ROOTS = [f"pci0000:{number:02x}" for number in range(0, 0x80, 0x20)]


class Published:
    """A publisher with kubelet's credentials of a node that is there."""

    def __init__(self, server: ControlPlane, node: str, client: Client) -> None:
        self.server, self.node = server, node
        self.publisher = Publisher(client, node, DRIVER, Clock())

    async def written(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """What there is when it is as the document says."""
        self.publisher.want(document)
        await settled(self.publisher)
        return await asyncio.to_thread(self.slices)

    def slices(self) -> list[dict[str, Any]]:
        found = self.server.ask("GET", f"{PATH}?fieldSelector=spec.nodeName={self.node}")["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))


async def settled(publisher: Publisher) -> None:
    async def is_settled() -> bool:
        return publisher.is_settled

    await until(is_settled)


async def end(task: asyncio.Future[None], client: Client) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await client.close()


@contextlib.asynccontextmanager
async def publishing(server: ControlPlane, folder: Path) -> AsyncIterator[Published]:
    """On a node that is there meanwhile."""
    name, path = f"slices-{os.getpid()}", "/api/v1/nodes"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await asyncio.to_thread(server.ask, "POST", path, body)
    pair = server.certificate(f"system:node:{name}", "system:nodes")
    access = Access.kubeconfig(server.kubeconfig(folder / "kubeconfig", certificate=pair))
    client = Client(access, user_agent="test")
    made = Published(server, name, client)
    task = asyncio.ensure_future(made.publisher.run())
    try:
        yield made
    finally:
        await end(task, client)
        for each in made.slices():
            server.ask("DELETE", f"{PATH}/{each['metadata']['name']}")
        server.ask("DELETE", f"{path}/{name}")


@pytest.fixture
async def node(api_server: ControlPlane, tmp_path: Path) -> AsyncIterator[Published]:
    async with publishing(api_server, tmp_path) as made:
        yield made


@contextlib.contextmanager
def server_with(programs: dict[str, Path], gates: str) -> Iterator[ControlPlane]:
    """A server of its own, with these feature gates."""
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    with ControlPlane(folder, programs["etcd"], programs["kube-apiserver"], gates=gates) as running:
        yield running


def stored_bytes(server: ControlPlane, name: str) -> int:
    """What etcd keeps of an object: protobuf."""
    accept = {"Accept": "application/vnd.kubernetes.protobuf"}
    with server._open("GET", f"{PATH}/{name}", None, accept) as answer:
        return len(answer.read())


@pytest.mark.parametrize(
    "document",
    [
        devices(8, 8),
        devices(32, 8),
        devices(64, 2),
        devices(21, 21, driver=DRIVER, isolation="protected", smt=True),
        with_cpus(devices(4), l3_0=1, l3_1=0, l3_2=2),
        devices(8, 8, pcieRoot=["pci0000:00"]),
        {**devices(4), "devices": []},
    ],
    ids=["8 L3s", "32 L3s", "64 L3s", "a NUMA node an L3", "few CPUs left", "one root", "nothing left"],
)
async def test_the_server_stores_what_is_sent(node: Published, document: dict[str, Any]) -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in await node.written(document)}
    wanted = contents_of(document, node.node)
    assert found.keys() == wanted.keys()
    for name, content in wanted.items():
        for device in content.get("devices", ()):
            del device["nodeAllocatableResourceMappings"]  # its gate is off
        given = {key: value for key, value in content.items() if value}
        assert {key: found[name][key] for key in found[name] if key in content} == given
    assert node.publisher.writes == len(wanted)


async def test_attributes_that_are_lists_are_left_out_where_their_gate_is_off(node: Published) -> None:
    found = await node.written(devices(2, pcieRoot=ROOTS))
    names = {name for each in found for row in each["spec"].get("devices", ()) for name in row["attributes"]}
    assert "l3" in names
    assert "resource.kubernetes.io/pcieRoot" not in names


async def test_a_change_is_one_write_and_the_same_is_none(node: Published) -> None:
    before = await node.written(devices(8, 8))
    writes = node.publisher.writes
    assert await node.written(devices(8, 8)) == before
    assert node.publisher.writes == writes
    after = await node.written(with_cpus(devices(8, 8), l3_3=5))
    assert node.publisher.writes == writes + 1
    assert sum(old != new for old, new in zip(before, after)) == 1
    assert {each["spec"]["pool"]["generation"] for each in after} == {1}


async def test_the_next_process_changes_nothing(
    node: Published, api_server: ControlPlane, tmp_path: Path
) -> None:
    before = await node.written(devices(32, 8))
    pair = api_server.certificate(f"system:node:{node.node}", "system:nodes")
    access = Access.kubeconfig(api_server.kubeconfig(tmp_path / "other", certificate=pair))
    client = Client(access, user_agent="test")
    other = Publisher(client, node.node, DRIVER, Clock())
    other.want(devices(32, 8))
    task = asyncio.ensure_future(other.run())
    await settled(other)
    await end(task, client)
    assert other.writes == 0
    assert [each["metadata"]["resourceVersion"] for each in await asyncio.to_thread(node.slices)] == [
        each["metadata"]["resourceVersion"] for each in before
    ]


async def test_slices_that_kubelet_deletes_come_back(node: Published, api_server: ControlPlane) -> None:
    first = await node.written(devices(8, 8))
    path = f"{PATH}?fieldSelector=spec.nodeName={node.node}"
    await asyncio.to_thread(api_server.ask, "DELETE", path)

    def are_new() -> bool:
        found = node.slices()
        return len(found) == 2 and not {each["metadata"]["uid"] for each in found} & {
            each["metadata"]["uid"] for each in first
        }

    while not await asyncio.to_thread(are_new):
        await asyncio.sleep(0.1)
    assert await node.written({}) == []


async def test_with_its_gates_on_a_server_takes_lists_and_what_is_taken_off_the_nodes_cpus(
    cluster_programs: dict[str, Path], tmp_path: Path
) -> None:
    gates = "DRAListTypeAttributes=true,DRANodeAllocatableResources=true"
    document = devices(8, 8, pcieRoot=ROOTS)
    with server_with(cluster_programs, gates) as server:
        async with publishing(server, tmp_path) as node:
            found = {each["metadata"]["name"]: each["spec"] for each in await node.written(document)}
            assert node.publisher.writes == 2
    for name, content in contents_of(document, node.node).items():
        assert {key: found[name][key] for key in content} == content


@pytest.mark.parametrize("gate", ["DRAConsumableCapacity", "DRAPartitionableDevices"])
async def test_a_server_that_would_allocate_cpus_twice_keeps_no_slice(
    cluster_programs: dict[str, Path], tmp_path: Path, gate: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with server_with(cluster_programs, f"{gate}=false") as server:
        async with publishing(server, tmp_path) as node:
            node.publisher.want(devices(2))

            async def is_over() -> bool:
                return node.publisher.writes > 1 and not await asyncio.to_thread(node.slices)

            await until(is_over)
            assert not node.publisher.is_settled
    assert f"feature gate {gate} is off" in capfd.readouterr().err


@pytest.mark.parametrize(("l3s", "most_json", "most_stored"), [(8, 14_000, 8_000), (32, 50_000, 30_000)])
async def test_a_nodes_slices_are_small(
    node: Published, api_server: ControlPlane, l3s: int, most_json: int, most_stored: int
) -> None:
    """Times 5,000 nodes: see docs/dra.md."""
    found = await node.written(devices(l3s, 8))
    sizes = [len(json.dumps(each, separators=(",", ":"))) for each in found]
    names = [each["metadata"]["name"] for each in found]
    stored = [await asyncio.to_thread(stored_bytes, api_server, name) for name in names]
    print(f"{l3s} L3s: JSON {sum(sizes)}, protobuf {sum(stored)}")
    assert sum(sizes) <= most_json
    assert sum(stored) <= most_stored
