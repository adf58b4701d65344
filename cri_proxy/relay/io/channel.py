"""Calls of our own to a gRPC server on a unix socket: one connection for all of them, made when it is needed.

A call that finds no connection waits for the one that is being made. After an attempt to connect has failed, calls fail
at once until another one succeeds; attempts go on by themselves until then.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Callable, Optional, Union

from cri_api.waiting import wait_within
from cri_proxy import effects
from cri_proxy.relay.http2.caller import RUNTIME, Caller, OwnCall
from cri_proxy.relay.http2.headers import write_request
from cri_proxy.relay.io.endpoint import CONNECT_S, Endpoint, connected
from cri_proxy.relay.status import Code, RpcError

#: Between attempts to connect, the first pause and the longest: a server that comes back is found within half a second.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.5
_GROWTH = 1.6
_CLOSED = "the channel is closed"

Fields = tuple[tuple[str, Union[str, bytes]], ...]


class _Connection:
    """One connection of a channel's. ``changed`` is called when something has come, or it is lost."""

    def __init__(self, peer: str, changed: Callable[[_Connection], None]) -> None:
        self.caller = Caller(peer)
        self.endpoint = Endpoint(self._received, self._lost, _nothing)
        #: Done when the server has said something, or will not.
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = changed

    def pump(self) -> None:
        """Write what is to be written; close what no call needs."""
        self.endpoint.write(self.caller.to_runtime)
        if not self.caller.takes_calls:
            self._changed(self)
            if not self.caller.is_busy:
                self.endpoint.close()

    def abort(self) -> None:
        """End it at once; its calls are cancelled."""
        self.caller.lost(_CLOSED, Code.CANCELLED)
        self.endpoint.abort()

    def _received(self, data: bytes) -> None:
        try:
            self.caller.received(data)
        except Exception:  # a bug, which the loop logs; no call waits for what is lost by it
            self.caller.lost("what it has sent could not be read")
            raise
        finally:
            self.pump()
            self._tell()

    def _lost(self) -> None:
        self.caller.lost()
        self._tell()

    def _tell(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)
        self._changed(self)


class ServerStream:
    """A call with any number of replies. It begins with the first ``read``, and ``cancel`` must follow the last."""

    def __init__(
        self, channel: Channel, method: str, message: bytes, timeout_s: Optional[float], metadata: Fields
    ) -> None:
        self._channel = channel
        self._method = method
        self._message = message
        self._timeout_s = timeout_s
        self._metadata = metadata
        self._connection: Optional[_Connection] = None
        self._call: Optional[OwnCall] = None
        #: Messages that have come, with their prefixes.
        self._messages: deque[bytes] = deque()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._is_late = False
        self._waiter: Optional[asyncio.Future[None]] = None

    async def read(self) -> Optional[bytes]:
        """The next reply; None: there are no more. To cancel it is to cancel the call.

        :raises RpcError: the call has failed.
        """
        try:
            if self._call is None:
                self._call = await self._begin()
            return await self._next(self._call)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Reset the call at the server, if it is not over."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None and self._connection is not None:
            self._call.wake = _nothing
            self._connection.caller.cancel(self._call)
            self._connection.pump()

    async def _begin(self) -> OwnCall:
        loop, timeout_s = asyncio.get_running_loop(), self._timeout_s
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        if not self._channel.is_connected:
            await self._channel.wait_for_call(timeout_s)
            timeout_s = None if deadline_s is None else deadline_s - loop.time()
        if timeout_s is not None and timeout_s <= 0:
            raise RpcError(Code.DEADLINE_EXCEEDED, "there was no time for the call")
        self._connection = self._channel.connection
        effects.before(effects.CALL, self._method)
        block = write_request(self._method, timeout_s, self._metadata)
        call = self._connection.caller.begin(block, self._message, self._wake)
        if timeout_s is not None:
            self._timer = loop.call_later(timeout_s, self._end_late)
        self._connection.pump()
        return call

    async def _next(self, call: OwnCall) -> Optional[bytes]:
        while not self._messages:
            self._messages += call.take_messages()
            if self._messages:
                break
            if self._is_late:
                raise RpcError(
                    Code.DEADLINE_EXCEEDED,
                    f"no answer within {self._timeout_s:g} s",
                    in_doubt=bool(call.stream),
                )
            if call.is_over:
                if call.status[0] != Code.OK:
                    raise call.error()
                if call.hold.data:
                    raise RpcError(Code.INTERNAL, "the last message is not whole", in_doubt=True)
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        prefixed = self._messages.popleft()
        if not self._messages and self._connection is not None:
            self._connection.caller.credit(call)
            self._connection.pump()
        message = call.read(prefixed)
        if message is None:
            raise RpcError(Code.INTERNAL, "a message is compressed in a way that is not known", in_doubt=True)
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_late(self) -> None:
        if self._call is not None and not self._call.is_over and self._connection is not None:
            self._is_late = True
            self._connection.caller.cancel(self._call)
            self._connection.pump()


