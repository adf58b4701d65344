"""What people and scripts are told: placements, explanations and status as plain data and as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Optional

from cri_proxy.engine.declared import declared_rows
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import unmet
from cri_proxy.engine.members import claim_name, claims_of
from cri_proxy.engine.model import (
    ZONES,
    ContainerRecord,
    DecisionRecord,
    Life,
    Management,
    MoveEffect,
    PlacementChange,
    Zone,
    id_at,
    parent_of,
    resident_of,
    zone_around,
)
from cri_proxy.engine.moves import LISTED, NAMED, peer_rows
from cri_proxy.engine.state import CAUSES
from policies.affinity.graph.groups import TrafficGroup
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.traffic import POD_PREFIX, Traffic
from policies.frozen import frozen
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology
from policies.memory import allocatable_bytes, room_bytes
from policies.node import Node
from policies.reasons import figures_of, plain
from policies.settings import PlacementSettings
from policies.wanted import demand_of


@frozen
class DomainPools:
    """One domain's CPUs by pool (``usable``, ``shared``, ``exclusive``, ``reserved``), and its charge."""

    level: str
    name: str
    cpus: frozenset[int]
    counts: dict[str, int]
    charged_milli: int

    @property
    def free_milli(self) -> int:
        """Shared capacity no request is charged on; negative when overcommitted."""
        return self.counts["shared"] * 1000 - self.charged_milli


def domain_pools(node: Node) -> tuple[DomainPools, ...]:
    """The domains that placements use (cluster, L3, NUMA node, socket, machine), largest first, with their pools."""
    found = []
    for level in ("machine", "socket", "numa", "l3", "cluster"):
        for domain in node.topology.at(level):
            pools = {
                "usable": node.usable,
                "shared": node.shared,
                "exclusive": node.exclusive,
                "reserved": node.reserved,
            }
            counts = {name: len(pool & domain.cpus) for name, pool in pools.items()}
            charged = node.charge_milli(domain.cpus & node.shared)
            found.append(DomainPools(level, domain.name_at(level), domain.cpus, counts, charged))
    return tuple(found)


def level_of(topology: Topology, cpus: frozenset[int]) -> str:
    """The level of the smallest place that holds CPUs, as placements have it."""
    whole = cpus & topology.online
    for kind, level in (("cluster", "cluster"), ("l3", "ccx"), ("numa", "numa"), ("socket", "socket")):
        around = [domain.cpus for domain in topology.at(kind) if whole & domain.cpus]
        if len(around) == 1:
            inside = [l3.cpus & topology.online for l3 in topology.at("l3") if l3.cpus < around[0]]
            filled = all(cpus <= whole for cpus in inside)
            return "nccx" if kind == "numa" and not filled else level
        if kind == "numa" and len(around) == 2:
            in_one_l3 = any(node & whole <= l3.cpus < node for node in around for l3 in topology.at("l3"))
            return "numa+ccx" if in_one_l3 else "2numa"
    return "machine"


def placement_row(topology: Topology, grant: ContainerRecord) -> dict[str, Any]:
    """One container as ``placements --json`` shows it. Of an adopted one the level is that of the CPUs it has."""
    container = grant.container
    level = grant.placement.level if grant.stance in (Management.PLACED, Management.OBSERVED) else "none"
    if grant.stance is Management.ADOPTED:
        level = level_of(topology, grant.cpus)
    return {
        "id": grant.key,
        "namespace": container.pod.namespace,
        "pod": container.pod.name,
        "pod_uid": container.pod.uid,
        "container": container.name,
        "attempt": container.attempt,
        "qos": container.qos.value,
        "state": grant.life.value,
        "stance": grant.stance.value,
        "level": level,
        "cpus": format_cpus(grant.cpus),
        "mems": format_cpus(grant.placement.mems if grant.stance is Management.PLACED else grant.mems),
        "exclusive": format_cpus(grant.exclusive),
        "cpu_request_milli": container.resources.milli_request,
        "cpu_limit_milli": container.resources.milli_limit,
        "cpu_size_milli": container.milli_size,
        "pod_cpu_request_milli": None if container.pod_share is None else container.pod_share.milli_pod,
        "pod_cpu_sharers": 0 if container.pod_share is None else container.pod_share.count,
        "why": plain(grant.why),
        "runs_in": grant.runs_in,
        "isolation": grant.isolation,
        "isolation_why": grant.isolation_why,
    }


