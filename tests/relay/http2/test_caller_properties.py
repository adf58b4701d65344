"""Calls of our own against a server that is strict (the h2 library): no limit of its is passed, and every call ends."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.relay.http2.caller import Caller, OwnCall
from cri_proxy.relay.http2.frames import Error, write_frame, write_goaway, write_reset, write_settings
from cri_proxy.relay.http2.headers import write_request, write_response, write_trailers
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.status import Code
from tests.relay.http2.hand import VERSION, data, headers, ping, written

CODES = h2.settings.SettingCodes
WINDOW, FRAME, AT_ONCE = CODES.INITIAL_WINDOW_SIZE, CODES.MAX_FRAME_SIZE, CODES.MAX_CONCURRENT_STREAMS
SIZES = st.sampled_from([0, 1, 100, 5_000, 17_000, 70_000])
SETTINGS = st.fixed_dictionaries(
    {
        WINDOW: st.sampled_from([0, 1, 1_000, 65_535, 100_000]),
        FRAME: st.sampled_from([16_384, 20_000]),
        AT_ONCE: st.integers(0, 4),
        CODES.HEADER_TABLE_SIZE: st.sampled_from([0, 4_096]),
    }
)
STEPS = st.one_of(
    st.tuples(st.just("begin"), SIZES),
    st.tuples(st.just("settings"), SETTINGS),
    st.tuples(st.just("read"), st.integers(1, 100_000)),
    st.tuples(st.just("answer"), st.integers(0, 10)),
    st.tuples(st.just("cancel"), st.integers(0, 10)),
)


class Server:
    """Answers each request with its own message, when it is told to. h2 raises when it gets what it does not allow."""

    def __init__(self, caller: Caller, cut: int) -> None:
        self.caller = caller
        self._cut = cut
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._h2.initiate_connection()
        self._bodies: dict[int, bytes] = {}
        #: Bytes that were not acknowledged, by stream.
        self.unread: dict[int, int] = {}
        self.whole: list[int] = []

    def exchange(self) -> None:
        """Bytes go to and fro, in pieces, until there are none."""
        while True:
            said = list(map(bytes, self.caller.to_runtime))
            self.caller.to_runtime.clear()
            # h2 takes larger frames only with the bytes that follow those with the acknowledgement.
            for piece in said:
                for at in range(0, len(piece), self._cut):
                    for event in self._h2.receive_data(piece[at : at + self._cut]):
                        self._happened(event)
            answer = self._h2.data_to_send()
            for at in range(0, len(answer), self._cut):
                self.caller.received(answer[at : at + self._cut])
            if not said and not answer:
                return

    def _happened(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            self._bodies[event.stream_id] += event.data
            self.unread[event.stream_id] = self.unread.get(event.stream_id, 0) + event.flow_controlled_length
        elif isinstance(event, h2.events.StreamEnded):
            self.whole.append(event.stream_id)
        elif isinstance(event, h2.events.StreamReset) and event.stream_id in self.whole:
            self.whole.remove(event.stream_id)

    def allow(self, settings: dict[Any, int]) -> None:
        self._h2.update_settings(settings)

    def read(self, most: int) -> None:
        """Give credit for so many bytes of each request."""
        for stream, size in list(self.unread.items()):
            if size:
                self._h2.acknowledge_received_data(min(size, most), stream)
                self.unread[stream] -= min(size, most)

    def answer(self, which: int) -> None:
        """The reply to one of the requests that are whole."""
        if not self.whole:
            return
        stream = self.whole.pop(which % len(self.whole))
        self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        body = self._bodies[stream]
        for at in range(0, len(body), self._h2.max_outbound_frame_size):
            self._h2.send_data(stream, body[at : at + self._h2.max_outbound_frame_size])
        self._h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def nothing() -> None:
    pass


@given(st.lists(STEPS, max_size=30), SETTINGS, st.sampled_from([99, 10_000, 1 << 30]))
def test_no_limit_of_the_server_is_passed_and_every_call_ends(
    steps: list[tuple[str, Any]], first: dict[Any, int], cut: int
) -> None:
    caller = Caller()
    server = Server(caller, cut)
    server.allow(first)
    calls: list[tuple[OwnCall, bytes]] = []
    cancelled: set[int] = set()
    for what, value in steps:
        if what == "begin":
            message = bytes([len(calls) + 1]) * value
            calls.append((caller.begin(write_request(VERSION, float(len(calls))), message, nothing), message))
        elif what == "settings":
            server.allow(value)
        elif what == "read":
            server.read(value)
        elif what == "answer":
            server.answer(value)
        elif calls and not calls[value % len(calls)][0].is_over:
            cancelled.add(value % len(calls))
            caller.cancel(calls[value % len(calls)][0])
        server.exchange()
    # In the end the server takes all there is.
    server.allow({WINDOW: 65_535, AT_ONCE: 3})
    server.exchange()
    while caller.is_busy:
        server.read(1 << 30)
        server.exchange()
        server.answer(0)
        server.exchange()
    for number, (call, message) in enumerate(calls):
        if number not in cancelled:
            assert call.status == (0, "")
            assert [call.read(prefixed) for prefixed in call.take_messages()] == [message]


FRAMES = st.sampled_from(
    [
        *(headers(stream, write_response()) for stream in (1, 3, 5)),
        *(headers(stream, write_trailers(stream, "because"), end=True) for stream in (1, 3, 5)),
        *(headers(stream, b"\x88\x40\x01x\x01y") for stream in (1, 3)),
        headers(5, b"\x88\xbe"),
        *(data(stream, write_message(b"m" * stream)) for stream in (1, 3, 5)),
        *(data(stream, b"\0\0\0\0\2a") for stream in (1, 3)),
        *(data(stream, b"b") for stream in (1, 3)),
        data(3, b"", end=True),
        write_reset(3, Error.REFUSED_STREAM),
        write_reset(5, Error.CANCEL),
        write_goaway(3, Error.NO_ERROR),
        write_settings((4, 3)),
        write_settings((3, 2)),
        b"\0\0\4\x08\0\0\0\0\0\0\0\0\x10",
        b"\0\0\4\x08\0\0\0\0\1\0\0\0\x10",
        ping(b"12345678"),
        b"\0\0\1\x30\0\0\0\0\1x",
    ]
)


def heard(pieces: list[bytes]) -> list[Any]:
    """What three calls have got when a server has said this, and what it was told."""
    caller = Caller()
    calls = [caller.begin(write_request(VERSION), b"ask" * 10_000, nothing) for _ in range(3)]
    for piece in pieces:
        caller.received(piece)
    told = b"".join(map(bytes, caller.to_runtime))
    return [told, *((call.head, call.messages, call.end, call.failure, call.is_over) for call in calls)]


@given(st.lists(FRAMES, max_size=25), st.lists(st.integers(0, 2_000), max_size=40))
def test_how_bytes_are_cut_makes_no_difference(frames: list[bytes], cuts: list[int]) -> None:
    said = write_settings((3, 4)) + b"".join(frames)
    edges = [0, *sorted(cut for cut in cuts if cut < len(said)), len(said)]
    pieces = [said[start:end] for start, end in zip(edges, edges[1:])]
    whole = heard([said])
    assert heard([piece for piece in pieces if piece]) == whole
    assert heard([said[at : at + 1] for at in range(len(said))]) == whole


KINDS = st.one_of(st.integers(0, 9), st.integers(0, 255))
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\x88", b"\x40\x01a\x01b", b"\xbe", b"\x3f\xe1\xff\xff\xff\x7f", bytes(4), bytes(8)]),
    st.sampled_from([b"\0\4\x7f\xff\xff\xff", b"\0\3\0\0\0\0", b"\0\5\0\0\0\0", b"\x7f\xff\xff\xff"]),
    st.binary(max_size=40).map(write_message),
)
ODD_FRAMES = st.builds(write_frame, KINDS, st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 7]), PAYLOADS)


@given(st.lists(st.one_of(FRAMES, ODD_FRAMES, st.binary(max_size=20)), max_size=20))
def test_whatever_comes_is_read_or_ends_the_connection(pieces: list[bytes]) -> None:
    caller = Caller()
    woken: list[int] = []
    calls = [
        caller.begin(write_request(VERSION), b"ask" * 10_000, lambda n=n: woken.append(n)) for n in range(3)
    ]
    caller.received(write_settings())
    for piece in pieces:
        caller.received(piece)
        for number, call in enumerate(calls):
            if call.is_over:
                assert number in woken
                assert call.status[0] == Code.OK or call.error().code
            for prefixed in call.take_messages():
                call.read(prefixed)
            caller.credit(call)
        written(b"".join(map(bytes, caller.to_runtime)))  # whole frames, whatever was read
        caller.to_runtime.clear()
    caller.lost()
    assert all(call.is_over for call in calls) and not caller.is_busy
