"""What the page is drawn from: a snapshot as one document of sections, each with a row a thing. Pure.

Rows are small and rounded, so that most of them stay the same from one second to the next: what is sent after the first
document is what has changed (``delta``). Ids are the daemon's: of boxes the name of their first zone, of containers
the runtime's id, of edges both ends, of decisions boot, number and time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cri_proxy.view.snapshot import CacheFill, ContainerView, NodeSnapshot, Place, box_names
from policies.machine.cpus import format_cpus, parse_cpus

#: Of each section: rows by id.
Document = Mapping[str, Mapping[str, Any]]

#: Where both ends of an edge are, in the daemon's words, by how far that is: L3, NUMA node, socket, farther.
_NEAR = {
    "same cluster": 0,
    "same L3": 0,
    "same NUMA node": 1,
    "same socket": 2,
}
FARTHEST = 3
#: Decisions that the page keeps, and container ids in them: what a page of a busy node holds stays below 2 MB.
MOST_DECISIONS, MOST_IDS = 1000, 20_000


def read_document(
    snapshot: NodeSnapshot,
    decisions: Decisions,
    topology: Mapping[str, Any],
    host: str = "",
    decisions_note: str = "",
) -> dict[str, dict[str, Any]]:
    """The document of a moment. ``topology``: the daemon's answer; ``decisions_note``: why there are none, "" = there are.

    :raises KeyError, TypeError, ValueError: an answer is none that this version understands.
    """
    places = [one for place in snapshot.places for one in place.every]
    boxes = {name: names[0] for name, names in box_names(snapshot.places).items()}
    exclusive = frozenset().union(*(parse_cpus(place.exclusive) for place in places))
    shared = frozenset().union(*(parse_cpus(place.shared) for place in places))
    return {
        "node": {
            "host": host,
            "version": snapshot.version,
            "instance": snapshot.instance,
            "mode": snapshot.mode,
            "policy": snapshot.policy,
            "degraded": list(snapshot.degraded),
            "warnings": list(snapshot.warnings),
            # Without their ages, which would be other ones in each second.
            "old": {name: {"since": row["since_s"], "why": row["why"]} for name, row in snapshot.old.items()},
            "traffic_note": ""
            if snapshot.flows
            else snapshot.traffic_note or "No traffic between containers is seen.",
            "decisions_note": decisions_note,
            # CPUs that belong to containers alone, and those that no container is placed on.
            "exclusive": format_cpus(exclusive),
            "reserved": format_cpus(frozenset().union(*(one.cpus for one in places)) - exclusive - shared),
        },
        "machine": {"boxes": [_box(place) for place in snapshot.places], "cores": _cores(topology)},
        "zones": {place.names[0]: _zone(place) for place in places},
        "caches": {place.names[0]: _cache(place.fill) for place in places if place.fill is not None},
        "cpus": {str(cpu): round(load, 2) for cpu, load in sorted(snapshot.by_cpu.items())},
        "containers": {one.id: _container(one, boxes) for one in snapshot.containers},
        "edges": _edges(snapshot),
        "decisions": {key: _decision(row) for key, row in decisions.kept.items()},
    }


# ---------------------------------------------------------------------- the machine


def _box(place: Place) -> dict[str, Any]:
    """What does not change of a box, and what is in it."""
    return {
        "id": place.names[0],
        "names": list(place.names),
        "cpus": format_cpus(place.cpus),
        "inside": [_box(child) for child in place.children],
    }


def _zone(place: Place) -> dict[str, Any]:
    return {
        "allocatable": place.allocatable_milli,
        "charged": place.charged_milli,
        "exclusive": place.exclusive,
        "memory": place.memory_bytes,
        "memory_charged": place.memory_charged_bytes,
        "load": None if place.load is None else round(place.load, 2),
        **({"divided": list(place.divided)} if place.divided else {}),
    }


def _cache(fill: CacheFill) -> dict[str, Any]:
    """What fills an L3, in MiB; ``shares``: of containers by id, the most first."""
    return {
        "size": rounded(fill.size_bytes / 2**20),
        "others": None if fill.others_bytes is None else rounded(fill.others_bytes / 2**20),
        "shares": [[key, rounded(size / 2**20)] for key, size in fill.shares if size],
    }


def _cores(topology: Mapping[str, Any]) -> list[list[int]]:
    """CPUs that share a core, as lists, by their lowest."""
    cores: dict[tuple[Any, ...], list[int]] = {}
    for row in topology.get("cpus", ()):
        where = row.get("socket"), row.get("die"), row.get("numa"), row.get("core", ("cpu", row["cpu"]))
        cores.setdefault(where, []).append(row["cpu"])
    return sorted(sorted(core) for core in cores.values())


# ---------------------------------------------------------------------- containers and what they exchange


def _container(one: ContainerView, boxes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "namespace": one.namespace,
        "pod": one.pod,
        "name": one.name,
        "box": boxes.get(one.zone, ""),
        "level": one.level,
        "cpus": one.cpus,
        "mems": one.mems,
        "own": one.is_exclusive,
        "milli": one.milli_cpus,
        "qos": one.qos,
        "state": one.state,
        "why": one.why,
        **({"claims": one.claims, "claimed": one.claimed} if one.claims else {}),
    }


def _edges(snapshot: NodeSnapshot) -> dict[str, Any]:
    """Traffic, both directions. Where of an end only the pod is known, its first container stands for it."""
    ids: dict[str, str] = {}
    for one in snapshot.containers:
        ids[one.id] = one.id
        ids.setdefault("pod:" + one.pod_uid, one.id)
    found: dict[str, Any] = {}
    for flow in snapshot.flows:
        a, b = sorted(ids.get(end, "") for end in flow.ids)
        if not a or a == b:
            continue
        before = found.get(f"{a} {b}", {"bytes": 0.0, "messages": 0.0})
        found[f"{a} {b}"] = {
            "a": a,
            "b": b,
            "bytes": rounded(before["bytes"] + flow.bytes_per_s),
            "messages": rounded(before["messages"] + flow.messages_per_s),
            "far": _NEAR.get(flow.where, FARTHEST),
            "where": flow.where,
        }
    return found


def rounded(rate: float) -> float:
    """To two digits: what a line's width shows, and little of it changes from one look to the next."""
    if rate <= 0:
        return 0
    digits = 1 - math.floor(math.log10(rate))
    return round(rate, digits) if digits > 0 else int(round(rate, digits))


