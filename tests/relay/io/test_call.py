"""An intercepted call on the frame relay: what is decided is done, and the state knows of it before the client."""

from __future__ import annotations

import asyncio

import pytest

from cri_proxy.relay.interception import Answer, AnswerFailed, CallEnd, Forward, Outcome, Refuse
from tests.cri_client import CriClient
from tests.relay.http2.hand import CREATE, VERSION
from tests.relay.io.frames import EVENTS, UNKNOWN, relaying, soon


async def test_a_call_is_shown_in_order_and_its_delta_arrives(runtime, client, calls) -> None:
    calls.outcome = Forward(b"+delta")
    runtime.script("CreateContainer", reply=b"the id")
    reply = await soon(client.call_bytes(CREATE, b"create"))
    assert reply.messages == (b"the id",) and runtime.calls_of("CreateContainer")[0].request == (
        b"create+delta",
    )
    assert calls.notes == [("request", b"create"), ("replied", b"the id"), ("ended", CallEnd.OK, 0)]


async def test_a_refusal_reaches_the_client_and_nothing_the_runtime(runtime, client, calls) -> None:
    calls.outcome = Refuse(9, "größer than\nall")
    for _ in range(3):
        reply = await soon(client.call_bytes(CREATE, b"create", metadata=(("x-new", "entry"),)))
        assert (reply.code, reply.details, reply.messages) == (9, "größer than\nall", ())
        assert (await soon(client.call_bytes(VERSION, b""))).code == 0
    assert all(call.request == () for call in runtime.calls_of("CreateContainer"))
    assert calls.notes == 3 * [("request", b"create"), ("ended", CallEnd.REFUSED, 9)]


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
async def test_an_answer_is_all_the_client_gets(client, calls, size) -> None:
    async def reply() -> bytes:
        return bytes(size)

    calls.outcome = Answer(reply)
    for _ in range(2):
        found = await soon(client.call_bytes(CREATE, b"create"))
        assert (found.code, found.messages) == (0, (bytes(size),))
    assert calls.notes[-1] == ("ended", CallEnd.OK, 0)


async def test_an_answer_that_fails_says_why_with_its_trailers(client, calls) -> None:
    async def reply() -> bytes:
        raise AnswerFailed(5, "not found: 7%", (("t", "1"), ("t-bin", b"\0\xff")))

    calls.outcome = Answer(reply)
    found = await soon(client.call_bytes(CREATE, b"create"))
    assert (found.code, found.details) == (5, "not found: 7%")
    assert found.trailing_metadata == (("t", "1"), ("t-bin", b"\0\xff"))
    assert calls.notes[-1] == ("ended", CallEnd.REFUSED, 5)


async def test_an_answer_runs_to_its_end_when_the_client_has_gone(client, calls) -> None:
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
    assert calls.notes[-1] == ("ended", CallEnd.OK, 0)


async def test_no_answer_is_begun_for_a_client_that_has_gone(client, calls) -> None:
    begun: list[str] = []

    async def reply() -> bytes:
        begun.append("a container nobody asked for")
        return b"made"

    calls.outcome, calls.deciding = Answer(reply), asyncio.Event()
    call = client._channel.unary_unary(CREATE)(b"create")
    await soon(calls.until("request"))
    call.cancel()
    assert (await soon(client.call_bytes(VERSION, b""))).code == 0  # the reset came before it
    calls.deciding.set()
    await soon(calls.until("ended"))
    assert calls.notes[1:] == [("ended", CallEnd.REFUSED, 1)] and begun == []


async def test_a_filter_cuts_messages_and_leaves_some_out_also_when_it_comes_late(
    runtime, client, calls
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


async def test_the_client_learns_nothing_before_it_is_noted(runtime, client, calls) -> None:
    calls.hold = asyncio.Event()
    runtime.script("CreateContainer", reply=b"the id")
    call = asyncio.ensure_future(client.call_bytes(CREATE, b"create"))
    await soon(runtime.wait_until(lambda: any(c.finished for c in runtime.calls_of("CreateContainer"))))
    assert not call.done()
    calls.hold.set()
    assert (await soon(call)).messages == (b"the id",)


@pytest.mark.parametrize("was_sent", [False, True], ids=["while it is decided", "after it was sent"])
async def test_a_client_that_leaves_cancels_what_was_not_sent(runtime, client, calls, was_sent) -> None:
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
    assert calls.notes[-1] == ("ended", CallEnd.UNKNOWN if was_sent else CallEnd.REFUSED, 1)
    await soon(runtime.wait_until(lambda: all(c.finished for c in runtime.calls_of("CreateContainer"))))


@pytest.mark.parametrize("step", ["request", "replied"])
async def test_an_interception_that_fails_passes_its_call_on(folder, runtime, calls, step) -> None:
    async def broken(message: bytes) -> Outcome:
        raise ZeroDivisionError(step)

    bugs: list[Exception] = []
    setattr(calls, step, broken)
    path = f"{folder}/b.sock"
    async with relaying(runtime.socket, path, calls, on_bug=bugs.append), CriClient(path) as client:
        runtime.script("CreateContainer", reply=b"the id")
        reply = await soon(client.call_bytes(CREATE, b"create"))
    assert reply.messages == (b"the id",) and runtime.calls_of("CreateContainer")[0].request == (b"create",)
    assert [str(bug) for bug in bugs] == [step] and calls.notes[-1] == ("ended", CallEnd.OK, 0)


async def test_a_reply_that_is_noted_too_slowly_passes_all_the_same_and_that_is_told(
    runtime, client, calls, relay
) -> None:
    calls.hold = asyncio.Event()
    unseen: list[tuple[str, str]] = []
    relay.failed_open = lambda method, reason: unseen.append((method, reason))
    runtime.script("GetContainerEvents", reply=(b"event",), then_hang=False)
    call = client._channel.unary_stream(EVENTS)(b"")
    assert await soon(call.read()) == b"event"
    assert calls.notes == [("request", b"")] and unseen == [(EVENTS, "slow state")]
    calls.hold.set()
    await soon(calls.until("ended"))
    assert calls.notes[1:] == [("replied", b"event"), ("ended", CallEnd.OK, 0)]


async def test_other_calls_pass_while_one_is_decided(runtime, client, calls) -> None:
    calls.deciding = asyncio.Event()
    waiting = asyncio.ensure_future(client.call_bytes(CREATE, bytes(1 << 20)))
    await soon(calls.until("request"))
    for _ in range(20):
        assert (await soon(client.call_bytes(UNKNOWN, bytes(10_000)))).messages == (bytes(10_000),)
    runtime.script("CreateContainer", reply=b"")
    calls.deciding.set()
    assert (await soon(waiting)).code == 0
