"""A client's GetContainerEvents as a call of its own at the runtime, on a connection that has no other.

The runtime's stream is always read: containerd 2.x gives an event to all subscribers, one after the other, and one that
does not read stops the events of all, and the calls that make them. What the client has not taken waits here, and at
``MOST_UNREAD_BYTES`` the runtime waits, too, for ``PATIENCE_S``: a client that is well takes a burst in less. Any other is
ended with RESOURCE_EXHAUSTED, and may subscribe again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Optional, Protocol

from cri_api.waiting import wait_within
from cri_proxy.relay.http2.caller import Caller, OwnCall
from cri_proxy.relay.http2.frames import DEFAULT_FRAME_BYTES
from cri_proxy.relay.http2.headers import Headers, write_fields
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.wire import Ended, RequestReceived
from cri_proxy.relay.interception import (
    CallEnd,
    Forward,
    Interception,
    end_of,
    runtime_method,
)
from cri_proxy.relay.io.call import CallLink, Done, FrameCall, Instead
from cri_proxy.relay.io.endpoint import Endpoint
from cri_proxy.relay.status import Code

#: With more waiting for a client nothing more is read for it; it has to take half of that in this time.
MOST_UNREAD_BYTES, PATIENCE_S = 1 << 20, 0.5
#: Subscriptions with a connection of their own, of all clients; others are relayed as any call. A node has one or two.
MOST_SUBSCRIPTIONS = 8
#: A larger request is relayed as any call: the call at the runtime begins with its request, in one frame.
MOST_REQUEST_BYTES = 1024
TOO_SLOW = "cri-resmgr: too many events were not read; subscribe again"


def is_subscription(method: str) -> bool:
    """Whether a method's calls are."""
    return runtime_method(method) == "GetContainerEvents"


class SubscriberLink(CallLink, Protocol):
    """What a subscription needs of the client's connection."""

    def unary_headers(self, stream: int) -> Optional[Headers]: ...
    async def connected(self) -> Any: ...
    def takes(self, stream: int, size: int) -> bool: ...
    def pass_head(self, stream: int, head: Headers) -> None: ...
    def pass_messages(self, stream: int, messages: bytes) -> None: ...
    def pass_end(self, stream: int, end: Headers, reset: int) -> None: ...
    def end_unread(self, stream: int, code: int, details: str) -> None: ...
    def passed_unseen(self, method: str) -> None: ...


