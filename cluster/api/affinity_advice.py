"""The schema of AffinityAdvice: which Deployments and StatefulSets would gain from one node. Pure."""

from __future__ import annotations

from typing import Any

from cluster.api.schema import number, record, rows, text, word

_OWNER = {
    "kind": word("Its kind.", "Deployment", "StatefulSet"),
    "namespace": text("Its namespace."),
    "name": text("Its name."),
}


def schema() -> dict[str, Any]:
    """The whole object; nothing is asked of it, so it has no spec."""
    owner = record(
        "One owner.",
        {**_OWNER, "pods": number("Its pods that were seen."), "nodes": number("The nodes these are on.")},
    )
    status = record(
        "The advice. The operator writes it, and nothing carries it out.",
        {
            "owners": rows("Owners whose pods send much to each other.", owner),
            "bytesPerSecond": number("What they send to each other where they share a node, rounded."),
            "remoteBytesPerSecond": number("What they send to each other from node to node, rounded."),
            "nodes": rows("Nodes they share, 16 at most.", text("A node's name.")),
            "target": record(
                "The owner that the others are to come near; podAffinity selects its pods.", _OWNER
            ),
            "podAffinity": text(
                "What to put under spec.template.spec of the owners that reason names, as YAML."
            ),
            "reason": text("One sentence: what would be gained."),
        },
    )
    return record("Owners that would gain from one node.", {"status": status})


COLUMNS = (
    ("Remote-Bytes/s", "integer", ".status.remoteBytesPerSecond", 0),
    ("Bytes/s", "integer", ".status.bytesPerSecond", 0),
    ("Target", "string", ".status.target.name", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 1),
)
