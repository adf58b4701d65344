"""One moment of a node, which a screen and a page are drawn from: the daemon's answers as values. Pure.

The answers are those to ``report``, ``affinity`` and ``moves``. Names and sentences come from other programs: what a
terminal would take as a command is replaced.

The machine is boxes in boxes; how busy its CPUs are comes from two readings of ``/proc/stat`` (proc(5)).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Optional

from cri_api.printable import printable
from cri_proxy.text.terminal import stance_text
from policies.machine.cpus import parse_cpus
from policies.machine.domain_names import domain_text

#: Kinds of zones, the smaller first where several have the same CPUs.
_RANKS = {"Socket": 0, "Node": 1, "L3": 2}


@dataclass(frozen=True)
class CacheFill:
    """What fills an L3. ``shares``: bytes of containers by id, the most first; ``others``: of all else. None = not known."""

    size_bytes: int
    shares: tuple[tuple[str, int], ...] = ()
    others_bytes: Optional[int] = None

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.shares) + (self.others_bytes or 0)


@dataclass(frozen=True)
class Place:
    """A box of the machine: zones with the same CPUs are one, with all of their names, as people read
    them. ``load`` None = not known.

    ``memory_bytes`` 0: it is no NUMA node, or not known. ``fill``: of an L3, where that is monitored. ``divided``: of one
    that protected and batch containers share, what isolation does there, a line each.
    """

    names: tuple[str, ...]
    cpus: frozenset[int]
    allocatable_milli: int
    charged_milli: int
    exclusive: str
    shared: str
    memory_bytes: int
    memory_charged_bytes: int
    load: Optional[float] = None
    children: tuple[Place, ...] = ()
    fill: Optional[CacheFill] = None
    divided: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return " = ".join(self.names)

    @property
    def every(self) -> tuple[Place, ...]:
        """The box and all that are in it."""
        return (self, *(one for child in self.children for one in child.every))

    @property
    def leaves(self) -> tuple[Place, ...]:
        return tuple(leaf for child in self.children for leaf in child.leaves) if self.children else (self,)


def read_places(
    zones: Sequence[Mapping[str, Any]],
    by_cpu: Mapping[int, float],
    fills: Mapping[str, CacheFill] = {},
    divided: Mapping[str, tuple[str, ...]] = {},
) -> tuple[Place, ...]:
    """The boxes of a machine, each in the smallest that holds it: a NUMA node in a large L3 as well as the reverse.

    ``fills``, ``divided``: of L3s, by the name of the zone.
    """
    boxes = _boxes(tuple((zone["type"], zone["cpus"]) for zone in zones))
    return tuple(_read_place(box, zones, by_cpu, fills, divided) for box in boxes)


def _read_place(
    box: _Box,
    zones: Sequence[Mapping[str, Any]],
    by_cpu: Mapping[int, float],
    fills: Mapping[str, CacheFill],
    divided: Mapping[str, tuple[str, ...]],
) -> Place:
    rows = [zones[index] for index in box.zones]
    return Place(
        tuple(domain_text(row["name"]) for row in rows),
        box.cpus,
        rows[0]["allocatable_milli_cpus"],
        rows[0]["charged_milli_cpus"],
        rows[0]["exclusive_cpus"],
        rows[0]["shared_cpus"],
        max(row["memory_bytes"] for row in rows),
        max(row["memory_charged_bytes"] for row in rows),
        mean_load(box.cpus, by_cpu),
        tuple(_read_place(child, zones, by_cpu, fills, divided) for child in box.children),
        next((fills[row["name"]] for row in rows if row["name"] in fills), None),
        next((divided[row["name"]] for row in rows if row["name"] in divided), ()),
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


def box_names(places: Iterable[Place]) -> dict[str, tuple[str, ...]]:
    """By the name of each zone all names of its box."""
    return {name: box.names for place in places for box in place.every for name in box.names}


# ---------------------------------------------------------------------- load

#: Ticks that a CPU was busy, and all of its ticks.
Times = Mapping[int, tuple[int, int]]


def read_times(stat: str) -> dict[int, tuple[int, int]]:
    """The ticks of each CPU. Idle and waiting for a disk is not busy; a guest's time is in that of its host."""
    found = {}
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name[:3] == "cpu" and name[3:].isdigit():
            ticks = [int(word) for word in rest.split()[:8]]
            if len(ticks) >= 5:
                total = sum(ticks)
                found[int(name[3:])] = total - ticks[3] - ticks[4], total
    return found


def loads(before: Times, now: Times) -> dict[int, float]:
    """The part of the time between two readings that each CPU was busy, 0 to 1; of CPUs that are in both."""
    found = {}
    for cpu, (busy, total) in now.items():
        if cpu in before:
            passed = total - before[cpu][1]
            if passed > 0:
                found[cpu] = min(1.0, max(0.0, (busy - before[cpu][0]) / passed))
    return found


