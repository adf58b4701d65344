"""containerd before 2.0 has one queue of events: who reads takes. We take what a client reads through us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, EventStream
from tests.e2e.node import CPUS, Node, Running, until
from tests.e2e.runtime import RealRuntime
from tests.e2e.runtimes import make
from tests.peers.programs import Unavailable

pytestmark = pytest.mark.containerd

#: What each pod and each container is good for.
ALL = [f"CONTAINER_{what}_EVENT" for what in ("CREATED", "STARTED", "STOPPED", "DELETED")]
DELETED = ALL[-1]

how = pytest.mark.parametrize("through", [True, False], ids=["through us", "past us"])


@pytest.fixture
def runtime(images: Path, tmp_path: Path) -> Iterator[RealRuntime]:
    """One for each test: a reader that leaves takes one more event with it, also past us (seen)."""
    try:
        made = make("containerd-1.7", tmp_path / "c", images=images, cpus=CPUS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made as running:
        yield running


@how
async def test_a_client_sees_every_event(node: Node, through: bool) -> None:
    client = node.kubelet if through else node.direct
    stream = client.events()
    pod = await life_of_a_pod(node, client)
    assert await read_until_deleted(stream, pod) == {"pod": ALL, "container": ALL}


@how
async def test_nothing_is_read_before_a_client_reads(stopped_node: Node, through: bool) -> None:
    """The runtime keeps events until somebody asks for them."""
    node = stopped_node
    # As often as it can, the daemon looks for exits.
    node.agent.write_config({"constants": {"reconcile_poll_s": 0.05, "reconcile_interval_s": 0.2}})
    await node.agent.start()
    await node.until_runtime_is_known()
    pod = await life_of_a_pod(node, node.kubelet)
    # It looks once a second whether it may read them itself.
    status = await until(lambda: node.ask("status"), lambda status: status["uptime_s"] > 2.5)
    assert status["exits"] == "polling"
    stream = (node.kubelet if through else node.direct).events()
    assert await read_until_deleted(stream, pod) == {"pod": ALL, "container": ALL}


async def test_an_exit_is_noticed_by_reading_along(node: Node) -> None:
    """Polling is off: nothing else can tell."""
    stream = node.kubelet.events()
    made = await node.run("p", cpu_limit=1000, command=("sh", "-c", "exit 3"))
    async for event in stream:
        if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
            break
    await node.until_known(made, state="held")
    assert (await node.ask("status"))["exits"] == "a client's event stream"


async def life_of_a_pod(node: Node, client: CriClient) -> Running:
    made = await node.run("p", cpu_limit=1000, by=client)
    await client.stop(made.id)
    await client.remove(made.id)
    await client.stop_pod(made.pod.id)
    await client.remove_pod(made.pod.id)
    return made


async def read_until_deleted(stream: EventStream, made: Running) -> dict[str, list[str]]:
    """The types of the events of a pod and its container, until both are gone."""
    names = {made.pod.id: "pod", made.id: "container"}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    while not all(DELETED in events for events in found.values()):
        event = await stream.next()
        if event.container_id in names:
            found[names[event.container_id]].append(cri.ContainerEventType.Name(event.container_event_type))
    stream.cancel()
    return found
