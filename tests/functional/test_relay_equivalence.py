"""The same calls past the frame relay and through it: what the runtime gets and what the client gets are the same.

Everything is compared, ``user-agent`` included: the relay is no gRPC hop. But for one thing: of a subscription
(``relay.io.subscription``) the runtime may see the headers of a call that is reset before its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.relay.interception import CallEnd, Forward, Outcome, intercepted
from cri_proxy.relay.io.server import FrameRelay
from tests.cri_client import CriClient, RawReply
from tests.fake_runtime import Call, FakeRuntime

HANG_S = 30.0
METHODS = [
    "/runtime.v1.RuntimeService/Version",
    "/runtime.v1.RuntimeService/CreateContainer",
    "/runtime.v1alpha2.RuntimeService/UpdateContainerResources",
    "/runtime.v1.RuntimeService/GetContainerEvents",
    "/runtime.v1.ImageService/PullImage",
    "/a.b/Unknown",
]


class Look:
    """Reads along and changes nothing; every interception must end once."""

    filter = None

    def __init__(self, open_now: set[Look]) -> None:
        self._open = open_now

    async def request(self, message: bytes) -> Outcome:
        self._open.add(self)
        return Forward()

    async def replied(self, message: bytes) -> None:
        pass

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        self._open.remove(self)


class Looking:
    def __init__(self) -> None:
        self.open_now: set[Look] = set()

    def open(self, full_method: str) -> Optional[Look]:
        return Look(self.open_now) if intercepted(full_method) else None


class Ways:
    """A runtime, a relay, and a client for each way; in an event loop that outlives the examples."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.mkdtemp(prefix="cre-")
        self.looking = Looking()
        self.run(self._start())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, HANG_S))

    async def _start(self) -> None:
        self.runtime = FakeRuntime(f"{self.folder}/r.sock")
        await self.runtime.start()
        self.relay = FrameRelay(self.runtime.socket, self.looking)
        await self.relay.open([Path(f"{self.folder}/k.sock")], [])
        await self.relay.start_behind(asyncio.sleep(0))
        self.clients = [CriClient(self.runtime.socket), CriClient(f"{self.folder}/k.sock")]
        for client in self.clients:
            await client.__aenter__()

    def close(self) -> None:
        async def close() -> None:
            for client in self.clients:
                await client.__aexit__(None, None, None)
            await self.relay.close(0)
            await self.runtime.stop()

        self.run(close())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    ways = Ways()
    yield ways
    ways.close()


# ---------------------------------------------------------------------- what is called

TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(str.strip)
KEYS = st.sampled_from(["x", "traceparent", "x-long-name-" * 5, "grpc-trace-bin", "y-bin"])
PAIRS: st.SearchStrategy[tuple[str, Union[str, bytes]]] = KEYS.flatmap(
    lambda key: st.tuples(st.just(key), st.binary(max_size=20) if key.endswith("-bin") else TEXTS)
)
METADATA = st.lists(PAIRS, max_size=4).map(tuple)
SIZES = st.one_of(st.integers(0, 100), st.sampled_from([16_379, 16_384, 65_530, 65_536, 300_000]))
#: Code and details of a call that fails.
ERRORS = st.tuples(st.integers(1, 16), st.text(max_size=30))
CALLS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "request": SIZES,
        "metadata": METADATA,
        "timeout": st.sampled_from([None, 20.0, 1000.0]),
        "reply": st.lists(SIZES, max_size=3),
        "initial": METADATA,
        "trailing": METADATA,
        "error": st.none() | ERRORS,
        "gzip": st.booleans(),
        # Further messages of the client's: then it is a stream of requests.
        "more": st.lists(SIZES, max_size=2),
        "is_cancelled": st.sampled_from([False, False, False, True]),
    }
)


async def one(runtime: FakeRuntime, client: CriClient, number: int, call: dict[str, Any]) -> RawReply:
    """One call; its request begins with its number, by which the runtime's side of it is found."""
    invoke = client._channel.stream_stream(call["method"])
    made = invoke(
        metadata=call["metadata"],
        timeout=call["timeout"],
        compression=grpc.Compression.Gzip if call["gzip"] else None,
    )
    messages = []
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        # The runtime may be done before it has read them all.
        await made.write(bytes([number]) + b"q" * call["request"])
        for size in call["more"]:
            await made.write(b"m" * size)
        await made.done_writing()
    if call["is_cancelled"]:
        await runtime.wait_until(lambda: has_come(runtime, number, 1 + len(call["more"])))
        made.cancel()
        return RawReply((), (), (), (await made.code()).value[0], await made.details() or "")
    with contextlib.suppress(grpc.aio.AioRpcError):
        while (message := await made.read()) is not grpc.aio.EOF:
            messages.append(message)
    initial, trailing = await made.initial_metadata(), await made.trailing_metadata()
    code = (await made.code()).value[0]
    # That its time was over the client says itself, under load in other words.
    details = "" if code == 4 else await made.details() or ""
    return RawReply(tuple(messages), tuple(initial), tuple(trailing), code, details)


