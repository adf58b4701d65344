"""The history as a trace: read by Perfetto's own schema, which knows every field of it, and followed as its viewer does."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.history.entries import entry_row, write_entry
from cri_proxy.history.trace import write_trace
from tests.history.records import id_of, record, shrunk

schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

WEB, DB = "default/web/app", "shop/db/db"


def rows(*records: Any) -> list[dict[str, Any]]:
    paths = {id_of(path): path for path in (WEB, DB)}
    return [
        entry_row(place, write_entry(one, "", 1_700_000_000.0 + place, paths))
        for place, one in enumerate(records, 1)
    ]


def read(data: bytes) -> Any:
    """The trace, every field of which the schema knows: written again it is the same."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    trace = schema.Trace.FromString(data)

    def known(message: Any) -> None:
        assert not list(UnknownFieldSet(message)), message
        for field, value in message.ListFields():
            if field.message_type is not None:
                for one in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                    known(one)

    known(trace)
    assert len(trace.SerializeToString()) == len(data)
    return trace


def slices(trace: Any) -> list[tuple[str, str, int, int]]:
    """(track, name, begin, end) in nanoseconds; on each track they are nested in nothing, and all of them end."""
    names, open_, found = {}, {}, []
    before = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in names and (not track.parent_uuid or track.parent_uuid in names)
            names[track.uuid] = (
                f"{names[track.parent_uuid]}/{track.name}" if track.parent_uuid else track.name
            )
        elif packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp >= before and packet.trusted_packet_sequence_id == 1
            before, name = packet.timestamp, names[event.track_uuid]
            if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
                assert name not in open_
                open_[name] = event.name, packet.timestamp
            elif event.type == schema.TrackEvent.TYPE_SLICE_END:
                found.append((name, *open_.pop(name), packet.timestamp))
    assert not open_
    return found


def test_each_place_that_a_container_had_is_a_slice_until_the_next() -> None:
    trace = read(write_trace(rows(record(1, DB), record(2, WEB, changes=(shrunk(DB),)), record(3, WEB))))
    second = 1_000_000_000
    at_ns = 1_700_000_000 * second
    assert sorted(slices(trace)) == [
        (WEB, "0-7 (ccx)", at_ns + 2 * second, at_ns + 3 * second),
        (WEB, "0-7 (ccx)", at_ns + 3 * second, at_ns + 3 * second + 1),
        (DB, "0-7 (ccx)", at_ns + second, at_ns + 2 * second),
        (DB, "1-7 (ccx)", at_ns + 2 * second, at_ns + 3 * second + 1),
    ]


def test_a_slice_has_the_reason_and_a_flow_from_its_cause() -> None:
    trace = read(write_trace(rows(record(1, WEB, outcome="created", changes=(shrunk(DB),)))))
    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    cause, change = (event for event in events if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN)
    told = {one.name: one.string_value for one in cause.debug_annotations}
    assert told == {
        "operation": "create",
        "stance": "placed",
        "why": "reason 1",
        "outcome": "created",
        "id": id_of(WEB),
    }
    assert {one.name: one.string_value for one in change.debug_annotations}["for"] == WEB
    assert list(cause.flow_ids) == list(change.flow_ids) != []


def test_an_end_ends_the_slice_and_is_told() -> None:
    trace = read(
        write_trace(
            rows(record(1, WEB), record(2, WEB, operation="exited", changes=(shrunk(DB),)), record(3, DB))
        )
    )
    [web] = [one for one in slices(trace) if one[0] == WEB]
    assert web[3] - web[2] == 1_000_000_000
    kinds = [
        packet.track_event
        for packet in trace.packet
        if packet.track_event.type == schema.TrackEvent.TYPE_INSTANT
    ]
    assert [event.name for event in kinds] == ["exit"]


def test_a_claim_has_its_cpus_from_its_prepare_to_its_unprepare() -> None:
    claim = "default/claim/cpus"
    entries = [record(at, claim, operation=what) for at, what in ((1, "prepare"), (2, "unprepare"))]
    [own, _] = sorted(slices(read(write_trace(rows(*entries, record(4, DB))))))
    assert (own[0], own[3] - own[2]) == (claim, 1_000_000_000)


def test_times_are_those_of_the_wall_clock() -> None:
    trace = read(write_trace(rows(record(1, WEB))))
    clocks = {clock.clock_id: clock.timestamp for clock in trace.packet[0].clock_snapshot.clocks}
    assert clocks == {1: 1_700_000_001 * 10**9, 6: 1_700_000_001 * 10**9}


def test_a_cause_without_a_container_is_the_nodes() -> None:
    trace = read(
        write_trace(rows(record(1, "", operation="restart", id="", stance="", why="", changes=(shrunk(DB),))))
    )
    assert "this node" in [packet.track_descriptor.name for packet in trace.packet]


def test_nothing_is_an_empty_trace() -> None:
    assert write_trace([]) == b""
