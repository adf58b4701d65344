"""A client's connection and the one to the runtime that belongs to it: bytes are moved, calls are run.

The one to the runtime is made when the client begins something (``Lobby``). Without a runtime it is a connection to a
small end of our own (``LocalEnd``). Where a connection is, is its ``State``; after each input ``_step`` carries out what
has come of it.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

from cri_api.waiting import wait_within
from cri_proxy.relay.http2.frames import Error, write_goaway
from cri_proxy.relay.http2.headers import Headers
from cri_proxy.relay.http2.local import Lobby, LocalEnd
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import (
    STREAM_BYTES,
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
#: What is in memory for a connection is counted each second, and when it may have grown by so much.
COUNT_BYTES = 1 << 14


class State(Enum):
    """Where a connection is."""

    LOBBY = "lobby"  # its client has begun nothing yet that is for the runtime
    JOINING = "joining"  # the runtime has not accepted yet
    RELAYING = "relaying"
    LOCAL = "local"  # there is no runtime: calls are answered here
    SILENT = "silent"  # there was a doubt, which the client is not told yet
    CLOSING = "closing"  # all is said and written; the client may go first


class Rule(NamedTuple):
    """``reads``: the client is read from, unless bytes wait that it or the runtime has yet to take. ``speaks``: the client
    gets what there is for it.
    """

    reads: bool
    speaks: bool


RULES = {
    State.LOBBY: Rule(reads=True, speaks=True),
    State.JOINING: Rule(reads=False, speaks=True),
    State.RELAYING: Rule(reads=True, speaks=True),
    State.LOCAL: Rule(reads=True, speaks=True),
    State.SILENT: Rule(reads=False, speaks=False),
    State.CLOSING: Rule(reads=True, speaks=False),
}


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
    #: When a call began last, by the loop's clock.
    last_call_s: Optional[float]

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
        self.state = State.LOBBY
        #: What the client speaks with; ``connection``: where that is the runtime, or will be.
        self._end: Union[Lobby, LocalEnd, RelayedConnection] = Lobby(is_greeted)
        self.connection: Optional[RelayedConnection] = None
        self.has_read_farewell = False
        self.client = Endpoint(self._from_client, self._client_lost, self._client_takes, FIRST_READ_BYTES)
        self.runtime = Endpoint(self._from_runtime, self._runtime_lost, self._regulate)
        self.kind = Kind.UNFINISHED
        #: A call has begun since ``settle``.
        self._was_used = False
        #: What the client has said before the runtime has accepted.
        self._early = b""
        #: Notes that the runtime's direction has waited for so far.
        self._notes = 0
        #: What ``kept_bytes`` may have grown by since it was counted, but for calls; with calls, what it may come to.
        self._uncounted, self._count_at = 0, COUNT_BYTES
        self._owner = owner
        self._is_farewell_said = False
        #: What is to be written waits for the next step of a call, which may have more to write.
        self._is_gathering = False
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()

    def begin(self, accepted: socket.socket) -> None:
        """Read what the client says."""
        accepted.setblocking(False)
        self._owner.placed(self, self.kind)
        self.client.begin(accepted)

    # ------------------------------------------------------------------ from state to state

    def _enter(self, state: State) -> None:
        self.state = state
        self._regulate()

    def _leave_lobby(self, lobby: Lobby) -> None:
        """Connect to the runtime, then go on with what the client has said."""
        # Before there is one: the runtime may speak first, and at once.
        self._end = self.connection = RelayedConnection(self._open_call, int(lobby.is_greeted))
        if not lobby.is_http2:  # which needs no runtime
            self._enter(State.RELAYING)
            self._from_client(lobby.early)
            return
        self._early = lobby.early
        self._enter(State.JOINING)
        try:
            found = try_to_connect(self._owner.runtime)
        except OSError as error:
            self._reached(error)
            return
        if found is not None:
            self._reached(found)
            return
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
        if not isinstance(found, Exception):
            self.runtime.begin(found)  # which closes it if nothing waits for it any more
        if self.state is not State.JOINING:
            return
        early, self._early = self._early, b""
        if isinstance(found, Exception):
            self._end, self.connection = self._without_runtime(found), None
            self._enter(State.LOCAL)
            if self._is_farewell_said:
                self.say_farewell()
            self._owner.stranded()
        else:
            self._enter(State.RELAYING)
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
        if self.state is State.CLOSING:
            return
        if self.state is State.JOINING:
            self._early += data
            return
        try:
            if self.connection is not None:
                self.client.work = self.connection.from_client(data, self._loop.time())
            else:
                assert not isinstance(self._end, RelayedConnection)
                self.client.work = self._end.from_client(data)
        except Exception as error:
            self._failed(error)
        self._step(len(data))

    def _from_runtime(self, data: bytes) -> None:
        if self.connection is not None and self.state is not State.CLOSING:
            try:
                self.connection.from_runtime(data, self._loop.time())
            except Exception as error:
                self._failed(error)
            self._step(len(data))

    def _step(self, moved: int = 0) -> None:
        """Carry out what an input has led to. ``moved``: so many bytes have come, or are ours."""
        connection = self.connection
        if connection is None:
            self._step_apart()
        else:
            # 1. What has happened, which may add to what is to be written.
            if connection.events:
                self._handle_events(connection)
            # 2. What is to be written, unless there will be more of it soon.
            if self.state is not State.RELAYING:
                self._write(connection)
            elif not self._is_gathering:
                if connection.to_runtime:
                    self.runtime.write(connection.to_runtime)
                if connection.to_client:
                    self.client.write(connection.to_client)
            # 3. What either side may say next.
            if self._owner.subscriptions:
                for subscription in self._behind():
                    subscription.wake()
            if connection.is_paused is self.runtime.is_reading:
                self._regulate()
            # 4. What it is to the relay, but for its calls (``settle``).
            if self.kind is Kind.UNFINISHED and connection.has_begun:
                self._place(Kind.UNUSED)
        self._uncounted += moved
        calls = 0 if connection is None else len(connection.calls)
        if self._uncounted + STREAM_BYTES * calls >= self._count_at:
            self._count(calls)

    def _step_apart(self) -> None:
        """The step while no runtime is there, or wanted."""
        end = self._end
        self.client.write(end.to_client)
        if isinstance(end, LocalEnd):
            if end.is_over:
                self.close()
        elif isinstance(end, Lobby):
            if end.is_over:
                self._leave_lobby(end)
            elif end.has_begun:
                self._place(Kind.UNUSED)

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
            if self.connection is not None:
                self._step()

    def _write(self, connection: RelayedConnection) -> None:
        """Write what there is for either side, as the state allows."""
        if connection.to_runtime:
            self.runtime.write(connection.to_runtime)
        if self.state is State.SILENT:
            self.runtime.close()
        elif connection.to_client and RULES[self.state].speaks:
            self.client.write(connection.to_client)

    def _count(self, calls: int) -> None:
        """Tell what is in memory for this connection."""
        self._uncounted, self._count_at = 0, COUNT_BYTES + STREAM_BYTES * calls
        if self.client.is_open:
            self._owner.keeps(self, self.kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """What is in memory for this connection, about."""
        unwritten = self.client.unwritten + self.runtime.unwritten + len(self._early)
        queued = self.client.queued_bytes + self.runtime.queued_bytes
        return unwritten + queued + self._end.kept_bytes

    def ask_queued(self) -> None:
        """Ask the kernel what the other sides have not read yet."""
        self.client.ask_queued()
        self.runtime.ask_queued()

    def _place(self, kind: Kind) -> None:
        if kind is not self.kind and self.state is not State.CLOSING:
            self.kind = kind
            self._owner.placed(self, kind)

    def settle(self) -> Optional[Kind]:
        """What this has become by its calls since it was asked last, IDLE perhaps anew; None: it is what it was.

        Of single calls the owner is not told: it asks each second, and before it goes by what a link is.
        """
        was_used, self._was_used = self._was_used, False
        if self.connection is None or self.state is State.CLOSING:
            return None
        if self.connection.calls:
            found = Kind.BUSY
        elif was_used or self.kind is Kind.BUSY:
            found = Kind.IDLE
        else:
            return None
        self.kind = found
        return found

    def _regulate(self) -> None:
        """Neither side is read from faster than the other takes it."""
        is_paused = self.connection is not None and self.connection.is_paused
        if (reads := not (self.client.is_full or is_paused)) is not self.runtime.is_reading:
            self.runtime.read(reads)
        # A client is answered here, too: pings always, everything while there is no runtime.
        reads = RULES[self.state].reads and not (self.client.is_full or self.runtime.is_full)
        if reads is not self.client.is_reading:
            self.client.read(reads)

    def _client_takes(self) -> None:
        """More than is wanted in memory waits for the client, or no more."""
        self._regulate()
        if not self.client.is_full and self._behind():
            self._loop.call_soon(self._step)

    def _client_lost(self) -> None:
        self._is_gathering = False  # what it has said before it went is the runtime's
        self._carry_out(RelayedConnection.client_lost)
        self.abort()

    def _runtime_lost(self) -> None:
        self._carry_out(RelayedConnection.runtime_lost)

    # ------------------------------------------------------------------ calls

    def _open_call(self, method: str) -> Optional[FrameCall]:
        self._was_used = True
        self._owner.last_call_s = self._loop.time()
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
            self._uncounted += len(event.message)  # which may be much longer than what came of it
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
                if self.state is not State.CLOSING:
                    self._enter(State.SILENT)
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
                self._carry_out(RelayedConnection.resume, instead)

        def passed_unseen() -> None:
            if self._notes == number and self.state is not State.CLOSING:
                self._owner.failed_open(method, "slow state")
            noted(())

        waiting = self._loop.call_later(NOTE_S, passed_unseen)
        return noted

    def forward(self, stream: int, delta: bytes) -> None:
        self._tell(RelayedConnection.forward, stream, delta)

    def take_over(self, stream: int) -> None:
        self._tell(RelayedConnection.take_over, stream)

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
        self._tell(RelayedConnection.pass_head, stream, head)

    def pass_messages(self, stream: int, messages: bytes) -> None:
        self._uncounted += len(messages)
        self._tell(RelayedConnection.pass_messages, stream, messages)

    def pass_end(self, stream: int, end: Headers, reset: int) -> None:
        self._tell(RelayedConnection.pass_end, stream, end, reset)

    def end_unread(self, stream: int, code: int, details: str) -> None:
        self._tell(RelayedConnection.end_unread, stream, code, details)

    def passed_unseen(self, method: str) -> None:
        """A message was not noted in time, and was passed on."""
        self._owner.failed_open(method, "slow state")

    def answer(self, stream: int, message: bytes) -> None:
        self._uncounted += len(message)
        self._tell(RelayedConnection.answer, stream, message)

    def finish(self, stream: int, code: int, details: str, metadata: Metadata = ()) -> None:
        self._tell(RelayedConnection.finish, stream, code, details, metadata)

    def failed_open(self, error: Exception) -> None:
        """An interception has failed; its call goes on."""
        self._owner.failed(error)

    def stop_call(self, stream: int, code: int, details: str) -> None:
        self._tell(RelayedConnection.stop_call, stream, code, details)

    def tick(self, now_s: float) -> None:
        """Time passes."""
        if not self._end.has_begun and now_s > self._since_s + SILENT_S:
            self.close()
        if self.runtime.is_full and self.client.is_deserted:
            self.abort()
        self._tell(RelayedConnection.tick, now_s)
        self.ask_queued()

    def _tell(self, work: Callable[..., object], *arguments: Any) -> None:
        """As ``_carry_out``; nothing once the connection is closing."""
        if self.state is not State.CLOSING:
            self._carry_out(work, *arguments)

    def _carry_out(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have the relayed connection do something, and what comes of it."""
        if self.connection is not None:
            try:
                work(self.connection, *arguments)
            except Exception as error:
                self._failed(error)
            self._step()

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
        if isinstance(self._end, Lobby):
            self._leave_lobby(self._end)
        if self.connection is None:
            self.has_read_farewell = True
            self.send_away()
        self._tell(RelayedConnection.say_farewell)

    @property
    def is_stranded(self) -> bool:
        """Whether the client is here without a runtime, and was not sent away yet."""
        return isinstance(self._end, LocalEnd) and not self._end.is_over

    def send_away(self) -> None:
        """Of a link without a runtime: let the client connect again."""
        if isinstance(self._end, LocalEnd):
            self._end.say_farewell()
            self._step()

    def close(self) -> None:
        """Close, after what is still to be written; the client may go first."""
        if self.state is State.CLOSING:
            return
        self._is_gathering = False
        if self.state is State.SILENT:
            self._enter(State.RELAYING)  # to be told why
        self._carry_out(RelayedConnection.conclude)
        self._place(Kind.GOING)
        self.state = State.CLOSING
        self.runtime.close()
        self.client.read(True)  # else its own end would not be seen
        if not self.client.is_open:
            self.abort()
        else:
            self._loop.call_later(LINGER_S, self.client.close)
            self._loop.call_later(TAKE_S, self.abort)

    def dismiss(self) -> None:
        """End a connection that nothing is under way on: its client connects again when it has a call."""
        if not isinstance(self._end, Lobby):
            self.send_away()
            self.close()
            return
        if self._end.has_begun:
            self.client.write([write_goaway(0, Error.NO_ERROR, "idle, and there are many")])
        self.abort()

    def give_up(self, why: str) -> None:
        """Close at once, and drop what is kept; the client is told why, if it reads."""
        if self.connection is not None and self.state is not State.CLOSING:
            self.connection.give_up(why)
            self._handle_events(self.connection)
            self._write(self.connection)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_gathering = False
        self.state = State.CLOSING
        self.client.abort()
        self.runtime.abort()
        self._owner.left(self)


def _nothing(_instead: Instead) -> None:
    pass
