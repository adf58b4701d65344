"""Requests on their way to the runtime: admitted, bound, cancelled, in doubt; and what people do to places.

Transitions: ``Engine`` makes each of them all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.cri.annotations.keys import FOLLOWED_FIELDS
from cri_proxy.cri.annotations.read import followed, understood
from cri_proxy.engine.model import (
    UNKNOWN_QUOTA,
    Admission,
    ContainerRecord,
    Life,
    Management,
    Ticket,
    TicketKind,
    Told,
)
from cri_proxy.engine.moves import with_peers
from cri_proxy.engine.place import (
    calls_for_a_place,
    decide,
    opted_out,
    predecessors,
    resized,
    same_place,
    stance_of,
    with_evictions,
)
from cri_proxy.engine.reconcile import (
    effective,
    give_places,
    inside,
    own_together,
    placed,
    put_and_reconcile,
    put_placement,
    reconcile,
    share_out_pod,
    tidy_up,
    without_past,
)
from cri_proxy.engine.state import LATE, State
from cri_proxy.engine.told import LIVING, differs, gaining, settle
from policies.exclusive.place import ask_of
from policies.machine.cpus import NO_CPUS
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementRefused,
    PodSize,
    Resources,
    altered,
    wanted_milli,
)
from policies.pod_share import with_told

#: How a resize ended that was found by a comparison, as the history tells it.
CHANGED_PAST_US = "resized past us"


def admit(
    state: State,
    container: Container,
    constraint: Constraint,
    now_s: float,
    enforce: bool = True,
    meanwhile: Optional[frozenset[int]] = None,
) -> Admission:
    """Reserve a place for a container that is about to be created: ``Engine.admit``."""
    constraint = state.host.bounded(constraint, container.pod.cgroup_parent)
    stance, reason = stance_of(state, container, constraint, now_s)
    # 1. Set aside what this container replaces: earlier attempts, and init containers that have finished.
    replaced = predecessors(state, container)
    keys = {g.key for g in replaced}
    # Should they come back: no call waits for them any more, so ``resync`` must find out.
    replaced_tickets = tuple(replace(t, in_doubt=True) for t in state.tickets.values() if t.key in keys)
    if (pod := without_past(state, container, replaced)) is not container.pod:
        container = replace(container, pod=pod)
    state.set_aside(replaced, replaced_tickets)
    container = _among_its_pod(state, container)
    # 2. Decide.
    given_up: tuple[ContainerRecord, ...] = ()
    if stance is Management.PLACED and enforce and meanwhile is not None:
        known = same_place(state, container, constraint, replaced) or state.place_by_claims(
            container, constraint
        )
        decision = known or Decision(UNTOUCHED, "")
        place = decision.placement
        if not place.cpus or not place.cpus - place.claimed <= meanwhile:
            stance, decision = Management.WAITING, _for_now(state, constraint, meanwhile)
    elif stance is Management.PLACED:
        decision, given_up = decide(state, container, constraint, replaced)
        if not decision.placement.cpus:
            stance = Management.UNTOUCHED
    else:
        decision = Decision(UNTOUCHED, reason)
    # 3. Book it under the ticket, and the containers that make room for it where they go.
    runs_on = runs_on_mems = NO_CPUS
    if stance is Management.PLACED and not enforce:
        stance = Management.OBSERVED
    if stance is not Management.PLACED:
        decision = replace(decision, others={})  # no container makes room for what is not sent
        allowed = constraint.asked if stance is Management.KUBELET else constraint
        runs_on, runs_on_mems = (
            decision.placement.cpus or allowed.cpus or state.host.parent_cpus or state.host.usable,
            allowed.mems or NO_CPUS,
        )
    key = state.next_ticket()
    grant = ContainerRecord(
        key,
        container,
        decision.placement,
        stance,
        constraint,
        runs_on=runs_on,
        runs_on_mems=runs_on_mems,
        since_s=now_s,
        why=decision.why,
    )
    sent = decision.placement if stance in (Management.PLACED, Management.WAITING) else UNTOUCHED
    aside = replaced + given_up
    ticket = Ticket(key, TicketKind.CREATE, key, now_s, "", sent, False, aside, replaced_tickets)
    _book(state, grant, ticket, decision)
    return Admission(key, decision, stance, sent)


def _for_now(state: State, constraint: Constraint, meanwhile: frozenset[int]) -> Decision:
    """The shared CPUs among these, else the reserved ones; where it may use neither, it has what the caller says."""
    allowed = state.host.usable if constraint.cpus is None else constraint.cpus & state.host.usable
    cpus = meanwhile & state.node.shared & allowed or state.node.reserved & allowed
    why = "it is not known yet which CPUs are owned: it is placed once that is"
    return Decision(Placement(cpus=cpus), why)


def _among_its_pod(state: State, container: Container) -> Container:
    """A container as it is charged in its pod, in which the others are charged with it from now on.

    What others own together and do not need with it, they have given back.
    """
    shared = share_out_pod(state, container.pod.id, container) or container
    if own_together(state, container.pod.id):
        tidy_up(state)
    return shared


def _book(state: State, pending: ContainerRecord, ticket: Ticket, decision: Decision) -> None:
    """Enter a request that is about to be sent. The containers that grow by it wait for its end."""
    owned = {name: group.own for name, group in state.node.groups.items()}
    away = {key: state.grants[key].placement for key in state.displaced}
    state.put(pending)
    moved = give_places(state, decision, pending.container)
    state.put_ticket(altered(ticket, moved=moved) if moved else ticket)
    state.record(ticket.kind.value, ticket.target or ticket.id, pending, ticket.since_s)
    reconcile(state)
    _note_others(state, state.tickets[ticket.id], owned, away)
    # Of a container that is being resized the request itself tells, also where its balloon changes.
    state.unsettled.discard(ticket.target)
    wait_already = {key for other in state.tickets.values() for key in other.waiting}
    waiting = [key for key in gaining(state, state.changed_grants()) if key not in wait_already]
    if waiting:
        state.put_ticket(altered(state.tickets[ticket.id], waiting=tuple(sorted(waiting))))


def _note_others(
    state: State, ticket: Ticket, owned: Mapping[str, frozenset[int]], away: Mapping[str, Placement]
) -> None:
    """Remember what others had before a request, where they do not get that back by themselves.

    ``owned``: what groups owned; ``away``: the places of containers that were not at their first ones.
    """
    groups = state.node.groups
    changed = {name: own for name, own in owned.items() if name not in groups or groups[name].own != own}
    if changed:
        state.owned_before[ticket.id] = changed
    again = tuple(
        (key, was, state.grants[key].placement)
        for key, was in away.items()
        if key in state.grants and state.grants[key].placement.home != was.home
    )
    if again:
        state.put_ticket(altered(ticket, moved=(*ticket.moved, *again)))


def bind(state: State, ticket_id: str, container_id: str, now_s: float) -> None:
    """The runtime has created the container: what it was told is what the request carried."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None:
        return
    state.drop_ticket(ticket_id)
    pending = state.grants[ticket.key]
    state.drop(ticket.key)
    if container_id in state.grants:
        state.drop(container_id)
    if not ticket.in_doubt:
        state.longest_create_s = max(state.longest_create_s, now_s - ticket.since_s)
    bound = altered(pending, key=container_id, life=Life.CREATED, since_s=now_s)
    if (
        pending.stance is Management.UNTOUCHED and ticket.sent.cpus
    ):  # its place has gone meanwhile; it runs there all the same
        bound = replace(bound, runs_on=ticket.sent.cpus)
    state.put(bound)
    state.rename(ticket_id, container_id)
    # One that was not given a place runs where its record says; unless that says otherwise by now.
    runs_on = None if bound.stance is Management.PLACED else bound.runs_on
    state.tell(container_id, _told(ticket, "changed while the container was being created") or Told(runs_on))
    reconcile(state)
    settle(state, container_id)