def placement_rows(engine: Engine) -> list[dict[str, Any]]:
    """All containers, by namespace, pod and name."""
    grants = sorted(_containers_of(engine), key=lambda g: (g.container.path, g.container.attempt, g.key))
    return [
        {
            **placement_row(engine.host.topology, grant),
            "why": plain(present_why(engine, grant)),
            **_claims_of(engine, grant),
        }
        for grant in grants
    ]


def _containers_of(engine: Engine) -> Iterator[ContainerRecord]:
    """The records of containers; claims have none."""
    return (grant for grant in engine.grants.values() if not grant.is_claim)


def _claims_of(engine: Engine, grant: ContainerRecord) -> dict[str, Any]:
    """A container's claims that are prepared, ``namespace/name``, and their CPUs; nothing where it has none."""
    if not grant.container.claims:
        return {}
    names = dict.fromkeys(claim_name(claim) for claim in claims_of(engine.grants, grant.container))
    return {"claims": list(names), "claimed": format_cpus(grant.placement.claimed)}


def _claim_rows(engine: Engine, grant: ContainerRecord) -> list[dict[str, Any]]:
    """The parts of a container's claims with what they own; of one that is not prepared its name alone."""
    rows, prepared = [], {claim.key: claim for claim in claims_of(engine.grants, grant.container)}
    for key in grant.container.claims:
        claim = prepared.get(key)
        rows.append(
            {
                "name": key.partition("/")[2] if claim is None else claim_name(claim),
                "request": "" if claim is None else claim.container.name,
                "devices": [] if claim is None or claim.part is None else list(claim.part.devices),
                "cpus": "" if claim is None else format_cpus(claim.placement.cpus),
                "is_prepared": claim is not None,
                "why": "" if claim is None else plain(claim.why),
            }
        )
    return rows


def _reason(why: str) -> dict[str, Any]:
    """A reason, and the figures of the search that found it."""
    return {"why": plain(why), "figures": list(figures_of(why))}


def present_why(engine: Engine, grant: ContainerRecord) -> str:
    """Why a container is where it is now: the reason of its place, and what has become of that for others."""
    cause, change = engine.changed.get(grant.key, (None, None))
    if cause is None or change is None or change.why or change.operation not in ("shrunk", "grown", "moved"):
        return grant.why
    if (change.cpus, change.stance) != (grant.cpus, grant.stance.value):  # it is elsewhere by now
        return grant.why
    count = "1 CPU" if len(grant.cpus) == 1 else f"{len(grant.cpus)} CPUs"
    return f"{grant.why}; since then {change.operation} to {count}{for_text(cause.path, cause.operation)}"


def for_text(path: str, operation: str) -> str:
    """What a change was done for: the container, and what happened to it."""
    return f" for {path} ({operation})" if path else f" ({operation})"


def find(engine: Engine, name: str) -> list[ContainerRecord]:
    """Containers by id prefix or by ``namespace/pod/container`` (or the end of it)."""
    found = sorted(_containers_of(engine), key=lambda g: g.key)
    by_id = [g for g in found if name and g.key.startswith(name)]
    return by_id or [g for g in _containers_of(engine) if _matches(g.container.path, name)]


def path_of(engine: Engine, container_id: str) -> str:
    """``namespace/pod/container`` of an id; "" if it is gone."""
    grant = engine.grants.get(container_id)
    return "" if grant is None else grant.container.path


def distrusted_paths(engine: Engine, now_s: float) -> list[str]:
    """The containers whose next create goes through untouched, as their pods are there to have one."""
    pods = {pod.uid: pod for pod in engine.pods.values()}
    pods.update({grant.container.pod.uid: grant.container.pod for grant in engine.grants.values()})
    return [
        f"{pod.namespace}/{pod.name}/{name}"
        for (uid, name), until_s in engine.distrusted.items()
        if until_s > now_s and (pod := pods.get(uid)) is not None
    ]


class NotOne(Exception):
    """A name that means no container, or several. The message says which."""


