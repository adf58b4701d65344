"""What one screen is made of: the daemon's answers (``report``, ``affinity``, ``moves``) as values. Pure.

Names and sentences come from other programs: what a terminal would take as a command is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Optional

from cri_proxy.top.load import mean_load
from policies.machine.cpus import parse_cpus

#: Kinds of zones, the smaller first where several have the same CPUs.
_RANKS = {"Socket": 0, "Node": 1, "L3": 2}


@dataclass(frozen=True)
class Place:
    """A box of the machine: zones with the same CPUs are one, with all of their names. ``load`` None = not known.

    ``memory_bytes`` 0: it is no NUMA node, or not known.
    """

    names: tuple[str, ...]
    cpus: frozenset[int]
    allocatable_milli: int
    charged_milli: int
    exclusive: str
    memory_bytes: int
    memory_charged_bytes: int
    load: Optional[float] = None
    children: tuple[Place, ...] = ()

    @property
    def title(self) -> str:
        return " = ".join(self.names)

    @property
    def leaves(self) -> tuple[Place, ...]:
        return tuple(leaf for child in self.children for leaf in child.leaves) if self.children else (self,)


@dataclass(frozen=True)
class Container:
    """One container. ``zone``: the smallest that holds its CPUs, "" = it spans sockets."""

    id: str
    namespace: str
    pod: str
    name: str
    zone: str
    level: str
    cpus: str
    is_exclusive: bool
    milli_cpus: int
    state: str
    bytes_per_s: float = 0.0

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.name}"


@dataclass(frozen=True)
class Flow:
    """Traffic between two containers, both directions."""

    a: str
    b: str
    bytes_per_s: float
    messages_per_s: float
    where: str


@dataclass(frozen=True)
class Moved:
    """Containers that got other CPUs by one cause. ``containers``: the first of ``count``."""

    number: int
    age_s: float
    operation: str
    containers: tuple[str, ...]
    count: int
    cpus: str
    level: str
    why: str


@dataclass(frozen=True)
class Snapshot:
    """One moment of a node. ``places``: the outermost boxes. ``*_note``: why there is nothing to list, "" = there is."""

    version: str
    mode: str
    policy: str
    degraded: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    containers: tuple[Container, ...] = ()
    flows: tuple[Flow, ...] = ()
    moves: tuple[Moved, ...] = ()
    traffic_note: str = ""
    moves_note: str = ""
    namespaces: tuple[str, ...] = field(default=())


def read_snapshot(
    report: Mapping[str, Any],
    affinity: Mapping[str, Any],
    moves: Mapping[str, Any],
    by_cpu: Mapping[int, float],
    notes: tuple[str, str] = ("", ""),
) -> Snapshot:
    """The answers of one moment; ``by_cpu``: how busy each CPU is. ``notes``: why ``affinity`` or ``moves`` is empty."""
    flows = tuple(_read_flow(row) for row in affinity.get("edges", ()))
    rates: dict[str, float] = {}
    for row in affinity.get("edges", ()):
        for end in (row["a"], row["b"]):
            rates[end] = rates.get(end, 0.0) + row["bytes_per_s"]
    containers = tuple(_read_container(row, rates) for row in report["placements"])
    return Snapshot(
        version=clean(report["version"]),
        mode=clean(report["mode"]),
        policy=clean(report["policy"]),
        degraded=tuple(f"{topic}: {clean(reason)}" for topic, reason in report["degraded"].items()),
        places=read_places(report["zones"], by_cpu),
        containers=containers,
        flows=tuple(sorted(flows, key=lambda flow: (-flow.bytes_per_s, flow.a, flow.b))),
        moves=tuple(_read_moved(row) for row in moves.get("moves", ())),
        traffic_note=clean(notes[0]) or _traffic_note(affinity),
        moves_note=clean(notes[1]) or "nothing has moved",
        namespaces=tuple(sorted({container.namespace for container in containers})),
    )


def clean(text: Any) -> str:
    """One line without what a terminal would take as a command."""
    words = " ".join(str(text).split())
    return words if words.isprintable() else "".join(c if c.isprintable() else "?" for c in words)


def _traffic_note(affinity: Mapping[str, Any]) -> str:
    observer = affinity.get("observer") or {}
    return clean(observer.get("problem") or "") or "no traffic between containers is seen"


def _read_container(row: Mapping[str, Any], rates: Mapping[str, float]) -> Container:
    return Container(
        row["container_id"],
        clean(row["namespace"]),
        clean(row["pod"]),
        clean(row["container"]),
        row["zone"],
        row["level"],
        row["cpus"],
        row["exclusive"],
        row["milli_cpus"],
        row["state"],
        rates.get(row["container_id"], 0.0),
    )


def _read_flow(row: Mapping[str, Any]) -> Flow:
    # Which end comes first says nothing.
    first, second = sorted((clean(row["container"]), clean(row["talks_to"])))
    return Flow(
        first,
        second,
        row["bytes_per_s"],
        row["messages_per_s"],
        clean(row["where"]),
    )


def _read_moved(row: Mapping[str, Any]) -> Moved:
    return Moved(
        row["number"],
        row["age_s"],
        clean(row["operation"]),
        tuple(map(clean, row["containers"])),
        row["count"],
        row["cpus"],
        row["level"],
        clean(row["why"]),
    )


# ---------------------------------------------------------------------- the machine


def read_places(zones: Sequence[Mapping[str, Any]], by_cpu: Mapping[int, float]) -> tuple[Place, ...]:
    """The boxes of a machine, each in the smallest that holds it: a NUMA node in a large L3 as well as the reverse."""
    boxes = _boxes(tuple((zone["type"], zone["cpus"]) for zone in zones))
    return tuple(_read_place(box, zones, by_cpu) for box in boxes)


def _read_place(box: _Box, zones: Sequence[Mapping[str, Any]], by_cpu: Mapping[int, float]) -> Place:
    rows = [zones[index] for index in box.zones]
    return Place(
        tuple(row["name"] for row in rows),
        box.cpus,
        rows[0]["allocatable_milli_cpus"],
        rows[0]["charged_milli_cpus"],
        rows[0]["exclusive_cpus"],
        max(row["memory_bytes"] for row in rows),
        max(row["memory_charged_bytes"] for row in rows),
        mean_load(box.cpus, by_cpu),
        tuple(_read_place(child, zones, by_cpu) for child in box.children),
    )


@dataclass(frozen=True)
class _Box:
    """Zones with the same CPUs, as indices, and what is inside."""

    zones: tuple[int, ...]
    cpus: frozenset[int]
    children: tuple[_Box, ...]


@lru_cache(maxsize=1)  # a machine stays what it is
def _boxes(zones: tuple[tuple[str, str], ...]) -> tuple[_Box, ...]:
    read = [
        (parse_cpus(cpus), _RANKS.get(kind, len(_RANKS)), index) for index, (kind, cpus) in enumerate(zones)
    ]
    # 1. From the largest to the smallest; of those with the same CPUs a socket before a node before an L3.
    read = sorted((one for one in read if one[0]), key=lambda one: (-len(one[0]), one[1], min(one[0])))
    # 2. Each below the last one before it that holds it.
    below: dict[int, list[int]] = {at: [] for at in range(-1, len(read))}
    for at, (cpus, _, _) in enumerate(read):
        around = [other for other in range(at) if cpus <= read[other][0]]
        below[around[-1] if around else -1].append(at)

    def build(at: int) -> _Box:
        cpus, _, index = read[at]
        indices = [index]
        # 3. Those that hold the same are one box.
        while len(below[at]) == 1 and read[below[at][0]][0] == cpus:
            at = below[at][0]
            indices.append(read[at][2])
        return _Box(tuple(indices), cpus, _in_order(map(build, below[at])))

    return _in_order(map(build, below[-1]))


def _in_order(boxes: Iterable[_Box]) -> tuple[_Box, ...]:
    return tuple(sorted(boxes, key=lambda box: min(box.cpus)))


def by_place(
    containers: Iterable[Container], places: Iterable[Place]
) -> dict[tuple[str, ...], list[Container]]:
    """Containers by the names of their box; those of none, which span sockets, by ``()``."""
    names: dict[str, tuple[str, ...]] = {}
    for place in places:
        names.update(_names(place))
    found: dict[tuple[str, ...], list[Container]] = {}
    for container in containers:
        found.setdefault(names.get(container.zone, ()), []).append(container)
    return found


def _names(place: Place) -> dict[str, tuple[str, ...]]:
    found = dict.fromkeys(place.names, place.names)
    for child in place.children:
        found.update(_names(child))
    return found
