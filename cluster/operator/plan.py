"""All writes that are due, from all objects: one function, called again after every change.

The order is the order of the writes: NodePlacements that are missing, agents that are silent, statuses (an abort is
recorded there before the next plan takes a node back), changes of nodes, NodePlacements of nodes that are gone.

The documents that are written are here too. A document has everything that the operator owns of an object: a field that is
left out is given up. People's own fields (``spec.mode``, ``spec.freeze``, ``spec.overrides``) are never in them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional

from cluster.api.names import AGENT_SILENT, API_VERSION, NODE_PLACEMENT, OPERATOR, READY
from cluster.api.reader import Object, Skipped
from cluster.operator import rollout
from cluster.operator.heartbeats import Beat
from cluster.operator.objects import (
    ROLLOUT_ANNOTATION,
    KubernetesNode,
    NodePlacement,
    PlacementPolicy,
    raw_notes,
    read_node_placement,
    write_time,
)
from cluster.operator.resolve import resolve
from cluster.operator.rollout import (
    CONFIRM,
    GIVE,
    TAKE_BACK,
    Abort,
    NodePlacementWrite,
    given_up,
    missed,
    silence,
    speaks_again,
)
from cluster.operator.summary import View, policy_status

LABELS = {"app.kubernetes.io/managed-by": OPERATOR}


class AgentsWord(NamedTuple):
    """Whether the last word of a node's agent is still believed. Holds only as long as the node is as it was ``seen``."""

    seen: NodePlacement
    #: Why not; "" = it is again.
    silence: str


class NewStatus(NamedTuple):
    policy: PlacementPolicy
    status: Mapping[str, Any]
    #: A sentence for people where its phase is another than before.
    news: str
    abort: Optional[Abort] = None


class NodeChange(NamedTuple):
    #: None: no policy wants the node.
    policy: Optional[PlacementPolicy]
    change: NodePlacementWrite


@dataclass(frozen=True)
class ClusterPlan:
    create: tuple[str, ...]
    words: tuple[AgentsWord, ...]
    statuses: tuple[NewStatus, ...]
    changes: tuple[NodeChange, ...]
    delete: tuple[NodePlacement, ...]
    #: For the next call.
    missing_since: Mapping[str, float]
    #: When to look again without news, in seconds since 1970; None: never.
    wake_at: Optional[float]


def plan(
    policies: Mapping[str, PlacementPolicy],
    nodes: Mapping[str, KubernetesNode],
    placements: Mapping[str, NodePlacement],
    missing_since: Mapping[str, float],
    now: float,
    unread: Mapping[str, Skipped] = {},
    refused: Mapping[str, str] = {},
    beats: Mapping[str, Beat] = {},
) -> ClusterPlan:
    """The writes, from nothing but the objects (``missing_since`` only delays what is deleted).

    ``unread``: by its name each Node and NodePlacement that cannot be read; such a node is left as it is. ``refused``: by
    node, the server's sentence about a change that it has not taken. ``beats``: by node, its agent's heartbeat.
    """
    resolution = resolve(policies.values(), nodes.values(), placements)
    ready = {node.name: node.ready for node in nodes.values()}
    targets: dict[str, list[NodePlacement]] = {name: [] for name in policies}
    left: dict[str, list[Skipped]] = {name: [] for name in policies}
    desired = dict.fromkeys(policies, 0)
    for name, wanted in resolution.wanted.items():
        desired[wanted] += 1
        if name in unread:
            left[wanted].append(unread[name])
        if name in placements:
            targets[wanted].append(placements[name])
    statuses, changes, waking = [], [], []
    for name, policy in sorted(policies.items()):
        step = rollout.step(policy, targets[name], ready, now)
        in_the_way = [each.seen.name for each in step.changes if each.seen.name in refused]
        if in_the_way:
            node = min(in_the_way)
            waits = (
                f"the API server does not take the change of {node}, which is tried again: {refused[node]}"
            )
            step = replace(step, waits=waits)
        conflicts = resolution.conflicts.get(name, ())
        view = View(policy, targets[name], desired[name], conflicts, ready, step, left[name])
        status = policy_status(view, now)
        if status != policy.status:
            statuses.append(NewStatus(policy, status, _news(policy, status), step.abort))
        changes += [NodeChange(policy, change) for change in step.changes]
        waking.append(step.wake_at)
    unwanted = [
        state
        for state in placements.values()
        if state.name in nodes and state.name not in resolution.wanted and state.name not in resolution.held
    ]
    leaving = rollout.removal(unwanted, len(nodes), now)
    changes += [NodeChange(None, change) for change in leaving.changes]
    kept = collect(nodes.keys(), placements.values(), missing_since, now, unread)
    waking += [leaving.wake_at, kept.wake_at]
    wake_at = min((each for each in waking if each is not None), default=None)
    words = tuple(
        word
        for name, state in placements.items()
        if name in nodes
        for word in agents_word(state, now, beats.get(name))
    )
    return ClusterPlan(
        kept.create, words, tuple(statuses), tuple(changes), kept.delete, kept.missing_since, wake_at
    )


