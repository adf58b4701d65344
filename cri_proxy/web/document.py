"""What the page is drawn from: the daemon's answers as one document of sections, each with a row a thing. Pure.

Rows are small and rounded, so that most of them stay the same from one second to the next: what is sent after the first
document is what has changed (``delta.py``). Ids are the daemon's: of boxes the name of their first zone, of containers
the runtime's id, of edges both ends, of decisions boot, number and time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cri_proxy.top.snapshot import Place, read_places
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


@dataclass(frozen=True)
class Answers:
    """What the daemon has said at one moment. ``notes``: why there is no traffic, or are no decisions; "" = there are.

    ``by_cpu``: how busy each CPU is, 0 to 1.
    """

    report: Mapping[str, Any]
    affinity: Mapping[str, Any] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=lambda: Decisions())
    topology: Mapping[str, Any] = field(default_factory=dict)
    by_cpu: Mapping[int, float] = field(default_factory=dict)
    host: str = ""
    notes: tuple[str, str] = ("", "")


def read_document(answers: Answers) -> dict[str, dict[str, Any]]:
    """The document of a moment.

    :raises KeyError, TypeError, ValueError: an answer is none that this version understands.
    """
    report = answers.report
    places = read_places(report["zones"], answers.by_cpu)
    boxes = {name: place.names[0] for place in _all(places) for name in place.names}
    containers = {row["container_id"]: _container(row, boxes) for row in report["placements"]}
    return {
        "node": {**_node(answers), **_pools(report["zones"], places)},
        "machine": {"boxes": [_box(place) for place in places], "cores": _cores(answers.topology)},
        "zones": {place.names[0]: _zone(place) for place in _all(places)},
        "cpus": {str(cpu): round(load, 2) for cpu, load in sorted(answers.by_cpu.items())},
        "containers": containers,
        "edges": _edges(answers.affinity, report["placements"]),
        "decisions": {key: _decision(row) for key, row in answers.decisions.kept.items()},
    }


def _all(places: Iterable[Place]) -> list[Place]:
    return [one for place in places for one in (place, *_all(place.children))]


def _node(answers: Answers) -> dict[str, Any]:
    report = answers.report
    return {
        "host": answers.host,
        "version": report["version"],
        "instance": report["instance"],
        "mode": report["mode"],
        "policy": report["policy"],
        "degraded": [f"{topic}: {reason}" for topic, reason in report["degraded"].items()],
        "warnings": list(report["warnings"]),
        "traffic_note": answers.notes[0] or _traffic_note(answers.affinity),
        "decisions_note": answers.notes[1],
    }


def _traffic_note(affinity: Mapping[str, Any]) -> str:
    if affinity.get("edges"):
        return ""
    return (affinity.get("observer") or {}).get("problem") or "No traffic between containers is seen."


def _pools(zones: Iterable[Mapping[str, Any]], places: Iterable[Place]) -> dict[str, Any]:
    """CPUs that belong to containers alone, and those that no container is placed on, as lists."""
    exclusive: set[int] = set()
    shared: set[int] = set()
    for zone in zones:
        exclusive |= parse_cpus(zone["exclusive_cpus"])
        shared |= parse_cpus(zone["shared_cpus"])
    every = frozenset().union(*(place.cpus for place in places))
    return {"exclusive": format_cpus(exclusive), "reserved": format_cpus(every - exclusive - shared)}


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
    }


def _cores(topology: Mapping[str, Any]) -> list[list[int]]:
    """CPUs that share a core, as lists, by their lowest."""
    cores: dict[tuple[Any, ...], list[int]] = {}
    for row in topology.get("cpus", ()):
        where = row.get("socket"), row.get("die"), row.get("numa"), row.get("core", ("cpu", row["cpu"]))
        cores.setdefault(where, []).append(row["cpu"])
    return sorted(sorted(core) for core in cores.values())


# ---------------------------------------------------------------------- containers and what they exchange


def _container(row: Mapping[str, Any], boxes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "namespace": row["namespace"],
        "pod": row["pod"],
        "name": row["container"],
        "box": boxes.get(row["zone"], ""),
        "level": row["level"],
        "cpus": row["cpus"],
        "mems": row["mems"],
        "own": row["exclusive"],
        "milli": row["milli_cpus"],
        "qos": row["qos"],
        "state": row["state"],
        "why": row["why"],
    }


def _edges(affinity: Mapping[str, Any], placements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Traffic, both directions. Where of an end only the pod is known, its first container stands for it."""
    ids = {row["container_id"] for row in placements}
    of_pod: dict[str, str] = {}
    for row in placements:
        of_pod.setdefault("pod:" + row["pod_uid"], row["container_id"])
    found: dict[str, Any] = {}
    for row in affinity.get("edges", ()):
        a, b = sorted(end if end in ids else of_pod.get(end, "") for end in (row["a"], row["b"]))
        if not a or a == b:
            continue
        before = found.get(f"{a} {b}", {"bytes": 0.0, "messages": 0.0})
        found[f"{a} {b}"] = {
            "a": a,
            "b": b,
            "bytes": rounded(before["bytes"] + row["bytes_per_s"]),
            "messages": rounded(before["messages"] + row["messages_per_s"]),
            "far": _NEAR.get(row["where"], FARTHEST),
            "where": row["where"],
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