def _told(ticket: Ticket, cause: str, mems: frozenset[int] = NO_CPUS) -> Optional[Told]:
    """What a container has by a request that the runtime has taken, None if that gave it no place; ``cause``: why it is not
    its place any more, if it is not."""
    sent = ticket.sent
    return (
        Told(sent.cpus, sent.mems or mems, sent.lift_quota, cause=cause, owned=sent.exclusive | sent.claimed)
        if sent.cpus
        else None
    )


def cancel(state: State, ticket_id: str, now_s: float, reason: str = "refused by the runtime") -> None:
    """The runtime has said no, or nothing was sent: as if it had never been asked for."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None:
        return
    state.unsettled.add(ticket.target)  # it was not told by the request
    if state.take_back_request(ticket_id):
        # No call waits for those that come back: the runtime tells whether it has made them.
        for replaced in ticket.replaced_tickets:
            state.put_ticket(replaced)
        state.outcome(ticket.target or ticket_id, reason)
        return
    _hand_on(state, ticket)
    state.drop_ticket(ticket_id)
    changed_s = dict(state.node.changed_s)
    state.drop(ticket.key)
    state.node.changed_s = changed_s  # no container has gone
    state.put_back(ticket.replaces, ticket.replaced_tickets)
    state.outcome(ticket.target or ticket_id, reason)
    # A container that made room goes back, unless something else has happened to it since, or its place is taken.
    for key, before, given in ticket.moved:
        grant = state.grants.get(key)
        if grant is not None and _is_at(grant.placement, given) and _is_free(state, before, grant):
            put_placement(state, key, before, "back: the container it made room for was not created")
            if grant.displaced is not None and grant.displaced.home != before.home:
                state.put(altered(state.grants[key], displaced=grant.displaced))
    # What was set aside has not followed the changes since.
    state.node.owned_before = owned = state.owned_before.pop(ticket_id, {})
    owned = {**{name: group.own for name, group in state.node.groups.items()}, **owned}
    reconcile(state, force=bool(ticket.replaces))
    state.node.owned_before, groups = {}, state.node.groups
    # What another request has now is given back when that is taken back, too.
    for other in [ticket for ticket in state.tickets if owned][:1]:
        theirs = state.owned_before.setdefault(other, {})
        left = {name: own for name, own in owned.items() if name in groups and groups[name].own != own}
        theirs.update((name, own) for name, own in left.items() if name not in theirs)


def _is_at(place: Placement, given: Placement) -> bool:
    """Whether a container is where it was moved to, with what others have left it there."""
    return (place.home, place.exclusive, place.group) == (given.home, given.exclusive, given.group)


def _hand_on(state: State, ticket: Ticket) -> None:
    """What others had before a request that is taken back is what they had before the later ones, too."""
    booked, owned = list(state.tickets), state.owned_before.get(ticket.id, {})
    for later in [state.tickets[key] for key in booked[booked.index(ticket.id) + 1 :]]:
        if (theirs := state.owned_before.get(later.id)) is not None:
            theirs.update((name, owned[name]) for name in owned.keys() & theirs.keys())
            owned = {name: own for name, own in owned.items() if name not in theirs}
        before = {key: (was, given) for key, was, given in ticket.moved}
        moved = tuple(
            (key, before[key][0] if key in before and _is_at(was, before[key][1]) else was, given)
            for key, was, given in later.moved
        )
        if moved != later.moved:
            state.put_ticket(altered(later, moved=moved))


def _is_free(state: State, place: Placement, grant: ContainerRecord) -> bool:
    """Whether a place can be had again: neither others own what it owned, nor what it shared."""
    with state.without([grant.key]):
        is_free = place.exclusive.isdisjoint(state.node.exclusive - state.of_group(place.group))
        return is_free and effective(state, place, grant.constraint) >= place.cpus & state.node.usable


def doubt(state: State, ticket_id: str) -> None:
    """Whether the container exists is not known: it keeps its CPUs until ``resync`` finds out. No other waits for it."""
    ticket = state.tickets.get(ticket_id)
    if ticket is not None:
        state.put_ticket(replace(ticket, in_doubt=True, waiting=()))
        state.outcome(ticket.target or ticket_id, "in doubt")
        state.unsettled.discard(ticket.target)  # a look at what it has comes first


def resize(
    state: State, container_id: str, resources: Resources, constraint: Constraint, now_s: float
) -> Optional[Admission]:
    """Reserve the place a container gets with new resources; its old one stays reserved until ``commit``.

    ``constraint``: a cpuset in the request is the new constraint. None if the container is not known.
    """
    old = state.grants.get(container_id)
    if old is None or old.life is Life.CREATING:
        return None
    # 1. Set aside what this one supersedes. Should they come back, the runtime tells whether it has made them.
    open_ones = tuple(t for t in state.tickets.values() if t.target == container_id)
    superseded = tuple(state.grants[t.key] for t in open_ones)
    open_ones = tuple(replace(t, in_doubt=True, waiting=()) for t in open_ones)
    state.set_aside(superseded, open_ones)
    # 2. Decide, and book it under a ticket.
    was = old.constraint.asked
    new_fence = state.host.bounded(
        Constraint(constraint.cpus or was.cpus, constraint.mems or was.mems), old.container.pod.cgroup_parent
    )
    container = _among_its_pod(state, with_told(old.container, resources))
    old = state.grants[container_id]
    key = state.next_ticket()
    decision, stance, runs_on = resized(state, old, container, new_fence, constraint)
    pending = replace(
        old,
        key=key,
        container=container,
        placement=decision.placement,
        constraint=new_fence,
        stance=stance,
        runs_on=runs_on,
        life=Life.CREATING,
        displaced=old.displaced if decision.placement.home == old.placement.home else None,
        why=decision.why,
        is_outgrown=False,
    )
    sent = decision.placement if stance is Management.PLACED else UNTOUCHED
    ticket = Ticket(key, TicketKind.RESIZE, key, now_s, container_id, sent, False, superseded, open_ones,
                    found=old.stance)  # fmt: skip
    _book(state, pending, ticket, decision)
    told = state.told.get(container_id)
    # A request may say nothing of the quota: its own goes with it where it has another one.
    has_another = old.lifted if told is None else told.is_lifted or told.turbo_us != 0
    has_another = has_another or old.has_turbo
    return Admission(
        key, decision, stance, sent, pending.quota if has_another and not pending.lifted else None
    )


def commit(state: State, ticket_id: str, now_s: float) -> None:
    """The runtime has accepted a resize: the new place replaces the old one."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None:
        return
    was = state.grants.get(ticket.target)
    is_untold = was is not None and was.stance is Management.RELEASED and differs(state, was.key)
    _commit(state, ticket)
    grant, told = state.grants.get(ticket.target), state.told.get(ticket.target)
    if grant is not None and told is not None:
        # One that was placed meanwhile: the request may have undone that.
        runs_on = None if grant.stance is Management.PLACED else grant.runs_on
        cause = "changed while the container was being resized"
        # One that was not placed by it has its quota back by it, if that was away.
        is_lifted = told.is_lifted and grant.lifted
        now = _told(ticket, cause, told.mems)
        if now is None and is_untold and was is not None and grant.runs_on == was.runs_on:
            return  # the request has said nothing of where it is to be released to
        now = now or Told(runs_on, told.mems, is_lifted, cause=cause)
        # An update of ours that was on its way meanwhile may have got there after it.
        is_sure = told.is_sure and ticket.target not in state.under_way
        state.tell(grant.key, now._replace(is_sure=is_sure))
        settle(state, grant.key)


