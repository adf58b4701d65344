"""The history as a trace for Perfetto (ui.perfetto.dev): a track a container, a slice for each place it had. Pure.

Perfetto's protobuf trace format, ``Trace`` of protos/perfetto/trace/perfetto_trace.proto: what of it is written here is
small enough to be written by hand. A flow leads from a decision to what it has changed. That a container has ended is known
where its end changed others, or its successor was created; else its last place goes on to the end of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cri_proxy.engine.state import CAUSES
from cri_proxy.text.protobuf_bytes import write_varint

#: Field numbers of TracePacket, TrackDescriptor, TrackEvent, DebugAnnotation and ClockSnapshot.
_PACKET, _CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _TRACK = 1, 6, 8, 10, 11, 13, 60
_UUID, _TRACK_NAME, _PARENT = 1, 2, 5
_ANNOTATIONS, _TYPE, _TRACK_UUID, _CATEGORIES, _NAME, _FLOWS = 4, 9, 11, 22, 23, 47
_TEXT_VALUE, _TEXT_NAME = 6, 10
_CLOCK, _CLOCK_ID, _CLOCK_TIME = 1, 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
#: builtin_clock.proto; SEQ_INCREMENTAL_STATE_CLEARED.
_REALTIME, _BOOTTIME, _CLEARED = 1, 6, 1
#: Causes after which a container has no place.
_ENDS = frozenset(CAUSES.get(name, name) for name in ("exited", "remove", "end_pod", "cancel", "unprepare"))
_NODE = "this node"


def write_trace(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Entries as ``entry_row`` gives them, in the order of their times, as the bytes of one trace."""
    packets = [_clocks(_ns(rows[0]["time_s"]))] if rows else []
    tracks: dict[str, int] = {}
    events: list[bytes] = []
    #: Tracks on which a slice is open.
    is_open: set[int] = set()

    def track(path: str) -> int:
        if path not in tracks:
            tracks[path] = uuid = len(tracks) + 1
            pod, _, name = path.rpartition("/")
            # Of containers below their pod.
            parent = track(pod) if pod.count("/") == 1 else 0
            packets.append(_descriptor(uuid, name if parent else path, parent))
        return tracks[path]

    for row in rows:
        at_ns, cause = _ns(row["time_s"]), CAUSES.get(row["operation"], row["operation"])
        own = track(row["container"] or row["id"] or _NODE)
        told = {name: row[name] for name in ("operation", "stance", "why", "outcome", "id")}
        flow = [row["place"]] if row["changes"] or row["move"] else []
        if row["stance"] and cause not in _ENDS:
            name = f"{row['cpus'] or 'untouched'} ({row['level']})"
            events += _slice(at_ns, own, name, told, flow, is_open)
        else:
            if cause in _ENDS and own in is_open:
                is_open.discard(own)
                events.append(_event(at_ns, own, _END))
            events.append(_event(at_ns, own, _INSTANT, cause, told, flow))
        for change in row["changes"]:
            told = {
                **{name: change[name] for name in ("operation", "stance", "why")},
                "for": row["container"],
                "cause": cause,
            }
            name = f"{change['cpus'] or 'untouched'} ({change['level']})"
            for one in change["containers"]:
                other = track(one["container"] or one["id"])
                events += _slice(at_ns, other, name, {**told, "id": one["id"]}, flow, is_open)
    end_ns = _ns(rows[-1]["time_s"]) + 1 if rows else 0
    events += [_event(end_ns, uuid, _END) for uuid in sorted(is_open)]
    return b"".join(_bytes(_PACKET, packet) for packet in (*packets, *events))


def _slice(
    at_ns: int, track: int, name: str, told: Mapping[str, str], flow: Iterable[int], is_open: set[int]
) -> Iterator[bytes]:
    """The place before ends, this one begins."""
    if track in is_open:
        yield _event(at_ns, track, _END)
    is_open.add(track)
    yield _event(at_ns, track, _BEGIN, name, told, flow)


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _clocks(at_ns: int) -> bytes:
    """That the times are those of the wall clock."""
    clocks = (
        _bytes(_CLOCK, _number(_CLOCK_ID, clock) + _number(_CLOCK_TIME, at_ns))
        for clock in (_REALTIME, _BOOTTIME)
    )
    head = _number(_TIMESTAMP, at_ns) + _number(_SEQUENCE, 1) + _number(_FLAGS, _CLEARED)
    return head + _bytes(_CLOCKS, b"".join(clocks))


def _descriptor(uuid: int, name: str, parent: int) -> bytes:
    fields = _number(_UUID, uuid) + _text(_TRACK_NAME, name) + (_number(_PARENT, parent) if parent else b"")
    return _number(_SEQUENCE, 1) + _bytes(_TRACK, fields)


def _event(
    at_ns: int,
    track: int,
    kind: int,
    name: str = "",
    told: Mapping[str, str] = {},
    flow: Iterable[int] = (),
) -> bytes:
    fields = [_number(_TYPE, kind), _number(_TRACK_UUID, track)]
    if kind != _END:
        fields += [_text(_NAME, name), _text(_CATEGORIES, "placement")]
    for key, value in told.items():
        if value:
            fields.append(_bytes(_ANNOTATIONS, _text(_TEXT_NAME, key) + _text(_TEXT_VALUE, str(value))))
    fields += [write_varint(_FLOWS << 3 | 1) + one.to_bytes(8, "little") for one in flow]
    return _number(_TIMESTAMP, at_ns) + _number(_SEQUENCE, 1) + _bytes(_EVENT, b"".join(fields))


def _number(field: int, value: int) -> bytes:
    return write_varint(field << 3) + write_varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return write_varint(field << 3 | 2) + write_varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
