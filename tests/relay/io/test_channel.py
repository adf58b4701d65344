"""Calls of our own over a real socket: to a real server of grpc's, and to one that says its frames by itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Union

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.http2.caller import Caller, OwnCall
from cri_proxy.relay.http2.frames import HEADERS, PREFACE, RST_STREAM, write_settings
from cri_proxy.relay.http2.headers import write_response, write_trailers
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.io.channel import Channel, ServerStream
from cri_proxy.relay.status import Code, RpcError
from tests.cri_client import CHANNEL_OPTIONS
from tests.fake_runtime import FakeRuntime
from tests.relay.http2.hand import VERSION, data, goaway, headers
from tests.relay.io.frames import EVENTS, UNKNOWN, Raw, RawRuntime, open_sockets, soon, until

LIST = "/runtime.v1.RuntimeService/StreamContainers"


@pytest_asyncio.fixture
async def channel(folder: Path) -> AsyncIterator[Channel]:
    path = f"{folder}/r.sock"
    channel = Channel(path)
    yield channel
    await channel.close()
    await until(lambda: not channel._leaving and channel._connecting is None)


@pytest_asyncio.fixture
async def raw(folder: Path) -> AsyncIterator[RawRuntime]:
    async with RawRuntime(f"{folder}/r.sock") as raw:
        yield raw


async def failure(call: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as failed:
        await soon(call)
    return failed.value


async def called(raw: RawRuntime, count: int = 1) -> Raw:
    """The connection of this number, on which a call has come."""
    await until(lambda: len(raw.connections) == count)
    connection = raw.connections[-1]
    await soon(connection.reader.readexactly(len(PREFACE)))
    await connection.frame(HEADERS)
    return connection


def answer(stream: int, message: bytes = b"reply", code: int = 0) -> bytes:
    reply = headers(stream, write_response()) + data(stream, write_message(message))
    return reply + headers(stream, write_trailers(code, ""), end=True)


# ---------------------------------------------------------------------- as grpc's own client

Outcome = tuple[Any, ...]
TRAILERS = (("x-a", "1"), ("x-raw-bin", b"\x00\xff"), ("x-raw-bin", b""), ("x-a", "2"))
OUTCOMES: dict[str, dict[str, Any]] = {
    "a reply": {"reply": b"reply"},
    "an empty one": {"reply": b""},
    "a large one": {"reply": bytes(20 << 20)},
    "metadata": {"reply": b"reply", "initial_metadata": TRAILERS, "trailing_metadata": TRAILERS},
    **{f"code {code.name}": {"error": (code, "because")} for code in grpc.StatusCode if code.value[0]},
    "no sentence": {"error": (5, "")},
    "another alphabet": {"error": (2, "caf\u00e9 100% \n\u2603 %41")},
    "trailers": {"error": (9, "no", TRAILERS)},
    "large trailers": {"error": (9, "no", (("x", "y" * 100_000),))},
    "an error after a reply": {"reply": b"reply", "error": (13, "broken", TRAILERS)},
    "too late": {"then_hang": True},
}


def in_order(trailers: Any) -> Any:
    """grpc puts all of a name together."""
    return tuple(sorted(trailers, key=lambda field: str(field[0])))


async def by_grpc(path: str, method: str, message: bytes) -> Outcome:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
        try:
            return ("reply", await channel.unary_unary(method)(message, timeout=1))
        except grpc.aio.AioRpcError as error:
            details = "" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else error.details()
            return (error.code().name, details, in_order(error.trailing_metadata() or ()))


async def by_ours(channel: Channel, method: str, message: bytes) -> Outcome:
    try:
        return ("reply", await channel.unary(method, message, 1))
    except RpcError as error:
        details = "" if error.code is Code.DEADLINE_EXCEEDED and error.in_doubt else error.details
        return (error.code.name, details, in_order(error.trailers))


@pytest.mark.parametrize("script", OUTCOMES.values(), ids=OUTCOMES.keys())
async def test_a_call_ends_as_one_of_grpcs_client_does(
    runtime: FakeRuntime, channel: Channel, script: dict[str, Any]
) -> None:
    runtime.script("Version", **script)
    expected = await soon(by_grpc(runtime.socket, VERSION, b"ask"))
    if script.get("error", ("",))[0] is grpc.StatusCode.DEADLINE_EXCEEDED:
        expected = (expected[0], "", expected[2])
    assert await soon(by_ours(channel, VERSION, b"ask")) == expected
    theirs, ours = runtime.calls_of("Version")
    assert ours.request == theirs.request and ours.api == theirs.api


async def test_a_method_that_is_not_there_is_unimplemented_as_for_grpcs_client(
    runtime: FakeRuntime, channel: Channel
) -> None:
    method = "/runtime.v9.RuntimeService/Version"
    expected = await soon(by_grpc(runtime.socket, method, b""))
    assert await soon(by_ours(channel, method, b"")) == expected


async def test_a_large_request_and_its_metadata_come_whole(runtime: FakeRuntime, channel: Channel) -> None:
    message = bytes(range(256)) * 20_000
    fields: tuple[tuple[str, Union[str, bytes]], ...] = (("traceparent", "00-1"), ("raw-bin", b"\0\xff"))
    assert await soon(channel.unary(UNKNOWN, message, 100, fields)) == message
    [call] = runtime.calls_of("Unknown")
    assert set(fields) <= set(call.metadata)
    assert call.time_remaining is not None and 0 < call.time_remaining < 101


async def test_many_calls_at_once_each_get_their_own_reply(runtime: FakeRuntime, channel: Channel) -> None:
    messages = [b"%d" % number * 1000 for number in range(200)]
    replies = await soon(asyncio.gather(*(channel.unary(UNKNOWN, message, 20) for message in messages)))
    assert replies == messages and open_sockets("r.sock") >= 2


async def test_a_stream_gives_its_messages_and_its_end(runtime: FakeRuntime, channel: Channel) -> None:
    runtime.script("StreamContainers", reply=(b"one", b"", b"three" * 100_000))
    stream = channel.stream(LIST, b"", 5)
    assert [await soon(stream.read()) for _ in range(4)] == [b"one", b"", b"three" * 100_000, None]
    stream.cancel()
    runtime.scripts.clear()
    runtime.script("StreamContainers", reply=(b"one",), error=(13, "broken"))
    stream = channel.stream(LIST, b"", 5)
    assert await soon(stream.read()) == b"one"
    assert (await failure(stream.read())).details == "broken"


async def test_a_unary_call_has_one_reply(runtime: FakeRuntime, channel: Channel) -> None:
    for replies, what in (((), "no message"), ((b"1", b"2"), "more than one message")):
        runtime.scripts.clear()
        runtime.script("Version", reply=replies)
        error = await failure(channel.unary(VERSION, b"", 5))
        assert (error.code, error.in_doubt) == (Code.INTERNAL, True) and what in error.details


async def test_a_list_that_ends_in_the_middle_of_a_message_has_not_ended_well(
    raw: RawRuntime, channel: Channel
) -> None:
    stream = channel.stream(LIST, b"", 5)
    reading = asyncio.ensure_future(stream.read())
    connection = await called(raw)
    half = data(1, write_message(b"half")[:-1])
    connection.write(headers(1, write_response()), half, headers(1, write_trailers(0, ""), end=True))
    assert (await failure(reading)).code is Code.INTERNAL


# ---------------------------------------------------------------------- cancelled, and late


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_a_call_that_is_not_waited_for_any_more_is_reset_at_the_server(
    runtime: FakeRuntime, channel: Channel, how: str
) -> None:
    runtime.script("Version", then_hang=True)
    call = asyncio.ensure_future(channel.unary(VERSION, b"", 0.5 if how == "late" else 100))
    await soon(runtime.wait_for_call("Version"))
    if how == "late":
        error = await failure(call)
        assert (error.code, error.in_doubt) == (Code.DEADLINE_EXCEEDED, True)
    else:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(call)
    [got] = runtime.calls_of("Version")
    await soon(runtime.wait_until(lambda: bool(got.finished)))
    assert got.outcome == "cancelled"
    assert await soon(channel.unary(UNKNOWN, b"next", 5)) == b"next"


async def test_a_stream_that_is_cancelled_while_it_is_read_is_reset(
    runtime: FakeRuntime, channel: Channel
) -> None:
    stream = channel.stream(EVENTS, b"")
    reading = asyncio.ensure_future(stream.read())
    await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
    runtime.emit(cri.ContainerEventResponse(container_id="a"))
    assert b"a" in (await soon(reading) or b"")
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    reading.cancel()
    await soon(runtime.wait_until(lambda: runtime.subscribers == 0))


async def test_a_call_without_time_is_not_made(runtime: FakeRuntime, channel: Channel) -> None:
    await soon(channel.wait_ready())
    error = await failure(channel.unary(VERSION, b"", 0))
    assert (error.code, error.in_doubt) == (Code.DEADLINE_EXCEEDED, False)
    assert runtime.calls == []


# ---------------------------------------------------------------------- connections


async def test_without_a_server_calls_fail_at_once_and_work_when_it_is_there(folder: Path) -> None:
    path = f"{folder}/r.sock"
    channel = Channel(path, "the observer")
    for _ in range(2):
        error = await failure(channel.unary(VERSION, b"", 100))
        assert (error.code, error.in_doubt) == (Code.UNAVAILABLE, False)
        assert error.details == f"the observer cannot be reached at {path}: No such file or directory"
    ready = asyncio.ensure_future(channel.wait_ready())
    async with FakeRuntime(path):
        await soon(ready)
        assert channel.is_connected and await soon(channel.unary(UNKNOWN, b"a", 5)) == b"a"
    await soon(channel.wait_lost())
    assert not channel.is_connected
    await channel.close()
    assert open_sockets(path) == 0


async def test_a_server_that_comes_back_is_found_every_time(runtime: FakeRuntime, channel: Channel) -> None:
    for _ in range(3):
        await soon(channel.wait_ready())
        runtime.script("Version", then_hang=True, times=1)
        hanging = asyncio.ensure_future(channel.unary(VERSION, b"", 100))
        await soon(runtime.wait_for_call("Version", len(runtime.calls_of("Version")) + 1))
        await runtime.stop()
        # A server that ends cancels its calls before it closes, if it gets to it.
        error = await failure(hanging)
        assert error.code in (Code.UNAVAILABLE, Code.CANCELLED) and error.in_doubt
        await soon(channel.wait_lost())
        assert (await failure(channel.unary(VERSION, b"", 100))).code is Code.UNAVAILABLE
        await runtime.start()


async def test_a_call_waits_for_a_connection_that_is_being_made(folder: Path, channel: Channel) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/r.sock")
    listening.listen()
    listening.setblocking(False)
    calls = [asyncio.ensure_future(channel.unary(VERSION, b"", 100)) for _ in range(2)]
    late = asyncio.ensure_future(channel.unary(VERSION, b"", 0.1))
    loop = asyncio.get_running_loop()
    accepted, _ = await soon(loop.sock_accept(listening))
    with accepted, listening:
        error = await failure(late)
        assert (error.code, error.in_doubt) == (Code.DEADLINE_EXCEEDED, False)
        assert not channel.is_connected and not any(call.done() for call in calls)
        await loop.sock_sendall(accepted, write_settings())
        await soon(channel.wait_ready())
        await loop.sock_sendall(accepted, answer(1, b"1") + answer(3, b"2"))
        assert await soon(asyncio.gather(*calls)) == [b"1", b"2"]


async def test_a_server_that_accepts_and_says_nothing_is_not_there(
    folder: Path, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cri_proxy.relay.io.channel.CONNECT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/r.sock")
        listening.listen(0)
        error = await failure(channel.unary(VERSION, b"", 100))
        assert (error.code, error.in_doubt) == (Code.UNAVAILABLE, False)
        assert error.details.endswith("it has not answered within 0.2 s")


async def test_a_server_of_another_kind_is_not_there(folder: Path, channel: Channel) -> None:
    def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(say, f"{folder}/r.sock"):
        error = await failure(channel.unary(VERSION, b"", 100))
        assert error.code is Code.UNAVAILABLE and error.details.endswith("it has ended the connection")
        await channel.close()


async def test_after_a_goaway_calls_end_where_they_began_and_new_ones_go_elsewhere(
    raw: RawRuntime, channel: Channel
) -> None:
    calls = [asyncio.ensure_future(channel.unary(VERSION, b"", 100)) for _ in range(2)]
    first = await called(raw)
    await first.frame(HEADERS)
    lost = asyncio.ensure_future(channel.wait_lost())
    first.write(goaway(1))
    error = await failure(calls[1])
    assert (error.code, error.in_doubt) == (Code.UNAVAILABLE, False)
    await soon(lost)
    third = asyncio.ensure_future(channel.unary(VERSION, b"", 100))
    second = await called(raw, 2)
    first.write(answer(1, b"old"))
    second.write(answer(1, b"new"))
    assert [await soon(calls[0]), await soon(third)] == [b"old", b"new"]
    assert await soon(first.reader.read()) is not None  # to its end: closed by us
    await until(lambda: channel._leaving == set())
    assert channel.is_connected


async def test_what_is_closed_ends_its_calls_and_takes_no_more(raw: RawRuntime, channel: Channel) -> None:
    call = asyncio.ensure_future(channel.unary(VERSION, b"", 100))
    connection = await called(raw)
    await channel.close()
    assert (await failure(call)).code is Code.CANCELLED
    assert (await failure(channel.unary(VERSION, b"", 100))).code is Code.UNAVAILABLE
    assert await soon(connection.reader.read()) is not None
    assert open_sockets("r.sock") == 2  # the server's own


async def test_a_stream_is_reset_by_a_message_that_cannot_be_read(raw: RawRuntime, channel: Channel) -> None:
    stream = channel.stream(LIST, b"", 100)
    reading = asyncio.ensure_future(stream.read())
    connection = await called(raw)
    connection.write(headers(1, write_response()), data(1, b"\1" + write_message(b"odd")[1:]))
    error = await failure(reading)
    assert (error.code, error.in_doubt) == (Code.INTERNAL, True)
    assert (await connection.frame(RST_STREAM)).stream == 1


class Broken:
    """A caller that cannot read."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._caller, name)

    def received(self, _data: bytes) -> None:
        raise KeyError("x")


