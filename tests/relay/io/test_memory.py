"""Memory for all connections together is limited; past that the newest and idlest lose, and kubelet's does not."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cri_proxy.relay.http2.frames import END_STREAM, GOAWAY, HEADERS, Error
from cri_proxy.relay.interception import CallEnd
from tests.fake_runtime import FakeRuntime
from tests.relay.http2.hand import CREATE, VERSION, data, headers
from tests.relay.io.frames import Raw, RawRuntime, Recorder, links_of, relaying, request, soon, until

MIB = 1 << 20
#: The beginning of a message of 600,000 bytes, and what of the rest is sent.
HEAD_OF_IT, MOST_OF_IT = (600_000).to_bytes(5, "big"), 400_000


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


async def test_a_flood_of_held_requests_closes_its_own_connections_the_newest_first(
    folder: Path, runtime: FakeRuntime, calls: Recorder
) -> None:
    losses: list[str] = []
    async with relaying(
        runtime.socket, f"{folder}/k.sock", calls, most_kept=MIB, on_loss=losses.append
    ) as relay:
        kubelet = await Raw.connect(relay)
        await call(kubelet, 1)
        kubelet.write(headers(3), data(3, HEAD_OF_IT))  # it keeps something, too
        flood = []
        for number in range(6):
            flood.append(await Raw.connect(relay))
            await hold(flood[-1], 1)
            await until(lambda number=number: len(losses) == max(0, number - 1))
            assert relay._kept.total <= MIB
        # Two fit; each that came after them is the newest, and has gone.
        await links_of(relay, 3)
        for kept in flood[:2]:
            await call(kept, 3)
        assert losses[0].endswith("KiB were kept for it, and more than 1 MiB for all")
        await call(kubelet, 5)
        for client in (kubelet, *flood):
            await client.close()
        await links_of(relay, 0)
        assert relay._kept.total == 0


async def test_an_idle_connection_loses_before_a_newer_one_that_is_in_use(
    folder: Path, runtime: FakeRuntime, calls: Recorder
) -> None:
    losses: list[str] = []
    async with relaying(
        runtime.socket, f"{folder}/k.sock", calls, most_kept=MIB, on_loss=losses.append
    ) as relay:
        idle = [await Raw.connect(relay), await Raw.connect(relay)]
        for client in idle:
            await hold(client, 1)
        await until(lambda: relay._kept.total > 2 * MOST_OF_IT)
        used = await Raw.connect(relay)
        await call(used, 1)
        await hold(used, 3)
        told = await soon(idle[1].frame(GOAWAY))
        assert int.from_bytes(told.payload[4:8], "big") == Error.ENHANCE_YOUR_CALM
        await call(used, 5)
        assert len(losses) == 1
        for client in (*idle, used):
            await client.close()


async def test_the_calls_of_a_connection_that_loses_are_told_to_have_ended(
    folder: Path, calls: Recorder
) -> None:
    async with (
        RawRuntime(f"{folder}/r.sock") as runtime,
        relaying(runtime.socket, f"{folder}/k.sock", calls, most_kept=MIB) as relay,
    ):
        client = await Raw.connect(relay, request(CREATE, 1))
        await soon(calls.until("request"))
        for stream in (3, 5, 7):
            await hold(client, stream)
        await soon(calls.until("ended"))
        assert calls.notes[-1][:2] == ("ended", CallEnd.UNKNOWN)
        await links_of(relay, 0)
        await client.close()


async def test_what_a_client_does_not_read_is_counted_also_in_the_kernel(
    folder: Path, calls: Recorder
) -> None:
    async with (
        RawRuntime(f"{folder}/r.sock") as runtime,
        relaying(runtime.socket, f"{folder}/k.sock", calls) as relay,
    ):
        client = await Raw.connect(relay, request(VERSION, 1))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        [link] = await links_of(relay, 1)
        await until(lambda: len(runtime.connections) == 1)
        runtime.connections[0].write(headers(1, b"\x88"), data(1, bytes(16_000)))
        await until(lambda: link.kept_bytes > 16_000)
        assert link.client.unwritten == 0
        await client.close()
        await links_of(relay, 0)
