"""The shape of NodeResourceTopology v1alpha2 as an API server checks it: a manifest of our own, with what matters of it."""

from __future__ import annotations

from typing import Any

_QUANTITY = {"x-kubernetes-int-or-string": True}
_TEXT = {"type": "string"}


def _list(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "required": required, "properties": properties}}


_ATTRIBUTES = _list(["name", "value"], name=_TEXT, value=_TEXT)
_AMOUNTS = dict.fromkeys(("capacity", "allocatable", "available"), _QUANTITY)
_ZONES = _list(
    ["name", "type"],
    name=_TEXT,
    type=_TEXT,
    parent=_TEXT,
    costs=_list(["name", "value"], name=_TEXT, value={"type": "integer", "format": "int64"}),
    attributes=_ATTRIBUTES,
    resources=_list(["name", *_AMOUNTS], name=_TEXT, **_AMOUNTS),
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["zones"],
    "properties": {
        "apiVersion": _TEXT,
        "kind": _TEXT,
        "metadata": {"type": "object"},
        "topologyPolicies": {"type": "array", "items": _TEXT},
        "attributes": _ATTRIBUTES,
        "zones": _ZONES,
    },
}

NODE_RESOURCE_TOPOLOGY: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "noderesourcetopologies.topology.node.k8s.io",
        # Groups under k8s.io are refused without the place where they were approved.
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {
            "kind": "NodeResourceTopology",
            "listKind": "NodeResourceTopologyList",
            "plural": "noderesourcetopologies",
            "singular": "noderesourcetopology",
        },
        "versions": [
            {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
        ],
    },
}


def problems(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """What an API server would refuse or drop of a value; empty = nothing."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, (int, str)) else [f"{where}: neither a number nor a text"]
    kind = {"object": dict, "array": list, "string": str, "integer": int}[schema["type"]]
    if not isinstance(value, kind):
        return [f"{where}: {value!r} is no {schema['type']}"]
    if isinstance(value, list):
        rows = (problems(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))
        return [problem for row in rows for problem in row]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    found = [f"{where}: no {name}" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        inner = schema["properties"].get(name)
        found += problems(item, inner, f"{where}.{name}") if inner else [f"{where}: unknown {name}"]
    return found
