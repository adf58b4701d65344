"""Calls of our own on a connection: what is sent of them, and how each of their ends is read."""

from __future__ import annotations

import zlib
from typing import Optional

import pytest

from cri_proxy.relay.http2.caller import WINDOW, Caller, OwnCall
from cri_proxy.relay.http2.frames import (
    ACK,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Error,
    write_frame,
    write_goaway,
    write_headers,
    write_reset,
    write_settings,
)
from cri_proxy.relay.http2.headers import write_fields, write_request, write_response, write_trailers
from cri_proxy.relay.http2.messages import MAX_MESSAGE_BYTES, write_message
from cri_proxy.relay.status import Code
from tests.relay.http2.hand import VERSION, Written, data, goaway, headers, ping, written

BLOCK = write_request(VERSION)
HEAD = headers(1, write_response())
REPLY = data(1, write_message(b"reply"))


def nothing() -> None:
    pass


def trailers(code: int, details: str = "", stream: int = 1) -> bytes:
    return headers(stream, write_trailers(code, details), end=True)


def made(*frames: bytes, settings: bytes = b"", request: bytes = b"ask") -> tuple[Caller, OwnCall]:
    """A connection with one call, whose server has said this."""
    caller = Caller()
    call = caller.begin(BLOCK, request, nothing)
    caller.received((settings or write_settings()) + b"".join(frames))
    return caller, call


def sent(caller: Caller) -> list[Written]:
    """What was written since the last time."""
    frames = written(b"".join(map(bytes, caller.to_runtime)))
    caller.to_runtime.clear()
    return frames


def test_the_request_goes_out_with_the_connection_and_settings_are_confirmed() -> None:
    caller, _ = made()
    assert bytes(caller.to_runtime[0]) == PREFACE
    frames = sent(caller)
    assert [frame.kind for frame in frames[:4]] == [SETTINGS, WINDOW_UPDATE, HEADERS, DATA]
    assert (frames[3].payload, frames[3].flags & 1) == (write_message(b"ask"), 1)
    assert (frames[4].kind, frames[4].flags) == (SETTINGS, ACK)


def test_messages_are_whole_whatever_frames_they_came_in() -> None:
    said = write_message(b"one") + write_message(b"two")
    _, call = made(HEAD, data(1, said[:6]), data(1, said[6:]))
    assert [call.read(message) for message in call.take_messages()] == [b"one", b"two"]
    assert call.head is not None and not call.is_over


def test_a_compressed_message_is_read() -> None:
    packing = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    packed = packing.compress(b"reply") + packing.flush()
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    head = headers(1, write_response([("grpc-encoding", "gzip")]))
    _, call = made(head, data(1, message), trailers(0))
    assert [call.read(message) for message in call.take_messages()] == [b"reply"]


# ---------------------------------------------------------------------- ends

HTTP_404 = write_fields([(b":status", b"404"), (b"content-type", b"text/html")])
RESET = "the server has reset the call (HTTP/2 error {})"
ENDED = "the container runtime has ended the connection"
ENDS: dict[str, tuple[list[bytes], int, str, bool]] = {
    # What the server says; code, details, and whether it may have done what was asked.
    "trailers": ([HEAD, trailers(15, "gone")], 15, "gone", False),
    "trailers only": ([headers(1, write_response() + write_trailers(12, "no"), end=True)], 12, "no", False),
    "its own doubt": ([HEAD, trailers(4, "late")], 4, "late", True),
    "a code that is none": ([HEAD, trailers(99, "odd")], 99, "odd", False),
    "no status": (
        [HEAD, headers(1, write_fields([(b"a", b"b")]), end=True)],
        2,
        "no grpc-status in the trailers (HTTP status unknown)",
        True,
    ),
    "HTTP": ([headers(1, HTTP_404)], 12, "no grpc-status in the trailers (HTTP status 404)", True),
    "refused": ([write_reset(1, Error.REFUSED_STREAM)], 14, RESET.format(7), False),
    "cancelled": ([HEAD, write_reset(1, Error.CANCEL)], 1, RESET.format(8), True),
    "calm": ([write_reset(1, Error.ENHANCE_YOUR_CALM)], 8, RESET.format(11), True),
    "another reset": ([HEAD, REPLY, write_reset(1, Error.NO_ERROR)], 13, RESET.format(0), True),
    "GOAWAY": ([write_goaway(0, Error.NO_ERROR)], 14, ENDED, False),
    "GOAWAY with a reason": (
        [write_goaway(0, Error.ENHANCE_YOUR_CALM, "too_many_pings")],
        14,
        f"{ENDED} (HTTP/2 error 11: too_many_pings)",
        False,
    ),
    "DATA": ([HEAD, data(1, b"", end=True)], 13, "no trailers", True),
    "rubbish": (
        [b"\xff" * 9],
        14,
        "the container runtime cannot be understood: a frame of 16777215 bytes, at most 16384",
        True,
    ),
    "another stream's": (
        [headers(3, write_response())],
        14,
        "the container runtime cannot be understood: a frame on stream 3, which is not open",
        True,
    ),
    "DATA first": (
        [REPLY],
        14,
        "the container runtime cannot be understood: DATA before the headers of stream 1",
        True,
    ),
}