def find_one(engine: Engine, name: str) -> ContainerRecord:
    """The one container of a name that the runtime has created.

    :raises NotOne: there is none, or more than one.
    """
    found = [grant for grant in find(engine, name) if grant.life is not Life.CREATING]
    if not found:
        raise NotOne(f"no container {name!r} is known; see: cri-resmgr placements")
    if len(found) > 1:
        some = ", ".join(f"{grant.container.path} ({grant.key[:13]})" for grant in found[:5])
        raise NotOne(f"{name!r} means {len(found)} containers: {some}")
    return found[0]


def _matches(path: str, name: str) -> bool:
    return path == name or path.endswith("/" + name)


def _is_of_pod(path: str, name: str) -> bool:
    """Whether a container is in the pod ``name`` or ``namespace/name``."""
    return bool(name) and _matches(path.rpartition("/")[0], name)


def explain(engine: Engine, name: str, now_s: Optional[float] = None) -> Optional[dict[str, Any]]:
    """Everything known of a container, or of those of a pod: places now, past decisions, the room around. None if unknown.

    ``now_s``: seconds since boot, for how long ago things were; None: when the engine was last told the time.
    """
    grants = find(engine, name)
    found = {grant.key for grant in grants}
    if not any(key.startswith(name) for key in found):
        grants += [
            grant
            for grant in _containers_of(engine)
            if grant.key not in found and _is_of_pod(grant.container.path, name)
        ]
    paths = {g.key: g.container.path for g in grants}
    history: list[dict[str, Any]] = []
    for record in engine.history if name else ():
        changes = [
            change_row(record, c, key, paths[key]) for c in record.changes for key in c.keys if key in paths
        ]
        own = any(row["id"] == record.id for row in changes)
        is_meant = record.id in paths or record.id.startswith(name)
        if not own and (is_meant or _matches(record.path, name) or _is_of_pod(record.path, name)):
            history.append(history_row(record))
        history += changes
    if not grants and not history:
        return None
    now_s = engine.now_s if now_s is None else now_s
    return {
        "containers": [
            {**_explained(engine, grant), "moves": move_rows(engine, grant.key, now_s)} for grant in grants
        ],
        "history": [{**row, "age_s": round(max(0.0, now_s - row["at_s"]), 3)} for row in history],
    }


def _explained(engine: Engine, grant: ContainerRecord) -> dict[str, Any]:
    why = present_why(engine, grant)
    row = {**placement_row(engine.host.topology, grant), **_reason(why)}
    node = engine.node
    asked, constraint = grant.constraint.asked.cpus, grant.constraint
    row["fence_cpus"] = None if asked is None else format_cpus(asked)
    row["pod_cpus"] = (
        None if constraint.caller is None or constraint.cpus is None else format_cpus(constraint.cpus)
    )
    row["domains"] = [
        {
            "name": p.name,
            "cpus": format_cpus(p.cpus),
            "charged_milli": p.charged_milli,
            "free_milli": p.free_milli,
        }
        for p in domain_pools(node)
        if p.level in ("cluster", "l3", "numa") and not p.cpus.isdisjoint(grant.cpus)
    ]
    row["memory_charge"] = [list(pair) for pair in resident_of(grant).memory_charge]
    charged = frozenset(n for n, _ in row["memory_charge"])
    nodes = charged | grant.placement.mems or node.topology.nodes_of(grant.cpus)
    row["memory"] = [_memory_row(node, n) for n in sorted(nodes)]
    if grant.container.claims:
        row.update({**_claims_of(engine, grant), "claim_rows": _claim_rows(engine, grant)})
    row["peers"] = peer_rows(engine, grant)
    row["declared"] = declared_rows(engine, grant)
    row["not_alone"] = sorted(path_of(engine, key) for key in engine.not_alone(grant.key))
    return row


def not_alone(engine: Engine) -> dict[str, list[str]]:
    """By name the containers on whose own CPUs others may still be, which are to leave them, with those."""
    found = engine.all_not_alone() if engine.lacking() else {}
    return {
        path_of(engine, key): sorted(path_of(engine, other) for other in others)
        for key, others in found.items()
    }


