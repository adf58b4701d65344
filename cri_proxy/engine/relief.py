"""Containers that have less than is theirs while there is room: where they have all of it again. A transition of the engine.

Two kinds of containers that share CPUs are moved: one that has fewer CPUs than its limit, since others have taken theirs;
and one that is squeezed, placed at a wider level than its own when there was no room (``Placement.squeezed``). Each is moved
once, to a place that has all it may use, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Optional

from cri_proxy.engine.model import ContainerRecord
from cri_proxy.engine.moves import being_resized, may_move
from cri_proxy.engine.reconcile import keep_memory, placed, reconcile
from cri_proxy.engine.state import State
from policies.model import BudgetSpent, Decision, PlacementRefused, wanted_milli

#: How long a container that was moved stays where it is, in seconds.
REST_S = 60.0
#: Each costs a decision, half a millisecond.
TRIES = 16


def relieve(state: State, now_s: float) -> int:
    """Move containers that can have more of what is theirs elsewhere; asked every few seconds. Returns how many were moved,
    at most ``placement.max_moves``: there may be more. Tries TRIES kinds of them, and the others the next time."""
    moved = tried = 0
    # What is in vain for one is so for others like it, until all have been tried once.
    in_vain = state.beyond_relief
    for grant in list(_lacking(state, now_s)) if state.max_moves else ():
        if moved == state.max_moves or tried == TRIES:
            break
        container = grant.container
        kind = (
            wanted_milli(container),
            container.qos,
            container.preferences,
            grant.constraint.cpus,
            grant.placement.home,
        )
        if kind in in_vain:
            continue
        tried += 1
        decision = _better(state, grant)
        if decision is None:
            in_vain.add(kind)
            continue
        place = keep_memory(state, grant.placement, decision.placement, grant.constraint)
        now = replace(placed(grant, place, f"{_why(grant)}: {decision.why}"), moved_s=now_s)
        state.put(now)
        state.record("mend", grant.key, now, now_s)
        moved += 1
    else:
        in_vain.clear()
    if moved:
        reconcile(state)
    return moved


def has_too_few(grant: ContainerRecord) -> bool:
    """Whether a container shares fewer CPUs than it may use; one thread a core is what it has asked for."""
    place = grant.placement
    return not place.one_thread and len(place.cpus) * 1000 < wanted_milli(grant.container)


def _lacking(state: State, now_s: float) -> Iterator[ContainerRecord]:
    """The containers that may be moved and lack something, those with the fewest CPUs of what they want first."""
    lacking = [g for g in state.grants.values() if g.placement.squeezed or has_too_few(g)]
    if not lacking:
        return
    resized = being_resized(state)
    lacking.sort(key=lambda g: (len(g.cpus) * 1000 - wanted_milli(g.container), g.since_s, g.key))
    for grant in lacking:
        rests = grant.moved_s and now_s - grant.moved_s < REST_S
        if not rests and may_move(state, grant, resized):
            yield grant


def _better(state: State, grant: ContainerRecord) -> Optional[Decision]:
    """Where the container has all CPUs that it may use, in its smallest domain if it is squeezed; None = nowhere."""
    # One that had to share goes on sharing: it takes no CPUs from others by itself.
    preferences = replace(grant.container.preferences, ownership="shared")
    container = replace(grant.container, preferences=preferences)
    with state.without([grant.key]):
        request = state.request(
            grant.container, grant.constraint, grant.key, near=grant.placement.home or None
        )
        try:
            decision = state.place(replace(request, container=container))
        except (PlacementRefused, BudgetSpent):
            return None
        if state.is_kept_worse(grant.container, decision.placement.cpus, grant.cpus):
            return None
    place = decision.placement
    has_all = len(place.cpus) * 1000 >= wanted_milli(grant.container)
    is_better = not place.squeezed or (has_too_few(grant) and not grant.placement.squeezed)
    if not decision.fits or not has_all or not is_better or decision.others or place.exclusive:
        return None
    return decision


def _why(grant: ContainerRecord) -> str:
    if grant.placement.squeezed:
        return "squeezed no more, there is room again"
    return f"it had {len(grant.cpus)} of the {wanted_milli(grant.container) / 1000:g} CPUs it may use"
