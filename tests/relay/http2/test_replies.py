"""Replies of intercepted calls are shown before the client has them, and so is how calls end."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.frames import (
    Error,
)
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.interception import CallEnd
from tests.relay.http2.hand import CREATE, VERSION
from tests.relay.http2.pair import LONG, Pair, all_is_in_step, created

# ---------------------------------------------------------------------- replies


def test_the_state_knows_of_a_reply_and_of_the_end_before_the_client_does(pair) -> None:
    stream = created(pair)
    pair.reply(stream, b"the id")
    assert pair.observed() == [b"the id"] and pair.received(stream, "client") == b""
    pair.relay.resume()
    pair.pump()
    assert pair.received(stream, "client") == write_message(b"the id")
    [ended] = pair.ended()
    assert (ended.end, ended.code) == (CallEnd.OK, 0) and not pair.has_ended(stream, "client")
    pair.relay.resume()
    pair.pump()
    assert pair.has_ended(stream, "client") and all_is_in_step(pair)


@pytest.mark.parametrize("cut", [1, 100, 1 << 30], ids=lambda cut: f"in pieces of {cut}")
def test_replies_in_parts_and_several_in_one_are_shown_each_and_arrive_whole(cut) -> None:
    pair = Pair(cut=cut)
    stream = created(pair)
    sent = (
        write_message(b"one") + write_message(b"two" * 10_000) + write_message(b"") + write_message(b"four")
    )
    pair.runtime.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    for part in (sent[:3], sent[3:10], sent[10:9000], sent[9000:20_000], sent[20_000:]):
        pair.runtime.send_data(stream, part)
        pair.pump()
        pair.answer_notes()
    pair.runtime.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    pair.pump()
    pair.answer_notes()
    assert pair.observed() == [b"one", b"two" * 10_000, b"", b"four"]
    assert pair.received(stream, "client") == sent and pair.has_ended(stream, "client")
    pair.take(pair.client, stream, len(sent))
    assert pair.books_are_right() and all_is_in_step(pair)


def test_messages_are_cut_or_left_out_by_a_filter(pair) -> None:
    stream = created(pair)
    first = [(":status", "200"), ("content-type", "application/grpc")]
    pair.runtime.send_headers(stream, first)
    pair.runtime.send_data(stream, b"".join(map(write_message, (b"a secret", b"all", b"gone"))))
    pair.runtime.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    pair.pump()
    shown = pair.observed()
    pair.relay.resume([b"a", shown[1], None])
    pair.pump()
    pair.answer_notes()
    assert pair.received(stream, "client") == write_message(b"a") + write_message(b"all")
    assert pair.has_ended(stream, "client")
    pair.take(pair.client, stream, len(pair.received(stream, "client")))
    assert pair.books_are_right() and all_is_in_step(pair)


def test_a_filtered_reply_larger_than_the_clients_window_comes_as_it_is_taken(pair) -> None:
    stream = created(pair)
    pair.runtime.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    left = write_message(LONG)
    while left:
        size = min(len(left), 16_384, pair.runtime.local_flow_control_window(stream))
        pair.runtime.send_data(stream, left[:size])
        left = left[size:]
        pair.pump()
    pair.runtime.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    pair.pump()
    pair.relay.resume([LONG[:90_000]])
    pair.pump()
    other = pair.call(VERSION)
    pair.reply(other, b"waits behind it")
    assert len(pair.received(stream, "client")) == 65_535 and not pair.has_ended(other, "client")
    pair.take(pair.client, stream, 65_535)
    pair.answer_notes()
    assert pair.received(stream, "client") == write_message(LONG[:90_000])
    assert pair.has_ended(stream, "client") and pair.has_ended(other, "client") and all_is_in_step(pair)


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("9", CallEnd.REFUSED),
        ("2", CallEnd.REFUSED),
        ("1", CallEnd.UNKNOWN),
        ("4", CallEnd.UNKNOWN),
        ("14", CallEnd.UNKNOWN),
    ],
)
def test_the_runtimes_errors_are_told_apart_and_pass(pair, status, end) -> None:
    stream = created(pair)
    pair.reply(stream, status=status)
    pair.answer_notes()
    assert [(e.end, e.code, e.details) for e in pair.ended()] == [(end, int(status), f"said {status}")]
    assert pair.headers(stream) == [
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": status,
            "grpc-message": f"said {status}",
        }
    ]


@pytest.mark.parametrize(
    ("error", "end", "code"),
    [
        (Error.REFUSED_STREAM, CallEnd.REFUSED, 14),
        (Error.CANCEL, CallEnd.UNKNOWN, 1),
        (Error.INTERNAL_ERROR, CallEnd.UNKNOWN, 13),
    ],
)
def test_a_reset_by_the_runtime_is_an_end(pair, error, end, code) -> None:
    stream = created(pair)
    pair.runtime.reset_stream(stream, error)
    pair.pump()
    assert not pair.was_reset(stream, "client")
    pair.answer_notes()
    assert [(e.end, e.code) for e in pair.ended()] == [(end, code)]
    assert pair.was_reset(stream, "client") and all_is_in_step(pair)


def test_an_end_without_a_status_leaves_a_doubt(pair) -> None:
    stream = created(pair)
    pair.runtime.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    pair.runtime.send_headers(stream, [("x-other", "1")], end_stream=True)
    pair.pump()
    pair.answer_notes()
    assert [(e.end, e.code) for e in pair.ended()] == [(CallEnd.UNKNOWN, 2)]
    assert pair.headers(stream)[-1] == {"x-other": "1"} and all_is_in_step(pair)


def test_a_runtime_that_answers_before_it_has_the_request_is_believed(pair) -> None:
    stream = pair.call(CREATE, b"create")
    pair.reply(stream, status="12")
    assert [(e.end, e.code, e.waits) for e in pair.ended()] == [(CallEnd.REFUSED, 12, False)]
    assert pair.headers(stream)[-1]["grpc-status"] == "12"
    pair.relay.forward(stream, b"+")
    pair.pump()
    assert pair.received(stream) == b"" and all_is_in_step(pair)


# ---------------------------------------------------------------------- the client goes away


def test_a_reset_of_what_is_held_is_a_cancel_and_nothing_was_sent(pair) -> None:
    stream = pair.call(CREATE, b"create")
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.pump()
    assert [(e.end, e.code) for e in pair.ended()] == [(CallEnd.REFUSED, 1)]
    assert pair.was_reset(stream) and pair.received(stream) == b"" and all_is_in_step(pair)


def test_a_reset_of_what_was_sent_leaves_a_doubt(pair) -> None:
    stream = created(pair)
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.pump()
    assert [(e.end, e.code) for e in pair.ended()] == [(CallEnd.UNKNOWN, 1)]
    assert pair.was_reset(stream) and all_is_in_step(pair)


@pytest.mark.parametrize("method", [CREATE, VERSION], ids=["intercepted", "passing"])
def test_what_crosses_a_reset_of_the_clients_still_passes_its_table(pair, method) -> None:
    stream = created(pair) if method == CREATE else pair.call(method)
    pair.runtime.send_headers(stream, [(":status", "200"), ("x-early", "remember me")])
    pair.runtime.send_data(stream, write_message(b"late"))
    pair.runtime.send_headers(stream, [("grpc-status", "0"), ("x-late", "me too")], end_stream=True)
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.pump()
    other = pair.call(VERSION)
    fields = [(":status", "200"), ("x-early", "remember me"), ("x-late", "me too")]
    pair.runtime.send_headers(other, fields, end_stream=True)
    pair.pump()
    assert pair.headers(other) == [dict(fields)] and pair.relay.methods == {}
    pair.take(pair.client, other, 9)
    assert pair.books_are_right() and all_is_in_step(pair)


def test_a_reset_of_half_a_request_is_nobodys_business(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, write_message(LONG)[:5000])
    pair.client.reset_stream(stream, Error.CANCEL)
    pair.pump()
    assert pair.happened == [] and pair.was_reset(stream) and all_is_in_step(pair)
    assert pair.books_are_right()


@pytest.mark.parametrize("is_stopped", [False, True], ids=["reset", "stopped"])
@pytest.mark.parametrize("parts", [1, 2], ids=lambda parts: f"a reply in {parts}")
def test_a_reply_whose_call_ends_while_it_is_noted_is_paid_for_once(parts, is_stopped) -> None:
    pair = Pair()
    for _ in range(10):
        stream = created(pair)
        pair.runtime.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        message = write_message(b"x" * 15_000)
        for part in range(parts):
            pair.runtime.send_data(stream, message[part * 5_000 : None if part == parts - 1 else 5_000])
            pair.pump()
        assert pair.relay.is_noting
        if is_stopped:
            pair.relay.stop_call(stream, 14, "stopping")
        else:
            pair.client.reset_stream(stream, Error.CANCEL)
        pair.pump()
        pair.relay.resume()
        pair.pump()
        pair.take(pair.client, stream, 15_005) if parts == 1 and not is_stopped else None
        assert pair.books_are_right()
    assert all_is_in_step(pair)


def test_a_lost_client_ends_all_its_calls(pair) -> None:
    created(pair)
    pair.call(CREATE, b"held")
    pair.relay.client_lost()
    pair.relay_writes()
    assert [e.end for e in pair.ended()] == [CallEnd.UNKNOWN, CallEnd.REFUSED] and len(pair.closing()) == 1
