"""Test support: what a daemon answers to ``claim-devices``, of machines of some sizes."""

from __future__ import annotations

from typing import Any


def devices(
    l3s: int = 2, numa_nodes: int = 1, cpus: int = 8, driver: str = "cpu.cri-resmgr.io", **attributes: Any
) -> dict[str, Any]:
    """All of the machine is there to be given; ``attributes`` are of each device."""
    per_node = l3s // numa_nodes
    rows = []
    for number in range(l3s):
        numa_node = number // per_node
        seen = {
            "numaNode": numa_node,
            "socket": numa_node // 4,
            "l3": number,
            "l3Bytes": 16 << 20,
            "cores": cpus // 2,
            "threadsPerCore": 2,
            "coreType": "standard",
            **attributes,
        }
        common = {"cpus": cpus, "counters": [f"l3-{number}"], "attributes": seen}
        rows.append({"name": f"l3-{number}", "kind": "l3", "shared": True, **common})
        rows.append({"name": f"l3-{number}-whole", "kind": "whole-l3", "shared": False, **common})
    for numa_node in range(numa_nodes):
        inside = range(numa_node * per_node, (numa_node + 1) * per_node)
        rows.append(
            {
                "name": f"node-{numa_node}-whole",
                "kind": "whole-numa",
                "cpus": cpus * per_node,
                "shared": False,
                "counters": [f"l3-{number}" for number in inside],
                "attributes": {"numaNode": numa_node, "socket": numa_node // 4, "threadsPerCore": 2},
            }
        )
    return {
        "enabled": True,
        "reason": "",
        "driver": driver,
        "boot": "b1",
        "counters": [f"l3-{number}" for number in range(l3s)],
        "devices": rows,
    }


def with_cpus(document: dict[str, Any], **cpus: int) -> dict[str, Any]:
    """The same with other numbers of CPUs: ``l3_0=6``; 0 and whole devices of it are not given."""
    rows = []
    for row in document["devices"]:
        number = cpus.get(row["name"].replace("-", "_"))
        if number is not None:
            rows.append({**row, "cpus": number})
        elif not any(f"{name}-whole" == row["name"].replace("_", "-") for name in _dashed(cpus)):
            rows.append(row)
    return {**document, "devices": rows}


def _dashed(cpus: dict[str, int]) -> set[str]:
    return {name.replace("_", "-") for name in cpus}
