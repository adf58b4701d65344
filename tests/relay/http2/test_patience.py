"""What brings no call on is taken in a limited number; what does is not counted."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2 import frames
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import BURST, PER_S, Patience
from tests.relay.http2.hand import CONFIRMED, data, goaways, hand_made, headers, ping


def spent(patience: Patience, now_s: float) -> int:
    """How many are taken now."""
    count = 0
    while True:
        try:
            patience.spend(now_s, "PING")
        except frames.ProtocolError as doubt:
            assert doubt.code == frames.Error.ENHANCE_YOUR_CALM and str(doubt).startswith("PING: more than")
            return count
        count += 1


def test_a_burst_is_taken_and_then_so_many_a_second() -> None:
    patience = Patience()
    assert spent(patience, 100.0) == BURST
    assert spent(patience, 101.0) == PER_S
    assert spent(patience, 10_000.0) == BURST


def test_each_answered_call_allows_one_more_and_none_are_saved_up() -> None:
    patience = Patience()
    patience.regain()
    assert spent(patience, 0.0) == BURST
    patience.regain()
    assert spent(patience, 0.0) == 1


def ends_with(relay: RelayedConnection) -> list[tuple[int, int]]:
    return goaways(b"".join(relay.to_client))


@pytest.mark.parametrize(
    "frame",
    [
        ping(bytes(8)),
        data(1, b""),
        frames.write_reset(1, frames.Error.CANCEL),
        frames.write_frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.write_frame(0xFA, 0, 0, b""),
        headers(1, b"\x83", end=True),
    ],
    ids=["PING", "empty DATA", "RST_STREAM", "PRIORITY", "an unknown kind", "HEADERS of a call that is over"],
)
def test_frames_that_bring_no_call_on_end_the_connection_when_there_were_too_many(frame: bytes) -> None:
    relay, _ = hand_made(headers(1, b"\x83\x86", end=frame[3] == 1), CONFIRMED)
    if frame[3] == 1:
        relay.from_client(frames.write_reset(1, frames.Error.CANCEL), 0.0)
    for _ in range(BURST - 1):
        relay.from_client(frame, 0.0)
    assert ends_with(relay) == []
    for _ in range(2):
        relay.from_client(frame, 0.0)
    assert ends_with(relay) == [(1, frames.Error.ENHANCE_YOUR_CALM)]


def test_settings_that_are_confirmed_and_pings_between_replies_are_not_counted() -> None:
    relay, _ = hand_made(headers(1, b"\x83\x86"))
    for _ in range(2 * BURST):
        relay.from_client(frames.write_settings(), 0.0)
        relay.from_runtime(CONFIRMED, 0.0)
        relay.from_runtime(data(1, b""), 0.0)
        relay.from_client(ping(bytes(8)), 0.0)
    assert ends_with(relay) == []
