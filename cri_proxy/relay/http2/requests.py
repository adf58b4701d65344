"""The client's direction: frames pass to the runtime, requests of intercepted streams are held until they are decided.

Header blocks pass at once, always: the runtime must read every one of them, in order (RFC 7541, 2.2).
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    HEADER_TABLE_SIZE,
    HEADERS,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Error,
    ProtocolError,
    read_settings,
    unpadded,
    write_frame,
)
from cri_proxy.relay.http2.headers import value_of
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES, PREFIX_BYTES, Hold, ReplyHold
from cri_proxy.relay.http2.pipe import Frame, Handler, Pipe
from cri_proxy.relay.http2.replies import Replies, doubt_push, write_credit
from cri_proxy.relay.http2.wire import CLIENT_GONE, FailedOpen, RequestReceived, Stage, Stream, Wire
from cri_proxy.relay.status import Code

#: A request that is not whole by then is sent on as it is.
HOLD_S = 30.0
#: Calls open at once on one connection. grpc-go's server takes as many as it gets; kubelet has a few dozen.
MAX_STREAMS = 10_000

OpenCall = Callable[[str], Any]


class Requests:
    """``open_call``: what an intercepted method is known by; None: its calls pass."""

    def __init__(self, wire: Wire, open_call: OpenCall, own_settings: int, replies: Replies) -> None:
        handlers: dict[int, Handler] = {
            DATA: self._data,
            HEADERS: self._headers,
            RST_STREAM: self._reset,
            SETTINGS: self._settings,
            PING: self._ping,
            WINDOW_UPDATE: self._window_update,
            PUSH_PROMISE: doubt_push,
        }
        self.pipe = Pipe(self._other, wire.to_runtime, handlers, wire.requests, wire.watched)
        self._wire = wire
        self._open_call = open_call
        self._replies = replies
        #: SETTINGS of ours that the client has not confirmed; they come before the runtime's.
        self.own_settings = own_settings

    def _other(self, frame: Frame) -> Optional[bytes]:
        """PRIORITY and GOAWAY are of no interest; unknown kinds are ignored by either side (5.5)."""
        self._spend(f"frames of kind {frame.kind}")
        return None

    def _spend(self, what: str) -> None:
        self._wire.patience.spend(self._wire.now_s, what)

    # ------------------------------------------------------------------ streams

    def _headers(self, frame: Frame) -> Optional[bytes]:
        headers = self._wire.request_headers.read(frame.block)
        self.pipe.work += len(headers)
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        if stream is not None:
            if stream.stage is Stage.TAKEN or stream.hold is not None or wire.requests.is_waiting(stream.id):
                # gRPC knows no trailers of clients; these could not be sent in time with the others' blocks.
                raise ProtocolError(
                    Error.INTERNAL_ERROR, f"trailers behind a request that is held, on stream {stream.id}"
                )
            stream.client_done = stream.client_done or bool(frame.flags & END_STREAM)
            return None
        if frame.stream <= wire.last_stream:
            self._spend("HEADERS of streams that are over")
            return None  # of a stream that is over; the runtime knows what to do
        if not frame.stream & 1:
            raise ProtocolError(
                Error.PROTOCOL_ERROR, f"a client's stream has the number {frame.stream}, expected an odd one"
            )
        if len(wire.streams) >= MAX_STREAMS:
            raise ProtocolError(Error.ENHANCE_YOUR_CALM, f"more than {MAX_STREAMS} calls at once")
        wire.last_stream = frame.stream
        method = value_of(headers, b":path").decode("utf-8", "replace")
        stream = wire.streams[frame.stream] = Stream(frame.stream, method)
        if frame.flags & END_STREAM:
            stream.client_done = True  # a call without a request: the runtime has its own words for that
            return None
        call = self._open_call(method)
        if call is not None:
            stream.call, stream.stage, stream.headers = call, Stage.HOLDING, headers
            stream.hold = Hold(value_of(headers, b"grpc-encoding"), wire.now_s)
            wire.watched.add(stream.id)
            wire.requests.open(stream.id)
            wire.replies.open(stream.id)
        return None

    def _data(self, frame: Frame) -> Optional[bytes]:
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        if not (frame.size or frame.flags & END_STREAM):
            self._spend("DATA of no bytes")
        if stream is not None:
            if frame.flags & END_STREAM:
                stream.client_done = True
            if stream.stage is Stage.TAKEN:
                wire.requests.drop(frame.size)
                return b""
            if stream.hold is not None:
                self.pipe.flush(frame)
                self._hold(stream, stream.hold, frame)
                return b""
        if wire.requests.passes(frame.stream, frame.size):
            return None
        self.pipe.flush(frame)
        payload = unpadded(frame.payload, frame.flags)
        wire.requests.delay(frame.stream, payload, frame.size, bool(frame.flags & END_STREAM))
        return b""

    def _reset(self, frame: Frame) -> Optional[bytes]:
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        self._spend("RST_STREAM")
        if stream is None:
            return None
        wire.end(stream, Code.CANCELLED, CLIENT_GONE)
        # What the runtime has yet to say of it passes: the client knows that it is over, and its table needs all.
        wire.forget(stream)
        self._replies.client_takes_more()
        return b"" if stream.stage is Stage.TAKEN else None  # then it was reset at the runtime, too

    # ------------------------------------------------------------------ holding

    def _hold(self, stream: Stream, hold: Hold, frame: Frame) -> None:
        wire, outlet = self._wire, self._wire.requests
        payload = unpadded(frame.payload, frame.flags)
        padding = frame.size - len(payload)
        hold.add(payload, bool(frame.flags & END_STREAM))
        wire.held_bytes += len(payload)
        # The sender gets its credit back at once, or what is held here would take the others' windows. The stream's
        # only until its message is whole: what follows that is to wait at the sender.
        outlet.keep(stream.id, frame.size)
        outlet.grant(0, padding if wire.is_full else frame.size)
        outlet.grant(stream.id, padding if hold.is_ended or hold.is_whole else frame.size)
        if stream.stage is not Stage.HOLDING:
            return
        if hold.wanted > PREFIX_BYTES + MAX_MESSAGE_BYTES or wire.is_full:
            self._fail_open(stream, "too large")
        elif hold.is_whole:
            message = hold.first()
            wire.held_bytes += hold.inflated_bytes
            if message is None:
                self._fail_open(stream, "compressed")
            else:
                stream.stage, stream.asked_bytes = Stage.DECIDING, len(message)
                wire.asked_bytes += len(message)
                wire.events.append(RequestReceived(stream.id, stream.call, message))
        elif hold.is_ended and hold.data:
            self._fail_open(stream, "incomplete")
        elif hold.is_ended:  # a call without a message: the runtime has its own words for that
            stream.call = None
            self.release(stream)
        else:
            self._ask_for(stream.id, hold.wanted - len(hold.data))

    def _ask_for(self, stream: int, size: int) -> None:
        """Make sure that the sender may send the rest of a message that is held."""
        outlet = self._wire.requests
        ledger = outlet.ledger(stream)
        assert ledger is not None
        outlet.grant(stream, size - ledger.sender_window)
        outlet.grant(0, size - outlet.connection.sender_window)

    def _fail_open(self, stream: Stream, reason: str) -> None:
        self._wire.events.append(FailedOpen(stream.method, reason))
        stream.call = None
        self.release(stream)

    def release(self, stream: Stream, delta: bytes = b"") -> None:
        """Send a held request on."""
        hold, wire = stream.hold, self._wire
        assert hold is not None
        data = hold.release(delta)
        wire.drop_hold(stream)
        stream.stage = Stage.PASSING
        if stream.call is not None:
            stream.reader = ReplyHold()
        if data or hold.is_ended:
            wire.requests.put(stream.id, data, hold.is_ended)

    def expire(self) -> None:
        """Send on what is not whole after ``HOLD_S``."""
        for stream in list(self._wire.streams.values()):
            hold = stream.hold
            if (
                stream.stage is Stage.HOLDING
                and hold is not None
                and self._wire.now_s >= hold.since_s + HOLD_S
            ):
                self._fail_open(stream, "too slow")

    # ------------------------------------------------------------------ the connection

    def _settings(self, frame: Frame) -> Optional[bytes]:
        wire = self._wire
        if frame.flags & ACK:
            if self.own_settings:
                self.own_settings -= 1
                return b""
            # What it allows comes behind it.
            self.pipe.flush(frame)
            wire.requests.confirm(frame.data[frame.at : frame.end])
            return b""
        settings = read_settings(frame.payload)
        wire.note_client_settings()
        wire.replies.expect(settings)
        for name, value in settings:
            if name == HEADER_TABLE_SIZE:
                wire.reply_headers.allow_table(value)
        return None

    def _window_update(self, frame: Frame) -> Optional[bytes]:
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        credit = frame.credit
        left = wire.replies.credit(frame.stream, credit)
        if self._replies.waits_for:
            self._replies.client_takes_more()
        if stream is not None and stream.stage is Stage.TAKEN:
            return b""
        return None if left == credit else write_credit(frame.stream, left)

    def _ping(self, frame: Frame) -> Optional[bytes]:
        if frame.flags & ACK:
            return b"" if self._wire.is_answer_of_client(frame.flags, frame.payload) else None
        wire = self._wire
        if self._replies.pipe.has_content:  # since a PING was passed to it
            self._replies.pipe.has_content = False
            return None
        self._spend("PING while nothing is answered")
        # Clients ping to measure what they get, and gRPC's servers end a connection on which pings come while they send
        # nothing. So it is when what the client got was an answer of ours.
        wire.to_client.append(write_frame(PING, ACK, 0, frame.payload))
        return b""
