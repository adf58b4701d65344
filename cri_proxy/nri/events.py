"""The events of NRI: their bits and their names."""

from __future__ import annotations

from collections.abc import Iterable

from cri_api import nri_v1alpha1_pb2 as nri

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
