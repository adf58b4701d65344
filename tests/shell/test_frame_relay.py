"""The frame relay between real gRPC clients and a real gRPC server, on real sockets."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import grpc
import pytest
import pytest_asyncio

from cri_proxy.core.http2.frames import (
    GOAWAY,
    HEADERS,
    PREFACE,
    write_frame,
    write_settings,
    write_window_update,
)
from cri_proxy.core.http2.local import NO_RUNTIME
from cri_proxy.core.interception import Answer, AnswerFailed, End, Forward, Outcome, Refuse, intercepted
from cri_proxy.shell.frame_relay import FrameRelay
from cri_proxy.shell.listen import SocketTaken
from cri_proxy.shell.relay import STOPPING
from tests.core.http2.pair import written
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

HANG_S = 20.0
VERSION = "/runtime.v1.RuntimeService/Version"
CREATE = "/runtime.v1.RuntimeService/CreateContainer"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
UNKNOWN = "/a.b/Unknown"


class Recorder:
    """An interceptor that does as it is told, and notes what it is told; ``hold``: ``replied`` waits for it."""

    def __init__(self) -> None:
        self.outcome: Outcome = Forward()
        self.notes: list[tuple[Any, ...]] = []
        self.filter: Optional[Callable[[bytes], Optional[bytes]]] = None
        self.hold: Optional[asyncio.Event] = None
        self.deciding: Optional[asyncio.Event] = None

    def open(self, full_method: str) -> Optional[Recorder]:
        return self if intercepted(full_method) else None

    async def request(self, message: bytes) -> Outcome:
        self.notes.append(("request", message))
        if self.deciding is not None:
            await self.deciding.wait()
        return self.outcome

    async def replied(self, message: bytes) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.notes.append(("replied", message))

    async def ended(self, end: End, code: int, details: str) -> None:
        self.notes.append(("ended", end, code))

    async def until(self, kind: str, count: int = 1) -> None:
        while sum(note[0] == kind for note in self.notes) < count:
            await asyncio.sleep(0.005)


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="crr-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest_asyncio.fixture
async def runtime(folder: str) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(f"{folder}/r.sock") as runtime:
        yield runtime


@pytest.fixture
def calls() -> Recorder:
    return Recorder()


@pytest_asyncio.fixture
async def relay(folder: str, calls: Recorder) -> AsyncIterator[FrameRelay]:
    relay = FrameRelay(f"{folder}/r.sock", calls)
    await relay.open([Path(f"{folder}/k.sock")], [])
    await relay.start_behind(asyncio.sleep(0))
    yield relay
    await relay.close(0)


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime, relay: FrameRelay) -> AsyncIterator[CriClient]:
    async with CriClient(str(relay.sockets[0])) as client:
        yield client


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, HANG_S)


# ---------------------------------------------------------------------- interceptions


async def test_a_call_is_shown_in_order_and_its_delta_arrives(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    calls.outcome = Forward(b"+delta")
    runtime.script("CreateContainer", reply=b"the id")
    reply = await soon(client.call_bytes(CREATE, b"create"))
    assert reply.messages == (b"the id",) and runtime.calls_of("CreateContainer")[0].request == (
        b"create+delta",
    )
    assert calls.notes == [("request", b"create"), ("replied", b"the id"), ("ended", End.OK, 0)]


async def test_a_refusal_reaches_the_client_and_nothing_the_runtime(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    calls.outcome = Refuse(9, "größer than\nall")
    for _ in range(3):
        reply = await soon(client.call_bytes(CREATE, b"create", metadata=(("x-new", "entry"),)))
        assert (reply.code, reply.details, reply.messages) == (9, "größer than\nall", ())
        assert (await soon(client.call_bytes(VERSION, b""))).code == 0
    assert all(call.request == () for call in runtime.calls_of("CreateContainer"))
    assert calls.notes == 3 * [("request", b"create"), ("ended", End.REFUSED, 9)]


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
async def test_an_answer_is_all_the_client_gets(client: CriClient, calls: Recorder, size: int) -> None:
    async def reply() -> bytes:
        return bytes(size)

    calls.outcome = Answer(reply)
    for _ in range(2):
        found = await soon(client.call_bytes(CREATE, b"create"))
        assert (found.code, found.messages) == (0, (bytes(size),))
    assert calls.notes[-1] == ("ended", End.OK, 0)


async def test_an_answer_that_fails_says_why_with_its_trailers(client: CriClient, calls: Recorder) -> None:
    async def reply() -> bytes:
        raise AnswerFailed(5, "not found: 7%", (("t", "1"), ("t-bin", b"\0\xff")))

    calls.outcome = Answer(reply)
    found = await soon(client.call_bytes(CREATE, b"create"))
    assert (found.code, found.details) == (5, "not found: 7%")
    assert found.trailing_metadata == (("t", "1"), ("t-bin", b"\0\xff"))
    assert calls.notes[-1] == ("ended", End.REFUSED, 5)


async def test_an_answer_runs_to_its_end_when_the_client_has_gone(client: CriClient, calls: Recorder) -> None:
    go_on = asyncio.Event()

    async def reply() -> bytes:
        await go_on.wait()
        return b"made"

    calls.outcome = Answer(reply)
    call = client._channel.unary_unary(CREATE)(b"create")
    await soon(calls.until("request"))
    call.cancel()
    assert (await soon(client.call_bytes(VERSION, b""))).code == 0
    go_on.set()
    await soon(calls.until("ended"))
    assert calls.notes[-1] == ("ended", End.OK, 0)


async def test_a_filter_cuts_messages_and_leaves_some_out_also_when_it_comes_late(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    runtime.script("GetContainerEvents", reply=(b"one", b"secret", b"three" * 20_000, b""))
    calls.filter = lambda message: None if message == b"secret" else message[:50_000]
    assert (await soon(client.call_bytes(EVENTS, b""))).messages == (
        b"one",
        (b"three" * 20_000)[:50_000],
        b"",
    )
    calls.filter = None
    assert len((await soon(client.call_bytes(EVENTS, b""))).messages) == 4


async def test_the_client_learns_nothing_before_it_is_noted(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    calls.hold = asyncio.Event()
    runtime.script("CreateContainer", reply=b"the id")
    call = asyncio.ensure_future(client.call_bytes(CREATE, b"create"))
    await soon(runtime.wait_until(lambda: any(c.finished for c in runtime.calls_of("CreateContainer"))))
    assert not call.done()
    calls.hold.set()
    assert (await soon(call)).messages == (b"the id",)


@pytest.mark.parametrize("was_sent", [False, True], ids=["while it is decided", "after it was sent"])
async def test_a_client_that_leaves_cancels_what_was_not_sent(
    runtime: FakeRuntime, client: CriClient, calls: Recorder, was_sent: bool
) -> None:
    runtime.script("CreateContainer", then_hang=True)
    calls.deciding = asyncio.Event()
    if was_sent:
        calls.deciding.set()
    call = client._channel.unary_unary(CREATE)(b"create")
    await soon(calls.until("request"))
    if was_sent:
        await soon(runtime.wait_for_call("CreateContainer"))
    call.cancel()
    assert (await soon(client.call_bytes(VERSION, b""))).code == 0  # the reset came before it
    calls.deciding.set()
    await soon(calls.until("ended"))
    assert calls.notes[-1] == ("ended", End.UNKNOWN if was_sent else End.REFUSED, 1)
    await soon(runtime.wait_until(lambda: all(c.finished for c in runtime.calls_of("CreateContainer"))))


@pytest.mark.parametrize("step", ["request", "replied"])
async def test_an_interception_that_fails_passes_its_call_on(
    folder: str, runtime: FakeRuntime, calls: Recorder, step: str
) -> None:
    async def broken(message: bytes) -> Outcome:
        raise ZeroDivisionError(step)

    bugs: list[Exception] = []
    setattr(calls, step, broken)
    relay = FrameRelay(runtime.socket, calls, on_bug=bugs.append)
    await relay.open([Path(f"{folder}/b.sock")], [])
    await relay.start_behind(asyncio.sleep(0))
    async with CriClient(f"{folder}/b.sock") as client:
        runtime.script("CreateContainer", reply=b"the id")
        reply = await soon(client.call_bytes(CREATE, b"create"))
    assert reply.messages == (b"the id",) and runtime.calls_of("CreateContainer")[0].request == (b"create",)
    assert [str(bug) for bug in bugs] == [step] and calls.notes[-1] == ("ended", End.OK, 0)
    await relay.close(0)


async def test_a_reply_that_is_noted_too_slowly_passes_all_the_same(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    calls.hold = asyncio.Event()
    runtime.script("GetContainerEvents", reply=(b"event",), then_hang=False)
    call = client._channel.unary_stream(EVENTS)(b"")
    assert await soon(call.read()) == b"event"
    assert calls.notes == [("request", b"")]
    calls.hold.set()
    await soon(calls.until("ended"))
    assert calls.notes[1:] == [("replied", b"event"), ("ended", End.OK, 0)]


async def test_other_calls_pass_while_one_is_decided(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    calls.deciding = asyncio.Event()
    waiting = asyncio.ensure_future(client.call_bytes(CREATE, bytes(1 << 20)))
    await soon(calls.until("request"))
    for _ in range(20):
        assert (await soon(client.call_bytes(UNKNOWN, bytes(10_000)))).messages == (bytes(10_000),)
    runtime.script("CreateContainer", reply=b"")
    calls.deciding.set()
    assert (await soon(waiting)).code == 0


# ---------------------------------------------------------------------- the runtime comes and goes


async def test_without_a_runtime_calls_are_answered_and_work_again_with_it(
    runtime: FakeRuntime, relay: FrameRelay
) -> None:
    # grpc's own back-off, of a second and more: nobody may come to wait for it.
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


async def test_calls_under_way_end_unavailable_when_the_runtime_dies(
    runtime: FakeRuntime, client: CriClient, calls: Recorder
) -> None:
    runtime.script("CreateContainer", then_hang=True)
    runtime.script("Version", then_hang=True)
    both = [asyncio.ensure_future(client.call_bytes(method, b"")) for method in (CREATE, VERSION)]
    await soon(runtime.wait_for_call("CreateContainer"))
    await soon(runtime.wait_for_call("Version"))
    await runtime.stop()
    assert [(await soon(call)).code for call in both] == [14, 14]
    assert calls.notes[-1] == ("ended", End.UNKNOWN, 14)


# ---------------------------------------------------------------------- stopping


async def test_a_stop_lets_calls_end_and_tells_streams_to_come_again(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
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


async def test_a_stop_waits_no_longer_than_it_is_told(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, calls: Recorder
) -> None:
    runtime.script("CreateContainer", then_hang=True)
    create = asyncio.ensure_future(client.call_bytes(CREATE, b"create"))
    await soon(runtime.wait_for_call("CreateContainer"))
    await soon(relay.close(0))
    assert ((await create).code, (await create).details) == (14, STOPPING)
    assert calls.notes[-1] == ("ended", End.UNKNOWN, 14)


# ---------------------------------------------------------------------- connections


class Raw:
    """A client that is nobody's library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, relay: FrameRelay, *frames: bytes) -> Raw:
        raw = cls(*await asyncio.open_unix_connection(str(relay.sockets[0])))
        raw.writer.write(PREFACE + write_settings((4, 2**31 - 1)) + b"".join(frames))
        return raw

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def request(method: str, stream: int) -> bytes:
    block = b"\x83\x86\x04" + bytes([len(method)]) + method.encode() + b"\x41\x01x"
    block += b"\x5f\x10application/grpc\x40\x02te\x08trailers"
    return write_frame(HEADERS, 4, stream, block) + write_frame(0, 1, stream, bytes(5))