class Subscription(FrameCall):
    """One client's call. ``all_open``: those that have a connection of their own now, of all clients."""

    def __init__(
        self,
        method: str,
        interception: Interception,
        link: SubscriberLink,
        all_open: set[Subscription],
        note_s: float,
    ) -> None:
        super().__init__(method, interception, link)
        self.client = link
        self._all_open = all_open
        self._note_s = note_s
        #: What the client has not taken, in pieces of about a frame.
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        #: When more than ``MOST_UNREAD_BYTES`` waited; None: the client follows.
        self._full_since_s: Optional[float] = None
        #: Messages are shown one after the other, also behind one that was passed on unseen.
        self._showing = asyncio.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether something waits for the client; then ``wake`` is to be called when the client may take more."""
        return bool(self._unread)

    def wake(self) -> None:
        self._more.set()

    async def _pass(self, asked: RequestReceived, outcome: Forward) -> tuple[Ended, Done]:
        headers = self.client.unary_headers(asked.stream)
        if headers is None or outcome.delta or self._is_too_large(headers, asked.message):
            return await super()._pass(asked, outcome)
        if len(self._all_open) >= MOST_SUBSCRIPTIONS:
            return await super()._pass(asked, outcome)
        self._all_open.add(self)
        try:
            connection = await self.client.connected()
            if connection is None:
                return await super()._pass(asked, outcome)
            caller = Caller()
            call = caller.begin(write_fields(headers), asked.message, self.wake, is_limited=True)
            socket = Endpoint(lambda data: self._received(caller, data), caller.lost, _nothing)
            socket.begin(connection)
            try:
                self.client.take_over(asked.stream)
                ended = await self._follow(asked.stream, caller, call, socket)
            finally:
                socket.abort()
            async with self._showing:  # what passed unseen is noted before the end is
                return ended
        finally:
            self._all_open.discard(self)

    def _is_too_large(self, headers: Headers, message: bytes) -> bool:
        size = sum(len(name) + len(value) for name, value in headers)
        return len(message) > MOST_REQUEST_BYTES or size > DEFAULT_FRAME_BYTES // 2

    def _received(self, caller: Caller, data: bytes) -> None:
        caller.received(data)
        self._more.set()

    async def _follow(
        self, stream: int, caller: Caller, call: OwnCall, socket: Endpoint
    ) -> tuple[Ended, Done]:
        """Pass on what the runtime says, until either side ends the call."""
        has_head = False
        while True:
            self._more.clear()
            socket.write(caller.to_runtime)
            # 1. Show what has come to the interception, and keep what is left of it.
            is_over, messages = call.is_over, call.take_messages()
            for message in messages:
                self._keep(await self._shown(call, message))
            caller.credit(call)
            # 2. Give the client what it takes.
            if call.head is not None and not has_head:
                has_head = True
                self.client.pass_head(stream, call.head)
            while self._unread and self.client.takes(stream, len(self._unread[0])):
                piece = self._unread.popleft()
                self._unread_bytes -= len(piece)
                self.client.pass_messages(stream, piece)
            # 3. The end: the client's own, for want of reading, or the runtime's.
            if self._steps:
                step, done = self._steps.popleft()
                assert isinstance(step, Ended)
                return step, done
            if not self._follows(socket):
                ended = Ended(stream, self, CallEnd.UNKNOWN, Code.RESOURCE_EXHAUSTED, TOO_SLOW)
                return ended, self._ending_unread(ended)
            if is_over and not self._unread:
                code, details = call.status
                ended = Ended(stream, self, end_of(code, True), code, details)
                return ended, self._passing_end(stream, call)
            if not caller.to_runtime:
                await self._more.wait()

    def _follows(self, socket: Endpoint) -> bool:
        """Whether the client takes what there is for it; without room for more, ``socket`` is not read from."""
        loop = asyncio.get_running_loop()
        if self._full_since_s is None and self._unread_bytes > MOST_UNREAD_BYTES:
            self._full_since_s = loop.time()
            socket.read(False)
            loop.call_later(PATIENCE_S, self.wake)
        elif self._full_since_s is not None and self._unread_bytes <= MOST_UNREAD_BYTES // 2:
            self._full_since_s = None
            socket.read(True)
        return self._full_since_s is None or loop.time() < self._full_since_s + PATIENCE_S

    def _keep(self, message: bytes) -> None:
        if not message:
            return
        self._unread_bytes += len(message)
        if self._unread and len(self._unread[-1]) + len(message) <= DEFAULT_FRAME_BYTES:
            message = self._unread.pop() + message
        self._unread.append(message)

    async def _shown(self, call: OwnCall, prefixed: bytes) -> bytes:
        """Show one message; what is passed on of it, perhaps nothing. One that is not noted in time passes unseen."""
        message = call.read(prefixed)
        if message is None:
            return prefixed
        try:
            left = await wait_within(self._note_s, asyncio.shield(self._note_in_turn(message)))
        except asyncio.TimeoutError:
            self.client.passed_unseen(self.method)
            return prefixed
        if left is message:
            return prefixed
        return b"" if left is None else write_message(left)

    async def _note_in_turn(self, message: bytes) -> Optional[bytes]:
        async with self._showing:
            return await self._note(message)

    def _ending_unread(self, ended: Ended) -> Done:
        def end_unread(_instead: Instead) -> None:
            self.client.end_unread(ended.stream, ended.code, ended.details)

        return end_unread

    def _passing_end(self, stream: int, call: OwnCall) -> Done:
        def pass_end(_instead: Instead) -> None:
            self.client.pass_end(stream, *call.end)

        return pass_end


def _nothing() -> None:
    pass
