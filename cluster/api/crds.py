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
from cluster.api.schema import published

Column = tuple[str, str, str, int]


def definitions(*, with_rules: bool = True) -> tuple[dict[str, Any], ...]:
    """One object for each kind, all of them cluster-scoped and with a status of its own.

    ``with_rules``: with rules in CEL. Servers before 1.25 drop them where an object is created, and refuse the object
    where it is applied (kubectl's check and server-side apply), so there it is written without.
    """
    kinds = (
        (NODE_PLACEMENT, NODE_PLACEMENTS, "np", node_placement.schema(), node_placement.COLUMNS),
        (PLACEMENT_POLICY, PLACEMENT_POLICIES, "ppol", placement_policy.schema(), placement_policy.COLUMNS),
        (AFFINITY_ADVICE, AFFINITY_ADVICES, "aadv", affinity_advice.schema(), affinity_advice.COLUMNS),
    )
    return tuple(
        _definition(kind, plural, short, published(schema, with_rules=with_rules), columns)
        for kind, plural, short, schema, columns in kinds
    )


def _definition(
    kind: str, plural: str, short: str, schema: dict[str, Any], columns: Sequence[Column]
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
                    "schema": {"openAPIV3Schema": _with_head(schema)},
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
