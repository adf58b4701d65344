"""A node's NodeResourceTopology (topology.node.k8s.io/v1alpha2) out of one ``report`` of its daemon. Pure.

Made for what the scheduler's plugin NodeResourceTopologyMatch reads:

- It looks at zones of type ``Node`` named ``node-N`` with 0 <= N < 64 and uses N as an index into the list of them. So
  these come first, ascending and without a gap: a NUMA node that is not there, or has no CPUs, is a zone with nothing
  allocatable.
- It compares ``available`` of cpu and memory with what a Guaranteed pod asks for, and only where the attribute
  ``topologyManagerPolicy`` is ``single-numa-node``. A zone without memory would then take no such pod at all.
- Its books of a node are dropped for this object once ``nodeTopologyPodsFingerprint`` is that of the pods that it knows
  there. The fingerprint is therefore of the pods of the same report as the amounts: one that is newer than the amounts
  would have a scheduler believe that pods are counted which are not.

L3s are zones of type ``L3`` inside of those, with attributes and no amounts: schedulers pass over them.

The settings of kubelet's topology manager come from kubelet's own configuration, in kubelet's words, which the plugin wants;
where it says nothing kubelet's defaults hold (policy ``none``, scope ``container``).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.domain_names import domain_text

GROUP, VERSION = "topology.node.k8s.io", "v1alpha2"
KIND, PLURAL = "NodeResourceTopology", "noderesourcetopologies"

SINGLE_NUMA_NODE = "single-numa-node"
#: Why ``single-numa-node`` is not published though it was asked for; read by people.
WITHHELD = "cri-resmgr.io/singleNumaNodeWithheld"

#: The policies that carry out ``numa: require``.
REFUSING_POLICIES = ("hygon", "topology-aware")

#: NUMA nodes that the plugin can tell apart: its masks have 64 bits.
MOST_NODES = 64
#: NUMA nodes that the plugin counts on if it is told nothing; its scores fall below 0 with more.
EXPECTED_NODES = 8
#: Available memory is rounded down to this: charges of containers without a limit follow their usage.
MEMORY_STEP_BYTES = 64 << 20
#: Balloons and containers in one object: etcd takes 1.5 MB, and a zone has some 400 bytes.
MOST_BALLOON_ZONES = 1500
#: Settings of kubelet's topology manager.
POLICY, SCOPE, OPTIONS = "topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"
NUMA_NODES_OPTION = "max-allowable-numa-nodes"
_TOP_LEVEL = re.compile(r"^(?P<key>[A-Za-z]+)\s*:\s*(?P<value>[^#\n]*?)\s*(?:#.*)?$", re.MULTILINE)
_NUMA_NODES_OPTION = re.compile(rf"^\s+['\"]?{NUMA_NODES_OPTION}['\"]?\s*:\s*['\"]?(\d+)", re.MULTILINE)


def node_resource_topology(
    node: str,
    report: Mapping[str, Any],
    kubelet: Optional[TopologyManager] = None,
    *,
    single_numa_node: bool = False,
    owners: Sequence[Mapping[str, Any]] = (),
) -> Optional[dict[str, Any]]:
    """The whole object, for a server-side apply; None = the daemon knows no machine yet: then leave what there is.

    ``kubelet``: None = not known, and nothing is said of its policy. ``single_numa_node``: publish that policy, whatever
    kubelet's is, while ``why_not_single_numa_node`` has nothing against it. ``owners``: owner references (that of the
    node's NodePlacement), with which the object goes.
    """
    machine = report.get("machine")
    if machine is None:
        return None
    zones = _node_zones(machine, report["zones"]) + _l3_zones(report["zones"])
    zones += _balloon_zones(machine, report["placements"])
    metadata: dict[str, Any] = {"name": node}
    if owners:
        metadata["ownerReferences"] = [dict(owner) for owner in owners]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "attributes": _attributes(report, kubelet, single_numa_node),
        "zones": zones,
    }


def why_not_single_numa_node(report: Mapping[str, Any]) -> str:
    """Why the node is not one where a Guaranteed container gets one NUMA node or is refused; "" = it is one.

    Checked: the daemon enforces, with a policy that can refuse, and is not degraded; every NUMA node's memory is known;
    and each container of a Guaranteed pod (the plugin compares no others with zones) is managed, demands one NUMA node
    or one L3 (``numa: require``, ``l3: require``), and has all its CPUs in one.
    """
    for mode in (report["mode"], report["mode_wanted"]):
        if mode != "enforce":
            return f"the daemon's mode is {mode}, not enforce"
    if report["policy"] not in REFUSING_POLICIES:
        return f"the policy {report['policy']} refuses no container that does not fit into one NUMA node"
    if report["degraded"]:
        return f"the daemon is degraded: {min(report['degraded'])}"
    for zone in report["zones"]:
        if zone["type"] == "Node" and zone["memory_free_bytes"] is None:
            return f"the memory of {domain_text(zone['name'])} is not known"
    for row in report["placements"]:
        why = _against(row) if row["qos"] == "guaranteed" else ""
        if why:
            return f"{row['namespace']}/{row['pod']}/{row['container']} {why}"
    return ""


def _against(row: Mapping[str, Any]) -> str:
    if row["state"] != "managed":
        return f"is not placed by the daemon: {row['state']}"
    if not row.get("demand"):
        return "is placed without numa: require"
    if not row["zone"].startswith(("node-", "l3-")):
        return "is in more than one NUMA node"
    return ""


def _attributes(
    report: Mapping[str, Any], kubelet: Optional[TopologyManager], single_numa_node: bool
) -> list[dict[str, str]]:
    """Attributes of the whole node, in the plugin's words."""
    why_not = why_not_single_numa_node(report) if single_numa_node else ""
    if single_numa_node and not why_not:
        # ``numa: require`` holds for a container, whatever its pod's other containers get.
        policy, scope = SINGLE_NUMA_NODE, "container"
    else:
        policy, scope = (kubelet.policy, kubelet.scope) if kubelet else ("", "")
    count = 1 + max((i for i in _node_ids(report["machine"]) if i < MOST_NODES), default=0)
    most_nodes = max(kubelet.most_numa_nodes if kubelet else 0, count if count > EXPECTED_NODES else 0)
    pods = ((row["namespace"], row["pod"]) for row in report["placements"] if row["pod"])
    found = {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "topologyManagerMaxNUMANodes": str(most_nodes or ""),
        "nodeTopologyPodsFingerprint": pods_fingerprint(pods),
        "nodeTopologyPodsFingerprintMethod": "all",
        WITHHELD: why_not,
    }
    return [{"name": name, "value": value} for name, value in found.items() if value]


