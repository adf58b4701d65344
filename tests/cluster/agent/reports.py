"""Reports as the daemon gives them, for tables of cases."""

from __future__ import annotations

from typing import Any


def report(**changes: Any) -> dict[str, Any]:
    """A node with one socket, one NUMA node and one L3, and one container in it."""
    return {
        "version": "0.1.0",
        "instance": "a",
        "mode": "enforce",
        "mode_wanted": "enforce",
        "front_end": "cri",
        "policy": "hygon",
        "degraded": {},
        "warnings": [],
        "machine": {
            "sockets": [{"id": 0, "cpus": "0-7"}],
            "numa_nodes": [
                {"id": 0, "socket": 0, "cpus": "0-7", "memory_bytes": 1 << 34, "distances": {"0": 10}}
            ],
            "l3s": [{"id": 0, "numa_node": 0, "cpus": "0-7", "size_bytes": 0}],
        },
        "zones": [zone()],
        "placements": [placement()],
        "affinity_groups": [],
        "remote_peers": [],
        "remote_left_out": 0,
        "cluster": cluster(),
        "events": [],
        "events_next": 1,
        "events_lost": 0,
        **changes,
    }


def cluster(**changes: Any) -> dict[str, Any]:
    return {
        "policy": None,
        "state": "none",
        "sentence": "",
        "needs_restart": [],
        "freeze": False,
        "overrides": [],
        **changes,
    }


def zone(**changes: Any) -> dict[str, Any]:
    return {
        "name": "node-0",
        "type": "Node",
        "parent": "",
        "cpus": "0-7",
        "capacity_milli_cpus": 8000,
        "allocatable_milli_cpus": 8000,
        "charged_milli_cpus": 2000,
        "free_milli_cpus": 6000,
        "exclusive_cpus": "",
        "shared_cpus": "0-7",
        "memory_bytes": 1 << 34,
        "memory_allocatable_bytes": 1 << 34,
        "memory_charged_bytes": 1 << 30,
        "memory_free_bytes": 15 << 30,
        **changes,
    }


def placement(name: str = "web", **changes: Any) -> dict[str, Any]:
    return {
        "namespace": "shop",
        "pod": name,
        "pod_uid": f"uid-{name}",
        "container": "main",
        "container_id": f"{name:0<64}",
        "qos": "burstable",
        "milli_cpus": 2000,
        "cpus": "0-7",
        "mems": "0",
        "level": "l3",
        "state": "managed",
        "why": "the L3 with the most room",
        "exclusive": False,
        "zone": "l3-0",
        "demand": "",
        **changes,
    }


def group(*pods: str, bytes_per_s: float = 0, **changes: Any) -> dict[str, Any]:
    members = [{"namespace": "shop", "pod": pod, "container": "main"} for pod in pods]
    return {
        "members": members,
        "bytes_per_s": bytes_per_s,
        "together": True,
        "zone": "node-0",
        "why_not": "",
        **changes,
    }


def remote(pod: str, address: str, bytes_per_s: float) -> dict[str, Any]:
    row = {"namespace": "shop", "pod": pod, "container": "main"}
    return {**row, "address": address, "bytes_per_s": bytes_per_s}


def happened(seq: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "reason": "LargerRung",
        "type": "Normal",
        "namespace": "shop",
        "pod": "web",
        "pod_uid": "uid-web",
        "container": "main",
        "message": "a whole NUMA node: no L3 has 8 CPUs free",
        **changes,
    }
