"""What the runtime has to be told of a grant that has changed, and whether it comes before other things or after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from cri_proxy.engine.records import CpusetUpdate, Grant, Life, Stance
from policies.model import UNTOUCHED, Placement, Quota, altered

#: The containers that can be told anything.
LIVING = (Life.CREATED, Life.RUNNING)
#: Why one has other CPUs whose record gives no reason of its own.
SHARED_CPUS = "CPUs of its domain came or went"
_PLAIN = CpusetUpdate("", UNTOUCHED, False, SHARED_CPUS)


def has_changed(was: Grant, now: Grant) -> bool:
    """Whether the runtime has to be told: of our own cpuset and quota, or of what is left to an adopted container."""
    place, before = now.placement, was.placement
    if place is before and now.stance is was.stance is Stance.PLACED:
        return False
    if now.lifted != was.lifted:
        return True
    if now.stance is was.stance is Stance.PLACED:
        # Many have one set, before and after.
        is_same = place.cpus is before.cpus or place.cpus == before.cpus
        return not is_same or place.mems != before.mems
    if now.stance is Stance.PLACED:
        # Where it ran without a place of ours is not known for sure: its cpuset may hold CPUs that were offline then.
        is_back = was.stance is Stance.UNTOUCHED
        return is_back or now.cpus != was.cpus or now.placement.mems != was.placement.mems
    return now.stance is Stance.ADOPTED and now.runs_on != was.runs_on


def update_of(was: Grant, now: Grant) -> CpusetUpdate:
    """What the runtime has to be told of a grant that has changed."""
    place = now.placement
    if now.stance is not Stance.PLACED:
        place = Placement(cpus=now.runs_on) if now.stance is Stance.ADOPTED else UNTOUCHED
    why = now.why
    if now.why == was.why:
        why = SHARED_CPUS if was.cpus != now.cpus else "memory nodes came or went"
        if now.lifted != was.lifted:
            why = "its CPU quota is lifted" if now.lifted else "its CPU quota is not lifted any more"
    # Where it runs while it has no place of ours is not known for sure: it is then told first.
    shrink = not was.cpus <= now.cpus or was.stance is Stance.UNTOUCHED
    return CpusetUpdate(now.key, place, shrink, why, given_back(was, now), was.cpus, was.placement.mems)


def updates_of(pairs: Iterable[tuple[Grant, Grant]]) -> tuple[CpusetUpdate, ...]:
    """What the runtime has to be told of containers there are, each as it was and as it is; those that lose CPUs come first.

    Many share one set before, and one after: these two are compared once.
    """
    updates: list[CpusetUpdate] = []
    losses: dict[tuple[int, int], Optional[bool]] = {}
    for was, now in pairs:
        if now is was or now.life not in LIVING:
            continue
        before, place = was.placement, now.placement
        is_plain = now.stance is was.stance is Stance.PLACED and now.why is was.why
        if not is_plain or before.mems is not place.mems or before.lift_quota != place.lift_quota:
            if has_changed(was, now):
                updates.append(update_of(was, now))
            continue
        # Neither set goes away while it is compared: both are in these records.
        sets = id(before.cpus), id(place.cpus)
        if sets not in losses:
            losses[sets] = None if before.cpus == place.cpus else not before.cpus <= place.cpus
        shrink = losses[sets]
        if shrink is not None:
            runs_on, memory_on = before.cpus, before.mems
            updates.append(
                altered(
                    _PLAIN, id=now.key, placement=place, shrink=shrink, runs_on=runs_on, memory_on=memory_on
                )
            )
    return tuple(sorted(updates, key=lambda u: (not u.shrink, u.id)))


def given_back(was: Grant, now: Grant) -> Optional[Quota]:
    """The CPU quota that a container has lost by us and gets back with this change."""
    return now.quota if was.lifted and not now.lifted else None
