"""What the tests of the frame relay share: an interceptor that does as it is told, and raw ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy.relay.http2.frames import HEAD, HEAD_BYTES, PING, PREFACE, write_settings
from cri_proxy.relay.http2.wire import PING_MARK
from cri_proxy.relay.interception import CallEnd, Forward, Outcome, intercepted
from cri_proxy.relay.io.link import Link
from cri_proxy.relay.io.server import FrameRelay
from tests.relay.http2.hand import CONFIRMED, Written, data, headers, path, written

HANG_S = 20.0
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
UNKNOWN = "/a.b/Unknown"


class Recorder:
    """An interceptor that does as it is told, and notes what it is told; ``hold``: ``replied`` waits for it."""

    def __init__(self) -> None:
        self.outcome: Outcome = Forward()
        self.notes: list[tuple[Any, ...]] = []
        self.filter: Optional[Callable[[bytes], Optional[bytes]]] = None
        self.hold: Optional[asyncio.Event] = None
        self.deciding: Optional[asyncio.Event] = None

    def open(self, full_method: str) -> Optional[Recorder]:
        return self if intercepted(full_method) else None

    async def request(self, message: bytes) -> Outcome:
        self.notes.append(("request", message))
        if self.deciding is not None:
            await self.deciding.wait()
        return self.outcome

    async def replied(self, message: bytes) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.notes.append(("replied", message))

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        self.notes.append(("ended", end, code))

    async def until(self, kind: str, count: int = 1) -> None:
        while sum(note[0] == kind for note in self.notes) < count:
            await asyncio.sleep(0.005)


async def soon(awaitable: Any) -> Any:
    """What comes at once, or never."""
    return await asyncio.wait_for(awaitable, HANG_S)


async def until(holds: Callable[[], bool]) -> None:
    """As soon as it is so."""

    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    await soon(wait())


@contextlib.asynccontextmanager
async def relaying(runtime: str, socket: str, calls: Any, **notes: Any) -> AsyncIterator[FrameRelay]:
    """A relay in front of ``runtime``; when it is closed nothing of it may be left."""
    relay = FrameRelay(runtime, calls, **notes)
    await relay.open([Path(socket)], [])
    await relay.start_behind(asyncio.sleep(0))
    try:
        yield relay
    finally:
        await relay.close(0)
    await until(lambda: not relay.joining)
    assert len(relay._links) == 0 and relay.tasks == set() and open_sockets(socket) == 0
    assert not Path(socket).exists()


def open_sockets(path: str) -> int:
    """How many of this process's descriptors are ends of connections to a path, or listen there."""
    with open("/proc/net/unix") as table:
        inodes = {line.split()[6] for line in table if line.rstrip().endswith(path)}
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(f"socket:[{inode}]" in names for inode in inodes)


async def links_of(relay: FrameRelay, count: int) -> list[Link]:
    """The relay's connections, as soon as there are so many."""
    await until(lambda: len(relay._links) == count)
    return list(relay._links)


def request(method: str, stream: int, end: bool = True) -> bytes:
    """A call with an empty message."""
    block = b"\x83\x86" + path(method) + b"\x41\x01x" + b"\x5f\x10application/grpc\x40\x02te\x08trailers"
    return headers(stream, block) + data(stream, bytes(5), end)


class Raw:
    """A client, or a runtime, that writes its frames itself: no gRPC library is behind it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, relay: FrameRelay, *frames: bytes) -> Raw:
        """A client with a large window, and what it says first."""
        raw = await cls.silent(relay)
        raw.write(PREFACE + write_settings((4, 2**31 - 1)), *frames)
        return raw

    @classmethod
    async def silent(cls, relay: FrameRelay) -> Raw:
        """A client that has said nothing yet."""
        return cls(*await asyncio.open_unix_connection(str(relay.sockets[0])))

    def write(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def frame(self, *kinds: int) -> Written:
        """The next frame of these kinds."""
        while True:
            head = await soon(self.reader.readexactly(HEAD_BYTES))
            found = written(head + await soon(self.reader.readexactly(HEAD.unpack(head)[0] >> 8)))[0]
            if found.kind in kinds:
                return found

    async def ping_of_ours(self) -> bytes:
        """The next PING that is the relay's own; the runtime's pass here, too."""
        while not (payload := (await self.frame(PING)).payload).startswith(PING_MARK):
            pass
        return payload

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class RawRuntime:
    """A runtime that says its settings, and then what the test says; ``connections`` are those that came."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.connections: list[Raw] = []

    async def __aenter__(self) -> RawRuntime:
        self._server = await asyncio.start_unix_server(self._connected, self.socket)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for connection in self.connections:
            await connection.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = Raw(reader, writer)
        raw.write(write_settings(), CONFIRMED)
        self.connections.append(raw)


@contextlib.asynccontextmanager
async def behind_relay(
    folder: Path, calls: Any, **notes: Any
) -> AsyncIterator[tuple[RawRuntime, FrameRelay]]:
    """A raw runtime with a relay in front of it."""
    async with (
        RawRuntime(f"{folder}/r.sock") as runtime,
        relaying(runtime.socket, f"{folder}/k.sock", calls, **notes) as relay,
    ):
        yield runtime, relay
