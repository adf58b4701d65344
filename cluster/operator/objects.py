"""The operator's values of the objects it reads; the edge to the API's JSON, in ``read_x`` functions.

A NodePlacement has up to 256 KiB; its value here has about one. Times are seconds since 1970.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple, Optional, TypeVar, Union

from cluster.api.names import AGENT_SILENT, DEGRADED, READABLE, READY
from cluster.api.reader import Fields, Object, Unreadable
from cluster.api.schema import shown_key
from cluster.kube.document import read_json

Value = TypeVar("Value")

#: Operators, and whether they need values.
OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


class Requirement(NamedTuple):
    """One demand on a label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        # A node without the label is selected by NotIn, as everywhere in Kubernetes.
        return (labels.get(self.key) in self.values) == (self.operator == "In")


def read_selector(spec: Fields) -> tuple[Requirement, ...]:
    """The requirements of ``nodeSelector``; none, or an empty one, selects everything.

    :raises Unreadable: it is no LabelSelector; one with a key of a newer version may mean fewer nodes.
    """
    found = spec.fields("nodeSelector")
    for key in found.found:
        if key not in ("matchLabels", "matchExpressions"):
            raise Unreadable(
                f"{found.place}.{shown_key(key)} is not known, expected matchLabels or matchExpressions"
            )
    labels = [
        Requirement(key, "In", frozenset([value])) for key, value in found.labels("matchLabels").items()
    ]
    return (*labels, *map(_expression, found.rows("matchExpressions")))


