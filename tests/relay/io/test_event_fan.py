"""Many clients' GetContainerEvents are one call at the runtime: real clients, a real server, real sockets."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.event_fan import MAX_SHARED
from cri_proxy.relay.io.server import FrameRelay
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.relay.io.frames import EVENTS, Recorder, soon, until

Metadata = tuple[tuple[str, str], ...]


class Subscriber:
    """One stream of events."""

    def __init__(
        self,
        client: CriClient,
        message: bytes = b"",
        metadata: Metadata = (),
        timeout: Optional[float] = None,
    ) -> None:
        assert client._channel is not None
        self.call: Any = client._channel.unary_stream(EVENTS)(message, metadata=metadata, timeout=timeout)

    async def next(self) -> str:
        """The id of the next event's container."""
        return str(cri.ContainerEventResponse.FromString(await soon(self.call.read())).container_id)

    async def end(self) -> tuple[grpc.StatusCode, str]:
        code = await soon(self.call.code())
        return code, str(await self.call.details())


async def joined(relay: FrameRelay, count: int) -> None:
    """So many streams read along."""
    await until(
        lambda: sum(len(link.connection.feed.readers) for link in relay._links if link.connection) == count
    )


def emit(runtime: FakeRuntime, name: str) -> None:
    runtime.emit(cri.ContainerEventResponse(container_id=name))


async def test_one_call_at_the_runtime_serves_all_and_ends_with_the_last(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, calls: Recorder
) -> None:
    async with CriClient(str(relay.sockets[0])) as other:
        readers = [Subscriber(by) for by in (client, other) for _ in range(20)]
        await joined(relay, 40)
        await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
        assert len(runtime.calls_of("GetContainerEvents")) == 1
        for name in ("a", "b", "c"):
            emit(runtime, name)
        for reader in readers:
            assert [await reader.next() for _ in range(3)] == ["a", "b", "c"]
        # The state learns of each once.
        assert [note[0] for note in calls.notes] == ["request"] + ["replied"] * 3
        for reader in readers[1:]:
            reader.call.cancel()
        await joined(relay, 1)
        emit(runtime, "d")
        assert await readers[0].next() == "d"
        assert runtime.subscribers == 1
        readers[0].call.cancel()
        await soon(runtime.wait_until(lambda: runtime.subscribers == 0))
        await soon(calls.until("ended"))
        again = Subscriber(client)
        await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
        await joined(relay, 1)
        emit(runtime, "e")
        assert await again.next() == "e"


