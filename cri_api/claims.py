"""The names by which a claim of CPUs reaches a container: of CDI devices, and of the environment that these bring.

Kubelet writes the CDI names of a container's claims into ``CreateContainer``. A runtime that tells its NRI plugins of no
CDI names, and one that is looked at later, shows the environment variable that the CDI device has brought.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Optional

#: The kind of our CDI devices (vendor/class of the CDI specification), and where claims' keys begin.
CDI_KIND = "cri-resmgr.io/cpu"
CLAIM = "claim/"
#: The beginning of the variable's name; its value is the part's name.
VARIABLE = "CRI_RESMGR_CLAIM_"

#: A UID of Kubernetes' and, after "_", a request's name; subrequests are written with "." for "/".
_PART = re.compile(r"([0-9A-Za-z-]{1,63})_([0-9A-Za-z.-]{1,127})")


def part_name(uid: str, request: str) -> str:
    """The name of what one request of a claim has been given: a CDI device's name."""
    return f"{uid}_{request.replace('/', '.')}"


def read_part(name: str) -> Optional[tuple[str, str]]:
    """The claim's UID and the request in a part's name; None: it is none."""
    found = _PART.fullmatch(name)
    return None if found is None else (found[1], found[2])


def claim_key(part: str) -> str:
    """The key of a part among the places of containers."""
    return CLAIM + part


def is_claim(key: str) -> bool:
    """Whether a key is of a claim's part, and of no container."""
    return key.startswith(CLAIM)


def cdi_device(part: str) -> str:
    """The qualified name of a part's CDI device."""
    return f"{CDI_KIND}={part}"


def variable(part: str) -> str:
    """The environment variable that a part's CDI device brings: ``NAME=VALUE``. No two parts have one name: a container
    has one value of each."""
    name = "_or_".join(re.sub("[^0-9A-Z]", "_", piece.upper()) for piece in part.split("."))
    return f"{VARIABLE}{name}={part}"


def claims_of(cdi_devices: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the claims' parts that a container has, by the CDI devices of its request or its environment; sorted.

    Names that are not ours are passed over.
    """
    parts = {name[len(CDI_KIND) + 1 :] for name in cdi_devices if name.startswith(f"{CDI_KIND}=")}
    parts |= {value for name, value in environment.items() if name.startswith(VARIABLE)}
    return tuple(sorted(claim_key(part) for part in parts if read_part(part) is not None))