def mean_load(cpus: Iterable[int], by_cpu: Mapping[int, float]) -> Optional[float]:
    """Of some CPUs; None: of none of them it is known."""
    known = [by_cpu[cpu] for cpu in cpus if cpu in by_cpu]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class ContainerView:
    """One container. ``zone``: the smallest that holds its CPUs, "" = it spans sockets. ``cache_bytes``: what it fills of
    all L3s, None = not known."""

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
    mems: str
    qos: str
    why: str
    pod_uid: str
    bytes_per_s: float = 0.0
    cache_bytes: Optional[int] = None
    #: Its claims, and the CPUs that they own; "" = it has none.
    claims: str = ""
    claimed: str = ""

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.name}"


@dataclass(frozen=True)
class FlowView:
    """Traffic between two containers, both directions. ``ids``: the ends', of a pod ``pod:`` and its uid."""

    a: str
    b: str
    bytes_per_s: float
    messages_per_s: float
    where: str
    ids: tuple[str, str]


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
class NodeSnapshot:
    """One moment of a node. ``places``: the outermost boxes. ``*_note``: why there is nothing to list, "" = not known.

    ``by_cpu``: how busy each CPU is, 0 to 1. ``moves`` are there only where they were asked for. ``old``: figures that are
    not of this moment, as the daemon tells them (``cri_proxy/text/ages.py``).
    """

    version: str
    instance: str
    mode: str
    policy: str
    degraded: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    old: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_cpu: Mapping[int, float] = field(default_factory=dict)
    places: tuple[Place, ...] = ()
    containers: tuple[ContainerView, ...] = ()
    flows: tuple[FlowView, ...] = ()
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
) -> NodeSnapshot:
    """The answers of one moment; ``by_cpu``: how busy each CPU is. ``notes``: why ``affinity`` or ``moves`` is empty."""
    rates: dict[str, float] = {}
    for row in affinity.get("edges", ()):
        for end in (row["a"], row["b"]):
            rates[end] = rates.get(end, 0.0) + row["bytes_per_s"]
    # A daemon before this version does not say it.
    fills = {row["l3"]: _read_fill(row) for row in report.get("caches") or ()}
    filled: dict[str, int] = {}
    for key, size in (share for fill in fills.values() for share in fill.shares):
        filled[key] = filled.get(key, 0) + size
    containers = tuple(_read_container(row, rates, filled) for row in report["placements"])
    return NodeSnapshot(
        version=clean(report["version"]),
        instance=report["instance"],
        mode=clean(report["mode"]),
        policy=clean(report["policy"]),
        degraded=tuple(f"{topic}: {clean(reason)}" for topic, reason in report["degraded"].items()),
        warnings=tuple(map(clean, report["warnings"])),
        old={name: {**row, "why": clean(row["why"])} for name, row in (report.get("old") or {}).items()},
        by_cpu=by_cpu,
        places=read_places(report["zones"], by_cpu, fills, _read_divided(report)),
        containers=containers,
        flows=tuple(map(_read_flow, affinity.get("edges", ()))),
        moves=tuple(_read_moved(row) for row in moves.get("moves", ())),
        traffic_note=clean(notes[0] or (affinity.get("observer") or {}).get("problem") or ""),
        moves_note=clean(notes[1]),
        namespaces=tuple(sorted({container.namespace for container in containers})),
    )


def clean(text: Any) -> str:
    """One line without what a terminal would take as a command."""
    return printable(" ".join(str(text).split()))


def _read_fill(row: Mapping[str, Any]) -> CacheFill:
    shares = tuple((one["id"], one["bytes"]) for one in row["containers"] if one["bytes"] is not None)
    return CacheFill(row["size_bytes"], shares, row["others_bytes"])


def _read_divided(report: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What isolation does in each L3 that protected and batch containers share. Older daemons do not say it."""
    found = {}
    for row in (report.get("isolation") or {}).get("l3s") or ():
        has = row.get("batch_has")
        lines = (
            f"protected: {row['protected']}, batch: {row['batch']}",
            f"batch has {has}" if has else "not divided",
            row.get("step"),
        )
        found[f"l3-{row['l3']}"] = tuple(clean(line) for line in lines if line)
    return found


def _read_container(
    row: Mapping[str, Any], rates: Mapping[str, float], filled: Mapping[str, int]
) -> ContainerView:
    return ContainerView(
        row["container_id"],
        clean(row["namespace"]),
        clean(row["pod"]),
        clean(row["container"]),
        domain_text(row["zone"]),
        row["level"],
        row["cpus"],
        row["exclusive"],
        row["milli_cpus"],
        stance_text(row["state"]),
        row["mems"],
        row["qos"],
        clean(row["why"]),
        row["pod_uid"],
        rates.get(row["container_id"], 0.0),
        filled.get(row["container_id"]),
        clean(", ".join(row.get("claims", ()))),
        row.get("claimed", ""),
    )


def _read_flow(row: Mapping[str, Any]) -> FlowView:
    # Which end comes first says nothing.
    first, second = sorted((clean(row["container"]), clean(row["talks_to"])))
    return FlowView(
        first,
        second,
        row["bytes_per_s"],
        row["messages_per_s"],
        clean(row["where"]),
        (row["a"], row["b"]),
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
