"""GetContainerEvents of many clients as one call at the runtime.

Calls that ask for the same in the same words share one: it begins with the first of them, on a connection of its own, and
ends with the last. What it says is shown once to the engine, and written to all. A client that comes later gets what
comes later. (``relay.http2.feed`` says what becomes of a client that is slow.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Optional, Protocol

from cri_api.waiting import wait_within
from cri_proxy.relay.http2.caller import Caller
from cri_proxy.relay.http2.feed import RuntimeStream
from cri_proxy.relay.http2.frames import DEFAULT_FRAME_BYTES
from cri_proxy.relay.http2.headers import Headers
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.stream import Ended, RequestReceived
from cri_proxy.relay.http2.wire import CLIENT_GONE
from cri_proxy.relay.interception import (
    CANCELLED,
    UNAVAILABLE,
    CallEnd,
    Forward,
    Interception,
    Interceptor,
    end_of,
    runtime_method,
)
from cri_proxy.relay.io.call import FrameCall
from cri_proxy.relay.io.endpoint import Endpoint as Socket
from cri_proxy.relay.io.link import CONNECT_S, NOTE_S, connected

#: Different calls that are shared at once; each is a connection to the runtime. More go their own way.
MAX_SHARED = 8
#: Larger requests are not shared: the call begins with its request, in one frame.
MAX_REQUEST_BYTES = 1024

#: How long all wait for a client that is slow before it is ended (``relay.http2.feed``): at once, and of the time after.
PATIENCE_S, PATIENCE_SHARE = 0.5, 0.05
_LOOK_S = 0.01

Key = tuple[tuple[tuple[bytes, bytes], ...], bytes]


def is_shared(method: str) -> bool:
    """Whether calls of a method are."""
    return runtime_method(method) == "GetContainerEvents"


class FanOwner(Protocol):
    """What is needed of the relay. What is in ``tasks`` is ended with it."""

    runtime: str
    interceptor: Interceptor
    tasks: set[asyncio.Task[Any]]

    def failed_open(self, method: str, reason: str) -> None: ...
    def failed(self, error: Exception) -> None: ...


class ReadingLink(Protocol):
    """What is needed of a client's connection."""

    def unary_headers(self, stream: int) -> Optional[Headers]: ...
    def read_along(self, stream: int, source: RuntimeStream, at: int) -> None: ...
    def stop_reading(self, stream: int) -> None: ...
    def feed(self, source: RuntimeStream) -> None: ...
    def has_slow(self, source: RuntimeStream) -> bool: ...


class EventCall(FrameCall):
    """One client's call: shared where that can be, else as any other."""

    def __init__(self, method: str, interception: Interception, link: Any, fan: EventFan) -> None:
        super().__init__(method, interception, link)
        self._reading: ReadingLink = link
        self._fan = fan

    async def run(self, asked: RequestReceived) -> None:
        """From the request to the end."""
        shared = self._fan.wanted(self.method, self._reading.unary_headers(asked.stream), asked.message)
        if shared is None:
            await super().run(asked)
            return
        at = shared.enter()
        try:
            is_open = await shared.opened()
            if is_open and not self._is_over:
                shared.add(self._reading, asked.stream, at)
                try:
                    await self._until_over()
                finally:
                    shared.drop(self._reading, asked.stream)
        finally:
            shared.leave()
        if not is_open:
            await super().run(asked)

    @property
    def _is_over(self) -> bool:
        return any(isinstance(step, Ended) for step, _done in self._steps)

    async def _until_over(self) -> None:
        while not self._is_over:
            self._more.clear()
            await self._more.wait()


