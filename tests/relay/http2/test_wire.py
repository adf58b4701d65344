"""What is kept of a connection is bounded, whichever side does not take it; an intercepted call ends once."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.frames import (
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PREFACE,
    WINDOW_UPDATE,
    Error,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES, write_message
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import MAX_HELD_BYTES, FailedOpen, RequestReceived
from cri_proxy.relay.interception import CallEnd
from tests.relay.http2.hand import CONFIRMED, CREATE, data, headers, written
from tests.relay.http2.pair import Pair, all_is_in_step, created

MIB = 1 << 20
LARGE = write_message(bytes(15 * MIB))


def with_large_windows() -> RelayedConnection:
    """Every call of it is intercepted; the runtime takes as much at once as HTTP/2 has numbers for."""
    relay = RelayedConnection(lambda method: method)
    relay.from_runtime(write_settings((INITIAL_WINDOW_SIZE, 2**31 - 1), (MAX_FRAME_SIZE, (1 << 24) - 1)), 0.0)
    relay.from_client(PREFACE + write_settings() + CONFIRMED, 0.0)
    relay.from_runtime(write_window_update(0, 2**31 - 1 - 65_535), 0.0)
    return relay


def kept(pair: Pair) -> int:
    wire = pair.relay._wire
    return wire.held_bytes + wire.requests.waiting_bytes + wire.replies.waiting_bytes


def test_what_exceeds_the_cap_of_a_connection_is_sent_on_unseen() -> None:
    relay = with_large_windows()
    assert 5 * len(LARGE) > MAX_HELD_BYTES
    for stream in (1, 3, 5, 7, 9):
        relay.from_client(headers(stream, b"\x83\x86\x84") + data(stream, LARGE[:-1]), 0.0)
    assert relay.take_events() == [FailedOpen("/", "too large")]
    sent = [frame for frame in written(b"".join(relay.to_runtime)) if frame.kind == 0]
    assert [(frame.stream, len(frame.payload)) for frame in sent] == [(9, len(LARGE) - 1)]


def test_a_message_of_16_mib_is_shown_and_one_byte_more_is_not() -> None:
    relay = with_large_windows()
    whole = write_message(bytes(MAX_MESSAGE_BYTES))
    relay.from_client(
        headers(1, b"\x83\x86\x84") + data(1, whole[:9_000_000]) + data(1, whole[9_000_000:]), 0.0
    )
    [asked] = relay.take_events()
    assert len(asked.message) == MAX_MESSAGE_BYTES  # type: ignore[union-attr]
    relay.from_client(headers(3, b"\x83\x86\x84") + data(3, write_message(b"")[:1] + b"\x01\0\0\x01"), 0.0)
    assert relay.take_events() == [FailedOpen("/", "too large")]


def test_requests_that_the_runtime_does_not_take_are_paid_for_up_to_the_cap() -> None:
    relay = RelayedConnection(lambda method: method)
    relay.from_runtime(write_settings((MAX_FRAME_SIZE, (1 << 24) - 1)), 0.0)
    relay.from_client(PREFACE + write_settings() + CONFIRMED, 0.0)
    asked = 0
    for stream in range(1, 17, 2):
        relay.from_client(headers(stream, b"\x83\x86\x84") + data(stream, LARGE[:5]), 0.0)
        if relay._wire.requests.connection.sender_window < len(LARGE) - 5:
            break
        relay.from_client(data(stream, LARGE[5:], end=True), 0.0)
        asked += sum(isinstance(event, RequestReceived) for event in relay.take_events())
        relay.forward(stream, b"+")
    # Beyond the cap the client has no window for more, but for the message that was begun below it.
    credit = [f.payload for f in written(b"".join(relay.to_client)) if f[0] == WINDOW_UPDATE and not f.stream]
    assert sum(int.from_bytes(payload, "big") for payload in credit) <= MAX_HELD_BYTES + MAX_MESSAGE_BYTES
    assert asked == 4


@pytest.mark.parametrize("size", [40_000, 10], ids=["in several frames", "many in a frame"])
def test_replies_that_the_client_does_not_take_stop_at_the_runtime(pair, size) -> None:
    stream = created(pair)
    pair.runtime.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    events = write_message(b"e" * size) * (600_000 // size)
    sent = 0
    while room := min(pair.runtime.local_flow_control_window(stream), 16_384):
        pair.runtime.send_data(stream, events[sent : sent + room])
        sent += room
        pair.pump()
        pair.answer_notes()
    assert len(pair.received(stream, "client")) == 65_535 and kept(pair) <= 2 * 65_535 + size
    # It goes on as soon as it is taken.
    got = 0
    while got < len(events):
        arrived = len(pair.received(stream, "client"))
        pair.take(pair.client, stream, arrived - got)
        got = arrived
        while sent < len(events) and (room := min(pair.runtime.local_flow_control_window(stream), 16_384)):
            pair.runtime.send_data(stream, events[sent : sent + room])
            sent += room
            pair.pump()
            pair.answer_notes()
    assert pair.received(stream, "client") == events and kept(pair) == 0
    assert pair.books_are_right() and all_is_in_step(pair)


def test_an_end_that_is_being_noted_is_not_said_again_when_the_client_leaves(pair) -> None:
    left, lost = created(pair), created(pair)
    pair.reply(left, b"id")
    pair.relay.resume()
    pair.client.reset_stream(left, Error.CANCEL)
    pair.pump()
    pair.answer_notes()
    pair.reply(lost, b"id")
    pair.relay.resume()
    pair.relay.client_lost()
    pair.relay_writes()
    assert [ended.end for ended in pair.ended()] == [CallEnd.OK, CallEnd.OK]


# ---------------------------------------------------------------------- the runtime ends a call too early


@pytest.mark.parametrize("was_sent", [False, True], ids=["held", "waiting for a window"])
def test_of_a_request_that_is_no_longer_wanted_nothing_more_comes(pair, was_sent) -> None:
    stream = pair.call(CREATE, None)
    request = write_message(b"c" * 200_000)
    pair.send(stream, request[:30_000])
    if was_sent:
        pair.send(stream, request[30_000:])
        pair.relay.forward(stream, b"+")
        pair.pump()
    arrived = pair.received(stream)
    pair.reply(stream, status="12")
    pair.answer_notes()
    # The tail of a message whose head was dropped is of no use: the client is told to stop (RFC 9113, 8.1).
    assert pair.headers(stream)[-1]["grpc-status"] == "12" and pair.was_reset(stream, "client")
    assert pair.received(stream) == arrived and pair.was_reset(stream) and pair.relay.methods == {}
    if arrived:
        pair.take(pair.runtime, stream, len(arrived))
    assert pair.books_are_right() and all_is_in_step(pair) and kept(pair) == 0


def test_frames_that_cross_the_end_of_a_call_are_not_passed_on(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, write_message(b"c" * 20_000)[:10_000])
    pair.client.send_data(stream, b"more", end_stream=False)
    late = pair.client.data_to_send()
    pair.reply(stream, status="12")
    pair.relay.from_client(late, 0.0)
    pair.relay_writes()
    pair.relay.client_lost()
    assert pair.relay.take_events()[:-1] == []  # the interceptor was not asked, so it is not told
    assert pair.received(stream) == b"" and pair.relay.methods == {}
