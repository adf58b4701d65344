"""The objects that the operator writes, as documents.

A document has everything that the operator owns of an object: a field that is left out is given up. People's own
fields (``spec.mode``, ``spec.freeze``, ``spec.overrides``) are never in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

from cluster.api.names import API_VERSION, NODE_PLACEMENT, OPERATOR
from cluster.operator.objects import (
    ROLLOUT_ANNOTATION,
    Object,
    PlacementPolicy,
    raw_notes,
    read_node_placement,
    write_time,
)
from cluster.operator.rollout import CONFIRM, GIVE, TAKE_BACK, NodePlacementWrite, given_up

LABELS = {"app.kubernetes.io/managed-by": OPERATOR}


def new_node_placement(node: str) -> dict[str, Any]:
    """The empty NodePlacement of a node: to be created."""
    return _node_placement(node, "", None, {})


def changed(
    change: NodePlacementWrite, policy: Optional[PlacementPolicy], found: Object, now: float, well: bool
) -> dict[str, Any]:
    """The write for this change of ``found``, the whole object as just read; a conflict if it has changed since."""
    present = (found.get("spec") or {}).get("policy") or None
    notes = raw_notes(found)
    if change.kind == CONFIRM:
        return _written(found, present, {**notes, "confirmedAt": write_time(now)})
    changed_at = {"changedAt": write_time(now)}
    if change.kind == GIVE:
        assert policy is not None
        notes = {**changed_at, "previous": _way_back(found, present, notes)}
        return _written(found, policy.document(), notes if well else {**notes, "unwell": True})
    if change.kind == TAKE_BACK:
        failed = read_node_placement(found).given_hash
        return _written(found, notes.get("previous"), {**changed_at, "failed": failed})
    return _written(found, None, changed_at)


def merge_patch(found: Object, document: Mapping[str, Any]) -> dict[str, Any]:
    """``changed`` as a merge patch of ``found``: a field that a policy no longer has is taken away by name.

    Server-side apply would leave what another writer owns as well (``kubectl edit``), and makes of a ``spec`` in which
    nothing is left a null, which the server refuses.
    """
    metadata = document["metadata"]
    present = (found.get("spec") or {}).get("policy")
    policy = document.get("spec", {}).get("policy")
    annotations = {ROLLOUT_ANNOTATION: None, **metadata.get("annotations", {})}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"policy": _replaced(present, policy)},
    }


def _replaced(before: Any, after: Any) -> Any:
    """A merge patch that makes ``before`` to ``after``."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    gone = {key: None for key in before if key not in after}
    return {**gone, **{key: _replaced(before.get(key), value) for key, value in after.items()}}


def _way_back(found: Object, present: Any, notes: Mapping[str, Any]) -> Any:
    """The document to go back to: the present one, if the node was well with it; else the one before."""
    state = read_node_placement(found)
    if given_up(state):
        return notes.get("previous")
    return present if state.confirmed or state.notes.failed else notes.get("previous")


def _written(found: Object, policy: Any, notes: Mapping[str, Any]) -> dict[str, Any]:
    metadata = found["metadata"]
    return _node_placement(metadata["name"], metadata.get("resourceVersion", ""), policy, notes)


def _node_placement(
    name: str, resource_version: str, policy: Any, notes: Mapping[str, Any]
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(LABELS)}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if notes:
        kept = {key: value for key, value in notes.items() if value is not None}
        metadata["annotations"] = {ROLLOUT_ANNOTATION: json.dumps(kept, sort_keys=True)}
    return {
        "apiVersion": API_VERSION,
        "kind": NODE_PLACEMENT,
        "metadata": metadata,
        "spec": {"policy": policy} if policy else {},
    }
