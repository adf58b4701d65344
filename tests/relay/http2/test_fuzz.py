"""Whatever either side sends: no crash, nothing kept that grows, and what was passed on is a copy of what came."""

from __future__ import annotations

import sys
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    write_frame,
    write_settings,
)
from cri_proxy.relay.http2.local import LocalEnd
from cri_proxy.relay.http2.messages import write_message
from tests.relay.http2.captures import Capture, captures
from tests.relay.http2.fuzzing import WAIT, Shell, whole_frames
from tests.relay.http2.hand import CONFIRMED, CREATE, data, hand_made, headers, ping
from tests.relay.http2.styles import styled

#: A bug here is a node without pods: a minute of it, and ten in "long".
EXAMPLES = 100 * min(10, settings().max_examples // 100)
#: Some of what was recorded, and all that was written by hand; the large ones would be read for most of the time.
SMALL = [c for c in (*captures(), *styled()) if sum(len(data) for _, data in c.pieces) < 30_000]
INTERCEPTED = frozenset(["/c", CREATE, "/runtime.v1.RuntimeService/GetContainerEvents"])

BLOCKS = st.sampled_from(
    [
        b"\x83\x86\x04\x02/c",
        b"\x83\x86\x04\x02/v",
        b"\x88",
        b"\x88\x40\x01x\x01y",
        b"\x00\x0bgrpc-status\x010",
        b"\xbe",
        b"\x20",
        b"\x40\x01a\x7f\x00" + b"z" * 127,
    ]
)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    BLOCKS,
    st.binary(max_size=60).map(write_message),
    st.sampled_from([bytes(4), b"\0\0\0\1", b"\x7f\xff\xff\xff", bytes(8), b"cri>\0\0\0\1", b"cri<\0\0\0\1"]),
    st.sampled_from([b"\0\4\0\0\0\1", b"\0\4\x7f\xff\xff\xff", b"\0\1\0\0\0\0", b"\0\5\0\0\x40\0"]),
)
KINDS = st.one_of(
    st.sampled_from(
        [DATA, HEADERS, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION]
    ),
    st.integers(0, 255),
)
FLAGS = st.one_of(st.sampled_from([0, 1, 4, 5]), st.integers(0, 255))
STREAMS = st.one_of(st.sampled_from([0, 1, 1, 3, 5]), st.integers(0, 2**31 - 1))
FRAMES = st.builds(write_frame, KINDS, FLAGS, STREAMS, PAYLOADS)
DEEDS = st.integers(0, WAIT)
SIZES = st.lists(st.one_of(st.integers(1, 40), st.integers(100, 30_000)), min_size=1, max_size=5)


# ---------------------------------------------------------------------- frames of any kind, in any order


@settings(max_examples=4 * EXAMPLES)
@given(
    st.lists(st.tuples(st.booleans(), st.one_of(FRAMES, st.binary(max_size=30)), DEEDS), max_size=40),
    st.booleans(),
)
def test_a_connection_survives_any_frames(steps: list[tuple[bool, bytes, int]], says_farewell: bool) -> None:
    shell = Shell(INTERCEPTED)
    shell.read(False, write_settings())
    shell.read(True, PREFACE + write_settings())
    for number, (is_client, said, what) in enumerate(steps):
        if says_farewell and number == 5:
            shell.relay.say_farewell()
        shell.read(is_client, said, what)
    shell.end()


# ---------------------------------------------------------------------- what was recorded, spoiled


def turns_of(capture: Capture) -> list[tuple[bool, list[bytes]]]:
    """The frames of each turn (True: the client's); its first is the preface with the settings."""
    found = []
    rest = {True: b"", False: b""}
    has_begun = False
    for is_client, said in capture.pieces:
        said = rest[is_client] + said
        begin = len(PREFACE) if is_client and not has_begun else 0
        has_begun = has_begun or is_client
        frames = [write_frame(*frame) for frame in whole_frames(said)]
        rest[is_client] = said[begin + sum(map(len, frames)) :]
        if begin and frames:
            frames[0] = PREFACE + frames[0]
        found.append((is_client, frames))
    return found


TURNS = {capture.name: turns_of(capture) for capture in SMALL}


class Spoiler:
    """Spoils frames, one in many, as its ``draw`` has it."""

    def __init__(self, spoils: list[tuple[int, int, Any]]) -> None:
        self._spoils = {at: (how, value) for at, how, value in spoils}
        self._seen = 0

    def spoil(self, frame: bytes) -> bytes:
        """What comes in the place of a frame."""
        self._seen += 1
        how, value = self._spoils.get(self._seen, (None, None))
        if how is None or frame.startswith(PREFACE) or self._seen < 4:
            return frame  # settings come first, or what follows is not looked at
        kind, flags, stream, payload = frame[3], frame[4], int.from_bytes(frame[5:9], "big"), frame[9:]
        at = value["at"] % (len(payload) + 1)
        return [
            b"",
            frame + frame,
            write_frame(kind, flags ^ value["flag"], stream, payload),
            write_frame(kind, flags, value["stream"], payload),
            write_frame(value["kind"], flags, stream, payload),
            write_frame(kind, flags, stream, payload[:at]),
            write_frame(kind, flags, stream, payload[:at] + value["bytes"] + payload[at:]),
            write_frame(
                kind, flags, stream, payload[:at] + value["bytes"] + payload[at + len(value["bytes"]) :]
            ),
            value["frame"] + frame,
            frame + value["frame"],
            frame[:at] + value["bytes"] + frame[at:],
            frame[:at],
        ][how]


