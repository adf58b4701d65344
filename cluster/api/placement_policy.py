"""The schema of PlacementPolicy: which nodes are configured to what, and how a change reaches them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.api import allowed
from cluster.api.node_placement import ABORT_ON, conditions
from cluster.api.schema import INT_OR_STRING, number, record, rows, rule, text, word

PHASES = ("Invalid", "Progressing", "Waiting", "TakingBack", "Aborted", "Complete", "Stopped")
#: More labels and expressions than a selector needs.
MAX_EXPRESSIONS, MAX_VALUES = 32, 64
MAX_PRIORITY = 1_000_000
#: Of the policies that conflict with one, so many are listed.
MAX_CONFLICTS = 20

_BALLOON_RULES = (
    rule(
        "!has(self.MinCPUs) || !has(self.MaxCPUs) || self.MaxCPUs <= 0 || self.MinCPUs <= self.MaxCPUs",
        "MinCPUs is more than MaxCPUs",
    ),
    rule(
        "!has(self.MinBalloons) || !has(self.MaxBalloons) || self.MaxBalloons == 0"
        " || self.MinBalloons <= self.MaxBalloons",
        "MinBalloons is more than MaxBalloons",
    ),
)
_BALLOONS_RULES = (
    rule(
        "!has(self.BalloonTypes) || self.BalloonTypes.all(a, self.BalloonTypes.exists_one(b, b.Name == a.Name))",
        "BalloonTypes has two types of one Name",
    ),
    rule(
        "!has(self.LoadClasses) || self.LoadClasses.all(a, self.LoadClasses.exists_one(b, b.Name == a.Name))",
        "LoadClasses has two classes of one Name",
    ),
)


def _selector() -> dict[str, Any]:
    expression = record(
        "One condition on the node's labels.",
        {
            "key": text("The label.", minLength=1, maxLength=317),
            "operator": word("How the label's value is compared.", "In", "NotIn", "Exists", "DoesNotExist"),
            "values": rows(
                "What it is compared with.", text("One value.", maxLength=63), maxItems=MAX_VALUES
            ),
        },
        ("key", "operator"),
        rules=[
            rule(
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                " : !has(self.values) || size(self.values) == 0",
                "In and NotIn need values, Exists and DoesNotExist take none",
            )
        ],
    )
    return record(
        "The nodes it is for, by their labels. Empty or absent: all nodes.",
        {
            "matchLabels": {
                "type": "object",
                "description": "Labels that a node has, with these values.",
                "maxProperties": MAX_EXPRESSIONS,
                "additionalProperties": text("The label's value.", maxLength=63),
            },
            "matchExpressions": rows("Conditions of which all hold.", expression, maxItems=MAX_EXPRESSIONS),
        },
    )


def _rollout() -> dict[str, Any]:
    return record(
        "How a change reaches the nodes.",
        {
            "maxUnavailable": {
                "description": "How many nodes are in the middle of it at once: a number, or a part such as 10%"
                " (rounded up). Without it one.",
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                INT_OR_STRING: True,
                "minimum": 1,
                "maximum": 5000,
                "maxLength": 4,
                "pattern": "^([1-9][0-9]?|100)%$",
                "expected": "a number from 1, or a part such as 10%",
            },
            "pauseSeconds": number(
                "How long a node has to be well before the next one is changed. Without it 10.",
                minimum=0,
                maximum=86400,
            ),
            "abortOn": rows(
                "What stops the change and takes it back. Without it all of them; [] none.",
                word("One cause.", *ABORT_ON),
                maxItems=len(ABORT_ON),
            ),
        },
    )


def _config(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    schema = allowed.schema(options)
    balloons = schema["properties"]["policy"]["properties"]["balloons"]
    types = balloons["properties"]["BalloonTypes"]
    types = {**types, "items": {**types["items"], "x-kubernetes-validations": list(_BALLOON_RULES)}}
    balloons["properties"]["BalloonTypes"] = types
    balloons["x-kubernetes-validations"] = list(_BALLOONS_RULES)
    return schema


def _spec(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return record(
        "What nodes are to be configured to.",
        {
            "nodeSelector": _selector(),
            "priority": number(
                "Of several policies that select a node the one with the highest counts; of equal ones the first by"
                " name, and the others name the conflict in their status.",
                minimum=-MAX_PRIORITY,
                maximum=MAX_PRIORITY,
            ),
            "config": _config(options),
            "rollout": _rollout(),
        },
        ("config",),
    )


def _status() -> dict[str, Any]:
    conflict = record(
        "Another policy that selects the same nodes with the same priority.",
        {
            "policy": text("Its name."),
            "priority": number("The priority of both."),
            "nodes": number("How many nodes both select."),
            "node": text("One of them."),
        },
        ("policy",),
    )
    return record(
        "How far the change has come. The operator writes it.",
        {
            "observedGeneration": number("The generation that this is about."),
            "desired": number("Nodes that are to have it."),
            "updated": number("Nodes that have it."),
            "ready": number("Of these, nodes that are ready."),
            "degraded": number("Of these, nodes that are degraded."),
            "unread": number(
                "Nodes whose NodePlacement the operator cannot read: it leaves them as they are."
            ),
            "inChange": number("Nodes that are in the middle of the change."),
            "phase": text("How far it is.", enum=list(PHASES)),
            "hash": text("The hash of the configuration that is rolled out or in force."),
            "completedHash": text("The hash of the last one that all nodes had."),
            "message": text("One sentence; it names the key where the configuration is refused."),
            "conflicts": rows(
                "Policies of the same priority for the same nodes.", conflict, maxItems=MAX_CONFLICTS
            ),
            "conditions": conditions("Accepted, Progressing, Complete, Aborted, Degraded, Conflict."),
        },
    )


def schema(options: Mapping[str, Mapping[str, Any]] = allowed.OPTIONS) -> dict[str, Any]:
    """The whole object; ``options``: the options that it may set, with their schemas."""
    return record(
        "What nodes are configured to, rolled out node by node.",
        {"spec": _spec(options), "status": _status()},
        ("spec",),
    )


COLUMNS = (
    ("Priority", "integer", ".spec.priority", 0),
    ("Desired", "integer", ".status.desired", 0),
    ("Updated", "integer", ".status.updated", 0),
    ("Ready", "integer", ".status.ready", 0),
    ("Degraded", "integer", ".status.degraded", 0),
    ("Phase", "string", ".status.phase", 0),
    ("Message", "string", ".status.message", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
