"""A client that floods is answered as HTTP/2's servers answer it, costs a bounded amount, and hurts no other client.

The floods are those of ``bench/floods.py``, which measures what a reconnect takes meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from bench.figures import resident_mb
from bench.floods import FLOODS
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.http2.frames import PREFACE, Error, write_settings
from cri_proxy.relay.http2.requests import MAX_STREAMS
from cri_proxy.relay.http2.wire import BURST, PER_S
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.functional.conftest import HANG_S, ask, counter, until
from tests.relay.http2.hand import goaways

#: How the connection of a flood ends. Not "ignored windows": a runtime that reads fast enough gives all that credit, and
#: refuses the message; how a sender without credit is answered is held by tests/relay/http2/test_flow.py.
ANSWERS = {
    "CONTINUATION": Error.ENHANCE_YOUR_CALM,
    "rapid reset": Error.ENHANCE_YOUR_CALM,
    "SETTINGS": Error.ENHANCE_YOUR_CALM,
    "PING": Error.ENHANCE_YOUR_CALM,
    "zero-length DATA": Error.ENHANCE_YOUR_CALM,
    "header bombs": Error.COMPRESSION_ERROR,
    "20,000 streams": Error.ENHANCE_YOUR_CALM,
}


async def flood(path: str, name: str) -> tuple[int, int]:
    """Say what a flood says until GOAWAY comes; its last stream and code."""
    reader, writer = await asyncio.open_unix_connection(path)

    async def say() -> None:
        number = 0
        writer.write(FLOODS[name].first)
        with contextlib.suppress(ConnectionError):
            while piece := FLOODS[name].more(number):
                writer.write(piece)
                await writer.drain()
                number += 1

    saying = asyncio.ensure_future(say())
    said = b""
    try:
        while True:
            said += (received := await asyncio.wait_for(reader.read(1 << 16), HANG_S))
            assert received, "the connection has ended without a word"
            if found := goaways(said):
                return found[-1]
    finally:
        saying.cancel()
        writer.transport.abort()


async def version(client: CriClient) -> None:
    await asyncio.wait_for(client.call("Version", cri.VersionRequest()), HANG_S)


@contextlib.contextmanager
def connections(path: str, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """So many, each of which has said this and no more."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
        for one in opened:
            one.connect(path)
            if first:
                with contextlib.suppress(ConnectionError):  # it was closed already
                    one.sendall(first)
        yield opened


def descriptors(agent: Agent) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_flood_ends_its_own_connection_and_no_other(agent, client, name) -> None:
    assert agent.process is not None
    await version(client)
    before, resident = descriptors(agent), resident_mb(agent.process.pid)
    began_s = asyncio.get_running_loop().time()
    flooding = asyncio.ensure_future(flood(agent.socket, name))
    while not flooding.done():
        await version(client)
    last_stream, code = flooding.result()
    assert code == ANSWERS[name]
    took_s = asyncio.get_running_loop().time() - began_s
    if name == "rapid reset":
        assert (last_stream + 1) // 2 <= BURST + took_s * PER_S + 1
    elif name == "20,000 streams":
        assert last_stream == 2 * MAX_STREAMS - 1
    else:
        assert last_stream <= 3
    async with CriClient(agent.socket) as other:
        await version(other)
    status = await until(agent, lambda _status: descriptors(agent) <= before)
    assert counter(status, "connections_closed_total") == 1
    assert resident_mb(agent.process.pid) < resident + 48


async def test_replies_that_are_never_read_are_not_kept(runtime, agent) -> None:
    assert agent.process is not None
    flood = FLOODS["replies never read"]
    async with CriClient(agent.socket) as client:
        await client.list_containers()
        runtime.script("Version", reply=(bytes(1 << 20),))
        resident = resident_mb(agent.process.pid)
        with connections(agent.socket, 1, flood.first) as [deaf]:
            deaf.setblocking(False)
            for number in range(200):
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    deaf.send(flood.more(number))
                await asyncio.wait_for(client.list_containers(), HANG_S)
            assert resident_mb(agent.process.pid) < resident + 32


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:12], PREFACE + write_settings()], ids=["nothing", "half a preface", "a greeting"]
)
async def test_of_any_number_of_connections_a_limited_number_stays_and_a_new_client_is_served(
    start_agent, said
) -> None:
    agent = await start_agent(constants={"relay_idle_connections": 64})
    async with CriClient(agent.socket) as kubelet:
        await version(kubelet)
        before = descriptors(agent)
        with connections(agent.socket, 1_000, said) as opened:
            async with CriClient(agent.socket) as again:
                await version(again)
            await version(kubelet)
            status = await until(
                agent,
                lambda status: counter(status, "idle_connections_closed_total") >= len(opened) - 64,
            )
            # Those that stay, the two that called, and what asks for the status.
            assert descriptors(agent) <= before + 64 + 4
            assert counter(status, "connections_closed_total") == 0
        assert await until(agent, lambda _status: descriptors(agent) <= before + 1)
        await version(kubelet)


async def test_connections_without_a_call_cost_the_runtime_nothing(runtime, agent) -> None:
    """Of 350 half-open ones and 1,000 idle ones, which are below the limit, all stay."""
    greeting = PREFACE + write_settings()
    before = descriptors(agent)
    with connections(agent.socket, 350, b""), connections(agent.socket, 600, greeting):
        async with CriClient(agent.socket) as client:
            await version(client)
            await until(agent, lambda _status: descriptors(agent) >= before + 950)
            # One descriptor each: there is no second one, to the runtime.
            assert descriptors(agent) <= before + 950 + 4
            assert counter(await ask(agent, "status"), "idle_connections_closed_total") == 0