def _commit(state: State, ticket: Ticket) -> None:
    """A resize has been made: the new place replaces the old one."""
    state.drop_ticket(ticket.id)
    pending = state.grants[ticket.key]
    state.drop(ticket.key)
    old = state.grants.get(ticket.target)
    if old is None:  # it was removed meanwhile
        reconcile(state)
        return
    # Its own quota went with the request, and is the new one.
    bound = replace(old, container=pending.container, constraint=pending.constraint, turbo_us=0)
    # What was released, given up as foreign or taken under management while the request was on its way stays so.
    is_new = pending.stance is not ticket.found and old.stance not in (
        Management.RELEASED,
        Management.FOREIGN,
    )
    if is_new or old.stance is ticket.found:
        bound = replace(
            bound,
            placement=pending.placement,
            stance=pending.stance,
            runs_on=pending.runs_on,
            displaced=pending.displaced,
            why=pending.why,
            is_outgrown=False,
        )
        state.put(bound)
        reconcile(state)
    else:
        # Its constraint may be another one now.
        put_and_reconcile(state, replace(bound, placement=inside(bound.constraint, bound.placement)))
    state.outcome(ticket.target, "resized")


def follow_resources(
    state: State, container_id: str, resources: Resources, now_s: float, enforce: bool = True
) -> None:
    """The runtime has given a container other resources without our knowing: place it by them, as by a resize.

    ``enforce`` False: they are known, and its place is chosen the next time this is called with True. What the
    policy refuses stays where it is.
    """
    old = state.grants.get(container_id)
    if old is None or old.life in (Life.CREATING, Life.HELD):
        return
    if any(ticket.target == container_id for ticket in state.tickets.values()):
        return  # its end tells
    # 1. Nothing can be sent, or the policy will not: known, counted, and where it was.
    if not enforce:
        container = with_told(old.container, resources)
        is_outgrown = old.is_outgrown or calls_for_a_place(old, container)
        why = "its resources were changed past us; where it runs is left as it is"
        _take_over(state, old, resources, now_s, why, is_outgrown)
        return
    try:
        admission = resize(state, container_id, resources, NO_CONSTRAINT, now_s)
    except (PlacementRefused, BudgetSpent) as refusal:
        why = f"its resources were changed past us, and it stays where it is: {refusal}"
        _take_over(state, old, resources, now_s, why, is_outgrown=False)
        return
    assert admission is not None
    # 2. The runtime has made it: what remains to be told is its place.
    _commit(state, state.tickets[admission.ticket])
    state.outcome(container_id, CHANGED_PAST_US)


