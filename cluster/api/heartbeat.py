"""The heartbeat of an agent, as kubelet has one: a Lease for each node, which the agent renews and the operator looks at.

Pure. It is in the namespace of everything else, and so is the operator's own Lease, whose name begins otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from cluster.api.names import AGENT_MANAGER, NAMESPACE
from cluster.api.reader import Fields, Object, Unreadable

PREFIX = "node-"


class Heartbeat(NamedTuple):
    """A node's Lease. Both times as they stand there: one is the node's, the other the API server's ("" = it says none)."""

    node: str
    renewed: str
    written: str


def lease_name(node: str) -> str:
    return PREFIX + node


def lease(node: str, owner: Mapping[str, Any], renewed: float) -> dict[str, Any]:
    """For server-side apply: it is made where there is none, and goes with its owner. ``renewed``: seconds since 1970."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": lease_name(node), "namespace": NAMESPACE, "ownerReferences": [dict(owner)]},
        "spec": {"holderIdentity": node, "renewTime": write_micro_time(renewed)},
    }


def read_heartbeat(found: Object) -> Heartbeat:
    """:raises Unreadable: it is none, but the operator's Lease, say."""
    whole = Fields(found)
    metadata = whole.fields("metadata")
    name = metadata.text("name")
    if not name.startswith(PREFIX):
        raise Unreadable(f"metadata.name is {name}, expected {PREFIX} and the name of a node")
    renewed = whole.fields("spec").text("renewTime")
    return Heartbeat(name[len(PREFIX) :], renewed, agent_wrote(found))


def agent_wrote(found: Object) -> str:
    """When an agent's write changed an object for the last time, by the API server's clock; "" = it is not told."""
    entries = Fields(found).fields("metadata").rows("managedFields")
    times = [each.text("time", "") for each in entries if each.text("manager", "") == AGENT_MANAGER]
    return max(times, default="")


def write_micro_time(seconds: float) -> str:
    """As a Lease has it."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
