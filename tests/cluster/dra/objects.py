"""Test support: ResourceClaims, as the API has them."""

from __future__ import annotations

from typing import Any, Optional

DRIVER, NODE = "cpu.cri-resmgr.io", "node-1"
UID = "11111111-2222-3333-4444-555555555555"


def result(
    request: str = "cpus", device: str = "l3-0", cpu: Optional[str] = "4", **changes: Any
) -> dict[str, Any]:
    """One device that the scheduler has given a request; ``cpu``: what it consumes of it, None = it is given whole."""
    shared = {} if cpu is None else {"consumedCapacity": {"cpu": cpu}, "shareID": f"share-{request}"}
    return {"request": request, "driver": DRIVER, "pool": NODE, "device": device, **shared, **changes}


def config(source: str = "FromClaim", *requests: str, driver: str = DRIVER, **value: Any) -> dict[str, Any]:
    opaque = {"driver": driver, "parameters": {"kind": "CpuParameters", **value}}
    return {"source": source, "opaque": opaque, **({"requests": list(requests)} if requests else {})}


def claim(
    *results: dict[str, Any], name: str = "four", uid: str = UID, configs: Any = (), **status: Any
) -> dict[str, Any]:
    """A claim that was allocated, and reserved for one pod."""
    allocation = {"devices": {"results": list(results) or [result()], "config": list(configs)}}
    user = {"resource": "pods", "name": "web", "uid": "pod-1"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "shop", "name": name, "uid": uid},
        "spec": {"devices": {"requests": [{"name": "cpus"}]}},
        "status": {"allocation": allocation, "reservedFor": [user], **status},
    }
