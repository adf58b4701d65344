"""The runtime's list of containers against the engine's records.

Run at start, when the runtime comes back, and every so often. The list may be older than the records (calls
went on while it was fetched): what was bound after ``listed_at_s`` is not judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Grant, Life, Seen, Stance, TicketKind, Update
from policies.cpus import NO_CPUS
from policies.model import NO_FENCE, Container, Placement, Qos

#: A cpuset that was changed back this often, each time within DRIFT_WINDOW_S of our repair, is somebody else's.
FLIPS, DRIFT_WINDOW_S = 3, 60.0


@dataclass(frozen=True)
class Resync:
    """What a resync did: updates to send, and ids by what was found."""

    updates: tuple[Update, ...] = ()
    adopted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    drifted: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()


def unknown_ids(engine: Engine, seen: Iterable[Seen]) -> tuple[str, ...]:
    """Containers that ``resync`` will want the details of: alive, not in the records and not on their way."""
    flying = _names_of_tickets(engine, in_doubt=False) | _names_of_tickets(engine, in_doubt=True)
    return tuple(
        s.id for s in seen if s.id not in engine.grants and not s.exited and (s.pod_uid, s.name, s.attempt) not in flying
    )


def resync(
    engine: Engine,
    seen: Iterable[Seen],
    details: Mapping[str, Container],
    now_s: float,
    listed_at_s: float,
    unsettled: frozenset[str] = frozenset(),
) -> Resync:
    """Bring the records in line with what runs.

    ``details``: containers by id for ``unknown_ids``. ``unsettled``: ids with an update of ours still on its
    way, whose cpuset says nothing yet.
    """
    listing = {s.id: s for s in seen}
    updates: list[Update] = []
    bound, cancelled, late = _settle_tickets(engine, listing, now_s, listed_at_s)
    updates += late
    removed = [
        g.key
        for g in engine.grants.values()
        if g.life is not Life.CREATING and g.key not in listing and g.since_s < listed_at_s
    ]
    for key in removed:
        updates += engine.remove(key)
    drifted: list[str] = []
    foreign: list[str] = []
    adopted: list[str] = []
    for item in listing.values():
        if item.id in engine.grants:
            updates += _follow(engine, item, now_s)
            if item.id not in unsettled:
                repair = _check_cpuset(engine, item, now_s, foreign)
                if repair is not None:
                    drifted.append(item.id)
                    updates.append(repair)
        elif not item.exited and item.id in details:
            updates += engine.adopt(_adoption(engine, item, details[item.id], now_s))
            adopted.append(item.id)
    return Resync(
        tuple(updates), tuple(adopted), tuple(removed), tuple(drifted), tuple(foreign), tuple(bound), tuple(cancelled)
    )


def _settle_tickets(
    engine: Engine, listing: Mapping[str, Seen], now_s: float, listed_at_s: float
) -> tuple[list[str], list[str], list[Update]]:
    """Tickets in doubt: found in the list, they are bound; not found for long enough, they are cancelled."""
    by_name = {(s.pod_uid, s.name, s.attempt): s.id for s in listing.values() if s.id not in engine.grants}
    patience_s = max(engine.options.doubt_s, 2 * engine.longest_create_s)
    bound: list[str] = []
    cancelled: list[str] = []
    updates: list[Update] = []
    for ticket in [t for t in engine.tickets.values() if t.in_doubt]:
        if ticket.kind is TicketKind.RESIZE:
            # Accepted or not, the cpuset it left behind is checked below like any other.
            updates += engine.commit(ticket.id, now_s)
            continue
        container = engine.grants[ticket.key].container
        found = by_name.get((container.pod.uid, container.name, container.attempt))
        if found is not None:
            updates += engine.bind(ticket.id, found, now_s)
            bound.append(found)
        elif now_s - ticket.since_s > patience_s and listed_at_s > ticket.since_s:
            updates += engine.cancel(ticket.id, now_s, "never appeared in the runtime's list")
            cancelled.append(ticket.id)
    return bound, cancelled, updates


def _names_of_tickets(engine: Engine, in_doubt: bool) -> set[tuple[str, str, int]]:
    containers = [engine.grants[t.key].container for t in engine.tickets.values() if t.in_doubt is in_doubt]
    return {(c.pod.uid, c.name, c.attempt) for c in containers}


def _follow(engine: Engine, item: Seen, now_s: float) -> tuple[Update, ...]:
    if item.exited:
        return engine.exited(item.id, item.exit_code, now_s)
    if item.running:
        engine.started(item.id)
    return ()


def _check_cpuset(engine: Engine, item: Seen, now_s: float, foreign: list[str]) -> Optional[Update]:
    """Repair a cpuset that is not ours any more; give up on one that somebody keeps changing."""
    grant = engine.grants.get(item.id)
    if grant is None or grant.life is Life.HELD or item.cpus is None:
        return None
    cpus = item.cpus or engine.host.parent_cpus or engine.host.usable
    if grant.stance is not Stance.PLACED:
        _follow_others(engine, grant, cpus)
        return None
    same_mems = item.mems is None or not grant.placement.mems or item.mems == grant.placement.mems
    online = engine.host.topology.online
    if cpus & online == grant.placement.cpus & online and same_mems:
        return None
    recent = grant.repairs if grant.repairs and now_s - grant.repairs[-1] <= DRIFT_WINDOW_S else ()
    if len(recent) >= FLIPS:
        engine.amend(replace(grant, stance=Stance.FOREIGN, runs_on=cpus, why="another writer keeps changing its cpuset"))
        foreign.append(grant.key)
        return None
    engine.amend(replace(grant, repairs=(*recent, now_s)))
    return Update(grant.key, grant.placement, False, "its cpuset had been changed")


def _follow_others(engine: Engine, grant: Grant, cpus: frozenset[int]) -> None:
    """Containers that are not ours are charged where they run."""
    if grant.stance is Stance.OBSERVED or cpus == grant.runs_on:
        return
    placement = grant.placement
    if grant.stance is Stance.ADOPTED:
        if cpus == grant.runs_on:
            return
        placement = replace(placement, home=cpus)
    engine.amend(replace(grant, runs_on=cpus, placement=placement))


def _adoption(engine: Engine, item: Seen, container: Container, now_s: float) -> Grant:
    """The record of a container that runs without one: it keeps what it has."""
    cpus = item.cpus or engine.host.parent_cpus or engine.host.usable
    life = Life.RUNNING if item.running else Life.CREATED
    reason = engine.opted_out(container)
    if reason:
        return Grant(item.id, container, Placement(), Stance.OPTED_OUT, NO_FENCE, life, cpus, now_s, why=reason)
    assigned = engine.host.kubelet_exclusive.get((container.pod.uid, container.name))
    if assigned:
        why = "kubelet gave it CPUs of its own"
        return Grant(item.id, container, Placement(), Stance.KUBELET, NO_FENCE, life, cpus, now_s, why=why)
    exclusive = cpus if engine.policy.owns_exclusively and _looks_exclusive(engine, container, item) else NO_CPUS
    why = "it ran before this daemon knew it: it keeps what it has"
    return Grant(
        item.id, container, Placement(home=cpus, exclusive=exclusive), Stance.ADOPTED, NO_FENCE, life, cpus, now_s, why=why
    )


def _looks_exclusive(engine: Engine, container: Container, item: Seen) -> bool:
    """Guaranteed, whole CPUs, as many as its cpuset has, and nobody else on them."""
    request = container.resources.milli_request
    whole = container.qos is Qos.GUARANTEED and request > 0 and request % 1000 == 0
    return whole and item.cpus is not None and len(item.cpus) * 1000 == request and not engine.node.containers_on(item.cpus)
