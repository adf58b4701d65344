"""Calls of our own on one connection to a gRPC server: what is sent of each, and its messages and end as they come.

Unary calls and server streams: one request message, any number of replies. Messages stay in their own bytes, with their
prefixes: a subscriber's call is passed on so.
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Optional

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_BLOCK_BYTES,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Buffer,
    Error,
    ProtocolError,
    read_settings,
    unpadded,
    write_data,
    write_frame,
    write_goaway,
    write_headers,
    write_reset,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.headers import (
    HeaderReader,
    Headers,
    code_of_http,
    code_of_reset,
    read_metadata,
    status_of,
    value_of,
)
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES, ReplyHold, write_message
from cri_proxy.relay.http2.pipe import Frame, Pipe
from cri_proxy.relay.http2.replies import doubt_push
from cri_proxy.relay.interception import CallEnd, end_of
from cri_proxy.relay.status import Code, RpcError, code_of

#: What may come of a call, and of all together, before it is read: as much as grpc-go's servers hold back for, and a
#: large message.
WINDOW = MAX_MESSAGE_BYTES + (1 << 20)
#: Credit is given back for so much at once.
_CREDIT_BYTES = WINDOW // 4
RUNTIME = "the container runtime"
_OK_FIELDS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_ENABLE_PUSH, _MAX_CONCURRENT_STREAMS, _MAX_HEADER_LIST_SIZE = 0x2, 0x3, 0x6
#: A table of size 0 (RFC 7541, 6.3): nothing of ours is put into it, and no size that the server allows is less (4.2).
_NO_TABLE = b"\x20"
#: Behind these the next connection's streams begin.
_LAST_STREAM = STREAM_MASK


class OwnCall:
    """One call. ``wake`` is called when something has come of it.

    ``is_limited``: a message of more than ``MAX_MESSAGE_BYTES`` ends it; else messages may have any size.
    """

    def __init__(self, block: bytes, message: bytes, wake: Callable[[], None], is_limited: bool) -> None:
        #: The response headers.
        self.head: Optional[Headers] = None
        #: How the call ended: the trailers (without ``head``: all of it, "trailers-only") and -1, or none and the HTTP/2
        #: error of a reset.
        self.end: tuple[Headers, int] = ((), -1)
        #: Whether nothing more comes.
        self.is_over = False
        #: Its number on the connection; 0: nothing of it was sent.
        self.stream = 0
        self.block = block
        self.wake = wake
        self.is_limited = is_limited
        self.hold = ReplyHold()
        self.messages: list[bytes] = []
        #: Of the request, what waits for the server's windows.
        self.unsent = memoryview(write_message(message))
        self.window = 0
        #: What has come and the server has no credit for.
        self.uncredited = 0
        #: An end that the server did not say: its code and sentence, and whether it may have done what was asked.
        self.failure: Optional[tuple[Code, str, bool]] = None

    def take_messages(self) -> list[bytes]:
        """Messages that have come, with their prefixes; ``Caller.credit`` is for when they are used."""
        messages, self.messages = self.messages, []
        return messages

    def read(self, prefixed: bytes) -> Optional[bytes]:
        """A message without its prefix; None: it cannot be read."""
        return self.hold.read(prefixed)

    @property
    def status(self) -> tuple[int, str]:
        """The code and the message that the call ended with."""
        if self.failure is not None:
            return self.failure[:2]
        headers, reset = self.end
        if reset >= 0:
            return code_of_reset(reset), f"the server has reset the call (HTTP/2 error {reset})"
        code, details = status_of(headers)
        return (code_of_http(headers) if code is None else code), details

    def error(self) -> RpcError:
        """The end of a call that has failed as an exception."""
        if self.failure is not None:
            return RpcError(self.failure[0], self.failure[1], in_doubt=self.failure[2])
        number, details = self.status
        headers, reset = self.end
        if reset >= 0:
            in_doubt = reset != Error.REFUSED_STREAM  # that: nothing was done (RFC 9113, 8.7)
        else:
            has_status = status_of(headers)[0] is not None
            in_doubt = not has_status or end_of(number, True) is CallEnd.UNKNOWN
        return RpcError(code_of(number), details, read_metadata(headers), in_doubt)


class Caller:
    """The connection. ``to_runtime`` is emptied by the owner, which writes it. ``peer``: the server, for sentences."""

    def __init__(self, peer: str = RUNTIME) -> None:
        self.to_runtime: list[Buffer] = [
            PREFACE,
            write_settings(
                (_ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW), (_MAX_HEADER_LIST_SIZE, MAX_BLOCK_BYTES)
            ),
            write_window_update(0, WINDOW - DEFAULT_WINDOW),
        ]
        #: The server has said that it speaks HTTP/2.
        self.is_greeted = False
        #: The connection is of no more use: it is to be closed.
        self.is_over = False
        self._peer = peer
        self._takes_calls = True
        self._reader = HeaderReader()
        self._pipe = Pipe(self._handle, [])
        self._calls: dict[int, OwnCall] = {}
        #: Those that wait until fewer are open; those whose request waits for the connection's window.
        self._waiting: deque[OwnCall] = deque()
        self._next_stream = 1
        self._has_table = True
        self._uncredited = 0
        # What the server takes.
        self._window = self._stream_window = DEFAULT_WINDOW
        self._frame_bytes = DEFAULT_FRAME_BYTES
        self._most_calls = STREAM_MASK

    @property
    def takes_calls(self) -> bool:
        """Whether calls can begin here; else they need another connection."""
        return self._takes_calls and self._next_stream + 2 * len(self._waiting) < _LAST_STREAM

    @property
    def is_busy(self) -> bool:
        """Whether calls are open or wait to be."""
        return bool(self._calls or self._waiting)

    # ------------------------------------------------------------------ calls

    def begin(
        self, block: bytes, message: bytes, wake: Callable[[], None], is_limited: bool = False
    ) -> OwnCall:
        """Begin a call while ``takes_calls``: its header block, without references to a table, and its request."""
        call = OwnCall(block, message, wake, is_limited)
        self._waiting.append(call)
        self._open()
        return call

    def cancel(self, call: OwnCall) -> None:
        """End a call that is not over: nothing more of it is sent, and nothing comes."""
        if not call.is_over:
            self._finish(call, (), Error.CANCEL)

    def credit(self, call: OwnCall) -> None:
        """What was taken of a call has been used: the server may send as much again."""
        if call.uncredited > _CREDIT_BYTES and not call.is_over:
            self.to_runtime.append(write_window_update(call.stream, call.uncredited))
            call.uncredited = 0

    def received(self, data: bytes) -> None:
        """Bytes of the server."""
        if self.is_over:
            return
        try:
            self._pipe.read(data)
        except ProtocolError as doubt:
            self.to_runtime.append(write_goaway(0, doubt.code, str(doubt)))
            self.lost(f"{self._peer} cannot be understood: {doubt}")
            return
        if self._uncredited > _CREDIT_BYTES:
            self.to_runtime.append(write_window_update(0, self._uncredited))
            self._uncredited = 0

    def lost(self, why: str = "", code: Code = Code.UNAVAILABLE) -> None:
        """The connection has ended, and every call with it."""
        self.is_over, self._takes_calls = True, False
        self._give_up(0, why or f"{self._peer} has closed the connection", code, True)

    def _give_up(self, last: int, why: str, code: Code, in_doubt: bool) -> None:
        """Fail the calls on streams above ``last``, and those that were not sent."""
        waiting, self._waiting = self._waiting, deque()
        for call in [call for call in self._calls.values() if call.stream > last]:
            self._fail(call, code, why, in_doubt)
        for call in waiting:
            self._fail(call, code, why, False)

    # ------------------------------------------------------------------ sending

    def _open(self) -> None:
        """Begin calls that wait, as many as the server takes."""
        while self._waiting and len(self._calls) < self._most_calls:
            call = self._waiting.popleft()
            call.stream, self._next_stream = self._next_stream, self._next_stream + 2
            call.window = self._stream_window
            self._calls[call.stream] = call
            block, call.block = call.block, b""
            if self._has_table:
                self._has_table = False
                block = _NO_TABLE + block
            self.to_runtime.append(write_headers(call.stream, block, self._frame_bytes, False))
            self._send(call)

    def _send(self, call: OwnCall) -> None:
        """Send what both windows take of a request."""
        size = min(len(call.unsent), call.window, self._window)
        if size > 0:
            part, call.unsent = call.unsent[:size], call.unsent[size:]
            call.window -= size
            self._window -= size
            self.to_runtime.append(write_data(call.stream, part, self._frame_bytes, not call.unsent))

    def _send_all(self) -> None:
        for call in self._calls.values():
            if self._window <= 0:
                return
            if call.unsent:
                self._send(call)

    # ------------------------------------------------------------------ frames

    def _handle(self, frame: Frame) -> bytes:
        kind = frame.kind
        if not self.is_greeted and kind != SETTINGS:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"a frame of kind {kind} before SETTINGS")
        if kind == DATA:
            self._data(frame)
        elif kind == HEADERS:
            # Also those of calls that are over: later ones refer to the table.
            headers, call = self._reader.read(frame.block), self._call_of(frame)
            if call is not None:
                self._headers(call, headers, bool(frame.flags & END_STREAM))
        elif kind == RST_STREAM:
            call = self._call_of(frame)
            if call is not None:
                self._close(call, (), frame.number)
        elif kind == SETTINGS:
            self._settings(frame)
        elif kind == PING and not frame.flags & ACK:
            self.to_runtime.append(write_frame(PING, ACK, 0, frame.payload))
        elif kind == WINDOW_UPDATE:
            self._window_update(frame)
        elif kind == GOAWAY:
            self._goaway(frame.payload)
        elif kind == PUSH_PROMISE:
            doubt_push(frame)
        return b""

    def _call_of(self, frame: Frame) -> Optional[OwnCall]:
        """The call of a frame; None: it is over.

        :raises ProtocolError: it was never begun.
        """
        if frame.stream >= self._next_stream or not frame.stream & 1:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"a frame on stream {frame.stream}, which is not open")
        return self._calls.get(frame.stream)

    def _data(self, frame: Frame) -> None:
        self._uncredited += frame.size
        call = self._call_of(frame)
        if call is None:
            return
        if call.head is None:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"DATA before the headers of stream {call.stream}")
        call.uncredited += frame.size
        call.messages += call.hold.add(unpadded(frame.payload, frame.flags))
        if call.is_limited and call.hold.is_too_large:
            self._fail(call, Code.INTERNAL, f"a message of more than {MAX_MESSAGE_BYTES} bytes", True)
        elif frame.flags & END_STREAM:
            self._fail(call, Code.INTERNAL, "no trailers", True)
        else:
            # What is larger than a window would never become whole.
            if len(call.hold.data) > WINDOW // 2:
                self.credit(call)
            call.wake()

    def _headers(self, call: OwnCall, headers: Headers, is_end: bool) -> None:
        if is_end:
            self._close(call, headers, -1)
        elif call.head is None and value_of(headers, b":status") != b"200":
            self._finish(call, headers, -1)  # not gRPC's, and no messages
        elif call.head is None:
            call.head = headers
            call.hold.encoding = value_of(headers, b"grpc-encoding")
            call.wake()
        else:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"headers in the middle of stream {call.stream}")

    def _settings(self, frame: Frame) -> None:
        if frame.flags & ACK:
            return
        self.is_greeted = True
        for name, value in read_settings(frame.payload):
            if name == INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window = _grown(call.window, value - self._stream_window)
                self._stream_window = value
            elif name == MAX_FRAME_SIZE:
                self._frame_bytes = value
            elif name == _MAX_CONCURRENT_STREAMS:
                self._most_calls = value
        self.to_runtime.append(write_frame(SETTINGS, ACK, 0))
        self._send_all()
        self._open()

    def _window_update(self, frame: Frame) -> None:
        credit = frame.credit
        if not frame.stream:
            self._window = _grown(self._window, credit)
            self._send_all()
            return
        call = self._call_of(frame)
        if call is not None:
            call.window = _grown(call.window, credit)
            self._send(call)

    def _goaway(self, payload: bytes) -> None:
        self._takes_calls = False
        error, why = int.from_bytes(payload[4:8], "big"), f"{self._peer} has ended the connection"
        if error:
            said = payload[8:].decode("ascii", "replace")
            why += f" (HTTP/2 error {error}{': ' if said else ''}{said})"
        self._give_up(int.from_bytes(payload[:4], "big") & STREAM_MASK, why, Code.UNAVAILABLE, False)

    # ------------------------------------------------------------------ ends

    def _fail(self, call: OwnCall, code: Code, details: str, in_doubt: bool) -> None:
        """End a call that the server has not ended in a way that means something."""
        call.failure = (code, details, in_doubt)
        fields = ((b"grpc-status", b"%d" % code), (b"grpc-message", details.encode("ascii", "replace")))
        self._finish(call, fields if call.head is not None else (*_OK_FIELDS, *fields), -1)

    def _finish(self, call: OwnCall, headers: Headers, reset: int) -> None:
        """End a call that the server has not ended."""
        if call.stream and not self.is_over:
            self.to_runtime.append(write_reset(call.stream, Error.CANCEL))
        call.unsent = call.unsent[:0]
        self._close(call, headers, reset)

    def _close(self, call: OwnCall, headers: Headers, reset: int) -> None:
        """A call is over at the server."""
        if call.unsent and reset < 0:  # it has an answer without all of the request
            self.to_runtime.append(write_reset(call.stream, Error.NO_ERROR))
        call.unsent = call.unsent[:0]
        call.is_over, call.end = True, (headers, reset)
        if call.stream:
            self._calls.pop(call.stream, None)
        elif call in self._waiting:
            self._waiting.remove(call)
        call.wake()
        self._open()


def _grown(window: int, credit: int) -> int:
    """A window with more credit, which may be negative (RFC 9113, 6.9.2).

    :raises ProtocolError: that is more than a window can have.
    """
    if window + credit > MAX_WINDOW:
        raise ProtocolError(Error.FLOW_CONTROL_ERROR, f"a window of {window + credit} bytes")
    return window + credit
