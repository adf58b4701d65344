"""Connections written by hand, in the styles of libraries that are not here to be recorded.

Facts from their sources: grpc-go sends no settings unless told to, huffman-codes and indexes its fields, measures
with PINGs of its own (internal/transport: http2_client.go, bdp_estimator.go); grpc's C core, in iSulad among others,
sends a row of settings with one of its own (0xfe03), whole strings without Huffman code, and has arguments for tables,
frames and windows (chttp2_transport.cc, hpack_encoder.cc).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Optional

from hpack import Encoder, NeverIndexedHeaderTuple

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    Error,
    write_frame,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.messages import write_message
from tests.relay.http2.captures import Capture
from tests.relay.http2.hand import CONFIRMED, CREATE, VERSION, ping

EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE, TRUE_BINARY = 0x2, 0x3, 0x6, 0xFE03
Setting = tuple[int, int]


@dataclass(frozen=True)
class Style:
    """How both ends write. ``credit``: of the connection, behind the settings. ``table``: of the writers of blocks."""

    agent: str
    settings: tuple[Setting, ...] = ()
    runtime_settings: tuple[Setting, ...] = ()
    credit: int = 0
    huffman: bool = True
    is_secretive: bool = False
    table: Optional[int] = None
    probe: bytes = b""
    prefix_apart: bool = False
    end_apart: bool = False
    pad: Optional[int] = None
    block_bytes: int = DEFAULT_FRAME_BYTES
    has_priority: bool = False


CORE = ((ENABLE_PUSH, 0), (MAX_CONCURRENT_STREAMS, 0), (INITIAL_WINDOW_SIZE, 4_194_304))
CORE += ((MAX_FRAME_SIZE, 4_194_304), (MAX_HEADER_LIST_SIZE, 8_192), (TRUE_BINARY, 1))
GO_PROBE, CORE_PROBE = bytes([2, 4, 16, 16, 9, 14, 7, 7]), bytes(8)

STYLES = {
    "grpc-go": Style("grpc-go/1.66.0", runtime_settings=((MAX_FRAME_SIZE, 16_384),), probe=GO_PROBE),
    "grpc-go with windows of 1 MiB": Style(
        "grpc-go/1.58.3",
        settings=((INITIAL_WINDOW_SIZE, 1 << 20),),
        runtime_settings=((MAX_FRAME_SIZE, 16_384), (INITIAL_WINDOW_SIZE, 1 << 20)),
        credit=(1 << 20) - 65_535,
        probe=GO_PROBE,
        end_apart=True,
    ),
    "grpc-go of old": Style("grpc-go/1.6.0-dev", prefix_apart=True, end_apart=True),
    "grpc-c++": Style(
        "grpc-c++/1.41.1 grpc-c/19.0.0 (linux; chttp2)",
        CORE,
        CORE[2:],
        credit=4_128_769,
        huffman=False,
        probe=CORE_PROBE,
    ),
    "grpc-c++ with tables of 64 KiB": Style(
        "grpc-c++/1.60.0 grpc-c/37.0.0 (linux; chttp2)",
        (*CORE, (HEADER_TABLE_SIZE, 65_536)),
        (*CORE[2:], (HEADER_TABLE_SIZE, 65_536)),
        huffman=False,
        table=65_536,
        prefix_apart=True,
    ),
    "grpc-c++ without tables": Style(
        "iSulad/2.1 grpc-c/37.0.0 (linux; chttp2)",
        (*CORE, (HEADER_TABLE_SIZE, 0)),
        (*CORE[2:], (HEADER_TABLE_SIZE, 0)),
        huffman=False,
        is_secretive=True,
        table=0,
    ),
    "all that is allowed": Style(
        "nobody/1", pad=200, block_bytes=20, has_priority=True, end_apart=True, prefix_apart=True, table=100
    ),
}


class _Writer:
    """One side of a connection."""

    def __init__(self, style: Style, settings: tuple[Setting, ...]) -> None:
        self._style = style
        self._encoder = Encoder()
        self.hello = write_settings(*settings)
        if style.credit:
            self.hello += write_window_update(0, style.credit)

    def confirm(self) -> bytes:
        """From here on blocks are written with the style's table, which the next announces."""
        if self._style.table is not None:
            self._encoder.header_table_size = self._style.table
        return CONFIRMED

    def block(self, stream: int, *fields: tuple[str, str], end: bool = False) -> bytes:
        """A header block, in as many frames as the style wants."""
        style = self._style
        told = [NeverIndexedHeaderTuple(*field) for field in fields] if style.is_secretive else list(fields)
        block = self._encoder.encode(told, huffman=style.huffman)
        parts = [block[at : at + style.block_bytes] for at in range(0, len(block), style.block_bytes)]
        first, flags = parts[0], END_STREAM if end else 0
        if style.has_priority:
            first, flags = b"\0\0\0\0\x0f" + first, flags | HAS_PRIORITY
        if style.pad is not None:
            first, flags = bytes([style.pad]) + first + bytes(style.pad), flags | PADDED
        kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
        all_flags = [flags] + [0] * (len(parts) - 1)
        all_flags[-1] |= END_HEADERS
        frames = map(write_frame, kinds, all_flags, [stream] * len(parts), [first, *parts[1:]])
        return (write_frame(PRIORITY, 0, stream, b"\0\0\0\0\x10") if style.has_priority else b"") + b"".join(
            frames
        )

    def messages(self, stream: int, *messages: bytes, end: bool = False) -> bytes:
        """DATA; the end is in the last frame, or in one of its own."""
        style, pieces = self._style, []
        for message in messages:
            whole = write_message(message)
            first = 5 if style.prefix_apart else DEFAULT_FRAME_BYTES - 300
            pieces += [whole[:first]]
            pieces += [whole[at : at + 16_000] for at in range(first, len(whole), 16_000)]
        if style.end_apart:
            pieces.append(b"")
        last = len(pieces) - 1 if end else -1
        return b"".join(self._data(stream, piece, number == last) for number, piece in enumerate(pieces))

    def _data(self, stream: int, piece: bytes, is_last: bool) -> bytes:
        flags = END_STREAM if is_last else 0
        if self._style.pad is None:
            return write_frame(DATA, flags, stream, piece)
        padded = bytes([self._style.pad]) + piece + bytes(self._style.pad)
        return write_frame(DATA, flags | PADDED, stream, padded)