def move_rows(engine: Engine, key: str, now_s: float) -> list[dict[str, Any]]:
    """The moves of plans that have brought a container nearer to peers, or apart from them, the latest first.

    ``moved``: what has moved, the container itself (``is_own``) or a peer. ``nearer``, ``farther``, ``exchanged``: the
    other side, by name; of a move of a peer that is this container. ``gain`` is the move's, ``plan`` why there was one.
    """
    found: list[tuple[DecisionRecord, MoveEffect]] = []
    paths: dict[str, str] = {}
    for record in reversed(engine.history):
        paths.setdefault(record.id, record.path)
        effect = record.move
        if effect is not None and (record.id == key or key in effect.nearer or key in effect.farther):
            found.append((record, effect))
    # Of two that have moved at once, the record of each has the other.
    own = {
        (record.at_s, other)
        for record, effect in found
        if record.id == key
        for other in (*effect.nearer, *effect.farther, *effect.exchanged)
    }
    paths.update({other: grant.container.path for other, grant in engine.grants.items()})
    rows = []
    for record, effect in found:
        is_own = record.id == key
        sides = {
            name: [paths.get(one, one[:13]) for one in ids if is_own or one == key]
            for name, ids in (
                ("nearer", effect.nearer),
                ("farther", effect.farther),
                ("exchanged", effect.exchanged),
            )
        }
        if any(sides.values()) and (is_own or (record.at_s, record.id) not in own):
            rows.append(
                {
                    "number": record.number,
                    "age_s": round(max(0.0, now_s - record.at_s), 3),
                    "moved": record.path,
                    "is_own": is_own,
                    **sides,
                    "gain": effect.gain,
                    "plan": record.why.rpartition("plan: ")[2],
                    "outcome": record.outcome,
                }
            )
    return rows[:LISTED]


def recent_moves(engine: Engine, most: int, now_s: float) -> list[dict[str, Any]]:
    """The last causes by which containers that run got other CPUs, the latest first: moves of plans, and what made room.

    A row has all containers that one cause has changed alike: the names of some (``containers``) and how many (``count``).
    """
    rows: list[dict[str, Any]] = []
    for record in reversed(engine.history):
        if len(rows) >= most:
            break
        age_s = round(max(0.0, now_s - record.at_s), 3)
        if record.move is not None:
            place = record.placement
            rows.append(
                _moved_row(record, age_s, "moved", [record.path], 1, place.cpus, place.level, record.why)
            )
        for change in record.changes:
            if change.operation in ("moved", "shrunk", "grown"):
                names = [path_of(engine, key) or key[:13] for key in change.keys[:NAMED]]
                why = (
                    change.why
                    or for_text(record.path, CAUSES.get(record.operation, record.operation)).strip()
                )
                rows.append(
                    _moved_row(
                        record,
                        age_s,
                        change.operation,
                        names,
                        len(change.keys),
                        change.cpus,
                        change.level,
                        why,
                    )
                )
    return rows[:most]


def _moved_row(
    record: DecisionRecord,
    age_s: float,
    operation: str,
    names: list[str],
    count: int,
    cpus: frozenset[int],
    level: str,
    why: str,
) -> dict[str, Any]:
    return {
        "number": record.number,
        "age_s": age_s,
        "operation": operation,
        "containers": names,
        "count": count,
        "cpus": format_cpus(cpus),
        "level": level,
        "why": plain(f"{why} -> {record.outcome}" if record.outcome else why),
    }


def _memory_row(node: Node, memory_node: int) -> dict[str, Any]:
    """One NUMA node's memory. ``room_bytes``: what limits may still be charged; None = not known, without end."""
    total = node.topology.memory_bytes(memory_node)
    return {
        "node": memory_node,
        "charged_bytes": node.memory_charged(memory_node),
        "total_bytes": total,
        "hugepage_bytes": node.topology.hugepage_bytes(memory_node),
        "room_bytes": None if total is None else room_bytes(node, memory_node),
        "free_bytes": node.free_memory.get(memory_node),
    }


def memory_rows(node: Node) -> list[dict[str, Any]]:
    """Size, charge and room of every NUMA node with memory, for JSON."""
    return [_memory_row(node, n) for n in sorted(node.topology.memory_nodes)]


