"""Containers that an override pins to a zone: where each may be placed, which must be moved, and what became of it.

An override is carried out where the container fits: at its create, and by a move of one that runs. Where it does not,
the container is placed as if there were none, and the override says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.moves import being_resized
from cri_proxy.engine.orders import Override
from cri_proxy.engine.records import Grant, Life, Move, Plan, Stance
from cri_proxy.engine.zones import names_text
from policies.exclusive.rules import ask_of
from policies.machine.cpus import NO_CPUS
from policies.model import (
    BudgetSpent,
    Container,
    CpusetConstraint,
    Decision,
    Placement,
    PlacementRefused,
    wanted_milli,
)

APPLIED, WAITING, REFUSED = "applied", "waiting", "refused"
#: Why a container that runs is not moved, whatever is asked for.
FROZEN = "containers are frozen by command (cri-resmgr freeze off)"


#: Between a place outside of the zone that a container is pinned to, and the reason.
PINNED_BY = ", where an override pins it: "


class DoesNotFit(Exception):
    """A container cannot be placed in the zone it is pinned to. The message is a sentence."""


def inside_of(
    books: Ledger, override: Override, container: Container, fence: CpusetConstraint
) -> CpusetConstraint:
    """What a container may be placed on by an override.

    :raises DoesNotFit: this machine has no such zone, no CPU there may be used, or it belongs on the reserved CPUs.
    """
    if ask_of(container, books.policy.settings, bool(books.node.reserved)).is_reserved:
        raise DoesNotFit(f"{container.path} runs on the reserved CPUs, whatever zone it is pinned to")
    cpus = books.zone_cpus.get(override.zone)
    if cpus is None:
        raise DoesNotFit(
            f"this machine has no zone {override.zone}, expected one of {names_text(books.zones)}"
        )
    inside = CpusetConstraint(cpus if fence.cpus is None else cpus & fence.cpus, fence.mems)
    if not (inside.cpus or NO_CPUS) & books.node.usable:
        by = "" if fence.cpus is None else f" that {fence.of} allows"
        raise DoesNotFit(f"{override.zone} has no usable CPU{by}")
    return inside


def check_fit(books: Ledger, override: Override, container: Container, decision: Decision) -> None:
    """Hold a decision that was made inside of a zone against what an override asks for.

    :raises DoesNotFit: it has no room there, too few CPUs, or is not inside.
    """
    place, zone = decision.placement, override.zone
    cpus = books.zone_cpus[zone]
    if not place.cpus:
        raise DoesNotFit(decision.why)
    if not decision.fits or len(place.cpus) * 1000 < wanted_milli(container) or not is_inside(place, cpus):
        shared = cpus & books.node.shared
        free = max(0, len(shared) * 1000 - books.node.charge_milli(shared))
        wanted, request = wanted_milli(container), container.resources.milli_request
        raise DoesNotFit(
            f"{container.path} asks for {request}m and may use {wanted}m; {zone} has {len(shared)} shared CPUs, {free}m"
            " of them free"
        )


def is_inside(place: Placement, cpus: frozenset[int]) -> bool:
    """Whether all of a place is in a zone."""
    return place.cpus <= cpus and place.exclusive <= cpus


def outside(books: Ledger) -> tuple[str, ...]:
    """The containers that are not in the zones they are pinned to, in the order of their names."""
    return tuple(
        grant.key
        for grant, override in _pinned(books)
        if not grant.cpus <= books.zone_cpus.get(override.zone, NO_CPUS)
    )


def plan_of_pins(books: Ledger, keys: Iterable[str], now_s: float) -> Plan:
    """The moves that bring some pinned containers into their zones; why others stay is in ``books.unpinned`` then."""
    moves = []
    resized = being_resized(books)
    for key in keys:
        books.unpinned.pop(key, None)
        grant = books.grants.get(key)
        override = None if grant is None else books.pin_of(grant.container)
        if grant is None or override is None or grant.life not in (Life.CREATED, Life.RUNNING):
            continue
        try:
            if key in resized:
                raise DoesNotFit(f"{grant.container.path} is being resized")
            moves.append(_move(books, grant, override))
        except DoesNotFit as reason:
            books.unpinned[key] = str(reason)
    return Plan(books.version, tuple(moves), at_s=now_s, move_exclusive=True, is_order=True)


def _pinned(books: Ledger) -> Iterator[tuple[Grant, Override]]:
    """The containers there are that overrides are about, in the order of their names."""
    if not books.orders.overrides:
        return
    for grant in sorted(books.grants.values(), key=lambda g: (g.container.path, g.key)):
        if grant.life in (Life.CREATED, Life.RUNNING):
            override = books.pin_of(grant.container)
            if override is not None:
                yield grant, override


def _move(books: Ledger, grant: Grant, override: Override) -> Move:
    if grant.stance is not Stance.PLACED:
        raise DoesNotFit(f"{grant.container.path} is not placed here: {grant.why or grant.stance.value}")
    if grant.placement.group:
        raise DoesNotFit(f"{grant.container.path} shares the CPUs of a balloon, which has one place for all")
    if not books.policy.moves_others:
        raise DoesNotFit("the active policy moves no container")
    inside = inside_of(books, override, grant.container, grant.fence)
    with books.without([grant.key]):
        try:
            decision = books.policy.place(
                books.node, grant.container, inside, books.pull(grant.container, grant.key)
            )
        except (PlacementRefused, BudgetSpent) as error:
            raise DoesNotFit(str(error)) from None
        check_fit(books, override, grant.container, decision)
    place = decision.placement
    return Move(grant.key, place.home, place.level, pinned_text(override), grant.placement)


def _why_outside(books: Ledger, grant: Grant) -> str:
    """Why a container is not in its zone, as it was found out last: by a try to move it, or at its create."""
    return books.unpinned.get(grant.key, "") or grant.why.partition(PINNED_BY)[2]


def pinned_text(override: Override) -> str:
    """How a place says that it is an override's."""
    return f"pinned to {override.zone} by an override"


def override_states(books: Ledger, still: str) -> list[dict[str, Any]]:
    """Every override with what became of it. ``still``: why no container is moved now, "" = they are."""
    found: dict[Override, list[Grant]] = {override: [] for override in books.orders.overrides}
    for grant, override in _pinned(books):
        found[override].append(grant)
    return [
        {**asdict(override), **_state(books, override, found[override], still)}
        for override in books.orders.overrides
    ]


def _state(books: Ledger, override: Override, grants: Iterable[Grant], still: str) -> dict[str, str]:
    cpus = books.zone_cpus.get(override.zone)
    if cpus is None:
        return {
            "state": REFUSED,
            "sentence": f"this machine has no zone {override.zone}, expected one of {names_text(books.zones)}",
        }
    matching = list(grants)
    away = [grant for grant in matching if not grant.cpus <= cpus]
    if not matching:
        return {"state": WAITING, "sentence": "no container of that name runs here"}
    if not away:
        return {"state": APPLIED, "sentence": ""}
    refused = next(filter(None, (_why_outside(books, grant) for grant in away)), "")
    if refused:
        return {"state": REFUSED, "sentence": refused}
    paths = ", ".join(grant.container.path for grant in away[:3])
    return {"state": WAITING, "sentence": still or f"{paths} is to be moved"}
