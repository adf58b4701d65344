"""Where one container goes: whether it is ours, what it takes over, what the policy says, who makes room for it.

Changes no record except that holds which were given up are taken out of the books.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Optional

from cri_proxy.cri.messages import scoped_annotation
from cri_proxy.engine.model import (
    ContainerRecord,
    Life,
    Management,
    Move,
    Override,
    Plan,
    names_text,
    resident_of,
)
from cri_proxy.engine.moves import being_resized, with_peers
from cri_proxy.engine.reconcile import effective, keep_memory, memory_for
from cri_proxy.engine.state import State
from cri_proxy.text.terminal import stance_text
from policies.affinity.pull.expressions import matches
from policies.exclusive.place import ask_of
from policies.exclusive.sparing import emptied_by
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Domain
from policies.model import (
    NO_CONSTRAINT,
    PLACEMENT_LEVELS,
    UNTOUCHED,
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementRefused,
    Resident,
    wanted_milli,
)
from policies.node import NANO_PER_MILLI

#: Annotations that opt a container out, with the value that does it: ours, and nri-plugins' two.
OPT_OUT = {
    "cri-resmgr.io/manage": "false",
    "manage.cri-resmgr.io": "false",
    "cpu.preserve.resource-policy.nri.io": "true",
    "memory.preserve.resource-policy.nri.io": "true",
}

#: Why a container is not ours that has CPUs of kubelet's static CPU manager.
BY_KUBELET = "kubelet gave it exclusive CPUs"
#: Between the reason for a place and what a resize that has changed nothing of it says.
RESIZED = "; stays with "


def stance_of(
    state: State, container: Container, constraint: Constraint, now_s: float
) -> tuple[Management, str]:
    """Whether the container is ours to place, and why not."""
    # Also of one that opted out: it is untouched either way, and these CPUs are no other container's.
    if constraint.asked.cpus and state.host.kubelets(container, ""):
        return Management.KUBELET, BY_KUBELET
    reason = opted_out(state, container)
    if reason:
        return Management.OPTED_OUT, reason
    names = state.names.get((container.pod.uid, container.name), ())
    if any(state.grants[key].stance is Management.RELEASED for key in names):
        return Management.RELEASED, "released by command, and with it every attempt after"
    until_s = state.distrusted.get((container.pod.uid, container.name), 0.0)
    if until_s > now_s:
        return Management.UNTOUCHED, "it failed to start where it was placed: untouched for ten minutes"
    if constraint.cpus is not None and not constraint.cpus & state.host.usable:
        return Management.UNTOUCHED, _unusable(state, container, constraint)
    return Management.PLACED, ""


def _unusable(state: State, container: Container, constraint: Constraint) -> str:
    allowed = state.host.bounded(NO_CONSTRAINT, container.pod.cgroup_parent).cpus
    if constraint.caller is None or allowed is None:
        return f"the caller's cpuset {format_cpus(constraint.cpus or ())} holds no usable CPU"
    caller = constraint.asked.cpus
    of_it = "" if caller is None else f" that the caller allows ({format_cpus(caller)})"
    return f"the pod's cgroup ({format_cpus(allowed)}) holds no usable CPU{of_it}"


def opted_out(state: State, container: Container) -> str:
    """Why a container is not to be managed at all; "" if it is."""
    pod = container.pod
    for key, value in OPT_OUT.items():
        given = scoped_annotation({**container.annotations, **pod.annotations}, key, container.name)
        if given is not None and given.strip().lower() == value:
            return f"opted out by annotation {key}"
    if any(fnmatchcase(pod.namespace, glob) for glob in state.options.unmanaged_namespaces):
        return f"namespace {pod.namespace} is not managed"
    if pod.runtime_handler and any(
        fnmatchcase(pod.runtime_handler, g) for g in state.options.unmanaged_handlers
    ):
        return f"runtime handler {pod.runtime_handler} is not managed"
    kept = next((each for each in state.options.preserve if matches(each, container)), None)
    if kept is not None:
        condition = " ".join(filter(None, (kept.key, kept.operator, ", ".join(kept.values))))
        return f"left alone by placement.preserve: {condition}"
    return ""


def predecessors(state: State, container: Container) -> tuple[ContainerRecord, ...]:
    """Grants this container takes over from: earlier attempts of it, and finished init containers of its sandbox."""
    uid, name = container.pod.uid, container.name
    in_flight = {t.key for t in state.tickets.values() if not t.in_doubt}
    found = []
    for key in sorted(state.names.get((uid, name), ())):
        grant = state.grants[key]
        earlier = grant.container.attempt < container.attempt or grant.life is Life.HELD
        if key not in in_flight and (earlier or grant.life is Life.CREATING):
            found.append(grant)
    for key in sorted(state.sandboxes.get(container.pod.id, ())):
        grant = state.grants[key]
        if grant.life is Life.HELD and grant.exit_code == 0 and grant.container.name != name:
            found.append(grant)
    # A resize that is on its way for one of them has lost its container.
    keys = {g.key for g in found}
    found += [state.grants[t.key] for t in state.tickets.values() if t.target in keys and t.key not in keys]
    return tuple(found)


def decide(
    state: State, container: Container, constraint: Constraint, replaced: tuple[ContainerRecord, ...]
) -> tuple[Decision, tuple[ContainerRecord, ...]]:
    """The place of the attempt before, if that can be had; else the policy's; holds of others given up if that helps."""
    again = same_place(state, container, constraint, replaced)
    override = state.pin_of(container)
    if override is not None:
        cpus = state.zone_cpus.get(override.zone)
        if again is not None and (cpus is None or is_inside(again.placement, cpus)):
            return again, ()
        return _decide_pinned(state, container, constraint, override)
    if again is not None:
        return again, ()
    decision, given_up = decide_anew(state, container, constraint)
    return with_peers(state, container, decision), given_up


