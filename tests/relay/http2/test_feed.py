"""Streams that read one source along: windows are kept, a slow one is ended, none waits for another."""

from __future__ import annotations

from h2.settings import SettingCodes

from cri_proxy.relay.http2.feed import KEPT_BYTES, KEPT_PIECES, TOO_SLOW, RuntimeStream
from cri_proxy.relay.http2.messages import write_message
from tests.relay.http2.pair import Pair

EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-from", b"runtime"))
TRAILERS = ((b"grpc-status", b"7"), (b"grpc-message", b"as it came"), (b"x-last", b"word"))
MOST = 1 << 30


class Feeding(Pair):
    """A pair whose events come from ``source``."""

    def __init__(self, **settings: object) -> None:
        self.source = RuntimeStream()
        super().__init__(intercepted=(EVENTS,), **settings)  # type: ignore[arg-type]

    def subscribe(self) -> int:
        stream = self.call(EVENTS, b"wish")
        self.relay.read_along(stream, self.source, self.source.next)
        self.pump()
        return stream

    def say(self, *messages: bytes) -> None:
        self.source.add([write_message(message) for message in messages])
        self.told()

    def told(self) -> None:
        self.relay.feed.said(self.source)
        self.pump()

    def relay_writes(self) -> bool:
        self.relay.feed.flush(MOST)
        return super().relay_writes()

    def got(self, stream: int) -> bytes:
        return self.received(stream, "client")


def begun() -> Feeding:
    pair = Feeding()
    pair.source.head = HEAD
    return pair


def test_all_get_the_head_the_messages_and_the_end_as_they_came() -> None:
    pair = begun()
    streams = [pair.subscribe() for _ in range(3)]
    pair.say(b"one", b"two")
    pair.source.end = TRAILERS
    pair.told()
    for stream in streams:
        first, last = pair.headers(stream)
        assert first == {k.decode(): v.decode() for k, v in HEAD}
        assert last == {k.decode(): v.decode() for k, v in TRAILERS}
        assert pair.got(stream) == write_message(b"one") + write_message(b"two")
        assert pair.has_ended(stream, "client") and pair.was_reset(stream)
    assert [event.code for event in pair.ended()] == [7, 7, 7]
    assert pair.relay.methods == {} and not len(pair.relay.feed.readers) and pair.books_are_right()


def test_who_comes_later_gets_what_comes_later() -> None:
    pair = begun()
    early = pair.subscribe()
    pair.say(b"one")
    late = pair.subscribe()
    pair.say(b"two")
    assert pair.got(early) == write_message(b"one") + write_message(b"two")
    assert pair.got(late) == write_message(b"two")


def test_an_end_without_messages_is_one_block_and_a_reset_a_reset() -> None:
    pair = Feeding()
    stream = pair.subscribe()
    pair.source.end = (*HEAD[:2], *TRAILERS)
    pair.told()
    [block] = pair.headers(stream)
    assert block[":status"] == "200" and block["grpc-status"] == "7"
    other = begun()
    stream = other.subscribe()
    other.source.reset = 8
    other.told()
    assert other.was_reset(stream, "client") and other.relay.methods == {}


def test_a_client_that_gives_no_credit_is_ended_and_the_others_get_all() -> None:
    """Its stream's window is full; the connection's is not."""
    pair = begun()
    slow, quick = pair.subscribe(), pair.subscribe()
    message = b"m" * 10_000
    count = 2 * KEPT_BYTES // len(message)
    for _ in range(count):
        pair.say(message)
        pair.client.increment_flow_control_window(30_000)
        pair.client.increment_flow_control_window(15_000, quick)
        pair.pump()
    assert pair.got(quick) == write_message(message) * count
    assert 0 < len(pair.got(slow)) <= 65_535
    assert pair.headers(slow)[-1]["grpc-status"] == "8" and pair.headers(slow)[-1]["grpc-message"] == TOO_SLOW
    assert len(pair.relay.feed.readers) == 1 and pair.books_are_right()


def test_a_connection_that_gives_no_credit_grows_nothing_and_is_told_when_it_does() -> None:
    pair = begun()
    streams = [pair.subscribe() for _ in range(20)]
    for _ in range(KEPT_PIECES + 500):
        pair.say(b"m" * 1_000)
    assert sum(len(pair.got(stream)) for stream in streams) <= 65_535
    assert len(pair.source._pieces) <= KEPT_PIECES and pair.relay._wire.replies.waiting_bytes == 0
    pair.take(pair.client, 0, 1 << 20)
    assert all(pair.headers(stream)[-1]["grpc-status"] == "8" for stream in streams)


def test_a_message_larger_than_a_frame_goes_out_in_parts() -> None:
    pair = begun()
    stream, message = pair.subscribe(), b"m" * 200_000
    pair.say(message)
    for _ in range(20):
        pair.take(pair.client, stream, 20_000)
    pair.say(b"more")
    assert pair.got(stream) == write_message(message) + write_message(b"more")
    assert pair.books_are_right() and not pair.relay.feed._partial


def test_one_that_has_part_of_a_message_is_reset_when_it_is_too_slow() -> None:
    """Trailers behind half a message would be a broken one."""
    pair = begun()
    stream = pair.subscribe()
    pair.say(b"m" * 200_000)
    for _ in range(KEPT_PIECES + 1):
        pair.say(b"more")
    pair.client.increment_flow_control_window(1 << 20)
    pair.pump()
    assert pair.was_reset(stream, "client") and not len(pair.relay.feed.readers)


def test_small_windows_hold_up_the_stream_alone() -> None:
    pair = Feeding(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 100})
    pair.source.head = HEAD
    small, wide = pair.subscribe(), pair.subscribe()
    pair.client.increment_flow_control_window(10_000, wide)
    pair.pump()
    pair.say(b"m" * 500)
    assert (pair.got(small), pair.got(wide)) == (b"", write_message(b"m" * 500))
    pair.take(pair.client, small, 1_000)
    assert pair.got(small) == write_message(b"m" * 500)


def test_a_client_that_leaves_is_forgotten() -> None:
    pair = begun()
    gone, other = pair.subscribe(), pair.subscribe()
    pair.client.reset_stream(gone)
    pair.pump()
    [ended] = pair.ended()
    assert (ended.stream, ended.code) == (gone, 1)
    pair.relay.feed.leave(gone)
    pair.say(b"one")
    assert len(pair.relay.feed.readers) == 1 and pair.got(other) == write_message(b"one")


def test_looks_at_readers_cost_nothing_while_none_waits() -> None:
    """Those that wait for credit are not gone through for each frame that comes."""
    pair = begun()
    for _ in range(50):
        pair.subscribe()
    pair.say(b"one")
    assert not pair.relay.feed._behind and not pair.relay.feed._stalled
    assert pair.relay.feed.flush(MOST) is False
