"""One direction of a relayed connection: bytes in, the same bytes out, but for the frames that are taken out.

Only whole frames are passed on, and header blocks in one piece: between two passes a frame of ours can be put in
anywhere.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    STREAM_MASK,
    Buffer,
    Error,
    ProtocolError,
    check,
    header_block,
)

#: A block that is nothing but its frame's payload has only the first of these flags.
_WHOLE = END_HEADERS | PADDED | HAS_PRIORITY


class Frame(NamedTuple):
    """A whole frame in ``data[at:end]``; of a HEADERS frame all of its block. Valid while it is handled.

    ``size``: the length of the payload, which is what flow control counts.
    """

    kind: int
    flags: int
    stream: int
    data: bytes
    at: int
    end: int
    size: int
    block: bytes

    @property
    def payload(self) -> bytes:
        return self.data[self.at + HEAD_BYTES : self.end]


#: What comes in a frame's place; None: the frame itself.
Handler = Callable[[Frame], Optional[bytes]]
#: Whether a frame of this kind, these flags, on this stream, with so much payload passes and is not looked into.
Glance = Callable[[int, int, int, int], bool]


def _never(kind: int, flags: int, stream: int, size: int) -> bool:
    return False


class Paused(Exception):
    """The frame at hand waits, and all that follow; it is handled again after ``Pipe.resume``."""


class Pipe:
    """``handle`` is asked about each frame that ``passes`` says no of. ``out`` takes what is passed on."""

    def __init__(self, handle: Handler, out: list[Buffer], passes: Glance = _never) -> None:
        #: Larger frames are not what the receiver has allowed.
        self.largest_frame = DEFAULT_FRAME_BYTES
        self.is_paused = False
        #: What was done since it was last asked for: frames, and the fields of header blocks.
        self.work = 0
        self._handle = handle
        self._passes = passes
        self._out = out
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
        if self._start < frame.at:
            self._pass(frame.data, frame.at)
            self._start = frame.at

    def _run(self, data: bytes) -> None:
        at = self._start = 0
        size, handle, passes = len(data), self._handle, self._passes
        wanted = HEAD_BYTES
        while size - at >= HEAD_BYTES:
            length_kind, flags, stream = HEAD.unpack_from(data, at)
            kind, length = length_kind & 0xFF, length_kind >> 8
            if length > self.largest_frame:
                raise ProtocolError(
                    Error.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {self.largest_frame}"
                )
            end = at + HEAD_BYTES + length
            if end > size:
                wanted = end - at
                break
            stream &= STREAM_MASK
            self.work += 1
            # Most frames are DATA, and HEADERS in one piece; these come first, and at no cost.
            if not stream or kind > HEADERS:
                check(kind, flags, stream, length)
            if passes(kind, flags, stream, length):
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
            try:
                instead = handle(Frame(kind, flags, stream, data, at, end, end - at - HEAD_BYTES, block))
            except Paused:
                self.is_paused = True
                break
            if instead is not None:
                self._pass(data, at)
                if instead:
                    self._out.append(instead)
                self._start = end
            at = end
        self._pass(data, at)
        self._keep(data[at:] if at else data, wanted)

    def _pass(self, data: bytes, end: int) -> None:
        """Pass on what came before ``end`` and was not passed on."""
        if self._start < end:
            whole = self._start == 0 and end == len(data)
            self._out.append(data if whole else memoryview(data)[self._start : end])

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._pieces = [rest] if rest else []
        self.unhandled_bytes, self._wanted = len(rest), wanted