async def test_who_comes_later_gets_what_comes_later(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    early = Subscriber(client)
    await joined(relay, 1)
    await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
    emit(runtime, "a")
    assert await early.next() == "a"
    late = Subscriber(client)
    await joined(relay, 2)
    emit(runtime, "b")
    assert (await early.next(), await late.next()) == ("b", "b")


async def test_a_queue_that_whoever_reads_takes_from_is_read_once(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    """containerd before 2.0: what is there already goes to the first that asks."""
    runtime.event_streams = "single"
    for name in ("a", "b"):
        emit(runtime, name)
    readers = [Subscriber(client) for _ in range(3)]
    assert [await readers[0].next() for _ in range(2)] == ["a", "b"]
    await joined(relay, 3)
    for name in ("c", "d"):
        emit(runtime, name)
    for reader in readers:
        names = [await reader.next() for _ in range(2)]
        while names[0] != "c":  # asked early enough for the first two
            names = [names[1], await reader.next()]
        assert names == ["c", "d"]


async def test_calls_that_differ_in_bytes_or_metadata_share_nothing(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    preferences: list[tuple[bytes, Metadata]] = [(b"", ()), (b"\xc2>\x03new", ()), (b"", (("x-a", "1"),))]
    readers = [Subscriber(client, *wish) for wish in preferences * 2]
    await joined(relay, 6)
    await soon(runtime.wait_until(lambda: runtime.subscribers == 3))
    sent = runtime.calls_of("GetContainerEvents")
    assert sorted(call.request[0] for call in sent) == [b"", b"", b"\xc2>\x03new"]
    assert sum(("x-a", "1") in call.metadata for call in sent) == 1
    emit(runtime, "a")
    for reader in readers:
        assert await reader.next() == "a"


async def test_a_call_with_a_deadline_goes_its_own_way_and_so_do_those_beyond_the_limit(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    readers = [Subscriber(client, metadata=(("x-a", str(number)),)) for number in range(MAX_SHARED)]
    await joined(relay, MAX_SHARED)
    readers += [Subscriber(client, timeout=100), Subscriber(client, metadata=(("x-b", "1"),))]
    await soon(runtime.wait_until(lambda: runtime.subscribers == MAX_SHARED + 2))
    timed = [call.time_remaining for call in runtime.calls_of("GetContainerEvents")]
    assert sum(remaining is not None and remaining < 101 for remaining in timed) == 1
    emit(runtime, "a")
    for reader in readers:
        assert await reader.next() == "a"
    await joined(relay, MAX_SHARED)


async def test_an_end_goes_to_all_as_it_came(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, calls: Recorder
) -> None:
    hold = asyncio.Event()
    runtime.script(
        "GetContainerEvents",
        hold=hold,
        reply=(b"last",),
        error=(grpc.StatusCode.DATA_LOSS, "as it came"),
        initial_metadata=(("x-first", "1"),),
        trailing_metadata=(("x-last", "2"), ("x-raw-bin", b"\x00\xff")),
    )
    work = [asyncio.ensure_future(client.call_bytes(EVENTS, b"")) for _ in range(3)]
    await joined(relay, 3)
    hold.set()
    for got in await soon(asyncio.gather(*work)):
        assert (got.code, got.details, got.messages) == (15, "as it came", (b"last",))
        assert ("x-first", "1") in got.initial_metadata
        assert {("x-last", "2"), ("x-raw-bin", b"\x00\xff")} <= set(got.trailing_metadata)
    await soon(calls.until("ended"))
    assert calls.notes[-1] == ("ended", CallEnd.REFUSED, 15)
    assert len(runtime.calls_of("GetContainerEvents")) == 1


async def test_a_runtime_without_events_answers_each(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    runtime.event_streams = "none"
    for _ in range(3):
        code, details = await Subscriber(client).end()
        assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, "method GetContainerEvents not implemented")
    assert len(runtime.calls_of("GetContainerEvents")) == 3


async def test_when_the_runtime_dies_all_are_told(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    readers = [Subscriber(client) for _ in range(3)]
    await joined(relay, 3)
    await runtime.stop()
    # A runtime that ends cancels its calls before it closes, if it gets to it.
    ends = {(await reader.end())[0] for reader in readers}
    assert len(ends) == 1 and ends <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@pytest.mark.parametrize("keeps", [b"", None], ids=["less", "nothing"])
async def test_what_is_cut_out_is_cut_for_all(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, calls: Recorder, keeps: Optional[bytes]
) -> None:
    hold = asyncio.Event()
    runtime.script("GetContainerEvents", hold=hold, reply=(b"one", b"secret", b"two"))
    calls.filter = lambda message: keeps if message == b"secret" else message
    work = [asyncio.ensure_future(client.call_bytes(EVENTS, b"")) for _ in range(3)]
    await joined(relay, 3)
    hold.set()
    wanted = (b"one", b"two") if keeps is None else (b"one", b"", b"two")
    for got in await soon(asyncio.gather(*work)):
        assert (got.code, got.messages) == (0, wanted)


async def test_a_client_that_takes_nothing_is_ended_and_the_others_get_all(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient
) -> None:
    hold = asyncio.Event()
    messages = tuple(b"%03d" % number * 10_000 for number in range(200))
    runtime.script("GetContainerEvents", hold=hold, reply=messages)
    async with CriClient(str(relay.sockets[0])) as other:
        slow = Subscriber(other)
        quick = asyncio.ensure_future(client.call_bytes(EVENTS, b""))
        await joined(relay, 2)
        hold.set()
        got = await soon(quick)
        assert (got.code, got.messages) == (0, messages)
        assert (await slow.end())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_clients_that_leave_while_the_call_is_made_leave_nothing(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, calls: Recorder
) -> None:
    calls.deciding = asyncio.Event()
    reader = Subscriber(client)
    await soon(calls.until("request"))
    reader.call.cancel()
    await until(lambda: all(not link.methods for link in relay._links))
    calls.deciding.set()
    await until(lambda: not relay.tasks)
    assert calls.notes[-1] == ("ended", CallEnd.UNKNOWN, 1) and runtime.subscribers == 0
    assert not relay.fan._shared  # type: ignore[attr-defined]


async def test_when_the_runtime_accepts_no_more_a_call_goes_its_own_way(
    runtime: FakeRuntime, relay: FrameRelay, client: CriClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(path: str) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("cri_proxy.relay.io.event_fan.connected", refused)
    reader = Subscriber(client)
    await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
    emit(runtime, "a")
    assert await reader.next() == "a"