def change_row(cause: DecisionRecord, change: PlacementChange, key: str, path: str) -> dict[str, Any]:
    """One past change of a container's place; in ``for`` the container it was done for, "" = itself or none."""
    return {
        "number": cause.number,
        "at_s": round(cause.at_s, 3),
        "operation": change.operation,
        "container": path,
        "id": key,
        "stance": change.stance,
        "level": change.level,
        "cpus": format_cpus(change.cpus),
        "mems": format_cpus(change.mems),
        **_reason(change.why),
        "outcome": "",
        "for": "" if cause.id == key else cause.path,
        "cause": cause.operation,
        "changed": 0,
    }


def history_row(record: DecisionRecord) -> dict[str, Any]:
    """One past decision; ``changed``: how many other containers' places it has changed."""
    return {
        "number": record.number,
        "at_s": round(record.at_s, 3),
        "operation": record.operation,
        "container": record.path,
        "id": record.id,
        "stance": record.stance,
        "level": record.placement.level,
        "cpus": format_cpus(record.placement.cpus),
        "mems": format_cpus(record.placement.mems),
        **_reason(record.why),
        "outcome": record.outcome,
        "for": "",
        "cause": "",
        "changed": sum(len(change.keys) for change in record.changes),
    }


def engine_status(engine: Engine, policy: str, now_s: float = 0.0) -> dict[str, Any]:
    """What the status says of an engine; ``now_s``: since boot."""
    stances: dict[str, int] = {}
    for grant in _containers_of(engine):
        stances[grant.stance.value] = stances.get(grant.stance.value, 0) + 1
    unusable = [
        g.container.path
        for g in engine.grants.values()
        if g.stance is Management.UNTOUCHED and g.constraint.asked.cpus is not None
    ]
    return {
        **engine_cpus(engine, policy),
        "containers": dict(sorted(stances.items())),
        "held": sum(1 for g in engine.grants.values() if g.life is Life.HELD),
        "in_doubt": sum(1 for t in engine.tickets.values() if t.in_doubt),
        "foreign": [g.container.path for g in engine.grants.values() if g.stance is Management.FOREIGN],
        "unusable_fences": unusable,
        "not_bound": {
            g.container.path: g.runs_in
            for g in engine.grants.values()
            if g.stance is Management.PLACED and g.runs_in
        },
        "not_alone": not_alone(engine),
        "distrusted": distrusted_paths(engine, now_s),
        "invariants": unmet(engine),
    }


def engine_cpus(engine: Engine, policy: str) -> dict[str, Any]:
    """What an engine has of the machine; the reserved CPUs are those that were chosen where the configuration names none."""
    return {
        "policy": policy,
        "usable": format_cpus(engine.host.usable),
        "reserved": format_cpus(engine.node.reserved),
    }


def engine_sentence(status: Mapping[str, Any]) -> str:
    """``engine_cpus`` in words."""
    reserved = status["reserved"] or "none"
    return f"policy {status['policy']}, usable CPUs {status['usable']}, reserved {reserved}"


def ledger_rows(node: Node) -> dict[str, Any]:
    """The accounts of a node: what of its domains and of its memory is charged."""
    return {"domains": domain_rows(node), "memory": memory_rows(node)}


def domain_rows(node: Node) -> list[dict[str, Any]]:
    """Capacity and load of every domain, for JSON."""
    return [
        {
            "level": pools.level,
            "name": pools.name,
            "cpus": format_cpus(pools.cpus),
            **pools.counts,
            "charged_milli": pools.charged_milli,
            "free_milli": pools.free_milli,
        }
        for pools in domain_pools(node)
    ]


# ---------------------------------------------------------------------- one document for programs that follow a node

# A place that is larger than a socket is in no zone (""). It is made of parts, so that calls can be relayed in between:
# what changes together (zones, and which containers there are) is taken in one step, and rows are made of frozen records.

#: What a container's state is called outside, by its stance.
STATES = {
    Management.PLACED: "managed",
    Management.ADOPTED: "adopted",
    Management.OBSERVED: "observed",
    Management.OPTED_OUT: "opted-out",
    Management.KUBELET: "kubelet",
    Management.UNTOUCHED: "unplaced",
    Management.WAITING: "unplaced",
    Management.RELEASED: "released",
    Management.FOREIGN: "foreign",
}


