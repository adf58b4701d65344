"""The CustomResourceDefinitions, as objects; `make docs` writes them into packaging/cluster/crds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.api import node_placement, placement_policy
from cluster.api.allowed import OPTIONS
from cluster.api.fit import MOST_MEMBERS
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
from cluster.api.schema import KEEPS_UNKNOWN, LINES, number, published, record, rows, text, word

Column = tuple[str, str, str, int]

_ADVICE_COLUMNS = (
    ("Remote-Bytes/s", "integer", ".status.remoteBytesPerSecond", 0),
    ("Bytes/s", "integer", ".status.bytesPerSecond", 0),
    ("Target", "string", ".status.target.name", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 1),
)

_OWNER = {
    "kind": word("Its kind.", "Deployment", "StatefulSet"),
    "namespace": text("Its namespace."),
    "name": text("Its name."),
}


def definitions(options: Mapping[str, Mapping[str, Any]] = OPTIONS) -> tuple[dict[str, Any], ...]:
    """One object for each kind, all of them cluster-scoped and with a status of its own.

    ``options``: the options that a policy may set, with their schemas.
    """
    kinds = (
        (NODE_PLACEMENT, NODE_PLACEMENTS, "np", node_placement.schema(), node_placement.COLUMNS),
        (
            PLACEMENT_POLICY,
            PLACEMENT_POLICIES,
            "ppol",
            placement_policy.schema(options),
            placement_policy.COLUMNS,
        ),
        (AFFINITY_ADVICE, AFFINITY_ADVICES, "aadv", affinity_advice(), _ADVICE_COLUMNS),
    )
    return tuple(
        _definition(kind, plural, short, published(schema), columns)
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


def affinity_advice() -> dict[str, Any]:
    """AffinityAdvice, the whole object: which Deployments and StatefulSets would gain from one node. It has no spec."""
    owner = record(
        "One owner.",
        {**_OWNER, "pods": number("Its pods that were seen."), "nodes": number("The nodes these are on.")},
        tuple(_OWNER),
    )
    follower = record(
        "An owner whose new pods are to come near the target.",
        {
            **_OWNER,
            "term": _whole("A preferred term of podAffinity: the target's pods, with a weight by traffic."),
            "apart": _whole("A preferred term of podAntiAffinity: the owner's own pods."),
            "spread": _whole("A topologySpreadConstraint of the owner's own pods."),
        },
        (*_OWNER, "term", "apart", "spread"),
    )
    status = record(
        "The advice. The operator writes it; the policy of packaging/cluster/follow-advice carries it out.",
        {
            "owners": rows("Owners whose pods send much to each other.", owner, maxItems=MOST_MEMBERS),
            "bytesPerSecond": number("What they send to each other where they share a node, rounded."),
            "remoteBytesPerSecond": number("What they send to each other from node to node, rounded."),
            "nodes": rows("Nodes they share, 16 at most.", text("A node's name."), maxItems=16),
            "target": record(
                "The owner that the others are to come near; podAffinity selects its pods.", _OWNER
            ),
            "targetLabels": {
                "type": "object",
                "description": "Labels that every pod of the target has, as far as they are known.",
                "additionalProperties": text("A label's value."),
                "maxProperties": 64,
            },
            "followers": rows(
                "Owners that come near the target: for each owner the four advices with the most traffic at most.",
                follower,
                maxItems=MOST_MEMBERS,
            ),
            "fadingSince": text(
                "Since when there is too little traffic for this advice; after an hour of that it is deleted."
            ),
            "podAffinity": text(
                "What to put under spec.template.spec of the owners that reason names, as YAML.",
                pattern=LINES,
            ),
            "reason": text("One sentence: what would be gained."),
        },
    )
    return record("Owners that would gain from one node.", {"status": status})


def _whole(description: str) -> dict[str, Any]:
    """A part of a pod's spec, which is put in as it is."""
    return {"type": "object", "description": description, KEEPS_UNKNOWN: True, "maxProperties": 8}
