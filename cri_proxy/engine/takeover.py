"""After an end with records that were not saved: what runs is right where the records say otherwise.

Containers came, went and changed places that the records know nothing of, and the runtime has been told of it. So no
cpuset is changed back: what the records lack is adopted, what contradicts what runs is given up, and what follows for
others from both mostly is what they run with already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.records import Grant, Life, ListedContainer, Stance, Ticket, TicketKind
from cri_proxy.engine.told import told_by
from policies.machine.cpus import NO_CPUS
from policies.model import Container

#: Makes the record of a container that runs; given what others own.
Adoption = Callable[[ListedContainer, Container, frozenset[int]], Grant]


def take_over(
    engine: Engine, seen: Mapping[str, ListedContainer], details: Mapping[str, Container], listed_at_s: float,
    adoption: Adoption
) -> tuple[str, ...]:  # fmt: skip
    """Bring the records in line with what runs; ``details``: containers by id that are not in the records.

    Returns the ids of the adopted. What the others were told last is what they run on.
    """
    live = [item for item in seen.values() if not item.exited]
    details = {**details, **_made_otherwise(engine, live)}
    unknown = [item for item in live if item.id not in engine.grants and item.id in details]
    gone, tickets = _gone(engine, seen, unknown, details, listed_at_s)
    owned = _owned(engine, {*gone, *(ticket.key for ticket in tickets)})
    found = [adoption(item, details[item.id], owned) for item in unknown]
    engine.take_over(gone, tickets, found)
    for grant in found:
        if grant.container.pod.id not in engine.pods:
            engine.add_pod(grant.container.pod)
    outdated = [item for item in live if is_outdated(engine, item)]
    for item in outdated:
        grant = engine.grants[item.id]
        engine.adopt(adoption(item, grant.container, _owned(engine, {item.id})))
    for update in engine.lacking():
        if update.id in seen and seen[update.id].cpus == engine.grants[update.id].cpus:
            engine.saw(update.id, **told_by(engine.grants[update.id], engine.told[update.id])._asdict())
    return tuple(item.id for item in [*unknown, *outdated])


def _made_otherwise(engine: Engine, live: Iterable[ListedContainer]) -> dict[str, Container]:
    """Containers by id whose creates are in doubt, and which run elsewhere than those asked for."""
    by_name = {(item.pod_uid, item.name, item.attempt): item for item in live}
    found = {}
    for ticket in engine.tickets.values():
        grant = engine.grants[ticket.key]
        item = by_name.get(_name(grant))
        is_create = ticket.kind is TicketKind.CREATE and ticket.in_doubt
        if is_create and item is not None and item.cpus and item.cpus != grant.placement.cpus:
            found[item.id] = grant.container
    return found


def _name(grant: Grant) -> tuple[str, str, int]:
    container = grant.container
    return container.pod.uid, container.name, container.attempt


def is_outdated(engine: Engine, item: ListedContainer) -> bool:
    """Whether a container runs elsewhere than its record says; one whose processes are elsewhere tells nothing."""
    grant, online = engine.grants.get(item.id), engine.host.topology.online
    if grant is None or grant.stance is not Stance.PLACED or grant.life is Life.HELD:
        return False
    if item.exited or not item.cpus or item.runs_in:
        return False
    return item.cpus & online != grant.placement.cpus & online


def _gone(
    engine: Engine, seen: Mapping[str, ListedContainer], unknown: Iterable[ListedContainer],
    details: Mapping[str, Container], listed_at_s: float
) -> tuple[list[str], list[Ticket]]:  # fmt: skip
    """Records of what is not there any more, and requests that must have ended: what they own would be in the way."""
    newest = {(item.pod_uid, item.name): item.attempt for item in unknown}
    made = {(item.pod_uid, item.name, item.attempt) for item in unknown}
    tickets = [
        t
        for t in engine.tickets.values()
        if t.in_doubt and (_name(engine.grants[t.key]) in made or _has_ended(engine, t, seen, newest))
    ]
    gone = [
        grant.key
        for grant in engine.grants.values()
        if grant.life is not Life.CREATING
        and (_is_earlier(grant, newest, seen) or (grant.key not in seen and grant.since_s < listed_at_s))
    ]
    return gone, tickets


def _is_earlier(
    grant: Grant, newest: Mapping[tuple[str, str], int], seen: Mapping[str, ListedContainer]
) -> bool:
    """Whether a place is held for a next attempt that is there by now."""
    name = (grant.container.pod.uid, grant.container.name)
    is_over = grant.key not in seen or seen[grant.key].exited
    return is_over and grant.container.attempt < newest.get(name, -1)


def _has_ended(
    engine: Engine, ticket: Ticket, seen: Mapping[str, ListedContainer], newest: Mapping[tuple[str, str], int]
) -> bool:
    """A request whose container has a later attempt, is being resized elsewhere, or owns what others run on by now."""
    grant = engine.grants[ticket.key]
    if ticket.kind is TicketKind.RESIZE:
        return ticket.target not in seen or is_outdated(engine, seen[ticket.target])
    if _is_earlier(grant, newest, {}):
        return True
    if any((item.pod_uid, item.name, item.attempt) == _name(grant) for item in seen.values()):
        return False
    return any(not grant.exclusive.isdisjoint(item.cpus or NO_CPUS) for item in _placed(engine, seen))


def _placed(engine: Engine, seen: Mapping[str, ListedContainer]) -> Iterator[ListedContainer]:
    for item in seen.values():
        grant = engine.grants.get(item.id)
        if grant is not None and grant.stance is Stance.PLACED and not item.exited:
            yield item


def _owned(engine: Engine, but: Iterable[str]) -> frozenset[int]:
    """What containers own, without some."""
    left = set(but)
    return NO_CPUS.union(*(g.exclusive for g in engine.grants.values() if g.key not in left))
