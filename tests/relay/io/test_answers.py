"""The outcomes answer and filter, carried out by the relay between real clients and a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Callable, Optional

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.interception import Answer, AnswerFailed, CallEnd, Forward, Interception, Outcome
from cri_proxy.relay.io.server import FrameRelay
from cri_proxy.runtime import RuntimeClient
from tests.cri_client import CriClient, Pod, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.relay.io.frames import relaying

VERSION = "/runtime.v1.RuntimeService/Version"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
HANG_S = 10.0


class Scripted:
    """An interception that answers with ``reply`` if it is given, and filters with ``cut``; its end is recorded."""

    def __init__(
        self,
        reply: Optional[Callable[[], Any]] = None,
        cut: Optional[Callable[[bytes], Optional[bytes]]] = None,
    ) -> None:
        self._reply = reply
        self.filter = cut
        self.ends: list[tuple[CallEnd, int, str]] = []
        self.has_ended = asyncio.Event()

    async def request(self, message: bytes) -> Outcome:
        return Forward() if self._reply is None else Answer(self._reply)

    async def replied(self, message: bytes) -> None:
        pass

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        self.ends.append((end, code, details))
        self.has_ended.set()


class One:
    """Opens the same interception for every call."""

    def __init__(self, interception: Interception) -> None:
        self._interception = interception

    def open(self, full_method: str) -> Optional[Interception]:
        return self._interception


@asynccontextmanager
async def relayed(
    folder: Path, interception: Any
) -> AsyncIterator[tuple[FakeRuntime, CriClient, FrameRelay]]:
    socket = str(folder / "k.sock")
    async with (
        FakeRuntime(str(folder / "r.sock")) as runtime,
        relaying(runtime.socket, socket, One(interception)) as relay,
        CriClient(socket) as client,
    ):
        yield runtime, client, relay


async def test_an_answer_is_the_reply_and_nothing_is_sent(tmp_path: Path) -> None:
    async def reply() -> bytes:
        return b"\x0a\x01x"

    interception = Scripted(reply)
    async with relayed(tmp_path, interception) as (runtime, client, _):
        got = await client.call_bytes(VERSION, b"")
        assert (got.messages, got.code) == ((b"\x0a\x01x",), 0)
        assert interception.ends == [(CallEnd.OK, 0, "")]
        assert runtime.calls == []


@pytest.mark.parametrize(
    ("error", "code", "details", "trailers", "end"),
    [
        pytest.param(AnswerFailed(9, "not now"), 9, "not now", (), CallEnd.REFUSED, id="of our own"),
        pytest.param(
            AnswerFailed(2, "no", [("why-bin", b"\x01")]), 2, "no", (("why-bin", b"\x01"),), CallEnd.REFUSED,
            id="with trailers",
        ),
        pytest.param(AnswerFailed(4, "late"), 4, "late", (), CallEnd.UNKNOWN, id="in doubt"),
        pytest.param(AnswerFailed(13, "cut off", in_doubt=True), 13, "cut off", (), CallEnd.UNKNOWN, id="cut off"),
        pytest.param(KeyError("x"), 13, "cri-resmgr: KeyError: 'x'", (), CallEnd.UNKNOWN, id="a bug"),
    ],
)  # fmt: skip
async def test_an_answer_that_fails_ends_the_call_with_its_status(
    tmp_path: Path, error: Exception, code: int, details: str, trailers: Any, end: CallEnd
) -> None:
    async def reply() -> bytes:
        raise error

    interception = Scripted(reply)
    async with relayed(tmp_path, interception) as (_, client, _):
        got = await client.call_bytes(VERSION, b"")
        assert (got.messages, got.code, got.details) == ((), code, details)
        assert got.trailing_metadata[: len(trailers)] == trailers
        assert interception.ends == [(end, code, details)]


async def test_the_runtimes_error_passes_an_answer_unchanged(tmp_path: Path) -> None:
    async def reply() -> bytes:
        runtime = RuntimeClient(str(tmp_path / "r.sock"))
        try:
            return await Upstream(runtime).forward(VERSION, b"", HANG_S)
        finally:
            await runtime.close()

    async with relayed(tmp_path, Scripted(reply)) as (runtime, client, _):
        runtime.script("Version", error=(6, "there already", (("grpc-status-details-bin", b"\x08\x06"),)))
        through, direct = await client.call_bytes(VERSION, b""), None
        async with CriClient(runtime.socket) as past:
            direct = await past.call_bytes(VERSION, b"")
        assert (through.code, through.details) == (direct.code, direct.details) == (6, "there already")
        assert ("grpc-status-details-bin", b"\x08\x06") in through.trailing_metadata


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
async def test_an_answer_runs_to_its_end_when_the_client_is_gone(tmp_path: Path, how: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def reply() -> bytes:
        begun.set()
        await go_on.wait()
        return b"made"

    interception = Scripted(reply)
    async with relayed(tmp_path, interception) as (_, client, _):
        timeout = 2 if how == "deadline" else None
        call = asyncio.ensure_future(client.call("Version", cri.VersionRequest(), timeout=timeout))
        await asyncio.wait_for(begun.wait(), HANG_S)
        if how == "cancelled":
            call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        assert interception.ends == []
        go_on.set()
        await asyncio.wait_for(interception.has_ended.wait(), HANG_S)
        assert interception.ends == [(CallEnd.OK, 0, "")]


async def test_a_stop_waits_for_an_answer_and_then_cancels_it(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def reply() -> bytes:
        begun.set()
        await asyncio.get_running_loop().create_future()
        return b"never"

    interception = Scripted(reply)
    async with relayed(tmp_path, interception) as (_, client, relay):
        call = asyncio.ensure_future(client.call_bytes(VERSION, b""))
        await asyncio.wait_for(begun.wait(), HANG_S)
        await relay.close(0.05)
        got = await call
        assert (got.code, got.details) == (14, "cri-resmgr is stopping; call again")
        assert interception.ends == [(CallEnd.UNKNOWN, 14, "cri-resmgr is stopping; call again")]


async def test_a_filter_changes_a_unary_reply(tmp_path: Path) -> None:
    async with relayed(tmp_path, Scripted(cut=lambda message: message[:0])) as (_, client, _):
        got = await client.call_bytes(VERSION, b"")
        assert (got.messages, got.code) == ((b"",), 0)


async def test_a_filter_leaves_messages_out_of_a_stream_and_may_come_while_it_lasts(tmp_path: Path) -> None:
    interception = Scripted()
    async with relayed(tmp_path, interception) as (runtime, client, _):
        events = client.events()
        await runtime.wait_until(lambda: runtime.subscribers == 1)
        pod = await client.run_pod("p")
        assert (await events.next()).container_id == pod.id
        assert (await events.next()).container_id == pod.id
        hidden = (await _create(client, pod, "hidden")).container_id
        assert (await events.next()).container_id == hidden
        interception.filter = lambda message: None if hidden.encode() in message[:80] else message
        await client.remove(hidden)
        seen = (await _create(client, pod, "seen")).container_id
        assert (await events.next()).container_id == seen
        events.cancel()


async def _create(client: CriClient, pod: Pod, name: str) -> Any:
    return await client.call("CreateContainer", create_request(pod, container_config(name)))