def _decide_pinned(
    state: State, container: Container, constraint: Constraint, override: Override
) -> tuple[Decision, tuple[ContainerRecord, ...]]:
    """A place inside of the zone that a container is pinned to; where it does not fit one as if it were not pinned."""
    try:
        decision = _inside(state, container, override, inside_of(state, override, container, constraint))
    except DoesNotFit as reason:
        decision, given_up = decide_anew(state, container, constraint)
        why = f"{decision.why}; not in {override.text}{PINNED_BY}{reason}"
        return with_peers(state, container, replace(decision, why=why)), given_up
    return replace(decision, why=f"{pinned_text(override)}; {decision.why}"), ()


def _inside(state: State, container: Container, override: Override, inside: Constraint) -> Decision:
    """The policy's decision inside of a zone.

    :raises DoesNotFit: it has none.
    """
    try:
        decision = state.place(state.request(container, inside))
    except (PlacementRefused, BudgetSpent) as error:
        raise DoesNotFit(str(error)) from None
    check_fit(state, override, container, decision)
    return with_evictions(state, container, decision)


def decide_anew(
    state: State, container: Container, constraint: Constraint
) -> tuple[Decision, tuple[ContainerRecord, ...]]:
    request = state.request(container, constraint)
    decision = state.place(request)
    if decision.fits:
        return with_evictions(state, container, decision), ()
    # Not of one whose resize is on its way: its new place counts with its old one.
    resized = {ticket.target for ticket in state.tickets.values()}
    held = [
        g
        for g in [state.grants[key] for key in state.held]
        if (g.container.resources.milli_request or g.exclusive)
        and g.key not in resized
        and g.key in state.node.residents
    ]
    held.sort(key=lambda g: (g.since_s, g.key))
    # Oldest first, and no more of them than needed: the smallest number with which it fits, by bisection.
    low, high = 1, len(held)
    best: Optional[tuple[int, Decision]] = None
    removed: list[tuple[str, Resident]] = []
    try:
        while low <= high:
            count = (low + high) // 2 if best is not None else high
            while len(removed) > count:
                state.node.add(*removed.pop())
            while len(removed) < count:
                key = held[len(removed)].key
                removed.append((key, state.node.remove(key)))
            trial = state.place(request)
            if trial.fits:
                best, high = (count, trial), count - 1
            elif best is None:
                break  # not even with all of them
            else:
                low = count + 1
    finally:
        for key, resident in removed:
            state.node.add(key, resident)
    if best is None:
        return evict(state, container, constraint) or decision, ()
    # Those that are elsewhere do not help, however old.
    cpus = best[1].placement.cpus | best[1].placement.exclusive
    given_up = tuple(g for g in held[: best[0]] if not cpus.isdisjoint(g.cpus | g.exclusive))
    with state.without([g.key for g in given_up]):
        # Unless a container that can go nowhere else was counted on there.
        is_needed = emptied_by(state.node, best[1].placement.exclusive)
    given_up = tuple(held[: best[0]]) if is_needed else given_up
    state.set_aside(given_up, ())
    names = ", ".join(g.container.path for g in given_up[:3]) + ("" if len(given_up) < 4 else ", ...")
    return replace(best[1], why=f"{best[1].why}; the place held for {names} was given up"), given_up


