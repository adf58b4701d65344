"""What the runtime was told of each container last, and what it is still to be told: the difference from its record.

A transition changes records and no more. Whom that concerns is found here, by comparing each record that has changed with
what its container was told: level-triggered, as kubelet and controllers are. What was told is not written down: a daemon
that starts takes the places in its records for told, and the first comparison with the runtime finds out what is not so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.records import CpusetUpdate, Grant, Life, Stance, Told
from policies.machine.cpus import NO_CPUS
from policies.model import UNTOUCHED, Placement

#: The containers that can be told anything.
LIVING = (Life.CREATED, Life.RUNNING)
#: Why one has other CPUs whose record gives no reason of its own.
SHARED_CPUS = "CPUs of its domain came or went"


def place_to_tell(grant: Grant) -> Optional[Placement]:
    """What a container should have; None where that is not ours to say: what it has stays, but for a quota it is owed."""
    if grant.stance is Stance.PLACED:
        return grant.placement
    if grant.stance is Stance.ADOPTED:
        return Placement(cpus=grant.runs_on)
    if grant.stance is Stance.RELEASED:
        mems = grant.runs_on_mems if grant.placement.mems else NO_CPUS
        return Placement(cpus=grant.runs_on, mems=mems)
    return None


def told_by(grant: Grant, told: Optional[Told] = None) -> Told:
    """What a container has that has what its record says; ``told``: what it had before, where that says more."""
    place = place_to_tell(grant)
    if place is None:
        return (
            Told(grant.runs_on) if told is None else told._replace(is_lifted=False, why=grant.why, cause="")
        )
    mems = place.mems or (NO_CPUS if told is None else told.mems)
    return Told(place.cpus, mems, grant.lifted, grant.why)


def update_of(grant: Grant, told: Told) -> Optional[CpusetUpdate]:
    """What the runtime is to be told of a container; None = it has what it should have."""
    place, is_lifted = place_to_tell(grant), grant.lifted
    is_there = place is None or (
        (place.cpus is told.cpus or place.cpus == told.cpus) and (not place.mems or place.mems == told.mems)
    )
    if is_there and is_lifted == told.is_lifted:
        return None
    give_back = grant.quota if told.is_lifted and not is_lifted else None
    if place is None and give_back is None:
        return None
    place = UNTOUCHED if place is None or (is_there and grant.stance is not Stance.PLACED) else place
    has_cpus = told.cpus is not None and told.cpus == place.cpus
    # Where it runs is not known for sure: it is told first.
    shrink = bool(place.cpus) and (told.cpus is None or not told.cpus <= place.cpus)
    why = told.cause or grant.why
    if not told.cause and grant.why == told.why:
        why = "memory nodes came or went" if has_cpus else SHARED_CPUS
        if is_lifted != told.is_lifted:
            why = "its CPU quota is lifted" if is_lifted else "its CPU quota is not lifted any more"
    return CpusetUpdate(grant.key, place, shrink, why, give_back, told.cpus or NO_CPUS, told.mems)


def still_to_tell(ledger: Ledger) -> list[CpusetUpdate]:
    """The updates that containers lack, in no order."""
    found: list[CpusetUpdate] = []
    for key in list(ledger.unsettled):
        grant = ledger.grants.get(key)
        told = ledger.told.get(key)
        if grant is None or told is None or grant.life not in LIVING:
            ledger.unsettled.discard(key)
            continue
        update = update_of(grant, told)
        if update is None:
            _settle(ledger, grant, told)
        else:
            found.append(update)
    return found


def _settle(ledger: Ledger, grant: Grant, told: Told) -> None:
    """A container has what its record says, as it has been told or was found."""
    ledger.tell(grant.key, told_by(grant, told))
    ledger.unsettled.discard(grant.key)


def _waiting(ledger: Ledger) -> set[str]:
    """The containers that gain nothing before a request has ended: one about them, or one by which they gain."""
    found = {key for ticket in ledger.tickets.values() for key in ticket.waiting}
    return found.union(ticket.target for ticket in ledger.tickets.values() if not ticket.in_doubt)


def hand_out(
    ledger: Ledger, which: Callable[[CpusetUpdate], bool] = lambda update: True
) -> tuple[CpusetUpdate, ...]:
    """The updates to send now; they count as told. Those that lose CPUs come first.

    A container that only gains waits for the request that it gains by, or that is about it, if there is one under way.
    """
    if not ledger.unsettled:
        return ()
    waiting = _waiting(ledger)
    updates = [
        update
        for update in still_to_tell(ledger)
        if which(update) and (update.shrink or update.id not in waiting)
    ]
    for update in updates:
        _settle(ledger, ledger.grants[update.id], ledger.told[update.id])
    return tuple(sorted(updates, key=lambda update: (not update.shrink, update.id)))
