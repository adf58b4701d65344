"""One HTTP/1.1 connection to an API server: a request at a time, its answer in pieces as they come.

By asyncio's streams: a call can be cancelled, and a watch needs no thread. Header fields are read here: http.client would
bring the whole of the email package, half a MB in each node's agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Callable

from cluster.kube.io.access import Access
from cluster.kube.requests import Unreachable
from cri_api.waiting import wait_within

#: To connect, TLS included, seconds.
CONNECT_S = 10.0
_MOST_HEAD = 1 << 16
_PIECE = 1 << 16
#: A peer that is gone without a word is found within a minute.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

Count = Callable[[int], None]


class ResponseHead:
    """The head of an answer; ``pieces()`` is its body, to be read to the end before the connection's next request.

    ``headers``: values by name in small letters.
    """

    def __init__(self, connection: Connection, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection

    async def pieces(self) -> AsyncIterator[bytes]:
        """:raises Unreachable: the connection ends before the body does."""
        length = self.headers.get("content-length")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            async for piece in self._connection.chunks():
                yield piece
        elif length is not None:
            async for piece in self._connection.exactly(_number(length, 10)):
                yield piece
        else:
            async for piece in self._connection.rest():
                yield piece
        if self.headers.get("connection", "").lower() == "close":
            self._connection.close()


class Connection:
    """``is_fresh``: no request has been sent by it, so a failure is not that of an old connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: Count, received: Count
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = sent
        self._received = received
        self.is_fresh = True
        self.has_answered = False

    @classmethod
    async def open(cls, access: Access, sent: Count, received: Count) -> Connection:
        """:raises Unreachable: it cannot be had. :raises NoAccess: the credentials cannot be read."""
        context = access.context()
        try:
            reader, writer = await wait_within(
                CONNECT_S,
                asyncio.open_connection(
                    access.host,
                    access.port,
                    ssl=context,
                    server_hostname=access.server_name if context else None,
                    limit=_MOST_HEAD,
                ),
            )
        except asyncio.TimeoutError:
            raise Unreachable(f"{access.server} does not answer within {CONNECT_S:.0f} s") from None
        except OSError as error:
            raise Unreachable(
                f"{access.server} cannot be reached: {str(error) or type(error).__name__}"
            ) from None
        opened = writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
        return cls(reader, writer, sent, received)

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, head: bytes, body: bytes) -> ResponseHead:
        """Send a request and read the head of its answer; ``has_answered`` tells whether the server said anything.

        :raises Unreachable: the connection has ended, or this is not HTTP.
        """
        self.has_answered = False
        try:
            self._writer.write(head + body)
            self._sent(len(head) + len(body))
            await self._writer.drain()
            while True:
                said = await self._reader.readuntil(b"\r\n\r\n")
                self._received(len(said))
                self.has_answered = True
                line, _, rest = said.partition(b"\r\n")
                words = line.split(None, 2)
                if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                    raise Unreachable(f"the server does not speak HTTP/1.1: {line[:60]!r}")
                if words[1] != b"100":
                    break
        except asyncio.IncompleteReadError as error:
            self.has_answered = bool(error.partial)
            raise Unreachable("the server has closed the connection") from None
        except asyncio.LimitOverrunError:
            raise Unreachable(f"the head of the answer is longer than {_MOST_HEAD} bytes") from None
        except OSError as error:
            raise Unreachable(f"the connection to the server has ended: {error}") from None
        self.is_fresh = False
        return ResponseHead(self, int(words[1]), _headers(rest))

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = _number((await self._line()).split(b";")[0].decode("latin-1").strip(), 16)
            if size == 0:
                while (await self._line()).strip():  # trailers
                    pass
                return
            async for piece in self.exactly(size):
                yield piece
            await self._line()

    async def exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            piece = await self._read(min(size, _PIECE))
            if not piece:
                raise Unreachable("the server has closed the connection in the middle of an answer")
            size -= len(piece)
            yield piece

    async def rest(self) -> AsyncIterator[bytes]:
        while piece := await self._read(_PIECE):
            yield piece
        self.close()

    async def _read(self, most: int) -> bytes:
        try:
            piece = await self._reader.read(most)
        except OSError as error:
            raise Unreachable(f"the connection to the server has ended: {error}") from None
        self._received(len(piece))
        return piece

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            raise Unreachable(f"the connection to the server has ended: {error}") from None
        if not line.endswith(b"\n"):
            raise Unreachable("the server has closed the connection in the middle of an answer")
        self._received(len(line))
        return line

    def close(self) -> None:
        """Without waiting: nothing of it is read any more."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.transport.abort()


def _headers(head: bytes) -> dict[str, str]:
    """Header fields as RFC 9112 (5) has them; one that is repeated is a list with commas, and a folded line is one.

    :raises Unreachable: a line is none.
    """
    found: dict[str, str] = {}
    name = ""
    for line in head.decode("latin-1").split("\r\n"):
        if not line:
            continue
        if line[0] in " \t" and name:
            found[name] += " " + line.strip()
            continue
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise Unreachable(f"the server does not speak HTTP/1.1: {line[:60]!r} is no header")
        found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return found


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise Unreachable(f"the server gives {text[:20]!r} as a length")
    return number