def same_place(
    state: State, container: Container, constraint: Constraint, replaced: Iterable[ContainerRecord]
) -> Optional[Decision]:
    """The place of the attempt before, which is among those that are ``replaced``; None if it cannot be had."""
    previous = [
        g
        for g in replaced
        if g.container.name == container.name and g.stance in (Management.PLACED, Management.OBSERVED)
    ]
    if not previous:
        return None
    last = max(previous, key=lambda g: g.container.attempt)
    # Programs size their threads by the CPUs that they see at their start: a new attempt has its limit's again. What claims
    # give a container they give each attempt.
    if last.container.milli_size is not None or last.placement.claimed or container.claims:
        return None
    if wanted_milli(last.container) != wanted_milli(container) or last.constraint.cpus != constraint.cpus:
        return None
    place = last.placement
    # In mode observe it only would have owned CPUs: others may have got them.
    taken = (
        state.node.reserved | state.node.exclusive - state.of_group(place.group) if place.exclusive else ()
    )
    if not place.exclusive.isdisjoint(taken) or not effective(state, place, constraint):
        return None
    again = _stay(state, last.placement, container, constraint, last)
    return replace(again, why=f"the place of attempt {last.container.attempt} was held for it")


def resized(
    state: State, old: ContainerRecord, container: Container, constraint: Constraint, asked: Constraint
) -> tuple[Decision, Management, frozenset[int]]:
    """The place of a container with new resources, its stance, and where it runs if that is not our choice.

    ``asked``: the cpuset and mems of the request itself; ``constraint``: with those of earlier requests.
    """
    # Not ours, unless the caller has just given it a cpuset to be placed in.
    fenced = old.stance in (Management.KUBELET, Management.ADOPTED) or (
        old.stance is Management.UNTOUCHED and old.constraint.asked.cpus
    )
    is_resized = old.stance is Management.ADOPTED and calls_for_a_place(old, container)
    if old.stance is not Management.PLACED and not (fenced and asked.cpus) and not is_resized:
        return (
            Decision(old.placement, f"{stance_text(old.stance.value)}: left as it is"),
            old.stance,
            asked.cpus or old.runs_on,
        )
    if constraint.asked.cpus and state.host.kubelets(container, old.key):
        return (
            Decision(UNTOUCHED, BY_KUBELET),
            Management.KUBELET,
            constraint.asked.cpus or NO_CPUS,
        )
    same_preference = (
        wanted_milli(container) == wanted_milli(old.container) and constraint.cpus == old.constraint.cpus
    )
    same_limit = container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes
    if old.is_outgrown:  # what it has now is not what its place was chosen for
        same_preference = same_limit = False
    stay = old.placement
    if container.claims:
        with state.without([old.key]):
            decision = state.place(state.request(container, constraint, old.key))
        if decision.placement.claimed:
            kept = keep_memory(state, stay, decision.placement, constraint, not same_limit)
            return replace(decision, placement=kept), Management.PLACED, NO_CPUS
    with state.without([old.key]):
        if not same_preference or not stay.cpus:
            decision = resized_anew(state, old, container, constraint)
            if not decision.placement.cpus:
                untouched = Decision(UNTOUCHED, decision.why)
                return (
                    untouched,
                    Management.UNTOUCHED,
                    constraint.cpus or state.host.parent_cpus or state.host.usable,
                )
            other_rung = decision.placement.level != stay.level
            other_count = len(decision.placement.exclusive) != len(stay.exclusive)
            # A group of another policy: its containers share what it would own alone.
            other_group = decision.placement.group != stay.group
            if (
                other_rung
                or other_count
                or other_group
                or not still_holds(state, stay, container, constraint)
            ):
                moved = keep_memory(state, stay, decision.placement, constraint, not same_limit)
                decision = with_evictions(state, container, replace(decision, placement=moved))
                # What it gives back is its own until the runtime has answered: no other can be moved there yet.
                if any(not old.exclusive.isdisjoint(p.cpus | p.exclusive) for p in decision.others.values()):
                    decision = replace(decision, others={})
                return decision, Management.PLACED, NO_CPUS
        return _stay(state, stay, container, constraint, old), Management.PLACED, NO_CPUS


