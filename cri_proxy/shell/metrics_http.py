"""Serves the metrics text over HTTP/1.1 on one TCP address; nothing else."""

from __future__ import annotations

import asyncio
from typing import Callable, Optional

MAX_HEAD = 16 * 1024


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
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            path = head.split(b" ", 2)[1].split(b"?")[0] if head.startswith(b"GET ") else b""
            found = path in (b"/metrics", b"/")
            body = self._text().encode() if found else b"only GET /metrics is served\n"
            status = b"200 OK" if found else b"404 Not Found"
            writer.write(
                b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
                + str(len(body)).encode() + b"\r\nConnection: close\r\n\r\n" + body
            )  # fmt: skip
            await writer.drain()
        except (
            OSError,
            asyncio.TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            IndexError,
        ):
            pass
        finally:
            writer.close()
