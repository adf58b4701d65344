"""Flow control: what is held costs no stream its window, no side sends more than the other takes, and the books agree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cri_proxy.relay.http2.flow import Outlet
from cri_proxy.relay.http2.frames import (
    INITIAL_WINDOW_SIZE,
    Buffer,
    Error,
    ProtocolError,
    write_settings,
    write_window_update,
)
from cri_proxy.relay.http2.messages import write_message
from cri_proxy.relay.http2.relay import RelayedConnection
from cri_proxy.relay.http2.wire import Closing, RequestReceived
from tests.relay.http2.hand import (
    BLOCK,
    CONFIRMED,
    CREATE,
    HOLDS,
    OTHER_BLOCK,
    VERSION,
    data,
    goaways,
    hand_made,
    headers,
    written,
)
from tests.relay.http2.pair import LONG, Pair, all_is_in_step

MIB = 1 << 20


def forwarded(pair: Pair, stream: int, wanted: int, step: int) -> None:
    """The runtime takes the request of a stream, ``step`` bytes at a time."""
    pair.relay.forward(stream, b"")
    pair.pump()
    while len(pair.received(stream)) < wanted:
        before = len(pair.received(stream))
        pair.take(pair.runtime, stream, step)
        assert len(pair.received(stream)) > before


@pytest.mark.parametrize("window", [65_535, 1])
def test_a_create_of_1_mib_is_held_and_sent_whatever_the_runtimes_initial_window(window) -> None:
    pair = Pair(runtime_settings={INITIAL_WINDOW_SIZE: window})
    stream = pair.call(CREATE, None)
    message = bytes(range(256)) * 4096
    assert pair.send(stream, write_message(message), end=True) == b""
    assert pair.asked()[0].message == message and pair.failed_open() == []
    forwarded(pair, stream, MIB + 5, 60_000)
    assert pair.received(stream) == write_message(message) and pair.has_ended(stream)
    assert pair.books_are_right()


def test_a_client_that_stops_in_the_middle_of_a_create_holds_up_nobody(pair) -> None:
    stalled = pair.call(CREATE, None)
    pair.send(stalled, write_message(b"c" * MIB)[: MIB // 2])
    for _ in range(100):
        stream = pair.call(VERSION, b"v" * 10_000)
        assert pair.has_ended(stream)
        pair.take(pair.runtime, stream, 10_005)
        pair.reply(stream, b"r" * 10_000)
        assert pair.has_ended(stream, "client")
        pair.take(pair.client, stream, 10_005)
    pair.send(stalled, write_message(b"c" * MIB)[MIB // 2 :], end=True)
    forwarded(pair, stalled, MIB + 5, 60_000)
    assert pair.has_ended(stalled) and pair.books_are_right()


@pytest.mark.parametrize("window", [0, 1000, 65_534])
def test_an_initial_window_that_is_lowered_while_data_is_held_is_kept_to(pair, window) -> None:
    stream = pair.call(CREATE, b"c" * 60_000)
    pair.runtime.update_settings({INITIAL_WINDOW_SIZE: window})
    pair.pump()
    pair.relay.forward(stream, b"d" * 10_000)
    pair.pump()  # h2 raises if more is sent than the window allows
    assert len(pair.received(stream)) == window
    pair.runtime.update_settings({INITIAL_WINDOW_SIZE: 100_000})
    pair.pump()
    assert len(pair.received(stream)) == 65_535  # the connection's is still what it was
    pair.take(pair.runtime, stream, 10_000)
    assert pair.received(stream) == write_message(b"c" * 60_000 + b"d" * 10_000) and pair.books_are_right()


def test_a_window_that_has_become_negative_is_waited_for(pair) -> None:
    stream = pair.call(CREATE, b"c" * 60_000, end=False)
    pair.relay.forward(stream, b"")
    pair.pump()
    pair.runtime.update_settings({INITIAL_WINDOW_SIZE: 0})
    pair.pump()
    ledger = pair.relay._wire.requests.ledger(stream)
    assert ledger is not None and ledger.window == -60_005
    pair.take(pair.runtime, stream, 60_005)
    assert ledger.window == 0 and pair.books_are_right()


# ---------------------------------------------------------------------- the ledgers by themselves


def outlet() -> tuple[Outlet, list[Buffer], list[Buffer]]:
    out: list[Buffer] = []
    back: list[Buffer] = []
    return Outlet(out, back), out, back


def test_the_books_hold_when_more_than_2_to_the_31_bytes_have_passed() -> None:
    flow, out, back = outlet()
    flow.open(1)
    chunk = bytes(16_384)
    passed = 0
    for turn in range(140_000):  # 2.3 GB
        if turn % 1000 == 0:  # some of it held and sent on, with a delta of 7 bytes
            flow.keep(1, 16_384)
            flow.grant(0, 16_384)
            flow.grant(1, 16_384)
            flow.put(1, chunk)
            flow.put(1, b"+" * 7)
            passed += 16_391
        else:
            assert flow.passes(1, 16_384)
            passed += 16_384
        told = passed if turn % 2 else 0  # the receiver gives it back every other time
        if told:
            for stream in (0, 1):
                flow.credit(stream, told)
            passed = 0
        out.clear()
        back.clear()
    ledger = flow.ledger(1)
    assert ledger is not None
    for book in (flow.connection, ledger):
        assert (book.window, book.surplus) == (65_535, 0)


def test_windows_of_2_to_the_31_minus_1_are_counted_exactly() -> None:
    flow, _, back = outlet()
    flow.expect([(INITIAL_WINDOW_SIZE, 2**31 - 1)])
    flow.confirm(CONFIRMED)
    flow.open(1)
    assert flow.credit(0, 2**31 - 1 - 65_535) == 2**31 - 1 - 65_535
    flow.keep(1, 10_000)
    flow.grant(0, 10_000)
    flow.grant(1, 10_000)
    flow.put(1, bytes(10_000))
    ledger = flow.ledger(1)
    assert ledger is not None
    assert flow.connection.sender_window == ledger.sender_window == 2**31 - 1
    assert flow.credit(0, 10_000) == flow.credit(1, 10_000) == 0
    assert len(back) == 2


def test_more_holds_when_it_is_confirmed_and_less_at_once() -> None:
    flow, _, _ = outlet()
    flow.open(1)
    flow.expect([(INITIAL_WINDOW_SIZE, 100_000), (5, 20_000)])
    flow.expect([(INITIAL_WINDOW_SIZE, 500)])
    ledger = flow.ledger(1)
    assert ledger is not None and (ledger.window, flow.frame_bytes, flow.largest_frame) == (
        500,
        16_384,
        20_000,
    )
    flow.confirm(CONFIRMED)
    assert (ledger.window, flow.frame_bytes) == (500, 20_000)
    flow.confirm(CONFIRMED)
    flow.expect([(INITIAL_WINDOW_SIZE, 700)])
    assert ledger.window == 500
    flow.confirm(CONFIRMED)
    assert ledger.window == 700


# ---------------------------------------------------------------------- a receiver that wants less


@pytest.mark.parametrize("of_sender", [True, False], ids=["of the sender's", "of ours"])
def test_an_end_without_bytes_needs_no_window_however_small_it_is(of_sender) -> None:
    flow, out, _ = outlet()
    flow.open(1)
    assert flow.passes(1, 30_000)
    flow.expect([(INITIAL_WINDOW_SIZE, 1000)])
    if of_sender:
        flow.delay(1, b"", 0, True)
    else:
        flow.put(1, b"", True)
    assert b"".join(out) == data(1, b"", end=True) and not flow.is_waiting(1)


def test_what_was_sent_before_a_smaller_window_was_confirmed_arrives_before_the_confirmation() -> None:
    flow, out, _ = outlet()
    flow.expect([(INITIAL_WINDOW_SIZE, 500)])
    flow.expect([(INITIAL_WINDOW_SIZE, 700)])
    flow.connection.window, flow.connection.surplus = 0, 1000
    flow.delay(1, b"x" * 1000, 1000, False)
    flow.confirm(CONFIRMED)
    flow.confirm(CONFIRMED)
    assert out == []
    flow.credit(0, 400)
    assert b"".join(out) == data(1, b"x" * 400)
    out.clear()
    flow.credit(0, 600)
    assert b"".join(out) == data(1, b"x" * 600) + 2 * CONFIRMED


def test_a_confirmation_waits_for_nothing_that_is_dropped_and_for_nothing_where_windows_grow() -> None:
    flow, out, _ = outlet()
    flow.expect([(INITIAL_WINDOW_SIZE, 70_000)])
    flow.expect([(INITIAL_WINDOW_SIZE, 500)])
    flow.connection.window, flow.connection.surplus = 0, 1
    flow.delay(1, b"x", 1, False)
    flow.confirm(CONFIRMED)
    assert b"".join(out) == CONFIRMED
    flow.confirm(CONFIRMED)
    assert b"".join(out) == CONFIRMED
    flow.close(1)
    assert b"".join(out) == 2 * CONFIRMED


def test_a_client_that_takes_less_from_now_on_gets_what_was_on_its_way(pair) -> None:
    stream = pair.call(CREATE, b"create")
    pair.relay.take_over(stream)
    pair.relay.answer(stream, LONG)
    pair.relay.finish(stream, 0, "")
    pair.pump()
    other = pair.call(VERSION)
    pair.runtime.send_headers(other, [(":status", "200")])
    pair.runtime.send_data(other, b"d" * 10_000)  # the answer has taken all of the connection's window
    pair.pump()
    pair.client.update_settings({INITIAL_WINDOW_SIZE: 100})
    pair.pump()
    assert pair.received(other, "client") == b""
    pair.take(pair.client, stream, 65_535)
    assert pair.received(other, "client") == b"d" * 10_000 and pair.closing() == []
    pair.take(pair.client, other, 10_000)
    pair.take(pair.client, stream, len(LONG) + 5)
    pair.runtime.end_stream(other)
    pair.pump()
    assert pair.has_ended(stream, "client") and pair.books_are_right() and all_is_in_step(pair)


# ---------------------------------------------------------------------- a side that ignores windows


def rogue(relay: RelayedConnection, frames: bytes, by_client: bool, most: int) -> int:
    """One side says the same ``most`` times, whatever it is told; how often the relay has listened."""
    for count in range(most):
        (relay.from_client if by_client else relay.from_runtime)(frames, 0.0)
        if any(isinstance(event, Closing) for event in relay.take_events()):
            return count + 1
    return most


def codes(relay: RelayedConnection) -> tuple[list[int], list[int]]:
    """What both sides are told at the end."""
    to_client, to_runtime = b"".join(relay.to_client), b"".join(relay.to_runtime)
    return [code for _, code in goaways(to_client)], [code for _, code in goaways(to_runtime)]


PIECE = 10_000


@pytest.mark.parametrize("method", [BLOCK, OTHER_BLOCK], ids=["held", "passing"])
def test_a_client_that_ignores_the_windows_is_cut_off_where_they_end(method) -> None:
    relay, _ = hand_made(headers(1, method))
    heard = rogue(relay, data(1, bytes(PIECE)), True, 1000)
    # Seven begin a message of no bytes: until that is decided the client has the window it began with.
    assert heard == 7 and codes(relay) == ([Error.FLOW_CONTROL_ERROR], [Error.FLOW_CONTROL_ERROR])
    assert relay.kept_bytes == 0


def test_a_client_that_floods_many_streams_is_cut_off_where_the_connections_window_ends() -> None:
    relay, _ = hand_made(*(headers(stream, OTHER_BLOCK) for stream in (1, 3, 5)))
    assert rogue(relay, b"".join(data(stream, bytes(PIECE)) for stream in (1, 3, 5)), True, 1000) == 3


def test_a_client_is_cut_off_behind_a_request_that_waits_for_the_runtime() -> None:
    relay, _ = hand_made(
        headers(1),
        data(1, HOLDS),
        settings=write_settings() + CONFIRMED,  # the runtime's are confirmed
    )
    assert [type(event) for event in relay.take_events()] == [RequestReceived]
    relay.forward(1, bytes(100_000))  # more than the runtime's window: what follows waits
    assert rogue(relay, data(1, bytes(PIECE)), True, 1000) == 7
    assert codes(relay) == ([Error.FLOW_CONTROL_ERROR], [Error.FLOW_CONTROL_ERROR])


def test_a_runtime_that_ignores_the_clients_windows_is_cut_off() -> None:
    relay, _ = hand_made(headers(1), data(1, HOLDS, end=True))
    relay.take_events()
    relay.forward(1, b"")
    relay.from_runtime(headers(1, b"\x88") + data(1, write_message(bytes(20 << 20))[:5]), 0.0)
    assert rogue(relay, data(1, bytes(PIECE)), False, 1000) == 7
    assert codes(relay) == ([Error.FLOW_CONTROL_ERROR], [Error.FLOW_CONTROL_ERROR])


def test_of_a_window_that_changes_the_sender_may_use_either_until_it_has_confirmed() -> None:
    flow, _, _ = outlet()
    flow.connection.window = 1 << 20
    flow.open(1)
    flow.expect([(INITIAL_WINDOW_SIZE, 100)])
    assert flow.passes(1, 60_000)
    flow.confirm(CONFIRMED)
    with pytest.raises(ProtocolError, match="where stream 1 has a window of -59900"):
        flow.passes(1, 1)
    assert flow.passes(1, 0)  # an empty frame needs no window
    flow.expect([(INITIAL_WINDOW_SIZE, 70_000)])
    assert flow.passes(1, 10_000)
    with pytest.raises(ProtocolError, match="where stream 1 has a window of 0"):
        flow.passes(1, 1)


@pytest.mark.parametrize("by_client", [True, False], ids=["the client", "the runtime"])
@pytest.mark.parametrize("stream", [0, 1], ids=["the connection", "a stream"])
def test_a_window_of_more_than_31_bits_ends_the_connection(by_client, stream) -> None:
    relay, _ = hand_made(headers(1))
    (relay.from_client if by_client else relay.from_runtime)(write_window_update(stream, 2**31 - 65_536), 0.0)
    assert relay.take_events() == []
    (relay.from_client if by_client else relay.from_runtime)(write_window_update(stream, 1), 0.0)
    assert codes(relay) == ([Error.FLOW_CONTROL_ERROR], [Error.FLOW_CONTROL_ERROR])


def test_settings_that_make_a_window_larger_than_31_bits_end_the_connection() -> None:
    relay, _ = hand_made(headers(1), write_window_update(1, 2**31 - 65_536))
    relay.from_client(write_settings((INITIAL_WINDOW_SIZE, 70_000)), 0.0)
    assert relay.take_events() == []  # it holds when the runtime has confirmed it
    relay.from_runtime(2 * CONFIRMED, 0.0)
    assert codes(relay) == ([Error.FLOW_CONTROL_ERROR], [Error.FLOW_CONTROL_ERROR])


# ---------------------------------------------------------------------- any order of events


class Connection(RuleBasedStateMachine):
    """h2 on both ends says at once if a window is exceeded or a header block out of step."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(intercepted=(CREATE,))
        self.sent: dict[int, bytes] = {}
        self.open: list[int] = []
        self.asked: list[int] = []
        self.taken: dict[int, int] = {}

    @rule(method=st.sampled_from([CREATE, VERSION]), size=st.integers(0, 30_000), end=st.booleans())
    def begin(self, method: str, size: int, end: bool) -> None:
        pair = self.pair
        stream = pair.call(method, None, x_size=str(size))
        message = write_message(b"m" * size)
        left = pair.send(stream, message, end)
        self.sent[stream] = message[: len(message) - len(left)]
        self.open.append(stream)
        self.note_asked()

    def note_asked(self) -> None:
        self.asked = [
            e.stream for e in self.pair.asked() if e.stream in self.open and e.stream not in self.taken
        ]

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), delta=st.integers(0, 3000))
    def forward(self, data: st.DataObject, delta: int) -> None:
        stream = data.draw(st.sampled_from(self.asked))
        self.taken[stream] = delta
        self.sent[stream] = write_message(self.sent[stream][5:] + b"d" * delta)
        self.pair.relay.forward(stream, b"d" * delta)
        self.pair.pump()
        self.note_asked()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), size=st.integers(0, 90_000), refuse=st.booleans())
    def answer(self, data: st.DataObject, size: int, refuse: bool) -> None:
        stream = data.draw(st.sampled_from(self.asked))
        self.taken[stream] = 0
        self.pair.relay.take_over(stream)
        if not refuse:
            self.pair.relay.answer(stream, b"a" * size)
        self.pair.relay.finish(stream, 9 if refuse else 0, "why")
        self.pair.pump()
        self.open.remove(stream)
        del self.sent[stream]
        self.note_asked()

    def answerable(self) -> list[int]:
        return [stream for stream in self.open if stream in self.sent and not self.is_held(stream)]

    def is_held(self, stream: int) -> bool:
        return self.pair.relay.methods.get(stream) == CREATE and stream not in self.taken

    @precondition(lambda self: self.answerable())
    @rule(data=st.data(), size=st.integers(0, 16_000), status=st.sampled_from("0259"))
    def reply(self, data: st.DataObject, size: int, status: str) -> None:
        stream = data.draw(st.sampled_from(self.answerable()))
        room = self.pair.runtime.local_flow_control_window(stream) - 5
        self.pair.reply(stream, *([b"r" * min(size, room)] if room > 0 else []), status=status)
        self.pair.answer_notes()
        self.open.remove(stream)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.open))
        self.pair.client.reset_stream(stream)
        self.pair.pump()
        self.open.remove(stream)
        self.sent.pop(stream, None)
        self.note_asked()

    @rule(side=st.sampled_from(["client", "runtime"]), window=st.sampled_from([1, 100, 65_535, 200_000]))
    def change_the_initial_window(self, side: str, window: int) -> None:
        getattr(self.pair, side).update_settings({INITIAL_WINDOW_SIZE: window})
        self.pair.pump()

    @rule(size=st.integers(1, 200_000))
    def take_more(self, size: int) -> None:
        for connection in (self.pair.client, self.pair.runtime):
            if connection.inbound_flow_control_window + size < 2**30:
                connection.increment_flow_control_window(size)
            for stream in self.open:
                if stream in connection.streams and connection.streams[stream].open:
                    connection.increment_flow_control_window(size, stream)
        self.pair.pump()
        self.pair.answer_notes()

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.pair.closing() == []
        # While the runtime's direction waits for the client, what the runtime has said is not read.
        assert self.pair.relay.is_paused or self.pair.books_are_right()

    @invariant()
    def what_arrives_is_what_was_sent(self) -> None:
        for stream, sent in self.sent.items():
            assert sent.startswith(self.pair.received(stream))


TestConnection = Connection.TestCase
TestConnection.settings = settings(stateful_step_count=25)


@given(st.lists(st.integers(0, 400), max_size=8), st.integers(1, 300))
def test_bytes_are_sent_in_their_order_whatever_the_credit(sizes, step) -> None:
    flow, out, _ = outlet()
    flow.expect([(INITIAL_WINDOW_SIZE, 0)])
    flow.confirm(CONFIRMED)
    out.clear()
    flow.open(1)
    for number, size in enumerate(sizes):
        flow.put(1, bytes([number]) * size, number == len(sizes) - 1)
    while flow.is_waiting(1):
        flow.credit(1, step)
    frames = written(b"".join(out))
    assert b"".join(f[3] for f in frames) == b"".join(bytes([n]) * s for n, s in enumerate(sizes))
    assert [f[1] for f in frames] == [0] * (len(frames) - 1) + [1] * bool(frames)