SPOILS = st.lists(
    st.tuples(
        st.integers(4, 60),
        st.integers(0, 11),
        st.fixed_dictionaries(
            {
                "at": st.integers(0, 300),
                "flag": st.sampled_from([1, 4, 8, 0x20, 0xFF]),
                "stream": STREAMS,
                "kind": KINDS,
                "bytes": st.binary(min_size=1, max_size=6),
                "frame": FRAMES,
            }
        ),
    ),
    max_size=4,
)


@settings(max_examples=8 * EXAMPLES)
@given(st.sampled_from(sorted(TURNS)), SPOILS, SIZES, st.lists(DEEDS, min_size=1, max_size=4))
@pytest.mark.parametrize("intercepted", [frozenset(), INTERCEPTED], ids=["passing", "intercepted"])
def test_a_connection_survives_what_is_almost_right(
    intercepted: frozenset[str], name: str, spoils: Any, sizes: list[int], deeds: list[int]
) -> None:
    shell, spoiler = Shell(intercepted), Spoiler(spoils)
    what, size = cycle(deeds), cycle(sizes)
    for is_client, frames in TURNS[name]:
        said = b"".join(map(spoiler.spoil, frames))
        while said:
            piece = said[: next(size)]
            said = said[len(piece) :]
            shell.read(is_client, piece, next(what))
    if not intercepted:
        shell.check_a_copy()
    shell.end()


@settings(max_examples=4 * EXAMPLES)
@given(
    st.sampled_from(SMALL),
    st.lists(
        st.tuples(st.integers(60, 5_000), st.integers(0, 3), st.binary(min_size=1, max_size=4)), max_size=4
    ),
    SIZES,
)
def test_a_connection_survives_bytes_that_are_lost_or_wrong(
    capture: Capture, wrongs: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    shell, size = Shell(frozenset()), cycle(sizes)
    read = 0
    for is_client, said in capture.pieces:
        for at, cut, put in sorted(wrongs, reverse=True):
            if read <= at < read + len(said):
                said = said[: at - read] + put + said[at - read + cut :]
        read += len(said)
        while said:
            piece = said[: next(size)]
            said = said[len(piece) :]
            shell.read(is_client, piece)
    shell.check_a_copy()
    shell.end()


# ---------------------------------------------------------------------- no work without end

FLOODS = {
    "a header block in many frames": write_frame(HEADERS, 0, 1, b"\x88")
    + write_frame(CONTINUATION, 0, 1, b"\x88") * 1_000,
    "a header block in empty frames": write_frame(HEADERS, 0, 1) + write_frame(CONTINUATION, 0, 1) * 1_000,
    "a request a byte at a time": headers(1)
    + b"".join(data(1, bytes([n])) for n in write_message(b"c" * 200)) * 4,
    "empty DATA": headers(1) + data(1, b"") * 1_000,
    "settings that nobody confirms": write_settings((4, 100), (4, 70_000)) * 30,
    "confirmations": CONFIRMED * 1_000,
    "pings": ping(bytes(8)) * 1_000,
    "calls that are given up": b"".join(
        headers(n) + write_frame(RST_STREAM, 0, n, bytes(4)) for n in range(1, 1_000, 2)
    ),
    "calls that are left open": b"".join(headers(n) for n in range(1, 2_000, 2)),
}


@pytest.mark.parametrize("size", [1, 10, 1 << 20], ids=lambda size: f"in pieces of {size}")
@pytest.mark.parametrize("what", FLOODS)
def test_the_work_for_a_byte_is_bounded(what: str, size: int) -> None:
    """Counted in calls of functions, of C's, too: a clock would measure the machine."""
    relay, _ = hand_made()
    flood = FLOODS[what][: 5_000 if size == 1 else None]
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for at in range(0, len(flood), size):
            relay.from_client(flood[at : at + size], 0.0)
            relay.to_runtime.clear()
            relay.to_client.clear()
            relay.take_events()
    finally:
        sys.setprofile(before)
    assert calls < 30 * len(flood)


# ---------------------------------------------------------------------- the end of our own


@given(st.lists(st.binary(max_size=50), max_size=5), st.booleans())
def test_the_end_of_our_own_survives_anything(pieces: list[bytes], is_http2: bool) -> None:
    end = LocalEnd()
    for piece in ([PREFACE] if is_http2 else []) + pieces:
        end.from_client(piece)
    end.say_farewell()
    assert end.is_over
