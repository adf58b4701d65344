"""What the runtime was told of each container last, and what it is still to be told: the difference from its record.

A transition changes records and no more. Whom that concerns is found here, by comparing each record that has changed with
what its container was told: level-triggered, as kubelet and controllers are. One sender carries it out
(services/updates.py): ``begin`` has the update that goes out now, and ``took``, ``refused`` or ``unanswered`` says how that
has ended. What was told is not written down: a daemon that starts takes the places in its records for told, and the first
comparison with the runtime finds out what is not so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.engine.model import (
    UNKNOWN_QUOTA,
    Begun,
    ContainerRecord,
    CpusetUpdate,
    Life,
    Management,
    Told,
)
from cri_proxy.engine.state import State
from policies.machine.cpus import NO_CPUS
from policies.model import UNTOUCHED, Placement

#: The containers that can be told anything.
LIVING = (Life.CREATED, Life.RUNNING)
#: Why one has other CPUs whose record gives no reason of its own.
SHARED_CPUS = "CPUs of its domain came or went"
#: Why one that demand has made small is given the set of its limit: that is sent in every mode.
GIVEN_BACK = "its cpuset is not sized by usage any more"
#: Why one is told again what it has.
IN_PART = "an update that the runtime refused may have been made in part"
#: A container of which the runtime says nothing twice running: others do not wait for it any longer.
NO_ANSWER = "the runtime does not answer"


def place_to_tell(grant: ContainerRecord) -> Optional[Placement]:
    """What a container should have; None where that is not ours to say: what it has stays, but for a quota it is owed."""
    if grant.stance is Management.PLACED:
        return grant.placement
    if grant.stance is Management.ADOPTED:
        return Placement(cpus=grant.runs_on)
    if grant.stance is Management.RELEASED:
        mems = grant.runs_on_mems if grant.placement.mems else NO_CPUS
        return Placement(cpus=grant.runs_on, mems=mems)
    return None


def _wanted(grant: ContainerRecord, told: Optional[Told], gives_back: bool) -> Optional[Placement]:
    """The same where nothing but what gives back is sent (``gives_back``): mode observe, or off."""
    if gives_back and grant.stance is not Management.RELEASED and (told is None or told.cause != GIVEN_BACK):
        return None
    return place_to_tell(grant)


def told_by(grant: ContainerRecord, told: Optional[Told] = None, gives_back: bool = False) -> Told:
    """What a container has that has what its record says; ``told``: what it had before, where that says more."""
    place = _wanted(grant, told, gives_back)
    if place is None:
        if told is None:
            return Told(grant.runs_on)
        # What is taken back in every mode is only a quota that was raised.
        is_lifted = gives_back and told.is_lifted
        return told._replace(is_lifted=is_lifted, why=grant.why, cause="", refused="", turbo_us=0)
    mems, ignores = (NO_CPUS, False) if told is None else (told.mems, told.ignores_mems)
    return Told(
        place.cpus,
        place.mems or mems,
        grant.lifted,
        grant.why,
        owned=grant.own,
        ignores_mems=ignores,
        turbo_us=_raised_us(grant, gives_back),
    )


def _raised_us(grant: ContainerRecord, gives_back: bool) -> int:
    """The quota that a container should have instead of its own; 0 = its own, as in mode observe, or off."""
    return 0 if gives_back else grant.raised_us


def update_of(grant: ContainerRecord, told: Told, gives_back: bool = False) -> Optional[CpusetUpdate]:
    """What the runtime is to be told of a container; None = it has what it should have."""
    place, is_lifted = _wanted(grant, told, gives_back), grant.lifted
    is_there = place is None or (
        (place.cpus is told.cpus or place.cpus == told.cpus)
        and (not place.mems or place.mems == told.mems or told.ignores_mems)
        and told.is_sure
    )
    raised_us = _raised_us(grant, gives_back)
    is_raised = raised_us != told.turbo_us
    if is_there and is_lifted == told.is_lifted and not is_raised:
        return None
    give_back = grant.quota if (told.is_lifted or is_raised) and not is_lifted else None
    if give_back is not None and raised_us:
        give_back = replace(give_back, quota_us=raised_us)
    if place is None and (give_back is None or (gives_back and not is_raised)):
        return None
    place = UNTOUCHED if place is None or (is_there and grant.stance is not Management.PLACED) else place
    has_cpus = told.cpus is not None and told.cpus == place.cpus
    # Where it runs is not known for sure: it is told first.
    is_known = told.cpus is not None and told.is_sure and told.cpus <= place.cpus
    why = told.cause or grant.why
    if not told.cause and grant.why == told.why:
        why = "memory nodes came or went" if has_cpus else SHARED_CPUS
        if is_lifted != told.is_lifted:
            why = "its CPU quota is lifted" if is_lifted else "its CPU quota is not lifted any more"
        elif is_raised:
            why = "its CPU quota is raised for a while" if raised_us else "its CPU quota is its own again"
    return CpusetUpdate(grant.key, place, bool(place.cpus) and not is_known, why, give_back)


# ---------------------------------------------------------------------- what is still to be told


def _living(state: State, key: str) -> Optional[tuple[ContainerRecord, Told]]:
    """The record of a container that can be told anything, and what it was told; None = there is none."""
    grant, told = state.grants.get(key), state.told.get(key)
    return None if grant is None or told is None or grant.life not in LIVING else (grant, told)


def lacking(state: State, gives_back: bool = False) -> list[CpusetUpdate]:
    """The updates that containers lack, in no order; those that are on their way, or what follows them, included."""
    found: list[CpusetUpdate] = []
    for key in {*state.unsettled, *state.under_way}:
        if (both := _living(state, key)) is None:
            _forget(state, key)
            continue
        grant, told = both
        begun = state.under_way.get(key)
        told = told if begun is None else begun.has
        known = state.updates.get(key)
        if known is not None and known[0] is grant and known[1] is told and known[2] is gives_back:
            found.append(known[3])
            continue
        update = update_of(grant, told, gives_back)
        if update is not None:
            state.updates[key] = grant, told, gives_back, update
            found.append(update)
        elif begun is not None:
            found.append(begun.update)
        elif not gives_back:
            state.tell(key, told_by(grant, told))
            _forget(state, key)
    return found


def lacks(state: State, key: str, gives_back: bool = False) -> bool:
    """Whether one container has not what it should."""
    both = _living(state, key)
    if both is None or key in state.under_way:
        return both is not None
    return key in state.unsettled and update_of(*both, gives_back) is not None


def any_lacks(state: State, gives_back: bool = False, but: Container[str] = ()) -> bool:
    """Whether any container lacks something but for some: most changes concern none but their own, which its request
    tells."""
    for key in tuple(state.unsettled):
        if key in but or key in state.under_way:
            continue
        if lacks(state, key, gives_back):
            return True
        if not gives_back:
            settle(state, key)
            _forget(state, key)
    return False


def gaining(state: State, keys: Iterable[str]) -> list[str]:
    """Those of some containers that are to be told of CPUs that they gain, and lose none."""
    grants, under_way = state.grants, state.under_way
    found = []
    for key in keys:
        grant, told = grants.get(key), state.told.get(key)
        if grant is None or told is None or grant.life not in LIVING:
            continue
        told = under_way[key].has if key in under_way else told
        cpus = grant.placement.cpus if grant.stance is Management.PLACED else grant.runs_on
        if told.cpus is None or not told.cpus <= cpus:  # most lose some
            continue
        update = update_of(grant, told)
        if update is not None and not update.shrink:
            found.append(key)
    return found


def settle(state: State, key: str) -> None:
    """A request has told a container what it has: where that is what it should have, no other cause counts any more."""
    is_known = key in state.grants and key in state.told and key not in state.under_way
    if is_known and not differs(state, key):
        state.tell(key, told_by(state.grants[key], state.told[key]))
        _forget(state, key)


def differs(state: State, key: str) -> bool:
    """Whether a container has not what it should, also one that is told nothing now: a request about it is on its way."""
    grant, told = state.grants.get(key), state.told.get(key)
    return grant is not None and told is not None and update_of(grant, told) is not None


def _forget(state: State, key: str) -> None:
    state.unsettled.discard(key)
    state.updates.pop(key, None)


def pending(state: State, gives_back: bool = False) -> list[CpusetUpdate]:
    """The updates that may go out now, those that lose CPUs first.

    Not those of containers with one on its way; nor of one that only gains, as long as a request is on its way that it
    gains by, or that is about it; nor of one that gains CPUs which others own, or gains them for itself, as long as those
    are to leave them. A container whose update was refused is waited for no more.
    """
    if not state.unsettled:
        return []
    updates = [u for u in lacking(state, gives_back) if u.id not in state.under_way]
    waiting, asked = _waiting(state)
    free = [u for u in updates if u.id not in waiting or (u.shrink and u.id not in asked)]
    leaving, owned = _left_behind(state, updates)
    ready = [u for u in free if not _is_held(state, u, leaving, owned)] if leaving else free
    # Owners that wait for each other would wait for ever.
    ready = ready if ready or state.under_way else free
    return sorted(ready, key=lambda update: (not update.shrink, update.id))


def _waiting(state: State) -> tuple[set[str], set[str]]:
    """The containers that gain nothing before a request has ended: one about them, or one by which they gain.

    And those of which it is not known what they have until then: a resize and an update of ours have passed each other.
    """
    targets = {ticket.target for ticket in state.tickets.values() if not ticket.in_doubt}
    keys = {key for ticket in state.tickets.values() for key in ticket.waiting}
    unsure = {key for key in targets if key in state.told and not state.told[key].is_sure}
    return keys | targets, unsure


def _leavers(state: State, keys: Iterable[str]) -> Iterator[tuple[str, frozenset[int], frozenset[int]]]:
    """Those of some containers that may still be on CPUs which they are to leave, with those, and what of them they own."""
    for key in keys:
        both = _living(state, key)
        place = None if both is None else place_to_tell(both[0])
        if both is None or place is None:
            continue
        told = both[1]
        on = state.node.usable if told.cpus is None else told.cpus
        begun = state.under_way.get(key)
        if begun is not None and begun.has.cpus is not None:
            on = on | begun.has.cpus
        if left := on - place.cpus:
            yield key, left, told.owned - place.cpus


def _left_behind(state: State, updates: list[CpusetUpdate]) -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs that containers are to leave, and those of them that they have owned."""
    left, owned = NO_CPUS, NO_CPUS
    seen: set[tuple[int, int, int]] = set()
    for update in updates:
        told, cpus = state.told[update.id], update.placement.cpus
        signs = id(told.cpus), id(cpus), id(told.owned)
        if not update.shrink or told.refused or signs in seen:  # many leave the same
            continue
        seen.add(signs)
        left = left | ((state.node.usable if told.cpus is None else told.cpus) - cpus)
        owned = owned | (told.owned - cpus)
    for key, cpus, own in _leavers(state, state.under_way):
        if not state.told[key].refused:
            left, owned = left | cpus, owned | own
    return left, owned


