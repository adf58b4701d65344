"""One call at the runtime on a connection of its own: its head, messages and end in their own bytes."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.caller import RUNTIME_GONE, WINDOW, Caller
from cri_proxy.relay.http2.frames import (
    ACK,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    Error,
    write_data,
    write_frame,
    write_goaway,
    write_headers,
    write_reset,
    write_settings,
)
from cri_proxy.relay.http2.headers import write_response, write_trailers
from cri_proxy.relay.http2.messages import write_message
from tests.relay.http2.hand import written

HEADERS = ((b":method", b"POST"), (b":path", b"/runtime.v1.RuntimeService/GetContainerEvents"))
HEAD = write_headers(1, write_response(), 16_384, False)


def made(*frames: bytes) -> Caller:
    caller = Caller(HEADERS, b"ask")
    caller.from_runtime(write_settings() + b"".join(frames))
    return caller


def test_the_request_goes_out_with_the_connection_and_settings_are_confirmed() -> None:
    caller = made()
    sent = b"".join(map(bytes, caller.to_runtime))
    frames = written(sent[len(PREFACE) :])
    assert sent.startswith(PREFACE)
    assert [frame.kind for frame in frames[:4]] == [SETTINGS, WINDOW_UPDATE, 1, 0]
    assert (frames[3].payload, frames[3].flags & 1) == (write_message(b"ask"), 1)
    assert (frames[4].kind, frames[4].flags) == (SETTINGS, ACK)


def test_messages_are_whole_whatever_frames_they_came_in() -> None:
    said = write_message(b"one") + write_message(b"two")
    caller = made(HEAD, write_data(1, said[:6], 16_384, False), write_data(1, said[6:], 16_384, False))
    assert [caller.read(message) for message in caller.take_messages()] == [b"one", b"two"]
    assert caller.head is not None and not caller.is_over


@pytest.mark.parametrize(
    ("frames", "code", "details"),
    [
        ([HEAD, write_headers(1, write_trailers(15, "gone"), 16_384, True)], 15, "gone"),
        ([write_headers(1, write_response() + write_trailers(12, "no"), 16_384, True)], 12, "no"),
        ([HEAD, write_reset(1, Error.CANCEL)], 13, "the runtime has reset the call (HTTP/2 error 8)"),
        ([write_goaway(0, Error.NO_ERROR)], 14, "the runtime has ended the connection"),
        ([HEAD, write_data(1, b"", 16_384, True)], 13, "no trailers"),
    ],
    ids=["trailers", "trailers only", "a reset", "GOAWAY", "DATA"],
)
def test_each_end_has_a_status(frames: list[bytes], code: int, details: str) -> None:
    caller = made(*frames)
    assert (caller.is_over, caller.status) == (True, (code, details))


def test_a_lost_connection_is_an_end_unless_there_was_one() -> None:
    caller = made(HEAD)
    caller.runtime_lost()
    assert caller.status == (14, RUNTIME_GONE)
    ended = made(HEAD, write_headers(1, write_trailers(0, ""), 16_384, True))
    ended.runtime_lost()
    assert ended.status == (0, "")


def test_credit_is_given_for_what_was_passed_on() -> None:
    caller = made(HEAD)
    caller.to_runtime.clear()
    for _ in range(WINDOW // 4 // 16_000 + 1):
        caller.from_runtime(write_frame(0, 0, 1, write_message(bytes(15_995))))
    caller.credit()
    frames = written(b"".join(map(bytes, caller.to_runtime)))
    assert [(frame.kind, frame.stream) for frame in frames] == [(WINDOW_UPDATE, 0), (WINDOW_UPDATE, 1)]
    caller.to_runtime.clear()
    caller.credit()
    assert caller.to_runtime == []
