"""The operator's values of the objects it reads; the edge to the API's JSON, in ``read_x`` functions.

A NodePlacement has up to 256 KiB; its value here has about one. Times are seconds since 1970.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple, Optional, Union

from cluster.api.names import DEGRADED, READY

#: Operators, and whether they need values.
OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


class SelectorError(ValueError):
    """The fault, beginning with the place inside the selector."""


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


def read_selector(found: Any) -> tuple[Requirement, ...]:
    """The requirements of a LabelSelector; none, or an empty one, selects everything. SelectorError with the place."""
    if found is None:
        return ()
    if not isinstance(found, Mapping):
        raise SelectorError(
            f": {json.dumps(found)} is not a label selector with matchLabels or matchExpressions"
        )
    for key in found:
        if key not in ("matchLabels", "matchExpressions"):
            raise SelectorError(f".{key}: no such key, known are matchLabels and matchExpressions")
    return (*_labels(found.get("matchLabels") or {}), *_expressions(found.get("matchExpressions") or []))


def selects(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    return all(requirement.holds(labels) for requirement in requirements)


def _labels(found: Any) -> list[Requirement]:
    if not isinstance(found, Mapping):
        raise SelectorError(f".matchLabels: {json.dumps(found)} is not a map of labels")
    for key, value in found.items():
        if not isinstance(value, str):
            raise SelectorError(f".matchLabels.{key}: {json.dumps(value)} is not a text")
    return [Requirement(key, "In", frozenset([value])) for key, value in found.items()]


def _expressions(found: Any) -> list[Requirement]:
    if not isinstance(found, list):
        raise SelectorError(f".matchExpressions: {json.dumps(found)} is not a list")
    return [_expression(f".matchExpressions[{index}]", each) for index, each in enumerate(found)]


def _expression(place: str, found: Any) -> Requirement:
    if not isinstance(found, Mapping) or not isinstance(found.get("key"), str) or not found["key"]:
        raise SelectorError(f"{place}.key: the name of a label is missing")
    operator = found.get("operator")
    if operator not in OPERATORS:
        raise SelectorError(f"{place}.operator: {json.dumps(operator)} is not one of {', '.join(OPERATORS)}")
    values = found.get("values") or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SelectorError(f"{place}.values: {json.dumps(values)} is not a list of texts")
    if bool(values) != OPERATORS[operator]:
        need = "at least one value" if OPERATORS[operator] else "no values"
        raise SelectorError(f"{place}.values: {operator} takes {need}")
    return Requirement(found["key"], operator, frozenset(values))


Object = Mapping[str, Any]

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
    #: None: the agent has not said yet.
    ready: Optional[bool]
    degraded: bool
    #: What the conditions say where they are not content, one sentence.
    complaint: str
    doctor_errors: int
    #: Hash of the document that the node had when its conditions and doctor were seen; None: the agent does not say.
    judged: Optional[str]
    notes: Notes

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
    """A PlacementPolicy from its object; whatever is wrong with it becomes its ``fault``, nothing is raised.

    ``refused`` is called with the config and gives one sentence for every key that no policy may set.
    """
    metadata, spec = found["metadata"], found.get("spec") or {}
    faults: list[str] = []
    selector = _selector(spec.get("nodeSelector"), faults)
    priority = _integer(spec, "priority", 0, "spec.priority", faults)
    rollout = _rollout(spec.get("rollout") or {}, faults)
    config = spec.get("config")
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        faults.append(f"spec.config: {_shown(config)} is not a map of options")
        config = {}
    elif refused is not None:
        faults += refused(config)
    return PlacementPolicy(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation", 1)),
        hash=config_hash(config, rollout.abort_on),
        priority=priority,
        selector=selector,
        rollout=rollout,
        config=config,
        fault=faults[0] if faults else "",
        status=found.get("status") or {},
    )


def config_hash(config: Mapping[str, Any], abort_on: Sequence[str]) -> str:
    """Of all that a node is given: two documents with one hash are the same to it."""
    text = json.dumps([config, sorted(abort_on)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_node_placement(found: Object) -> NodePlacement:
    """The value of a NodePlacement."""
    metadata, status = found["metadata"], found.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    ready, degraded = conditions.get(READY, {}), conditions.get(DEGRADED, {})
    complaint = ""
    if ready.get("status", "True") != "True":
        complaint = str(ready.get("message") or ready.get("reason") or "the agent says that it is not ready")
    elif degraded.get("status") == "True":
        complaint = str(
            degraded.get("message") or degraded.get("reason") or "the agent says that it is degraded"
        )
    return NodePlacement(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        given=_given((found.get("spec") or {}).get("policy")),
        answer=_answer(status.get("policy")),
        ready=ready["status"] == "True" if "status" in ready else None,
        degraded=degraded.get("status") == "True",
        complaint=complaint,
        doctor_errors=int((status.get("doctor") or {}).get("errors") or 0),
        judged=str(status["judgedPolicy"]) if "judgedPolicy" in status else None,
        notes=read_notes(found),
    )


def read_notes(found: Object) -> Notes:
    """The operator's notes; what a person has made unreadable counts as none."""
    notes = raw_notes(found)
    previous = notes.get("previous")
    return Notes(
        changed_at=read_time(notes.get("changedAt")),
        confirmed_at=read_time(notes.get("confirmedAt")),
        previous=str(previous.get("hash", "")) if isinstance(previous, Mapping) else "",
        failed=str(notes.get("failed") or ""),
        unwell=notes.get("unwell") is True,
    )