class Channel:
    """``peer``: what the server is, for sentences. Nothing runs before the first call; ``close`` ends all."""

    def __init__(self, path: str, peer: str = RUNTIME) -> None:
        self.path = path
        self._peer = peer
        #: The connection of new calls, and those on which only calls end that began before.
        self._current: Optional[_Connection] = None
        self._leaving: set[_Connection] = set()
        self._connecting: Optional[asyncio.Task[None]] = None
        #: Why the last attempt to connect has failed; "" = it has not.
        self._problem = ""
        self._is_closed = False
        self._waiting: list[asyncio.Future[None]] = []

    async def unary(
        self, method: str, message: bytes, timeout_s: Optional[float] = None, metadata: Fields = ()
    ) -> bytes:
        """The reply of a call; ``method`` is the full one. Cancelled, the call is reset at the server.

        :raises RpcError: the server's status, or why there is none.
        """
        call = self.stream(method, message, timeout_s, metadata)
        try:
            reply = await call.read()
            if reply is None or await call.read() is not None:
                what = "no message" if reply is None else "more than one message"
                raise RpcError(Code.INTERNAL, f"{self._peer} has answered with {what}", in_doubt=True)
            return reply
        finally:
            call.cancel()

    def stream(
        self, method: str, message: bytes, timeout_s: Optional[float] = None, metadata: Fields = ()
    ) -> ServerStream:
        """A call with any number of replies; ``method`` is the full one."""
        return ServerStream(self, method, message, timeout_s, metadata)

    # ------------------------------------------------------------------ the connection

    @property
    def is_connected(self) -> bool:
        """Whether calls can begin at once."""
        return self._current is not None

    @property
    def connection(self) -> _Connection:
        """Where calls begin, while the channel is connected."""
        assert self._current is not None
        return self._current

    async def wait_ready(self) -> None:
        """Return when the channel is connected; keeps it trying."""
        while self._current is None:
            self._connect()
            await self._change()

    async def wait_lost(self) -> None:
        """Return when the channel is not connected any more."""
        while self._current is not None:
            await self._change()

    async def wait_for_call(self, timeout_s: Optional[float]) -> None:
        """Return when the channel is connected, unless that has just failed.

        :raises RpcError: there is no connection to be had, or not in time.
        """
        try:
            await wait_within(timeout_s, self._wait_for_call())
        except asyncio.TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, f"{self._peer} was not reached in time") from None

    async def _wait_for_call(self) -> None:
        while self._current is None:
            if self._problem:
                raise RpcError(Code.UNAVAILABLE, self._problem)
            self._connect()
            await self._change()

    async def close(self) -> None:
        """End the connection and all calls, which are cancelled. No call can be made any more."""
        self._is_closed, self._problem = True, _CLOSED
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        for connection in (*self._leaving, self._current):
            if connection is not None:
                connection.abort()
                self._look_at(connection)
        self._tell()

    def _connect(self) -> None:
        if self._connecting is None and not self._is_closed:
            self._connecting = asyncio.get_running_loop().create_task(self._keep_trying())

    async def _keep_trying(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while self._current is None:
                try:
                    self._current = await self._attempt()
                    self._problem = ""
                except Exception as error:  # a bug of ours, too: calls are told, and it is tried again
                    self._problem = f"{self._peer} cannot be reached at {self.path}: {_reason(error)}"
                    self._tell()
                    await asyncio.sleep(pause_s)
                    pause_s = min(_GROWTH * pause_s, LONGEST_PAUSE_S)
        finally:
            self._connecting = None
            self._tell()

    async def _attempt(self) -> _Connection:
        """A connection on which the server has said that it speaks HTTP/2.

        :raises OSError, asyncio.TimeoutError: there is none.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CONNECT_S
        accepted = await wait_within(CONNECT_S, connected(self.path))
        connection = _Connection(self._peer, self._look_at)
        connection.endpoint.begin(accepted)
        connection.pump()
        try:
            await wait_within(until_s - loop.time(), connection.answered)
            if not connection.caller.takes_calls:
                raise OSError("it has ended the connection")
        except BaseException:
            connection.abort()
            raise
        return connection

    def _look_at(self, connection: _Connection) -> None:
        """Something has come, or the connection is lost."""
        if connection.caller.takes_calls:
            return
        self._leaving.discard(connection)
        if not connection.caller.is_over:
            self._leaving.add(connection)
        if connection is self._current:
            self._current = None
            self._tell()

    # ------------------------------------------------------------------ waiting

    async def _change(self) -> None:
        """Return when the channel has been connected, has lost its connection, or has failed to connect."""
        change = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        try:
            await change
        finally:
            self._waiting.remove(change)

    def _tell(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if isinstance(error, asyncio.TimeoutError):
        return f"it has not answered within {CONNECT_S:g} s"
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _nothing() -> None:
    pass