def machine_document(topology: Topology) -> dict[str, Any]:
    """What the machine is, whatever runs on it. ``size_bytes`` of an L3 is 0: it is not known here."""
    numa = {id_at(domain, "numa"): domain for domain in topology.at("numa")}
    return {
        "sockets": [{"id": id_at(d, "socket"), "cpus": format_cpus(d.cpus)} for d in topology.at("socket")],
        "numa_nodes": [
            {
                "id": node,
                "socket": numa[node].socket if node in numa else -1,
                "cpus": format_cpus(numa[node].cpus) if node in numa else "",
                "memory_bytes": topology.memory_bytes(node) or 0,
                "distances": {str(other): topology.distance(node, other) for other in topology.node_ids},
            }
            for node in topology.node_ids
        ],
        "l3s": [
            {
                "id": id_at(d, "l3"),
                "numa_node": min(d.nodes),
                "cpus": format_cpus(d.cpus),
                "size_bytes": 0,
            }
            for d in topology.at("l3")
        ],
    }


def zone_rows(node: Node, zones: Collection[Zone]) -> list[dict[str, Any]]:
    """Every zone with what it has, in milli-CPUs and bytes.

    ``charged``: requests on shared CPUs, and all of the exclusive ones. ``free``: what is left of the allocatable, 0
    where requests exceed it. Memory is told of zones that are whole NUMA nodes; ``memory_free_bytes`` None = not known.
    """
    return [_zone_row(node, zones, zone) for zone in zones]


def _zone_row(node: Node, zones: Iterable[Zone], zone: Zone) -> dict[str, Any]:
    domain, topology = zone.domain, node.topology
    ours = (node.usable - node.reserved) & domain.cpus
    exclusive, shared = node.exclusive & domain.cpus, node.shared & domain.cpus
    charged = node.charge_milli(shared) + 1000 * len(exclusive & ours)
    memory = sorted(domain.nodes) if zone.level != "l3" else []
    known = memory and all(topology.memory_bytes(n) is not None for n in memory)
    return {
        "name": zone.name,
        "type": ZONES[zone.level][1],
        "parent": parent_of(zones, zone),
        "cpus": format_cpus(domain.cpus),
        "capacity_milli_cpus": 1000 * len(domain.cpus & topology.online),
        "allocatable_milli_cpus": 1000 * len(ours),
        "charged_milli_cpus": charged,
        "free_milli_cpus": max(0, 1000 * len(ours) - charged),
        "exclusive_cpus": format_cpus(exclusive),
        "shared_cpus": format_cpus(shared),
        "memory_bytes": sum(topology.memory_bytes(n) or 0 for n in memory),
        "memory_allocatable_bytes": sum(allocatable_bytes(node, n) for n in memory),
        "memory_charged_bytes": sum(node.memory_charged(n) for n in memory),
        "memory_free_bytes": sum(room_bytes(node, n) for n in memory) if known else None,
    }


# ---------------------------------------------------------------------- containers


def running(engine: Engine) -> tuple[ContainerRecord, ...]:
    """The records of the containers that the runtime has now, in the order of their names."""
    found = [g for g in engine.grants.values() if g.life in (Life.CREATED, Life.RUNNING)]
    return tuple(sorted(found, key=lambda g: (g.container.path, g.container.attempt, g.key)))


def container_row(engine: Engine, grant: ContainerRecord, zones: Iterable[Zone]) -> dict[str, Any]:
    """One container. ``zone``: the smallest that holds its CPUs, "" = it spans sockets.

    ``demand``: without one of these ("l3", "numa") it is refused; "" = it would be placed on a larger rung.
    """
    row = placement_row(engine.host.topology, grant)
    settings = getattr(engine.policy, "settings", None)
    return {
        "namespace": row["namespace"],
        "pod": row["pod"],
        "pod_uid": row["pod_uid"],
        "container": row["container"],
        "container_id": grant.key,
        "qos": row["qos"],
        "milli_cpus": row["cpu_request_milli"],
        "cpus": row["cpus"],
        "mems": row["mems"],
        "level": row["level"],
        "state": STATES[grant.stance],
        "why": plain(" ".join(present_why(engine, grant).split())),
        "exclusive": bool(row["exclusive"]),
        "zone": zone_around(zones, grant.cpus),
        "demand": "" if settings is None else demand_of(grant.container, settings),
        "isolation": grant.isolation,
        **_claims_of(engine, grant),
        **_in_balloon(engine, settings, grant),
    }


