"""``status`` of a PlacementPolicy: counts, a phase for people, conditions for programs.

Conditions follow the API's conventions: a positive or negative fact each, ``lastTransitionTime`` moves with ``status``
only, ``observedGeneration`` says which spec was looked at. ``Aborted`` and ``completedHash`` are also what the rollout
itself goes by after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cluster.api.names import API_VERSION, PLACEMENT_POLICY
from cluster.api.placement_policy import MAX_CONFLICTS
from cluster.api.reader import Skipped
from cluster.operator.objects import NodePlacement, PlacementPolicy, write_time
from cluster.operator.resolve import PolicyConflict
from cluster.operator.rollout import Abort, RolloutStep, finished, has, in_change, trouble


class View(NamedTuple):
    """The facts behind a policy's status."""

    policy: PlacementPolicy
    targets: Sequence[NodePlacement]
    #: Nodes that should have the policy, those without a NodePlacement included.
    desired: int
    conflicts: Sequence[PolicyConflict]
    ready: Mapping[str, bool]
    step: RolloutStep
    #: Those of its nodes whose objects cannot be read.
    unread: Sequence[Skipped] = ()


def policy_status(view: View, now: float) -> dict[str, Any]:
    """The whole status. It equals the one before where nothing has changed, whatever the time."""
    policy, step = view.policy, view.step
    updated = [each for each in view.targets if has(policy, each) and each.acknowledged]
    troubled = [each for each in view.targets if trouble(each, view.ready.get(each.name, False))]
    unwell = {each.name for each in troubled}
    done = finished(policy, view.targets, view.ready, now) and not step.abort
    facts = _facts(view, troubled, done, now)
    phase, message = _phase(view, updated, done, now)
    before = policy.status or {}
    return {
        "observedGeneration": policy.generation,
        "desired": view.desired,
        "updated": len(updated),
        "ready": sum(each.ready is True and each.name not in unwell for each in updated),
        "degraded": len(troubled),
        "unread": len(view.unread),
        "inChange": sum(in_change(each, now, policy.rollout.pause_s) for each in view.targets),
        "phase": phase,
        "message": message,
        "hash": policy.hash,
        "completedHash": policy.hash if done else str(before.get("completedHash", "")),
        "conflicts": [each._asdict() for each in view.conflicts[:MAX_CONFLICTS]],
        "conditions": [_condition(policy, kind, *fact, now=now) for kind, fact in facts.items()],
    }


def status_document(name: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """For server-side apply to the subresource ``status``."""
    return {
        "apiVersion": API_VERSION,
        "kind": PLACEMENT_POLICY,
        "metadata": {"name": name},
        "status": dict(status),
    }


def _facts(
    view: View, troubled: Sequence[NodePlacement], done: bool, now: float
) -> dict[str, tuple[bool, str, str]]:
    """Condition type to (status, reason, message)."""
    policy, abort = view.policy, view.step.abort
    aborted: tuple[bool, str, str] = (False, "NotAborted", "")
    if abort:
        aborted = (True, abort.reason, failure(abort))
    elif policy.aborted:
        before = policy.condition("Aborted")
        aborted = (True, str(before.get("reason")), str(before.get("message")))
    degraded: tuple[bool, str, str] = (False, "NodesAreWell", "")
    if troubled:
        first = min(troubled)
        found = trouble(first, view.ready.get(first.name, False))
        degraded = (True, found.reason if found else "", f"{first.name}: {found.sentence if found else ''}")
    conflict: tuple[bool, str, str] = (False, "NoConflict", "")
    if view.conflicts:
        conflict = (True, "SamePriority", conflict_sentence(policy, view.conflicts))
    moving = not policy.fault and not aborted[0] and not done and not _stopped(view)
    return {
        "Accepted": (not policy.fault, "Invalid" if policy.fault else "Valid", policy.fault),
        "Aborted": aborted,
        "Complete": (done, "Complete" if done else "Incomplete", ""),
        "Conflict": conflict,
        "Degraded": degraded,
        "Progressing": (moving, "RollingOut" if moving else "Still", view.step.waits),
    }


def failure(abort: Abort) -> str:
    """Why a rollout is stopped."""
    return f"{abort.node} was changed and then failed: {abort.sentence}"


def conflict_sentence(policy: PlacementPolicy, conflicts: Sequence[PolicyConflict]) -> str:
    first = conflicts[0]
    nodes = "1 node" if first.nodes == 1 else f"{first.nodes} nodes"
    more = f"; and {len(conflicts) - 1} more policies" if len(conflicts) > 1 else ""
    return (
        f"spec.priority: {policy.priority} is also the priority of {first.policy}, which selects {nodes} of the same "
        f"({first.node}); a node that has one of the two keeps it, others get the first by name{more}"
    )


def unread_sentence(unread: Sequence[Skipped]) -> str:
    if not unread:
        return ""
    first = min(unread)
    more = f"; and {len(unread) - 1} more nodes" if len(unread) > 1 else ""
    return f"{first.name} is left as it is, as its NodePlacement cannot be read: {first.sentence}{more}"


def _phase(view: View, updated: Sequence[NodePlacement], done: bool, now: float) -> tuple[str, str]:
    policy, step = view.policy, view.step
    if policy.fault:
        return "Invalid", policy.fault
    if step.abort or policy.aborted:
        why = failure(step.abort) if step.abort else str(policy.condition("Aborted").get("message", ""))
        back = any(has(policy, each) or (each.notes.failed and in_change(each, now)) for each in view.targets)
        if back:
            return "TakingBack", f"{why}; its nodes go back to what they had" + (
                f"; {step.waits}" if step.waits else ""
            )
        return "Aborted", f"{why}; a change of spec is tried anew"
    if _stopped(view):
        return "Stopped", step.waits
    if view.conflicts:
        return ("Complete" if done else "Progressing"), conflict_sentence(policy, view.conflicts)
    if len(updated) == view.desired and done:
        return "Complete", ""
    if not view.desired:
        return "Complete", "spec.nodeSelector: no node is selected"
    waits = step.waits or unread_sentence(view.unread)
    return ("Waiting" if waits or done else "Progressing"), waits


def _stopped(view: View) -> bool:
    policy = view.policy
    return policy.completed and any(each.notes.failed == policy.hash for each in view.targets)


def _condition(
    policy: PlacementPolicy, kind: str, holds: bool, reason: str, message: str, *, now: float
) -> dict[str, Any]:
    status = "True" if holds else "False"
    before: Mapping[str, Any] = next(
        (each for each in (policy.status or {}).get("conditions") or () if each.get("type") == kind), {}
    )
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason or "Unknown",
        "message": message,
        "observedGeneration": policy.generation,
        "lastTransitionTime": since or write_time(now),
    }
