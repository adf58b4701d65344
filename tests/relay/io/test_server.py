"""The frame relay between real gRPC clients and a real gRPC server, on real sockets: connections that come, go and stay."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

import grpc
import pytest

from cri_api.socket_paths import SocketTaken
from cri_proxy.relay.http2 import frames
from cri_proxy.relay.http2.local import NO_RUNTIME
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.drain import STOPPING
from cri_proxy.relay.io.links import Kind
from cri_proxy.relay.io.server import ACCEPT_AT_ONCE, ACCEPTING, REACHING, FrameRelay
from tests.cri_client import CriClient
from tests.relay.http2.hand import CONFIRMED, CREATE, VERSION, data, headers, ping
from tests.relay.io.frames import (
    EVENTS,
    HANG_S,
    UNKNOWN,
    Raw,
    RawRuntime,
    behind_relay,
    links_of,
    relaying,
    request,
    soon,
    until,
)

STATUS = "/runtime.v1.RuntimeService/Status"


class Troubles:
    """What clients wait for, by topic, as the health has it."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}

    def __call__(self, topic: str, sentence: str) -> None:
        self.now.pop(topic, None)
        if sentence:
            self.now[topic] = sentence


# ---------------------------------------------------------------------- the runtime comes and goes


async def test_without_a_runtime_calls_are_answered_and_work_again_with_it(runtime, relay) -> None:
    # grpc's own back-off is a second and more: no client may come to wait for it.
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix:{relay.sockets[0]}", options=options) as channel:
        version = channel.unary_unary(VERSION)
        await soon(version(b""))
        for _ in range(3):
            await runtime.stop()
            while True:  # until the connection to it has ended, and then over a new one
                failed = version(b"")
                assert await soon(failed.code()) is grpc.StatusCode.UNAVAILABLE
                if await failed.details() == NO_RUNTIME:
                    break
            await runtime.start()
            while (code := await soon((again := version(b"")).code())) is not grpc.StatusCode.OK:
                assert code is grpc.StatusCode.UNAVAILABLE
                assert "failed to connect" not in str(await again.details())


async def test_calls_under_way_end_unavailable_when_the_runtime_dies(runtime, client, calls) -> None:
    runtime.script("CreateContainer", then_hang=True)
    runtime.script("Version", then_hang=True)
    both = [asyncio.ensure_future(client.call_bytes(method, b"")) for method in (CREATE, VERSION)]
    await soon(runtime.wait_for_call("CreateContainer"))
    await soon(runtime.wait_for_call("Version"))
    await runtime.stop()
    assert [(await soon(call)).code for call in both] == [14, 14]
    assert calls.notes[-1] == ("ended", CallEnd.UNKNOWN, 14)


async def test_a_runtime_that_is_killed_in_the_middle_of_a_reply_ends_calls_and_the_connection(
    folder, calls
) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay, request(VERSION, 1), request(CREATE, 3))
        await soon(calls.until("request"))
        await until(lambda: bool(runtime.connections))
        # Half of a frame, then nothing more.
        runtime.connections[0].write(headers(1, b"\x88"), data(1, bytes(100))[:50])
        assert (await client.frame(frames.HEADERS)).stream == 1
        runtime.connections[0].writer.transport.abort()
        ends = [await client.frame(frames.HEADERS) for _ in range(2)]
        assert [(end.stream, b"\x0bgrpc-status\x0214" in end.payload) for end in ends] == [
            (1, True),
            (3, True),
        ]
        assert int.from_bytes((await client.frame(frames.GOAWAY)).payload[:4], "big") == 3
        assert await soon(client.reader.read()) == b""  # and then it is closed
        await client.close()
        await links_of(relay, 0)
    assert calls.notes[-1][0] == "ended" and calls.notes[-1][2] == 14


async def test_clients_without_a_runtime_are_sent_away_as_soon_as_there_is_one(folder, calls) -> None:
    async with relaying(f"{folder}/r.sock", f"{folder}/k.sock", calls) as relay:
        waiting = await Raw.connect(relay, request(VERSION, 1))
        assert b"\x0bgrpc-status\x0214" in (await waiting.frame(frames.HEADERS)).payload
        async with RawRuntime(f"{folder}/r.sock") as runtime:
            assert int.from_bytes((await waiting.frame(frames.GOAWAY)).payload[:4], "big") == 1
            await waiting.close()
            again = await Raw.connect(relay, request(VERSION, 1))
            await until(lambda: any(c.reader._buffer for c in runtime.connections))  # type: ignore[attr-defined]
            await again.close()
    assert calls.notes == []


