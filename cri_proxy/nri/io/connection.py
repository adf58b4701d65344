"""A connection between an NRI host and a plugin: calls both ways at once, over one stream socket.

Either end of it, ``role``: the host calls the service Plugin and serves Runtime, the plugin the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Mapping
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
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

#: Message bytes and how long the caller waits (0 = it does not say) -> reply bytes. May raise CallFailed.
Handler = Callable[[bytes, float], Awaitable[bytes]]

#: So many calls of the peer are served at a time; each may hold a message of 4 MiB. Beyond these they are refused, and
#: a peer that does not even read the refusals is not listened to for so long.
MOST_SERVED, MOST_TAKEN = 16, 32
_READ_BYTES = 1 << 18
#: What is sent without waiting for the peer to take it: an event with its container, which has 7 KiB.
_SMALL_BYTES = 1 << 16
#: Linux's number; Python does not name it.
_SO_SNDBUFFORCE = 32


class CallFailed(Exception):
    """An error in the place of a reply: the peer's, or what a handler raises to answer with one.

    ``is_last``: of a handler; the connection is closed once this is sent.
    """

    def __init__(self, code: int, message: str, is_last: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_last = is_last


class CallTimedOut(Exception):
    """The peer has not answered in time; if it does later, that is ignored."""


class ConnectionClosed(Exception):
    """There is no connection any more; what the peer has done about the call is not known."""

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

        ``begun``: what has been read of the streams before; give ``take`` the calls that wait since then.
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
        #: Set once no call can be made any more.
        self.closed = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why the connection has ended; "" while it has not."""
        return self._reason

    async def run(self) -> str:
        """Receive until the connection ends; returns why it has, in a few words. Handlers are then cancelled."""
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
        # Not close(): it would first send what a peer that does not read will never take.
        self._writer.transport.abort()

    async def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """The peer's reply to one call. ``timeout_s`` 0 = wait as long as it takes.

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
        """Send what is small while nothing else waits; there is nothing to wait for then."""
        if (
            len(out) > _SMALL_BYTES
            or self._writing.locked()
            or self._writer.transport.get_write_buffer_size()
        ):
            return False
        self._writer.write(out)
        return True

    async def _send(self, out: bytes) -> None:
        # One message at a time, and the next one only when this is nearly gone: what waits here is bounded.
        async with self._writing:
            if self.closed.is_set():
                raise ConnectionClosed(self._reason)
            try:
                self._writer.write(out)
                await self._writer.drain()
            except OSError as error:
                self.close(error.strerror or str(error))
                raise ConnectionClosed(self._reason) from None

    def take(self, event: ttrpc.Event) -> None:
        """Serve a call of the peer, or hand its reply to whatever waits for it."""
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
            out = self._wire.fail(call.stream, error.code or ttrpc.UNKNOWN, error.message)
            last = error.message if error.is_last else ""
        with contextlib.suppress(ConnectionClosed):
            await self._send(out)
        if last:
            self.close(last)

    async def _answer(self, call: ttrpc.PeerCall) -> bytes:
        handler: Optional[Handler] = self._handlers.get(call.method)
        if handler is None:
            return self._wire.fail(call.stream, ttrpc.UNIMPLEMENTED, f"method {call.method}")
        if self._served >= MOST_SERVED:
            return self._wire.fail(
                call.stream, ttrpc.RESOURCE_EXHAUSTED, f"more than {MOST_SERVED} calls at a time"
            )
        self._served += 1
        try:
            work = handler(call.payload, call.timeout_s)
            return self._wire.reply(call.stream, await wait_within(call.timeout_s or None, work))
        except CallFailed:
            raise
        except asyncio.TimeoutError:
            return self._wire.fail(call.stream, ttrpc.DEADLINE_EXCEEDED, "context deadline exceeded")
        except Exception as error:
            # A bug of ours costs this call, not the connection.
            if self._log is not None:
                self._log.exception("an NRI handler failed", method=call.method)
            return self._wire.fail(call.stream, ttrpc.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            self._served -= 1

    async def _end(self) -> None:
        # A handler may be what has closed us.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _make_room(end: Any) -> None:
    """Let the kernel take a whole message at once: else we and the peer take turns, two hundred kilobytes at a time."""
    for option in (socket.SO_SNDBUF, _SO_SNDBUFFORCE):  # the second goes beyond the system's bound, if we may
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, option, MAX_DATA_BYTES)


def _time_out(future: asyncio.Future[bytes]) -> None:
    if not future.done():
        future.set_exception(asyncio.TimeoutError())
