"""GetContainerEvents has a call of its own at the runtime, which is always read: real clients, a real server."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.http2.frames import HEADERS, PREFACE, RST_STREAM, Error, write_settings
from cri_proxy.relay.interception import CallEnd
from cri_proxy.relay.io.server import FrameRelay
from cri_proxy.relay.io.subscription import MOST_SUBSCRIPTIONS, TOO_SLOW
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.relay.io.frames import EVENTS, Raw, request, soon, until

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


async def joined(runtime: FakeRuntime, relay: FrameRelay, count: int) -> None:
    """So many are subscribed, by connections of their own."""
    await soon(runtime.wait_until(lambda: runtime.subscribers == count))
    await until(lambda: len(relay.subscriptions) == count)


def emit(runtime: FakeRuntime, name: str) -> None:
    runtime.emit(cri.ContainerEventResponse(container_id=name))


async def test_each_subscriber_has_a_call_of_its_own_and_gets_all(runtime, relay, client, calls) -> None:
    async with CriClient(str(relay.sockets[0])) as other:
        readers = [Subscriber(by) for by in (client, client, other)]
        await joined(runtime, relay, 3)
        for name in ("a", "b", "c"):
            emit(runtime, name)
        for reader in readers:
            assert [await reader.next() for _ in range(3)] == ["a", "b", "c"]
        assert [note[0] for note in calls.notes].count("replied") == 9
        for reader in readers[1:]:
            reader.call.cancel()
        await joined(runtime, relay, 1)
        emit(runtime, "d")
        assert await readers[0].next() == "d"
        readers[0].call.cancel()
        await joined(runtime, relay, 0)
        await soon(calls.until("ended", 3))


async def test_the_runtime_gets_the_call_as_the_client_has_made_it(runtime, relay, client) -> None:
    Subscriber(client, b"\xc2>\x03new", (("x-a", "1"),), timeout=100)
    await joined(runtime, relay, 1)
    [call] = runtime.calls_of("GetContainerEvents")
    assert (call.request, ("x-a", "1") in call.metadata) == ((b"\xc2>\x03new",), True)
    assert call.time_remaining is not None and call.time_remaining < 101


async def test_those_beyond_the_limit_are_relayed_as_any_call(runtime, relay, client) -> None:
    readers = [Subscriber(client) for _ in range(MOST_SUBSCRIPTIONS + 2)]
    await soon(runtime.wait_until(lambda: runtime.subscribers == len(readers)))
    assert len(relay.subscriptions) == MOST_SUBSCRIPTIONS
    emit(runtime, "a")
    for reader in readers:
        assert await reader.next() == "a"


async def test_an_end_comes_as_it_was_said(runtime, relay, client, calls) -> None:
    runtime.script(
        "GetContainerEvents",
        reply=(b"last",),
        error=(grpc.StatusCode.DATA_LOSS, "as it came"),
        initial_metadata=(("x-first", "1"),),
        trailing_metadata=(("x-last", "2"), ("x-raw-bin", b"\x00\xff")),
    )
    got = await soon(client.call_bytes(EVENTS, b""))
    assert (got.code, got.details, got.messages) == (15, "as it came", (b"last",))
    assert ("x-first", "1") in got.initial_metadata
    assert {("x-last", "2"), ("x-raw-bin", b"\x00\xff")} <= set(got.trailing_metadata)
    await soon(calls.until("ended"))
    assert calls.notes[-1] == ("ended", CallEnd.REFUSED, 15)


async def test_a_runtime_without_events_says_so(runtime, relay, client) -> None:
    runtime.event_streams = "none"
    code, details = await Subscriber(client).end()
    assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, "method GetContainerEvents not implemented")


async def test_when_the_runtime_dies_all_are_told(runtime, relay, client) -> None:
    readers = [Subscriber(client) for _ in range(3)]
    await joined(runtime, relay, 3)
    await runtime.stop()
    # A runtime that ends cancels its calls before it closes, if it gets to it.
    ends = {(await reader.end())[0] for reader in readers}
    assert ends <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@pytest.mark.parametrize("keeps", [b"", None], ids=["less", "nothing"])
async def test_what_is_cut_out_is_cut(runtime, relay, client, calls, keeps) -> None:
    runtime.script("GetContainerEvents", reply=(b"one", b"secret", b"two"))
    calls.filter = lambda message: keeps if message == b"secret" else message
    got = await soon(client.call_bytes(EVENTS, b""))
    assert (got.code, got.messages) == (0, (b"one", b"two") if keeps is None else (b"one", b"", b"two"))


@pytest.mark.parametrize("repeated", [100, 10_000], ids=["small", "larger than a window"])
async def test_a_client_that_gives_no_credit_is_ended_and_the_others_get_all(
    runtime, relay, client, repeated
) -> None:
    messages = tuple(b"%08d" % number * repeated for number in range(2_000_000 // (8 * repeated)))
    runtime.script("GetContainerEvents", reply=messages)
    slow = await Raw.silent(relay)
    slow.write(PREFACE + write_settings(), request(EVENTS, 1))
    assert (await slow.frame(HEADERS)).kind == HEADERS
    got = await soon(client.call_bytes(EVENTS, b""))
    assert (got.code, got.messages) == (0, messages)
    last = await slow.frame(HEADERS, RST_STREAM)
    if repeated == 100:
        assert (last.kind, TOO_SLOW.encode() in last.payload) == (HEADERS, True)
    else:  # a message that is not whole is reset
        assert (last.kind, last.payload) == (RST_STREAM, int(Error.ENHANCE_YOUR_CALM).to_bytes(4, "big"))
    await until(lambda: not relay.subscriptions)
    await slow.close()


async def test_a_client_that_leaves_while_its_call_is_made_leaves_nothing(
    runtime, relay, client, calls
) -> None:
    calls.deciding = asyncio.Event()
    reader = Subscriber(client)
    await soon(calls.until("request"))
    reader.call.cancel()
    await until(lambda: all(not link.methods for link in relay._links))
    calls.deciding.set()
    await until(lambda: not relay.tasks)
    assert calls.notes[-1] == ("ended", CallEnd.REFUSED, 1) and runtime.subscribers == 0
    assert relay.subscriptions == set()


async def test_what_is_not_noted_in_time_passes_and_is_noted_in_its_turn(
    runtime, relay, client, calls, monkeypatch
) -> None:
    monkeypatch.setattr("cri_proxy.relay.io.link.NOTE_S", 0.05)
    calls.hold = asyncio.Event()
    reader = Subscriber(client)
    await joined(runtime, relay, 1)
    for name in ("a", "b"):
        emit(runtime, name)
        assert await reader.next() == name
    calls.hold.set()
    await soon(calls.until("replied", 2))
    noted = [cri.ContainerEventResponse.FromString(note[1]) for note in calls.notes if note[0] == "replied"]
    assert [event.container_id for event in noted] == ["a", "b"]


async def test_when_the_runtime_accepts_no_more_a_call_goes_its_own_way(
    runtime, relay, client, monkeypatch
) -> None:
    async def refused(path: str) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("cri_proxy.relay.io.link.connected", refused)
    reader = Subscriber(client)
    await soon(runtime.wait_until(lambda: runtime.subscribers == 1))
    emit(runtime, "a")
    assert await reader.next() == "a"
