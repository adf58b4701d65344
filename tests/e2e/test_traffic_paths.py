"""Every way packets take between two containers: the observer sees what talks to what, and how much.

The bytes are those that the programs say they have sent, within 1 % over TCP and 5 % over UDP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import until
from tests.e2e.observer import Observer, bytes_between, edge_between
from tests.e2e.runtime import RealRuntime
from tests.e2e.traffic import Nat, Pods, Talker, give_ipv6, missing_for_nat, nat

pytestmark = pytest.mark.containerd

PORT = 8080
REQUEST, RESPONSE = 100, 1000
#: name: (options of ``talk call``, and how many requests that makes)
SHAPES: dict[str, tuple[dict[str, int], int]] = {
    "one connection": ({"count": 3000, "last_ms": 150}, 3000),
    "connections of a second": ({"count": 200, "per_connection": 100, "pause_ms": 10}, 200),
    "a connection a request": ({"count": 1000, "per_connection": 1}, 1000),
}
#: Of the others tests/bpf/sources says the same, between namespaces without pods.
WAYS = [
    "service",
    "node port",
    *(pytest.param(way, marks=pytest.mark.long) for way in ("bridge", "loopback", "IPv6")),
]


@pytest.fixture
def rules(runtime: RealRuntime) -> Iterator[Nat]:
    if sentence := missing_for_nat():
        pytest.skip(sentence)
    with nat(runtime) as rules:
        yield rules


async def client_of(pods: Pods, server: Talker, way: str) -> Talker:
    """Who asks by this way: another container of the server's pod, one on the host's network, another pod."""
    if way == "loopback":
        return await pods.run("client", pod=server.pod, name="client")
    return await pods.run("client", host_network=way == "node port")


def address_of(rules: Nat, client: Talker, server: Talker, way: str, protocol: str) -> str:
    if way == "service":
        return rules.cluster_ip(client, server, protocol, PORT)
    if way == "node port":
        return rules.node_port(server, protocol, PORT)
    if way == "IPv6":
        return f"[{give_ipv6((client, server), 1)[1]}]:{PORT}"
    return f"127.0.0.1:{PORT}" if way == "loopback" else f"{server.address}:{PORT}"


@pytest.mark.parametrize("way", WAYS)
async def test_tcp(traffic_pods: Pods, observer: Observer, rules: Nat, way: str) -> None:
    server = await traffic_pods.serve("server", "tcp", str(PORT), REQUEST, RESPONSE)
    client = await client_of(traffic_pods, server, way)
    address = address_of(rules, client, server, way, "tcp")
    await observer.start()
    before = (0, 0)
    for options, requests in SHAPES.values():
        told = await client.call("tcp", address, REQUEST, RESPONSE, **options)
        assert (told.sent, told.received) == (requests * REQUEST, requests * RESPONSE)
        # Each shape within 1 % of its own: what is missing of one would be too many for the next.
        await observer.until_bytes(client.id, server.id, (told.sent, told.received), before=before)
        before = (before[0] + told.sent, before[1] + told.received)


@pytest.mark.parametrize("way", WAYS[:2])
async def test_a_connection_that_is_older_than_the_observer_and_never_ends(
    traffic_pods: Pods, observer: Observer, rules: Nat, way: str
) -> None:
    server = await traffic_pods.serve("server", "tcp", str(PORT), REQUEST, RESPONSE)
    client = await client_of(traffic_pods, server, way)
    address = address_of(rules, client, server, way, "tcp")
    # 1. Two thousand requests, then it waits; the observer starts only now.
    options: dict[str, Any] = {"count": 3000, "go": "/tmp/go", "go_after": 2000, "last_ms": 150}
    talk = asyncio.ensure_future(client.call("tcp", address, REQUEST, RESPONSE, **options))
    await until_waiting(client, "/tmp/go")
    await observer.start()
    assert bytes_between(await observer.graph(), client.id, server.id) == (0, 0)
    # 2. A thousand more on the same connection.
    await client.exec("touch", "/tmp/go")
    await talk
    await observer.until_bytes(client.id, server.id, (1000 * REQUEST, 1000 * RESPONSE))


async def test_a_connection_is_seen_while_it_lasts(traffic_pods: Pods, observer: Observer) -> None:
    server = await traffic_pods.serve("server", "tcp", str(PORT), REQUEST, RESPONSE)
    client = await traffic_pods.run("client")
    await observer.start()
    options: dict[str, Any] = {"count": 2001, "go": "/tmp/go", "go_after": 2000, "last_ms": 150}
    address = f"{server.address}:{PORT}"
    talk = asyncio.ensure_future(client.call("tcp", address, REQUEST, RESPONSE, **options))
    await until_waiting(client, "/tmp/go")
    await observer.until_bytes(client.id, server.id, (2000 * REQUEST, 2000 * RESPONSE))
    await client.exec("touch", "/tmp/go")
    await talk


@pytest.mark.parametrize("kind", ["udp", pytest.param("sendto", marks=pytest.mark.long)])
@pytest.mark.parametrize("way", WAYS)
async def test_udp(traffic_pods: Pods, observer: Observer, rules: Nat, way: str, kind: str) -> None:
    server = await traffic_pods.serve("server", "udp", str(PORT), REQUEST, RESPONSE)
    client = await client_of(traffic_pods, server, way)
    address = address_of(rules, client, server, way, "udp")
    await observer.start()
    told = await client.call(kind, address, REQUEST, RESPONSE, count=2000)
    await observer.until_bytes(client.id, server.id, (told.sent, told.received), 0.05)


@pytest.mark.parametrize("kind", ["unix", "ring"])
async def test_what_has_no_packets_is_seen_too(
    traffic_pods: Pods, make_observer: Any, tmp_path: Path, kind: str
) -> None:
    """A unix socket with its bytes, or memory that both have mapped by what wakes what, in a folder that two pods share."""
    observer: Observer = make_observer(message_lines=30)
    options: dict[str, Any] = {"shared": str(tmp_path)}
    server = await traffic_pods.serve("server", kind, "/shared/it", REQUEST, RESPONSE, **options)
    client = await traffic_pods.run("client", **options)
    stranger = await traffic_pods.run("stranger", **options)
    await observer.start()
    # For longer than from one look for such pairs to the next.
    talk = asyncio.ensure_future(client.call(kind, "/shared/it", REQUEST, RESPONSE, count=8000, pause_ms=1))
    graph = await until(observer.graph, lambda graph: edge_between(graph, client.id, server.id))
    edge = edge_between(graph, client.id, server.id)
    assert list(edge.kinds) == ["unix" if kind == "unix" else "shm"]
    assert edge.weight > 0
    less, more = sorted((edge.bytes_ab_per_s, edge.bytes_ba_per_s))
    assert less * RESPONSE == pytest.approx(more * REQUEST, rel=0.01) if kind == "unix" else more == 0
    assert (more > 0) == (kind == "unix")
    assert edge_between(graph, stranger.id, server.id) is None
    assert edge_between(graph, stranger.id, client.id) is None
    await talk


async def until_waiting(client: Talker, file: str) -> None:
    async def waits() -> int:
        return (await client.client.exec(client.id, "cat", f"{file}.waiting"))[2]

    await until(waits, lambda code: code == 0)
