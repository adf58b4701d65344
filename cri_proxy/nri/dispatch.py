"""What a host of NRI plugins knows and decides: events and their calls, names, order, masks, pauses.

Sources: containerd/nri pkg/adaptation/plugin.go (calls, fallback), pkg/api/plugin.go (names, indices).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.subscription import MASK_ALL

_NAMES = {
    number: "".join(part.capitalize() for part in name.split("_")) for name, number in nri.Event.items()
}


def mask_of(events: Iterable[int]) -> int:
    """The bits of events."""
    mask = 0
    for event in events:
        mask |= 1 << (event - 1)
    return mask


def event_name(event: int) -> str:
    """``PostCreateContainer`` for POST_CREATE_CONTAINER: the event as its RPC is called; the number if it is unknown."""
    return _NAMES.get(event) or str(event)


_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")
#: Before 0.12 plugins had one call for all of these: StateChange.
_FALLS_BACK = frozenset(
    (
        nri.RUN_POD_SANDBOX,
        nri.POST_UPDATE_POD_SANDBOX,
        nri.STOP_POD_SANDBOX,
        nri.REMOVE_POD_SANDBOX,
        nri.POST_CREATE_CONTAINER,
        nri.START_CONTAINER,
        nri.POST_START_CONTAINER,
        nri.POST_UPDATE_CONTAINER,
        nri.REMOVE_CONTAINER,
    )
)
#: The first pause before a launched plugin that has ended is launched again, and the longest.
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0


@dataclass(frozen=True)
class Rpc:
    """How an event is told. ``has_fallback``: by StateChange, to a plugin that does not know the call."""

    method: str
    has_fallback: bool


def rpc_of(event: int) -> Rpc:
    """The call of an event. Its request is ``METHODRequest``, its reply ``METHODResponse``."""
    return Rpc(event_name(event), event in _FALLS_BACK)


def subscribes(mask: int, event: int) -> bool:
    """Whether a mask has an event's bit."""
    return bool(mask & (1 << (event - 1)))


def effective_mask(asked: int) -> tuple[int, int]:
    """What a plugin gets of the events it asks for, and the bits that stand for none; 0 asks for everything."""
    return (asked & MASK_ALL, asked & ~MASK_ALL) if asked else (MASK_ALL, 0)


def registration_problem(name: str, index: str) -> str:
    """Why a plugin cannot be called so, in NRI's own words; "" if it can."""
    if not name:
        return "invalid (empty) plugin name"
    odd = next((character for character in name if not _NAME.fullmatch(character)), "")
    if odd:
        reason = f"contains invalid character '{odd}'"
        return f'invalid plugin name: invalid plugin name "{name}": {reason}'
    if len(index) != 2:
        return f'invalid plugin index: invalid plugin index "{index}", must be 2 digits'
    if not _INDEX.fullmatch(index):
        return f'invalid plugin index: invalid plugin index "{index}" (not [0-9][0-9])'
    return ""


def is_meant(patterns: Iterable[str], index: str, name: str) -> bool:
    """Whether one of the names or globs is a plugin's, with its index or without."""
    return any(fnmatchcase(name, p) or fnmatchcase(f"{index}-{name}", p) for p in patterns)


def missing(required: Iterable[str], connected: Iterable[tuple[str, str]]) -> list[str]:
    """Those of the required plugins, ``NAME`` or ``NN-NAME``, that none of the connected, (index, name), is."""
    present = {called for index, name in connected for called in (name, f"{index}-{name}")}
    return [wanted for wanted in required if wanted not in present]


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** max(0, failures - 1), MOST_PAUSE_S)