class EventFan:
    """The calls that are shared now."""

    def __init__(self, owner: FanOwner) -> None:
        self.owner = owner
        self._shared: dict[Key, Shared] = {}

    def call(self, method: str, interception: Interception, link: Any) -> FrameCall:
        """A client's call, whatever its method."""
        if is_shared(method):
            return EventCall(method, interception, link, self)
        return FrameCall(method, interception, link)

    def wanted(self, method: str, headers: Optional[Headers], message: bytes) -> Optional[Shared]:
        """The call that is to be shared for a request; None: it goes its own way.

        One with a deadline does: the runtime is to know it.
        """
        if headers is None:
            return None
        size = sum(len(name) + len(value) for name, value in headers)
        if len(message) > MAX_REQUEST_BYTES or size > DEFAULT_FRAME_BYTES // 2:
            return None
        key = (tuple(headers), message)
        if any(name == b"grpc-timeout" for name, _value in headers):
            return None
        if key not in self._shared:
            if len(self._shared) >= MAX_SHARED:
                return None
            self._shared[key] = Shared(self, method, key)
        return self._shared[key]

    def forget(self, shared: Shared) -> None:
        if self._shared.get(shared.key) is shared:
            del self._shared[shared.key]

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that ends with the relay."""
        task = asyncio.get_running_loop().create_task(work)
        self.owner.tasks.add(task)
        task.add_done_callback(self.owner.tasks.discard)
        return task


class _Batch:
    """Messages that came together, until they are passed on. ``waiting``: the time for them to be noted runs."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages
        self.waiting: Optional[asyncio.TimerHandle] = None


