"""The CustomResourceDefinitions, as objects; `make docs` writes them into packaging/cluster/crds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.api import affinity_advice, node_placement, placement_policy
from cluster.api.names import (
    AFFINITY_ADVICE,
    AFFINITY_ADVICES,
    GROUP,
    NODE_PLACEMENT,
    NODE_PLACEMENTS,
    PLACEMENT_POLICIES,
    PLACEMENT_POLICY,
    VERSION,
)
from cluster.api.schema import Schema, published

Column = tuple[str, str, str, int]


def definitions() -> tuple[dict[str, Any], ...]:
    """One object for each kind, all of them cluster-scoped and with a status of its own."""
    return (
        _definition(NODE_PLACEMENT, NODE_PLACEMENTS, "np", node_placement.schema(), node_placement.COLUMNS),
        _definition(
            PLACEMENT_POLICY, PLACEMENT_POLICIES, "ppol", placement_policy.schema(), placement_policy.COLUMNS
        ),
        _definition(
            AFFINITY_ADVICE, AFFINITY_ADVICES, "aadv", affinity_advice.schema(), affinity_advice.COLUMNS
        ),
    )


def _definition(
    kind: str, plural: str, short: str, schema: Schema, columns: Sequence[Column]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "cri-resmgr"}},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["cri-resmgr"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in columns],
                    "schema": {"openAPIV3Schema": _with_head(published(schema))},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, priority: int) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _with_head(schema: dict[str, Any]) -> dict[str, Any]:
    head = {
        "apiVersion": {"type": "string", "description": "The version of this kind's schema."},
        "kind": {"type": "string", "description": "What kind of object it is."},
        "metadata": {"type": "object"},
    }
    return {**schema, "properties": {**head, **schema["properties"]}}
