"""Moving others so that one container fits: only where it then does, at most so many, and none to a worse place.

``make_room``: a container finds no room in a domain of its rung only because others are scattered over them.
``relieved``: CPUs that a container takes for itself leave too few to the containers that share the rest of their domain.
Containers that share CPUs may be moved; those that own some only where the configuration allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Optional

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.moves import being_resized
from cri_proxy.engine.recompute import keep_memory
from cri_proxy.engine.records import Grant, Life, Stance, resident_of
from policies.machine.topology import Domain
from policies.model import (
    PLACEMENT_LEVELS,
    BudgetSpent,
    Container,
    CpusetConstraint,
    Decision,
    Placement,
    PlacementRefused,
    wanted_milli,
)
from policies.node import NANO_PER_MILLI, Resident

#: Domains tried for one container; each costs a placement for every move.
DOMAINS_TRIED = 8
#: Key in the books of the container that is being placed, while others are placed around it.
NEWCOMER = "newcomer"

RANK = {level: rank for rank, level in enumerate(PLACEMENT_LEVELS)}


def make_room(ledger: Ledger, container: Container, fence: CpusetConstraint) -> Optional[Decision]:
    """A decision that fits, with the moves that make it so; None if there is none within the configured number."""
    most = ledger.max_moves
    if not most or not ledger.policy.moves_others:
        return None
    resized = being_resized(ledger)
    room = Room(ledger, container)
    for domain, missing in _targets(ledger, container)[:DOMAINS_TRIED]:
        movers = _enough(ledger, domain.cpus, max(missing, 1), most, resized)
        if movers and room.may_hold(domain, movers):
            found = _with_moves(ledger, container, fence, domain, movers)
            if found is not None:
                return found
    return None


def relieved(ledger: Ledger, container: Container, decision: Decision) -> Decision:
    """The same decision; containers it would leave overcommitted are moved to where there is room."""
    place, most = decision.placement, ledger.max_moves
    if not place.exclusive or decision.others or not most or not ledger.policy.moves_others:
        return decision
    survey = ledger.node.survey()
    tight = [
        (leaf, charge // NANO_PER_MILLI - (cap - len(leaf & place.exclusive)) * 1000)
        for leaf, cap, charge in zip(survey.cpus, survey.caps, survey.charge_nano)
        if charge and leaf & place.exclusive and leaf - place.exclusive
    ]
    resized = being_resized(ledger)
    movers: list[Grant] = []
    for leaf, excess in tight:
        if excess > 0 and len(movers) < most:
            movers += _enough(ledger, leaf, excess, most - len(movers), resized)
    if not movers:
        return decision
    newcomer = _resident(ledger, container, place)
    others = _placed_around(ledger, newcomer, movers)
    return replace(decision, others=others) if others else decision


def _targets(ledger: Ledger, container: Container) -> list[tuple[Domain, int]]:
    """The domains of the container's rung, with the milli-CPUs that are missing there, least first."""
    wanted = wanted_milli(container)
    node, survey = ledger.node, ledger.node.survey()
    ours = node.usable - node.reserved
    # As on the ladder, a container without a limit is in no cluster.
    lowest = () if container.resources.milli_limit is None else ("cluster",)
    for level in (*lowest, "l3", "numa", "socket"):
        found = []
        for domain in node.topology.at(level):
            if len(domain.cpus & ours) * 1000 < max(wanted, 1):
                continue
            room = survey.room_nano(domain.leaves) // NANO_PER_MILLI
            found.append((domain, container.resources.milli_request - room))
        if found:
            return sorted(found, key=lambda pair: (pair[1], pair[0].leaves))
    return []


def _movable(ledger: Ledger, keys: Iterable[str], resized: frozenset[str]) -> Iterator[Grant]:
    """Those that may be moved, in the order of the keys."""
    for key in keys:
        grant = ledger.grants.get(key)
        if (
            grant is not None
            and grant.stance is Stance.PLACED
            and key not in resized  # the request under way says where it is
            and grant.life in (Life.CREATED, Life.RUNNING)
            and (not grant.placement.exclusive or ledger.options.move_exclusive)
            and ledger.pin_of(grant.container) is None
        ):
            yield grant


