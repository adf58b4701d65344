"""The spec of a node, by people and the operator, read from its NodePlacement, and written to the agent's own file. Pure.

Reading is lenient where versions may differ: fields that this version does not know are passed over. A field that is
known and has a wrong shape is a sentence, and what it asks for is not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from policies.machine.domain_names import read_domain

#: One override: namespace, pod, container, and zone as the daemon names it (node-0).
Override = tuple[str, str, str, str]
_OVERRIDE = ("namespace", "pod", "container", "zone")


@dataclass(frozen=True)
class PolicyDocument:
    """The document that a PlacementPolicy has for this node. ``hash`` is the operator's, and only compared."""

    name: str
    generation: int
    hash: str
    config: Mapping[str, Any] = field(hash=False)
    abort_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spec:
    """``mode`` "" and ``freeze`` None: nothing is asked. ``wrong``: a sentence for each field that cannot be read."""

    generation: int = 0
    mode: str = ""
    freeze: Optional[bool] = None
    overrides: tuple[Override, ...] = ()
    policy: Optional[PolicyDocument] = None
    wrong: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        return bool(self.mode or self.freeze is not None or self.overrides or self.policy or self.wrong)


def read_spec(node_placement: Mapping[str, Any]) -> Spec:
    """The spec of a whole NodePlacement."""
    wrong: list[str] = []
    spec = _table(node_placement.get("spec"), "spec", wrong)
    mode, freeze = spec.get("mode", ""), spec.get("freeze")
    if not isinstance(mode, str):
        wrong.append(f"spec.mode is {mode!r}, expected a text")
        mode = ""
    if freeze is not None and not isinstance(freeze, bool):
        wrong.append(f"spec.freeze is {freeze!r}, expected true or false")
        freeze = None
    return Spec(
        int(node_placement.get("metadata", {}).get("generation", 0)),
        mode,
        freeze,
        _overrides(spec.get("overrides"), wrong),
        _policy(spec.get("policy"), wrong),
        tuple(wrong),
    )


def _table(value: Any, name: str, wrong: list[str]) -> Mapping[str, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    wrong.append(f"{name} is {value!r}, expected fields")
    return {}


def _overrides(value: Any, wrong: list[str]) -> tuple[Override, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        wrong.append(f"spec.overrides is {value!r}, expected a list")
        return ()
    found = []
    for number, row in enumerate(value):
        table = _table(row, f"spec.overrides[{number}]", wrong)
        words = tuple(table.get(key, "") for key in _OVERRIDE)
        if all(isinstance(word, str) for word in words) and words[1] and words[3]:
            found.append((words[0] or "default", words[1], words[2], read_domain(words[3])))
        elif table:
            wrong.append(
                f"spec.overrides[{number}] is {dict(table)!r}, expected texts pod, container and zone"
            )
    return tuple(sorted(found))


def _policy(value: Any, wrong: list[str]) -> Optional[PolicyDocument]:
    if not value:
        return None
    table = _table(value, "spec.policy", wrong)
    config = _table(table.get("config"), "spec.policy.config", wrong)
    hash_, generation = table.get("hash", ""), table.get("generation", 0)
    if not isinstance(hash_, str) or not hash_ or not isinstance(table.get("name"), str):
        wrong.append("spec.policy has no name or no hash, which the operator writes")
        return None
    return PolicyDocument(
        table["name"],
        generation if isinstance(generation, int) else 0,
        hash_,
        config,
        tuple(sign for sign in table.get("abortOn") or () if isinstance(sign, str)),
    )


def write_policy(policy: PolicyDocument) -> dict[str, Any]:
    """As ``spec.policy`` has it."""
    return {
        "name": policy.name,
        "generation": policy.generation,
        "hash": policy.hash,
        "config": dict(policy.config),
        "abortOn": list(policy.abort_on),
    }


def write_spec(spec: Spec) -> dict[str, Any]:
    """A NodePlacement from which ``read_spec`` reads the same; sentences about faults are not kept."""
    document: dict[str, Any] = {"overrides": [dict(zip(_OVERRIDE, row)) for row in spec.overrides]}
    if spec.mode:
        document["mode"] = spec.mode
    if spec.freeze is not None:
        document["freeze"] = spec.freeze
    if spec.policy is not None:
        document["policy"] = write_policy(spec.policy)
    return {"metadata": {"generation": spec.generation}, "spec": document}
