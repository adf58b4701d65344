"""The runtime's direction: frames pass to the client; replies of intercepted calls are shown before they do.

While a reply or an end is being noted, this direction waits as a whole: the header blocks that follow may refer to
the one that waits (RFC 7541, 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Error,
    ProtocolError,
    read_settings,
    unpadded,
    write_reset,
    write_window_update,
)
from cri_proxy.relay.http2.headers import code_of_reset, status_of, value_of
from cri_proxy.relay.http2.messages import ReplyHold, write_message
from cri_proxy.relay.http2.pipe import Frame, Handler, Paused, Pipe
from cri_proxy.relay.http2.wire import FailedOpen, ReplyReceived, Stage, Stream, Wire
from cri_proxy.relay.interception import CallEnd, end_of
from cri_proxy.relay.status import Code


class _Front:
    """The DATA frame at the front: the messages that end in it, with their prefixes.

    ``passes``: nothing else is in it, and nothing of them came before: unless changed it passes as it is.
    """

    def __init__(self, whole: list[bytes], reader: ReplyHold, passes: bool) -> None:
        self.whole = whole
        self.passes = passes
        #: Its sender was given the credit for it.
        self.is_kept = not passes
        read = [(at, reader.read(raw)) for at, raw in enumerate(whole)]
        self.shown = [(at, message) for at, message in read if message is not None]

    @property
    def messages(self) -> tuple[bytes, ...]:
        return tuple(message for _, message in self.shown)

    def change(self, instead: Sequence[Optional[bytes]]) -> None:
        """What comes in the place of each message that was shown; None: nothing."""
        for (at, message), other in zip(self.shown, instead):
            if other is not message:
                self.passes = False
                self.whole[at] = b"" if other is None else write_message(other)


class Replies:
    """Frames of the runtime."""

    def __init__(self, wire: Wire) -> None:
        handlers: dict[int, Handler] = {
            DATA: self._data,
            HEADERS: self._headers,
            RST_STREAM: self._reset,
            SETTINGS: self._settings,
            GOAWAY: self._goaway,
            WINDOW_UPDATE: self._window_update,
            PUSH_PROMISE: doubt_push,
        }
        self.pipe = Pipe(_other, wire.to_client, handlers, wire.replies, wire.watched)
        self._wire = wire
        #: What was done about the frame at the front, which is handled again after each pause.
        self._front: Optional[_Front] = None
        self._is_ended = False
        #: The stream whose DATA the client must take before its end can follow; 0: none.
        self.waits_for = 0

    def _begin(self, frame: Frame) -> None:
        """A frame comes that may wait: what is known is of the frame before, unless it has waited itself."""
        if not frame.is_again:
            self._front, self._is_ended = None, False

    @property
    def is_noting(self) -> bool:
        """Whether this direction waits for ``resume``."""
        return self.pipe.is_paused and not self.waits_for

    def resume(self, instead: Sequence[Optional[bytes]]) -> None:
        """What was shown is noted."""
        if self._front is not None:
            self._front.change(instead)
        self.pipe.resume()

    def client_takes_more(self) -> None:
        """Go on, if that is what this direction has waited for."""
        if self.waits_for and not self._wire.replies.is_waiting(self.waits_for):
            self.waits_for = 0
            self.pipe.resume()

    # ------------------------------------------------------------------ headers and ends

    def _headers(self, frame: Frame) -> Optional[bytes]:
        self._begin(frame)
        stream = self._wire.streams.get(frame.stream)
        if self._is_ended:  # and its block was read
            return None if stream is None else self._over(stream, frame)
        if stream is not None and stream.stage is not Stage.TAKEN:
            self._wait_for_data(stream, frame)
        headers = self._wire.reply_headers.read(frame.block)
        if stream is None:
            return None
        is_end = bool(frame.flags & END_STREAM)
        if stream.stage is Stage.TAKEN:
            return self._late_headers(stream, is_end)
        if not is_end:
            stream.has_reply = True
            if stream.reader is not None:
                stream.reader.encoding = value_of(headers, b"grpc-encoding")
            return None
        code, details = status_of(headers) if stream.call is not None else (0, "")
        # Without a status it is not known whether it was done.
        end = CallEnd.UNKNOWN if code is None else end_of(code, sent=True)
        self._end(stream, Code.UNKNOWN if code is None else code, details, end)
        return self._over(stream, frame)

    def _over(self, stream: Stream, frame: Frame) -> Optional[bytes]:
        """The runtime has ended a call. If part of its request is still here, no more of that is to come: it would
        be the tail of a message without its head.
        """
        wire = self._wire
        wire.patience.regain()
        if stream.client_done or (stream.hold is None and not wire.requests.is_waiting(stream.id)):
            wire.forget(stream)
            return None
        self.pipe.flush(frame)
        wire.to_client.append(frame.data[frame.at : frame.end])
        wire.to_client.append(write_reset(stream.id, Error.NO_ERROR))
        wire.to_client.append(wire.ping_client(lambda: wire.forget(stream)))
        wire.to_runtime.append(write_reset(stream.id, Error.CANCEL))
        wire.drop_hold(stream)
        wire.requests.close(stream.id)
        stream.stage, stream.call = Stage.TAKEN, None
        stream.is_answered = stream.is_clear = True
        return b""

    def _wait_for_data(self, stream: Stream, frame: Frame) -> None:
        """:raises Paused: DATA of the stream is to be sent before its headers can be."""
        if stream.reader is not None and stream.reader.data:
            self.pipe.flush(frame)
            self._give_up(stream, stream.reader)
        if self._wire.replies.is_waiting(stream.id):
            self.waits_for = stream.id
            raise Paused

    def _late_headers(self, stream: Stream, is_end: bool) -> Optional[bytes]:
        """Sent before the runtime read our reset. The client must read them, for the sake of its table."""
        if stream.is_clear or (stream.is_answered and not stream.answer):
            raise ProtocolError(Error.INTERNAL_ERROR, f"headers on stream {stream.id}, which is over")
        stream.has_reply = True
        if is_end:  # the runtime's own words, and the last
            stream.answer.clear()
            stream.is_answered = True
            self._wire.end(stream, Code.UNKNOWN, "the runtime has ended the call")
        return None

    def _reset(self, frame: Frame) -> Optional[bytes]:
        self._begin(frame)
        stream = self._wire.streams.get(frame.stream)
        if stream is None:
            return None
        if stream.stage is Stage.TAKEN:
            return b""
        error = frame.number
        # REFUSED_STREAM: nothing was done (RFC 9113, 8.7).
        end = CallEnd.REFUSED if error == Error.REFUSED_STREAM else CallEnd.UNKNOWN
        if not self._is_ended:
            details = f"the runtime has reset the call (HTTP/2 error {error})"
            self._end(stream, code_of_reset(error), details, end)
        self._wire.forget(stream)
        return None

    def _end(self, stream: Stream, code: int, details: str, end: CallEnd) -> None:
        """The frame at hand ends a stream.

        :raises Paused: that is being noted; handled again, the frame passes.
        """
        waits = stream.call is not None and stream.stage is Stage.PASSING
        self._wire.end(stream, code, details, end, waits)
        if waits:
            self._is_ended = True
            raise Paused

    # ------------------------------------------------------------------ messages

    def _data(self, frame: Frame) -> Optional[bytes]:
        self._begin(frame)
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        is_end = bool(frame.flags & END_STREAM)
        if (
            self._front is not None
            and self._front.is_kept
            and (stream is None or stream.stage is Stage.TAKEN)
        ):
            return b""  # it was paid for, and the call has ended while it waited
        if stream is not None:
            if stream.stage is Stage.TAKEN:
                wire.replies.drop(frame.size)
                return b""
            kept = self._show(stream, frame)
            if is_end and not self._is_ended:
                self._end(stream, Code.INTERNAL, "no trailers", CallEnd.UNKNOWN)
            if kept is not None:
                self.pipe.flush(frame)
                if kept or is_end:
                    wire.replies.put(stream.id, kept, is_end)
                return b""
        if wire.replies.passes(frame.stream, frame.size):
            if is_end and stream is not None:
                wire.forget(stream)
            return None
        self.pipe.flush(frame)
        wire.replies.delay(frame.stream, unpadded(frame.payload, frame.flags), frame.size, is_end)
        return b""

    def _show(self, stream: Stream, frame: Frame) -> Optional[bytes]:
        """Show the messages that end in a frame. What is sent in its place; None: it passes.

        :raises Paused: they are being noted.
        """
        reader, wire = stream.reader, self._wire
        if reader is None:
            return None
        front = self._front
        if front is None:
            began_before = len(reader.data)
            whole = reader.add(unpadded(frame.payload, frame.flags))
            passes = not began_before and not reader.data
            front = self._front = _Front(whole, reader, passes)
            wire.held_bytes += len(reader.data) - began_before
            if front.is_kept:
                self._keep(stream, frame)
            if front.shown:
                wire.events.append(ReplyReceived(stream.call, front.messages))
                raise Paused
        if front.passes:
            return None
        if not front.is_kept:
            front.is_kept = True
            self._keep(stream, frame)
        kept = b"".join(front.whole)
        if reader.is_too_large or wire.is_full:
            wire.events.append(FailedOpen(stream.method, "too large"))
            wire.held_bytes -= len(reader.data)
            kept += reader.give_up()
            stream.reader = None
        return kept

    def _keep(self, stream: Stream, frame: Frame) -> None:
        """A frame does not pass; its sender gets the credit back."""
        outlet = self._wire.replies
        outlet.keep(stream.id, frame.size)
        outlet.repay(stream.id, frame.size)

    def _give_up(self, stream: Stream, reader: ReplyHold) -> None:
        """Send what is kept of a message that never became whole."""
        self._wire.held_bytes -= len(reader.data)
        self._wire.replies.put(stream.id, reader.give_up())

    # ------------------------------------------------------------------ the connection

    def _settings(self, frame: Frame) -> Optional[bytes]:
        wire = self._wire
        if frame.flags & ACK:
            # What it allows, or lets go, comes behind it.
            self.pipe.flush(frame)
            if wire.is_answer_of_runtime():
                return b""
            wire.replies.confirm(frame.data[frame.at : frame.end])
            return b""
        settings = read_settings(frame.payload)
        if not wire.is_greeted:  # what we have to say was waiting for that
            wire.is_greeted = True
            wire.to_client.insert(0, frame.data[frame.at : frame.end])
            self._learn(settings)
            return b""
        self._learn(settings)
        return None

    def _learn(self, settings: list[tuple[int, int]]) -> None:
        wire = self._wire
        wire.requests.expect(settings)
        for name, value in settings:
            if name == HEADER_TABLE_SIZE:
                wire.request_headers.allow_table(value)

    def _window_update(self, frame: Frame) -> Optional[bytes]:
        wire, stream = self._wire, self._wire.streams.get(frame.stream)
        credit = frame.credit
        left = wire.requests.credit(frame.stream, credit)
        if stream is not None and stream.stage is Stage.TAKEN:
            return b""
        return None if left == credit else write_credit(frame.stream, left)

    def _goaway(self, frame: Frame) -> Optional[bytes]:
        wire = self._wire
        last = frame.number & STREAM_MASK
        # The client takes streams above to be over, without a word from either side.
        for stream in [stream for stream in wire.streams.values() if stream.id > last]:
            wire.end(stream, Code.UNAVAILABLE, "the runtime has ended the connection", CallEnd.REFUSED)
            wire.forget(stream)
        if last > wire.served_to:
            return b""  # it was told less (6.8: the number may not grow)
        wire.served_to = last
        return None


def _other(_frame: Frame) -> Optional[bytes]:
    """Other kinds are of no interest here."""
    return None


def doubt_push(frame: Frame) -> Optional[bytes]:
    """:raises ProtocolError: always. A push would be a stream that no client has begun."""
    raise ProtocolError(Error.PROTOCOL_ERROR, f"PUSH_PROMISE on stream {frame.stream}: gRPC has none")


def write_credit(stream: int, credit: int) -> bytes:
    """A WINDOW_UPDATE for what is left of one; nothing if nothing is."""
    return write_window_update(stream, credit) if credit else b""
