"""A connection between an NRI host and a plugin: calls both ways at once, over one stream socket.

Either end, by ``role``: the host calls the service Plugin and serves Runtime, the plugin the reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Mapping
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy import effects
from cri_proxy.nri import ttrpc
from cri_proxy.nri.io.plugin.launched import PLUGIN_SERVICE, RUNTIME_SERVICE
from cri_proxy.nri.ttrpc import TtrpcWire
from cri_proxy.nri.ttrpc_frames import (
    MAX_DATA_BYTES,
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Begun,
    Garbage,
    TooLarge,
)
from cri_proxy.relay.status import Code

#: Message bytes and the caller's timeout in seconds (0 = none) -> reply bytes. May raise CallFailed.
Handler = Callable[[bytes, float], Awaitable[bytes]]

#: Calls of the peer that are served at a time; each may hold a message of 4 MiB. More are refused; while the peer does
#: not read the refusals, nothing more is read from it.
MOST_SERVED, MOST_TAKEN = 16, 32
_READ_BYTES = 1 << 18
#: Sent without waiting for the peer to read: an event with its container has 7 KiB.
_SMALL_BYTES = 1 << 16
#: Linux's number; Python lacks its name.
_SO_SNDBUFFORCE = 32


class CallFailed(Exception):
    """An error instead of a reply: the peer's, or raised by a handler as its answer.

    ``is_last``: a handler's; the connection is closed once it is sent.
    """

    def __init__(self, code: int, message: str, is_last: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_last = is_last


class CallTimedOut(Exception):
    """The peer has not answered in time; a late answer is ignored."""


class ConnectionClosed(Exception):
    """The connection is gone; whether the peer has carried out the call is not known."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NriConnection:
    """One end of a connection. Its owner must run ``run()``, else nothing is received."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        role: str,
        handlers: Mapping[str, Handler],
        log: Any = None,
        begun: Optional[Begun] = None,
    ) -> None:
        """``role``: "host" or "plugin". ``handlers``: by the bare name of the RPC. ``log``: for bugs in them.

        ``begun``: where an earlier reader stopped; give ``take`` the calls that wait since then.
        """
        self._reader = reader
        self._writer = writer
        _make_room(writer.get_extra_info("socket"))
        self._handlers = handlers
        self._log = log
        if role == "host":
            self._wire = TtrpcWire(RUNTIME_CONNECTION, RUNTIME_SERVICE, PLUGIN_SERVICE, begun)
        else:
            self._wire = TtrpcWire(PLUGIN_CONNECTION, PLUGIN_SERVICE, RUNTIME_SERVICE, begun)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._served = 0
        self._writing = asyncio.Lock()
        self._reason = ""
        #: Set when no more calls are possible.
        self.closed = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why the connection has ended; "" before."""
        return self._reason

    async def run(self) -> str:
        """Receive until the connection ends; returns the reason, in a few words. Handlers are cancelled."""
        try:
            while not self.closed.is_set():
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    self.close("the other side has closed the connection")
                    break
                events, answers = self._wire.receive(data)
                for event in events:
                    self.take(event)
                if answers:
                    await self._send(answers)
                while len(self._tasks) >= MOST_TAKEN:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        except Garbage as error:
            self.close(f"the other side does not speak ttRPC: {error}")
        except ConnectionClosed:
            pass
        except OSError as error:
            self.close(error.strerror or str(error))
        finally:
            self.close("the connection was given up")
            await self._end()
        return self._reason

    def close(self, reason: str) -> None:
        """End it; every call under way fails with the reason. The first reason stays."""
        if self.closed.is_set():
            return
        self._reason = reason
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionClosed(reason))
        self._waiting.clear()
        # Not close(): it would first send bytes that such a peer never reads.
        self._writer.transport.abort()

    async def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """The peer's reply to one call. ``timeout_s`` 0 = no limit.

        :raises CallFailed: the peer answers with an error; or, with code 8, the message is larger than 4 MiB and
            was not sent.
        :raises CallTimedOut: no answer in time.
        :raises ConnectionClosed: the connection has ended.
        """
        if self.closed.is_set():
            raise ConnectionClosed(self._reason)
        try:
            stream, out = self._wire.call(method, message, timeout_s)
        except TooLarge as error:
            raise CallFailed(error.code, str(error)) from None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting[stream] = future
        timer = loop.call_later(timeout_s, _time_out, future) if timeout_s else None
        try:
            if not self._is_sent_at_once(out):
                await wait_within(timeout_s or None, self._send(out))
            return await future
        except asyncio.TimeoutError:
            raise CallTimedOut(f"{method} was not answered within {timeout_s:g} s") from None
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(stream, None)
            self._wire.forget(stream)
            if future.done() and not future.cancelled():
                future.exception()  # seen, also if no call waited for it to the end

    def _is_sent_at_once(self, out: bytes) -> bool:
        """Send a small message at once while nothing else waits to be sent."""
        if (
            len(out) > _SMALL_BYTES
            or self._writing.locked()
            or self._writer.transport.get_write_buffer_size()
        ):
            return False
        effects.before(effects.NRI, "")
        self._writer.write(out)
        return True

    async def _send(self, out: bytes) -> None:
        # One message at a time, the next one when this is nearly sent: the buffer is bounded.
        async with self._writing:
            if self.closed.is_set():
                raise ConnectionClosed(self._reason)
            try:
                effects.before(effects.NRI, "")
                self._writer.write(out)
                await self._writer.drain()
            except OSError as error:
                self.close(error.strerror or str(error))
                raise ConnectionClosed(self._reason) from None

    def take(self, event: ttrpc.Event) -> None:
        """Serve a call of the peer, or hand its reply to the waiting call."""
        if isinstance(event, ttrpc.Reply):
            future = self._waiting.get(event.stream)
            if future is None or future.done():
                return
            if event.code:
                future.set_exception(CallFailed(event.code, event.message))
            else:
                future.set_result(event.payload)
            return
        task = asyncio.get_running_loop().create_task(self._serve(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, call: ttrpc.PeerCall) -> None:
        last = ""
        try:
            out = await self._answer(call)
        except CallFailed as error:
            out = self._wire.fail(call.stream, error.code or Code.UNKNOWN, error.message)
            last = error.message if error.is_last else ""
        with contextlib.suppress(ConnectionClosed):
            await self._send(out)
        if last:
            self.close(last)

    async def _answer(self, call: ttrpc.PeerCall) -> bytes:
        handler: Optional[Handler] = self._handlers.get(call.method)
        if handler is None:
            return self._wire.fail(call.stream, Code.UNIMPLEMENTED, f"method {call.method}")
        if self._served >= MOST_SERVED:
            return self._wire.fail(
                call.stream, Code.RESOURCE_EXHAUSTED, f"more than {MOST_SERVED} calls at a time"
            )
        self._served += 1
        try:
            work = handler(call.payload, call.timeout_s)
            return self._wire.reply(call.stream, await wait_within(call.timeout_s or None, work))
        except CallFailed:
            raise
        except asyncio.TimeoutError:
            return self._wire.fail(call.stream, Code.DEADLINE_EXCEEDED, "context deadline exceeded")
        except Exception as error:
            # A bug of ours costs this call, not the connection.
            if self._log is not None:
                self._log.exception("an NRI handler failed", method=call.method)
            return self._wire.fail(call.stream, Code.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            self._served -= 1

    async def _end(self) -> None:
        # A handler may have closed us.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _make_room(end: Any) -> None:
    """Let the kernel buffer a whole message: else we and the peer take turns, 200 KB at a time."""
    for option in (socket.SO_SNDBUF, _SO_SNDBUFFORCE):  # the second goes beyond the system's bound, if we may
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, option, MAX_DATA_BYTES)


def _time_out(future: asyncio.Future[bytes]) -> None:
    if not future.done():
        future.set_exception(asyncio.TimeoutError())