def resize_pod(
    state: State,
    sandbox_id: str,
    size: Optional[PodSize],
    memory_limit_bytes: int,
    now_s: float,
    enforce: bool = True,
) -> None:
    """A pod has this size and memory limit (None, 0: not told) from now on: UpdatePodSandboxResources was accepted.

    Its containers without resources of their own are placed by it, as by a resize; ``enforce`` False: the next time.
    """
    pod = state.pods.get(sandbox_id)
    if pod is None:
        return
    # 1. The pod has it, and its containers are charged what follows.
    now = replace(pod, size=size or pod.size, memory_limit_bytes=memory_limit_bytes or pod.memory_limit_bytes)
    if now == pod:
        return
    before = {key: state.grants[key] for key in sorted(state.sandboxes.get(sandbox_id, ()))}
    state.put_pod(now)
    share_out_pod(state, sandbox_id)
    # 2. Those that want more or less by it are placed anew; what they own together is the policy's to tell.
    for key, old in before.items():
        grant = state.grants[key]
        is_shared = grant.container.pod_share is not None or old.container.pod_share is not None
        if not is_shared or grant.life not in (Life.CREATED, Life.RUNNING) or grant.placement.group:
            continue
        is_ours = grant.stance in (Management.PLACED, Management.ADOPTED)
        if is_ours and wanted_milli(old.container) != wanted_milli(grant.container):
            _place_in_resized_pod(state, old, now_s, enforce)
    reconcile(state)


