"""The events our plugin subscribes to, by the host's release. Standard library only: a launched plugin needs it first.

A host closes the connection of a plugin that asks for an event it does not know; and "everything" (0) makes a plugin a
validator, whose silence fails creates. So the mask names each event, and fewer for older hosts.
"""

from __future__ import annotations

import re

#: The release of cri_api/nri_v1alpha1.proto. Hosts before 0.12 do not read the field it is sent in.
NRI_VERSION = "v0.12.2"
#: All valid events up to NRI 0.9, and from 0.10 (pkg/api/event.go, ValidEvents).
MASK_CLASSIC, MASK_ALL = 0x07FF, 0x3FFF

#: Events that place and follow containers: all but StartContainer, which PostStart follows, and validators'.
WANTED = 0x1FDF
#: StartContainer, wanted where something is done with processes that have not run yet.
STARTS = 0x0020
#: The first releases of runtimes with the events of NRI 0.10, by the runtime's own name.
_KNOWS_ALL = {"containerd": (2, 2), "cri-o": (1, 34)}
#: The first NRI in which a plugin's own UpdateContainers does not lock the runtime up.
_UPDATES_SAFE = (0, 12, 1)


def subscription(
    runtime_name: str, runtime_version: str, nri_version: str, refused: bool = False, has_starts: bool = False
) -> int:
    """The mask to answer Configure with.

    ``nri_version``: as a host from 0.12 on tells it; "" = it did not. ``refused``: the host has closed the
    connection over the mask before. ``has_starts``: the event before each start is wanted, too.
    """
    first = _KNOWS_ALL.get(runtime_name.lower())
    knows_all = _numbers(nri_version) >= (0, 10) or (
        first is not None and _numbers(runtime_version)[:2] >= first
    )
    wanted = WANTED | STARTS if has_starts else WANTED
    return wanted & (MASK_ALL if knows_all and not refused else MASK_CLASSIC)


def may_update_unasked(nri_version: str) -> bool:
    """Whether a plugin may call UpdateContainers by itself.

    Before NRI 0.12.1 the call and an event take two locks in opposite order, and both hang (containerd #13733).
    A host that does not tell its version is older.
    """
    return _numbers(nri_version) >= _UPDATES_SAFE


def _numbers(version: str) -> tuple[int, ...]:
    """``v2.2.0-rc.1`` as (2, 2, 0); () if it starts with no number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