def _in_balloon(
    engine: Engine, settings: Optional[PlacementSettings], grant: ContainerRecord
) -> dict[str, Any]:
    """The balloon of a container that is to be told of in NodeResourceTopology, by name and its own CPUs, also those of
    each part of a composite one, and the container's CPU limit; 0 = none."""
    place, resources = grant.placement, grant.container.resources
    if settings is None or not settings.balloons.shows(place.group):
        return {}
    limit = resources.milli_limit or 0
    parts = [format_cpus(cpus) for _, cpus in engine.policy.parts_of(place)]
    return {
        "balloon": place.group,
        "balloon_cpus": format_cpus(place.exclusive),
        **({"balloon_parts": parts} if parts else {}),
        "milli_limit": limit,
    }


# ---------------------------------------------------------------------- groups


def group_rows(
    engine: Engine, zones: Collection[Zone], groups: Iterable[TrafficGroup], traffic: Traffic, still: str
) -> list[dict[str, Any]]:
    """The groups of containers that belong together by their traffic, heaviest first.

    ``together``: all of them are in one NUMA node or L3. ``still``: why nothing is moved by itself now, "" = it is.
    """
    found = list(groups)
    rates = _rates(found, traffic)
    return [_group_row(engine, zones, group, rates[group.members], still) for group in found]


def _rates(groups: Iterable[TrafficGroup], traffic: Traffic) -> dict[tuple[str, ...], float]:
    """Bytes a second between the members of each group."""
    of = {member: group.members for group in groups for member in group.members}
    rates = dict.fromkeys(of.values(), 0.0)
    for edge in traffic.listed:
        members = of.get(edge.a)
        if members is not None and members is of.get(edge.b):
            rates[members] += edge.bytes_per_s
    return rates


def _group_row(
    engine: Engine, zones: Collection[Zone], group: TrafficGroup, bytes_per_s: float, still: str
) -> dict[str, Any]:
    keys = [key for end in group.members for key in _containers(engine, end)]
    grants = [engine.grants[key] for key in sorted(keys, key=lambda k: engine.grants[k].container.path)]
    zone = zone_around(zones, frozenset().union(*(g.cpus for g in grants)))
    together = bool(zone) and not zone.startswith("socket-")
    return {
        "members": [
            {
                "namespace": g.container.pod.namespace,
                "pod": g.container.pod.name,
                "container": g.container.name,
            }
            for g in grants
        ],
        "bytes_per_s": round(bytes_per_s),
        "together": together,
        "zone": zone,
        "why_not": "" if together else _why_apart(engine, grants, still),
    }


def remote_rows(engine: Engine, peers: Iterable[RemotePeer]) -> list[dict[str, Any]]:
    """What containers exchange with addresses that are not known to be on this node, both directions, heaviest first."""
    rows = []
    for peer in peers:
        grant = engine.grants.get(peer.end)
        if grant is not None:
            rows.append(
                {
                    "namespace": grant.container.pod.namespace,
                    "pod": grant.container.pod.name,
                    "container": grant.container.name,
                    "address": peer.address,
                    "bytes_per_s": round(peer.bytes_per_s),
                }
            )
    return rows


def _containers(engine: Engine, end: str) -> tuple[str, ...]:
    """The containers that an end of an edge stands for."""
    if end.startswith(POD_PREFIX):
        found = engine.node.of_pod(end[len(POD_PREFIX) :])
        return tuple(key for key in found if key in engine.grants)
    return (end,) if end in engine.grants else ()


def _why_apart(engine: Engine, grants: Collection[ContainerRecord], still: str) -> str:
    """Why the containers of a group are not in one NUMA node, as far as one thing keeps them apart."""
    node = engine.node
    asked = sum(g.container.resources.milli_request for g in grants)
    usable = node.usable - node.reserved
    largest = max((len(d.cpus & usable) * 1000 for d in node.topology.at("numa")), default=0)
    if asked > largest:
        return f"together they ask for {asked}m, and the largest NUMA node has {largest}m"
    fixed: Optional[ContainerRecord] = next((g for g in grants if g.stance is not Management.PLACED), None)
    if fixed is not None:
        return f"{fixed.container.path} is not placed here: {fixed.why or STATES[fixed.stance]}"
    return f"containers are not moved: {still}" if still else "no plan that was made so far pays for the move"