def _talk(style: Style) -> Iterator[tuple[bool, bytes]]:
    """The bytes of each side in turn (True: the client's).

    A create, a reply in two messages, an error, a stream that is cancelled, the first again.
    """
    client, runtime = _Writer(style, style.settings), _Writer(style, style.runtime_settings)

    def request(stream: int, method: str, message: bytes, **more: str) -> bytes:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
        fields += [("content-type", "application/grpc"), ("user-agent", style.agent), ("te", "trailers")]
        fields += [(name.replace("_", "-"), value) for name, value in more.items()]
        return client.block(stream, *fields) + client.messages(stream, message, end=True)

    begins = ((":status", "200"), ("content-type", "application/grpc"))
    yield True, PREFACE + client.hello
    yield False, runtime.hello + runtime.confirm()
    yield True, client.confirm() + request(1, CREATE, b"c" * 20_000, grpc_timeout="119999m")
    if style.probe:
        yield False, ping(style.probe) + write_window_update(1, 20_005) + write_window_update(0, 20_005)
        yield True, ping(style.probe, is_answer=True)
    yield False, runtime.block(1, *begins) + runtime.messages(1, b"the id", b"and more" * 900)
    yield False, runtime.block(1, ("grpc-status", "0"), ("grpc-message", ""), end=True)
    yield True, request(3, VERSION, b"", traceparent="00-0af7651916cd43dd8448eb211c80319c-01")
    error = (("grpc-status", "5"), ("grpc-message", "no such container: gr%C3%B6%C3%9Fe"))
    yield False, runtime.block(3, *begins, *error, end=True)
    yield True, request(5, EVENTS, b"\x08\x01", grpc_accept_encoding="gzip,deflate")
    yield False, runtime.block(5, *begins) + runtime.messages(5, b"event", b"another")
    yield True, write_frame(RST_STREAM, 0, 5, int(Error.CANCEL).to_bytes(4, "big"))
    yield True, request(7, CREATE, b"once more", grpc_timeout="119998m")
    yield False, runtime.messages(5, b"late") + runtime.block(7, *begins) + runtime.messages(7, b"id 2")
    yield False, runtime.block(7, ("grpc-status", "0"), ("grpc-message", ""), end=True)


def styled() -> Iterator[Capture]:
    """As if they had been recorded."""
    for name, style in STYLES.items():
        turns = groupby(_talk(style), lambda piece: piece[0])
        yield Capture(f"by hand: {name}", [(who, b"".join(data for _, data in turn)) for who, turn in turns])