def agents_word(state: NodePlacement, now: float, beat: Optional[Beat]) -> list[AgentsWord]:
    """The word on a node's agent that is to be written, if one is."""
    if speaks_again(state, now, beat):
        return [AgentsWord(state, "")]
    silent = silence(state, now) or missed(state, beat)
    return [AgentsWord(state, silent)] if silent and state.ready is True else []


def _news(policy: PlacementPolicy, status: Mapping[str, Any]) -> str:
    before = (policy.status or {}).get("phase")
    if status["phase"] == before:
        return ""
    message = f": {status['message']}" if status["message"] else ""
    return f"policy {policy.name}, generation {policy.generation}: {status['phase']}{message}"


#: Seconds that a Node may be away before its NodePlacement goes: kubelet registers a deleted Node again at its start.
GONE_S = 60.0


class Housekeeping(NamedTuple):
    """The creates and deletes after which each Node has a NodePlacement and nothing else has one."""

    create: tuple[str, ...]
    delete: tuple[NodePlacement, ...]
    #: When each orphan was first seen without its node; for the next call.
    missing_since: Mapping[str, float]
    wake_at: Optional[float]


def collect(
    nodes: Collection[str],
    placements: Iterable[NodePlacement],
    missing_since: Mapping[str, float],
    now: float,
    unread: Collection[str] = (),
) -> Housekeeping:
    """Where not one Node is known nothing is deleted: a cluster has nodes, an empty answer is a mistake.

    ``unread``: Nodes and NodePlacements that are there, and cannot be read.
    """
    placements = list(placements)
    create = tuple(sorted(set(nodes) - {each.name for each in placements} - set(unread)))
    orphans = (
        [each for each in placements if each.name not in nodes and each.name not in unread] if nodes else []
    )
    since = {each.name: missing_since.get(each.name, now) for each in orphans}
    delete = tuple(each for each in orphans if now >= since[each.name] + GONE_S)
    waiting = [since[each.name] + GONE_S for each in orphans if each not in delete]
    return Housekeeping(create, delete, since, min(waiting, default=None))


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


def agents_word_document(word: AgentsWord, found: Object, now: float) -> dict[str, Any]:
    """For server-side apply to the subresource ``status``: Ready is Unknown as of a Node whose kubelet does not answer."""
    metadata = {key: found["metadata"][key] for key in ("name", "resourceVersion")}
    at = write_time(now)
    if word.silence:
        return condition_document(metadata, READY, "Unknown", AGENT_SILENT, word.silence, at)
    answers = "the agent has answered again; it had said before that the daemon answers"
    return condition_document(metadata, READY, "True", "AgentAnswers", answers, at)


def condition_document(
    metadata: Object, kind: str, status: str, reason: str, message: str, at: str
) -> dict[str, Any]:
    """One condition of a NodePlacement, for server-side apply to ``status``; ``at``: since when it is so, RFC 3339."""
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": NODE_PLACEMENT,
        "metadata": dict(metadata),
        "status": {"conditions": [condition]},
    }


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