class Shared:
    """One call at the runtime."""

    def __init__(self, fan: EventFan, method: str, key: Key) -> None:
        self.key = key
        self.caller = Caller(*key)
        #: How many of a connection's streams read along.
        self.links: dict[ReadingLink, int] = {}
        self._fan = fan
        self._method = method
        self._users = 0
        self._socket = Socket(self._from_runtime, self._lost, lambda: None)
        self._batches: deque[_Batch] = deque()
        self._more = asyncio.Event()
        #: For how long the others may have to wait for a client that is slow, and whether they do.
        self._patience_s = PATIENCE_S
        self._looked_s = asyncio.get_running_loop().time()
        self._is_waiting = False
        self._is_shut = False
        self._opening: asyncio.Task[bool] = fan.begin(self._open())
        self._noting: Optional[asyncio.Task[None]] = None

    # ------------------------------------------------------------------ readers

    def enter(self) -> int:
        """Another call wants it; the place of the first thing that is for it. ``leave`` follows."""
        self._users += 1
        return self.caller.source.next

    def leave(self) -> None:
        """A call is over; with the last the runtime's ends."""
        self._users -= 1
        if not self._users:
            self._shut()

    def add(self, link: ReadingLink, stream: int, at: int) -> None:
        """A stream reads along, from a place on that may be behind what was said meanwhile."""
        link.read_along(stream, self.caller.source, at)
        self.links[link] = self.links.get(link, 0) + 1
        link.feed(self.caller.source)

    def drop(self, link: ReadingLink, stream: int) -> None:
        """A stream reads along no more."""
        link.stop_reading(stream)
        self.links[link] -= 1
        if not self.links[link]:
            del self.links[link]

    async def opened(self) -> bool:
        """As soon as the runtime is asked. False: that cannot be; the call has to go its own way."""
        return await asyncio.shield(self._opening)

    async def _open(self) -> bool:
        interception: Optional[Interception] = None
        try:
            interception = self._fan.owner.interceptor.open(self._method)
            if interception is None or await interception.request(self.key[1]) != Forward():
                raise ValueError("a call for events was not to be decided upon")
            connection = await wait_within(CONNECT_S, connected(self._fan.owner.runtime))
            if self._is_shut:  # the clients have gone meanwhile
                connection.close()
                raise ConnectionAbortedError
        except Exception as error:
            if not isinstance(error, (OSError, asyncio.TimeoutError)):
                self._fan.owner.failed(error)
            self._shut()
            if interception is not None:
                await interception.ended(CallEnd.REFUSED, UNAVAILABLE, "not shared")
            return False
        self._noting = self._fan.begin(self._note(interception))
        self._socket.begin(connection)
        self._socket.write(self.caller.to_runtime)
        return True

    # ------------------------------------------------------------------ what the runtime says

    def _from_runtime(self, data: bytes) -> None:
        had_head = self.caller.source.head is not None
        self.caller.from_runtime(data)
        messages = self.caller.take_messages()
        if messages:
            batch = _Batch(messages)
            batch.waiting = asyncio.get_running_loop().call_later(NOTE_S, self._pass_unseen, batch)
            self._batches.append(batch)
        if messages or self.caller.is_over:
            self._more.set()
        if self.caller.source.head is not None and not had_head:
            self._tell()
        if self.caller.is_leaving or self.caller.is_over:
            self._fan.forget(self)
        self._socket.write(self.caller.to_runtime)

    def _lost(self) -> None:
        self.caller.runtime_lost()
        self._fan.forget(self)
        self._more.set()

    async def _note(self, interception: Interception) -> None:
        """Show what comes to the interception, and pass it on; to the end."""
        try:
            while self._batches or not self.caller.is_over:
                while not self._batches and not self.caller.is_over:
                    self._more.clear()
                    await self._more.wait()
                if self._batches:
                    batch = self._batches[0]
                    self._pass(
                        batch, [m for m in [await self._shown(interception, m) for m in batch.messages] if m]
                    )
        finally:
            # Before the clients learn the end, the state knows it.
            await interception.ended(*self._how())
        self.caller.close_source()
        self._tell()

    async def _shown(self, interception: Interception, prefixed: bytes) -> bytes:
        """Show one message; what is passed on of it, perhaps nothing."""
        try:
            message = self.caller.read(prefixed)
            if message is None:
                return prefixed
            await interception.replied(message)
            cut = interception.filter  # asked for anew: it may be set while a call lasts
            left = message if cut is None else cut(message)
        except Exception as error:
            self._fan.owner.failed(error)
            return prefixed
        if left is message:
            return prefixed
        return b"" if left is None else write_message(left)

    def _pass_unseen(self, batch: _Batch) -> None:
        self._fan.owner.failed_open(self._method, "slow state")
        self._pass(batch, batch.messages)

    def _pass(self, batch: _Batch, messages: Sequence[bytes]) -> None:
        """Pass messages on, unless that was done when they had waited for too long."""
        if not self._batches or self._batches[0] is not batch:
            return
        self._batches.popleft()
        assert batch.waiting is not None
        batch.waiting.cancel()
        if messages:
            self.caller.source.add(list(messages))
            self._tell()
            if self.caller.source.is_look_due() and not self._is_waiting:
                self._wait_for_slow()
        self.caller.credit()
        self._socket.write(self.caller.to_runtime)

    def _wait_for_slow(self) -> None:
        """Read no more of the runtime while a client has much to take, but not for long: it is ended then.

        A client that is well takes a burst faster than that.
        """
        loop, source = asyncio.get_running_loop(), self.caller.source
        elapsed_s, self._looked_s = loop.time() - self._looked_s, loop.time()
        self._patience_s += -elapsed_s if self._is_waiting else elapsed_s * PATIENCE_SHARE
        self._patience_s = min(self._patience_s, PATIENCE_S)
        self._is_waiting = self._patience_s > 0 and any(link.has_slow(source) for link in self.links)
        self._socket.read(not self._is_waiting)
        if self._is_waiting:
            loop.call_later(_LOOK_S, self._wait_for_slow)

    def _tell(self) -> None:
        for link in list(self.links):
            try:
                link.feed(self.caller.source)
            except Exception as error:  # of one; the others get it all the same
                self._fan.owner.failed(error)

    # ------------------------------------------------------------------ the end

    def _how(self) -> tuple[CallEnd, int, str]:
        code, details = (CANCELLED, CLIENT_GONE) if self._is_shut else self.caller.status
        return end_of(code, sent=True), code, details

    def _shut(self) -> None:
        """Ask the runtime for no more."""
        self._is_shut = True
        self._fan.forget(self)
        self._socket.abort()
        for batch in self._batches:
            if batch.waiting is not None:
                batch.waiting.cancel()
        if self._noting is not None and not self.caller.is_over:
            self._noting.cancel()
