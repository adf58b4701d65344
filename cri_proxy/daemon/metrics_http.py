"""Serves the metrics text over HTTP/1.1 on one TCP address; nothing else.

The text is made once a second at most, however many ask for it, and in pieces between which calls are relayed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from typing import Callable, Optional

from cri_api.supervisor import Supervisor
from cri_proxy.door import BACKLOG, Door, Visitor

MAX_HEAD = 16 * 1024
#: How old a text may be that is served, seconds. Prometheus asks each 15 s or so.
FRESH_S = 1.0
#: Connections at a time: a scraper has one, for some milliseconds.
MOST_CONNECTIONS = 16


class MetricsText:
    """The text of a moment that is not long ago."""

    def __init__(
        self, pieces: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``pieces``: the text, made as it is gone through."""
        self._pieces = pieces
        self._clock = clock
        self._text = b""
        self._made_s: Optional[float] = None

    def is_fresh(self) -> bool:
        return self._made_s is not None and self._clock() - self._made_s < FRESH_S

    async def make(self) -> bytes:
        """Make it, unless it is fresh. One caller at a time."""
        if not self.is_fresh():
            made_s, pieces = self._clock(), []
            for piece in self._pieces():
                pieces.append(piece)
                await asyncio.sleep(0)
            self._text, self._made_s = "".join(pieces).encode(), made_s
        return self._text


class MetricsServer:
    """``listen`` is HOST:PORT (port 0: any; ``port`` then says which). The rest as of ``Door``."""

    def __init__(
        self,
        listen: str,
        text: MetricsText,
        note: Callable[[str], object] = lambda why: None,
        supervisor: Optional[Supervisor] = None,
        is_busy: Callable[[], bool] = lambda: True,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._text = text
        self._door = Door("metrics", self._serve, _refusal, note, supervisor, is_busy, MOST_CONNECTIONS)

    async def start(self) -> None:
        """:raises OSError: the address cannot be had."""
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listeners: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                listener.listen(BACKLOG)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._port = int(listeners[0].getsockname()[1])
        self._door.open(listeners)

    @property
    def port(self) -> int:
        return self._port

    async def stop(self) -> None:
        await self._door.close()

    async def _serve(self, visitor: Visitor) -> None:
        asked = await visitor.request(b"\r\n\r\n", MAX_HEAD)
        if asked is None:
            return
        words = asked.split(b" ", 2)
        path = words[1].split(b"?")[0] if len(words) > 2 and words[0] == b"GET" else b""
        if path not in (b"/metrics", b"/"):
            await visitor.answer(_answer(b"404 Not Found", b"only GET /metrics is served\n"))
            return
        await visitor.answer(_answer(b"200 OK", await self._door.answers.run(self._text.make())))


def _answer(status: bytes, body: bytes) -> list[bytes]:
    kind = b"Content-Type: text/plain; version=0.0.4; charset=utf-8"
    length = b"Content-Length: " + str(len(body)).encode()
    return [b"\r\n".join((b"HTTP/1.1 " + status, kind, length, b"Connection: close", b"", b"")), body]


def _refusal(sentence: str) -> bytes:
    return b"".join(_answer(b"503 Service Unavailable", sentence.encode() + b"\n"))


class MetricsEndpoint:
    """Metrics where the configuration says now, and nowhere else. The rest as of ``MetricsServer``."""

    def __init__(
        self,
        pieces: Callable[[], Iterable[str]],
        note: Callable[[str], object] = lambda why: None,
        supervisor: Optional[Supervisor] = None,
        is_busy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._text = MetricsText(pieces)
        self._note = note
        self._supervisor = supervisor
        self._is_busy = is_busy
        self._server: Optional[MetricsServer] = None

    async def follow(self, listen: str) -> str:
        """Serve on HOST:PORT ("" = nowhere) from now on; why that is not possible, or ""."""
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if not listen:
            return ""
        server = MetricsServer(listen, self._text, self._note, self._supervisor, self._is_busy)
        try:
            await server.start()
        except OSError as error:
            return f"metrics are not served on {listen}: {error.strerror or error}"
        self._server = server
        return ""
