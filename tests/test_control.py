"""The control socket answers every line with a line: a result, or a sentence for the person who asked."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cri_api.control import (
    MAX_REQUEST,
    ROWS,
    ControlError,
    write_request,
    write_result,
    write_result_in_pieces,
)
from cri_api.socket_paths import SocketTaken
from cri_proxy.control import ABSENT_HINT, ControlServer, DaemonAbsent, ask
from cri_proxy.door import MOST_CONNECTIONS


class Log:
    """Keeps the events it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def error(self, event: str, **_: Any) -> None:
        self.events.append(event)


async def echo(arguments: dict[str, Any]) -> Any:
    return arguments


async def refuse(_: dict[str, Any]) -> Any:
    raise ControlError("not on a Sunday")


async def fail(_: dict[str, Any]) -> Any:
    raise RuntimeError("a bug")


async def never(_: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


COMMANDS = {"echo": echo, "refuse": refuse, "fail": fail, "never": never}


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[ControlServer]:
    server = ControlServer(folder / "control.sock", COMMANDS, Log(), is_busy=lambda: False)
    await server.start()
    yield server
    await server.stop()


async def asked(server: ControlServer, command: str, arguments: Any = None, timeout_s: float = 10.0) -> Any:
    """``ask`` blocks, and the server is on this loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, ask, server.path, command, arguments, timeout_s)


async def exchange(path: Path, *lines: bytes) -> list[Any]:
    """The replies to lines on one connection, to its end."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"".join(lines))
    writer.write_eof()
    replies = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return [json.loads(line) for line in replies.splitlines()]


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What still comes on a connection that the other side closes; a reset is an end as well."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


# ---------------------------------------------------------------------- answers


async def test_a_command_gets_its_arguments_and_gives_its_result(server: ControlServer) -> None:
    assert await asked(server, "echo", {"id": "a", "text": "ünï\n"}) == {"id": "a", "text": "ünï\n"}
    assert await asked(server, "echo") == {}


async def test_a_result_may_be_longer_than_any_request(server: ControlServer, folder: Path) -> None:
    async def much(_: dict[str, Any]) -> Any:
        return "x" * (3 * MAX_REQUEST)

    big = ControlServer(folder / "big.sock", {"much": much}, Log(), is_busy=lambda: False)
    await big.start()
    assert len(await asked(big, "much")) == 3 * MAX_REQUEST
    await big.stop()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("refuse", "not on a Sunday"),
        ("fail", "the daemon failed: RuntimeError: a bug"),
        ("dance", "this daemon does not know the command 'dance'"),
    ],
)
async def test_what_is_not_done_is_a_sentence(command: str, sentence: str, server: ControlServer) -> None:
    with pytest.raises(ControlError) as caught:
        await asked(server, command)
    assert str(caught.value) == sentence


async def test_only_a_bug_is_logged(folder: Path) -> None:
    log = Log()
    server = ControlServer(folder / "control.sock", COMMANDS, log, is_busy=lambda: False)
    await server.start()
    for command in ("refuse", "dance", "fail"):
        with pytest.raises(ControlError):
            await asked(server, command)
    await server.stop()
    assert log.events == ["control command failed"]


