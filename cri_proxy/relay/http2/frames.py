"""HTTP/2 frames as bytes (RFC 9113, sections 4 and 6): how long they are, what is in them, how they are written.

Nothing here knows a connection's state. What a frame must not be by itself is a ``ProtocolError``: what relays a
connection ends it then, and never passes on something half understood.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, Union

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

#: What a client sends before its first frame (3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
#: Length and kind, flags, stream: the head of a frame (4.1).
HEAD = struct.Struct(">IBI")
STREAM_MASK = 0x7FFFFFFF
#: "No last stream yet": of all ids the largest.
ANY_STREAM = 0x7FFFFFFF
#: What every receiver takes until it says otherwise (6.5.2).
DEFAULT_FRAME_BYTES = 16_384
DEFAULT_WINDOW = 65_535
#: What a window can have (6.9.1).
MAX_WINDOW = 0x7FFFFFFF
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 0x1, 0x4, 0x5
#: A header block may be in many frames. gRPC servers refuse metadata of a few KiB; ours takes 1 MiB, as they can be told.
MAX_BLOCK_BYTES = 1 << 20
#: No client needs more than 64 of the smallest allowed; each costs a look at all that came before it.
MAX_BLOCK_FRAMES = 128

Buffer = Union[bytes, memoryview]


class Error(IntEnum):
    """Error codes (7), those that are used here."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ProtocolError(Exception):
    """A frame that cannot be passed on with a good conscience; the connection is to be ended with ``code``."""

    def __init__(self, code: Error, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Block(NamedTuple):
    """A whole header block, from one HEADERS and its CONTINUATION frames; ``end`` is behind the last of them."""

    block: bytes
    end: int


# ---------------------------------------------------------------------- reading


def unpadded(payload: Buffer, flags: int) -> Buffer:
    """The payload of a DATA or HEADERS frame without its padding (6.1).

    :raises ProtocolError: there is more padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Error.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def header_block(data: bytes, at: int) -> Union[Block, int]:
    """The block that begins with the HEADERS frame at ``at``; or how many bytes are needed from there to know more.

    :raises ProtocolError: another frame is in between, or the block has no end.
    """
    length_kind, flags, raw_stream = HEAD.unpack_from(data, at)
    end: int = at + HEAD_BYTES + (length_kind >> 8)
    if end > len(data):
        return end - at
    first = unpadded(data[at + HEAD_BYTES : end], flags)
    if flags & HAS_PRIORITY:
        if len(first) < 5:
            raise ProtocolError(Error.FRAME_SIZE_ERROR, "HEADERS too short for the priority they announce")
        first = first[5:]
    if flags & END_HEADERS:
        return Block(bytes(first), end)
    parts = [bytes(first)]
    stream = raw_stream & STREAM_MASK
    while not flags & END_HEADERS:
        if len(data) - end < HEAD_BYTES:
            return end + HEAD_BYTES - at
        length_kind, flags, other = HEAD.unpack_from(data, end)
        if length_kind & 0xFF != CONTINUATION or other & STREAM_MASK != stream:
            raise ProtocolError(
                Error.PROTOCOL_ERROR, f"another frame inside the header block of stream {stream}"
            )
        begin, end = end + HEAD_BYTES, end + HEAD_BYTES + (length_kind >> 8)
        if end - at > MAX_BLOCK_BYTES or len(parts) == MAX_BLOCK_FRAMES:
            raise ProtocolError(
                Error.ENHANCE_YOUR_CALM,
                f"a header block of more than {MAX_BLOCK_BYTES} bytes, or {MAX_BLOCK_FRAMES} frames",
            )
        if end > len(data):
            return end - at
        parts.append(data[begin:end])
    return Block(b"".join(parts), end)


def read_settings(payload: Buffer) -> list[tuple[int, int]]:
    """The settings of a SETTINGS frame, in their order.

    :raises ProtocolError: a value that may not be (6.5.2).
    """
    found = [
        (int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big"))
        for at in range(0, len(payload), 6)
    ]
    for name, value in found:
        if name == INITIAL_WINDOW_SIZE and value > STREAM_MASK:
            raise ProtocolError(
                Error.FLOW_CONTROL_ERROR, f"an initial window of {value}, expected at most {STREAM_MASK}"
            )
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value < 1 << 24:
            raise ProtocolError(
                Error.PROTOCOL_ERROR, f"a maximum frame size of {value}, expected 16384 to 16777215"
            )
    return found


# ---------------------------------------------------------------------- writing


def write_frame(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def write_data(stream: int, payload: Buffer, frame_bytes: int, end_stream: bool) -> bytes:
    """DATA frames of at most ``frame_bytes`` each; one, if empty, for an empty payload."""
    if len(payload) <= frame_bytes:
        return write_frame(DATA, END_STREAM if end_stream else 0, stream, payload)
    view = memoryview(payload)
    parts = [view[at : at + frame_bytes] for at in range(0, len(view), frame_bytes)]
    frames = [write_frame(DATA, 0, stream, part) for part in parts[:-1]]
    frames.append(write_frame(DATA, END_STREAM if end_stream else 0, stream, parts[-1]))
    return b"".join(frames)


def write_headers(stream: int, block: bytes, frame_bytes: int, end_stream: bool) -> bytes:
    """HEADERS, and CONTINUATION for what does not fit into a frame."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= frame_bytes:
        return write_frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[at : at + frame_bytes] for at in range(0, len(block), frame_bytes)]
    frames = [write_frame(HEADERS, flags, stream, parts[0])]
    frames += [write_frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join([*frames, write_frame(CONTINUATION, END_HEADERS, stream, parts[-1])])


def write_settings(*settings: tuple[int, int]) -> bytes:
    """SETTINGS; without any, what a connection has to begin with all the same."""
    return write_frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))


def write_window_update(stream: int, credit: int) -> bytes:
    """WINDOW_UPDATE; ``credit`` is at least 1 and less than 2^31."""
    return write_frame(WINDOW_UPDATE, 0, stream, credit.to_bytes(4, "big"))


def write_reset(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return write_frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def write_goaway(last_stream: int, code: Error, why: str = "") -> bytes:
    """GOAWAY; ``why`` is for a debugger of the other side."""
    return write_frame(
        GOAWAY, 0, 0, struct.pack(">II", last_stream, int(code)) + why.encode(errors="replace")[:200]
    )
