"""What real clients and servers have said to each other (tests/data/http2), said again through the relay."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.relay.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    MAX_FRAME_SIZE,
    SETTINGS,
    WINDOW_UPDATE,
    read_settings,
    unpadded,
)
from cri_proxy.relay.http2.messages import PREFIX_BYTES, read_message
from tests.relay.http2.captures import Capture, Replay, captures
from tests.relay.http2.hand import Written, written
from tests.relay.http2.styles import styled

CAPTURES = {capture.name: capture for capture in (*captures(), *styled())}
#: Sizes of reads, in turns. One is large, or a capture of 300 kB is read a byte at a time.
SIZES = st.tuples(st.lists(st.integers(1, 60), max_size=6), st.integers(1000, 1 << 16)).map(
    lambda sizes: [*sizes[0], sizes[1]]
)
DELTA = b"\x12\x05delta"


def frames_of(data: bytes, *kinds: int) -> list[Written]:
    return [frame for frame in written(data) if frame.kind in kinds]


def places(data: bytes) -> list[int]:
    """Where something ends that can pass by itself: a frame, or a header block."""
    frames = written(data)
    sizes = [HEAD_BYTES + len(frame.payload) for frame in frames]
    ends = accumulate(sizes, initial=len(data) - sum(sizes))
    followers = [frame.kind for frame in frames[1:]] + [DATA]
    return [0] + [end for end, follower in zip(islice(ends, 1, None), followers) if follower != CONTINUATION]


def data_of(data: bytes) -> dict[int, bytes]:
    """What was sent on each stream."""
    found: dict[int, bytes] = defaultdict(bytes)
    for frame in frames_of(data, DATA):
        found[frame.stream] += unpadded(frame.payload, frame.flags)
    return found


def messages_in(data: bytes) -> list[bytes]:
    """The messages in the DATA of a stream, decompressed; a message that is cut off is left out."""
    found = []
    while len(data) >= PREFIX_BYTES:
        end = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
        if end > len(data):
            break
        message = read_message(data[:end], b"gzip")
        assert message is not None
        found.append(message)
        data = data[end:]
    return found


def is_connections(frame: Written) -> bool:
    """Whether a frame passes as it is whatever becomes of calls."""
    return frame.kind not in (DATA, WINDOW_UPDATE)


def largest_frame(of_receiver: bytes) -> int:
    allowed = [16_384]
    for frame in frames_of(of_receiver, SETTINGS):
        allowed += [value for name, value in read_settings(frame.payload) if name == MAX_FRAME_SIZE]
    return max(allowed)


def check_the_same_calls(capture: Capture, replay: Replay, delta: bytes) -> None:
    """What either side got is what the other said, with ``delta`` behind each stream's first message."""
    sent, got = capture.said(by_client=True), bytes(replay.to_runtime)
    # Header blocks, settings, pings, resets, farewells: to the byte, and in their order.
    assert list(filter(is_connections, written(got))) == list(filter(is_connections, written(sent)))
    requests, wanted = data_of(got), data_of(sent)
    assert sorted(requests) == sorted(wanted)
    for stream, data in wanted.items():
        if delta and (messages := messages_in(data)):
            assert messages_in(requests[stream]) == [messages[0] + delta, *messages[1:]]
        else:
            assert requests[stream] == data
    ends = [
        frame.stream for frame in written(sent) if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM
    ]
    assert [f.stream for f in written(got) if f.kind in (DATA, HEADERS) and f.flags & END_STREAM] == ends
    assert max((len(frame.payload) for frame in frames_of(got, DATA)), default=0) <= largest_frame(
        capture.said(by_client=False)
    )
    # Replies are the runtime's own, though the relay has read along.
    said, replied = capture.said(by_client=False), bytes(replay.to_client)
    assert list(filter(is_connections, written(replied))) == list(filter(is_connections, written(said)))
    assert data_of(replied) == data_of(said)


# ---------------------------------------------------------------------- nothing is intercepted


@pytest.mark.parametrize("name", CAPTURES)
@settings(max_examples=settings().max_examples // 10)
@given(SIZES)
def test_what_nobody_intercepts_is_the_same_bytes_and_waits_for_nothing(name: str, sizes: list[int]) -> None:
    capture = CAPTURES[name]
    said = {side: capture.said(side) for side in (True, False)}
    passable = {side: places(data) for side, data in said.items()}
    replay = Replay(capture, sizes)
    for _ in replay.run():
        for side, out in ((True, replay.to_runtime), (False, replay.to_client)):
            assert len(out) >= passable[side][bisect_right(passable[side], replay.read[side]) - 1]
    assert replay.to_runtime == said[True] and replay.to_client == said[False]


# ---------------------------------------------------------------------- everything is intercepted


@pytest.mark.parametrize("delta", [b"", DELTA], ids=["as it came", "with a delta"])
@pytest.mark.parametrize("name", CAPTURES)
@settings(max_examples=settings().max_examples // 10)
@given(SIZES)
def test_calls_that_are_all_intercepted_are_the_same_calls(name: str, delta: bytes, sizes: list[int]) -> None:
    capture = CAPTURES[name]
    replay = Replay(capture, sizes, delta)
    for _ in replay.run():
        pass
    check_the_same_calls(capture, replay, delta)
    firsts = [messages[0] for data in data_of(capture.said(True)).values() if (messages := messages_in(data))]
    assert sorted(replay.asked) == sorted(firsts)
    replay.lose_client()
    assert sorted(map(id, replay.ended)) == sorted(map(id, replay.began))
