"""One call of ours, on a connection to the runtime that has no other: its messages as they come, in their own bytes."""

from __future__ import annotations

from typing import Optional

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    Buffer,
    ProtocolError,
    unpadded,
    write_data,
    write_frame,
    write_headers,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.headers import HeaderReader, Headers, status_of, value_of, write_fields
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES, ReplyHold, write_message
from cri_proxy.relay.http2.pipe import Frame, Pipe
from cri_proxy.relay.interception import INTERNAL, UNAVAILABLE, UNKNOWN

#: What the runtime may send before it is read: as much as grpc-go's servers hold back for, and a large message.
WINDOW = MAX_MESSAGE_BYTES + (1 << 20)
RUNTIME_GONE = "the container runtime has closed the connection"
_CALL = 1
_OK_FIELDS = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class Caller:
    """Messages come out of ``take_messages``; ``to_runtime`` is emptied by the owner, which writes it."""

    def __init__(self, headers: Headers, message: bytes) -> None:
        #: The response headers.
        self.head: Optional[Headers] = None
        #: How the call ended: the trailers (without ``head``: all of it, "trailers-only") and -1, or none and the HTTP/2
        #: error of a reset.
        self.end: tuple[Headers, int] = ((), -1)
        self._is_over = False
        self._reader = HeaderReader()
        self._hold = ReplyHold()
        self._messages: list[bytes] = []
        self._uncredited = 0
        self._pipe = Pipe(self._handle, [])
        self.to_runtime: list[Buffer] = [
            PREFACE,
            write_settings((INITIAL_WINDOW_SIZE, WINDOW)),
            write_window_update(0, WINDOW - DEFAULT_WINDOW),
            write_headers(_CALL, write_fields(headers), DEFAULT_FRAME_BYTES, False),
            write_data(_CALL, write_message(message), DEFAULT_FRAME_BYTES, True),
        ]

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._is_over

    def from_runtime(self, data: bytes) -> None:
        """Bytes of the runtime."""
        if self._is_over:
            return
        try:
            self._pipe.read(data)
        except ProtocolError as doubt:
            self._fail(INTERNAL, f"the container runtime's events cannot be read: {doubt}")

    def runtime_lost(self) -> None:
        """The connection has ended."""
        self._fail(UNAVAILABLE, RUNTIME_GONE)

    def take_messages(self) -> list[bytes]:
        """Messages that have come, with their prefixes; ``credit`` is for when they are passed on."""
        messages, self._messages = self._messages, []
        return messages

    def read(self, prefixed: bytes) -> Optional[bytes]:
        """A message without its prefix; None: it cannot be read."""
        return self._hold.read(prefixed)

    def credit(self) -> None:
        """What has come was passed on: the runtime may send as much again."""
        if self._uncredited > WINDOW // 4 and not self._is_over:
            for stream in (0, _CALL):
                self.to_runtime.append(write_window_update(stream, self._uncredited))
            self._uncredited = 0

    @property
    def status(self) -> tuple[int, str]:
        """The code and the message that the call ended with."""
        headers, reset = self.end
        if reset >= 0:
            return INTERNAL, f"the runtime has reset the call (HTTP/2 error {reset})"
        code, details = status_of(headers)
        return (UNKNOWN if code is None else code), details

    # ------------------------------------------------------------------ frames

    def _handle(self, frame: Frame) -> bytes:
        if frame.kind == DATA:
            self._uncredited += frame.size
            self._messages += self._hold.add(unpadded(frame.payload, frame.flags))
            if self._hold.is_too_large:
                self._fail(INTERNAL, f"an event of more than {MAX_MESSAGE_BYTES} bytes")
            elif frame.flags & END_STREAM:
                self._fail(INTERNAL, "no trailers")
        elif frame.kind == HEADERS:
            self._headers(self._reader.read(frame.block), bool(frame.flags & END_STREAM))
        elif frame.kind == RST_STREAM:
            self._finish((), int.from_bytes(frame.payload, "big"))
        elif frame.kind == GOAWAY:
            if int.from_bytes(frame.payload[:4], "big") & STREAM_MASK < _CALL:
                self._fail(UNAVAILABLE, "the runtime has ended the connection")
        elif frame.kind in (SETTINGS, PING) and not frame.flags & ACK:
            self.to_runtime.append(
                write_frame(frame.kind, ACK, 0, frame.payload if frame.kind == PING else b"")
            )
        return b""

    def _headers(self, headers: Headers, is_end: bool) -> None:
        if is_end:
            self._finish(headers)
        else:
            self.head = headers
            self._hold.encoding = value_of(headers, b"grpc-encoding")

    def _fail(self, code: int, details: str) -> None:
        fields = ((b"grpc-status", b"%d" % code), (b"grpc-message", details.encode("ascii", "replace")))
        self._finish(fields if self.head is not None else (*_OK_FIELDS, *fields))

    def _finish(self, headers: Headers, reset: int = -1) -> None:
        if not self._is_over:
            self._is_over = True
            self.end = (headers, reset)
