"""The client's side of exec, attach and port-forward: what kubelet does with the URLs that CRI answers.

They point at the runtime's own HTTP server. An upgrade leads to SPDY/3.1 (kubectl until 1.30) or to a
websocket (RFC 6455), of which as much is here as reads what a command prints.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

CONTINUED, BINARY = 0, 2


@dataclass(frozen=True)
class Upgraded:
    """A connection after the server's answer; ``status`` is its number, 101 if it did as asked."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader


@asynccontextmanager
async def upgrade(url: str, to: str, protocol: str, timeout_s: float = 20) -> AsyncIterator[Upgraded]:
    """Ask the server at ``url`` for "SPDY/3.1" or "websocket"; ``protocol`` is what is spoken inside."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        lines = [f"{'GET' if to == 'websocket' else 'POST'} {parts.path}?{parts.query} HTTP/1.1"]
        lines += [f"Host: {parts.netloc}", "Connection: Upgrade", f"Upgrade: {to}"]
        if to == "websocket":
            lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}"]
            # Of a client without an origin the server thinks ill.
            lines += [f"Sec-WebSocket-Protocol: {protocol}", f"Origin: http://{parts.netloc}"]
        else:
            lines += [f"X-Stream-Protocol-Version: {protocol}", "Content-Length: 0"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout_s)).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        yield Upgraded(int(head[0].split()[1]), headers, reader)
    finally:
        writer.close()


async def frames(connection: Upgraded, timeout_s: float = 20) -> AsyncIterator[tuple[int, bytes]]:
    """What comes over a websocket until its end, by channel: 1 is stdout, 2 stderr, 3 how it ended."""
    opcode = BINARY
    while opcode in (CONTINUED, BINARY):
        opcode, payload = await asyncio.wait_for(_frame(connection.reader), timeout_s)
        if opcode == BINARY and len(payload) > 1:
            yield payload[0], payload[1:]


async def output(connection: Upgraded) -> dict[int, bytes]:
    """All of it, put together."""
    printed: dict[int, bytes] = {}
    async for channel, data in frames(connection):
        printed[channel] = printed.get(channel, b"") + data
    return printed


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    # A server does not mask, and nothing here is longer than 64 KiB.
    first, length = await reader.readexactly(2)
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    return first & 15, await reader.readexactly(length)
