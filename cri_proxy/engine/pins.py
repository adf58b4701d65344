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
from cri_proxy.text.terminal import stance_text
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
    ledger: Ledger, override: Override, container: Container, fence: CpusetConstraint
) -> CpusetConstraint:
    """What a container may be placed on by an override.

    :raises DoesNotFit: this machine has no such zone, no CPU there may be used, or it belongs on the reserved CPUs.
    """
    if ask_of(container, ledger.policy.settings, bool(ledger.node.reserved)).is_reserved:
        raise DoesNotFit(f"{container.path} runs on the reserved CPUs, whatever zone it is pinned to")
    cpus = ledger.zone_cpus.get(override.zone)
    if cpus is None:
        raise DoesNotFit(
            f"this machine has no zone {override.text}, expected one of {names_text(ledger.zones)}"
        )
    inside = CpusetConstraint(cpus if fence.cpus is None else cpus & fence.cpus, fence.mems)
    if not (inside.cpus or NO_CPUS) & ledger.node.usable:
        by = "" if fence.cpus is None else f" that {fence.of} allows"
        raise DoesNotFit(f"{override.text} has no usable CPU{by}")
    return inside


def check_fit(ledger: Ledger, override: Override, container: Container, decision: Decision) -> None:
    """Hold a decision that was made inside of a zone against what an override asks for.

    :raises DoesNotFit: it has no room there, too few CPUs, or is not inside.
    """
    place, cpus = decision.placement, ledger.zone_cpus[override.zone]
    if not place.cpus:
        raise DoesNotFit(decision.why)
    if not decision.fits or len(place.cpus) * 1000 < wanted_milli(container) or not is_inside(place, cpus):
        shared = cpus & ledger.node.shared
        free = max(0, len(shared) * 1000 - ledger.node.charge_milli(shared))
        wanted, request = wanted_milli(container), container.resources.milli_request
        raise DoesNotFit(
            f"{container.path} asks for {request}m and may use {wanted}m; {override.text} has {len(shared)} shared"
            f" CPUs, {free}m of them free"
        )


def is_inside(place: Placement, cpus: frozenset[int]) -> bool:
    """Whether all of a place is in a zone."""
    return place.cpus <= cpus and place.exclusive <= cpus


def outside(ledger: Ledger) -> tuple[str, ...]:
    """The containers that are not in the zones they are pinned to, in the order of their names."""
    return tuple(
        grant.key
        for grant, override in _pinned(ledger)
        if not grant.cpus <= ledger.zone_cpus.get(override.zone, NO_CPUS)
    )


def plan_of_pins(ledger: Ledger, keys: Iterable[str], now_s: float) -> Plan:
    """The moves that bring some pinned containers into their zones; why others stay is in ``ledger.unpinned`` then."""
    moves = []
    resized = being_resized(ledger)
    for key in keys:
        ledger.unpinned.pop(key, None)
        grant = ledger.grants.get(key)
        override = None if grant is None else ledger.pin_of(grant.container)
        if grant is None or override is None or grant.life not in (Life.CREATED, Life.RUNNING):
            continue
        try:
            if key in resized:
                raise DoesNotFit(f"{grant.container.path} is being resized")
            moves.append(_move(ledger, grant, override))
        except DoesNotFit as reason:
            ledger.unpinned[key] = str(reason)
    return Plan(ledger.version, tuple(moves), at_s=now_s, is_order=True)


def _pinned(ledger: Ledger) -> Iterator[tuple[Grant, Override]]:
    """The containers there are that overrides are about, in the order of their names."""
    if not ledger.orders.overrides:
        return
    for grant in sorted(ledger.grants.values(), key=lambda g: (g.container.path, g.key)):
        if grant.life in (Life.CREATED, Life.RUNNING):
            override = ledger.pin_of(grant.container)
            if override is not None:
                yield grant, override


def _move(ledger: Ledger, grant: Grant, override: Override) -> Move:
    if grant.stance is not Stance.PLACED:
        raise DoesNotFit(
            f"{grant.container.path} is not placed here: {grant.why or stance_text(grant.stance.value)}"
        )
    if grant.placement.group:
        raise DoesNotFit(f"{grant.container.path} shares the CPUs of a balloon, which has one place for all")
    if not ledger.policy.moves_others:
        raise DoesNotFit("the active policy moves no container")
    inside = inside_of(ledger, override, grant.container, grant.fence)
    with ledger.without([grant.key]):
        try:
            decision = ledger.place(ledger.request(grant.container, inside, grant.key))
        except (PlacementRefused, BudgetSpent) as error:
            raise DoesNotFit(str(error)) from None
        check_fit(ledger, override, grant.container, decision)
    place = decision.placement
    return Move(grant.key, place.home, place.level, pinned_text(override), grant.placement)


def _why_outside(ledger: Ledger, grant: Grant) -> str:
    """Why a container is not in its zone, as it was found out last: by a try to move it, or at its create."""
    return ledger.unpinned.get(grant.key, "") or grant.why.partition(PINNED_BY)[2]


def pinned_text(override: Override) -> str:
    """How a place says that it is an override's."""
    return f"pinned to {override.text} by an override"


def override_states(ledger: Ledger, still: str) -> list[dict[str, Any]]:
    """Every override with what became of it. ``still``: why no container is moved now, "" = they are."""
    found: dict[Override, list[Grant]] = {override: [] for override in ledger.orders.overrides}
    for grant, override in _pinned(ledger):
        found[override].append(grant)
    return [
        {**asdict(override), **_state(ledger, override, found[override], still)}
        for override in ledger.orders.overrides
    ]


def _state(ledger: Ledger, override: Override, grants: Iterable[Grant], still: str) -> dict[str, str]:
    cpus = ledger.zone_cpus.get(override.zone)
    if cpus is None:
        return {
            "state": REFUSED,
            "sentence": f"this machine has no zone {override.text}, expected one of {names_text(ledger.zones)}",
        }
    matching = list(grants)
    away = [grant for grant in matching if not grant.cpus <= cpus]
    if not matching:
        return {"state": WAITING, "sentence": "no container of that name runs here"}
    if not away:
        return {"state": APPLIED, "sentence": ""}
    refused = next(filter(None, (_why_outside(ledger, grant) for grant in away)), "")
    if refused:
        return {"state": REFUSED, "sentence": refused}
    paths = ", ".join(grant.container.path for grant in away[:3])
    return {"state": WAITING, "sentence": still or f"{paths} is to be moved"}