def resized_anew(
    state: State, old: ContainerRecord, container: Container, constraint: Constraint
) -> Decision:
    """The policy's place for a container that wants other CPUs and is not in the books, near the one it has; inside of
    the zone it is pinned to if it fits there.

    :raises PlacementRefused, BudgetSpent: as the policy.
    """
    stay = old.placement
    request = state.request(container, constraint, old.key, near=stay.home or None, keep=stay)
    override = state.pin_of(container)
    if override is not None:
        with contextlib.suppress(DoesNotFit, PlacementRefused, BudgetSpent):
            inside = inside_of(state, override, container, constraint)
            pinned = state.place(replace(request, constraint=inside))
            check_fit(state, override, container, pinned)
            return replace(pinned, why=f"{pinned_text(override)}; {pinned.why}")
    return state.place(request)


def calls_for_a_place(old: ContainerRecord, container: Container) -> bool:
    """Whether a container that has a place, ours or as it was found, is to be placed by its new resources."""
    if old.stance is Management.ADOPTED:
        return old.is_outgrown or wanted_milli(container) != wanted_milli(old.container)
    is_other = old.is_outgrown or container.told != old.container.told
    return old.stance is Management.PLACED and is_other


def still_holds(state: State, stay: Placement, container: Container, constraint: Constraint) -> bool:
    """Whether a place has the CPUs and the room for a container that is not in the books."""
    cpus = effective(state, stay, constraint)
    room = len(cpus) * 1000 - state.node.charge_milli(cpus)
    return (
        bool(cpus)
        and len(cpus) * 1000 >= wanted_milli(container)
        and room >= container.resources.milli_request
    )


def _stay(
    state: State, stay: Placement, container: Container, constraint: Constraint, old: ContainerRecord
) -> Decision:
    """The same domain, without the container in the books; memory nodes are only added, where a larger limit needs them."""
    cpus = effective(state, stay, constraint) or stay.cpus
    kept = replace(stay, cpus=cpus)
    # Why it is there is still true; a note of the resize before is not.
    wanted = wanted_milli(container) / 1000
    why = f"{old.why.split(RESIZED)[0]}{RESIZED}{wanted:g} CPUs, on the same domain level"
    same_limit = container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes
    is_there = same_limit and constraint.mems == old.constraint.mems and stay.mems <= state.node.mems
    if stay.mems and not is_there:
        memory = memory_for(state, cpus, container, constraint, stay.group, stay.memory_charge)
        anew = replace(kept, mems=memory.nodes, memory_charge=memory.charge)
        kept = keep_memory(state, stay, anew, constraint, not same_limit)
        why += f"; {memory.why}" if memory.why else ""
    return Decision(kept, why)


# ---------------------------------------------------------------------- moving others

# So that one container fits: only where it then does, at most so many, and none to a worse place.
# ``evict``: a container finds no room in a domain of its rung only because others are scattered over them.
# ``with_evictions``: CPUs that a container takes for itself leave too few to those that share the rest of their domain.
# Containers that share CPUs may be moved; those that own some only where the configuration allows it.

#: Domains tried for one container; each costs a placement for every move.
DOMAINS_TRIED = 8
#: Key in the books of the container that is being placed, while others are placed around it.
NEWCOMER = "newcomer"

RANK = {level: rank for rank, level in enumerate(PLACEMENT_LEVELS)}


def evict(state: State, container: Container, constraint: Constraint) -> Optional[Decision]:
    """A decision that fits, with the moves that make it so; None if there is none within the configured number."""
    most = state.max_moves
    if not most or not state.policy.moves_others:
        return None
    resized = being_resized(state)
    room = Room(state, container)
    for domain, missing in _targets(state, container)[:DOMAINS_TRIED]:
        movers = _enough(state, domain.cpus, max(missing, 1), most, resized)
        if movers and room.may_hold(domain, movers):
            found = with_moves(state, container, constraint, domain, movers)
            if found is not None:
                return found
    return None


