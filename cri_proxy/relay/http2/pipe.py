"""One direction of a relayed connection: bytes in, the same bytes out, but for the frames that are taken out.

Here a frame is read, its window is counted, and it passes. Only whole frames are passed on, and header blocks in one
piece: between two passes a frame of ours can be put in anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable, Optional

from cri_proxy.relay.http2.flow import Outlet
from cri_proxy.relay.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    Buffer,
    Error,
    ProtocolError,
    header_block,
)

#: A block that is nothing but its frame's payload has only the first of these flags.
_WHOLE = END_HEADERS | PADDED | HAS_PRIORITY
#: Kinds whose payload has one size (6.3, 6.4, 6.7, 6.9).
_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
#: Kinds that are about a stream, and kinds that are about the connection (6).
_OF_STREAMS = frozenset([DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION])
_OF_CONNECTIONS = frozenset([SETTINGS, PING, GOAWAY])


class Frame:
    """A whole frame in ``data[at:end]``; of a HEADERS frame all of its block. Valid while it is handled.

    ``size``: the length of the payload, which is what flow control counts. ``is_again``: it was handled, and has waited.
    """

    __slots__ = ("at", "block", "data", "end", "flags", "is_again", "kind", "size", "stream")

    def __init__(self) -> None:
        self.kind = self.flags = self.stream = self.at = self.end = self.size = 0
        self.data = self.block = b""
        self.is_again = False

    @property
    def payload(self) -> bytes:
        return self.data[self.at + HEAD_BYTES : self.end]

    @property
    def number(self) -> int:
        """The payload's first 32 bits: an error's code, or behind a bit without meaning a stream or a window."""
        return int.from_bytes(self.data[self.at + HEAD_BYTES : self.at + HEAD_BYTES + 4], "big")

    @property
    def credit(self) -> int:
        """What a WINDOW_UPDATE gives.

        :raises ProtocolError: nothing (6.9).
        """
        credit = int.from_bytes(self.data[self.at + HEAD_BYTES : self.end], "big") & STREAM_MASK
        if not credit:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"WINDOW_UPDATE of 0 on stream {self.stream}")
        return credit


#: What comes in a frame's place; None: the frame itself.
Handler = Callable[[Frame], Optional[bytes]]


class Paused(Exception):
    """The frame at hand waits, and all that follow; it is handled again after ``Pipe.resume``."""


class Pipe:
    """``handlers``: of the kinds that they are for; ``handle``: of all others. ``out`` takes what is passed on.

    ``outlet``: counts the windows of what passes; without one nothing passes unhandled. With one, DATA and credit of
    streams that are not in ``watched`` are not handled, which most frames are; DATA that ends its stream is.
    """

    def __init__(
        self,
        handle: Handler,
        out: list[Buffer],
        handlers: Optional[Mapping[int, Handler]] = None,
        outlet: Optional[Outlet] = None,
        watched: Optional[set[int]] = None,
    ) -> None:
        #: Larger frames are not what the receiver has allowed; with an outlet, that knows.
        self.largest_frame = DEFAULT_FRAME_BYTES
        self.is_paused = False
        #: HEADERS or DATA have come; for the owner to take back.
        self.has_content = False
        #: What was done since it was last asked for: frames, and the fields of header blocks.
        self.work = 0
        self._handle = handle
        self._handlers = dict(handlers or {})
        self._out = out
        self._outlet = outlet
        self._watched: set[int] = set() if watched is None else watched
        self._frame = Frame()
        #: The frame at the front has waited.
        self._has_waited = False
        #: What came and was not handled, and how many bytes of it are needed for anything to happen.
        self._pieces: list[bytes] = []
        self.unhandled_bytes = 0
        self._wanted = HEAD_BYTES
        #: Where in the bytes at hand those begin that pass and were not passed on yet.
        self._start = 0

    def read(self, data: bytes) -> None:
        """The next bytes.

        :raises ProtocolError: they are not what HTTP/2 allows.
        """
        at = 0
        while self.unhandled_bytes and not self.is_paused:
            # Only what is not whole is put together: what is behind it is not copied.
            piece = data[at : at + self._wanted - self.unhandled_bytes]
            at += len(piece)
            self._pieces.append(piece)
            self.unhandled_bytes += len(piece)
            if self.unhandled_bytes < self._wanted:
                return
            self._run(b"".join(self._pieces))
        # mypyc's slice of all is a copy.
        rest = data[at:] if at else data
        if rest and self.is_paused:
            self._pieces.append(rest)
            self.unhandled_bytes += len(rest)
        elif rest:
            self._run(rest)

    def resume(self) -> None:
        """Go on with the frame that waited."""
        self.is_paused = False
        if self.unhandled_bytes >= self._wanted:
            self._run(b"".join(self._pieces))

    def flush(self, frame: Frame) -> None:
        """Pass on what came before the frame at hand, so that something can be put in."""
        self._pass(frame.data, frame.at)
        self._start = max(self._start, frame.at)

    def _run(self, data: bytes) -> None:
        at = self._start = 0
        size, frame, outlet, watched = len(data), self._frame, self._outlet, self._watched
        wanted, is_again = HEAD_BYTES, self._has_waited
        self._has_waited = False
        while size - at >= HEAD_BYTES:
            length_kind, flags, stream = HEAD.unpack_from(data, at)
            kind, length = length_kind & 0xFF, length_kind >> 8
            largest = self.largest_frame if outlet is None else outlet.largest_frame
            if length > largest:
                raise ProtocolError(Error.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {largest}")
            end = at + HEAD_BYTES + length
            if end > size:
                wanted = end - at
                break
            stream &= STREAM_MASK
            self.work += 1
            if kind <= HEADERS:
                self.has_content = True
            # Most frames are DATA, and HEADERS in one piece; these come first, and at no cost.
            if not stream or kind > HEADERS:
                check(kind, flags, stream, length)
            # A frame that has waited is handled to its end, also if its stream was forgotten meanwhile.
            if stream and outlet is not None and not is_again and stream not in watched:
                passes = kind == WINDOW_UPDATE
                if kind == DATA and length and not flags & END_STREAM:
                    passes = outlet.passes(stream, length)
                if passes:
                    at = end
                    continue
            block = b""
            if kind == HEADERS and flags & _WHOLE == END_HEADERS:
                block = data[at + HEAD_BYTES : end]
            elif kind == HEADERS:
                found = header_block(data, at)
                if isinstance(found, int):
                    wanted = found
                    break
                block, end = found
            elif kind == CONTINUATION:
                raise ProtocolError(Error.PROTOCOL_ERROR, f"CONTINUATION on stream {stream} without HEADERS")
            frame.kind, frame.flags, frame.stream, frame.block = kind, flags, stream, block
            frame.data, frame.at, frame.end, frame.size = data, at, end, end - at - HEAD_BYTES
            frame.is_again, is_again = is_again, False
            try:
                instead = self._handlers.get(kind, self._handle)(frame)
            except Paused:
                self.is_paused = self._has_waited = True
                break
            if instead is not None:
                self._pass(data, at)
                if instead:
                    self._out.append(instead)
                self._start = end
            at = end
        frame.data = frame.block = b""
        self._pass(data, at)
        rest = data[at:] if at else data
        self._pieces = [rest] if rest else []
        self.unhandled_bytes, self._wanted = len(rest), wanted

    def _pass(self, data: bytes, end: int) -> None:
        """Pass on what came before ``end`` and was not passed on."""
        if self._start < end:
            whole = self._start == 0 and end == len(data)
            self._out.append(data if whole else memoryview(data)[self._start : end])


def check(kind: int, flags: int, stream: int, length: int) -> None:
    """What can be said of a frame by its head.

    :raises ProtocolError: it is none that RFC 9113 allows.
    """
    if kind in _OF_STREAMS:
        if not stream:
            raise ProtocolError(Error.PROTOCOL_ERROR, f"a frame of kind {kind} on stream 0")
    elif kind in _OF_CONNECTIONS and stream:
        raise ProtocolError(
            Error.PROTOCOL_ERROR, f"a frame of kind {kind} on stream {stream}, expected stream 0"
        )
    if kind in _SIZES and length != _SIZES[kind]:
        raise ProtocolError(
            Error.FRAME_SIZE_ERROR, f"a frame of kind {kind} of {length} bytes, expected {_SIZES[kind]}"
        )
    if kind == SETTINGS and (length % 6 or (flags & ACK and length)):
        raise ProtocolError(Error.FRAME_SIZE_ERROR, f"SETTINGS of {length} bytes")
    if kind == GOAWAY and length < 8:
        raise ProtocolError(Error.FRAME_SIZE_ERROR, f"GOAWAY of {length} bytes, expected at least 8")