# ---------------------------------------------------------------------- decisions


@dataclass(frozen=True)
class Decisions:
    """The last entries of the history, as the command ``history`` tells them, by what tells each from all others.

    ``newest``: where in the history's file the next question goes on; 0 = all of them are asked for.
    """

    newest: int = 0
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_answer(self, answer: Mapping[str, Any]) -> Decisions:
        """With an answer's entries, new ones and those that were amended; another file than before forgets the old."""
        newest: int = answer["newest"]
        known = dict(self.rows) if newest >= self.newest else {}
        for row in answer["entries"]:
            known[f"{row['boot'][:8]} {row['number']} {row['at_s']}"] = row
        last = sorted(known, key=lambda key: (known[key]["time_s"], known[key]["number"]))[-MOST_DECISIONS:]
        return Decisions(newest if newest >= self.newest else 0, {key: known[key] for key in last})

    @property
    def kept(self) -> dict[str, Mapping[str, Any]]:
        """The last of them that a page keeps, the oldest first."""
        found: list[str] = []
        ids = 0
        for key in reversed(list(self.rows)):
            row = self.rows[key]
            ids += sum(len(change["containers"]) for change in row["changes"])
            if ids > MOST_IDS:
                break
            found.append(key)
        return {key: self.rows[key] for key in reversed(found)}


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "at": round(row["time_s"], 1),
        "boot": row["boot"][:8],
        "number": row["number"],
        "operation": row["operation"],
        "container": row["container"],
        "id": row["id"],
        "level": row["level"],
        "cpus": row["cpus"],
        "why": row["why"],
        "outcome": row["outcome"],
        "changes": [
            {
                **{key: change[key] for key in ("operation", "level", "cpus", "why")},
                "ids": [one["id"] for one in change["containers"]],
            }
            for change in row["changes"]
        ],
    }


# ---------------------------------------------------------------------- what has changed

#: ``set``: of sections the rows that are new or other; ``gone``: of sections the ids that are not there any more.
Delta = Mapping[str, Mapping[str, Any]]


def delta(before: Document, now: Document) -> dict[str, dict[str, Any]]:
    """What makes ``now`` of ``before``; empty = they are the same. Both have the same sections."""
    changed: dict[str, Any] = {}
    gone: dict[str, Any] = {}
    for section, rows in now.items():
        old = before[section]
        # A row that is the same object is the same: no comparison for those.
        new = {
            key: row
            for key, row in rows.items()
            if key not in old or (old[key] is not row and old[key] != row)
        }
        left = [key for key in old if key not in rows]
        if new:
            changed[section] = new
        if left:
            gone[section] = left
    return {name: part for name, part in (("set", changed), ("gone", gone)) if part}


def patched(before: Document, change: Delta) -> dict[str, dict[str, Any]]:
    """The document after a change: what the page does with it, for tests of both."""
    after = {section: dict(rows) for section, rows in before.items()}
    for section, keys in change.get("gone", {}).items():
        for key in keys:
            after[section].pop(key, None)
    for section, rows in change.get("set", {}).items():
        after[section].update(rows)
    return after