GARBAGE = {
    "no JSON": b"hello\n",
    "no text": b"\xff\xfe\n",
    "a blank line": b"\n",
    "a list": b"[]\n",
    "a number": b"7\n",
    "no command": b"{}\n",
    "a command that is a number": b'{"command": 7}\n',
    "deep JSON": b"[" * (MAX_REQUEST - 10) + b"\n",
    "a deep command": b'{"command": ' + b"[" * (MAX_REQUEST - 100) + b"\n",
    "arguments that are a list": b'{"command": "echo", "arguments": []}\n',
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_is_answered_and_the_connection_goes_on(case: str, server: ControlServer) -> None:
    garbled, good = await exchange(server.path, GARBAGE[case], b'{"command": "echo"}\n')
    assert garbled["error"].startswith("a request is ")
    assert good == {"result": {}}


async def test_a_line_that_is_too_long_ends_only_its_connection(server: ControlServer) -> None:
    reader, writer = await asyncio.open_unix_connection(str(server.path))
    writer.write(b"x" * (2 * MAX_REQUEST + 1))
    assert await rest_of(reader) == b""
    writer.close()
    assert await asked(server, "echo", {"a": 1}) == {"a": 1}


async def test_one_that_waits_holds_up_nobody(server: ControlServer) -> None:
    with pytest.raises(ControlError, match="has not answered within 0 s; see its log"):
        await asked(server, "never", timeout_s=0.05)
    assert await asked(server, "echo", {"a": 1}) == {"a": 1}


# ---------------------------------------------------------------------- the socket


async def test_only_its_owner_may_connect(server: ControlServer) -> None:
    assert server.path.stat().st_mode & 0o777 == 0o600
    mask = os.umask(0o022)
    os.umask(mask)
    assert mask != 0o177  # that of the process is as before


async def test_a_second_daemon_is_refused_and_takes_nothing_away(server: ControlServer) -> None:
    second = ControlServer(server.path, COMMANDS, Log())
    with pytest.raises(SocketTaken):
        await second.start()
    await second.stop()
    assert await asked(server, "echo") == {}


async def test_stopping_removes_the_socket_and_ends_waiting_commands(folder: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server = ControlServer(folder / "control.sock", {"wait": wait}, Log(), is_busy=lambda: False)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(server.path))
    writer.write(b'{"command": "wait"}\n')
    await asyncio.wait_for(begun.wait(), 10)
    await server.stop()
    assert ended.is_set()
    assert await rest_of(reader) == b""
    writer.close()
    assert not server.path.exists()


# ---------------------------------------------------------------------- asking


@pytest.mark.parametrize("what", ["nothing", "a stale socket", "a file"])
def test_a_daemon_that_is_absent_is_said_with_a_hint(what: str, folder: Path) -> None:
    path = folder / "control.sock"
    if what == "a file":
        path.touch()
    elif what == "a stale socket":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
            stale.bind(str(path))
    with pytest.raises(DaemonAbsent) as caught:
        ask(path, "status")
    assert str(caught.value) == f"the daemon is not running: nothing serves {path}"
    assert caught.value.hint == ABSENT_HINT


@pytest.mark.parametrize("reply", [b"", b"hello\n"], ids=["nothing", "no JSON"])
async def test_a_daemon_that_gives_no_answer_is_said(reply: bytes, folder: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(reply)
        writer.close()

    path = folder / "control.sock"
    server = await asyncio.start_unix_server(connected, str(path))
    loop = asyncio.get_running_loop()
    with pytest.raises(ControlError, match="closed the connection without an answer"):
        await loop.run_in_executor(None, ask, path, "status")
    server.close()


# ---------------------------------------------------------------------- many and much


async def test_one_that_does_not_wait_for_answers_holds_no_other_up(folder: Path) -> None:
    order: list[str] = []

    async def note(arguments: dict[str, Any]) -> Any:
        order.append(arguments["from"])

    server = ControlServer(folder / "control.sock", {"note": note}, Log(), is_busy=lambda: False)
    await server.start()
    try:
        impatient, writer = await asyncio.open_unix_connection(str(server.path))
        writer.write(write_request("note", {"from": "impatient"}) * 400)
        assert await asyncio.wait_for(impatient.readline(), 10) == b'{"result":null}\n'
        await asked(server, "note", {"from": "polite"})
        assert order.index("polite") < 399
        writer.write_eof()
        assert (await asyncio.wait_for(impatient.read(), 60)).count(b"\n") == 399
        writer.close()
        assert len(order) == 401
    finally:
        await server.stop()


async def test_a_connection_too_many_is_refused_with_a_sentence(server: ControlServer) -> None:
    silent = [await asyncio.open_unix_connection(str(server.path)) for _ in range(MOST_CONNECTIONS)]
    with pytest.raises(ControlError, match="^64 connections are open, which is the limit$"):
        await asked(server, "echo")
    for _, writer in silent:
        writer.close()


ROW = {"id": "a", "cpus": "0-3"}
RESULTS = [
    None,
    [],
    {},
    [ROW] * 1000,
    {"rows": [ROW] * 99},
    {"rows": [ROW] * 1000, "at": 1.5, "none": None},
    {"at": 1, "rows": [[]] * 101, "ünï": "\n", "more": [ROW] * 200},
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_in_pieces_is_the_same(result: Any) -> None:
    pieces = list(write_result_in_pieces(result))
    assert b"".join(pieces) == write_result(result)
    if isinstance(result, dict):
        assert max(piece.count(b"cpus") for piece in pieces) <= ROWS


async def test_a_connection_keeps_no_request_that_has_its_answer(server: ControlServer) -> None:
    tracemalloc.start()
    try:
        clients = []
        for _ in range(30):
            reader, writer = await asyncio.open_unix_connection(str(server.path))
            writer.write(GARBAGE["deep JSON"])
            assert b"error" in await asyncio.wait_for(reader.readline(), 30)
            clients.append(writer)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for writer in clients:
        writer.close()
    assert kept < 10 * MAX_REQUEST


async def test_what_a_pod_waits_for_is_answered_at_once_while_calls_pass(folder: Path) -> None:
    async def slow(_: dict[str, Any]) -> Any:
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.2:  # of which the next answer waits a hundred times as long
            pass

    server = ControlServer(folder / "control.sock", {"slow": slow, "echo": echo}, Log(), calls={"echo"})
    await server.start()
    await asked(server, "slow")
    waits = asyncio.ensure_future(exchange(server.path, write_request("slow", {})))
    assert await asked(server, "echo", {"a": 1}) == {"a": 1}
    assert not waits.done()
    await server.stop()
    await waits
