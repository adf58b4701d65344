"""NRI's wire: golden bytes, messages of every size in any pieces, and that garbage ends a connection with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import ttrpc_pb2 as pb
from cri_proxy.nri import ttrpc_frames
from cri_proxy.nri.ttrpc import PeerCall, Reply, TtrpcWire
from cri_proxy.nri.ttrpc_frames import (
    MAX_DATA_BYTES,
    MAX_FRAME_BYTES,
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Garbage,
    TooLarge,
    TrunkReader,
)
from cri_proxy.relay.status import Code

HOST_SERVICE, PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.Plugin"
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def host() -> TtrpcWire:
    return TtrpcWire(RUNTIME_CONNECTION, HOST_SERVICE, PLUGIN_SERVICE)


def plugin() -> TtrpcWire:
    return TtrpcWire(PLUGIN_CONNECTION, PLUGIN_SERVICE, HOST_SERVICE)


def raw(connection: int, stream: int, kind: int, data: bytes, flags: int = 0) -> bytes:
    """A message in one frame, written independently of what is tested."""
    message = len(data).to_bytes(4, "big") + stream.to_bytes(4, "big") + bytes([kind, flags]) + data
    return connection.to_bytes(4, "big") + len(message).to_bytes(4, "big") + message


def request(stream: int, service: str = PLUGIN_SERVICE, method: str = "Configure") -> bytes:
    return raw(1, stream, 1, pb.Request(service=service, method=method).SerializeToString())


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(places, places[1:])]


def frame_sizes(data: bytes) -> list[int]:
    sizes = []
    while data:
        size = int.from_bytes(data[4:8], "big")
        sizes.append(size)
        data = data[8 + size :]
    return sizes


# ---------------------------------------------------------------------- golden bytes


def test_a_request_has_these_bytes() -> None:
    _, out = host().call("Configure", b"\x0a\x03abc", 2.0)
    body = (
        b"\x0a\x1bnri.pkg.api.v1alpha1.Plugin"  # service
        b"\x12\x09Configure"  # method
        b"\x1a\x05\x0a\x03abc"  # payload
        b"\x20\x80\xa8\xd6\xb9\x07"  # timeout_nano: 2,000,000,000
    )
    head = b"\x00\x00\x00\x01" + (len(body) + 10).to_bytes(4, "big")
    assert out == head + len(body).to_bytes(4, "big") + b"\x00\x00\x00\x01\x01\x00" + body


def test_an_empty_reply_is_ten_bytes_on_the_connection_of_the_call() -> None:
    # As the frame of containerd's answer to RegisterPlugin: (2, 10).
    assert host().reply(7, b"") == b"\0\0\0\2\0\0\0\x0a\0\0\0\0\0\0\0\7\2\0"


def test_an_error_has_these_bytes() -> None:
    body = b"\x0a\x06\x08\x02\x12\x02no"
    expected = b"\0\0\0\2\0\0\0\x12" + b"\0\0\0\x08\0\0\0\1\2\0" + body
    assert host().fail(1, 2, "no") == expected


def test_stream_ids_are_odd_and_grow() -> None:
    wire = plugin()
    assert [wire.call("UpdateContainers", b"", 0)[0] for _ in range(4)] == [1, 3, 5, 7]


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize("total", [4085, 4086, 4087, 4095, 4096, 4097, 5000, 4_194_304])
def test_what_exceeds_4096_bytes_goes_in_exactly_two_frames(total: int) -> None:
    wire = host()
    payload = b"x" * (total - 10 - 5)  # made exact below
    while (size := sum(frame_sizes(wire.reply(1, payload)))) != total:
        payload = payload[: total - size] if size > total else payload + b"x" * (total - size)
    sizes = frame_sizes(wire.reply(1, payload))
    assert sizes == ([total] if total <= 4096 else [4096, total - 4096])


@pytest.mark.parametrize("size", [0, 1, 4085, 4086, 4087, 4096, 4097, 5000])
@pytest.mark.parametrize("cut", [1, 8, 4096, 65536])
def test_what_one_end_sends_the_other_receives(size: int, cut: int) -> None:
    here, there = host(), plugin()
    stream, out = here.call("CreateContainer", b"c" * size, 0)
    events = [event for at in range(0, len(out), cut) for event in there.receive(out[at : at + cut])[0]]
    assert events == [PeerCall(stream, "CreateContainer", b"c" * size, 0.0)]
    assert here.receive(there.reply(stream, b"r" * size)) == ([Reply(stream, b"r" * size)], b"")


def test_a_message_of_exactly_four_mebibytes_is_the_largest() -> None:
    wire = host()
    fixed = len(
        pb.Request(service=PLUGIN_SERVICE, method="M", payload=b"x" * (1 << 21)).SerializeToString()
    ) - (1 << 21)
    _, out = wire.call("M", b"x" * (MAX_DATA_BYTES - fixed), 0)
    assert sum(frame_sizes(out)) == MAX_FRAME_BYTES
    (call,) = plugin().receive(out)[0]
    assert isinstance(call, PeerCall) and len(call.payload) == MAX_DATA_BYTES - fixed
    with pytest.raises(TooLarge, match="message length 4194305 exceed maximum message size of 4194304"):
        wire.call("M", b"x" * (MAX_DATA_BYTES - fixed + 1), 0)
    # Nothing was sent: the next id follows the last one.
    assert wire.call("M", b"", 0)[0] == 3


def test_a_reply_that_is_too_large_becomes_an_error() -> None:
    here, there = host(), plugin()
    stream, _ = here.call("Synchronize", b"", 0)
    (reply,), _ = here.receive(there.reply(stream, b"x" * (MAX_DATA_BYTES + 1)))
    assert isinstance(reply, Reply) and reply.code == Code.RESOURCE_EXHAUSTED
    assert "exceed maximum message size of 4194304" in reply.message


@pytest.mark.parametrize("cut", [4095, 4096, 1 << 20])
def test_a_request_that_is_too_large_is_thrown_away_and_answered(cut: int) -> None:
    size = MAX_DATA_BYTES + 3
    head = size.to_bytes(4, "big") + b"\0\0\0\1\1\0"
    body = head + b"x" * size
    frames = raw_frame(1, body[: 1 << 21]) + raw_frame(1, body[1 << 21 :])
    there = plugin()
    answers = b"".join(there.receive(frames[at : at + cut])[1] for at in range(0, len(frames), cut))
    assert answers == there.fail(1, 8, "message length 4194307 exceed maximum message size of 4194304")
    assert there.receive(request(3)) == ([PeerCall(3, "Configure", b"", 0.0)], b"")


def raw_frame(connection: int, payload: bytes) -> bytes:
    return connection.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


def test_a_response_that_is_too_large_fails_its_call_only() -> None:
    here = host()
    first, second = here.call("A", b"", 0)[0], here.call("B", b"", 0)[0]
    size = MAX_DATA_BYTES + 1
    head = size.to_bytes(4, "big") + first.to_bytes(4, "big") + b"\2\0"
    body = head + b"x" * size
    (reply,), _ = here.receive(raw_frame(1, body[:4096]) + raw_frame(1, body[4096:]))
    assert isinstance(reply, Reply) and (reply.stream, reply.code) == (first, 8)
    assert here.receive(raw(1, second, 2, b""))[0] == [Reply(second, b"")]


# ---------------------------------------------------------------------- answers to what cannot be served

REFUSED = {
    "an even stream id": (request(2), 2, 3, "StreamID must be odd for client initiated streams"),
    "stream id zero": (request(0), 0, 3, "StreamID must be odd for client initiated streams"),
    "another service": (request(1, "a.b.C"), 1, 12, "service a.b.C"),
    "no protobuf": (raw(1, 1, 1, b"\xff\xff"), 1, 3, "the request is no protobuf message"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_answered_with(case: str) -> None:
    sent, stream, code, text = REFUSED[case]
    there = plugin()
    assert there.receive(sent) == ([], there.fail(stream, code, text))


def test_a_stream_id_is_used_once_and_never_a_lower_one() -> None:
    there = plugin()
    there.receive(request(5))
    for stream in (5, 3, 1):
        refused = there.fail(stream, 3, "StreamID cannot be re-used and must increment")
        assert there.receive(request(stream)) == ([], refused)
    assert there.receive(request(7))[0] == [PeerCall(7, "Configure", b"", 0.0)]


def test_the_two_connections_count_their_streams_each_for_itself() -> None:
    here, there = host(), plugin()
    stream, out = here.call("Configure", b"", 0)
    back, out_back = there.call("RegisterPlugin", b"", 0)
    assert stream == back == 1
    assert there.receive(out)[0] == [PeerCall(1, "Configure", b"", 0.0)]
    assert here.receive(out_back)[0] == [PeerCall(1, "RegisterPlugin", b"", 0.0)]


IGNORED = {
    "frames of a connection that nobody opened": raw(3, 1, 1, b"\xff" * 50),
    "frames of connection 0": raw(0, 1, 9, b"abc"),
    "a response nobody waits for": raw(2, 9, 2, pb.Response(payload=b"x").SerializeToString()),
    "a part of a stream": raw(1, 1, 3, b"data"),
    "an empty frame": raw_frame(1, b""),
}


@pytest.mark.parametrize("case", IGNORED)
def test_ignored_are(case: str) -> None:
    there = plugin()
    assert there.receive(IGNORED[case]) == ([], b"")
    assert there.receive(request(1))[0] == [PeerCall(1, "Configure", b"", 0.0)]


def test_a_late_reply_is_ignored() -> None:
    here = host()
    stream, _ = here.call("Configure", b"", 2.0)
    here.forget(stream)
    assert here.receive(raw(1, stream, 2, b"")) == ([], b"")


def test_replies_come_in_any_order() -> None:
    here = host()
    streams = [here.call("M", b"", 0)[0] for _ in range(3)]
    events = [here.receive(raw(1, stream, 2, b""))[0] for stream in reversed(streams)]
    assert events == [[Reply(stream, b"")] for stream in reversed(streams)]


def test_metadata_and_fields_of_later_versions_are_tolerated() -> None:
    body = pb.Request(service=PLUGIN_SERVICE, method="Configure", timeout_nano=1_999_900_000)
    body.metadata.add(key="containerd-namespace-ttrpc", value="k8s.io")
    sent = raw(1, 1, 1, body.SerializeToString() + b"\x9a\x06\x01x", flags=1)
    assert plugin().receive(sent)[0] == [PeerCall(1, "Configure", b"", 1.9999)]


@pytest.mark.parametrize("nanoseconds", [0, -1, -(1 << 63)])
def test_no_timeout_is_no_limit(nanoseconds: int) -> None:
    body = pb.Request(service=PLUGIN_SERVICE, method="M", timeout_nano=nanoseconds).SerializeToString()
    assert plugin().receive(raw(1, 1, 1, body))[0] == [PeerCall(1, "M", b"", 0.0)]


# ---------------------------------------------------------------------- garbage

GARBAGE = {
    "a frame beyond any message": (b"\0\0\0\1\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
    "a frame of one byte too many": (b"\0\0\0\1\0\x40\0\x0b", "a frame of 4194315 bytes, at most 4194314"),
    "a kind nobody knows": (raw(1, 1, 7, b""), "a message of kind 7, expected 1, 2 or 3"),
    "a line of text": (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_ends_the_connection_with_a_reason(case: str) -> None:
    sent, reason = GARBAGE[case]
    with pytest.raises(Garbage, match=reason):
        plugin().receive(sent)


def test_a_response_that_is_no_protobuf_ends_it_too() -> None:
    here = host()
    stream, _ = here.call("M", b"", 0)
    with pytest.raises(Garbage, match="a response that is no protobuf message"):
        here.receive(raw(1, stream, 2, b"\xff\xff"))


@given(st.binary(max_size=400), CUTS)
def test_any_bytes_are_garbage_or_nothing_and_never_held_for_ever(data: bytes, cuts: list[int]) -> None:
    there = plugin()
    try:
        for piece in pieces(data, cuts):
            events, _ = there.receive(piece)
            assert all(isinstance(event, (PeerCall, Reply)) for event in events)
    except Garbage as error:
        assert str(error)


@given(st.lists(st.binary(max_size=9000), min_size=1, max_size=5), CUTS)
def test_messages_survive_being_cut_anywhere(payloads: list[bytes], cuts: list[int]) -> None:
    here, there = host(), plugin()
    out = b"".join(here.call("M", payload, 0)[1] for payload in payloads)
    events = [event for piece in pieces(out, cuts) for event in there.receive(piece)[0]]
    assert [event.payload for event in events] == payloads


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=30)), max_size=8), CUTS)
def test_the_streams_of_connections_stay_apart_however_frames_are_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    reader = TrunkReader()
    whole = b"".join(raw_frame(*frame) for frame in frames)
    found: dict[int, bytes] = {}
    for piece in pieces(whole, cuts):
        for connection, payload in reader.read(piece):
            found[connection] = found.get(connection, b"") + payload
    wanted: dict[int, bytes] = {}
    for connection, payload in frames:
        wanted[connection] = wanted.get(connection, b"") + payload
    assert found == {connection: payload for connection, payload in wanted.items() if payload}


def test_a_trunk_that_another_has_begun_goes_on_in_the_middle_of_a_message() -> None:
    calls = request(1) + request(3)
    begun = ttrpc_frames.begin()
    [(connection, piece)] = begun.frames.read(calls[: len(request(1)) - 5])
    assert begun.messages[connection].read(piece) == []
    wire = TtrpcWire(PLUGIN_CONNECTION, PLUGIN_SERVICE, HOST_SERVICE, begun._replace(next_stream=3))
    events, answers = wire.receive(calls[len(request(1)) - 5 :])
    assert [event.stream for event in events if isinstance(event, PeerCall)] == [1, 3]
    assert answers == b""
    assert wire.call("UpdateContainers", b"", 0)[0] == 3
    assert host().receive(wire.call("UpdateContainers", b"", 0)[1])[0]