@pytest.mark.parametrize(("frames", "code", "details", "in_doubt"), ENDS.values(), ids=ENDS.keys())
def test_each_end_has_a_status(frames: list[bytes], code: int, details: str, in_doubt: bool) -> None:
    _, call = made(*frames)
    assert (call.is_over, call.status) == (True, (code, details))
    error = call.error()
    assert error.code == (code if code < 17 else Code.UNKNOWN)
    assert (error.details, error.in_doubt) == (details, in_doubt)


def test_an_answer_that_is_not_http2_is_none() -> None:
    caller = Caller()
    call = caller.begin(BLOCK, b"ask", nothing)
    caller.received(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    assert caller.is_over and call.error().code is Code.UNAVAILABLE


def test_metadata_is_as_it_was_sent() -> None:
    block = write_trailers(6, "caf\u00e9 100%", [("a", "b"), ("raw-bin", b"\0\xff"), ("raw-bin", b"2")])
    _, call = made(HEAD, headers(1, block + write_fields([(b"bad-bin", b"A")]), end=True))
    error = call.error()
    assert error.details == "caf\u00e9 100%"
    assert error.trailers == (("a", "b"), ("raw-bin", b"\0\xff"), ("raw-bin", b"2"))


def test_a_lost_connection_is_an_end_unless_there_was_one() -> None:
    caller, call = made(HEAD)
    caller.lost()
    assert call.status == (14, "the container runtime has closed the connection")
    assert call.error().in_doubt
    caller, ended = made(HEAD, trailers(0))
    caller.lost()
    assert ended.status == (0, "")


def test_a_message_has_any_size_unless_it_is_limited() -> None:
    prefix = (MAX_MESSAGE_BYTES + 1).to_bytes(5, "big")
    for is_limited in (False, True):
        caller = Caller()
        call = caller.begin(BLOCK, b"", nothing, is_limited)
        caller.received(write_settings() + HEAD + data(1, prefix))
        assert call.is_over is is_limited
    assert call.status == (13, f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    assert (sent(caller)[-1].kind, call.error().in_doubt) == (RST_STREAM, True)


def test_all_calls_above_the_last_of_a_goaway_were_not_sent_and_the_others_go_on() -> None:
    caller, first = made(HEAD)
    second = caller.begin(BLOCK, b"", nothing)
    caller.received(goaway(1))
    assert (first.is_over, second.is_over, caller.takes_calls) == (False, True, False)
    assert (second.error().code, second.error().in_doubt) == (Code.UNAVAILABLE, False)
    caller.received(REPLY + trailers(0))
    assert first.status == (0, "") and not caller.is_busy and not caller.is_over


# ---------------------------------------------------------------------- limits of the server


def test_a_request_is_sent_as_its_windows_allow() -> None:
    window, frame = 0x4, 0x5
    caller, call = made(settings=write_settings((window, 10), (frame, 20_000)), request=bytes(60_000))
    # The first window is what every server has; it is one that shrinks below zero here.
    assert sum(len(got.payload) for got in sent(caller) if got.kind == DATA) == 60_005
    call = caller.begin(BLOCK, bytes(15), nothing)
    assert [len(got.payload) for got in sent(caller) if got.kind == DATA] == [10]
    caller.received(write_frame(WINDOW_UPDATE, 0, 3, (4).to_bytes(4, "big")))
    assert [(len(got.payload), got.flags) for got in sent(caller)] == [(4, 0)]
    caller.received(write_settings((window, 12)))
    assert [(len(got.payload), got.flags) for got in sent(caller) if got.kind == DATA] == [(2, 0)]
    caller.received(write_frame(WINDOW_UPDATE, 0, 3, (100).to_bytes(4, "big")))
    assert [(len(got.payload), got.flags) for got in sent(caller)] == [(4, 1)]
    assert not call.is_over


def test_the_window_of_the_connection_is_all_calls() -> None:
    caller, _ = made(request=bytes(65_530 - 5))
    sent(caller)
    calls = [caller.begin(BLOCK, bytes(5), nothing) for _ in range(2)]
    assert [len(got.payload) for got in sent(caller) if got.kind == DATA] == [5]
    caller.received(write_frame(WINDOW_UPDATE, 0, 0, (8).to_bytes(4, "big")))
    assert [(got.stream, len(got.payload), got.flags) for got in sent(caller)] == [(3, 5, 1), (5, 3, 0)]
    caller.cancel(calls[1])
    assert [(got.kind, got.stream) for got in sent(caller)] == [(RST_STREAM, 5)]


def test_frames_are_as_large_as_the_server_takes() -> None:
    caller, _ = made(settings=write_settings((0x5, 30_000), (0x4, 1 << 20)))
    caller.received(write_frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    sent(caller)
    caller.begin(BLOCK, bytes(70_000), nothing)
    sizes = [len(got.payload) for got in sent(caller) if got.kind == DATA]
    assert sizes == [30_000, 30_000, 10_005]


def test_calls_beyond_what_the_server_takes_at_once_wait_in_order() -> None:
    woken: list[int] = []
    caller, first = made(settings=write_settings((0x3, 1)))
    others = [caller.begin(BLOCK, b"%d" % n, lambda n=n: woken.append(n)) for n in range(3)]
    sent(caller)
    assert [call.stream for call in others] == [0, 0, 0]
    caller.cancel(others[1])
    assert sent(caller) == [] and woken == [1]
    caller.received(HEAD + trailers(0))
    assert [(got.kind, got.stream) for got in sent(caller)] == [(HEADERS, 3), (DATA, 3)]
    caller.received(write_settings((0x3, 5)))
    opened = [got for got in sent(caller) if got.stream == 5]
    assert [got.payload[5:] for got in opened if got.kind == DATA] == [b"2"]
    assert first.is_over and not others[0].is_over
    caller.received(write_settings((0x3, 0)))
    last = caller.begin(BLOCK, b"", nothing)
    caller.lost()
    assert (last.error().in_doubt, others[0].error().in_doubt) == (False, True)


def test_a_server_that_gives_no_window_and_too_much_of_it_is_not_understood() -> None:
    for stream, credit in ((0, 0), (1, 0), (0, 0x7FFFFFFF), (1, 0x7FFFFFFF)):
        caller, call = made(write_frame(WINDOW_UPDATE, 0, stream, credit.to_bytes(4, "big")))
        assert caller.is_over and call.error().code is Code.UNAVAILABLE
        assert sent(caller)[-1].kind == GOAWAY


def test_an_answer_before_the_request_is_sent_ends_it() -> None:
    caller, call = made(settings=write_settings((0x4, 0)), request=bytes(100_000))
    sent(caller)
    caller.received(HEAD + trailers(3, "too long"))
    assert [(got.kind, got.payload) for got in sent(caller)] == [(RST_STREAM, bytes(4))]
    assert call.status == (3, "too long")
    caller.received(write_frame(WINDOW_UPDATE, 0, 1, (100).to_bytes(4, "big")))
    assert sent(caller) == []


# ---------------------------------------------------------------------- what is given to the server


def test_pings_are_answered() -> None:
    caller, _ = made()
    sent(caller)
    caller.received(ping(b"12345678") + ping(b"87654321", is_answer=True))
    assert sent(caller) == [Written(PING, ACK, 0, b"12345678")]


def test_a_call_has_credit_for_what_was_used_and_the_connection_for_what_has_come() -> None:
    caller, call = made(HEAD)
    sent(caller)
    for _ in range(WINDOW // 4 // 16_000 + 1):
        caller.received(data(1, write_message(bytes(15_995))))
    assert [(frame.kind, frame.stream) for frame in sent(caller)] == [(WINDOW_UPDATE, 0)]
    call.take_messages()
    caller.credit(call)
    assert [(frame.kind, frame.stream) for frame in sent(caller)] == [(WINDOW_UPDATE, 1)]
    caller.credit(call)
    assert sent(caller) == []


def test_a_message_larger_than_the_window_becomes_whole() -> None:
    caller, call = made(HEAD)
    size, window, unsent = 3 * WINDOW, WINDOW, write_message(bytes(3 * WINDOW))
    while unsent:
        assert window >= 16_384
        caller.received(data(1, unsent[:16_384]))
        window -= len(unsent[:16_384])
        unsent = unsent[16_384:]
        window += sum(int.from_bytes(got.payload, "big") for got in sent(caller) if got.stream == 1)
    [message] = call.take_messages()
    read: Optional[bytes] = call.read(message)
    assert read is not None and len(read) == size


def test_what_comes_of_a_call_that_was_cancelled_is_nothing_to_it_and_keeps_the_table() -> None:
    caller, first = made()
    caller.cancel(first)
    assert sent(caller)[-1].kind == RST_STREAM
    # The first block puts a field into the table, to which the second refers.
    indexed = b"\x40" + bytes([11]) + b"grpc-status" + b"\x010"
    caller.received(HEAD + REPLY + headers(1, indexed, end=True))
    second = caller.begin(BLOCK, b"", nothing)
    caller.received(headers(3, write_response()) + headers(3, b"\xbe", end=True))
    assert (first.take_messages(), second.status) == ([], (0, ""))


def test_large_headers_go_out_and_come_in_in_pieces() -> None:
    caller, call = made()
    sent(caller)
    caller.begin(write_request(VERSION, None, (("x", "y" * 20_000),)), b"", nothing)
    assert [got.kind for got in sent(caller)] == [HEADERS, 0x9, DATA]
    text = "z" * 900_000
    caller.received(HEAD + write_headers(1, write_trailers(0, "", [("big", text)]), 16_384, True))
    assert call.is_over and call.status == (0, "")


def test_the_streams_of_a_connection_end() -> None:
    caller, _ = made()
    caller._next_stream = (1 << 31) - 3
    assert caller.takes_calls
    caller.begin(BLOCK, b"", nothing)
    assert not caller.takes_calls


# ---------------------------------------------------------------------- its request


@pytest.mark.parametrize(
    ("timeout_s", "said"),
    [(10.0, b"10000m"), (0.0001, b"1m"), (1.0004, b"1001m"), (200_000.0, b"200000S"), (1e12, b"99999999S")],
)
def test_a_deadline_is_said_in_eight_digits(timeout_s: float, said: bytes) -> None:
    assert b"grpc-timeout" + bytes([len(said)]) + said in write_request(VERSION, timeout_s)


def test_a_request_names_its_method_and_metadata() -> None:
    block = write_request(VERSION, None, (("traceparent", "00-1"), ("raw-bin", b"\0")))
    for name, value in ((b":path", VERSION.encode()), (b"traceparent", b"00-1"), (b"raw-bin", b"AA")):
        assert bytes([len(name)]) + name + bytes([len(value)]) + value in block
    assert b"grpc-timeout" not in block