def _is_held(state: State, update: CpusetUpdate, leaving: frozenset[int], owned: frozenset[int]) -> bool:
    told = state.told[update.id].cpus
    gains = update.placement.cpus if told is None else update.placement.cpus - told
    return not gains.isdisjoint(owned) or not (gains & state.grants[update.id].own).isdisjoint(leaving)


def not_alone(state: State, key: str, among: Optional[Iterable[str]] = None) -> tuple[str, ...]:
    """The other containers that may still be on CPUs which a container owns, and are to leave them; ``among``: of these."""
    grant = state.grants.get(key)
    if grant is None or not grant.own:
        return ()
    others = {*state.unsettled, *state.under_way} if among is None else among
    on = (other for other, left, _ in _leavers(state, others) if not left.isdisjoint(grant.own))
    return tuple(sorted(other for other in on if other != key))


def all_not_alone(state: State) -> dict[str, tuple[str, ...]]:
    """The same for every container that owns CPUs others are to leave, by key."""
    leaving: dict[frozenset[int], list[str]] = {}
    for key, left, _ in _leavers(state, {*state.unsettled, *state.under_way}):
        leaving.setdefault(left, []).append(key)  # many leave the same
    found = {}
    for key, grant in state.grants.items() if leaving else ():
        if grant.own and not grant.is_claim:
            on = [k for left, keys in leaving.items() if not left.isdisjoint(grant.own) for k in keys]
            if others := tuple(sorted(other for other in on if other != key)):
                found[key] = others
    return found


