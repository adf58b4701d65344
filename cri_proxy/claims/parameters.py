"""The parameters of a claim: the opaque configuration of a device class or a claim, typed.

    apiVersion: cpu.cri-resmgr.io/v1alpha1
    kind: CpuParameters
    smt: full-core | hide | any         whole cores only; of each core one thread runs; as it comes
    l3: one | few | spread              all CPUs in one L3; in as few as can be; over many
    memory: pin | prefer                its containers' memory comes from their NUMA nodes alone; or from there first
    isolation: protected | standard | batch

A key or value that is not known is refused by name: a misspelt wish that is passed over is seen only when it hurts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from policies.frozen import frozen
from policies.model import PlacementPreferences

API_VERSION, KIND = "cpu.cri-resmgr.io/v1alpha1", "CpuParameters"
#: What a key may be. Of ``l3`` the words of annotations stand beside.
SMT = ("full-core", "hide", "any")
L3_WAYS: Mapping[str, str] = {"one": "require", "few": "prefer", "spread": "spread"}
MEMORY = ("pin", "prefer")
ISOLATION = ("protected", "standard", "batch")
VALUES: Mapping[str, tuple[str, ...]] = {
    "smt": SMT,
    "l3": tuple(L3_WAYS),
    "memory": MEMORY,
    "isolation": ISOLATION,
}
_TEXT_CHARS = 60


class BadParameters(ValueError):
    """Parameters that cannot be read. The message is a sentence that names the place."""


@frozen
class CpuParameters:
    """What is asked of the CPUs of a claim. "" = not said."""

    smt: str = ""
    l3: str = ""
    memory: str = ""
    isolation: str = ""

    def preferences(self) -> PlacementPreferences:
        """The same as a container's annotations would say it, which owns its CPUs in any case."""
        return PlacementPreferences(
            ownership="exclusive",
            l3=L3_WAYS.get(self.l3, ""),
            smt=self.smt,
            isolation_class=self.isolation,
            memory=self.memory,
        )


@frozen
class ParametersEntry:
    """Parameters and the names of the requests that they are for; none = all of the claim."""

    requests: tuple[str, ...]
    parameters: CpuParameters

    def is_for(self, request: str) -> bool:
        """Whether it is about a request; ``REQUEST/SUBREQUEST`` is one that was chosen of several."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


def read_parameters(value: Any, where: str) -> CpuParameters:
    """The parameters that an opaque configuration has.

    :raises BadParameters: it is no such document; ``where`` it stands is in the sentence.
    """
    if not isinstance(value, Mapping):
        raise BadParameters(f"{where} is {_shown(value)}, expected an object with apiVersion and kind")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if value.get(key) != wanted:
            raise BadParameters(f"{where}.{key} is {_shown(value.get(key))}, expected {wanted}")
    unknown = sorted(str(key) for key in value if key not in (*VALUES, "apiVersion", "kind"))
    if unknown:
        raise BadParameters(f"{where} has the unknown key {_shown(unknown[0])}, expected {', '.join(VALUES)}")
    for key, words in VALUES.items():
        if key in value and value[key] not in words:
            expected = f"{', '.join(words[:-1])} or {words[-1]}"
            raise BadParameters(f"{where}.{key} is {_shown(value[key])}, expected {expected}")
    return CpuParameters(**{key: value.get(key, "") for key in VALUES})


def parameters_for(entries: Iterable[ParametersEntry], request: str) -> CpuParameters:
    """What counts for a request: of several entries the later one, key by key."""
    found = CpuParameters()
    for entry in entries:
        if entry.is_for(request):
            said = {key: text for key in VALUES if (text := getattr(entry.parameters, key))}
            found = replace(found, **said)
    return found


def _shown(value: Any) -> str:
    text = (
        repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    )
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 3]}..."
