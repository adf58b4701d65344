"""Passes the bytes of connections on a listening socket we were given to our server's own socket, and back.

grpc cannot serve a listening socket that it did not open, so connections on systemd's socket go through here.
It also ends them in the one way that fails no call. grpc's own stop cannot: calls that reach the server after
it, or that the application has not picked up yet, are thrown away (seen: grpcio 1.85; grpc-go then says CANCELLED). Here
clients are asked to call elsewhere first, while the server still takes what comes:

1. accept no more: callers queue at systemd's socket for the next daemon;
2. GOAWAY without a last call, PING: the answer says that no new calls will come here;
3. when the calls there are have ended and their last byte is written, close.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Any, Optional, cast

from cri_proxy.relay.frame_reader import PREFACE_BYTES, FirstAnswer, FrameReader, OpenCalls, going_away

#: Connections accepted in one turn of the event loop.
ACCEPT_AT_ONCE = 100
#: Out of descriptors: look again so much later.
ACCEPT_AGAIN_S = 0.5
#: A client that does not answer our ping within this is none that waits for anything.
FAREWELL_S = 2.0
_LOOK_S = 0.005


class Splice:
    """One listening socket. ``target``: the path of the server's own."""

    def __init__(self, listener: socket.socket, target: str) -> None:
        self._listener = listener
        self._target = target
        self._connections: set[_Connection] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._is_paused = True

    def start(self, greeted: Iterable[socket.socket] = ()) -> None:
        """Accept connections, and take over those that were (``greeting``)."""
        for connection in greeted:
            self._begin(connection, is_greeted=True)
        self._listener.setblocking(False)
        self._is_paused = False
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def pause(self) -> None:
        """Accept no more. The listening socket stays open: it is systemd's, and queues callers meanwhile."""
        self._is_paused = True
        asyncio.get_running_loop().remove_reader(self._listener)

    async def turn_away(self) -> None:
        """Ask all clients to begin no new calls here; returns when they have read it, or do not read at all."""
        self.pause()
        await asyncio.gather(*self._joining)
        for connection in self._connections:
            connection.say_farewell()
        await self._until(lambda connection: connection.calls.is_told, FAREWELL_S)

    @property
    def is_busy(self) -> bool:
        """Whether a client waits for the end of a call, or for bytes of it."""
        return any(connection.is_busy for connection in self._connections)

    async def stop(self, patience_s: float) -> None:
        """Accept no more; close the connections, idle ones at once, others after ``patience_s``."""
        self.pause()
        await self._until(lambda connection: not connection.is_busy, patience_s)
        for connection in list(self._connections):
            connection.close()
        # Closing writes what is left; that takes turns of the loop.
        await self._until(lambda connection: False, patience_s)
        for connection in list(self._connections):
            connection.abort()
        self._listener.close()

    async def _until(self, holds: Any, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not all(holds(connection) for connection in self._connections) and loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors, no memory
                loop.remove_reader(self._listener)
                loop.call_later(ACCEPT_AGAIN_S, self._accept_again)
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket, is_greeted: bool = False) -> None:
        task = asyncio.get_running_loop().create_task(self._join(accepted, is_greeted))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    def _accept_again(self) -> None:
        if not self._is_paused:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def _join(self, accepted: socket.socket, is_greeted: bool) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self._connections.discard, is_greeted)
        self._connections.add(connection)
        try:
            accepted.setblocking(False)
            await loop.create_unix_connection(lambda: connection.server, self._target)
            await loop.connect_accepted_socket(lambda: connection.client, accepted)
        except OSError:
            accepted.close()
            connection.abort()


class _Connection:
    """A client's connection and the one to the server."""

    def __init__(self, ended: Any, is_greeted: bool) -> None:
        self.calls = OpenCalls()
        self.client = _End(self._from_client, self._lost)
        self.server = _End(self._from_server, self._lost)
        self.client.other, self.server.other = self.server, self.client
        self._from_client_frames = FrameReader(skip=PREFACE_BYTES)
        self._from_server_frames = FrameReader()
        self._first_answer = FirstAnswer() if is_greeted else None
        self._farewell = b""
        self._ended = ended

    @property
    def is_busy(self) -> bool:
        return len(self.calls) > 0 or self.client.unwritten > 0

    def say_farewell(self) -> None:
        """Put our frames in as soon as there is a place for them."""
        self._farewell = going_away()
        if self._from_server_frames.is_between:
            self._put_in(b"", 0)

    def close(self) -> None:
        """Close, after what is still to be written."""
        for end in (self.client, self.server):
            end.close()

    def abort(self) -> None:
        """Close at once."""
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.abort()
        self._ended(self)

    def _lost(self) -> None:
        # Half a connection is of no use to HTTP/2.
        self.close()
        if all(end.is_lost for end in (self.client, self.server)):
            self._ended(self)

    def _from_client(self, data: bytes) -> None:
        if self._first_answer is not None:
            data = self._first_answer.take_out(data)
        self.server.write(data)
        for frame in self._from_client_frames.read(data):
            self.calls.from_client(frame)

    def _from_server(self, data: bytes) -> None:
        for frame in self._from_server_frames.read(data):
            self.calls.from_server(frame)
        gap = self._from_server_frames.gap
        if self._farewell and gap is not None:
            self._put_in(data, gap)
        else:
            self.client.write(data)

    def _put_in(self, data: bytes, at: int) -> None:
        self.client.write(b"".join((data[:at], self._farewell, data[at:])))
        self._farewell = b""


class _End(asyncio.Protocol):
    """One end of a connection: what is read here is written to the other, no faster than that reads."""

    def __init__(self, passed: Any, lost: Any) -> None:
        self.transport: Optional[asyncio.Transport] = None
        self.other: _End
        self.is_lost = False
        self._passed = passed
        self._lost = lost
        #: Bytes for this end that came before it was there.
        self._early = b""

    @property
    def unwritten(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data
        elif not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is None:
            self.is_lost = True  # it never comes
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.is_lost:
            self.transport.abort()
        elif self._early:
            self.transport.write(self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        self._passed(data)

    def connection_lost(self, _error: Optional[Exception]) -> None:
        self.is_lost = True
        self._lost()

    def pause_writing(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is closing
            if self.other.transport is not None:
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        with contextlib.suppress(RuntimeError):
            if self.other.transport is not None:
                self.other.transport.resume_reading()
