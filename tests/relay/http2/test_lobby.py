"""What a client may say before it costs a connection to the runtime."""

from __future__ import annotations

import pytest

from cri_proxy.relay.http2.frames import PREFACE, write_settings, write_window_update
from cri_proxy.relay.http2.lobby import MOST_BYTES, Lobby
from tests.relay.http2.hand import CONFIRMED, headers, ping

GREETING = PREFACE + write_settings((4, 1 << 20)) + write_window_update(0, 1 << 20) + CONFIRMED


@pytest.mark.parametrize("cut", [1, 7, 1000], ids=lambda cut: f"in pieces of {cut}")
def test_a_preface_and_settings_are_greeted_once_and_kept_as_they_came(cut: int) -> None:
    lobby = Lobby()
    for at in range(0, len(GREETING), cut):
        lobby.from_client(GREETING[at : at + cut])
        assert lobby.has_begun is (at + cut >= len(PREFACE))
    assert lobby.to_client == [write_settings()] and lobby.early == GREETING and not lobby.is_over


def test_one_that_was_greeted_is_not_again() -> None:
    lobby = Lobby(is_greeted=True)
    lobby.from_client(GREETING)
    assert lobby.to_client == [] and lobby.has_begun and not lobby.is_over


@pytest.mark.parametrize(
    "said",
    [headers(1), ping(bytes(8)), write_window_update(1, 1)],
    ids=["a call", "a question", "something about a stream"],
)
def test_what_is_for_the_runtime_ends_the_stay(said: bytes) -> None:
    lobby = Lobby()
    lobby.from_client(GREETING)
    lobby.from_client(said)
    assert lobby.is_over and lobby.early == GREETING + said


def test_what_is_not_http2_ends_the_stay_with_its_first_wrong_byte() -> None:
    lobby = Lobby()
    lobby.from_client(b"PRI * HTTP/1")
    assert lobby.is_over and not lobby.is_http2 and not lobby.has_begun and lobby.to_client == []


def test_no_more_is_kept_than_a_greeting_is_long() -> None:
    lobby = Lobby()
    lobby.from_client(PREFACE)
    said = 0
    while not lobby.is_over:
        lobby.from_client(write_settings())
        said += len(write_settings())
    assert said <= MOST_BYTES