async def test_a_runtime_that_cannot_be_connected_to_is_not_said_to_be_away(folder, calls) -> None:
    path, troubles = f"{folder}/r.sock", Troubles()
    other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.bind(path)
    async with relaying(path, f"{folder}/k.sock", calls, on_trouble=troubles) as relay:
        client = await Raw.connect(relay, request(VERSION, 1))
        said = (await client.frame(frames.HEADERS)).payload
        sentence = f"no connection to the container runtime at {path}: Protocol wrong type for socket"
        assert sentence.encode() in said and troubles.now == {REACHING: sentence}
        other.close()
        Path(path).unlink()
        async with RawRuntime(path):
            await client.frame(frames.GOAWAY)
            await client.close()
            await until(lambda: troubles.now == {})


# ---------------------------------------------------------------------- stopping


async def test_a_call_that_crosses_the_farewell_is_served_and_the_client_is_told_which_were(
    runtime, relay
) -> None:
    hold = asyncio.Event()
    runtime.script("Version", hold=hold)
    client = await Raw.connect(relay, request(VERSION, 1))
    await soon(runtime.wait_for_call("Version"))
    closing = asyncio.ensure_future(relay.close(HANG_S))
    assert int.from_bytes((await client.frame(frames.GOAWAY)).payload[:4], "big") == frames.ANY_STREAM
    # It answers, and begins another call that it had in hand.
    client.write(ping(await client.ping_of_ours(), is_answer=True), request(UNKNOWN, 3))
    assert (await client.frame(frames.DATA)).stream == 3 and not closing.done()
    hold.set()
    assert (await client.frame(frames.DATA)).stream == 1
    assert int.from_bytes((await client.frame(frames.GOAWAY)).payload[:4], "big") == 3
    await client.close()
    await soon(closing)


async def test_who_has_just_connected_is_told_to_come_again(runtime, relay) -> None:
    client = await Raw.silent(relay)
    await links_of(relay, 1)
    closing = asyncio.ensure_future(relay.close(HANG_S))
    assert int.from_bytes((await client.frame(frames.GOAWAY)).payload[:4], "big") == frames.ANY_STREAM
    client.write(frames.PREFACE + frames.write_settings(), request(UNKNOWN, 1))
    served = []
    while (frame := await client.frame(frames.PING, frames.DATA, frames.GOAWAY)).kind != frames.GOAWAY:
        if frame.kind == frames.PING:
            client.write(ping(frame.payload, is_answer=True))
        else:
            served.append(frame.stream)
    assert served == [1]
    assert int.from_bytes(frame.payload[:4], "big") == 1
    await client.close()
    await soon(closing)


async def test_who_does_not_answer_a_farewell_is_not_waited_for_without_end(runtime, relay) -> None:
    client = await Raw.connect(relay, request(UNKNOWN, 1))
    await client.frame(frames.DATA)
    await soon(relay.close(0))
    await client.close()


async def test_a_stop_lets_calls_end_and_tells_streams_to_come_again(runtime, relay, client) -> None:
    hold = asyncio.Event()
    runtime.script("Version", hold=hold)
    version = asyncio.ensure_future(client.call_bytes(VERSION, b""))
    events = asyncio.ensure_future(client.call_bytes(EVENTS, b""))
    await soon(runtime.wait_until(lambda: runtime.subscribers == 1 and bool(runtime.calls_of("Version"))))
    closing = asyncio.ensure_future(relay.close(HANG_S))
    ended = await soon(events)
    assert (ended.code, ended.details) == (14, STOPPING)
    assert not version.done() and not closing.done()
    hold.set()
    assert (await soon(version)).code == 0
    await soon(closing)
    assert not relay.sockets[0].exists()
    await relay.close(0)  # again: nothing


async def test_a_stop_waits_no_longer_than_it_is_told(runtime, relay, client, calls) -> None:
    runtime.script("CreateContainer", then_hang=True)
    create = asyncio.ensure_future(client.call_bytes(CREATE, b"create"))
    await soon(runtime.wait_for_call("CreateContainer"))
    await soon(relay.close(0))
    assert ((await create).code, (await create).details) == (14, STOPPING)
    assert calls.notes[-1] == ("ended", CallEnd.UNKNOWN, 14)