def _enough(
    ledger: Ledger, cpus: frozenset[int], missing: int, most: int, resized: frozenset[str]
) -> list[Grant]:
    """As few containers as can be that live inside these CPUs and whose requests make up for what is missing.

    The smallest one that does, else the largest ones; none where ``most`` of them are not enough. ``resized``: those
    with a resize on its way.
    """
    homes = ledger.node.homes
    chosen: list[Grant] = []
    for grant in islice(_movable(ledger, homes.largest(cpus), resized), most):
        request = grant.container.resources.milli_request
        if request >= missing and not chosen:
            return [next(_movable(ledger, homes.at_least(cpus, missing), resized))]
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

    def __init__(self, ledger: Ledger, container: Container) -> None:
        self._ledger = ledger
        survey, tree = ledger.node.survey(), ledger.node.topology
        self._nano = [survey.room_nano([index]) for index in range(len(survey.caps))]
        self._request = container.resources.milli_request * NANO_PER_MILLI
        is_by_leaf = all(len(domain.leaves) == 1 for domain in tree.at("l3"))
        self._tells = is_by_leaf and ledger.policy.fits_by_room(ledger.node, container)

    def may_hold(self, domain: Domain, movers: Sequence[Grant]) -> bool:
        """Whether the largest mover may find another L3, or what is left of its own, with room once the container is there.

        It tells that only where an L3 is all the mover may get (``is_worse``), and the shared CPUs stay as they are.
        """
        largest = movers[0]
        if (
            not self._tells
            or len(domain.leaves) != 1
            or largest.placement.level != "ccx"
            or largest.fence.cpus is not None
            or any(g.placement.exclusive or not g.placement.cpus <= domain.cpus for g in movers)
            or not self._ledger.policy.fits_by_room(self._ledger.node, largest.container)
        ):
            return True
        needed = largest.container.resources.milli_request * NANO_PER_MILLI
        own = domain.leaves[0]
        # Charges are rounded down on every CPU, so the container may take a little less than it requests.
        left = self._nano[own] - self._request + len(domain.cpus)
        left += sum([g.container.resources.milli_request for g in movers]) * NANO_PER_MILLI
        return left >= needed or any(nano >= needed for leaf, nano in enumerate(self._nano) if leaf != own)


def _with_moves(
    ledger: Ledger, container: Container, fence: CpusetConstraint, domain: Domain, movers: Sequence[Grant]
) -> Optional[Decision]:
    """The container inside a domain that the movers have left, and the movers elsewhere; None if one does not fit."""
    # The newcomer is offered the domain alone: else it might go where a mover comes from next.
    inside = CpusetConstraint(domain.cpus if fence.cpus is None else domain.cpus & fence.cpus, fence.mems)
    with ledger.without([g.key for g in movers]):
        try:
            decision = ledger.place(ledger.request(container, inside))
        except (PlacementRefused, BudgetSpent):
            return None
        if not decision.fits or not decision.placement.cpus or decision.others:
            return None
    newcomer = _resident(ledger, container, decision.placement)
    others = _placed_around(ledger, newcomer, movers, needs_all=True)
    if len(others) < len(movers):
        return None
    names = ", ".join(g.container.path for g in movers)
    return replace(decision, why=f"{decision.why}; {names} moved to make room", others=others)


def _placed_around(
    ledger: Ledger, newcomer: Resident, movers: Iterable[Grant], needs_all: bool = False
) -> dict[str, Placement]:
    """Where the movers go once the newcomer is there; a mover that would be worse off than now is left out.

    ``needs_all``: those that come after one that is left out are not looked at.
    """
    others: dict[str, Placement] = {}
    movers = list(movers)
    with ledger.without([g.key for g in movers]):
        added = [NEWCOMER]
        ledger.node.add(NEWCOMER, newcomer)
        try:
            for grant in movers:
                place = _new_place(ledger, newcomer, grant)
                if place is None:
                    if needs_all:
                        break
                    continue
                others[grant.key] = keep_memory(ledger, grant.placement, place, grant.fence)
                moved = replace(grant, key=f"{NEWCOMER} {grant.key}", placement=others[grant.key])
                ledger.node.add(moved.key, resident_of(moved))
                added.append(moved.key)
        finally:
            for key in added:
                ledger.node.remove(key)
    return others


def _new_place(ledger: Ledger, newcomer: Resident, grant: Grant) -> Optional[Placement]:
    """Where a mover fits and is no worse off than now, without CPUs of the newcomer; None if that is nowhere."""
    try:
        anew = ledger.place(ledger.request(grant.container, grant.fence, grant.key))
    except (PlacementRefused, BudgetSpent):
        return None
    place = anew.placement
    if not anew.fits or not place.cpus or anew.others or is_worse(place, grant.placement):
        return None
    # A mover that takes CPUs of the newcomer for itself has not made room.
    return place if place.exclusive.isdisjoint(newcomer.cpus) else None


def is_worse(place: Placement, than: Placement) -> bool:
    return RANK.get(place.level, 0) > RANK.get(than.level, 0) or len(place.exclusive) < len(than.exclusive)


def _resident(ledger: Ledger, container: Container, place: Placement) -> Resident:
    return resident_of(Grant(NEWCOMER, container, place, Stance.PLACED))
