"""A connection of a client, relayed to the runtime frame by frame: bytes in, bytes for either side and events out.

Frames pass as they are, in their order, whatever is in them; of all header blocks both directions' readers keep
step. For calls that the owner opens, requests are held until ``forward`` or ``take_over``, and replies are shown.
The owner feeds what it reads, writes what is in ``to_client`` and ``to_runtime``, and does what ``events`` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from cri_proxy.relay.http2.frames import (
    DEFAULT_FRAME_BYTES,
    PREFACE,
    Buffer,
    Error,
    ProtocolError,
    write_goaway,
    write_headers,
    write_reset,
    write_settings,
)
from cri_proxy.relay.http2.headers import Headers, write_fields, write_response, write_trailers
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.replies import Replies
from cri_proxy.relay.http2.requests import OpenCall, Requests
from cri_proxy.relay.http2.wire import (
    CLIENT_GONE,
    STREAM_BYTES,
    Closing,
    Event,
    FarewellRead,
    Stage,
    Stream,
    Wire,
)
from cri_proxy.relay.status import Code, Metadata

#: How long an answer of ours waits for the runtime's last frames of the call.
CLEAR_S = 1.0
RUNTIME_GONE = "the container runtime has closed the connection"


class RelayedConnection:
    """``open_call``: what an intercepted method is known by in events; None: its calls pass.

    ``own_settings``: how many SETTINGS the client has got that are not the runtime's (``greeting``).
    """

    def __init__(self, open_call: OpenCall, own_settings: int = 0) -> None:
        self._wire = wire = Wire()
        self._replies = Replies(wire)
        self._requests = Requests(wire, open_call, own_settings, self._replies)
        #: What is to be written to either side; emptied by what has written it.
        self.to_runtime = wire.to_runtime
        self.to_client: list[Buffer] = []
        #: What has happened; taken with ``take_events``.
        self.events = wire.events
        #: The calls that are not over, by stream.
        self.calls = wire.streams
        #: The runtime's direction waits, for ``resume`` or for the client: no more of it is to be read.
        self.is_paused = False
        #: The client has said that it speaks HTTP/2.
        self.has_begun = False
        self._preface = b""
        self._is_over = False
        self._is_runtime_lost = False
        if own_settings:
            self._greeted()

    # ------------------------------------------------------------------ what there is to do

    def _greeted(self) -> None:
        """The client has got SETTINGS: what else there is for it may follow."""
        self._wire.is_greeted = True
        self.to_client = self._wire.to_client

    def take_events(self) -> list[Event]:
        """What has happened since the last time."""
        taken = self.events[:]
        self.events.clear()
        return taken

    @property
    def methods(self) -> dict[int, str]:
        """The calls under way, by stream: those whose end the client has not been sent."""
        return {s.id: s.method for s in self._wire.streams.values() if not s.is_answered}

    def call_of(self, stream_id: int) -> Any:
        """What an intercepted call is known by; None: it is none, or its end is known."""
        stream = self._wire.streams.get(stream_id)
        return None if stream is None else stream.call

    @property
    def is_busy(self) -> bool:
        """Whether the client waits for the end of a call."""
        replies = self._wire.replies
        return any(
            not s.is_answered or s.answer or replies.is_waiting(s.id) for s in self._wire.streams.values()
        )

    @property
    def kept_bytes(self) -> int:
        """What is in memory for this connection, about: what is held or waits, what is not whole, its calls."""
        if self._is_over:
            return 0
        wire = self._wire
        unhandled = self._requests.pipe.unhandled_bytes + self._replies.pipe.unhandled_bytes
        waiting = wire.requests.waiting_bytes + wire.replies.waiting_bytes
        return unhandled + waiting + wire.held_bytes + wire.asked_bytes + len(wire.streams) * STREAM_BYTES

    @property
    def is_noting(self) -> bool:
        """Whether the runtime's direction waits for ``resume``."""
        return self._replies.is_noting

    # ------------------------------------------------------------------ what happens

    def from_client(self, data: bytes, now_s: float) -> int:
        """Bytes of the client. What they have cost: frames, and fields of headers."""
        self._wire.now_s = now_s
        pipe = self._requests.pipe
        if not (self.has_begun or self._is_over):
            data = self._read_preface(data)
        if data and not self._is_over:
            try:
                pipe.read(data)
            except ProtocolError as doubt:
                self._doubt(doubt)
            self.is_paused = self._replies.pipe.is_paused  # for the client, which may have taken more
        work, pipe.work = pipe.work, 0
        return work

    def from_runtime(self, data: bytes, now_s: float) -> None:
        """Bytes of the runtime."""
        wire = self._wire
        wire.now_s = now_s
        if not self._is_over:
            try:
                self._replies.pipe.read(data)
            except ProtocolError as doubt:
                self._doubt(doubt)
            self.is_paused = self._replies.pipe.is_paused
            if wire.is_greeted and self.to_client is not wire.to_client:
                self._greeted()

    def resume(self, instead: Sequence[Optional[bytes]] = ()) -> None:
        """What was shown is noted; the runtime's direction goes on.

        ``instead``: of ``Observed``, what is sent for each of its messages: the message itself, less, or None.
        """
        if self.is_noting:
            self._guarded(lambda: self._replies.resume(instead))
            self.is_paused = self._replies.pipe.is_paused
        if self._is_runtime_lost and not self.is_noting:
            self.runtime_lost()

    def tick(self, now_s: float) -> None:
        """Time passes; called every second or so."""
        self._wire.now_s = now_s
        self._guarded(self._requests.expire)
        for stream in list(self._wire.streams.values()):
            if stream.stage is Stage.TAKEN and not stream.is_clear and now_s >= stream.taken_s + CLEAR_S:
                self._clear(stream)

    def runtime_lost(self) -> None:
        """The runtime's side has ended: so do all calls, and the connection."""
        if self.is_noting:  # there may be more of it to be passed on
            self._is_runtime_lost = True
            return
        if self._is_over:
            return
        self._is_over = True
        wire = self._wire
        for stream in list(wire.streams.values()):
            if stream.stage is Stage.TAKEN:
                self._clear(stream)  # what the client was to get of it, it gets
            wire.end(stream, Code.UNAVAILABLE, RUNTIME_GONE)
            if not stream.is_answered:
                wire.to_client.append(self._trailers(stream, Code.UNAVAILABLE, RUNTIME_GONE, ()))
            wire.forget(stream)
        self._greet()
        wire.to_client.append(self._last_goaway(Error.NO_ERROR))
        wire.to_runtime.clear()
        wire.events.append(Closing(RUNTIME_GONE))

    def client_lost(self) -> None:
        """The client is gone."""
        if self._is_over:
            return
        self._is_over = True
        self._end_all(Code.CANCELLED, CLIENT_GONE)
        self._wire.to_client.clear()
        self._wire.events.append(Closing(CLIENT_GONE))

    def fail(self, reason: str) -> None:
        """A bug has come up in the middle of something, which cannot be gone on with: the connection ends."""
        if not self._is_over:
            self._doubt(ProtocolError(Error.INTERNAL_ERROR, reason))

    def give_up(self, reason: str) -> None:
        """End the connection for the memory it takes; what is kept for it is dropped."""
        if not self._is_over:
            self._end_connection(Error.ENHANCE_YOUR_CALM, reason)
            self._wire.events.append(Closing(reason))

    # ------------------------------------------------------------------ what is decided

    def forward(self, stream_id: int, delta: bytes) -> None:
        """Send a request that was asked about, with ``delta`` appended."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and stream.stage is Stage.DECIDING:
            self._requests.release(stream, delta)

    def take_over(self, stream_id: int) -> None:
        """End a call at the runtime; what the client gets of it comes from ``answer`` and ``finish``."""
        wire, stream = self._wire, self._wire.streams.get(stream_id)
        if stream is None or stream.stage is Stage.TAKEN:
            return
        wire.drop_hold(stream)
        wire.watched.add(stream_id)
        wire.requests.close(stream_id)
        if wire.replies.ledger(stream_id) is None:
            wire.replies.open(stream_id)
        stream.stage, stream.taken_s = Stage.TAKEN, wire.now_s
        wire.to_runtime.append(write_reset(stream_id, Error.CANCEL))
        wire.to_runtime.append(wire.probe_runtime(lambda: self._clear(stream)))

    def answer(self, stream_id: int, message: bytes, metadata: Metadata = ()) -> None:
        """A reply message for a call that was taken over. ``metadata``: with the first, the initial one."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and not stream.is_answered:
            self._when_clear(stream, lambda: self._put_message(stream, message, metadata))

    def finish(self, stream_id: int, code: int, details: str, metadata: Metadata = ()) -> None:
        """The end of a call that was taken over; without a message before, as "trailers-only"."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and not stream.is_answered:
            self._when_clear(stream, lambda: self._put_end(stream, code, details, metadata))
            stream.is_answered = True

    def takes(self, stream_id: int, size: int) -> bool:
        """Whether the client of a call that was taken over takes so many bytes of messages now, or a frame of them."""
        stream, replies = self._wire.streams.get(stream_id), self._wire.replies
        ledger = replies.ledger(stream_id)
        if stream is None or ledger is None or not stream.is_clear or replies.is_waiting(stream_id):
            return False
        return min(ledger.window, replies.connection.window) >= min(size, DEFAULT_FRAME_BYTES)

    def pass_head(self, stream_id: int, head: Headers) -> None:
        """Response headers from elsewhere, as they came, for a call that was taken over."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and not stream.is_answered:
            self._when_clear(stream, lambda: self._put_head(stream, write_fields(head)))

    def pass_messages(self, stream_id: int, messages: bytes) -> None:
        """Messages with their prefixes, behind ``pass_head``."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and not stream.is_answered:
            self._when_clear(stream, lambda: self._wire.replies.put(stream_id, messages))

    def pass_end(self, stream_id: int, end: Headers, reset: int) -> None:
        """The end of a call from elsewhere: its trailers, or (not -1) the HTTP/2 error that it was reset with."""
        stream = self._wire.streams.get(stream_id)
        if stream is not None and not stream.is_answered:
            self._when_clear(stream, lambda: self._put_end_as_it_came(stream, end, reset))
            stream.is_answered = True

    def headers_of(self, stream_id: int) -> Headers:
        """The request headers of an intercepted call; none of one that is over."""
        stream = self._wire.streams.get(stream_id)
        return () if stream is None else stream.headers

    def unary_headers(self, stream_id: int) -> Optional[Headers]:
        """The request headers of a call that was asked about; None: its request is not one message and its end."""
        stream = self._wire.streams.get(stream_id)
        if stream is None or stream.hold is None or not stream.client_done:
            return None
        return stream.headers if len(stream.hold.data) == stream.hold.wanted else None

    def end_unread(self, stream_id: int, code: int, details: str) -> None:
        """End a call that was taken over, whose client does not read; what waits of it is dropped.

        In the middle of a message, behind which no trailers can be, by a reset that gRPC reads as RESOURCE_EXHAUSTED.
        """
        stream, replies = self._wire.streams.get(stream_id), self._wire.replies
        if stream is None or not replies.is_waiting(stream_id):
            self.finish(stream_id, code, details)
            return
        replies.close(stream_id)
        self.pass_end(stream_id, (), int(Error.ENHANCE_YOUR_CALM))

    def _when_clear(self, stream: Stream, action: Callable[[], None]) -> None:
        if stream.is_clear:
            action()
        else:
            stream.answer.append(action)

    def _clear(self, stream: Stream) -> None:
        """Nothing more comes from the runtime for a stream."""
        if stream.is_clear or self._wire.streams.get(stream.id) is not stream:
            return
        stream.is_clear = True
        actions, stream.answer = stream.answer, []
        for action in actions:
            action()
        if stream.is_answered and not actions:  # by the runtime, or by the client's reset
            self._wire.forget(stream)

    def _put_message(self, stream: Stream, message: bytes, metadata: Metadata) -> None:
        self._put_head(stream, write_response(metadata))
        self._wire.replies.put(stream.id, write_message(message))

    def _put_head(self, stream: Stream, block: bytes) -> None:
        replies = self._wire.replies
        if not stream.has_reply:
            stream.has_reply = True
            replies.put(stream.id, b"", raw=write_headers(stream.id, block, replies.frame_bytes, False))

    def _put_end(self, stream: Stream, code: int, details: str, metadata: Metadata) -> None:
        self._put_last(stream, self._trailers(stream, code, details, metadata))

    def _put_end_as_it_came(self, stream: Stream, end: Headers, reset: int) -> None:
        if reset >= 0:
            self._put_last(stream, write_reset(stream.id, reset), is_reset=True)
            return
        # With a response there has been a :status already.
        fields = [field for field in end if not (stream.has_reply and field[0].startswith(b":"))]
        raw = write_headers(stream.id, write_fields(fields), self._wire.replies.frame_bytes, True)
        self._put_last(stream, raw)

    def _put_last(self, stream: Stream, raw: bytes, is_reset: bool = False) -> None:
        wire = self._wire
        if not (stream.client_done or is_reset):
            raw += write_reset(stream.id, Error.NO_ERROR)
        # Until the client has read this, frames of it may come that are not for the runtime.
        raw += wire.ping_client(lambda: wire.forget(stream))
        wire.replies.put(stream.id, b"", raw=raw)

    def _trailers(self, stream: Stream, code: int, details: str, metadata: Metadata) -> bytes:
        block = b"" if stream.has_reply else write_response()
        block += write_trailers(code, details, metadata)
        return write_headers(stream.id, block, self._wire.replies.frame_bytes, True)

    # ------------------------------------------------------------------ the end

    def say_farewell(self) -> None:
        """Ask the client for no new calls here. ``FarewellRead`` comes when it has read that (RFC 9113, 6.8).

        Calls may follow all the same: grpc's C core writes the answer to a ping before calls that it had begun. They
        are served until ``conclude``. (It does not answer a second ping on a connection that had no calls.)
        """
        wire = self._wire
        if self._is_over:
            wire.events.append(FarewellRead())
            return
        self._greet()
        wire.to_client.append(write_goaway(wire.served_to, Error.NO_ERROR))
        wire.to_client.append(wire.ping_client(lambda: wire.events.append(FarewellRead())))

    def conclude(self) -> None:
        """Nothing more is read: the client is told which of its calls were, so it may repeat the others."""
        if not self._is_over:
            self._is_over = True
            self._wire.to_client.append(self._last_goaway(Error.NO_ERROR))

    def stop_call(self, stream_id: int, code: int, details: str) -> None:
        """End a call under way with a status of ours."""
        stream = self._wire.streams.get(stream_id)
        if stream is None or stream.is_answered:
            return
        self._wire.end(stream, code, details)
        stream.call = None
        self.take_over(stream_id)
        stream.answer.clear()
        self.finish(stream_id, code, details)

    def _end_all(self, code: int, details: str) -> None:
        for stream in list(self._wire.streams.values()):
            self._wire.end(stream, code, details)
            self._wire.forget(stream)

    def _read_preface(self, data: bytes) -> bytes:
        missing = len(PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not PREFACE.startswith(self._preface):
            self._doubt(ProtocolError(Error.PROTOCOL_ERROR, "the client does not speak HTTP/2"))
            return b""
        if self._preface == PREFACE:
            self.has_begun = True
            self._wire.to_runtime.append(PREFACE)
        return data[missing:]

    def _last_goaway(self, code: Error, why: str = "") -> bytes:
        return write_goaway(min(self._wire.last_stream, self._wire.served_to), code, why)

    def _greet(self) -> None:
        """What the client gets is HTTP/2, also if the runtime has said nothing."""
        if not self._wire.is_greeted:
            self._requests.own_settings += 1
            self._wire.to_client.insert(0, write_settings())
            self._greeted()

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._is_over:
            return
        try:
            work()
        except ProtocolError as doubt:
            self._doubt(doubt)

    def _doubt(self, doubt: ProtocolError) -> None:
        self._end_connection(doubt.code, str(doubt))
        self._wire.events.append(Closing(str(doubt), is_doubt=True))

    def _end_connection(self, code: Error, reason: str) -> None:
        self._is_over = True
        self._end_all(Code.UNAVAILABLE, f"the connection was closed: {reason}")
        self._greet()
        self._wire.to_client.append(self._last_goaway(code, reason))
        self._wire.to_runtime.append(write_goaway(0, code, reason))
