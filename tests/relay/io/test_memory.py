"""Memory for all connections together is limited: one that keeps more than an equal share goes, and kubelet's stays."""

from __future__ import annotations

import contextlib
import gzip

import pytest

from cri_proxy.relay.http2.frames import END_STREAM, GOAWAY, HEADERS, Error
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.link import COUNT_BYTES
from tests.relay.http2.hand import BLOCK, CREATE, VERSION, data, headers
from tests.relay.io.frames import Raw, behind_relay, links_of, relaying, request, soon, until

MIB = 1 << 20
#: The beginning of a message of 600,000 bytes, and what of the rest is sent.
HEAD_OF_IT, MOST_OF_IT = (600_000).to_bytes(5, "big"), 400_000
ZIPPED = gzip.compress(bytes(MIB))


async def hold(client: Raw, stream: int) -> None:
    """A create that is not whole, whose bytes the relay must hold."""
    client.write(headers(stream), data(stream, HEAD_OF_IT + bytes(10_000)))
    for _ in range(MOST_OF_IT // 10_000 - 1):
        client.write(data(stream, bytes(10_000)))
    with contextlib.suppress(ConnectionError):
        await client.writer.drain()


async def call(client: Raw, stream: int) -> None:
    """A call that the runtime has answered to the end: from then on the connection is in use."""
    client.write(request(VERSION, stream))
    while (told := await client.frame(HEADERS)).stream != stream or not told.flags & END_STREAM:
        pass


async def test_a_flood_of_held_requests_closes_its_own_connections(folder, runtime, calls) -> None:
    losses: list[str] = []
    async with relaying(
        runtime.socket, f"{folder}/k.sock", calls, most_kept=MIB, on_loss=losses.append
    ) as relay:
        kubelet = await Raw.connect(relay)
        await call(kubelet, 1)
        kubelet.write(headers(3), data(3, HEAD_OF_IT))  # it keeps something, too
        flood = []
        for _ in range(6):
            flood.append(await Raw.connect(relay))
            await hold(flood[-1], 1)
        await until(lambda: len(losses) >= 4)
        await until(lambda: sum(link.kept_bytes for link in relay._links) <= MIB)
        assert "KiB were kept for it, more than an equal share of 1 MiB for " in losses[0]
        await call(kubelet, 5)
        for client in (kubelet, *flood):
            await client.close()
        await links_of(relay, 0)
        assert relay._keeping == set()


async def test_the_share_of_each_shrinks_as_others_come(folder, calls) -> None:
    losses: list[str] = []
    async with behind_relay(folder, calls, most_kept=MIB, on_loss=losses.append) as (runtime, relay):
        first = await Raw.connect(relay)
        await hold(first, 1)
        await until(lambda: sum(link.kept_bytes for link in relay._links) > MOST_OF_IT)
        assert losses == []
        others = [await Raw.connect(relay) for _ in range(3)]
        for other in others:
            other.write(headers(1), data(1, HEAD_OF_IT))
        told = await soon(first.frame(GOAWAY))  # at the next tick
        assert int.from_bytes(told.payload[4:8], "big") == Error.ENHANCE_YOUR_CALM
        assert len(losses) == 1
        for client in (first, *others):
            await client.close()


async def test_the_calls_of_a_connection_that_loses_are_told_to_have_ended(folder, calls) -> None:
    async with behind_relay(folder, calls, most_kept=MIB) as (runtime, relay):
        client = await Raw.connect(relay, request(CREATE, 1))
        await soon(calls.until("request"))
        for stream in (3, 5, 7):
            await hold(client, stream)
        await soon(calls.until("ended"))
        assert calls.notes[-1][:2] == ("ended", CallEnd.UNKNOWN)
        await links_of(relay, 0)
        await client.close()


FEW_BYTES = {
    "calls without requests": b"".join(headers(stream) for stream in range(1, 201, 2)),
    "a request that is long once it is read": headers(1, BLOCK + b"\0\x0dgrpc-encoding\x04gzip")
    + data(1, b"\1" + len(ZIPPED).to_bytes(4, "big") + ZIPPED, end=True),
}


@pytest.mark.parametrize("said", FEW_BYTES.values(), ids=FEW_BYTES)
async def test_what_few_bytes_cost_is_counted_with_them(folder, calls, monkeypatch, said) -> None:
    monkeypatch.setattr("cri_proxy.relay.io.server._TICK_S", 3600.0)
    assert len(said) < COUNT_BYTES
    losses: list[str] = []
    async with behind_relay(folder, calls, most_kept=MIB // 4, on_loss=losses.append) as (runtime, relay):
        client = await Raw.connect(relay, said)
        await until(lambda: len(losses) == 1)
        await client.close()
        await links_of(relay, 0)


async def test_what_a_client_does_not_read_is_counted_also_in_the_kernel(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(VERSION, 1))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        [link] = await links_of(relay, 1)
        await until(lambda: len(runtime.connections) == 1)
        runtime.connections[0].write(headers(1, b"\x88"), data(1, bytes(16_000)))
        await until(lambda: link.kept_bytes > 16_000)
        assert link.client.unwritten == 0
        await client.close()
        await links_of(relay, 0)
