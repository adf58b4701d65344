"""Calls that end in the relay, and connections that end: both sides stay in step, and neither waits."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.frames import (
    ACK,
    GOAWAY,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    Error,
    write_settings,
)
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.relay import CLEAR_S, RelayedConnection
from cri_proxy.relay.http2.wire import FarewellRead
from cri_proxy.relay.interception import CallEnd
from tests.relay.http2 import hand
from tests.relay.http2.pair import LONG, all_is_in_step, created

# ---------------------------------------------------------------------- refusals and answers


@pytest.mark.parametrize("end", [True, False], ids=["whole request", "request still open"])
def test_a_refusal_ends_the_call_on_both_sides_and_both_stay_in_step(pair, end) -> None:
    stream = pair.call(hand.CREATE, b"create" * 100, end=end)
    pair.relay.take_over(stream)
    pair.relay.finish(stream, 9, "ns/pod wants größer\n100%")
    pair.pump()
    assert pair.headers(stream) == [
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "9",
            "grpc-message": "ns/pod wants gr%C3%B6%C3%9Fer%0A100%25",
        }
    ]
    assert pair.was_reset(stream) and pair.received(stream) == b"" and pair.relay.methods == {}
    assert pair.was_reset(stream, "client") is not end
    assert all_is_in_step(pair) and pair.books_are_right()


def test_headers_that_cross_a_refusal_reach_the_clients_table(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    # Sent before the reset is read: new table entries, which later blocks refer to.
    pair.runtime.send_headers(stream, [(":status", "200"), ("x-early", "remember me")])
    pair.relay.take_over(stream)
    pair.relay.finish(stream, 9, "no")
    pair.pump()
    assert pair.headers(stream) == [
        {":status": "200", "x-early": "remember me"},
        {"grpc-status": "9", "grpc-message": "no"},
    ]
    other = pair.call(hand.VERSION)
    pair.runtime.send_headers(other, [(":status", "200"), ("x-early", "remember me")], end_stream=True)
    pair.pump()
    assert pair.headers(other) == [{":status": "200", "x-early": "remember me"}] and all_is_in_step(pair)


def test_an_end_that_crosses_a_refusal_is_the_one_that_counts(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    first = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "12")]
    pair.runtime.send_headers(stream, first, end_stream=True)
    pair.relay.take_over(stream)
    pair.relay.finish(stream, 9, "no")
    pair.pump()
    assert [block["grpc-status"] for block in pair.headers(stream)] == ["12"] and all_is_in_step(pair)
    assert pair.relay.methods == {}


def test_a_runtime_that_says_nothing_does_not_keep_a_refusal_from_the_client(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    pair.relay.take_over(stream)
    pair.relay.finish(stream, 9, "no")
    pair.relay.to_runtime.clear()
    pair.relay_writes()
    assert pair.headers(stream) == []
    pair.relay.tick(CLEAR_S)
    pair.relay_writes()
    assert pair.headers(stream)[-1]["grpc-status"] == "9"


def test_an_answer_larger_than_the_clients_window_comes_as_it_is_taken(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    pair.relay.take_over(stream)
    pair.relay.answer(stream, LONG)
    pair.relay.finish(stream, 0, "", [("x-trailer", "t"), ("x-bin", b"\0\1")])
    pair.pump()
    other = pair.call(hand.VERSION)
    pair.runtime.send_headers(other, [(":status", "200")])
    pair.runtime.send_data(other, b"d" * 10_000)
    pair.pump()
    # All of the connection's window is taken by the answer, which the runtime cannot know.
    assert len(pair.received(stream, "client")) == 65_535 and pair.received(other, "client") == b""
    pair.take(pair.client, stream, 65_535)
    assert pair.received(stream, "client") == write_message(LONG)
    assert pair.headers(stream) == [
        {":status": "200", "content-type": "application/grpc"},
        {"grpc-status": "0", "x-trailer": "t", "x-bin": "AAE"},
    ]
    assert pair.received(other, "client") == b"d" * 10_000
    pair.take(pair.client, stream, len(LONG) + 5 - 65_535)
    pair.take(pair.client, other, 10_000)
    assert pair.books_are_right() and pair.surplus() == (0, 0)
    pair.runtime.end_stream(other)
    pair.pump()
    assert all_is_in_step(pair)


def test_data_that_crosses_an_answer_is_swallowed_with_its_credit(pair) -> None:
    stream = pair.call(hand.CREATE, b"create", end=False)
    pair.relay.take_over(stream)
    pair.client.send_data(stream, b"more" * 1000)
    pair.pump()
    pair.relay.answer(stream, b"done")
    pair.relay.finish(stream, 0, "")
    pair.pump()
    assert pair.received(stream, "client") == write_message(b"done") and pair.received(stream) == b""
    assert pair.books_are_right() and all_is_in_step(pair)


def test_a_client_that_leaves_while_it_is_answered_gets_nothing_more(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    pair.relay.take_over(stream)
    pair.pump()
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.pump()
    pair.relay.answer(stream, b"late")
    pair.relay.finish(stream, 0, "")
    pair.pump()
    assert pair.headers(stream) == [] and pair.relay.methods == {} and all_is_in_step(pair)


def test_headers_that_cross_a_reset_of_a_call_that_was_taken_over_are_no_doubt(pair) -> None:
    stream = pair.call(hand.CREATE, b"create")
    pair.runtime.send_headers(stream, [(":status", "200"), ("x-early", "1")])
    pair.runtime.send_headers(stream, [("grpc-status", "4"), ("x-late", "2")], end_stream=True)
    late = pair.runtime.data_to_send()
    pair.relay.take_over(stream)
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.relay.from_client(pair.client.data_to_send(), 0.0)
    pair.relay.from_runtime(late, 0.0)
    pair.pump()
    pair.relay.finish(stream, 9, "no")
    assert pair.closing() == [] and pair.relay.methods == {} and not pair.relay.is_busy
    other = pair.call(hand.VERSION)
    fields = [(":status", "200"), ("x-early", "1"), ("x-late", "2")]
    pair.runtime.send_headers(other, fields, end_stream=True)
    pair.pump()
    assert pair.headers(other) == [dict(fields)] and all_is_in_step(pair) and pair.books_are_right()


# ---------------------------------------------------------------------- the end of a connection


def test_when_the_runtime_goes_calls_end_unavailable_and_the_client_is_sent_away(pair) -> None:
    begun = created(pair)
    pair.runtime.send_headers(begun, [(":status", "200")])
    pair.pump()
    waiting, held = pair.call(hand.VERSION), pair.call(hand.CREATE, b"held")
    pair.relay.runtime_lost()
    pair.relay_writes()
    assert [pair.headers(stream)[-1]["grpc-status"] for stream in (begun, waiting, held)] == ["14"] * 3
    assert [e.end for e in pair.ended()] == [CallEnd.UNKNOWN, CallEnd.REFUSED]
    assert len(pair.closing()) == 1 and hand.goaways(pair.to_client) == [(held, Error.NO_ERROR)]


@pytest.mark.parametrize("code", [9, 0], ids=["a refusal", "an answer"])
def test_what_waits_for_the_runtimes_word_reaches_the_client_when_the_runtime_goes(pair, code) -> None:
    stream, undecided = pair.call(hand.CREATE, b"create"), pair.call(hand.CREATE, b"other")
    for taken in (stream, undecided):
        pair.relay.take_over(taken)
    if not code:
        pair.relay.answer(stream, b"made")
    pair.relay.finish(stream, code, "")
    pair.relay.runtime_lost()
    pair.relay_writes()
    assert pair.headers(stream)[-1]["grpc-status"] == str(code)
    assert pair.received(stream, "client") == (b"" if code else write_message(b"made"))
    assert pair.headers(undecided)[-1]["grpc-status"] == "14" and len(pair.closing()) == 1


def test_a_connection_in_which_something_is_half_done_ends_with_all_its_calls(pair) -> None:
    created(pair)
    pair.call(hand.CREATE, b"held")
    pair.relay.fail("a bug")
    pair.relay_writes()
    assert [e.end for e in pair.ended()] == [CallEnd.UNKNOWN, CallEnd.REFUSED]
    assert [closing.reason for closing in pair.closing()] == ["a bug"]
    assert hand.goaways(pair.to_client) == [(3, Error.INTERNAL_ERROR)] and hand.goaways(pair.to_runtime) != []
    pair.relay.fail("another")
    assert pair.relay.take_events() == []


def test_a_reply_that_was_there_before_the_runtime_went_is_passed_on(pair) -> None:
    stream = created(pair)
    pair.reply(stream, b"the id")
    pair.relay.runtime_lost()
    pair.answer_notes()
    assert pair.headers(stream)[-1]["grpc-status"] == "0" and len(pair.closing()) == 1


def test_goaway_of_the_runtime_passes_and_ends_what_it_will_not_serve(pair) -> None:
    served = created(pair)
    pair.call(hand.CREATE, b"held")
    told = hand.goaway(served)
    pair.relay.from_runtime(told, 0.0)
    pair.relay_writes()
    assert [(e.end, e.code) for e in pair.ended()] == [(CallEnd.REFUSED, 14)]
    assert hand.goaways(pair.to_client) == [(served, 0)] and list(pair.relay.methods) == [served]


def test_goaway_of_the_client_passes_and_ends_nothing() -> None:
    relay, _ = hand.hand_made(hand.headers(1), hand.data(1, hand.HOLDS))
    relay.to_runtime.clear()
    relay.from_client(hand.goaway(0), 0.0)
    relay.forward(1, b"+")
    assert b"".join(relay.to_runtime) == hand.goaway(0) + hand.data(1, write_message(b"create+"))
    assert set(relay.methods) == {1}


def test_a_farewell_ends_no_call_and_what_follows_it_is_served_until_the_last_word() -> None:
    relay, _ = hand.hand_made(hand.headers(1, hand.OTHER_BLOCK))
    relay.say_farewell()
    [goodbye, (_, _, _, payload)] = hand.written(b"".join(relay.to_client))[-2:]
    assert goodbye[3] == (0x7FFFFFFF).to_bytes(4, "big") + bytes(4) and relay.take_events() == []
    # grpc's C core answers before it sends a call that it had begun.
    relay.from_client(hand.ping(payload, is_answer=True) + hand.headers(3, hand.OTHER_BLOCK), 0.0)
    assert relay.take_events() == [FarewellRead()] and set(relay.methods) == {1, 3}
    relay.from_client(hand.headers(5, hand.OTHER_BLOCK), 0.0)
    relay.from_runtime(hand.headers(1, b"\x88", end=True), 0.0)
    assert hand.goaways(b"".join(relay.to_client)) == [(0x7FFFFFFF, 0)] and set(relay.methods) == {3, 5}
    relay.conclude()
    relay.from_client(hand.headers(7, hand.OTHER_BLOCK), 0.0)
    relay.conclude()  # again: nothing
    assert hand.goaways(b"".join(relay.to_client)) == [(0x7FFFFFFF, 0), (5, 0)] and set(relay.methods) == {
        3,
        5,
    }


def test_the_last_number_of_a_farewell_is_not_larger_than_the_runtimes() -> None:
    relay, _ = hand.hand_made(hand.headers(1, hand.OTHER_BLOCK))
    relay.say_farewell()
    relay.from_runtime(hand.goaway(1), 0.0)
    relay.from_client(hand.headers(3, hand.OTHER_BLOCK), 0.0)
    relay.conclude()
    assert hand.goaways(b"".join(relay.to_client)) == [(0x7FFFFFFF, 0), (1, 0), (1, 0)]


def test_nothing_reaches_a_client_before_the_runtimes_settings() -> None:
    relay = RelayedConnection(lambda method: method)
    relay.from_client(PREFACE + write_settings() + hand.headers(1) + hand.data(1, hand.HOLDS), 0.0)
    assert relay.to_client == []
    relay.from_runtime(write_settings((3, 100)) + hand.CONFIRMED, 0.0)
    kinds = [(kind, flags) for kind, flags, _, _ in hand.written(b"".join(relay.to_client))]
    assert kinds[0] == (SETTINGS, 0) and kinds[-1] == (SETTINGS, ACK)
    assert {kind for kind, _ in kinds} == {SETTINGS, WINDOW_UPDATE}


def test_a_farewell_before_the_runtime_has_said_anything_begins_with_settings_of_ours() -> None:
    relay = RelayedConnection(lambda method: method)
    relay.say_farewell()
    assert [kind for kind, _, _, _ in hand.written(b"".join(relay.to_client))] == [SETTINGS, GOAWAY, PING]
    # The runtime's follow; it gets the confirmation that is for them, and no other.
    relay.from_runtime(write_settings((3, 100)), 0.0)
    relay.from_client(PREFACE + write_settings() + hand.CONFIRMED + hand.CONFIRMED, 0.0)
    assert b"".join(relay.to_runtime) == PREFACE + write_settings() + hand.CONFIRMED


def test_a_runtime_that_goes_before_it_has_said_anything_is_spoken_for() -> None:
    relay = RelayedConnection(lambda method: method)
    relay.runtime_lost()
    assert [kind for kind, _, _, _ in hand.written(b"".join(relay.to_client))] == [SETTINGS, GOAWAY]


def test_a_call_that_is_stopped_ends_with_our_word_on_both_sides(pair) -> None:
    stream = created(pair)
    pair.runtime.send_headers(stream, [(":status", "200")])
    pair.pump()
    pair.relay.stop_call(stream, 14, "stopping")
    pair.pump()
    assert pair.headers(stream)[-1] == {"grpc-status": "14", "grpc-message": "stopping"}
    assert pair.was_reset(stream) and [(e.end, e.code) for e in pair.ended()] == [(CallEnd.UNKNOWN, 14)]
    assert all_is_in_step(pair)
