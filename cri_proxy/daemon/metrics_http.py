"""Serves the metrics text over HTTP/1.1 on one TCP address; nothing else."""

from __future__ import annotations

import asyncio
from typing import Callable, Optional

from cri_api.waiting import wait_within

MAX_HEAD = 16 * 1024
#: Gone, too slow, too long, or not HTTP.
_NO_REQUEST = (OSError, asyncio.TimeoutError, EOFError, asyncio.LimitOverrunError, IndexError)


class MetricsServer:
    """``listen`` is HOST:PORT (port 0: any; ``port`` then says which)."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        host, _, port = listen.rpartition(":")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._text = text
        self._server: Optional[asyncio.Server] = None

    async def start(self) -> None:
        """:raises OSError: the address cannot be had."""
        self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=MAX_HEAD)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await wait_within(10, reader.readuntil(b"\r\n\r\n"))
            path = asked.split(b" ", 2)[1].split(b"?")[0] if asked.startswith(b"GET ") else b""
            found = path in (b"/metrics", b"/")
            body = self._text().encode() if found else b"only GET /metrics is served\n"
            status = b"200 OK" if found else b"404 Not Found"
            kind = b"Content-Type: text/plain; version=0.0.4; charset=utf-8"
            length = b"Content-Length: " + str(len(body)).encode()
            head = (b"HTTP/1.1 " + status, kind, length, b"Connection: close", b"", b"")
            writer.write(b"\r\n".join(head) + body)
            await writer.drain()
        except _NO_REQUEST:
            pass
        finally:
            writer.close()


class MetricsEndpoint:
    """Metrics where the configuration says now, and nowhere else."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: Optional[MetricsServer] = None

    async def follow(self, listen: str) -> str:
        """Serve on HOST:PORT ("" = nowhere) from now on; why that is not possible, or ""."""
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if not listen:
            return ""
        server = MetricsServer(listen, self._text)
        try:
            await server.start()
        except OSError as error:
            return f"metrics are not served on {listen}: {error.strerror or error}"
        self._server = server
        return ""