def follow_classes(
    state: State, sandbox_id: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> None:
    """The runtime lists a pod with these labels and annotations: what they say of classes holds from now on.

    No container is moved by it.
    """
    pod = state.pods.get(sandbox_id)
    if pod is None or (now := followed(pod, labels, annotations)) is pod:
        return
    state.change("pod", state.pods, now.id, now)
    for key in sorted(state.sandboxes.get(sandbox_id, ())):
        grant = state.grants[key]
        its = replace(grant.container.pod, labels=now.labels, annotations=now.annotations)
        container = replace(grant.container, pod=now if its == now else its)
        said = understood(container).preferences
        changes: dict[str, Any] = {name: getattr(said, name) for name in FOLLOWED_FIELDS}
        preferences = replace(container.preferences, **changes)
        state.put(replace(grant, container=replace(container, preferences=preferences)))


def _place_in_resized_pod(state: State, old: ContainerRecord, now_s: float, enforce: bool) -> None:
    """Place one container by its pod's new size; what the policy refuses stays where it is."""
    grant = state.grants[old.key]
    if not enforce or any(ticket.target == old.key for ticket in state.tickets.values()):
        state.put(replace(grant, is_outgrown=True))
        return
    try:
        decision, stance, runs_on = resized(state, old, grant.container, old.constraint, NO_CONSTRAINT)
    except (PlacementRefused, BudgetSpent) as refusal:
        state.put(replace(grant, why=f"its pod was resized, and it stays where it is: {refusal}"))
        return
    displaced = old.displaced if decision.placement.home == old.placement.home else None
    now = replace(
        grant, placement=decision.placement, stance=stance, runs_on=runs_on, displaced=displaced,
        why=decision.why, is_outgrown=False,
    )  # fmt: skip
    state.put(now)
    give_places(state, decision, now.container)
    state.record(TicketKind.RESIZE.value, old.key, state.grants[old.key], now_s)
    state.outcome(old.key, "its pod was resized")


def _take_over(
    state: State, old: ContainerRecord, resources: Resources, now_s: float, why: str, is_outgrown: bool
) -> None:
    """Take over a container's resources, and leave it where it is."""
    container = with_told(old.container, resources)
    now = replace(old, container=container, is_outgrown=is_outgrown)
    state.record(TicketKind.RESIZE.value, old.key, replace(now, why=why), now_s)
    state.outcome(old.key, CHANGED_PAST_US)
    put_and_reconcile(state, now)


# ---------------------------------------------------------------------- by command


def release(state: State, container_id: str) -> None:
    """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
    grant = state.grants.get(container_id)
    if grant is None or not grant.is_made or grant.stance is Management.KUBELET:
        return
    is_on_its_way = grant.stance is Management.RELEASED and grant.runs_on == _unmanaged_place(state, grant)[0]
    if is_on_its_way and differs(state, container_id):
        return  # it is still to be told
    # Of one that was found foreign, or is released again since the runtime had failed, it may still be away;
    # and of one whose record was lost it is not known.
    was_lifted = grant.placement.lift_quota and grant.stance is not Management.OBSERVED
    was_lifted = was_lifted or grant.stance is Management.ADOPTED or grant.quota_taken
    give_back = grant.quota if was_lifted and grant.life is not Life.HELD else None
    is_ours = grant.stance in (Management.PLACED, Management.ADOPTED, Management.OBSERVED)
    # What it has may be another one than it was told: it is told, whatever that is.
    turbo_us = UNKNOWN_QUOTA if grant.turbo_top_us else 0
    told = Told(None, is_lifted=give_back is not None, cause="released", turbo_us=turbo_us)
    grant = replace(grant, turbo_us=0)
    if not is_ours and not _keeps_its_place(state, grant):
        state.put(replace(grant, stance=Management.RELEASED, displaced=None, why="released by command"))
        state.tell(container_id, told._replace(cpus=grant.runs_on, mems=grant.runs_on_mems))
        return
    cpus, mems = _unmanaged_place(state, grant)
    # What it may be found with, if the runtime fails.
    placement = replace(grant.placement, cpus=grant.cpus, lift_quota=was_lifted)
    now = replace(
        grant,
        stance=Management.RELEASED,
        placement=placement,
        runs_on=cpus,
        runs_on_mems=mems,
        displaced=None,
    )
    state.put(replace(now, why="released by command"))
    is_told = grant.stance is not Management.OBSERVED and grant.life is not Life.HELD
    state.tell(container_id, told if is_told else told._replace(cpus=cpus, mems=mems, is_lifted=False))


def _keeps_its_place(state: State, grant: ContainerRecord) -> bool:
    """Whether a released container was found where it was before: the runtime has not taken the update."""
    online = state.host.topology.online
    is_there = grant.runs_on & online == grant.placement.cpus & online
    return (
        grant.stance is Management.RELEASED
        and is_there
        and grant.runs_on != _unmanaged_place(state, grant)[0]
    )


def _unmanaged_place(state: State, grant: ContainerRecord) -> tuple[frozenset[int], frozenset[int]]:
    return (
        grant.constraint.cpus or state.host.parent_cpus or state.host.usable,
        grant.constraint.mems or state.host.mems,
    )


def is_adoptable(state: State, grant: ContainerRecord) -> bool:
    """Whether a container is left alone for no reason of its own: it was released, ran before us or under ``observe``."""
    is_left = grant.stance in (Management.RELEASED, Management.ADOPTED, Management.OBSERVED)
    return is_left and grant.life in (Life.CREATED, Life.RUNNING) and not opted_out(state, grant.container)


def manage(
    state: State,
    container_id: str,
    cause: str = "taken under management by command",
    operation: str = "adopt",
) -> bool:
    """Place a container that is not managed; False if it is unknown or cannot be placed.

    ``cause``, ``operation``: what its update and its record say.

    :raises PlacementRefused, BudgetSpent: as the policy.
    """
    grant = state.grants.get(container_id)
    if grant is None or grant.life not in (Life.CREATED, Life.RUNNING):
        return False
    if grant.stance in (Management.PLACED, Management.KUBELET):
        return False
    grant = replace(grant, container=altered(grant.container, milli_size=None))
    with state.without([container_id]):
        decision = state.place(state.request(grant.container, grant.constraint, container_id))
        decision = with_evictions(state, grant.container, decision)
        decision = with_peers(state, grant.container, decision, container_id)
    if not decision.placement.cpus:
        return False
    managed = placed(grant, decision.placement, decision.why)
    state.put(managed)
    give_places(state, decision, grant.container)
    state.record(operation, container_id, managed, grant.since_s)
    reconcile(state)
    told = state.told.get(container_id, Told(None))
    state.tell(container_id, told._replace(cpus=None, cause=cause))
    return True


def place_waiting(state: State) -> bool:
    """Place the first of the containers that were made while it was not known which CPUs are owned; False: there is none.

    One that the policy refuses stays where it is.
    """
    waiting = (g for g in state.grants.values() if g.stance is Management.WAITING and g.life in LIVING)
    grant = min(waiting, key=lambda g: (g.since_s, g.key), default=None)
    if grant is None:
        return False
    why = "the policy has no place for it"
    try:
        if manage(state, grant.key, "it is known now which CPUs are owned", LATE):
            return True
    except (PlacementRefused, BudgetSpent) as refusal:
        why = str(refusal)
    state.put(replace(grant, stance=Management.UNTOUCHED, why=f"not placed: {why}"))
    return True


def manage_all(state: State, keys: Iterable[str]) -> dict[str, str]:
    """Place containers that are not managed, as one decision: those that are to own CPUs first, the larger before the
    smaller, so that what comes later finds what is left. By key why one is left as it is that the policy refuses."""
    settings, has_reserved = state.policy.settings, bool(state.node.reserved)

    def order(grant: ContainerRecord) -> tuple[int, int, str, str]:
        container = grant.container
        full = ask_of(container, settings, has_reserved).full
        return (-full, -wanted_milli(container), container.path, grant.key)

    left: dict[str, str] = {}
    for grant in sorted([state.grants[key] for key in keys if key in state.grants], key=order):
        try:
            manage(state, grant.key)
        except (PlacementRefused, BudgetSpent) as error:
            left[grant.key] = str(error)
    return left
