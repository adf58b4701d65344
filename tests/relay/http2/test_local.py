"""What a client may say before it costs a connection to the runtime; and the end of our own that answers every call
UNAVAILABLE and is otherwise a good HTTP/2 server.
"""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import pytest

from cri_proxy.relay.http2.frames import GOAWAY, PREFACE, SETTINGS, write_settings, write_window_update
from cri_proxy.relay.http2.local import MOST_EARLY_BYTES, NO_RUNTIME, Lobby, LocalEnd
from tests.relay.http2.hand import CONFIRMED, VERSION, headers, ping, written

GREETING = PREFACE + write_settings((4, 1 << 20)) + write_window_update(0, 1 << 20) + CONFIRMED
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", VERSION),
    (":authority", "x"),
    ("te", "trailers"),
]


class Client:
    """An h2 client of a local end."""

    def __init__(self) -> None:
        self.end = LocalEnd()
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.got: list[h2.events.Event] = []
        self.pump()

    def pump(self) -> None:
        while data := self.h2.data_to_send():
            self.end.from_client(data)
            reply = b"".join(self.end.to_client)
            self.end.to_client.clear()
            self.got += self.h2.receive_data(reply)


@pytest.mark.parametrize("is_whole", [True, False])
def test_every_call_ends_unavailable_and_says_why(is_whole: bool) -> None:
    client = Client()
    for number in range(200):
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [*HEADERS, ("x-new", str(number))])
        client.h2.send_data(stream, bytes(1000), end_stream=is_whole)
        client.pump()
    ends = [dict(e.headers) for e in client.got if isinstance(e, h2.events.ResponseReceived)]
    assert len(ends) == 200
    assert all(end[b"grpc-status"] == b"14" and end[b"grpc-message"].decode() == NO_RUNTIME for end in ends)
    assert sum(isinstance(e, h2.events.StreamReset) for e in client.got) == (0 if is_whole else 200)
    assert client.h2.outbound_flow_control_window == 65_535


def test_settings_and_pings_are_answered() -> None:
    client = Client()
    client.h2.ping(b"12345678")
    client.pump()
    kinds = {type(event) for event in client.got}
    assert {
        h2.events.SettingsAcknowledged,
        h2.events.PingAckReceived,
        h2.events.RemoteSettingsChanged,
    } <= kinds


def test_it_sends_clients_away_when_the_runtime_is_there() -> None:
    client = Client()
    client.h2.send_headers(1, HEADERS, end_stream=True)
    client.pump()
    client.end.say_farewell()
    assert [(frame[0], frame[3]) for frame in written(b"".join(client.end.to_client))] == [
        (GOAWAY, (1).to_bytes(4, "big") + bytes(4))
    ]
    assert client.end.is_over


def test_a_greeted_client_is_not_greeted_again() -> None:
    assert LocalEnd(is_greeted=True).to_client == []
    assert LocalEnd().to_client == [write_settings()] and written(write_settings())[0][0] == SETTINGS


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 9]
)
def test_what_is_not_http2_ends_the_connection(said: bytes) -> None:
    end = LocalEnd()
    end.from_client(said)
    assert end.is_over and written(b"".join(end.to_client))[-1][0] == GOAWAY


# ---------------------------------------------------------------------- the lobby


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
    assert said <= MOST_EARLY_BYTES
