"""A host's and a plugin's end back to back over a socket pair: what is called is answered, once, in time or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Optional

import pytest

from cri_api import ttrpc_pb2 as pb
from cri_proxy.nri.io import connection as nri_connection
from cri_proxy.nri.io.connection import (
    MOST_SERVED,
    CallFailed,
    CallTimedOut,
    ConnectionClosed,
    Handler,
    NriConnection,
)

HANG_S = 20.0


async def connection(end: socket.socket, role: str, handlers: Mapping[str, Handler]) -> NriConnection:
    reader, writer = await asyncio.open_connection(sock=end)
    return NriConnection(reader, writer, role, handlers)


@contextlib.asynccontextmanager
async def pair(
    plugin_serves: Optional[Mapping[str, Handler]] = None, host_serves: Optional[Mapping[str, Handler]] = None
) -> AsyncIterator[tuple[NriConnection, NriConnection]]:
    """A host and a plugin that run."""
    ends = socket.socketpair()
    host = await connection(ends[0], "host", host_serves or {})
    plugin = await connection(ends[1], "plugin", plugin_serves or {})
    tasks = [asyncio.ensure_future(host.run()), asyncio.ensure_future(plugin.run())]
    try:
        yield host, plugin
    finally:
        host.close("the test is over")
        plugin.close("the test is over")
        await asyncio.wait_for(asyncio.gather(*tasks), HANG_S)


@contextlib.asynccontextmanager
async def alone(role: str) -> AsyncIterator[tuple[NriConnection, asyncio.Task[str], socket.socket]]:
    """One end that runs, and the bare socket of the other."""
    ours, other = socket.socketpair()
    other.setblocking(False)
    end = await connection(ours, role, {"Echo": echo})
    task = asyncio.ensure_future(end.run())
    try:
        yield end, task, other
    finally:
        other.close()
        end.close("the test is over")
        await asyncio.wait_for(task, HANG_S)


async def echo(message: bytes, timeout_s: float) -> bytes:
    return message


async def never(message: bytes, timeout_s: float) -> bytes:
    await asyncio.Event().wait()
    return b""


@pytest.mark.parametrize("size", [0, 1, 3900, 4085, 4086, 4087, 4096, 4097, 5000, 4_194_304 - 100])
async def test_calls_of_every_size_are_answered_both_ways(size: int) -> None:
    async with pair({"Echo": echo}, {"Echo": echo}) as (host, plugin):
        assert await host.call("Echo", b"h" * size, HANG_S) == b"h" * size
        assert await plugin.call("Echo", b"p" * size, HANG_S) == b"p" * size


async def test_many_calls_are_under_way_at_once_and_each_gets_its_own_reply() -> None:
    order: list[int] = []
    arrived = asyncio.Event()

    async def last_first(message: bytes, timeout_s: float) -> bytes:
        """Answers no call before all have arrived; then the last one first."""
        order.append(message[0])
        if len(order) == MOST_SERVED:
            arrived.set()
        await arrived.wait()
        while order[-1] != message[0]:
            await asyncio.sleep(0)
        order.pop()
        return message * 3000

    async with pair({"M": last_first}) as (host, _):
        calls = [host.call("M", bytes([number]), HANG_S) for number in range(MOST_SERVED)]
        assert await asyncio.gather(*calls) == [bytes([number]) * 3000 for number in range(MOST_SERVED)]


async def test_large_calls_both_ways_at_once_do_not_wait_for_each_other() -> None:
    async with pair({"Echo": echo}, {"Echo": echo}) as (host, plugin):
        sent = [b"%d" % number * 1_000_000 for number in range(6)]
        both = [end.call("Echo", message, HANG_S) for message in sent for end in (host, plugin)]
        assert await asyncio.gather(*both) == [message for message in sent for _ in range(2)]


async def test_a_method_nobody_serves_is_unimplemented() -> None:
    async with pair() as (host, plugin):
        for end in (host, plugin):
            with pytest.raises(CallFailed, match="^method Nothing$") as caught:
                await end.call("Nothing", b"", HANG_S)
            assert caught.value.code == 12


async def test_a_handlers_error_is_the_callers_with_its_code() -> None:
    async def refuse(message: bytes, timeout_s: float) -> bytes:
        raise CallFailed(2, "invalid plugin name")

    async with pair({"Echo": echo}, {"RegisterPlugin": refuse}) as (host, plugin):
        with pytest.raises(CallFailed, match="^invalid plugin name$") as caught:
            await plugin.call("RegisterPlugin", b"", HANG_S)
        assert caught.value.code == 2
        assert await host.call("Echo", b"still here", HANG_S) == b"still here"


async def test_a_bug_in_a_handler_costs_its_call_only() -> None:
    async def broken(message: bytes, timeout_s: float) -> bytes:
        raise ValueError("oh")

    async with pair({"Broken": broken, "Echo": echo}) as (host, _):
        with pytest.raises(CallFailed, match="^ValueError: oh$"):
            await host.call("Broken", b"", HANG_S)
        assert await host.call("Echo", b"x", HANG_S) == b"x"


async def test_a_call_that_is_not_answered_in_time_ends_and_the_next_one_works() -> None:
    async with pair({"Never": never, "Echo": echo}) as (host, _):
        with pytest.raises(CallTimedOut, match="Never was not answered within 0.05 s"):
            await host.call("Never", b"", 0.05)
        assert await host.call("Echo", b"x", HANG_S) == b"x"


async def test_the_called_side_keeps_the_callers_deadline_by_itself() -> None:
    ended = asyncio.Event()
    told: list[float] = []

    async def slow(message: bytes, timeout_s: float) -> bytes:
        told.append(timeout_s)
        try:
            return await never(message, timeout_s)
        finally:
            ended.set()

    async with alone("plugin") as (end, _, other):
        end._handlers = {"Slow": slow}
        body = pb.Request(
            service=nri_connection.PLUGIN_SERVICE, method="Slow", timeout_nano=30_000_000
        ).SerializeToString()
        await send(other, frame(1, 1, body))
        await asyncio.wait_for(ended.wait(), HANG_S)
        assert told == [0.03]
        size = int.from_bytes((await receive(other, 8))[4:], "big")
        reply = pb.Response.FromString((await receive(other, size))[10:])
        assert (reply.status.code, reply.status.message) == (4, "context deadline exceeded")


async def test_a_message_that_is_too_large_is_refused_here_and_nothing_is_sent() -> None:
    async with pair({"Echo": echo}) as (host, _):
        with pytest.raises(
            CallFailed, match="message length [0-9]+ exceed maximum message size of 4194304"
        ) as caught:
            await host.call("Echo", b"x" * 4_194_305, HANG_S)
        assert caught.value.code == 8
        assert await host.call("Echo", b"x", HANG_S) == b"x"


async def test_a_peer_that_goes_fails_what_is_under_way_and_all_later_calls() -> None:
    async with pair({"Never": never}) as (host, plugin):
        under_way = asyncio.ensure_future(host.call("Never", b"", HANG_S))
        await asyncio.sleep(0)
        plugin.close("killed")
        for call in (under_way, host.call("Never", b"", HANG_S)):
            with pytest.raises(ConnectionClosed, match="the other side has closed the connection|reset|pipe"):
                await call


async def test_what_is_closed_here_says_its_own_reason_and_cancels_handlers() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waits(message: bytes, timeout_s: float) -> bytes:
        started.set()
        try:
            return await never(message, timeout_s)
        finally:
            ended.set()

    async with pair({"Waits": waits}) as (host, plugin):
        call = asyncio.ensure_future(host.call("Waits", b"", HANG_S))
        await asyncio.wait_for(started.wait(), HANG_S)
        plugin.close("enough")
        await asyncio.wait_for(ended.wait(), HANG_S)
        assert plugin.reason == "enough"
        with pytest.raises(ConnectionClosed):
            await call


async def test_a_handler_may_close_its_own_connection() -> None:
    ends: list[NriConnection] = []

    async def hangs_up(message: bytes, timeout_s: float) -> bytes:
        ends[0].close("said enough")
        return b""

    async with pair({"Bye": hangs_up}) as (host, plugin):
        ends.append(plugin)
        with pytest.raises(ConnectionClosed):
            await host.call("Bye", b"", HANG_S)


async def test_more_calls_than_are_served_at_once_are_refused_and_none_is_lost() -> None:
    go = asyncio.Event()

    async def waits(message: bytes, timeout_s: float) -> bytes:
        await go.wait()
        return b"done"

    async with pair({"Waits": waits, "Echo": echo}) as (host, _):
        calls = [asyncio.ensure_future(host.call("Waits", b"", HANG_S)) for _ in range(MOST_SERVED + 5)]
        for refused in calls[MOST_SERVED:]:
            with pytest.raises(CallFailed, match="more than 16 calls at a time"):
                await refused
        go.set()
        assert await asyncio.gather(*calls[:MOST_SERVED]) == [b"done"] * MOST_SERVED


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "the other side does not speak ttRPC: a frame of [0-9]+ bytes"),
        (b"\0\0\0\1\0\0\0\x0a\0\0\0\0\0\0\0\1\x63\0", "does not speak ttRPC: a message of kind 99"),
    ],
)
async def test_garbage_closes_the_connection_with_a_reason(sent: bytes, reason: str) -> None:
    async with alone("host") as (_, task, other):
        await send(other, sent)
        assert re.search(reason, await asyncio.wait_for(task, HANG_S))


async def test_half_a_message_and_then_nothing_is_an_end() -> None:
    async with alone("host") as (_, task, other):
        await send(other, b"\0\0\0\2\0\0\1\0\0\0")
        other.close()
        assert await asyncio.wait_for(task, HANG_S) == "the other side has closed the connection"


async def test_a_peer_that_asks_and_never_reads_is_not_listened_to_for_ever() -> None:
    async with alone("plugin") as (end, task, other):
        body = pb.Request(
            service=nri_connection.PLUGIN_SERVICE, method="Echo", payload=b"x" * 200_000
        ).SerializeToString()
        sender = asyncio.ensure_future(flood(other, body))
        # Once neither side takes more, what we hold is bounded.
        while not end._writing.locked() or len(end._tasks) < MOST_SERVED:
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(end._tasks) <= nri_connection.MOST_TAKEN + 1
        sender.cancel()
        await asyncio.wait([sender])
        assert not task.done()


async def flood(other: socket.socket, body: bytes) -> None:
    for stream in range(1, 4000, 2):
        await send(other, frame(1, stream, body))


def frame(connection_id: int, stream: int, body: bytes) -> bytes:
    message = len(body).to_bytes(4, "big") + stream.to_bytes(4, "big") + b"\1\0" + body
    return connection_id.to_bytes(4, "big") + len(message).to_bytes(4, "big") + message


async def send(other: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(other, data)


async def receive(other: socket.socket, least: int) -> bytes:
    data = b""
    while len(data) < least:
        piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, least - len(data)), HANG_S)
        assert piece, f"the end came after {len(data)} bytes"
        data += piece
    return data
