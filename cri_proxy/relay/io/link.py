"""A client's connection and the one to the runtime that belongs to it: bytes are moved, calls are run.

The one to the runtime is made when the client begins something (``Lobby``). Without a runtime it is a connection to a
small end of our own (``LocalEnd``).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Callable, Optional, Protocol, Union

from cri_api.waiting import wait_within
from cri_proxy.relay.http2.frames import Error, write_goaway
from cri_proxy.relay.http2.headers import Headers
from cri_proxy.relay.http2.lobby import Lobby
from cri_proxy.relay.http2.local import LocalEnd
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.stream import (
    Closing,
    Ended,
    FailedOpen,
    FarewellRead,
    ReplyReceived,
    RequestReceived,
)
from cri_proxy.relay.interception import Around, Interceptor
from cri_proxy.relay.io.call import Done, FrameCall, Instead, run_call
from cri_proxy.relay.io.drain import DrainedCall
from cri_proxy.relay.io.endpoint import CONNECT_S, FIRST_READ_BYTES, Endpoint, connected, try_to_connect
from cri_proxy.relay.io.links import Kind
from cri_proxy.relay.io.subscription import Subscription, is_subscription
from cri_proxy.relay.status import Metadata

#: How long replies of a connection wait for the state to know of one of them. A state write takes milliseconds.
NOTE_S = 2.0
#: A client that was sent away has so long to read that and to go by itself.
LINGER_S = 1.0
#: How long a client waits for the word that its connection was closed for a doubt, and with that for its next one. Told
#: at once, one that floods would make the runtime serve as many connections as can be made.
DOUBT_S = 0.5
#: What a client has not taken by then it does not get.
TAKE_S = 10.0
#: A connection on which nothing is said: grpc-go's server gives it 120 s.
SILENT_S = 120.0


class LinkOwner(Protocol):
    """What a link needs of the relay."""

    runtime: str
    interceptor: Interceptor
    around: Around
    tasks: set[asyncio.Task[Any]]
    #: Connections to the runtime that are being made.
    joining: set[asyncio.Task[None]]
    #: Subscriptions to events with a connection of their own.
    subscriptions: set[Subscription]

    def failed_open(self, method: str, reason: str) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def unreached(self, why: str) -> None: ...
    def closing(self, reason: str) -> None: ...
    def placed(self, link: Link, kind: Kind) -> None: ...
    def keeps(self, link: Link, size: int) -> None: ...
    def stranded(self) -> None: ...
    def left(self, link: Link) -> None: ...


class Link:
    """``is_greeted``: the client has got a SETTINGS frame (``greeting``)."""

    def __init__(self, owner: LinkOwner, is_greeted: bool = False) -> None:
        #: One of the three is there: none for the runtime yet, one to it, or there is no runtime.
        self.lobby: Optional[Lobby] = Lobby(is_greeted)
        self.connection: Optional[RelayedConnection] = None
        self.local: Optional[LocalEnd] = None
        self.has_read_farewell = False
        self.client = Endpoint(self._from_client, self._client_lost, self._client_takes, FIRST_READ_BYTES)
        self.runtime = Endpoint(self._from_runtime, self._runtime_lost, self._regulate)
        self.kind = Kind.UNFINISHED
        #: What the client has said while the runtime did not accept yet; None: it has, or was not asked to.
        self._early: Optional[bytes] = None
        #: Notes that the runtime's direction has waited for so far.
        self._notes = 0
        #: ``kept_bytes``, as the owner was told last.
        self._accounted = 0
        self._is_given_up = False
        self._owner = owner
        self._is_closing = False
        self._is_farewell_said = False
        #: There was a doubt, which the client is not told yet.
        self._is_silent = False
        #: What is to be written waits for the next step of a call, which may have more to write.
        self._is_gathering = False
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()

    def begin(self, accepted: socket.socket) -> None:
        """Read what the client says."""
        accepted.setblocking(False)
        self._owner.placed(self, self.kind)
        self.client.begin(accepted)

    def _leave_lobby(self, lobby: Lobby) -> None:
        """Connect to the runtime, then go on with what the client has said."""
        self.lobby = None
        # Before there is one: the runtime may speak first, and at once.
        self.connection = RelayedConnection(self._open_call, int(lobby.is_greeted))
        if not lobby.is_http2:  # which needs no runtime
            self._from_client(lobby.early)
            return
        self._early = lobby.early
        try:
            found = try_to_connect(self._owner.runtime)
        except OSError as error:
            self._reached(error)
            return
        if found is not None:
            self._reached(found)
            return
        self._regulate()
        task = self._loop.create_task(self._wait_for_runtime())
        self._owner.joining.add(task)
        task.add_done_callback(self._owner.joining.discard)

    async def _wait_for_runtime(self) -> None:
        try:
            self._reached(await wait_within(CONNECT_S, connected(self._owner.runtime)))
        except (OSError, asyncio.TimeoutError) as error:
            self._reached(error)

    def _reached(self, found: Union[socket.socket, Exception]) -> None:
        """The runtime has accepted, or it has not."""
        early, self._early = self._early or b"", None
        if isinstance(found, Exception):
            assert self.connection is not None
            self.local = self._without_runtime(found)
            self.connection = None
            if self._is_farewell_said:
                self.say_farewell()
            self._owner.stranded()
        else:
            self.runtime.begin(found)  # which closes it if nothing waits for it any more
        self._from_client(early)

    def _without_runtime(self, error: Exception) -> LocalEnd:
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return LocalEnd(is_greeted=True)  # no client is there, for which others look, too
        why = getattr(error, "strerror", None) or f"it has not accepted in {CONNECT_S:g} s"
        sentence = f"no connection to the container runtime at {self._owner.runtime}: {why}"
        self._owner.unreached(sentence)
        return LocalEnd(True, f"{sentence}; cri-resmgr tries every 100 ms")

    # ------------------------------------------------------------------ bytes

    def _from_client(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._early is not None:
            self._early += data
            return
        try:
            if self.lobby is not None:
                self.lobby.from_client(data)
            elif self.connection is not None:
                self.connection.from_client(data, self._loop.time())
                self.client.pace(self.connection.take_work())
            elif self.local is not None:
                self.local.from_client(data)
                self.client.pace(self.local.take_work())
        except Exception as error:
            self._failed(error)
        self._pump()

    def _from_runtime(self, data: bytes) -> None:
        if self.connection is not None and not self._is_closing:
            try:
                self.connection.from_runtime(data, self._loop.time())
            except Exception as error:
                self._failed(error)
            self._pump()

    def _pump(self) -> None:
        """Write what there is to write, do what there is to do."""
        if self.lobby is not None:
            self._pump_lobby(self.lobby)
        else:
            self._pump_connection()
        self._account()

    def _pump_connection(self) -> None:
        if self.connection is None:
            if self.local is not None:
                self.client.write(self.local.to_client)
                if self.local.is_over:
                    self.close()
            return
        connection = self.connection
        self._handle_events(connection)
        if not self._is_gathering or self._is_silent:
            self._write(connection)
        for subscription in self._behind():
            subscription.wake()
        self._regulate()
        kind = Kind.BUSY if connection.has_calls else self._resting_kind
        if kind is not self.kind:
            self._place(kind)

    def _handle_events(self, connection: RelayedConnection) -> None:
        while connection.events:
            for event in connection.take_events():
                self._handle(event)

    def _gather(self) -> None:
        """A call was given its next step, which the loop takes before anything else that comes after this: what there
        is to write until then goes out with what the step writes. A request's headers wake the runtime, and a reply's
        the client, once instead of twice.
        """
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._write_gathered)

    def _write_gathered(self) -> None:
        if self._is_gathering:
            self._is_gathering = False
            self._guarded(lambda connection: None)

    def _write(self, connection: RelayedConnection) -> None:
        if connection.to_runtime:
            self.runtime.write(connection.to_runtime)
        if self._is_silent:
            self.runtime.close()
        elif pieces := connection.to_client:
            self.client.write(pieces)

    def _account(self) -> None:
        if self._is_given_up or not self.client.is_open:
            return
        if (size := self.kept_bytes) != self._accounted:
            self._accounted = size
            self._owner.keeps(self, size)

    @property
    def kept_bytes(self) -> int:
        """What is in memory for this connection, about."""
        end = self.connection or self.local
        unwritten = self.client.unwritten + self.runtime.unwritten + len(self._early or b"")
        queued = self.client.queued_bytes + self.runtime.queued_bytes
        return unwritten + queued + (0 if end is None else end.kept_bytes)

    def ask_queued(self) -> None:
        """Ask the kernel what the other sides have not read yet."""
        self.client.ask_queued()
        self.runtime.ask_queued()

    def _pump_lobby(self, lobby: Lobby) -> None:
        self.client.write(lobby.to_client)
        if lobby.is_over:
            self._leave_lobby(lobby)
        elif lobby.has_begun:
            self._place(Kind.UNUSED)

    @property
    def _resting_kind(self) -> Kind:
        """What a connection without calls is."""
        return Kind.IDLE if self.kind >= Kind.IDLE else Kind.UNUSED

    def _place(self, kind: Kind) -> None:
        if kind is not self.kind and not self._is_closing:
            self.kind = kind
            self._owner.placed(self, kind)

    def _regulate(self) -> None:
        """Neither side is read from faster than the other takes it."""
        is_paused = self.connection is not None and self.connection.is_paused
        if (reads := not (self.client.is_full or is_paused)) is not self.runtime.is_reading:
            self.runtime.read(reads)
        # A client is answered here, too: pings always, everything while there is no runtime.
        is_waiting = self._is_silent or self._early is not None
        reads = not (self.client.is_full or self.runtime.is_full or is_waiting)
        if reads is not self.client.is_reading:
            self.client.read(reads)

    def _client_takes(self) -> None:
        """More than is wanted in memory waits for the client, or no more."""
        self._regulate()
        if not self.client.is_full and self._behind():
            self._loop.call_soon(self._pump)

    def _client_lost(self) -> None:
        self._is_gathering = False  # what it has said before it went is the runtime's
        self._guarded(lambda connection: connection.client_lost())
        self.abort()

    def _runtime_lost(self) -> None:
        self._guarded(lambda connection: connection.runtime_lost())

    # ------------------------------------------------------------------ calls

    def _open_call(self, method: str) -> Optional[FrameCall]:
        interception = self._owner.interceptor.open(method)
        if interception is None:
            return None
        if not is_subscription(method):
            return FrameCall(method, interception, self)
        return Subscription(method, interception, self, self._owner.subscriptions, NOTE_S)

    def _behind(self) -> list[Subscription]:
        """This client's subscriptions that have something for it which it did not take yet."""
        return [one for one in self._owner.subscriptions if one.client is self and one.is_behind]

    def _handle(self, event: Any) -> None:
        if isinstance(event, RequestReceived):
            if self.connection is not None:
                event.call.trace(self.connection.headers_of(event.stream), self._owner.around)
            run_call(event.call, event, self._owner.tasks)
            self._gather()
        elif isinstance(event, ReplyReceived):
            event.call.add(event, self._noting(event.call.method))
            self._gather()
        elif isinstance(event, Ended):
            event.call.add(event, self._noting(event.call.method) if event.waits else _nothing)
        elif isinstance(event, FailedOpen):
            self._owner.failed_open(event.method, event.reason)
        elif isinstance(event, FarewellRead):
            self.has_read_farewell = True
        elif isinstance(event, Closing):
            if event.is_doubt:
                self._owner.closing(event.reason)
                self._is_silent = True
                self._loop.call_later(DOUBT_S, self.close)
                return
            # After what is to be written yet, which the caller does.
            self._loop.call_soon(self.close)

    def _noting(self, method: str) -> Done:
        """The direction of the runtime waits for this to be called, but not for ever."""
        self._notes += 1
        number = self._notes

        def noted(instead: Instead) -> None:
            waiting.cancel()
            if self._notes == number:
                self._notes += 1
                self._guarded(lambda connection: connection.resume(instead))

        def passed_unseen() -> None:
            if self._notes == number and not self._is_closing:
                self._owner.failed_open(method, "slow state")
            noted(())

        waiting = self._loop.call_later(NOTE_S, passed_unseen)
        return noted

    def forward(self, stream: int, delta: bytes) -> None:
        self._on_connection(lambda connection: connection.forward(stream, delta))

    def take_over(self, stream: int) -> None:
        self._on_connection(lambda connection: connection.take_over(stream))

    def unary_headers(self, stream: int) -> Optional[Headers]:
        """The request headers of a call that was asked about, if its request is one message and its end."""
        return None if self.connection is None else self.connection.unary_headers(stream)

    async def connected(self) -> Optional[socket.socket]:
        """A further connection to the runtime; None: there is none to be had."""
        try:
            return await wait_within(CONNECT_S, connected(self._owner.runtime))
        except (OSError, asyncio.TimeoutError):
            return None

    def takes(self, stream: int, size: int) -> bool:
        """Whether the client of a call that was taken over takes so many bytes of messages now, or a frame of them."""
        return self.connection is not None and not self.client.is_full and self.connection.takes(stream, size)

    def pass_head(self, stream: int, head: Headers) -> None:
        self._on_connection(lambda connection: connection.pass_head(stream, head))

    def pass_messages(self, stream: int, messages: bytes) -> None:
        self._on_connection(lambda connection: connection.pass_messages(stream, messages))

    def pass_end(self, stream: int, end: Headers, reset: int) -> None:
        self._on_connection(lambda connection: connection.pass_end(stream, end, reset))

    def end_unread(self, stream: int, code: int, details: str) -> None:
        self._on_connection(lambda connection: connection.end_unread(stream, code, details))

    def passed_unseen(self, method: str) -> None:
        """A message was not noted in time, and was passed on."""
        self._owner.failed_open(method, "slow state")

    def answer(self, stream: int, message: bytes) -> None:
        self._on_connection(lambda connection: connection.answer(stream, message))

    def finish(self, stream: int, code: int, details: str, metadata: Metadata = ()) -> None:
        self._on_connection(lambda connection: connection.finish(stream, code, details, metadata))

    def failed_open(self, error: Exception) -> None:
        """An interception has failed; its call goes on."""
        self._owner.failed(error)

    def stop_call(self, stream: int, code: int, details: str) -> None:
        self._on_connection(lambda connection: connection.stop_call(stream, code, details))

    def tick(self, now_s: float) -> None:
        """Time passes."""
        end = self.connection or self.local or self.lobby
        if end is not None and not end.has_begun and now_s > self._since_s + SILENT_S:
            self.close()
        if self.runtime.is_full and self.client.is_deserted:
            self.abort()
        self._on_connection(lambda connection: connection.tick(now_s))
        self.ask_queued()

    def _on_connection(self, work: Callable[[RelayedConnection], None]) -> None:
        if not self._is_closing:
            self._guarded(work)

    def _guarded(self, work: Callable[[RelayedConnection], None]) -> None:
        """Do something and carry out what comes of it."""
        if self.connection is not None:
            try:
                work(self.connection)
            except Exception as error:
                self._failed(error)
            self._pump()

    def _failed(self, error: Exception) -> None:
        """A bug. The connection ends, for half of something may be written; its client connects again."""
        self._owner.failed(error)
        self._loop.call_soon(self.close)  # after what is to be written yet
        if self.connection is not None:
            try:
                self.connection.fail(f"a bug of cri-resmgr: {type(error).__name__}: {error}")
            except Exception as another:
                self._owner.failed(another)

    # ------------------------------------------------------------------ the end

    @property
    def methods(self) -> dict[int, str]:
        """The calls under way, by stream."""
        return {} if self.connection is None else self.connection.methods

    def under_way(self, stream: int) -> Optional[DrainedCall]:
        """What is known of a call that is intercepted."""
        call = None if self.connection is None else self.connection.call_of(stream)
        return call.under_way if isinstance(call, FrameCall) else None

    @property
    def is_busy(self) -> bool:
        """Whether the client waits for the end of a call, or for bytes of it."""
        is_busy = self.connection is not None and self.connection.is_busy
        return is_busy or self.client.unwritten > 0

    def say_farewell(self) -> None:
        """Ask the client for no new calls here; ``has_read_farewell`` follows."""
        self._is_farewell_said = True
        if self.lobby is not None:
            self._leave_lobby(self.lobby)
        if self.connection is None:
            self.has_read_farewell = True
            self.send_away()
        self._on_connection(lambda connection: connection.say_farewell())

    def send_away(self) -> None:
        """Of a link without a runtime: let the client connect again."""
        if self.local is not None:
            self.local.say_farewell()
            self._pump()

    def close(self) -> None:
        """Close, after what is still to be written; the client may go first."""
        if self._is_closing:
            return
        self._is_silent = self._is_gathering = False
        self._guarded(lambda connection: connection.conclude())
        self._place(Kind.GOING)
        self._is_closing = True
        self.runtime.close()
        self.client.read(True)  # else its own end would not be seen
        if not self.client.is_open:
            self.abort()
        else:
            self._loop.call_later(LINGER_S, self.client.close)
            self._loop.call_later(TAKE_S, self.abort)

    def dismiss(self) -> None:
        """End a connection that nothing is under way on: its client connects again when it has a call."""
        if self.lobby is None:
            self.send_away()
            self.close()
            return
        if self.lobby.has_begun:
            self.client.write([write_goaway(0, Error.NO_ERROR, "idle, and there are many")])
        self.abort()

    def give_up(self, why: str) -> None:
        """Close at once, and drop what is kept; the client is told why, if it reads."""
        self._is_given_up, self._is_gathering = True, False
        self._on_connection(lambda connection: connection.give_up(why))
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self.client.abort()
        self.runtime.abort()
        self._owner.left(self)


def _nothing(_instead: Instead) -> None:
    pass
