"""Whatever either side sends: no crash, nothing kept that grows, and nothing passed on that was doubted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.core.http2.frames import PREFACE, write_frame, write_settings
from cri_proxy.core.http2.local import LocalEnd
from cri_proxy.core.http2.messages import write_message
from cri_proxy.core.http2.relay import RelayedConnection
from cri_proxy.core.http2.stream import Asked, Closing, Ended, FarewellRead, Observed

BLOCKS = st.sampled_from(
    [
        b"\x83\x86\x04\x02/c",
        b"\x83\x86\x04\x02/v",
        b"\x88",
        b"\x88\x40\x01x\x01y",
        b"\x00\x0bgrpc-status\x010",
        b"\xbe",
        b"\x20",
        b"\x40\x01a\x7f\x00" + b"z" * 127,
    ]
)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    BLOCKS,
    st.binary(max_size=60).map(write_message),
    st.sampled_from([bytes(4), b"\0\0\0\1", b"\x7f\xff\xff\xff", bytes(8), b"cri>\0\0\0\1", b"cri<\0\0\0\1"]),
    st.sampled_from([b"\0\4\0\0\0\1", b"\0\4\x7f\xff\xff\xff", b"\0\1\0\0\0\0", b"\0\5\0\0\x40\0"]),
)
FRAMES = st.builds(
    write_frame,
    st.one_of(st.sampled_from([0, 1, 1, 3, 4, 6, 7, 8, 9]), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5]), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 1, 3, 5]), st.integers(0, 2**31 - 1)),
    PAYLOADS,
)
#: A side, bytes of it, and what the shell does between: forward, take over, answer, stop, time, nothing.
STEPS = st.lists(
    st.tuples(st.booleans(), st.one_of(FRAMES, st.binary(max_size=30)), st.integers(0, 7)), max_size=40
)


class Shell:
    """Does something about every event, and checks that calls end once."""

    def __init__(self) -> None:
        self.calls = 0
        self.relay = RelayedConnection(self.open)
        self.asked: dict[int, int] = {}
        self.over: set[int] = set()
        self.closed = False

    def open(self, method: str) -> int:
        self.calls += 1
        return self.calls if method == "/c" else None  # type: ignore[return-value]

    def step(self, what: int) -> None:
        for event in self.relay.take_events():
            assert not self.closed or isinstance(event, FarewellRead), f"{event} after the end"
            if isinstance(event, Asked):
                self.asked[event.stream] = event.call
            elif isinstance(event, Ended):
                self.over.add(event.call)
            elif isinstance(event, Observed):
                assert event.messages
            self.closed = self.closed or isinstance(event, Closing)
        for stream in list(self.asked):
            self.decide(stream, what)
        if what == 6:
            self.relay.say_farewell()
        self.relay.resume()
        for data in (self.relay.to_client, self.relay.to_runtime):
            data.clear()

    def decide(self, stream: int, what: int) -> None:
        if what == 1:
            self.relay.forward(stream, b"+")
        elif what == 2:
            self.relay.take_over(stream)
            self.relay.answer(stream, b"a" * 100)
            self.relay.finish(stream, 0, "")
        elif what == 3:
            self.relay.stop_call(stream, 14, "stop")
        elif what == 4:
            self.relay.tick(1000.0)


#: A bug here is a node without pods: more examples than elsewhere.
@settings(max_examples=4 * settings().max_examples)
@given(STEPS)
def test_a_connection_survives_anything(steps: list[tuple[bool, bytes, int]]) -> None:
    shell = Shell()
    shell.relay.from_runtime(write_settings(), 0.0)
    shell.relay.from_client(PREFACE + write_settings(), 0.0)
    shell.step(0)
    for is_client, data, what in steps:
        if is_client:
            shell.relay.from_client(data, 0.0)
        else:
            shell.relay.from_runtime(data, 0.0)
        shell.step(what)
    shell.relay.client_lost()
    shell.step(0)
    assert shell.relay.methods == {} and shell.relay._wire.held_bytes == 0


@given(st.lists(st.binary(max_size=50), max_size=5), st.booleans())
def test_the_end_of_our_own_survives_anything(pieces: list[bytes], is_http2: bool) -> None:
    end = LocalEnd()
    for piece in ([PREFACE] if is_http2 else []) + pieces:
        end.from_client(piece)
    end.say_farewell()
    assert end.is_over
