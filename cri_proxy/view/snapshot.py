"""One moment of a node, which a screen and a page are drawn from: the daemon's answers as values. Pure.

The answers are those to ``report``, ``affinity`` and ``moves``. Names and sentences come from other programs: what a
terminal would take as a command is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cri_proxy.text.terminal import stance_text
from cri_proxy.view.places import Place, read_places
from policies.machine.domain_names import domain_text


@dataclass(frozen=True)
class ContainerView:
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
    mems: str
    qos: str
    why: str
    pod_uid: str
    bytes_per_s: float = 0.0

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

    ``by_cpu``: how busy each CPU is, 0 to 1. ``moves`` are there only where they were asked for.
    """

    version: str
    instance: str
    mode: str
    policy: str
    degraded: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
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
    containers = tuple(_read_container(row, rates) for row in report["placements"])
    return NodeSnapshot(
        version=clean(report["version"]),
        instance=report["instance"],
        mode=clean(report["mode"]),
        policy=clean(report["policy"]),
        degraded=tuple(f"{topic}: {clean(reason)}" for topic, reason in report["degraded"].items()),
        warnings=tuple(map(clean, report["warnings"])),
        by_cpu=by_cpu,
        places=read_places(report["zones"], by_cpu),
        containers=containers,
        flows=tuple(map(_read_flow, affinity.get("edges", ()))),
        moves=tuple(_read_moved(row) for row in moves.get("moves", ())),
        traffic_note=clean(notes[0] or (affinity.get("observer") or {}).get("problem") or ""),
        moves_note=clean(notes[1]),
        namespaces=tuple(sorted({container.namespace for container in containers})),
    )


def clean(text: Any) -> str:
    """One line without what a terminal would take as a command."""
    words = " ".join(str(text).split())
    return words if words.isprintable() else "".join(c if c.isprintable() else "?" for c in words)


def _read_container(row: Mapping[str, Any], rates: Mapping[str, float]) -> ContainerView:
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
