"""The claims that are prepared, as rows and as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cri_api.claims import read_part
from cri_proxy.engine.claims import members_of
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.members import claim_name
from cri_proxy.engine.model import CLAIM_MOVED, CLAIM_SHORT, ContainerRecord, Life, id_at
from cri_proxy.engine.report import path_of
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology


def claim_records(engine: Engine) -> tuple[ContainerRecord, ...]:
    """The records of claims' parts, by the claims' names."""
    found = [grant for grant in engine.grants.values() if grant.is_claim]
    return tuple(sorted(found, key=lambda g: (g.container.pod.namespace, g.container.pod.name, g.key)))


def claim_rows(engine: Engine) -> list[dict[str, Any]]:
    """A row for each part of each claim.

    ``containers``: those that have it. ``moved``: its CPUs are others than those that it was prepared with. ``healthy``:
    it has as many as it was given, all of them online and inside its devices.
    """
    members: dict[str, list[str]] = {}
    for grant in engine.grants.values():
        for key in grant.container.claims if grant.life is not Life.HELD else ():
            members.setdefault(key, []).append(path_of(engine, grant.key))
    return [_row(engine, grant, sorted(members.get(grant.key, ()))) for grant in claim_records(engine)]


def summary(engine: Engine) -> dict[str, Any]:
    """How many claims there are, and the CPUs that they own; {} = there are none."""
    records = claim_records(engine)
    cpus = frozenset[int]().union(*(grant.placement.exclusive for grant in records))
    count = len({grant.container.pod.uid for grant in records})
    return {"count": count, "cpus": format_cpus(cpus)} if records else {}


def _row(engine: Engine, grant: ContainerRecord, containers: list[str]) -> dict[str, Any]:
    pod, part = grant.container.pod, grant.part
    cpus = grant.placement.cpus
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "request": grant.container.name,
        "devices": [] if part is None else list(part.devices),
        "cpus": format_cpus(cpus),
        "l3s": l3_names(engine.host.topology, cpus),
        "containers": containers,
        "why": grant.why,
        "moved": grant.moved_s > 0,
        "healthy": is_healthy(engine, grant),
    }


def is_healthy(engine: Engine, grant: ContainerRecord) -> bool:
    """Whether a part of a claim has what it was given."""
    part, usable = grant.part, grant.placement.exclusive & engine.host.usable
    return part is None or (len(usable) >= part.count and usable <= part.cpus)


def tell_members(engine: Engine, keys: Iterable[str]) -> None:
    """Have it among the notable events of the containers of these parts of claims that their CPUs are others now."""
    for key in keys:
        grant = engine.grants.get(key)
        if grant is None:
            continue
        is_whole, cpus = is_healthy(engine, grant), format_cpus(grant.placement.cpus) or "none"
        name = f"claim {claim_name(grant)}"
        sentence = (
            f"{name} is on CPUs {cpus} now: {grant.why}"
            if is_whole
            else f"{name} has CPUs {cpus}: {grant.why}"
        )
        for member in members_of(engine, key):
            reason = CLAIM_MOVED if is_whole else CLAIM_SHORT
            engine.notable.add(reason, engine.grants[member].container, sentence)


def l3_names(topology: Topology, cpus: frozenset[int]) -> list[str]:
    """The L3s that some CPUs are in, by the names of their zones."""
    return [f"l3-{id_at(l3, 'l3')}" for l3 in topology.at("l3") if l3.cpus & cpus]


def known_parts(engine: Engine) -> dict[str, list[str]]:
    """The names of the parts of every claim, by its UID."""
    found: dict[str, list[str]] = {}
    for grant in engine.grants.values():
        name = grant.key.partition("/")[2] if grant.is_claim else ""
        if part := read_part(name):
            found.setdefault(part[0], []).append(name)
    return found


# ---------------------------------------------------------------------- for people


def claims_text(document: Mapping[str, Any]) -> str:
    """The table of ``cri-resmgr claims``."""
    rows = document.get("claims") or ()
    if not rows:
        reason = document.get("reason")
        return f"no claims; none can be prepared: {reason}" if reason else "no claims"
    header = ("CLAIM", "REQUEST", "DEVICES", "CPUS", "L3", "CONTAINERS", "")
    table = [header, *(_line(row) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(header))]
    return "\n".join(
        "  ".join(f"{text:{width}}" for text, width in zip(line, widths)).rstrip() for line in table
    )


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    remarks = [word for word, is_so in (("moved", row["moved"]), ("unhealthy", not row["healthy"])) if is_so]
    return (
        f"{row['namespace']}/{row['name']}",
        str(row["request"]),
        _joined(row["devices"]),
        str(row["cpus"]) or "-",
        _joined(row["l3s"]),
        _joined(row["containers"]),
        ", ".join(remarks),
    )


def _joined(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"