async def test_a_bug_ends_the_calls_and_their_connection(
    runtime: FakeRuntime, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await soon(channel.wait_ready())
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["exception"]))

    monkeypatch.setattr(channel.connection, "caller", Broken(channel.connection.caller))
    error = await failure(channel.unary(VERSION, b"", 100))
    assert (error.code, error.in_doubt) == (Code.UNAVAILABLE, True)
    assert [str(bug) for bug in logged] == ["'x'"]
    assert await soon(channel.unary(UNKNOWN, b"next", 5)) == b"next"


async def test_a_connection_whose_streams_are_used_up_gives_way(
    runtime: FakeRuntime, channel: Channel
) -> None:
    await soon(channel.wait_ready())
    first = channel.connection
    first.caller._next_stream = (1 << 31) - 3
    for message in (b"last", b"first"):
        assert await soon(channel.unary(UNKNOWN, message, 5)) == message
    assert channel.connection is not first
    await until(lambda: not first.endpoint.is_open)


async def test_of_calls_that_are_over_nothing_is_kept(runtime: FakeRuntime, channel: Channel) -> None:
    runtime.script("Version", error=(5, "gone"))
    await failure(channel.unary(VERSION, b"", 5))
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            with contextlib.suppress(RpcError):
                await channel.unary(VERSION, b"", 5)
            await channel.unary(UNKNOWN, b"a", 5)
        kept = [kind for kind in gc.get_objects() if isinstance(kind, (OwnCall, ServerStream))]
        assert len(kept) <= 2  # at most the last ones
    finally:
        gc.enable()


async def test_a_bug_in_connecting_is_told_to_calls_and_tried_again(
    folder: Path, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    async def broken(path: str) -> Any:
        attempts.append(path)
        raise ZeroDivisionError("connect")

    monkeypatch.setattr("cri_proxy.relay.io.channel.connected", broken)
    with pytest.raises(RpcError, match="ZeroDivisionError: connect") as failed:
        await soon(channel.unary("/x.Y/Z", b""))
    assert failed.value.code is Code.UNAVAILABLE and not failed.value.in_doubt
    while len(attempts) < 2:
        await asyncio.sleep(0.005)