def with_evictions(state: State, container: Container, decision: Decision) -> Decision:
    """The same decision; containers it would leave overcommitted are moved to where there is room."""
    place, most = decision.placement, state.max_moves
    if not place.exclusive or decision.others or not most or not state.policy.moves_others:
        return decision
    capacity = state.node.capacity()
    tight = [
        (leaf, charge // NANO_PER_MILLI - (cap - len(leaf & place.exclusive)) * 1000)
        for leaf, cap, charge in zip(capacity.cpus, capacity.caps, capacity.charge_nano)
        if charge and leaf & place.exclusive and leaf - place.exclusive
    ]
    resized = being_resized(state)
    movers: list[ContainerRecord] = []
    for leaf, excess in tight:
        if excess > 0 and len(movers) < most:
            movers += _enough(state, leaf, excess, most - len(movers), resized)
    starved = _starved(state, place.exclusive, movers, resized)[: most - len(movers)]
    if not movers and not starved:
        return decision
    newcomer = _resident(state, container, place)
    others = _placed_around(state, newcomer, [*movers, *starved])
    return replace(decision, others=others) if others else decision


def _starved(
    state: State, taken: frozenset[int], but: Sequence[ContainerRecord], resized: frozenset[str]
) -> list[ContainerRecord]:
    """Containers that would have fewer CPUs than they may use without these, the ones that lack most first."""
    if not state.node.shortfall_milli(taken, len(taken)):
        return []
    found: list[tuple[int, float, str, ContainerRecord]] = []
    for (home, own), keys in state.places.items():
        if own or home.isdisjoint(taken):
            continue
        for grant in _movable(state, keys, resized):
            left = len(grant.cpus - taken) * 1000 - wanted_milli(grant.container)
            place, is_there = grant.placement, grant.key in state.node.residents and grant not in but
            if left < 0 and is_there and not place.one_thread and place.level != "reserved":
                found.append((left, grant.since_s, grant.key, grant))
    return [grant for *_, grant in sorted(found, key=lambda item: item[:3])]


def _targets(state: State, container: Container) -> list[tuple[Domain, int]]:
    """The domains of the container's rung, with the milli-CPUs that are missing there, least first."""
    wanted = wanted_milli(container)
    node, capacity = state.node, state.node.capacity()
    ours = node.usable - node.reserved
    # As on the ladder, a container without a limit is in no cluster.
    lowest = () if container.resources.milli_limit is None else ("cluster",)
    for level in (*lowest, "l3", "numa", "socket"):
        found = []
        for domain in node.topology.at(level):
            if len(domain.cpus & ours) * 1000 < max(wanted, 1):
                continue
            room = capacity.room_nano(domain.leaves) // NANO_PER_MILLI
            found.append((domain, container.resources.milli_request - room))
        if found:
            return sorted(found, key=lambda pair: (pair[1], pair[0].leaves))
    return []


def _movable(state: State, keys: Iterable[str], resized: frozenset[str]) -> Iterator[ContainerRecord]:
    """Those that may be moved, in the order of the keys."""
    for key in keys:
        grant = state.grants.get(key)
        if (
            grant is not None
            and grant.stance is Management.PLACED
            and key not in resized  # the request under way says where it is
            and grant.life in (Life.CREATED, Life.RUNNING)
            and (not grant.placement.exclusive or state.options.move_exclusive)
            and state.pin_of(grant.container) is None
            and not grant.container.claims
        ):
            yield grant


def movable_owners(state: State, cpus: frozenset[int]) -> list[ContainerRecord]:
    """The containers that own some of these CPUs and may be moved, those that own most there first."""
    keys = [key for key, owner in state.node.owners.items() if not owner.exclusive.isdisjoint(cpus)]
    found = _movable(state, keys, being_resized(state))
    return sorted(found, key=lambda grant: (-len(grant.exclusive & cpus), grant.key))


def _enough(
    state: State, cpus: frozenset[int], missing: int, most: int, resized: frozenset[str]
) -> list[ContainerRecord]:
    """As few containers as can be that live inside these CPUs and whose requests make up for what is missing.

    The smallest one that does, else the largest ones; none where ``most`` of them are not enough. ``resized``: those
    with a resize on its way.
    """
    homes = state.node.homes
    chosen: list[ContainerRecord] = []
    for grant in islice(_movable(state, homes.largest(cpus), resized), most):
        request = grant.container.resources.milli_request
        if request >= missing and not chosen:
            return [next(_movable(state, homes.at_least(cpus, missing), resized))]
        # Those that follow request no more than this one.
        if request * (most - len(chosen)) < missing:
            return []
        chosen.append(grant)
        missing -= request
        if missing <= 0:
            return chosen
    return []


class Room:
    """The room of every leaf before a container is placed: it tells trials that are for nothing without making them."""

    def __init__(self, state: State, container: Container) -> None:
        self._state = state
        capacity, tree = state.node.capacity(), state.node.topology
        self._nano = [capacity.room_nano([index]) for index in range(len(capacity.caps))]
        self._request = container.resources.milli_request * NANO_PER_MILLI
        is_by_leaf = all(len(domain.leaves) == 1 for domain in tree.at("l3"))
        self._tells = is_by_leaf and state.policy.fits_by_room(state.node, container)

    def may_hold(self, domain: Domain, movers: Sequence[ContainerRecord]) -> bool:
        """Whether the largest mover may find another L3, or what is left of its own, with room once the container is there.

        It tells that only where an L3 is all the mover may get (``is_worse``), and the shared CPUs stay as they are.
        """
        largest = movers[0]
        if (
            not self._tells
            or len(domain.leaves) != 1
            or largest.placement.level != "ccx"
            or largest.constraint.cpus is not None
            or any(g.placement.exclusive or not g.placement.cpus <= domain.cpus for g in movers)
            or not self._state.policy.fits_by_room(self._state.node, largest.container)
        ):
            return True
        needed = largest.container.resources.milli_request * NANO_PER_MILLI
        own = domain.leaves[0]
        # Charges are rounded down on every CPU, so the container may take a little less than it requests.
        left = self._nano[own] - self._request + len(domain.cpus)
        left += sum([g.container.resources.milli_request for g in movers]) * NANO_PER_MILLI
        return left >= needed or any(nano >= needed for leaf, nano in enumerate(self._nano) if leaf != own)


def with_moves(
    state: State,
    container: Container,
    constraint: Constraint,
    domain: Domain,
    movers: Sequence[ContainerRecord],
) -> Optional[Decision]:
    """The container inside a domain that the movers have left, and the movers elsewhere; None if one does not fit."""
    # The newcomer is offered the domain alone: else it might go where a mover comes from next.
    inside = Constraint(
        domain.cpus if constraint.cpus is None else domain.cpus & constraint.cpus, constraint.mems
    )
    with state.without([g.key for g in movers]):
        try:
            decision = state.place(state.request(container, inside))
        except (PlacementRefused, BudgetSpent):
            return None
        if not decision.fits or not decision.placement.cpus or decision.others:
            return None
    newcomer = _resident(state, container, decision.placement)
    others = _placed_around(state, newcomer, movers, needs_all=True)
    if len(others) < len(movers):
        return None
    names = ", ".join(g.container.path for g in movers)
    return replace(decision, why=f"{decision.why}; {names} moved to make room", others=others)


def _placed_around(
    state: State, newcomer: Resident, movers: Iterable[ContainerRecord], needs_all: bool = False
) -> dict[str, Placement]:
    """Where the movers go once the newcomer is there; a mover that would be worse off than now is left out.

    ``needs_all``: those that come after one that is left out are not looked at.
    """
    others: dict[str, Placement] = {}
    movers = list(movers)
    with state.without([g.key for g in movers]):
        added = [NEWCOMER]
        state.node.add(NEWCOMER, newcomer)
        try:
            for grant in movers:
                place = _new_place(state, newcomer, grant)
                if place is None:
                    if needs_all:
                        break
                    continue
                others[grant.key] = keep_memory(state, grant.placement, place, grant.constraint)
                moved = replace(grant, key=f"{NEWCOMER} {grant.key}", placement=others[grant.key])
                state.node.add(moved.key, resident_of(moved))
                added.append(moved.key)
        finally:
            for key in added:
                state.node.remove(key)
    return others


def _new_place(state: State, newcomer: Resident, grant: ContainerRecord) -> Optional[Placement]:
    """Where a mover fits and is no worse off than now, without CPUs of the newcomer; None if that is nowhere."""
    # One that would have too few CPUs where it is stays near its memory.
    left, wanted = len(grant.cpus - newcomer.exclusive) * 1000, wanted_milli(grant.container)
    is_short = left < wanted and not grant.exclusive
    near = grant.placement.home or None if is_short else None
    try:
        anew = state.place(state.request(grant.container, grant.constraint, grant.key, near=near))
    except (PlacementRefused, BudgetSpent):
        return None
    place = anew.placement
    if not anew.fits or not place.cpus or anew.others:
        return None
    # It may be at a wider level, as if it were created now.
    has_all = is_short and not place.exclusive and wanted <= len(place.cpus) * 1000
    if is_worse(place, grant.placement) and not has_all:
        return None
    if state.is_kept_worse(grant.container, place.cpus, grant.cpus):
        return None
    # A mover that takes CPUs of the newcomer for itself has not made room.
    return place if place.exclusive.isdisjoint(newcomer.cpus) else None


def is_worse(place: Placement, than: Placement) -> bool:
    return RANK.get(place.level, 0) > RANK.get(than.level, 0) or len(place.exclusive) < len(than.exclusive)


def _resident(state: State, container: Container, place: Placement) -> Resident:
    return resident_of(ContainerRecord(NEWCOMER, container, place, Management.PLACED))


# ---------------------------------------------------------------------- pins

# An override is carried out where the container fits: at its create, and by a move of one that runs. Where it does not,
# the container is placed as if there were none, and the override says why.

APPLIED, WAITING, REFUSED = "applied", "waiting", "refused"
#: Why a container that runs is not moved, whatever is asked for.
FROZEN = "containers are frozen by command (cri-resmgr freeze off)"


#: Between a place outside of the zone that a container is pinned to, and the reason.
PINNED_BY = ", where an override pins it: "


class DoesNotFit(Exception):
    """A container cannot be placed in the zone it is pinned to. The message is a sentence."""


def inside_of(state: State, override: Override, container: Container, constraint: Constraint) -> Constraint:
    """What a container may be placed on by an override.

    :raises DoesNotFit: this machine has no such zone, no CPU there may be used, or it belongs on the reserved CPUs, or
        where its claims are.
    """
    if container.claims:
        raise DoesNotFit(f"{container.path} has the CPUs of its claims, which never leave their devices")
    if ask_of(container, state.policy.settings, bool(state.node.reserved)).is_reserved:
        raise DoesNotFit(f"{container.path} runs on the reserved CPUs, whatever zone it is pinned to")
    cpus = state.zone_cpus.get(override.zone)
    if cpus is None:
        raise DoesNotFit(
            f"this machine has no zone {override.text}, expected one of {names_text(state.zones)}"
        )
    inside = Constraint(cpus if constraint.cpus is None else cpus & constraint.cpus, constraint.mems)
    if not (inside.cpus or NO_CPUS) & state.node.usable:
        by = "" if constraint.cpus is None else f" that {constraint.of} allows"
        raise DoesNotFit(f"{override.text} has no usable CPU{by}")
    return inside


def check_fit(state: State, override: Override, container: Container, decision: Decision) -> None:
    """Hold a decision that was made inside of a zone against what an override asks for.

    :raises DoesNotFit: it has no room there, too few CPUs, or is not inside.
    """
    place, cpus = decision.placement, state.zone_cpus[override.zone]
    if not place.cpus:
        raise DoesNotFit(decision.why)
    if not decision.fits or len(place.cpus) * 1000 < wanted_milli(container) or not is_inside(place, cpus):
        shared = cpus & state.node.shared
        free = max(0, len(shared) * 1000 - state.node.charge_milli(shared))
        wanted, request = wanted_milli(container), container.resources.milli_request
        raise DoesNotFit(
            f"{container.path} asks for {request}m and may use {wanted}m; {override.text} has {len(shared)} shared"
            f" CPUs, {free}m of them free"
        )


def is_inside(place: Placement, cpus: frozenset[int]) -> bool:
    """Whether all of a place is in a zone."""
    return place.cpus <= cpus and place.exclusive <= cpus


def outside(state: State) -> tuple[str, ...]:
    """The containers that are not in the zones they are pinned to, in the order of their names."""
    return tuple(
        grant.key
        for grant, override in _pinned(state)
        if not grant.cpus <= state.zone_cpus.get(override.zone, NO_CPUS)
    )


def plan_of_pins(state: State, keys: Iterable[str], now_s: float) -> Plan:
    """The moves that bring some pinned containers into their zones; why others stay is in ``state.unpinned`` then."""
    moves = []
    resized = being_resized(state)
    for key in keys:
        state.unpinned.pop(key, None)
        grant = state.grants.get(key)
        override = None if grant is None else state.pin_of(grant.container)
        if grant is None or override is None or grant.life not in (Life.CREATED, Life.RUNNING):
            continue
        try:
            if key in resized:
                raise DoesNotFit(f"{grant.container.path} is being resized")
            moves.append(_move(state, grant, override))
        except DoesNotFit as reason:
            state.unpinned[key] = str(reason)
    return Plan(state.version, tuple(moves), at_s=now_s, is_order=True)


def _pinned(state: State) -> Iterator[tuple[ContainerRecord, Override]]:
    """The containers there are that overrides are about, in the order of their names."""
    if not state.orders.overrides:
        return
    for grant in sorted(state.grants.values(), key=lambda g: (g.container.path, g.key)):
        if grant.life in (Life.CREATED, Life.RUNNING):
            override = state.pin_of(grant.container)
            if override is not None:
                yield grant, override


def _move(state: State, grant: ContainerRecord, override: Override) -> Move:
    if grant.stance is not Management.PLACED:
        raise DoesNotFit(
            f"{grant.container.path} is not placed here: {grant.why or stance_text(grant.stance.value)}"
        )
    if grant.placement.group:
        raise DoesNotFit(f"{grant.container.path} shares the CPUs of a balloon, which has one place for all")
    if not state.policy.moves_others:
        raise DoesNotFit("the active policy moves no container")
    inside = inside_of(state, override, grant.container, grant.constraint)
    with state.without([grant.key]):
        try:
            decision = state.place(state.request(grant.container, inside, grant.key))
        except (PlacementRefused, BudgetSpent) as error:
            raise DoesNotFit(str(error)) from None
        check_fit(state, override, grant.container, decision)
    place = decision.placement
    return Move(grant.key, place.home, place.level, pinned_text(override), grant.placement)


def _why_outside(state: State, grant: ContainerRecord) -> str:
    """Why a container is not in its zone, as it was found out last: by a try to move it, or at its create."""
    return state.unpinned.get(grant.key, "") or grant.why.partition(PINNED_BY)[2]


def pinned_text(override: Override) -> str:
    """How a place says that it is an override's."""
    return f"pinned to {override.text} by an override"


def override_states(state: State, still: str) -> list[dict[str, Any]]:
    """Every override with what became of it. ``still``: why no container is moved now, "" = they are."""
    found: dict[Override, list[ContainerRecord]] = {override: [] for override in state.orders.overrides}
    for grant, override in _pinned(state):
        found[override].append(grant)
    return [
        {**asdict(override), **_state(state, override, found[override], still)}
        for override in state.orders.overrides
    ]


def _state(state: State, override: Override, grants: Iterable[ContainerRecord], still: str) -> dict[str, str]:
    cpus = state.zone_cpus.get(override.zone)
    if cpus is None:
        return {
            "state": REFUSED,
            "sentence": f"this machine has no zone {override.text}, expected one of {names_text(state.zones)}",
        }
    matching = list(grants)
    away = [grant for grant in matching if not grant.cpus <= cpus]
    if not matching:
        return {"state": WAITING, "sentence": "no container of that name runs here"}
    if not away:
        return {"state": APPLIED, "sentence": ""}
    refused = next(filter(None, (_why_outside(state, grant) for grant in away)), "")
    if refused:
        return {"state": REFUSED, "sentence": refused}
    paths = ", ".join(grant.container.path for grant in away[:3])
    return {"state": WAITING, "sentence": still or f"{paths} is to be moved"}
