"""HTTP/2 frames (RFC 9113), as far as a relay of a connection's bytes must know them.

That is: where a frame of its own may go between them, and which calls are open.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from cri_proxy.relay.http2.frames import (
    ACK,
    ANY_STREAM,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    Error,
    write_frame,
    write_goaway,
)

PREFACE_BYTES = len(PREFACE)
#: What comes back when a client has read ``going_away``; no other ping looks so.
FAREWELL = b"cri-bye!"


class FrameSeen(NamedTuple):
    """One frame that has gone by. ``payload``: of a PING only."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def going_away() -> bytes:
    """A GOAWAY that asks the client for no new calls here and ends none, and a PING.

    Calls it has begun before it reads this are served yet; when the PING's answer has come, there are no more.
    Without an id that ends calls: a server's own, which may follow, must not be larger (RFC 9113, 6.8).
    """
    return write_goaway(ANY_STREAM, Error.NO_ERROR) + write_frame(PING, 0, 0, FAREWELL)


class FrameReader:
    """Reads along in one direction of a connection. ``skip``: bytes before the first frame."""

    def __init__(self, skip: int = 0) -> None:
        #: How much of the last piece there was at the end of a frame after which another one may be put in.
        #: None: there was no such place.
        self.gap: Optional[int] = None
        #: Whether the last frame is one of a header block that goes on; None: there was no frame yet.
        self._is_open: Optional[bool] = None
        self._left = skip
        self._head = b""
        self._frame: Optional[tuple[int, int, int]] = None
        self._payload = b""

    def read(self, data: bytes) -> list[FrameSeen]:
        """The frames that end in the next piece of the stream."""
        frames: list[FrameSeen] = []
        self.gap = None
        at = min(self._left, len(data)) if self._frame is None else 0
        if self._frame is None:
            self._left -= at
        while at < len(data) or (self._frame is not None and self._left == 0):
            if self._frame is None:
                at = self._read_head(data, at)
                continue
            step = data[at : at + self._left] if self._frame[0] == PING else b""
            self._payload += step
            taken = min(self._left, len(data) - at)
            at, self._left = at + taken, self._left - taken
            if self._left:
                break
            frame = FrameSeen(*self._frame, self._payload)
            self._frame, self._payload = None, b""
            frames.append(frame)
            # A header block is in one piece: nothing may go between its frames (RFC 9113, 4.3).
            is_open = frame.kind in (HEADERS, CONTINUATION) and not frame.flags & END_HEADERS
            self._is_open = is_open
            if not is_open:
                self.gap = at
        return frames

    @property
    def is_between(self) -> bool:
        """Whether a frame may be put in behind the last piece. Never before the other side's first."""
        return self._is_open is False and self._frame is None and not self._head

    def _read_head(self, data: bytes, at: int) -> int:
        taken = data[at : at + HEAD_BYTES - len(self._head)]
        self._head += taken
        if len(self._head) == HEAD_BYTES:
            length_kind, flags, stream = HEAD.unpack(self._head)
            self._head = b""
            self._left = length_kind >> 8
            self._frame = (length_kind & 0xFF, flags, stream & STREAM_MASK)
        return at + len(taken)


class OpenCalls:
    """The calls of one connection that a client has begun and that have not ended."""

    def __init__(self) -> None:
        #: Whether the client has read ``going_away``.
        self.is_told = False
        self._open: set[int] = set()
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def from_client(self, frame: FrameSeen) -> None:
        """A frame has gone to the server."""
        if frame.kind == HEADERS and frame.stream > self._last:
            self._last = frame.stream
            self._open.add(frame.stream)
        elif frame.kind == RST_STREAM:
            self._open.discard(frame.stream)
        elif frame.kind == PING and frame.flags & ACK and frame.payload == FAREWELL:
            self.is_told = True

    def from_server(self, frame: FrameSeen) -> None:
        """A frame has gone to the client."""
        has_ended = frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM
        if has_ended or frame.kind == RST_STREAM:
            self._open.discard(frame.stream)


class FirstAnswer:
    """Takes a client's answer to a SETTINGS frame, the first that there is, out of what it sends.

    For connections that were greeted (``greeting``): a server is not answered what it has not said.
    """

    def __init__(self) -> None:
        self._is_out = False
        self._left = PREFACE_BYTES
        self._head = b""

    def take_out(self, data: bytes) -> bytes:
        """What of the next piece goes on to the server; the beginning of a frame's head is kept until it is whole."""
        if self._is_out:
            return data
        passed: list[bytes] = []
        at = 0
        while at < len(data):
            taken = data[at : at + (self._left or HEAD_BYTES - len(self._head))]
            at += len(taken)
            if self._left:
                self._left -= len(taken)
                passed.append(taken)
                continue
            self._head += taken
            if len(self._head) == HEAD_BYTES:
                head, self._head = self._head, b""
                length_kind, flags, _stream = HEAD.unpack(head)
                if length_kind & 0xFF == SETTINGS and flags & ACK:
                    self._is_out = True
                    passed.append(data[at:])
                    break
                passed.append(head)
                self._left = length_kind >> 8
        return b"".join(passed)
