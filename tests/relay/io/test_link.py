"""A client's connection and the runtime's behind it: neither is read faster than the other takes, and both end together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Optional

import grpc
import pytest

from cri_proxy.relay.http2.frames import DATA, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, write_window_update
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.endpoint import FULL_BYTES, READ_BYTES, Endpoint
from cri_proxy.relay.io.link import SILENT_S
from tests.cri_client import CriClient
from tests.relay.http2.hand import CREATE, VERSION, data, headers, ping, written
from tests.relay.io.frames import (
    EVENTS,
    UNKNOWN,
    Raw,
    RawRuntime,
    Recorder,
    behind_relay,
    links_of,
    relaying,
    request,
    soon,
    until,
)


async def test_a_client_that_does_not_read_does_not_grow_our_memory(runtime, relay) -> None:
    runtime.script("Version", reply=tuple(bytes(1 << 20) for _ in range(64)))
    raw = await Raw.connect(relay, write_window_update(0, 2**31 - 70_000), request(VERSION, 1))
    [link] = await links_of(relay, 1)
    await until(lambda: link.client.is_full and not link.runtime.is_reading)
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.client.unwritten < 2 << 20
    read = 0
    while read < 64 << 20:
        read += len(await soon(raw.reader.read(1 << 20)))
    await raw.close()
    await links_of(relay, 0)


@pytest.mark.parametrize("half", [True, False], ids=["half", "whole"])
async def test_a_connection_that_ends_on_one_side_ends(runtime, relay, half) -> None:
    raw = await Raw.connect(relay)
    await links_of(relay, 1)
    if half:
        raw.writer.write_eof()
        await soon(raw.reader.read())
    await raw.close()
    await links_of(relay, 0)


async def test_what_is_not_http2_is_sent_away_and_others_are_not(runtime, client, relay) -> None:
    reader, writer = await asyncio.open_unix_connection(str(relay.sockets[0]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await soon(reader.read())
    assert [frame[0] for frame in written(said)][-1] == GOAWAY
    writer.close()
    await writer.wait_closed()
    assert (await soon(client.call_bytes(VERSION, b""))).code == 0


# ---------------------------------------------------------------------- what waits is not kept in memory


async def test_a_runtime_that_does_not_read_stops_its_client_and_no_other(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(VERSION, 1))
        [link] = await links_of(relay, 1)
        writing = asyncio.ensure_future(_writes_without_end(client, ping(bytes(8), is_answer=True) * 10_000))
        await until(lambda: link.runtime.is_full)
        assert link.runtime.unwritten <= FULL_BYTES + READ_BYTES and not link.client.is_reading
        other = await Raw.connect(relay, ping(b"are you?"))
        assert (await other.frame(PING)).payload == b"are you?"
        writing.cancel()
        for raw in (client, other):
            raw.writer.transport.abort()
        await links_of(relay, 0)


async def test_a_client_that_does_not_read_answers_of_our_own_is_not_read_from(folder, calls) -> None:
    async with relaying(f"{folder}/r.sock", f"{folder}/k.sock", calls) as relay:
        client = await Raw.connect(relay)
        [link] = await links_of(relay, 1)
        client.write(*(headers(number, b"") for number in range(1, 60_000, 2)))
        await until(lambda: link.client.is_full)
        assert not link.client.is_reading
        # What came with one read is answered, 20 bytes for each.
        assert link.client.unwritten <= FULL_BYTES + 20 * READ_BYTES
        while not link.client.is_reading:
            assert await soon(client.reader.read(1 << 20))
        await client.close()
        await links_of(relay, 0)


async def test_a_stream_that_nobody_takes_from_holds_up_no_other_and_grows_nothing(runtime, relay) -> None:
    # Intercepted, and larger than a frame: the relay reads along, and pays the runtime for what it keeps.
    runtime.script("GetContainerEvents", reply=tuple(b"event" * 20_000 for _ in range(100)))
    # gRPC widens the windows of a client by what comes within a round trip: on a busy machine the library takes all of it.
    async with CriClient(str(relay.sockets[0]), options=(("grpc.http2.bdp_probe", 0),)) as client:
        events = client._channel.unary_stream(EVENTS)(b"")
        first = await soon(events.read())
        [link] = await links_of(relay, 1)
        for _ in range(50):
            assert (await soon(client.call_bytes(VERSION, b""))).code == 0
            assert link.connection is not None
            wire = link.connection._wire
            assert wire.held_bytes + wire.replies.waiting_bytes < 10 << 20
        # It is too slow for what is kept, which others may have to wait for, and is told so.
        assert await soon(events.code()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert first == b"event" * 20_000


async def test_a_client_that_reads_gets_all_of_a_burst(runtime, relay, client) -> None:
    messages = tuple(b"%d" % number * 20_000 for number in range(200))
    runtime.script("GetContainerEvents", reply=messages)
    assert (await soon(client.call_bytes(EVENTS, b""))).messages == messages


# ---------------------------------------------------------------------- bugs


async def test_a_bug_ends_its_connection_with_the_reason_and_no_other(folder, calls) -> None:
    bugs: list[Exception] = []
    closed: list[str] = []
    notes = {"on_bug": bugs.append, "on_closing": closed.append}
    opened = calls.open

    def broken(method: str) -> Optional[Recorder]:
        if method == UNKNOWN:
            raise ZeroDivisionError("open")
        return opened(method)

    calls.open = broken  # type: ignore[method-assign]
    async with behind_relay(folder, calls, **notes) as (runtime, relay):
        good, bad = await Raw.connect(relay), await Raw.connect(relay, request(CREATE, 1))
        await soon(calls.until("request"))
        bad.write(request(UNKNOWN, 3))
        assert b"a bug of cri-resmgr: ZeroDivisionError: open" in (await bad.frame(GOAWAY)).payload
        assert await soon(bad.reader.read()) == b""
        await bad.close()
        await soon(calls.until("ended"))
        good.write(ping(b"are you?"))
        assert (await good.frame(PING)).payload == b"are you?"
        await good.close()
        await links_of(relay, 0)
    assert [str(bug) for bug in bugs] == ["open"] and len(closed) == 1


async def test_a_bug_in_what_is_done_every_second_stops_it_for_no_other(runtime, relay) -> None:
    bugs: list[Exception] = []
    relay.failed = bugs.append
    clients = [await Raw.connect(relay) for _ in range(3)]
    links = await links_of(relay, 3)
    ticked: list[float] = []

    def broken(_now_s: float) -> None:
        raise ZeroDivisionError("tick")

    for link in links[:2]:
        link.tick = broken  # type: ignore[method-assign]
    links[2].tick = ticked.append  # type: ignore[method-assign]
    await until(lambda: len(ticked) > 1)
    assert [str(bug) for bug in bugs] == ["tick", "tick"] and await links_of(relay, 1) == links[2:]
    for client in clients:
        await client.close()


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize(
    "is_held", [True, False], ids=["while its call is decided", "in the middle of a request"]
)
async def test_a_client_that_vanishes_takes_its_calls_and_the_runtimes_connection_with_it(
    folder, calls, is_held
) -> None:
    calls.deciding = asyncio.Event()
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(
            relay, headers(1), data(1, write_message(bytes(9))[: None if is_held else 7])
        )
        if is_held:
            await soon(calls.until("request"))
        await until(lambda: bool(runtime.connections))
        client.writer.transport.abort()
        await links_of(relay, 0)
        await soon(runtime.connections[0].reader.read())  # to its end
        calls.deciding.set()
        if is_held:
            await soon(calls.until("ended"))
    assert [note for note in calls.notes if note[0] == "ended"] == [("ended", CallEnd.REFUSED, 1)] * is_held


async def test_a_runtime_that_says_no_more_ends_its_clients_connection(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(UNKNOWN, 1))
        await until(lambda: bool(runtime.connections))
        runtime.connections[0].writer.write_eof()
        await client.frame(GOAWAY)
        assert await soon(client.reader.read()) == b""
        await client.close()
        await links_of(relay, 0)


async def test_who_never_says_anything_is_sent_away(runtime, relay) -> None:
    reader, writer = await asyncio.open_unix_connection(str(relay.sockets[0]))
    [link] = await links_of(relay, 1)
    now_s = asyncio.get_running_loop().time()
    link.tick(now_s + SILENT_S - 1)
    assert link.client.is_open
    link.tick(now_s + SILENT_S + 1)
    await soon(reader.read())
    writer.close()
    await writer.wait_closed()
    await links_of(relay, 0)


async def _writes_without_end(raw: Raw, said: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            raw.write(said)
            await raw.writer.drain()


# ---------------------------------------------------------------------- what is written together


async def connection_of(runtime: RawRuntime) -> Raw:
    """The only one there is, behind its preface."""
    await until(lambda: bool(runtime.connections))
    await soon(runtime.connections[0].reader.readexactly(len(PREFACE)))
    return runtime.connections[0]


def noting_writes(end: Endpoint) -> list[list[int]]:
    """The kinds of frames of every write of an endpoint from now on."""
    writes: list[list[int]] = []
    write = end.write

    def noted(pieces: list[Any]) -> None:
        if pieces:
            writes.append([frame.kind for frame in written(b"".join(pieces))])
        write(pieces)

    end.write = noted  # type: ignore[method-assign]
    return writes


async def test_a_request_that_is_decided_at_once_goes_out_with_its_headers(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(VERSION, 1))
        [link] = await links_of(relay, 1)
        seen = await connection_of(runtime)
        assert (await seen.frame(DATA)).stream == 1
        writes = noting_writes(link.runtime)
        client.write(request(CREATE, 3))
        assert (await seen.frame(DATA)).stream == 3
        assert [kinds for kinds in writes if HEADERS in kinds] == [[HEADERS, DATA]]
        await client.close()
        await links_of(relay, 0)


async def test_headers_and_what_else_was_said_do_not_wait_for_a_decision(folder, calls) -> None:
    calls.deciding = asyncio.Event()
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(CREATE, 1), request(VERSION, 3))
        seen = await connection_of(runtime)
        assert [(await seen.frame(HEADERS)).stream for _ in range(2)] == [1, 3]
        assert (await seen.frame(DATA)).stream == 3
        assert calls.notes == [("request", b"")]
        calls.deciding.set()
        assert (await seen.frame(DATA)).stream == 1
        await client.close()
        await links_of(relay, 0)


async def test_a_reply_that_is_noted_at_once_is_one_write(folder, calls) -> None:
    async with behind_relay(folder, calls) as (raw, relay):
        client = await Raw.connect(relay, request(CREATE, 1))
        [link] = await links_of(relay, 1)
        seen = await connection_of(raw)
        await seen.frame(DATA)
        writes = noting_writes(link.client)
        seen.write(headers(1, b"\x88"), data(1, write_message(b"reply")), headers(1, b"\x88", end=True))
        while not (await client.frame(HEADERS)).flags & END_STREAM:
            pass
        assert [kinds for kinds in writes if HEADERS in kinds] == [[HEADERS, DATA, HEADERS]]
        await client.close()
        await links_of(relay, 0)
