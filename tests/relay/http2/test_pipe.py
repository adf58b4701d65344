"""What passes without being looked into, and what is put together before it is."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2 import frames
from cri_proxy.relay.http2.headers import write_response
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.pipe import Frame, Pipe
from cri_proxy.relay.http2.wire import ReplyReceived, RequestReceived
from tests.relay.http2.hand import BLOCK, HOLDS, data, hand_made, headers

BIG = data(1, bytes(frames.DEFAULT_FRAME_BYTES))


class Seen:
    """A pipe, the frames that were handled, and what was passed on."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.passed: list[object] = []
        self.pipe = Pipe(self._handle, self.passed)  # type: ignore[arg-type]

    def _handle(self, frame: Frame) -> None:
        self.blocks.append(frame.block)


@pytest.mark.parametrize("cut", [1, 8, 9, 100, frames.DEFAULT_FRAME_BYTES + 20])
def test_what_comes_in_pieces_passes_to_the_byte(cut: int) -> None:
    said = 3 * BIG + headers(3) + data(3, b"x", end=True)
    seen = Seen()
    for at in range(0, len(said), cut):
        seen.pipe.read(said[at : at + cut])
    assert b"".join(seen.passed) == said  # type: ignore[arg-type]
    assert seen.pipe.unhandled_bytes == 0


def test_of_two_reads_only_the_frame_between_them_is_copied() -> None:
    first, second = 4 * BIG + BIG[:100], BIG[100:] + 4 * BIG
    seen = Seen()
    seen.pipe.read(first)
    seen.pipe.read(second)
    before, between, behind = seen.passed
    assert isinstance(before, memoryview) and before.obj is first
    assert between == BIG
    assert behind == 4 * BIG


def test_a_block_in_many_frames_and_many_reads_is_one() -> None:
    parts = [bytes([byte]) * 50 for byte in range(100)]
    said = frames.write_frame(frames.HEADERS, 0, 1, parts[0])
    said += b"".join(frames.write_frame(frames.CONTINUATION, 0, 1, part) for part in parts[1:-1])
    said += frames.write_frame(frames.CONTINUATION, frames.END_HEADERS, 1, parts[-1])
    seen = Seen()
    for at in range(0, len(said), 777):
        seen.pipe.read(said[at : at + 777])
    assert seen.blocks == [b"".join(parts)]
    assert b"".join(seen.passed) == said  # type: ignore[arg-type]


def test_a_client_that_leaves_while_a_reply_is_noted_does_not_disturb_the_next() -> None:
    """What waits is of a stream that is forgotten by the time it goes on."""
    relay, _ = hand_made(headers(1), data(1, HOLDS, end=True), headers(3), data(3, HOLDS, end=True))
    for event in relay.take_events():
        assert isinstance(event, RequestReceived)
        relay.forward(event.stream, b"")
    relay.from_runtime(headers(1, write_response()) + headers(3, write_response()), 0.0)
    relay.from_runtime(data(1, write_message(b"one")), 0.0)
    assert isinstance(relay.take_events()[0], ReplyReceived)
    relay.from_client(frames.write_frame(frames.RST_STREAM, 0, 1, bytes(4)), 0.0)
    relay.resume()
    relay.take_events()
    relay.from_runtime(data(3, write_message(b"three")), 0.0)
    (observed,) = relay.take_events()
    assert isinstance(observed, ReplyReceived) and observed.messages == (b"three",)


def test_blocks_of_others_are_read_while_streams_pass_unwatched() -> None:
    relay, sent = hand_made(headers(1, b"\x40\x05:path\x02/v\x83"), data(1, b"", end=True))
    # The path from the table that the first call has filled.
    relay.from_client(headers(3, b"\xbe\x83") + data(3, b"", end=True) + headers(5, BLOCK), 0.0)
    assert relay.methods == {1: "/v", 3: "/v", 5: "/runtime.v1.RuntimeService/CreateContainer"}
