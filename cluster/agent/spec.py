"""The spec of a node, by people and the operator, read from its NodePlacement, and written to the agent's own file. Pure.

Reading is lenient where versions may differ: fields that this version does not know are passed over. A spec with a field
that is known and has a wrong shape is not carried out: the node stays as the spec before it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from cluster.api.reader import Fields, Unreadable
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
    """``mode`` "" and ``freeze`` None: nothing is asked. ``wrong``: why the spec of this generation cannot be read; the
    fields are then those of the one before, or of none at all (``is_known`` False).
    """

    generation: int = 0
    mode: str = ""
    freeze: Optional[bool] = None
    overrides: tuple[Override, ...] = ()
    policy: Optional[PolicyDocument] = None
    wrong: str = ""
    is_known: bool = True

    @property
    def asks(self) -> bool:
        return bool(self.mode or self.freeze is not None or self.overrides or self.policy or self.wrong)


def read_spec(node_placement: Mapping[str, Any], before: Optional[Spec] = None) -> Spec:
    """The spec of a whole NodePlacement; one that cannot be read is that of ``before``, with the sentence why."""
    generation = 0
    try:
        whole = Fields(node_placement)
        generation = whole.fields("metadata").number("generation", 0)
        spec = whole.fields("spec")
        return Spec(
            generation,
            spec.text("mode", ""),
            spec.flag("freeze") if "freeze" in spec else None,
            tuple(sorted(_override(row) for row in spec.rows("overrides"))),
            _policy(spec.fields("policy")),
        )
    except Unreadable as error:
        before = before or Spec(is_known=False)
        return replace(before, generation=generation, wrong=str(error))


def _override(row: Fields) -> Override:
    namespace, container = row.text("namespace", "") or "default", row.text("container", "")
    return namespace, row.text("pod"), container, read_domain(row.text("zone"))


def _policy(policy: Fields) -> Optional[PolicyDocument]:
    if not policy:
        return None
    config, signs = policy.document("config"), policy.texts("abortOn")
    return PolicyDocument(
        policy.text("name"), policy.number("generation", 0), policy.text("hash"), config, signs
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
