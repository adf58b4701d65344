"""Which claims of CPUs a container has, by its request and by what a runtime shows of it. cri_api/claims.py has the names.

The CDI devices of a request are kubelet's, which puts there what the container's claims were given. A pod's author writes
the environment: it counts only where a runtime tells no CDI devices, and the engine knows a claim's namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cri_api.claims import VARIABLE, claims_of

#: How the keys of annotations begin that have names of CDI devices, as kubelet wrote them before CRI had a field.
CDI_ANNOTATION = "cdi.k8s.io/"


def cdi_names(devices: Iterable[str], annotations: Mapping[str, str]) -> list[str]:
    """The CDI devices of a container: those of its field, and those of its annotations."""
    names = list(devices)
    for key, text in annotations.items():
        if key.startswith(CDI_ANNOTATION):
            names += text.split(",")
    return names


def asked_claims(devices: Iterable[str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the claims that a request names; sorted."""
    names = cdi_names(devices, annotations)
    return claims_of(names, {}) if names else ()


def shown_claims(
    devices: Iterable[str], annotations: Mapping[str, str], environment: Iterable[str]
) -> tuple[str, ...]:
    """As ``asked_claims``, of a runtime that may show no CDI devices of a container: then by ``environment``, whose entries
    are ``NAME=VALUE``."""
    names = cdi_names(devices, annotations)
    if names:
        return claims_of(names, {})
    brought = dict(
        entry.split("=", 1) for entry in environment if entry.startswith(VARIABLE) and "=" in entry
    )
    return claims_of((), brought) if brought else ()
