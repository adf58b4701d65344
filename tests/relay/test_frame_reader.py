"""Frames are found however a connection is cut into pieces; what is open is what has not ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.relay.frame_reader import (
    FAREWELL,
    PREFACE_BYTES,
    FirstAnswer,
    FrameReader,
    FrameSeen,
    OpenCalls,
    going_away,
)
from cri_proxy.relay.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


PREFACE = b"p" * PREFACE_BYTES
FRAMES = [
    frame(SETTINGS, 0, 0, b"123456"),
    frame(SETTINGS, ACK),
    frame(HEADERS, 0, 1, b"head"),
    frame(CONTINUATION, END_HEADERS, 1, b"more"),
    frame(DATA, END_STREAM, 1, b"x" * 300),
    frame(PING, ACK, 0, FAREWELL),
    frame(DATA, 0, 3),
]
KINDS = [SETTINGS, SETTINGS, HEADERS, CONTINUATION, DATA, PING, DATA]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(places, places[1:])]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(CUTS)
def test_the_same_frames_are_read_from_any_pieces(cuts: list[int]) -> None:
    reader = FrameReader(skip=PREFACE_BYTES)
    seen = [found for piece in pieces(PREFACE + b"".join(FRAMES), cuts) for found in reader.read(piece)]
    assert [found.kind for found in seen] == KINDS
    assert [found.stream for found in seen] == [0, 0, 1, 1, 1, 0, 3]
    assert seen[5] == FrameSeen(PING, ACK, 0, FAREWELL)


@given(CUTS)
def test_a_gap_is_where_a_frame_ends_and_no_header_block_is_open(cuts: list[int]) -> None:
    data, ends, at = b"".join(FRAMES), set(), 0
    for one in FRAMES:
        at += len(one)
        ends.add(at)
    ends.discard(len(b"".join(FRAMES[:3])))  # HEADERS that go on
    reader, begun = FrameReader(), 0
    for piece in pieces(data, cuts):
        reader.read(piece)
        inside = {end for end in ends if begun < end <= begun + len(piece)}
        assert reader.gap == (max(inside) - begun if inside else None)
        begun += len(piece)
        assert reader.is_between == (begun in ends)


def test_nothing_is_put_in_before_the_other_sides_first_frame() -> None:
    reader = FrameReader()
    assert not reader.is_between
    reader.read(FRAMES[0])
    assert reader.is_between


@given(CUTS)
def test_the_first_answer_is_taken_out_and_nothing_else(cuts: list[int]) -> None:
    data = PREFACE + b"".join([FRAMES[0], FRAMES[2], FRAMES[3], FRAMES[1], FRAMES[4], FRAMES[1]])
    expected = PREFACE + b"".join([FRAMES[0], FRAMES[2], FRAMES[3], FRAMES[4], FRAMES[1]])
    taking = FirstAnswer()
    assert b"".join(taking.take_out(piece) for piece in pieces(data, cuts)) == expected


def test_the_farewell_is_a_goaway_that_ends_no_call_and_a_ping() -> None:
    goaway, ping = FrameReader().read(going_away())
    assert (goaway.kind, ping) == (GOAWAY, FrameSeen(PING, 0, 0, FAREWELL))
    assert going_away()[9:17] == b"\x7f\xff\xff\xff" + bytes(4)  # any stream, NO_ERROR


BEGUN = ("client", FrameSeen(HEADERS, END_HEADERS, 1, b""))


@pytest.mark.parametrize(
    ("frames", "still_open"),
    [
        ([BEGUN], 1),
        ([BEGUN, ("client", FrameSeen(HEADERS, END_HEADERS, 3, b""))], 2),
        ([BEGUN, BEGUN], 1),
        ([BEGUN, ("client", FrameSeen(DATA, END_STREAM, 1, b""))], 1),
        ([BEGUN, ("server", FrameSeen(HEADERS, END_HEADERS, 1, b""))], 1),
        ([BEGUN, ("server", FrameSeen(HEADERS, END_HEADERS | END_STREAM, 1, b""))], 0),
        ([BEGUN, ("server", FrameSeen(DATA, END_STREAM, 1, b""))], 0),
        ([BEGUN, ("server", FrameSeen(RST_STREAM, 0, 1, b""))], 0),
        ([BEGUN, ("client", FrameSeen(RST_STREAM, 0, 1, b""))], 0),
        ([BEGUN, ("client", FrameSeen(RST_STREAM, 0, 1, b"")), BEGUN], 0),  # trailers of an ended call
        ([BEGUN, ("server", FrameSeen(SETTINGS, ACK, 0, b""))], 1),
    ],
)
def test_calls_are_open_from_their_headers_to_the_servers_end(
    frames: list[tuple[str, FrameSeen]], still_open: int
) -> None:
    calls = OpenCalls()
    for side, found in frames:
        (calls.from_client if side == "client" else calls.from_server)(found)
    assert len(calls) == still_open


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        (FrameSeen(PING, ACK, 0, FAREWELL), True),
        (FrameSeen(PING, ACK, 0, b"12345678"), False),
        (FrameSeen(PING, 0, 0, FAREWELL), False),
    ],
)
def test_a_client_is_told_when_it_answers_that_ping(found: FrameSeen, is_told: bool) -> None:
    calls = OpenCalls()
    calls.from_client(found)
    assert calls.is_told is is_told