def raw_notes(found: Object) -> dict[str, Any]:
    """The annotation as it is, with the whole document that the node goes back to (``previous``)."""
    text = (found["metadata"].get("annotations") or {}).get(ROLLOUT_ANNOTATION, "")
    try:
        notes = json.loads(text) if text else {}
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}


def read_node(found: Object) -> KubernetesNode:
    """The value of a Node."""
    metadata = found["metadata"]
    conditions = (found.get("status") or {}).get("conditions") or ()
    return KubernetesNode(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=metadata.get("labels") or {},
        # A node that has said nothing yet has no condition; one that was lost says Unknown.
        ready=all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready"),
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


def write_micro_time(seconds: float) -> str:
    """As a Lease has it."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _given(policy: Any) -> Optional[Given]:
    if not isinstance(policy, Mapping) or not policy.get("hash"):
        return None
    return Given(str(policy.get("name", "")), int(policy.get("generation") or 0), str(policy["hash"]))


def _answer(policy: Any) -> Optional[PolicyStatus]:
    if not isinstance(policy, Mapping):
        return None
    return PolicyStatus(
        str(policy.get("hash") or ""), str(policy.get("state") or ""), str(policy.get("message") or "")
    )


def _selector(selector: Any, faults: list[str]) -> Optional[tuple[Requirement, ...]]:
    try:
        return read_selector(selector)
    except SelectorError as error:
        faults.append(f"spec.nodeSelector{error}")
        return None


def _integer(
    found: Object, key: str, default: int, place: str, faults: list[str], least: Optional[int] = None
) -> int:
    value = found.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        faults.append(f"{place}: {_shown(value)} is not a whole number{bound}")
        return default
    return value


def _rollout(found: Any, faults: list[str]) -> Rollout:
    if not isinstance(found, Mapping):
        faults.append(f"spec.rollout: {_shown(found)} is not a map")
        return Rollout()
    most = _max_unavailable(found.get("maxUnavailable", 1), faults)
    pause_s = _integer(found, "pauseSeconds", PAUSE_S, "spec.rollout.pauseSeconds", faults, least=0)
    abort_on = found.get("abortOn", list(ABORT_REASONS))
    unknown = (
        [each for each in abort_on if each not in ABORT_REASONS] if isinstance(abort_on, list) else [abort_on]
    )
    if unknown:
        known = ", ".join(ABORT_REASONS)
        faults.append(
            f"spec.rollout.abortOn: {_shown(unknown[0])} is not a reason to stop; known are {known}"
        )
        abort_on = ABORT_REASONS
    return Rollout(most, float(pause_s), tuple(abort_on))


def _max_unavailable(value: Any, faults: list[str]) -> Union[int, str]:
    if isinstance(value, str) and value[:-1].isascii() and value[:-1].isdigit() and value.endswith("%"):
        if 1 <= int(value[:-1]) <= 100:
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    faults.append(
        f"spec.rollout.maxUnavailable: {_shown(value)} is neither a count of at least 1 nor a percentage from 1% to 100%"
    )
    return 1


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:80]