# ---------------------------------------------------------------------- sockets


async def test_several_clients_have_connections_of_their_own(runtime, relay) -> None:
    async def one(number: int) -> None:
        async with CriClient(str(relay.sockets[0])) as client:
            for _ in range(5):
                message = bytes([number]) * 1000
                assert (await soon(client.call_bytes(UNKNOWN, message))).messages == (message,)

    await asyncio.gather(*(one(number) for number in range(16)))
    await links_of(relay, 0)


async def test_a_socket_that_is_served_is_not_taken(folder, relay, calls) -> None:
    other = FrameRelay(f"{folder}/r.sock", calls)
    with pytest.raises(SocketTaken, match=r"k\.sock is served by another process"):
        await other.open([relay.sockets[0]], [])
    problems = await other.open([Path(f"{folder}/2.sock"), relay.sockets[0]], [])
    assert list(problems) == [relay.sockets[0]] and other.sockets == [Path(f"{folder}/2.sock")]
    await other.close(0)
    assert relay.sockets[0].exists() and not Path(f"{folder}/2.sock").exists()


async def test_a_listening_socket_that_was_given_is_served_and_stays(folder, runtime, calls) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/s.sock")
    listener.listen()
    relay = FrameRelay(runtime.socket, calls)
    assert await relay.open([Path(f"{folder}/s.sock")], [listener]) == {}
    await relay.start_behind(asyncio.sleep(0))
    async with CriClient(f"{folder}/s.sock") as client:
        assert (await soon(client.call_bytes(VERSION, b""))).code == 0
    await soon(relay.close(1))
    assert Path(f"{folder}/s.sock").exists()


# ---------------------------------------------------------------------- limits


async def test_without_descriptors_clients_wait_at_the_socket_and_that_is_told(
    folder, runtime, calls
) -> None:
    troubles = Troubles()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with relaying(runtime.socket, f"{folder}/k.sock", calls, on_trouble=troubles) as relay:
        client = await Raw.connect(relay, request(VERSION, 1))
        await links_of(relay, 1)
        late = socket.socket(socket.AF_UNIX)
        late.connect(str(relay.sockets[0]))
        with os.fdopen(os.dup(0)) as free:
            lowest = free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            await until(lambda: not relay._is_accepting)
            sentence = "no more connections can be accepted: Too many open files; a client that connects waits at the socket"
            assert troubles.now == {ACCEPTING: sentence}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await links_of(relay, 2)
        await until(lambda: troubles.now == {})
        late.close()
        await client.close()
        await links_of(relay, 0)


async def test_more_connections_with_calls_than_the_limit_wait_at_the_socket(folder, calls) -> None:
    troubles = Troubles()
    async with behind_relay(folder, calls, on_trouble=troubles) as (runtime, relay):
        relay._most_busy = 8
        clients = [await Raw.connect(relay, request(VERSION, 1)) for _ in range(8)]
        await until(lambda: len(runtime.connections) == 8)
        late = await Raw.connect(relay, request(VERSION, 1))
        await until(lambda: not relay._is_accepting)
        limit = "8 connections have calls, which is the limit; a client that connects waits at the socket"
        assert troubles.now == {ACCEPTING: limit}
        assert len(relay._links) == 8 and len(runtime.connections) == 8
        await clients.pop().close()
        await until(lambda: len(runtime.connections) == 9)
        assert bytes(await soon(runtime.connections[-1].reader.readexactly(24))) == frames.PREFACE
        await clients.pop().close()
        await until(lambda: troubles.now == {})
        assert relay._is_accepting
        for client in (late, *clients):
            await client.close()
        await links_of(relay, 0)