async def test_a_client_that_does_not_read_does_not_grow_our_memory(
    runtime: FakeRuntime, relay: FrameRelay
) -> None:
    runtime.script("Version", reply=tuple(bytes(1 << 20) for _ in range(64)))
    raw = await Raw.connect(relay, write_window_update(0, 2**31 - 70_000), request(VERSION, 1))
    [link] = await soon(_links(relay, 1))
    await soon(_until(lambda: link.client.is_full and not link.runtime._is_reading))
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.client.unwritten < 2 << 20
    read = 0
    while read < 64 << 20:
        read += len(await soon(raw.reader.read(1 << 20)))
    await raw.close()
    await soon(_links(relay, 0))


@pytest.mark.parametrize("half", [True, False], ids=["half", "whole"])
async def test_a_connection_that_ends_on_one_side_ends(
    runtime: FakeRuntime, relay: FrameRelay, half: bool
) -> None:
    raw = await Raw.connect(relay)
    await soon(_links(relay, 1))
    if half:
        raw.writer.write_eof()
        await soon(raw.reader.read())
    await raw.close()
    await soon(_links(relay, 0))


async def test_what_is_not_http2_is_sent_away_and_others_are_not(
    runtime: FakeRuntime, client: CriClient, relay: FrameRelay
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(relay.sockets[0]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await soon(reader.read())
    assert [frame[0] for frame in written(said)][-1] == GOAWAY
    writer.close()
    await writer.wait_closed()
    assert (await soon(client.call_bytes(VERSION, b""))).code == 0


async def test_several_clients_have_connections_of_their_own(runtime: FakeRuntime, relay: FrameRelay) -> None:
    async def one(number: int) -> None:
        async with CriClient(str(relay.sockets[0])) as client:
            for _ in range(5):
                message = bytes([number]) * 1000
                assert (await soon(client.call_bytes(UNKNOWN, message))).messages == (message,)

    await asyncio.gather(*(one(number) for number in range(16)))
    await soon(_links(relay, 0))


async def test_a_socket_that_is_served_is_not_taken(folder: str, relay: FrameRelay, calls: Recorder) -> None:
    other = FrameRelay(f"{folder}/r.sock", calls)
    with pytest.raises(SocketTaken, match=r"k\.sock is served by another process"):
        await other.open([relay.sockets[0]], [])
    problems = await other.open([Path(f"{folder}/2.sock"), relay.sockets[0]], [])
    assert list(problems) == [relay.sockets[0]] and other.sockets == [Path(f"{folder}/2.sock")]
    await other.close(0)
    assert relay.sockets[0].exists() and not Path(f"{folder}/2.sock").exists()


async def test_a_listening_socket_that_was_given_is_served_and_stays(
    folder: str, runtime: FakeRuntime, calls: Recorder
) -> None:
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


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def _links(relay: FrameRelay, count: int) -> Any:
    await _until(lambda: len(relay._links) == count)
    return list(relay._links)