# ---------------------------------------------------------------------- telling


def begin(state: State, key: str, gives_back: bool = False) -> Optional[CpusetUpdate]:
    """The update of a container, which goes out now; None = there is nothing to tell it, or one is on its way.

    ``took``, ``refused`` or ``unanswered`` must follow.
    """
    both = _living(state, key)
    if both is None or key in state.under_way:
        return None
    grant, told = both
    update = update_of(grant, told, gives_back)
    if update is not None:
        state.under_way[key] = Begun(update, told, told_by(grant, told, gives_back))
    return update


def took(state: State, key: str) -> None:
    """The runtime has taken the update of a container, or there is no such container any more."""
    begun, now = state.under_way.pop(key, None), state.told.get(key)
    if begun is None or now is None:
        return
    has = begun.has
    if now is not begun.had:  # a request, or a look, came between: which of them was the last is not known
        has = _either(now, has)
    elif any(ticket.target == key and not ticket.in_doubt for ticket in state.tickets.values()):
        has = has._replace(is_sure=False)
    state.tell(key, has)


def refused(state: State, key: str, error: str) -> None:
    """The runtime has refused the update of a container: it has what it had."""
    begun, now = state.under_way.pop(key, None), state.told.get(key)
    if begun is not None and now is not None:
        state.tell(key, now._replace(refused=error or "refused"))