def has_come(runtime: FakeRuntime, number: int, count: int) -> bool:
    """Whether the runtime has so many messages of a call."""
    return any(len(c.request) == count and c.request[0][:1] == bytes([number]) for c in runtime.calls)


def script(runtime: FakeRuntime, number: int, call: dict[str, Any]) -> None:
    error = call["error"]
    runtime.script(
        call["method"],
        when=lambda message: message[:1] == bytes([number]),
        reply=tuple(b"r" * size for size in call["reply"]),
        initial_metadata=call["initial"],
        trailing_metadata=call["trailing"],
        error=None if error is None else (*error, call["trailing"]),
        then_hang=call["is_cancelled"],
    )


async def all_of(ways: Ways, client: CriClient, calls: list[dict[str, Any]], together: bool) -> Any:
    runtime = ways.runtime
    runtime.calls.clear()
    if together:
        replies = await asyncio.gather(*(one(runtime, client, n, call) for n, call in enumerate(calls)))
    else:
        replies = [await one(runtime, client, n, call) for n, call in enumerate(calls)]
    await runtime.wait_until(lambda: all(call.finished for call in runtime.calls))
    asked = [call for call in runtime.calls if not call.is_unasked]
    return replies, sorted(map(seen, asked), key=lambda call: call[1])


def seen(call: Call) -> tuple[Any, ...]:
    """What the runtime sees of a call, but for how much of the deadline is left."""
    return call.full_method, call.request, call.metadata, call.time_remaining is None


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(CALLS, min_size=1, max_size=6), st.booleans())
def test_the_same_calls_past_the_relay_and_through_it_are_the_same(ways, calls, together) -> None:
    ways.runtime.scripts.clear()
    for number, call in enumerate(calls):
        script(ways.runtime, number, call)
    direct, relayed = [ways.run(all_of(ways, client, calls, together)) for client in ways.clients]
    assert relayed == direct
    assert ways.looking.open_now == set()


#: Of every kind one, and the large ones twice; all sixteen are under way at a time. Those whose time runs out are small:
#: what they get before that has come long since.
SIXTEEN: list[dict[str, Any]] = [
    {
        "method": METHODS[number % len(METHODS)],
        "request": 100 if number % 8 == 7 else [0, 100, 200_000, 1_000_000][number % 4],
        "metadata": (("x-number", str(number)), ("x-bin", bytes([number]))),
        "timeout": 4.0 if number % 8 == 7 else None,
        "reply": [5] if number % 8 == 7 else [[5, 5], [300_000], [], [1_000_000]][number // 4],
        "initial": (("x-initial", "i"),) * (number % 2),
        "trailing": (("x-trailing-bin", b"\xff"),) * (number % 3),
        "error": (9, "größer als 100%") if number % 5 == 4 else None,
        "gzip": number % 6 == 5,
        "more": [20_000] * (number % 3 == 2),
        "is_cancelled": number % 8 == 3,
        "hangs": number % 8 == 7,
    }
    for number in range(16)
]


def test_sixteen_at_a_time_are_the_same_also_those_whose_time_is_over(ways) -> None:
    ways.runtime.scripts.clear()
    for number, call in enumerate(SIXTEEN):
        script(ways.runtime, number, {**call, "is_cancelled": call["is_cancelled"] or call["hangs"]})
    direct, relayed = [ways.run(all_of(ways, client, SIXTEEN, together=True)) for client in ways.clients]
    assert relayed == direct
    assert [reply.code for reply in direct[0] if reply.code in (1, 4)] == [1, 4, 1, 4]
    assert ways.looking.open_now == set()


def test_the_runtime_sees_the_clients_own_headers(ways) -> None:
    ways.runtime.scripts.clear()
    found = []
    for client in ways.clients:
        ways.run(client.call_bytes("/a.b/Unknown", b"x"))
        found.append(dict(ways.runtime.calls[-1].metadata))
    assert found[0] == found[1] and "grpc-python" in str(found[1]["user-agent"])
