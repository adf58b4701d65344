"""Mending what must never be: records that contradict each other, or a container that is left with no CPU at all.

Found by the next comparison after it came about, by a bug, an older version or a switch of the policy. Only containers
that are involved are placed anew; all others stay where they are. A part of the engine's transitions.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Optional

from cri_proxy.engine.invariants import (
    broken_invariants,
    broken_placement,
    crowded_by,
    crowded_out,
    rival_claims,
)
from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.moves import being_resized
from cri_proxy.engine.recompute import keep_memory, placed, refresh
from cri_proxy.engine.records import Grant, Life, Stance, resident_of
from policies.exclusive.sparing import emptied_by
from policies.machine.cpus import format_cpus
from policies.model import BudgetSpent, Placement, PlacementRefused


def mend(ledger: Ledger, now_s: float) -> tuple[str, ...]:
    """Mend what must never be (``invariants.py``): asked after each comparison with the runtime. Mostly nothing.

    Returns what was broken, in sentences; what could not be mended is broken still.
    """
    broken, crowded = broken_invariants(ledger), crowded_out(ledger)
    if not broken and not crowded:
        return ()
    if broken:
        _reckon_anew(ledger)
        refresh(ledger, force=True)
        _part(ledger, now_s)
    if crowded_out(ledger):
        _give_way(ledger, now_s)
    return (*broken, *crowded)


def _reckon_anew(ledger: Ledger) -> None:
    """Tickets and containers on their way come in pairs, and the accounts are those of the records."""
    for ticket in [t for t in ledger.tickets.values() if t.key not in ledger.grants]:
        ledger.drop_ticket(ticket.id)
    pending = {ticket.key for ticket in ledger.tickets.values()}
    for key in [k for k, g in ledger.grants.items() if g.life is Life.CREATING and k not in pending]:
        ledger.drop(key)
    ledger.node = ledger.new_node(ledger.host)
    for grant in ledger.grants.values():
        ledger.node.add(grant.key, resident_of(grant))


def _part(ledger: Ledger, now_s: float) -> None:
    """Of containers that own the same CPUs all but one get others; one that is where it may not be is placed anew."""
    resized = being_resized(ledger)
    for key, theirs in rival_claims(ledger).items():
        grant = ledger.grants[key]
        if key in resized:
            continue  # it is one place when the resize has ended
        left = replace(grant.placement, exclusive=grant.placement.exclusive - theirs)
        if grant.stance is Stance.ADOPTED:
            ledger.put(replace(grant, placement=left))
        else:
            _place_anew(
                ledger, grant, left, f"CPUs {format_cpus(theirs)} were another container's too", now_s
            )
    refresh(ledger, force=True)
    for grant in list(ledger.grants.values()):
        wrong = broken_placement(ledger, grant) if grant.stance is Stance.PLACED else []
        if wrong and grant.key not in resized:
            _place_anew(ledger, grant, None, wrong[0], now_s)
    refresh(ledger, force=True)


def _place_anew(
    ledger: Ledger, grant: Grant, keep: Optional[Placement], why: str, now_s: float, spares: bool = False
) -> Optional[Grant]:
    """Put a container where the policy has it now; None if that finds nothing, or (``spares``) takes another's last CPU."""
    with ledger.without([grant.key]):
        near = grant.placement.home or None
        try:
            decision = ledger.place(
                ledger.request(grant.container, grant.fence, grant.key, near=near, keep=keep)
            )
        except (PlacementRefused, BudgetSpent):
            return None
        if spares and emptied_by(ledger.node, decision.placement.exclusive - grant.exclusive):
            return None
    if not decision.placement.cpus or decision.others:
        return None
    place = keep_memory(ledger, grant.placement, decision.placement, grant.fence)
    now = placed(grant, place, f"{why}: {decision.why}")
    ledger.put(now)
    ledger.record("mend", grant.key, now, now_s)
    return now


def _give_way(ledger: Ledger, now_s: float) -> None:
    """The owner of the last CPU of a container that can go nowhere else takes another one for it, if one is free."""
    # What one gives up may be what another one needs: until nothing changes, and each container once at most.
    helped: set[str] = set()
    while (needy := _helped(ledger, helped, now_s)) is not None:
        helped.add(needy.key)
        if needy.stance is Stance.UNTOUCHED and _who(needy) not in ledger.distrusted:
            _place_anew(ledger, needy, None, "there are CPUs for it again", now_s)
        refresh(ledger)


def _helped(ledger: Ledger, but: Set[str], now_s: float) -> Optional[Grant]:
    """A container that an owner has given way to just now; None if there is none that can be helped."""
    for key, owners in crowded_by(ledger).items():
        if key in but or ledger.grants[key].life is Life.CREATING:  # what it gets is decided when it is there
            continue
        for owner in sorted(owners & ledger.grants.keys()):
            if _swaps(ledger, ledger.grants[owner], ledger.grants[key], now_s):
                return ledger.grants[key]
    return None


def _swaps(ledger: Ledger, owner: Grant, needy: Grant, now_s: float) -> bool:
    """Whether an owner could give one CPU of those that another container needs, and get one for it."""
    place = owner.placement
    if owner.stance is not Stance.PLACED or place.group or owner.key in being_resized(ledger):
        return False
    for cpu in sorted(place.exclusive & needy.runs_on, reverse=True):
        keep = replace(
            place,
            exclusive=place.exclusive - {cpu},
            grown=tuple(step for step in (g - {cpu} for g in place.grown) if step),
        )
        why = f"CPU {cpu} is needed by {needy.container.path}, which may run nowhere else"
        crowded = len(crowded_by(ledger))
        now = _place_anew(ledger, owner, keep, why, now_s, spares=True)
        if now is None:
            continue
        is_whole = len(now.exclusive) == len(owner.exclusive) and cpu not in now.exclusive
        if is_whole and len(crowded_by(ledger)) < crowded:
            return True
        ledger.put(owner)
    return False


def _who(grant: Grant) -> tuple[str, str]:
    return grant.container.pod.uid, grant.container.name
