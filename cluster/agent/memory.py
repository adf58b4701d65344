"""The commanding half's memory over its own restarts, and over days without the API server. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional

from cluster.agent.spec import PolicyDocument, Spec, read_spec, write_policy, write_spec


@dataclass(frozen=True)
class AgentMemory:
    """``spec``: as it was seen last, None = never. ``policy``: what the daemon was given last, and when (seconds since
    1970); ``baseline``: the signs that were there before, which do not speak against it. ``previous``: what was in force
    before it. ``taken_back``: the hash of a policy that was taken back on this node, and why. ``mode_before``: the mode
    before one was asked for, "" = none was. ``froze``: whether this agent froze the node.
    """

    spec: Optional[Spec] = None
    policy: Optional[PolicyDocument] = None
    applied_at_s: float = 0.0
    baseline: tuple[str, ...] = ()
    previous: Optional[PolicyDocument] = None
    taken_back: str = ""
    why_taken_back: str = ""
    mode_before: str = ""
    froze: bool = False


def write_memory(memory: AgentMemory) -> str:
    """As JSON that a person can read."""
    document: dict[str, Any] = {
        "spec": None if memory.spec is None else write_spec(memory.spec),
        "policy": None if memory.policy is None else write_policy(memory.policy),
        "applied_at": memory.applied_at_s,
        "baseline": list(memory.baseline),
        "previous": None if memory.previous is None else write_policy(memory.previous),
        "taken_back": memory.taken_back,
        "why_taken_back": memory.why_taken_back,
        "mode_before": memory.mode_before,
        "froze": memory.froze,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def read_memory(text: str) -> AgentMemory:
    """A document of ``write_memory``, of this version or its neighbours.

    :raises ValueError: it is none.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    spec = document.get("spec")
    return AgentMemory(
        None if spec is None else read_spec(spec),
        _policy(document.get("policy")),
        float(document.get("applied_at") or 0),
        tuple(str(sign) for sign in document.get("baseline") or ()),
        _policy(document.get("previous")),
        str(document.get("taken_back") or ""),
        str(document.get("why_taken_back") or ""),
        str(document.get("mode_before") or ""),
        document.get("froze") is True,
    )


def _policy(document: Any) -> Optional[PolicyDocument]:
    return read_spec({"spec": {"policy": document}}).policy