def unanswered(state: State, key: str) -> None:
    """Whether the runtime has taken the update of a container is not known: it has what it had, or that."""
    begun, now = state.under_way.pop(key, None), state.told.get(key)
    if begun is not None and now is not None:
        refusal = "" if now.is_sure else NO_ANSWER
        state.tell(key, _either(now, begun.has)._replace(refused=refusal))


def may_have(state: State, key: str, sent: Placement) -> None:
    """A container was asked about with this place, and the runtime has refused that: it has what it had, or this.

    A runtime writes the files of a cgroup one after the other (runc the cpuset before the quota), and what it has written
    stays when the kernel refuses a later one.
    """
    now = state.told.get(key)
    if now is not None and now.turbo_us:
        now = now._replace(turbo_us=UNKNOWN_QUOTA)  # its own went with the request
        state.tell(key, now)
    if now is None or not sent.cpus:
        return
    if sent.cpus != now.cpus or (sent.mems and sent.mems != now.mems):
        has = now._replace(cpus=sent.cpus, is_lifted=sent.lift_quota, owned=sent.exclusive | sent.claimed)
        state.tell(key, _either(now, has)._replace(cause=IN_PART))


def saw(state: State, container_id: str, **seen: Any) -> None:
    """A container was seen to have this (fields of ``Told``); what it lacks by that it is told."""
    if (before := state.told.get(container_id)) is not None:
        state.tell(container_id, before._replace(**seen))


def _either(one: Told, other: Told) -> Told:
    """What a container may have that has one or the other: it is told again, whatever it should have."""
    cpus = None if one.cpus is None or other.cpus is None else one.cpus | other.cpus
    is_lifted, owned = one.is_lifted or other.is_lifted, one.owned | other.owned
    turbo_us = one.turbo_us if one.turbo_us == other.turbo_us else UNKNOWN_QUOTA
    return one._replace(cpus=cpus, is_lifted=is_lifted, owned=owned, is_sure=False, turbo_us=turbo_us)