async def test_the_limit_counts_calls_and_not_connections_that_had_some(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        relay._most_busy = 2
        clients = []
        for number in range(4):
            clients.append(await Raw.connect(relay, request(VERSION, 1)))
            await until(lambda number=number: len(runtime.connections) == number + 1)
            runtime.connections[number].write(headers(1, b"\x88", end=True))
            await clients[number].frame(frames.HEADERS)
        assert relay._is_accepting
        for client in clients:
            await client.close()
        await links_of(relay, 0)


async def test_the_time_of_the_last_call_is_known_whether_or_not_it_passes(runtime, relay, client) -> None:
    assert relay.last_call_age_s is None
    for method in (CREATE, VERSION):
        before_s = relay.last_call_s or 0.0
        await soon(client.call_bytes(method, b""))
        assert relay.last_call_s is not None and relay.last_call_s > before_s
    assert relay.last_call_age_s is not None and relay.last_call_age_s >= 0


# ---------------------------------------------------------------------- idle connections


async def test_a_connection_without_a_call_is_answered_and_costs_none_to_the_runtime(folder, calls) -> None:
    async with behind_relay(folder, calls) as (runtime, relay):
        client = await Raw.connect(relay)
        assert (await client.frame(frames.SETTINGS)).payload == b""
        assert runtime.connections == []
        client.write(CONFIRMED, request(VERSION, 1))
        await until(lambda: len(runtime.connections) == 1)
        # As it came, but for the answer to what the runtime has not said.
        said = frames.PREFACE + frames.write_settings((4, 2**31 - 1)) + request(VERSION, 1)
        assert await soon(runtime.connections[0].reader.readexactly(len(said))) == said
        await client.close()


async def test_of_too_many_idle_connections_those_go_first_that_never_finished_their_preface_then_the_oldest(
    runtime, folder, calls
) -> None:
    dismissals: list[None] = []
    notes = {"most_idle": 8, "on_dismissal": lambda: dismissals.append(None)}
    async with (
        relaying(runtime.socket, f"{folder}/k.sock", calls, **notes) as relay,
        CriClient(str(relay.sockets[0])) as kubelet,
    ):
        assert (await soon(kubelet.call_bytes(VERSION, b""))).code == 0
        [link] = await links_of(relay, 1)
        await until(lambda: relay._links.count(Kind.IDLE) == 1)
        halves = []
        for number in range(20):
            halves.append(await Raw.silent(relay))
            halves[-1].write(frames.PREFACE[:12])
            await until(lambda number=number: len(relay._links) + len(dismissals) == number + 2)
        assert len(relay._links) == 8 and len(dismissals) == 13
        for half in halves[:13]:
            assert await soon(half.reader.read()) == b""
        unused = []
        for _ in range(20):
            unused.append(await Raw.connect(relay))
            await unused[-1].frame(frames.SETTINGS)
        assert len(relay._links) == 8 and len(dismissals) == 33
        # The last to come are there; those that went were told to come again.
        assert (await unused[0].frame(frames.GOAWAY)).payload.endswith(b"idle, and there are many")
        assert link in list(relay._links)
        assert (await soon(kubelet.call_bytes(VERSION, b""))).code == 0
        for raw in (*halves, *unused):
            await raw.close()


async def test_of_connections_that_had_calls_the_one_that_is_idle_for_longest_goes_and_busy_ones_stay(
    runtime, folder, calls
) -> None:
    hold = asyncio.Event()
    runtime.script("Status", hold=hold)
    async with relaying(runtime.socket, f"{folder}/k.sock", calls, most_idle=8) as relay:
        busy = await Raw.connect(relay, request(STATUS, 1))
        await soon(runtime.wait_for_call("Status"))
        clients = []
        for _ in range(8):
            clients.append(await Raw.connect(relay, request(VERSION, 1)))
            await clients[-1].frame(frames.DATA)
        await until(lambda: relay._links.count(Kind.IDLE) == 8)
        clients[0].write(request(VERSION, 3))  # so the second is the oldest now
        await clients[0].frame(frames.DATA)
        await until(lambda: relay._links.count(Kind.IDLE) == 8)
        clients.append(await Raw.connect(relay))
        went = await clients[1].frame(frames.GOAWAY)
        assert int.from_bytes(went.payload[:4], "big") == 1
        assert len(relay._links) - relay._links.count(Kind.GOING) == 9
        hold.set()
        assert (await busy.frame(frames.DATA)).stream == 1
        for raw in (busy, *clients):
            await raw.close()


async def test_connections_are_accepted_few_at_a_time_and_what_they_say_is_read_in_between(
    runtime, relay
) -> None:
    """However many come, a client that has connected is answered after a bounded number of others."""
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(3 * ACCEPT_AT_ONCE)]
    for one in sockets:
        one.connect(str(relay.sockets[0]))
        one.sendall(frames.PREFACE + frames.write_settings())
    relay._accept(next(iter(relay._own.values())))
    assert relay._links.count(Kind.UNFINISHED) == ACCEPT_AT_ONCE
    await until(lambda: relay._links.count(Kind.UNUSED) == len(sockets))
    for one in sockets:
        one.close()
    await links_of(relay, 0)