def _node_ids(machine: Mapping[str, Any]) -> list[int]:
    return [node["id"] for node in machine["numa_nodes"]]


def _node_zones(machine: Mapping[str, Any], zones: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One zone a NUMA node, and one for every id in between; costs are kernel distances."""
    machines = {node["id"]: node for node in machine["numa_nodes"] if node["id"] < MOST_NODES}
    with_cpus = {zone["name"]: zone for zone in zones if zone["type"] == "Node"}
    return [
        _node_zone(number, machines.get(number, {}), with_cpus.get(f"node-{number}"))
        for number in range(max(machines, default=-1) + 1)
    ]


def _node_zone(
    number: int, numa_node: Mapping[str, Any], zone: Optional[Mapping[str, Any]]
) -> dict[str, Any]:
    distances = {int(other): distance for other, distance in numa_node.get("distances", {}).items()}
    found: dict[str, Any] = {
        "name": f"node-{number}",
        "type": "Node",
        "costs": [
            {"name": f"node-{other}", "value": distance}
            for other, distance in sorted(distances.items())
            if other < MOST_NODES
        ],
    }
    if zone is None:
        size = numa_node.get("memory_bytes", 0)
        return {
            **found,
            "resources": [_resource("cpu", "0", "0", "0"), _resource("memory", str(size), "0", "0")],
        }
    capacity, allocatable = zone["capacity_milli_cpus"], zone["allocatable_milli_cpus"]
    cpu = [cpu_text(amount) for amount in (capacity, allocatable, min(allocatable, zone["free_milli_cpus"]))]
    resources = [_resource("cpu", *cpu)]
    free = zone["memory_free_bytes"]
    if free is not None:
        size, most = zone["memory_bytes"], zone["memory_allocatable_bytes"]
        left = min(free, most) // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES
        resources.append(_resource("memory", str(size), str(most), str(left)))
    return {**found, "attributes": [{"name": "cpuset", "value": zone["cpus"]}], "resources": resources}


def _l3_zones(zones: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``cpuset`` and ``shared``: CPUs as lists; ``free``: CPUs that no request is charged on, as a quantity."""
    nodes = {zone["name"] for zone in zones if zone["type"] == "Node"}
    found = []
    for zone in zones:
        if zone["type"] == "L3":
            values = {
                "cpuset": zone["cpus"],
                "free": cpu_text(zone["free_milli_cpus"]),
                "shared": zone["shared_cpus"],
            }
            parent = {"parent": zone["parent"]} if zone["parent"] in nodes else {}
            attributes = [{"name": name, "value": value} for name, value in values.items()]
            found.append({"name": zone["name"], "type": "L3", **parent, "attributes": attributes})
    return found


def _balloon_zones(
    machine: Mapping[str, Any], placements: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The balloons whose types ask for it and, below each, its containers, in nri-plugins' words."""
    size = 1000 * sum(len(parse_cpus(socket["cpus"])) for socket in machine["sockets"])
    balloons: dict[str, list[Mapping[str, Any]]] = {}
    for row in placements:
        if row.get("balloon"):
            balloons.setdefault(row["balloon"], []).append(row)
    found = []
    for name, rows in sorted(balloons.items()):
        own = parse_cpus(rows[0]["balloon_cpus"])
        shared = frozenset[int]().union(*[parse_cpus(row["cpus"]) for row in rows]) - own
        excess = cpu_text(max(0, 1000 * len(own) - sum(row["milli_cpus"] for row in rows)))
        values = {"cpuset": format_cpus(own), "shared cpuset": format_cpus(shared), "excess cpus": excess}
        if parts := rows[0].get("balloon_parts"):
            values["component cpusets"] = f"{{{', '.join(f'{{{cpus}}}' for cpus in parts)}}}"
        cpu = _resource("cpu", cpu_text(size), cpu_text(1000 * len(own)), excess)
        found.append({"name": name, "type": "balloon", "attributes": _named(values), "resources": [cpu]})
        found += [_container_zone(name, row, size) for row in rows]
    return found[:MOST_BALLOON_ZONES]


def _container_zone(balloon: str, row: Mapping[str, Any], size: int) -> dict[str, Any]:
    """``capacity``: the CPU limit, at most the CPUs it may use; ``allocatable``: its request. Nothing of it is left."""
    may_use = 1000 * len(parse_cpus(row["cpus"])) or size
    capacity = min(row.get("milli_limit") or may_use, may_use)
    cpu = [cpu_text(amount) for amount in (capacity, min(row["milli_cpus"], capacity), 0)]
    return {
        "name": f"{row['namespace']}/{row['pod']}/{row['container']}",
        "type": "allocation for container",
        "parent": balloon,
        "attributes": _named({"cpuset": row["cpus"], "memory set": row["mems"]}),
        "resources": [_resource("cpu", *cpu)],
    }


def _named(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _resource(name: str, capacity: str, allocatable: str, available: str) -> dict[str, str]:
    return {"name": name, "capacity": capacity, "allocatable": allocatable, "available": available}


def cpu_text(milli_cpus: int) -> str:
    """Milli-CPUs as Kubernetes writes them: whole CPUs without a unit, else with ``m``."""
    return str(milli_cpus // 1000) if milli_cpus % 1000 == 0 else f"{milli_cpus}m"


# ---------------------------------------------------------------------- fingerprint

# A scheduler knows by the fingerprint which pods a NodeResourceTopology has counted. The format is that of
# k8stopologyawareschedwg/podfingerprint: ``pfp0`` (the algorithm's family), ``v001`` (its version), 16 hexadecimal
# digits. A pod's hash is the XXH64 of its name with the XXH64 of its namespace as seed; the fingerprint is
# the XXH64 (seed 0) of all pods' hashes, ascending, each as 8 bytes little-endian. XXH64 is written down here since the
# agent has the standard library only: 500 pods take some ten milliseconds.

FINGERPRINT_PREFIX = "pfp0v001"

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def pods_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods, each as (namespace, name); their order does not matter, and a pod counts once."""
    hashes = sorted(xxh64(name.encode(), xxh64(namespace.encode())) for namespace, name in set(pods))
    return f"{FINGERPRINT_PREFIX}{xxh64(struct.pack(f'<{len(hashes)}Q', *hashes)):016x}"


def xxh64(data: bytes, seed: int = 0) -> int:
    """The XXH64 of bytes: an unsigned number of 64 bits (doc/xxhash_spec.md of Cyan4973/xxHash)."""
    at = len(data) & ~31
    # 1. Whole stripes of 32 bytes go through four accumulators, 8 bytes each.
    if at:
        lanes = [seed + _P1 + _P2 & _MASK, seed + _P2 & _MASK, seed, seed - _P1 & _MASK]
        for words in struct.iter_unpack("<4Q", data[:at]):
            lanes = [_round(lane, word) for lane, word in zip(lanes, words)]
        found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & _MASK
        for lane in lanes:
            found = (found ^ _round(0, lane)) * _P1 + _P4 & _MASK
    else:
        found = seed + _P5 & _MASK
    found = found + len(data) & _MASK
    # 2. The rest by 8, 4 and 1 bytes.
    while len(data) - at >= 8:
        (word,) = struct.unpack_from("<Q", data, at)
        found = _rotate(found ^ _round(0, word), 27) * _P1 + _P4 & _MASK
        at += 8
    if len(data) - at >= 4:
        (half,) = struct.unpack_from("<I", data, at)
        found = _rotate(found ^ half * _P1 & _MASK, 23) * _P2 + _P3 & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotate(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    # 3. Every bit of the input reaches every bit of the result.
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _P2 & _MASK, 31) * _P1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


@dataclass(frozen=True)
class TopologyManager:
    """``policy`` and ``scope`` in kubelet's words; ``most_numa_nodes`` 0 = kubelet's default, 8."""

    policy: str = "none"
    scope: str = "container"
    most_numa_nodes: int = 0


def read_topology_manager(config: str) -> TopologyManager:
    """The values of a KubeletConfiguration (YAML or JSON). A missing one has kubelet's default."""
    values = _json(config)
    if values is None:
        values = {match["key"]: match["value"].strip("'\"") for match in _TOP_LEVEL.finditer(config)}
        most = _NUMA_NODES_OPTION.search(config)
        values[OPTIONS] = {NUMA_NODES_OPTION: most[1]} if most and OPTIONS in values else {}
    options = values.get(OPTIONS) or {}
    most_nodes = str(options.get(NUMA_NODES_OPTION, "")) if isinstance(options, Mapping) else ""
    return TopologyManager(
        str(values.get(POLICY) or "none"),
        str(values.get(SCOPE) or "container"),
        int(most_nodes) if most_nodes.isdecimal() else 0,
    )


def reported_topology_manager(report: Mapping[str, Any]) -> Optional[TopologyManager]:
    """The settings in the daemon's report; None: the daemon cannot read kubelet's file either, or is an older one."""
    found = report.get("topology_manager")
    if not isinstance(found, Mapping):
        return None
    most_nodes = found.get("most_numa_nodes")
    return TopologyManager(
        str(found.get("policy") or "none"),
        str(found.get("scope") or "container"),
        most_nodes if isinstance(most_nodes, int) else 0,
    )


def _json(config: str) -> Optional[dict[str, Any]]:
    """The values of a file that is JSON; None = it is YAML."""
    try:
        document = json.loads(config)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
