"""What one node's agent may do, as RBAC objects for that node alone. Pure.

For API servers before 1.30, which have no ValidatingAdmissionPolicy that would bind the shared role to a node. The
rights are those of the role ``cri-resmgr-agent``, of each object only that with the node's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from cluster.api.names import AGENT, API_VERSION, GROUP, NODE_PLACEMENT, NODE_PLACEMENTS

RBAC = "rbac.authorization.k8s.io"
TOPOLOGY_GROUP, TOPOLOGIES = "topology.node.k8s.io", "noderesourcetopologies"

#: The rules of the role ``cri-resmgr-agent``: group, resource, verbs.
OWN_OBJECTS = (
    (GROUP, NODE_PLACEMENTS, ("get", "list", "watch")),
    (GROUP, f"{NODE_PLACEMENTS}/status", ("patch",)),
    # Server-side apply is a patch; for the first one the server wants create as well, and asks with the name.
    (TOPOLOGY_GROUP, TOPOLOGIES, ("create", "patch")),
)
#: Events have names that are made up, so no name can bind them.
EVENTS = ("", "events", ("create", "patch"))


def node_user(node: str) -> str:
    """The user that kubelet's client certificate stands for."""
    return f"system:node:{node}"


def node_access(
    node: str, *, subject: Optional[Mapping[str, str]] = None, owner_uid: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A ClusterRole for one node's objects, and the binding that gives it to the node; both go by ``apply``.

    ``subject``: an RBAC subject other than the node's own user, such as a service account that only this node's agent
    has. ``owner_uid``: the UID of the node's NodePlacement, with which both go.
    """
    name = f"{AGENT}:{node}"
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/part-of": "cri-resmgr"}}
    if owner_uid:
        owner = {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "name": node, "uid": owner_uid}
        metadata["ownerReferences"] = [owner]
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [
            *(rule(group, resource, verbs, (node,)) for group, resource, verbs in OWN_OBJECTS),
            rule(*EVENTS),
        ],
    }
    user = {"apiGroup": RBAC, "kind": "User", "name": node_user(node)}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [dict(subject) if subject is not None else user],
    }
    return role, binding


def rule(group: str, resource: str, verbs: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    """One rule of a role; ``names``: of these objects only."""
    found: dict[str, Any] = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return {**found, "resourceNames": list(names)} if names else found
