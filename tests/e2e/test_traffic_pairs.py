"""nginx and wrk, more pairs, and a hub that everybody calls: the graph has the pairs, and the hub glues nothing."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import pytest

from tests.e2e.observer import Observer, edges_among
from tests.e2e.traffic import Exchanged, Pods, Talker

pytestmark = pytest.mark.containerd

CLOSE = ("-H", "Connection: close")


async def wrk(client: Talker, server: Talker, *options: str, seconds: int = 2) -> None:
    await client.exec("wrk", "-t1", "-c4", f"-d{seconds}s", *options, f"http://{server.address}:80/")


async def nginx_pair(pods: Pods, name: str = "web") -> tuple[Talker, Talker]:
    """wrk's container, not yet busy, and nginx's."""
    return await pods.run(f"{name}-wrk"), await pods.run(f"{name}-nginx", "nginx")


@pytest.mark.parametrize(
    "options", [pytest.param((), id="keep-alive"), pytest.param(CLOSE, id="close", marks=pytest.mark.long)]
)
async def test_the_bytes_of_wrk_and_nginx(
    traffic_pods: Pods, observer: Observer, options: tuple[str, ...]
) -> None:
    client, server = await nginx_pair(traffic_pods)
    await observer.start()
    await wrk(client, server, *options, seconds=3)
    # nginx counts what it has read and written itself, so this is not what was seen.
    await observer.until_sampled()
    told = await server.counted_by_nginx()
    assert told.messages > 1000
    await observer.until_bytes(client.id, server.id, (told.sent, told.received))


async def test_four_pairs_and_a_hub(traffic_pods: Pods, make_observer: Callable[..., Observer]) -> None:
    # 1. Two pairs of nginx and wrk, two of other programs, one server that all eight ask now and then.
    observer = make_observer(least_share=0.01, message_lines=30)
    pairs = [await nginx_pair(traffic_pods, name) for name in ("first", "second")]
    for name in ("third", "fourth"):
        server = await traffic_pods.serve(f"{name}-server", "tcp", "80", 200, 20_000)
        pairs.append((await traffic_pods.run(f"{name}-client"), server))
    hub = await traffic_pods.serve("hub", "tcp", "53", 50, 100)
    await observer.start()
    # 2. All at the same time.
    busy = [wrk(*pair, *CLOSE) for pair in pairs[:2]]
    told: list[Exchanged] = []

    async def exchange(client: Talker, server: Talker) -> None:
        told.append(await client.call("tcp", f"{server.address}:80", 200, 20_000, count=4000, last_ms=150))

    asks = [
        one.call("tcp", f"{hub.address}:53", 50, 100, count=20, pause_ms=50) for pair in pairs for one in pair
    ]
    await asyncio.gather(*busy, *(exchange(*pair) for pair in pairs[2:]), *asks)
    # 3. The graph has four edges and no others.
    graph = await observer.until_sampled()
    names = {one.id: one.pod.name for pair in pairs for one in pair} | {hub.id: "hub"}
    assert set(edges_among(graph, names)) == {frozenset(names[one.id] for one in pair) for pair in pairs}
    for pair, exchanged in zip(pairs[2:], told):
        await observer.until_bytes(pair[0].id, pair[1].id, (exchanged.sent, exchanged.received))
    # 4. They have their names.
    endpoints: dict[str, Any] = {endpoint.id: endpoint for endpoint in graph.endpoints}
    first = endpoints[pairs[0][0].id]
    assert (first.namespace, first.pod, first.container) == ("default", "first-wrk", "main")
