"""A relay that is told anything, and what must hold of it all the same."""

from __future__ import annotations

from typing import Any, Optional

from cri_proxy.relay.http2.frames import DEFAULT_FRAME_BYTES, GOAWAY, MAX_BLOCK_BYTES, PING
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import (
    MAX_HELD_BYTES,
    Closing,
    Ended,
    FarewellRead,
    ReplyReceived,
    RequestReceived,
)
from tests.relay.http2.hand import written

#: What the shell does about each request that it is asked about.
FORWARD, APPEND, REFUSE, ANSWER, STOP, EXPIRE, WAIT = range(7)


class Shell:
    """Does as it is told about every call, writes down what was passed, and looks whether all is as it must be."""

    def __init__(self, intercepted: frozenset[str]) -> None:
        self.relay = RelayedConnection(self._open)
        self.to_client, self.to_runtime = bytearray(), bytearray()
        self.from_client, self.from_runtime = bytearray(), bytearray()
        #: How much of both was passed when the connection was closed.
        self.closed_at: Optional[tuple[int, int]] = None
        self.asked: dict[int, int] = {}
        self.over: list[int] = []
        self._intercepted = intercepted
        self._calls = 0
        self._taken: set[int] = set()

    def _open(self, method: str) -> Optional[int]:
        self._calls += 1
        return self._calls if method in self._intercepted else None

    def read(self, is_client: bool, data: bytes, what: int = FORWARD) -> None:
        """One side says something; then ``what`` is done about all requests."""
        if self.closed_at is None:
            (self.from_client if is_client else self.from_runtime).extend(data)
        (self.relay.from_client if is_client else self.relay.from_runtime)(data, 0.0)
        self._act(what)
        self._check_what_is_kept()

    def end(self) -> None:
        """The client goes; nothing may be left of it."""
        self.relay.client_lost()
        self._act(WAIT)
        wire: Any = self.relay._wire
        assert self.relay.methods == {} and wire.streams == {} and wire.held_bytes == 0
        assert wire.requests.waiting_bytes == wire.replies.waiting_bytes == 0 and wire.watched == set()
        # What the shell has ended itself it need not be told of.
        assert set(self.asked.values()) - self._taken <= set(self.over) <= set(self.asked.values())

    def _act(self, what: int) -> None:
        self._take_events()
        for stream, call in list(self.asked.items()):
            if call not in self.over:
                self._decide(stream, what)
        self.relay.resume()
        self._take_events()
        for buffer, out in ((self.relay.to_client, self.to_client), (self.relay.to_runtime, self.to_runtime)):
            for part in buffer:
                out += part
            buffer.clear()

    def _take_events(self) -> None:
        for event in self.relay.take_events():
            assert self.closed_at is None or isinstance(event, FarewellRead), f"{event} after the end"
            if isinstance(event, RequestReceived):
                assert event.stream not in self.asked
                self.asked[event.stream] = event.call
            elif isinstance(event, Ended):
                assert event.call not in self.over, "an interception ends once"
                self.over.append(event.call)
            elif isinstance(event, ReplyReceived):
                assert event.messages
            elif isinstance(event, Closing):
                self.closed_at = (len(self.to_client), len(self.to_runtime))

    def _decide(self, stream: int, what: int) -> None:
        if what in (FORWARD, APPEND):
            self.relay.forward(stream, b"+" if what == APPEND else b"")
        elif what in (REFUSE, ANSWER):
            self.relay.take_over(stream)
            self._taken.add(self.asked[stream])
            if what == ANSWER:
                self.relay.answer(stream, b"a" * 100)
            self.relay.finish(stream, 9, "no")
        elif what == STOP:
            self.relay.stop_call(stream, 14, "stop")
        elif what == EXPIRE:
            self.relay.tick(1000.0)

    def _check_what_is_kept(self) -> None:
        wire: Any = self.relay._wire
        kept = wire.held_bytes + wire.requests.waiting_bytes + wire.replies.waiting_bytes
        assert 0 <= kept <= MAX_HELD_BYTES + MAX_MESSAGE_BYTES
        assert wire.held_bytes >= 0 and wire.requests.waiting_bytes >= 0 and wire.replies.waiting_bytes >= 0
        for pipe in (self.relay._requests.pipe, self.relay._replies.pipe):
            if not pipe.is_paused and self.closed_at is None:
                assert pipe.unhandled_bytes <= MAX_BLOCK_BYTES + max(pipe.largest_frame, DEFAULT_FRAME_BYTES)

    # ------------------------------------------------------------------ what was passed

    def check_a_copy(self) -> None:
        """Of calls that are not intercepted: what was passed is what came, as far as it was passed.

        But for a farewell that is later than another, for the number in it may not grow; and for pings that are answered.
        """
        at = self.closed_at or (len(self.to_client), len(self.to_runtime))
        for came, passed in (
            (self.from_runtime, self.to_client[: at[0]]),
            (self.from_client, self.to_runtime[: at[1]]),
        ):
            if not came.startswith(passed):
                shown = [frame for frame in written(bytes(passed)) if frame.kind not in (GOAWAY, PING)]
                frames = [frame for frame in whole_frames(bytes(came)) if frame.kind not in (GOAWAY, PING)]
                assert shown == frames[: len(shown)]


def whole_frames(data: bytes) -> list[Any]:
    """The frames at the front of ``data`` that are whole."""
    end = at = 24 if data.startswith(b"PRI ") else 0
    while end <= len(data):
        at = end
        if len(data) - at < 9:
            break
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
    return written(data[:at])
