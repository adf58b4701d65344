"""Frames written by hand, in the few forms that the tests speak of, and read again."""

from __future__ import annotations

from typing import NamedTuple

from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    write_frame,
    write_settings,
)
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.relay import RelayedConnection

CREATE = "/runtime.v1.RuntimeService/CreateContainer"
VERSION = "/runtime.v1.RuntimeService/Version"


def path(method: str) -> bytes:
    """``:path`` as a literal without indexing: nothing of it goes into a table."""
    return b"\x04" + bytes([len(method)]) + method.encode()


#: POST, http and the path.
BLOCK, OTHER_BLOCK = b"\x83\x86" + path(CREATE), b"\x83\x86" + path(VERSION)
HOLDS = write_message(b"create")
CONFIRMED = write_frame(SETTINGS, ACK, 0)


def headers(stream: int, block: bytes = BLOCK, end: bool = False) -> bytes:
    """HEADERS in one frame."""
    return write_frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    """DATA in one frame."""
    return write_frame(DATA, END_STREAM if end else 0, stream, payload)


def ping(payload: bytes, is_answer: bool = False) -> bytes:
    """PING, or its answer."""
    return write_frame(PING, ACK if is_answer else 0, 0, payload)


def goaway(last: int) -> bytes:
    """GOAWAY without an error."""
    return write_frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4))


class Written(NamedTuple):
    """A frame that was written."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def written(data: bytes) -> list[Written]:
    """The frames, all whole; behind a preface if there is one."""
    at = len(PREFACE) if data.startswith(PREFACE) else 0
    found = []
    while at < len(data):
        length_kind, flags, stream = HEAD.unpack_from(data, at)
        end = at + HEAD_BYTES + (length_kind >> 8)
        assert end <= len(data), f"half a frame of kind {length_kind & 0xFF} at {at} of {len(data)} bytes"
        found.append(Written(length_kind & 0xFF, flags, stream, bytes(data[at + HEAD_BYTES : end])))
        at = end
    return found


def goaways(data: bytes) -> list[tuple[int, int]]:
    """Last stream and code of the GOAWAY frames."""
    return [
        (int.from_bytes(frame.payload[:4], "big"), int.from_bytes(frame.payload[4:8], "big"))
        for frame in written(data)
        if frame.kind == GOAWAY
    ]


def hand_made(*frames: bytes, settings: bytes = b"") -> tuple[RelayedConnection, bytes]:
    """A relay that has read these frames of a client, and what it sent on."""
    relay = RelayedConnection(lambda method: method if method == CREATE else None)
    relay.from_runtime(write_settings(), 0.0)
    relay.from_client(PREFACE + (settings or write_settings()) + b"".join(frames), 0.0)
    return relay, b"".join(relay.to_runtime)
