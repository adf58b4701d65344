"""What passes is the same to the byte; a request that is intercepted is held, and sent on with what is appended."""

from __future__ import annotations

import gc
import gzip

import pytest

from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.requests import HOLD_S
from cri_proxy.relay.http2.stream import FailedOpen, RequestReceived
from cri_proxy.relay.inflated import Inflated
from tests.relay.http2.hand import BLOCK, CREATE, VERSION, data, hand_made, headers
from tests.relay.http2.pair import LONG, Pair, all_is_in_step

# ---------------------------------------------------------------------- what passes


@pytest.mark.parametrize("cut", [1, 7, 9, 10, 1000, 1 << 30], ids=lambda cut: f"in pieces of {cut}")
def test_calls_that_nobody_intercepts_are_the_same_bytes_both_ways(cut) -> None:
    pair = Pair(cut=cut)
    for number in range(4):
        stream = pair.call(VERSION, b"hello" * number, traceparent=f"00-{number}")
        pair.reply(stream, b"one", b"two" * 100, status=str(number))
    assert pair.to_runtime == pair.from_client
    assert pair.to_client == pair.from_runtime
    assert pair.happened == [] and pair.relay.methods == {}


def test_an_intercepted_call_that_is_not_changed_is_the_same_call(pair) -> None:
    stream = pair.call(CREATE, b"create", end=True)
    assert pair.received(stream) == b"" and pair.headers(stream, "runtime")[0][":path"] == CREATE
    pair.relay.forward(stream, b"")
    pair.pump()
    assert pair.received(stream) == write_message(b"create") and pair.has_ended(stream)
    assert all_is_in_step(pair)


@pytest.mark.parametrize("size", [0, 1, 16_378, 16_379, 16_380, 40_000])
def test_a_delta_is_appended_and_the_lengths_are_right(pair, size) -> None:
    stream = pair.call(CREATE, b"m" * size)
    [asked] = pair.asked()
    assert asked.message == b"m" * size
    pair.relay.forward(stream, b"+delta")
    pair.pump()
    assert pair.received(stream) == write_message(b"m" * size + b"+delta") and pair.has_ended(stream)


def test_a_request_whose_end_comes_later_keeps_it_there(pair) -> None:
    stream = pair.call(CREATE, b"create", end=False)
    pair.relay.forward(stream, b"+")
    pair.pump()
    assert pair.received(stream) == write_message(b"create+") and not pair.has_ended(stream)
    pair.send(stream, b"", end=True)
    assert pair.has_ended(stream)


def test_messages_behind_the_first_wait_for_it_and_pass_as_they_are(pair) -> None:
    stream = pair.call(CREATE, b"one", end=False)
    pair.send(stream, write_message(b"two"))
    assert pair.received(stream) == b""
    pair.relay.forward(stream, b"+")
    pair.pump()
    pair.send(stream, write_message(b"three"), end=True)
    assert pair.received(stream) == write_message(b"one+") + write_message(b"two") + write_message(b"three")
    assert len(pair.asked()) == 1 and pair.has_ended(stream)


def test_a_call_without_a_message_is_the_runtimes_to_answer(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, b"", end=True)
    assert pair.has_ended(stream) and pair.asked() == [] and pair.failed_open() == []


def test_padding_is_taken_off_what_is_held_and_its_credit_is_given_back(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, write_message(LONG), end=True, pad=200)
    pair.relay.forward(stream, b"")
    pair.pump()
    while len(pair.received(stream)) < len(LONG) + 5:
        pair.take(pair.runtime, stream, 30_000)
    assert pair.received(stream) == write_message(LONG)
    assert pair.has_ended(stream) and pair.failed_open() == []
    assert pair.books_are_right()


# ---------------------------------------------------------------------- compressed


@pytest.mark.parametrize("delta", [b"", b"+delta"], ids=["as it came", "with a delta"])
def test_a_compressed_request_is_read_and_a_changed_one_is_sent_plain(pair, delta) -> None:
    raw = gzip.compress(b"create" * 100)
    stream = pair.call(CREATE, None, grpc_encoding="gzip")
    sent = b"\1" + len(raw).to_bytes(4, "big") + raw
    pair.send(stream, sent, end=True)
    assert pair.asked()[0].message == b"create" * 100
    pair.relay.forward(stream, delta)
    pair.pump()
    assert pair.received(stream) == (write_message(b"create" * 100 + delta) if delta else sent)


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [("snappy", b"whatever"), ("gzip", b"not gzip"), ("gzip", gzip.compress(b"x" * 100)[:-9]), ("", b"x")],
    ids=["unknown", "broken", "cut off", "not announced"],
)
def test_a_compression_nobody_can_undo_passes_unseen(pair, encoding, raw) -> None:
    stream = pair.call(CREATE, None, **({"grpc_encoding": encoding} if encoding else {}))
    sent = b"\1" + len(raw).to_bytes(4, "big") + raw
    pair.send(stream, sent, end=True)
    assert pair.received(stream) == sent and pair.has_ended(stream)
    assert pair.failed_open() == ["compressed"] and pair.asked() == []


# ---------------------------------------------------------------------- fail open


def test_half_a_request_is_sent_on_as_it_is_when_its_time_is_over(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, write_message(LONG)[:5000])
    pair.relay.tick(HOLD_S - 1)
    pair.pump()
    assert pair.received(stream) == b""
    pair.relay.tick(HOLD_S)
    pair.pump()
    assert pair.received(stream) == write_message(LONG)[:5000] and pair.failed_open() == ["too slow"]
    pair.send(stream, write_message(LONG)[5000:20_000], end=True)
    assert pair.received(stream) == write_message(LONG)[:20_000] and pair.has_ended(stream)
    pair.reply(stream, b"ok")
    assert pair.observed() == [] and pair.ended() == [] and all_is_in_step(pair)


def test_a_request_that_says_it_is_larger_than_16_mib_is_not_waited_for(pair) -> None:
    stream = pair.call(CREATE, None)
    head = b"\0" + (17 << 20).to_bytes(4, "big")
    pair.send(stream, head + b"x" * 100)
    assert pair.received(stream) == head + b"x" * 100 and pair.failed_open() == ["too large"]


def test_a_request_that_ends_too_soon_is_the_runtimes_to_refuse(pair) -> None:
    stream = pair.call(CREATE, None)
    pair.send(stream, write_message(b"create")[:-1], end=True)
    assert pair.received(stream) == write_message(b"create")[:-1] and pair.has_ended(stream)
    assert pair.failed_open() == ["incomplete"]


def test_decompressed_messages_of_all_connections_have_a_limit_together() -> None:
    gc.collect()  # of other tests
    begun = Inflated.total
    bomb = gzip.compress(bytes(15 << 20))
    request = b"\1" + len(bomb).to_bytes(4, "big") + bomb
    sent = b"".join(data(1, request[at : at + 16_000]) for at in range(0, len(request), 16_000))
    events = []
    for _ in range(6):
        relay, _ = hand_made(headers(1, BLOCK + b"\x00\x0dgrpc-encoding\x04gzip"), sent)
        events += relay.take_events()
    assert [type(event) for event in events] == 5 * [RequestReceived] + [FailedOpen]
    assert Inflated.total == begun + 5 * (15 << 20)
    events.clear()
    del relay
    gc.collect()
    assert Inflated.total == begun
