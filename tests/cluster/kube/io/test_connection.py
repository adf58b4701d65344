"""Answers of servers other than the tests' own: heads as RFC 9112 lets them be, and such that are none."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cluster.kube.io.access import Access
from cluster.kube.io.connection import Connection
from cluster.kube.kubeconfig import Kubeconfig
from cluster.kube.requests import Unreachable

OK = b"HTTP/1.1 200 OK\r\n"


async def told(answer: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """Status, headers and body of a server's answer as they are read, and whether the connection can be used again."""

    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        # Until the client has closed: what is read to the end of the connection ends with this.
        if b"length" in answer.lower() or b"chunked" in answer.lower():
            with contextlib.suppress(OSError):
                await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        access = Access(Kubeconfig(f"http://127.0.0.1:{port}"))
        connection = await Connection.open(access, lambda size: None, lambda size: None)
        try:
            found = await connection.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
            body = b"".join([piece async for piece in found.pieces()])
            return found.status, dict(found.headers), body, connection.is_open
        finally:
            connection.close()
            await ended.wait()


@pytest.mark.parametrize(
    ("answer", "body", "stays_open"),
    [
        (OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (OK + b"CONTENT-LENGTH:2\r\n\r\nhi", b"hi", True),
        (OK + b"content-length: \t 2 \r\nConnection: Close\r\n\r\nhi", b"hi", False),
        (
            OK + b"Transfer-Encoding: Chunked\r\n\r\n1;x=y\r\nh\r\n1\r\ni\r\n0\r\nTrailer: 1\r\n\r\n",
            b"hi",
            True,
        ),
        (OK + b"\r\nhi", b"hi", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
    ],
)
async def test_a_body_is_read_as_its_head_says(answer: bytes, body: bytes, stays_open: bool) -> None:
    status, _, read, is_open = await told(answer)
    assert (status, read, is_open) == (200, body, stays_open)


async def test_a_repeated_field_is_a_list_and_a_folded_one_is_a_line() -> None:
    head = b"Warning: a\r\nX-Long: one\r\n\t two\r\nwarning: b\r\nX-None:\r\nContent-Length: 0\r\n\r\n"
    _, headers, _, _ = await told(OK + head)
    assert headers == {"warning": "a, b", "x-long": "one two", "x-none": "", "content-length": "0"}


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Content-Length : 2\r\n\r\nhi",
        OK + b": nameless\r\n\r\n",
        OK + b"Content-Length: two\r\n\r\nhi",
        OK + b"Content-Length: -2\r\n\r\nhi",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        OK + b"X: " + b"x" * (1 << 17) + b"\r\n\r\n",
    ],
    ids=range(8),
)
async def test_what_is_no_answer_is_told_and_not_guessed_at(answer: bytes) -> None:
    with pytest.raises(Unreachable):
        await told(answer)
