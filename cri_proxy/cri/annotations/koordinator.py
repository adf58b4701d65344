"""What koordinator's annotations and labels ask of a pod, in terms of ``PlacementPreferences``.

label koordinator.sh/qosClass: LSE, LSR                     CPUs of its own
scheduling.koordinator.sh/resource-spec (JSON)
  requiredCPUBindPolicy, else preferredCPUBindPolicy:
    FullPCPUs                                               whole cores only
    SpreadByPCPUs                                           one thread a core
  preferredCPUExclusivePolicy: PCPULevel                    whole cores only, if no bind policy is given
scheduling.koordinator.sh/numa-topology-spec (JSON)
  numaTopologyPolicy: SingleNUMANode                        one NUMA node, or no container
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from cri_proxy.cri.annotations.values import in_words
from cri_proxy.text.annotation_value import BadAnnotation, Value, kind_of, read_value
from cri_proxy.text.sources import quote

QOS_LABEL = "koordinator.sh/qosClass"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"

_REQUIRED, _PREFERRED, _EXCLUSIVE = (
    "requiredCPUBindPolicy",
    "preferredCPUBindPolicy",
    "preferredCPUExclusivePolicy",
)
_NUMA_POLICY, _NUMA_EXCLUSIVE = "numaTopologyPolicy", "singleNUMANodeExclusive"

# What each key may be, and what is asked by it; None = nothing that is done here.
_QOS_CLASSES = {"LSE": "exclusive", "LSR": "exclusive", "LS": "", "BE": "", "SYSTEM": ""}
_BIND_POLICIES = {
    "FullPCPUs": "full-core",
    "SpreadByPCPUs": "spread",
    "Default": "",
    "ConstrainedBurst": None,
}
_EXCLUSIVE_POLICIES = {"None": "", "PCPULevel": "full-core", "NUMANodeLevel": None}
_NUMA_POLICIES = {"SingleNUMANode": "require", "BestEffort": "", "Restricted": None}
_NUMA_EXCLUSIVES = {"Preferred": None, "Required": None}


@dataclass
class KoordinatorAnnotation:
    """What one annotation or label asks; "" = nothing. ``notes``, ``refusals``: phrases about what is wrong."""

    value: str = ""
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def read_qos_class(text: str) -> KoordinatorAnnotation:
    """The ``ownership`` that a pod's class means."""
    said = KoordinatorAnnotation()
    said.value = _meaning(text, _QOS_CLASSES, "", said.notes)
    return said


def read_resource_spec(text: str) -> KoordinatorAnnotation:
    """The ``smt`` that a resource-spec means. A required policy that is not understood is a refusal."""
    said = KoordinatorAnnotation()
    spec = _object(text, _REQUIRED, said)
    unknown: list[str] = []
    required = _meaning(spec.get(_REQUIRED, ""), _BIND_POLICIES, _REQUIRED, said.notes, unknown)
    preferred = _meaning(spec.get(_PREFERRED, ""), _BIND_POLICIES, _PREFERRED, said.notes)
    exclusive = _meaning(spec.get(_EXCLUSIVE, ""), _EXCLUSIVE_POLICIES, _EXCLUSIVE, said.notes)
    said.refusals += unknown
    said.value = required or preferred or exclusive
    return said


def read_numa_spec(text: str) -> KoordinatorAnnotation:
    """The ``numa`` that a numa-topology-spec means. One that speaks of a single node and cannot be read is a refusal."""
    said = KoordinatorAnnotation()
    spec = _object(text, "SingleNUMANode", said)
    said.value = _meaning(spec.get(_NUMA_POLICY, ""), _NUMA_POLICIES, _NUMA_POLICY, said.notes)
    _meaning(spec.get(_NUMA_EXCLUSIVE, ""), _NUMA_EXCLUSIVES, _NUMA_EXCLUSIVE, said.notes)
    return said


def _object(text: str, demanding: str, said: KoordinatorAnnotation) -> dict[str, Any]:
    """The JSON object; what is none is a refusal if it holds the demanding word."""
    try:
        document = read_value(text)
        if not isinstance(document, dict):
            raise BadAnnotation(f"found {kind_of(document)}, expected a JSON object")
    except BadAnnotation as error:
        (said.refusals if demanding in text else said.notes).append(str(error))
        return {}
    return document


def _meaning(
    given: Value,
    meanings: Mapping[str, Optional[str]],
    key: str,
    notes: list[str],
    unknown: Optional[list[str]] = None,
) -> str:
    """What a value means; "" if nothing, with a phrase in ``notes`` (or ``unknown``) where it should mean something."""
    name = f"{key} " if key else ""
    if not isinstance(given, str) or given not in {*meanings, ""}:
        found = quote(given) if isinstance(given, str) else kind_of(given)
        (notes if unknown is None else unknown).append(
            f"{name}{found} is not understood, expected {in_words(meanings)}"
        )
        return ""
    meaning = meanings.get(given, "")
    if meaning is None:
        notes.append(f"{name}{given} is known, but there is nothing like it here")
    return meaning or ""
