"""Frames as others write them are understood; what is none closes the connection."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Buffer,
    Error,
    write_frame,
    write_settings,
)
from cri_proxy.relay.http2.relay import RelayedConnection
from tests.relay.http2 import hand


def taken(pieces: list[Buffer]) -> bytes:
    """What there is to write, which has been written then."""
    written = b"".join(pieces)
    pieces.clear()
    return written


# ---------------------------------------------------------------------- frames as others write them


@pytest.mark.parametrize(
    "frames",
    {
        "in one frame": [hand.headers(1)],
        "continued": [
            write_frame(HEADERS, 0, 1, hand.BLOCK[:3]),
            write_frame(CONTINUATION, 0, 1, hand.BLOCK[3:20]),
            write_frame(CONTINUATION, 0, 1),
            write_frame(CONTINUATION, END_HEADERS, 1, hand.BLOCK[20:]),
        ],
        "padded": [write_frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05" + hand.BLOCK + bytes(5))],
        "with a priority": [
            write_frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\0\x0f" + hand.BLOCK)
        ],
        "with both, continued": [
            write_frame(HEADERS, HAS_PRIORITY | PADDED, 1, b"\2\0\0\0\0\x0f" + hand.BLOCK[:9] + bytes(2)),
            write_frame(CONTINUATION, END_HEADERS, 1, hand.BLOCK[9:]),
        ],
    }.values(),
    ids=["in one frame", "continued", "padded", "with a priority", "with both, continued"],
)
@pytest.mark.parametrize("cut", [1, 11, 1 << 20], ids=lambda cut: f"in pieces of {cut}")
def test_headers_in_every_form_pass_and_are_read(frames: list[bytes], cut: int) -> None:
    relay = RelayedConnection(lambda method: method if method == hand.CREATE else None)
    sent = PREFACE + write_settings() + b"".join(frames)
    for at in range(0, len(sent), cut):
        relay.from_client(sent[at : at + cut], 0.0)
    assert b"".join(relay.to_runtime) == sent
    assert relay.methods == {1: hand.CREATE}


def test_priority_unknown_kinds_and_unknown_settings_pass() -> None:
    frames = [
        write_frame(PRIORITY, 0, 3, b"\0\0\0\0\x10"),
        write_frame(0x10, 0, 0, b"u=1"),
        write_settings((0x99, 7)),
        hand.ping(b"whatever", is_answer=True),
    ]
    _, sent = hand.hand_made(*frames)
    assert sent == PREFACE + write_settings() + b"".join(frames)


def test_a_ping_passes_when_the_runtime_has_replied_and_is_answered_here_otherwise() -> None:
    asked = hand.ping(b"grpc_png")
    relay, _ = hand.hand_made(hand.headers(1, end=True))
    relay.to_runtime.clear()
    for part_of_a_reply in (hand.headers(1, b"\x88"), hand.data(1, b"abc")):
        relay.from_client(asked, 0.0)
        assert taken(relay.to_runtime) == b""
        assert taken(relay.to_client).endswith(hand.ping(b"grpc_png", is_answer=True))
        relay.from_runtime(part_of_a_reply, 0.0)
        relay.to_client.clear()
        relay.from_client(asked * 2, 0.0)
        assert taken(relay.to_runtime) == asked
        assert taken(relay.to_client) == hand.ping(b"grpc_png", is_answer=True)


# ---------------------------------------------------------------------- doubts


DOUBTS = {
    "DATA on stream 0": ([hand.data(0, b"x")], Error.PROTOCOL_ERROR),
    "HEADERS on stream 0": ([hand.headers(0)], Error.PROTOCOL_ERROR),
    "a client's stream with an even number": ([hand.headers(2)], Error.PROTOCOL_ERROR),
    "SETTINGS on a stream": ([write_frame(SETTINGS, 0, 1)], Error.PROTOCOL_ERROR),
    "SETTINGS of five bytes": ([write_frame(SETTINGS, 0, 0, b"12345")], Error.FRAME_SIZE_ERROR),
    "a window of 2^31": ([write_settings((4, 1 << 31))], Error.FLOW_CONTROL_ERROR),
    "a frame size of 1": ([write_settings((5, 1))], Error.PROTOCOL_ERROR),
    "PING of seven bytes": ([hand.ping(b"1234567")], Error.FRAME_SIZE_ERROR),
    "RST_STREAM of three bytes": ([write_frame(RST_STREAM, 0, 1, b"123")], Error.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": ([write_frame(WINDOW_UPDATE, 0, 0, bytes(4))], Error.PROTOCOL_ERROR),
    "GOAWAY of seven bytes": ([write_frame(GOAWAY, 0, 0, b"1234567")], Error.FRAME_SIZE_ERROR),
    "PUSH_PROMISE": ([write_frame(PUSH_PROMISE, END_HEADERS, 1, b"1234")], Error.PROTOCOL_ERROR),
    "CONTINUATION by itself": ([write_frame(CONTINUATION, END_HEADERS, 1)], Error.PROTOCOL_ERROR),
    "a frame inside a header block": (
        [write_frame(HEADERS, 0, 1, hand.BLOCK), hand.ping(bytes(8))],
        Error.PROTOCOL_ERROR,
    ),
    "CONTINUATION of another stream": (
        [write_frame(HEADERS, 0, 1, hand.BLOCK), write_frame(CONTINUATION, END_HEADERS, 3)],
        Error.PROTOCOL_ERROR,
    ),
    "more padding than frame": (
        [write_frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + hand.BLOCK)],
        Error.PROTOCOL_ERROR,
    ),
    "a priority that is cut off": (
        [write_frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"123")],
        Error.FRAME_SIZE_ERROR,
    ),
    "an entry that no table has": ([hand.headers(1, b"\xfe")], Error.COMPRESSION_ERROR),
    "a string that is cut off": ([hand.headers(1, b"\x04\x7f")], Error.COMPRESSION_ERROR),
    "a frame larger than allowed": ([hand.data(1, bytes(16_385))], Error.FRAME_SIZE_ERROR),
    "a header block without end": (
        [write_frame(HEADERS, 0, 1, hand.BLOCK), *[write_frame(CONTINUATION, 0, 1, bytes(16_384))] * 65],
        Error.ENHANCE_YOUR_CALM,
    ),
    "a header block in more frames than it needs": (
        [write_frame(HEADERS, 0, 1, hand.BLOCK), write_frame(CONTINUATION, 0, 1) * 128],
        Error.ENHANCE_YOUR_CALM,
    ),
    "settings that nobody confirms": ([write_settings((3, 100)) * 33], Error.ENHANCE_YOUR_CALM),
    "trailers behind what is held": (
        [hand.headers(1), hand.data(1, hand.HOLDS), hand.headers(1, b"\x84", end=True)],
        Error.INTERNAL_ERROR,
    ),
}


@pytest.mark.parametrize("what", DOUBTS)
def test_a_doubt_closes_the_connection_and_passes_nothing_on(what: str) -> None:
    frames, code = DOUBTS[what]
    relay, sent = hand.hand_made(*frames)
    closing = relay.take_events()[-1]
    assert closing.is_doubt  # type: ignore[union-attr]
    assert hand.goaways(b"".join(relay.to_client))[-1][1] == code
    assert b"".join(frames) not in sent
    relay.from_client(hand.ping(bytes(8)), 0.0)
    relay.from_runtime(hand.ping(bytes(8)), 0.0)
    assert relay.take_events() == []


def test_who_does_not_speak_http2_is_told_so() -> None:
    relay = RelayedConnection(lambda method: None)
    relay.from_client(b"GET / HTTP/1.1\r\n\r\n", 0.0)
    assert relay.to_runtime == [] or b"GET" not in b"".join(relay.to_runtime)
    [closing] = relay.take_events()
    assert "HTTP/2" in closing.reason  # type: ignore[union-attr]


def test_the_answer_to_a_greeting_is_kept_from_the_runtime() -> None:
    relay = RelayedConnection(lambda method: None, own_settings=1)
    relay.from_client(PREFACE + write_settings() + 2 * hand.CONFIRMED, 0.0)
    assert b"".join(relay.to_runtime) == PREFACE + write_settings() + hand.CONFIRMED
