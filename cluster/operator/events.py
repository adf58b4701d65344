"""What is told of a rollout as Events, on the policy and on the nodes. Pure.

Events are for people: they follow from what is written, and nothing depends on them. After a change of operator one may
be told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from cluster.api.names import API_VERSION, PLACEMENT_POLICY
from cluster.kube.events import NORMAL, WARNING, About
from cluster.operator.objects import KubernetesNode, NodePlacement, PlacementPolicy
from cluster.operator.rollout import GIVE, REMOVE, TAKE_BACK, Abort, NodePlacementWrite, given_up


class Announcement(NamedTuple):
    """``reason`` is one word in camel case."""

    about: About
    reason: str
    type: str
    message: str


def about_policy(policy: PlacementPolicy) -> About:
    return About(API_VERSION, PLACEMENT_POLICY, policy.name, policy.uid)


def about_node(node: KubernetesNode) -> About:
    """The Node: its Events are what ``kubectl describe node`` shows."""
    return About("v1", "Node", node.name, node.uid)


def of_status(policy: PlacementPolicy, status: Mapping[str, Any]) -> list[Announcement]:
    """Of a policy whose status becomes another: begun, stopped, taken back, complete."""
    before = policy.status or {}
    told = _of_phase(before, status)
    about = about_policy(policy)
    if before.get("hash") != policy.hash and status["phase"] in ("Progressing", "Waiting"):
        most = policy.rollout.most(status["desired"])
        begun = (
            f"generation {policy.generation} goes over {status['desired']} nodes, at most {most} at a time"
        )
        told.insert(0, ("RolloutBegun", NORMAL, begun))
    return [Announcement(about, *each) for each in told]


def _of_phase(before: Mapping[str, Any], status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    phase, message = str(status["phase"]), str(status["message"])
    generations = before.get("observedGeneration"), status["observedGeneration"]
    is_new = phase != before.get("phase") or generations[0] != generations[1]
    if phase in ("Waiting", "Stopped", "Invalid") and (is_new or message != before.get("message")):
        reason = {"Waiting": "RolloutWaiting", "Stopped": "RolloutStopped", "Invalid": "PolicyInvalid"}[phase]
        return [(reason, WARNING, message)]
    if not is_new:
        return []
    if phase == "TakingBack" or (phase == "Aborted" and before.get("phase") != "TakingBack"):
        return [("RolloutAborted", WARNING, message)]
    if phase == "Aborted":
        return [("RolloutTakenBack", NORMAL, "the nodes have what they had before")]
    if phase == "Complete" and status["updated"]:
        return [("RolloutComplete", NORMAL, f"{status['updated']} of {status['desired']} nodes have it")]
    return []


def of_failure(node: KubernetesNode, policy: PlacementPolicy, abort: Abort) -> Announcement:
    """Of the node that stops a rollout."""
    sentence = f"policy {policy.name} is taken back ({abort.reason}): {abort.sentence}"
    return Announcement(about_node(node), "PolicyFailed", WARNING, sentence)


def of_answer(
    node: Optional[KubernetesNode],
    policy: Optional[PlacementPolicy],
    before: Optional[NodePlacement],
    now: NodePlacement,
) -> list[Announcement]:
    """Of a node whose agent says that it has not what it was given: on the node and on the policy."""
    if not given_up(now) or (before is not None and given_up(before)) or now.answer is None:
        return []
    name = now.given.name if now.given else ""
    is_refused = now.answer.state == "Refused"
    told = []
    if node is not None:
        reason = "PolicyRefused" if is_refused else "PolicyTakenBack"
        told.append(Announcement(about_node(node), reason, WARNING, f"policy {name}: {now.answer.message}"))
    if policy is not None:
        reason = "NodeRefused" if is_refused else "NodeTookBack"
        told.append(Announcement(about_policy(policy), reason, WARNING, f"{now.name}: {now.answer.message}"))
    return told


def of_change(
    node: KubernetesNode, policy: Optional[PlacementPolicy], change: NodePlacementWrite
) -> Announcement:
    """Of one write to a node's NodePlacement."""
    given = change.seen.given
    name = policy.name if policy else given.name if given else ""
    reason, type_, sentence = {
        GIVE: ("PolicyGiven", NORMAL, "is given"),
        TAKE_BACK: ("PolicyTakenBack", WARNING, "is taken back"),
        REMOVE: ("PolicyRemoved", NORMAL, "is taken away: no policy selects this node"),
    }.get(change.kind, ("PolicyInForce", NORMAL, "is in force, and the node is well"))
    return Announcement(about_node(node), reason, type_, f"policy {name} {sentence}")


def of_word(node: KubernetesNode, sentence: str) -> Announcement:
    """Of an agent that is silent, or (``sentence`` "") has answered again."""
    if sentence:
        return Announcement(about_node(node), "AgentSilent", WARNING, sentence)
    return Announcement(about_node(node), "AgentAnswers", NORMAL, "the agent has answered again")
