"""One document about a node for programs that follow it from outside: machine, zones, placements, groups. Pure.

A place that is larger than a socket is in no zone ("").
The document is made of parts, so that calls can be relayed in between: what changes together (zones, and which
containers there are) is taken in one step, and rows are made of frozen records afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Optional

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Grant, Life, Stance
from cri_proxy.engine.report import placement_row, present_why
from cri_proxy.engine.zones import ZONES, Zone, id_at, parent_of, zone_around
from policies.affinity.graph.groups import TrafficGroup
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.traffic import POD_PREFIX, Traffic
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology
from policies.memory import allocatable_bytes, room_bytes
from policies.node import Node
from policies.wanted import demand_of

#: What a container's state is called outside, by its stance.
STATES = {
    Stance.PLACED: "managed",
    Stance.ADOPTED: "adopted",
    Stance.OBSERVED: "observed",
    Stance.OPTED_OUT: "opted-out",
    Stance.KUBELET: "kubelet",
    Stance.UNTOUCHED: "unplaced",
    Stance.RELEASED: "released",
    Stance.FOREIGN: "foreign",
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


def running(engine: Engine) -> tuple[Grant, ...]:
    """The records of the containers that the runtime has now, in the order of their names."""
    found = [g for g in engine.grants.values() if g.life in (Life.CREATED, Life.RUNNING)]
    return tuple(sorted(found, key=lambda g: (g.container.path, g.container.attempt, g.key)))


def container_row(engine: Engine, grant: Grant, zones: Iterable[Zone]) -> dict[str, Any]:
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
        "why": " ".join(present_why(engine, grant).split()),
        "exclusive": bool(row["exclusive"]),
        "zone": zone_around(zones, grant.cpus),
        "demand": "" if settings is None else demand_of(grant.container, settings),
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


def _why_apart(engine: Engine, grants: Collection[Grant], still: str) -> str:
    """Why the containers of a group are not in one NUMA node, as far as one thing keeps them apart."""
    node = engine.node
    asked = sum(g.container.resources.milli_request for g in grants)
    usable = node.usable - node.reserved
    largest = max((len(d.cpus & usable) * 1000 for d in node.topology.at("numa")), default=0)
    if asked > largest:
        return f"together they ask for {asked}m, and the largest NUMA node has {largest}m"
    fixed: Optional[Grant] = next((g for g in grants if g.stance is not Stance.PLACED), None)
    if fixed is not None:
        return f"{fixed.container.path} is not placed here: {fixed.why or STATES[fixed.stance]}"
    return f"containers are not moved: {still}" if still else "no plan that was made so far pays for the move"