def selects(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    return all(requirement.holds(labels) for requirement in requirements)


def _expression(found: Fields) -> Requirement:
    key, operator, values = found.text("key"), found.text("operator"), found.texts("values")
    if operator not in OPERATORS:
        raise found.wrong("operator", operator, f"one of {', '.join(OPERATORS)}")
    if bool(values) != OPERATORS[operator]:
        need = "at least one" if OPERATORS[operator] else "none"
        raise Unreadable(f"{found.place}.values has {len(values)} values, {operator} takes {need}")
    return Requirement(key, operator, frozenset(values))


#: The reasons for which a rollout is stopped and taken back, in the order in which they are told.
ABORT_REASONS = ("ConfigRefused", "NotReady", "Degraded", "DoctorErrors")
#: Seconds that a node has to be well before the next one, where a policy does not say: one round of its agent.
PAUSE_S = 10
#: The operator's notes on a NodePlacement: JSON, written together with ``spec.policy``.
ROLLOUT_ANNOTATION = "cri-resmgr.io/rollout"


class Given(NamedTuple):
    """Which policy document a node was given: ``spec.policy`` without its config."""

    name: str
    generation: int
    hash: str


class PolicyStatus(NamedTuple):
    """The agent's answer to the document: ``status.policy``."""

    hash: str
    state: str
    message: str


class Notes(NamedTuple):
    """The operator's notes on a node. Zero is a time that has not been."""

    changed_at: float = 0.0
    confirmed_at: float = 0.0
    #: Hash of the document that the node had before and goes back to; "" = it had none.
    previous: str = ""
    #: Hash of the document that was taken back from this node.
    failed: str = ""
    #: The node was not well when it was changed: a first fault may be from before.
    unwell: bool = False


class NodePlacement(NamedTuple):
    """A NodePlacement."""

    name: str
    uid: str
    given: Optional[Given]
    answer: Optional[PolicyStatus]
    #: None: the agent has not said yet, or its last word is not believed any more (``silenced``).
    ready: Optional[bool]
    degraded: bool
    #: What the conditions say where they are not content, one sentence.
    complaint: str
    doctor_errors: int
    #: Hash of the document that the node had when its conditions and doctor were seen; None: the agent does not say.
    judged: Optional[str]
    notes: Notes
    #: Its condition says that it cannot be read.
    unread_said: bool = False
    #: The operator has written that the agent does not answer.
    silenced: bool = False
    #: The agent has seen the newest spec; True too where it does not say.
    up_to_date: bool = True

    @property
    def given_hash(self) -> str:
        return self.given.hash if self.given else ""

    @property
    def acknowledged(self) -> bool:
        """The agent has carried out what ``spec.policy`` says, or that it says nothing."""
        if self.answer is None or self.answer.state in ("None", "none", ""):
            return self.given is None
        return self.answer.hash == self.given_hash and self.answer.state == "Applied"

    @property
    def confirmed(self) -> bool:
        """The operator has seen the node well with this document, and has written that down."""
        return self.notes.confirmed_at > 0 or self.notes.changed_at == 0


class KubernetesNode(NamedTuple):
    """A Node of Kubernetes."""

    name: str
    uid: str
    labels: Mapping[str, str]
    #: Kubelet answers.
    ready: bool


@dataclass(frozen=True)
class Rollout:
    """How a change goes over the nodes."""

    #: A count, or a percentage of the nodes ("10%").
    max_unavailable: Union[int, str] = 1
    pause_s: float = PAUSE_S
    abort_on: tuple[str, ...] = ABORT_REASONS

    def most(self, nodes: int) -> int:
        """How many of so many nodes may be in change at once; a percentage is rounded up, so it is never none."""
        if isinstance(self.max_unavailable, int):
            return self.max_unavailable
        percent = int(self.max_unavailable[:-1])
        return max(1, -(-nodes * percent // 100))


@dataclass(frozen=True)
class PlacementPolicy:
    """A PlacementPolicy. One that does not parse has ``fault``, a sentence that names the key."""

    name: str
    uid: str
    generation: int
    hash: str
    priority: int = 0
    #: None: it cannot be known which nodes are meant.
    selector: Optional[tuple[Requirement, ...]] = ()
    rollout: Rollout = Rollout()
    config: Mapping[str, Any] = None  # type: ignore[assignment]
    fault: str = ""
    status: Mapping[str, Any] = None  # type: ignore[assignment]

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The condition of this type if it was written for this generation, otherwise an empty one."""
        for condition in (self.status or {}).get("conditions") or ():
            if condition.get("type") == kind and condition.get("observedGeneration") == self.generation:
                return dict(condition)
        return {}

    @property
    def aborted(self) -> bool:
        return bool(self.condition("Aborted").get("status") == "True")

    @property
    def completed(self) -> bool:
        """All nodes have had this very document: nodes that come now are not part of its rollout."""
        return str((self.status or {}).get("completedHash", "")) == self.hash

    def document(self) -> dict[str, Any]:
        """``spec.policy`` of a node that is given this policy."""
        return {
            "name": self.name,
            "generation": self.generation,
            "hash": self.hash,
            "config": dict(self.config or {}),
            "abortOn": list(self.rollout.abort_on),
        }


def read_policy(found: Object, refused: Any = None) -> PlacementPolicy:
    """A PlacementPolicy from its object. What is wrong with its spec or status becomes its ``fault``: it selects its
    nodes still, and changes nothing there.

    ``refused`` is called with the config and gives one sentence for every key that no policy may set.
    """
    faults: list[str] = []

    def tried(how: Callable[[Fields], Value], fields: Fields, default: Value) -> Value:
        try:
            return how(fields)
        except Unreadable as error:
            faults.append(str(error))
            return default

    whole = Fields(found)
    metadata = whole.fields("metadata")
    spec = tried(lambda fields: fields.fields("spec"), whole, Fields({}, "spec"))
    selector = tried(read_selector, spec, None)
    priority = tried(lambda fields: fields.number("priority", 0), spec, 0)
    asked = tried(lambda fields: fields.fields("rollout"), spec, Fields({}, "spec.rollout"))
    most = tried(_max_unavailable, asked, Rollout().max_unavailable)
    pause_s = tried(lambda fields: fields.number("pauseSeconds", PAUSE_S, least=0), asked, PAUSE_S)
    abort_on: tuple[str, ...] = tried(_abort_on, asked, ABORT_REASONS)
    config: Object = tried(lambda fields: fields.document("config"), spec, {})
    if not faults and refused is not None:
        faults += refused(config)
    return PlacementPolicy(
        name=metadata.text("name"),
        uid=metadata.text("uid", ""),
        generation=metadata.number("generation", 1),
        hash=config_hash(config, abort_on),
        priority=priority,
        selector=selector,
        rollout=Rollout(most, float(pause_s), abort_on),
        config=config,
        # Its status is the operator's own, which it writes again.
        status=tried(_policy_status, whole, {}),
        fault=faults[0] if faults else "",
    )


def config_hash(config: Mapping[str, Any], abort_on: Sequence[str]) -> str:
    """Of all that a node is given: two documents with one hash are the same to it."""
    text = json.dumps([config, sorted(abort_on)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_node_placement(found: Object) -> NodePlacement:
    """The value of a NodePlacement.

    :raises Unreadable: it is none.
    """
    whole = Fields(found)
    metadata, status = whole.fields("metadata"), whole.fields("status")
    conditions = {each.text("type"): each for each in status.rows("conditions")}
    ready, degraded = (conditions.get(kind, Fields({})) for kind in (READY, DEGRADED))
    silenced = ready.text("reason", "") == AGENT_SILENT
    complaint = ""
    if ready.text("status", "True") != "True":
        complaint = _said(ready) or "the agent says that it is not ready"
    elif degraded.text("status", "") == "True":
        complaint = _said(degraded) or "the agent says that it is degraded"
    return NodePlacement(
        name=metadata.text("name"),
        uid=metadata.text("uid", ""),
        given=_given(whole.fields("spec")),
        answer=_answer(status),
        ready=ready.text("status") == "True" if "status" in ready and not silenced else None,
        degraded=degraded.text("status", "") == "True",
        complaint=complaint,
        doctor_errors=status.fields("doctor").number("errors", 0),
        judged=status.text("judgedPolicy") if "judgedPolicy" in status else None,
        notes=read_notes(found),
        unread_said=conditions[READABLE].text("status") == "False" if READABLE in conditions else False,
        silenced=silenced,
        up_to_date="observedGeneration" not in status
        or status.number("observedGeneration") >= metadata.number("generation", 0),
    )


def _said(condition: Fields) -> str:
    return condition.text("message", "") or condition.text("reason", "")


def read_notes(found: Object) -> Notes:
    """The operator's notes; what a person has made unreadable counts as none."""
    notes = Fields(raw_notes(found))
    return Notes(
        changed_at=read_time(notes.text("changedAt", "")),
        confirmed_at=read_time(notes.text("confirmedAt", "")),
        previous=notes.fields("previous").text("hash", ""),
        failed=notes.text("failed", ""),
        unwell="unwell" in notes and notes.flag("unwell"),
    )


def raw_notes(found: Object) -> dict[str, Any]:
    """The annotation as it is, with the whole document that the node goes back to (``previous``); {} = there is none."""
    text = Fields(found).fields("metadata").labels("annotations").get(ROLLOUT_ANNOTATION, "")
    try:
        notes = read_json(text) if text else {}
        return _checked(Fields(notes))
    except ValueError:
        return {}


def _checked(notes: Fields) -> dict[str, Any]:
    """:raises Unreadable: these are no notes of an operator."""
    for key in ("changedAt", "confirmedAt", "failed"):
        notes.text(key, "")
    notes.flag("unwell", False)
    previous = notes.fields("previous")
    if previous:
        _policy_document(previous)
    return dict(notes.found)


def read_node(found: Object) -> KubernetesNode:
    """The value of a Node.

    :raises Unreadable: it is none.
    """
    whole = Fields(found)
    metadata = whole.fields("metadata")
    conditions = whole.fields("status").rows("conditions")
    return KubernetesNode(
        name=metadata.text("name"),
        uid=metadata.text("uid", ""),
        labels=metadata.labels("labels"),
        # A node that has said nothing yet has no condition; one that was lost says Unknown.
        ready=all(
            each.text("status", "") == "True" for each in conditions if each.text("type", "") == "Ready"
        ),
    )


def read_time(text: Any) -> float:
    """Seconds since 1970 of an RFC 3339 time in UTC; 0 for any other text."""
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"):
        try:
            return datetime.strptime(str(text), form).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            continue
    return 0.0


def write_time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _given(spec: Fields) -> Optional[Given]:
    policy = spec.fields("policy")
    return _policy_document(policy) if policy.text("hash", "") else None


def _policy_document(policy: Fields) -> Given:
    """Of ``spec.policy``, all of which is read: the operator may have to write it again."""
    policy.document("config")
    policy.texts("abortOn")
    return Given(policy.text("name", ""), policy.number("generation", 0), policy.text("hash"))


def _answer(status: Fields) -> Optional[PolicyStatus]:
    if "policy" not in status:
        return None
    policy = status.fields("policy")
    return PolicyStatus(policy.text("hash", ""), policy.text("state", ""), policy.text("message", ""))


def _policy_status(whole: Fields) -> Object:
    status = whole.fields("status")
    for each in status.rows("conditions"):
        each.number("observedGeneration", 0)
        for key in ("type", "status", "reason", "message", "lastTransitionTime"):
            each.text(key, "")
    for key in ("phase", "completedHash", "message"):
        status.text(key, "")
    return status.found


def _abort_on(rollout: Fields) -> tuple[str, ...]:
    if "abortOn" not in rollout:
        return ABORT_REASONS
    found = rollout.texts("abortOn")
    for each in found:
        if each not in ABORT_REASONS:
            raise rollout.wrong("abortOn", each, f"a list of {', '.join(ABORT_REASONS)}")
    return found


def _max_unavailable(rollout: Fields) -> Union[int, str]:
    value = rollout.found.get("maxUnavailable", 1)
    if isinstance(value, str) and value[:-1].isascii() and value[:-1].isdigit() and value.endswith("%"):
        if len(value) <= 4 and 1 <= int(value[:-1]) <= 100:
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise rollout.wrong("maxUnavailable", value, "a count of at least 1 or a percentage from 1% to 100%")
