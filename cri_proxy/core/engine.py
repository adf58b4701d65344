"""The engine: who has which place, and every way that can change.

Every public method is one transition: it runs to its end without waiting for anything, or raises and leaves no
trace. What has to happen in the world is returned (an ``Admission``, ``Update``s); what has to be written down
is collected in the journal, which the shell drains after each call. Times are seconds since boot, given by the
caller. The records themselves are in ``books.py``, what is decided about one container in ``decide.py``, what
that does to others in ``settle.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Callable, Optional, TypeVar, cast

from cri_proxy.core.books import MESSAGE_CHARS, Books, JournalKey, JournalValue, resident_of
from cri_proxy.core.decide import decide, predecessors, resized, stance_of, still_holds
from cri_proxy.core.grants import Admission, Grant, Life, Plan, Record, Stance, Ticket, TicketKind, Update
from cri_proxy.core.host import EngineOptions, Host
from cri_proxy.core.quota import lifts_to_end
from cri_proxy.core.settle import (
    barred_from_owning,
    effective,
    grown,
    has_changed,
    keep_memory,
    memory_for,
    placed,
    put_placement,
    refresh,
    settle,
    update_of,
)
from policies.cpus import NO_CPUS
from policies.model import (
    UNTOUCHED,
    Affinity,
    Container,
    Decision,
    Fence,
    Placement,
    Pod,
    PodSize,
    Resources,
)
from policies.node import Node
from policies.registry import Policy

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _transition(method: _Method) -> _Method:
    """A public method that changes records: it runs to its end, or what it has done is undone."""

    @wraps(method)
    def run(self: Engine, *args: Any, **kwargs: Any) -> Any:
        books = self.books
        if books.undo is not None:  # it is a part of another one
            return method(self, *args, **kwargs)
        books.undo = {}
        newest = books.history[-1].number if books.history else 0
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            books.roll_back(newest)
            raise
        finally:
            books.undo = None

    return cast(_Method, run)


class Engine:
    """All state about placements of one node, and its transitions."""

    def __init__(
        self, host: Host, policy: Policy, options: EngineOptions, affinity: Optional[Affinity] = None
    ) -> None:
        self.books = Books(host, policy, options, affinity)

    # ------------------------------------------------------------------ questions

    @property
    def host(self) -> Host:
        """The node as it was last read."""
        return self.books.host

    @property
    def node(self) -> Node:
        """The accounts: pools, charges, room."""
        return self.books.node

    @property
    def policy(self) -> Policy:
        return self.books.policy

    @property
    def options(self) -> EngineOptions:
        return self.books.options

    @property
    def grants(self) -> Mapping[str, Grant]:
        """Grants by container id, or by ticket while the container is being created."""
        return self.books.grants

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return self.books.tickets

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Sandboxes by id."""
        return self.books.pods

    @property
    def distrusted(self) -> Mapping[tuple[str, str], float]:
        """Until when creates of (pod uid, container name) go through untouched."""
        return self.books.distrusted

    @property
    def history(self) -> deque[Record]:
        """The last decisions, oldest first."""
        return self.books.history

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.books.version

    @property
    def longest_create_s(self) -> float:
        """The longest create seen, in seconds."""
        return self.books.longest_create_s

    def drain(self) -> dict[JournalKey, JournalValue]:
        """What has changed since the last call, to be written down: the last value of each record, None = gone."""
        return self.books.drain()

    # ------------------------------------------------------------------ pods

    @_transition
    def add_pod(self, pod: Pod) -> None:
        """Remember a sandbox that is running."""
        self.books.change("pod", self.books.pods, pod.id, pod)

    @_transition
    def resize_pod(self, sandbox_id: str, size: Optional[PodSize]) -> None:
        """UpdatePodSandboxResources was accepted: the pod's size from now on."""
        pod = self.books.pods.get(sandbox_id)
        if pod is not None and size is not None:
            self.add_pod(replace(pod, size=size))

    @_transition
    def end_pod(self, sandbox_id: str) -> tuple[Update, ...]:
        """The sandbox was stopped or removed: its containers are gone, and its holds end."""
        for key in sorted(self.books.sandboxes.get(sandbox_id, ())):
            if self.books.grants[key].life is not Life.CREATING:
                self.books.drop(key)
        self.books.drop_replaced(lambda grant: grant.container.pod.id == sandbox_id)
        pod = self.books.pods.get(sandbox_id)
        if pod is not None:
            self.books.change("pod", self.books.pods, sandbox_id, None)
            for who in [w for w in self.books.start_failures if w[0] == pod.uid]:
                del self.books.start_failures[who]
        return refresh(self.books)

    # ------------------------------------------------------------------ creating a container

    @_transition
    def admit(self, container: Container, fence: Fence, now_s: float, enforce: bool = True) -> Admission:
        """Reserve a place for a container that is about to be created.

        ``enforce`` False (mode observe): decide and remember, send nothing.

        :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
        """
        stance, reason = stance_of(self.books, container, fence, now_s)
        # 1. Set aside what this container replaces: earlier attempts, and init containers that have finished.
        replaced = predecessors(self.books, container)
        keys = {g.key for g in replaced}
        # Should they come back: nobody waits for them any more, so ``resync`` must find out.
        replaced_tickets = tuple(
            replace(t, in_doubt=True) for t in self.books.tickets.values() if t.key in keys
        )
        self.books.set_aside(replaced, replaced_tickets)
        # 2. Decide.
        given_up: tuple[Grant, ...] = ()
        if stance is Stance.PLACED:
            decision, given_up = decide(self.books, container, fence, replaced)
            if not decision.placement.cpus:
                stance = Stance.UNTOUCHED
        else:
            decision = Decision(UNTOUCHED, reason)
        # 3. Book it under the ticket, and those who make room for it where they go.
        runs_on = NO_CPUS
        if stance is Stance.PLACED and not enforce:
            stance = Stance.OBSERVED
        if stance is not Stance.PLACED:
            decision = replace(decision, others={})  # nobody makes room for what is not sent
            runs_on = fence.cpus or self.books.host.parent_cpus or self.books.host.usable
        key = self.books.next_ticket()
        grant = Grant(
            key,
            container,
            decision.placement,
            stance,
            fence,
            runs_on=runs_on,
            since_s=now_s,
            why=decision.why,
        )
        sent = decision.placement if stance is Stance.PLACED else UNTOUCHED
        ticket = Ticket(
            key, TicketKind.CREATE, key, now_s, "", sent, False, replaced + given_up, replaced_tickets
        )
        before, after = self._book(grant, ticket, decision)
        return Admission(key, decision, stance, sent, before, after)

    def _book(
        self, pending: Grant, ticket: Ticket, decision: Decision
    ) -> tuple[tuple[Update, ...], tuple[Update, ...]]:
        """Enter a request that is about to be sent; returns the updates before it and those after its reply."""
        was = dict(self.books.grants)
        self.books.put(pending)
        ticket = replace(ticket, moved=self._make_room(decision))
        self.books.put_ticket(ticket)
        self.books.record(ticket.kind.value, ticket.target or ticket.id, pending, ticket.since_s)
        updates = self._refreshed({key: was[key] for key, _, _ in ticket.moved})
        # Of a container that is being resized the request itself tells, also where its balloon changes.
        told = tuple(u for u in updates if u.id != ticket.target)
        waits = [u for u in updates if u.id in was and (not u.shrink or u.id == ticket.target)]
        if waits:
            waiting = tuple((u.id, was[u.id].cpus) for u in waits)
            self.books.put_ticket(replace(ticket, waiting=waiting))
        return tuple(u for u in told if u.shrink), tuple(u for u in told if not u.shrink)

    @_transition
    def bind(self, ticket_id: str, container_id: str, now_s: float) -> tuple[Update, ...]:
        """The runtime has created the container. Returns what it missed while it was on its way."""
        ticket = self.books.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self.books.drop_ticket(ticket_id)
        pending = self.books.grants[ticket.key]
        self.books.drop(ticket.key)
        if container_id in self.books.grants:
            self.books.drop(container_id)
        if not ticket.in_doubt:
            self.books.longest_create_s = max(self.books.longest_create_s, now_s - ticket.since_s)
        bound = replace(pending, key=container_id, life=Life.CREATED, since_s=now_s)
        self.books.put(bound)
        self.books.rename(ticket_id, container_id)
        updates = refresh(self.books)
        return self._with_missed(
            updates, container_id, ticket.sent, "changed while the container was being created"
        )

    @_transition
    def cancel(
        self, ticket_id: str, now_s: float, reason: str = "refused by the runtime"
    ) -> tuple[Update, ...]:
        """The runtime has said no, or nothing was sent: as if it had never been asked for."""
        ticket = self.books.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self.books.drop_ticket(ticket_id)
        self.books.drop(ticket.key)
        self.books.put_back(ticket.replaces, ticket.replaced_tickets)
        self.books.outcome(ticket.target or ticket_id, reason)
        # Who made room goes back, unless something else has happened to it since, or its place is taken.
        was = {}
        for key, before, given in ticket.moved:
            grant = self.books.grants.get(key)
            if grant is not None and grant.placement == given and self._is_free(before, grant):
                was[key] = grant
                put_placement(self.books, key, before, "back: the container it made room for was not created")
        # What was set aside has not followed the changes since; and who was to grow after the reply waits for it.
        updates = self._refreshed(was, force=bool(ticket.replaces))
        told = {u.id for u in updates}
        for key, cpus in ticket.waiting:
            grant = self.books.grants.get(key)
            if grant is not None and grant.stance is Stance.PLACED and key not in told and grant.cpus != cpus:
                why = "changed while another container was to be created"
                updates += (Update(key, grant.placement, bool(cpus - grant.cpus), why),)
        return updates

    def _is_free(self, place: Placement, grant: Grant) -> bool:
        return place.exclusive.isdisjoint(self.node.exclusive - grant.exclusive)

    def _make_room(self, decision: Decision) -> tuple[tuple[str, Placement, Placement], ...]:
        """Give others the placements a decision has for them; returns what they had and have now."""
        moved = []
        for key, placement in sorted(decision.others.items()):
            moved.append((key, self.books.grants[key].placement, placement))
            put_placement(self.books, key, placement, "makes room: " + decision.why)
        return tuple(moved)

    def _refreshed(self, was: Mapping[str, Grant], force: bool = False) -> tuple[Update, ...]:
        """Updates for all that have changed, those included that had the records ``was`` before."""
        updates = {u.id: u for u in refresh(self.books, force)}
        for key, before in was.items():
            now = self.books.grants.get(key)
            updates.pop(key, None)
            if now is not None and now.life in (Life.CREATED, Life.RUNNING) and has_changed(before, now):
                updates[key] = update_of(before, now)
        return tuple(sorted(updates.values(), key=lambda u: (not u.shrink, u.id)))

    @_transition
    def doubt(self, ticket_id: str) -> None:
        """Nobody knows whether the container exists: it keeps its CPUs until ``resync`` finds out."""
        ticket = self.books.tickets.get(ticket_id)
        if ticket is not None:
            self.books.put_ticket(replace(ticket, in_doubt=True))
            self.books.outcome(ticket.target or ticket_id, "in doubt")

    # ------------------------------------------------------------------ resizing a container

    @_transition
    def resize(
        self, container_id: str, resources: Resources, fence: Fence, now_s: float
    ) -> Optional[Admission]:
        """Reserve the place a container gets with new resources; its old one stays reserved until ``commit``.

        ``fence``: a cpuset in the request is the new fence. None if the container is not known.
        """
        old = self.books.grants.get(container_id)
        if old is None or old.life is Life.CREATING:
            return None
        new_fence = Fence(fence.cpus or old.fence.cpus, fence.mems or old.fence.mems)
        container = replace(old.container, resources=resources)
        key = self.books.next_ticket()
        decision, stance, runs_on = resized(self.books, old, container, new_fence, fence)
        pending = replace(
            old,
            key=key,
            container=container,
            placement=decision.placement,
            fence=new_fence,
            stance=stance,
            runs_on=runs_on,
            life=Life.CREATING,
            displaced=old.displaced if decision.placement.home == old.placement.home else None,
            why=decision.why,
        )
        sent = decision.placement if stance is Stance.PLACED else UNTOUCHED
        ticket = Ticket(key, TicketKind.RESIZE, key, now_s, container_id, sent, found=old.stance)
        before, after = self._book(pending, ticket, decision)
        give_back = pending.quota if old.lifted and not pending.lifted else None
        return Admission(key, decision, stance, sent, before, after, give_back)

    @_transition
    def commit(self, ticket_id: str, now_s: float) -> tuple[Update, ...]:
        """The runtime has accepted a resize: the new place replaces the old one. Returns updates for others and itself."""
        ticket = self.books.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self.books.drop_ticket(ticket_id)
        pending = self.books.grants[ticket.key]
        self.books.drop(ticket.key)
        old = self.books.grants.get(ticket.target)
        if old is None:  # it was removed meanwhile
            return refresh(self.books)
        bound = replace(old, container=pending.container, fence=pending.fence)
        # What was released, given up as foreign or taken under management while the request was on its way stays so.
        is_new = pending.stance is not ticket.found and old.stance not in (Stance.RELEASED, Stance.FOREIGN)
        if is_new or old.stance is ticket.found:
            bound = replace(
                bound,
                placement=pending.placement,
                stance=pending.stance,
                runs_on=pending.runs_on,
                displaced=pending.displaced,
                why=pending.why,
            )
            self.books.put(bound)
            updates = refresh(self.books)
        else:
            updates = self._put_and_settle(bound)  # its fence may be another one now
        self.books.outcome(ticket.target, "resized")
        why = "changed while the container was being resized"
        now = self.books.grants[ticket.target]
        untold = now.stance is Stance.PLACED and all(u.id != ticket.target for u in updates)
        if untold and not ticket.sent.cpus:  # placed meanwhile: the request may have undone that
            return (*updates, Update(ticket.target, now.placement, True, why))
        return self._with_missed(updates, ticket.target, ticket.sent, why)

    def _with_missed(
        self, updates: tuple[Update, ...], key: str, sent: Placement, why: str
    ) -> tuple[Update, ...]:
        """Updates after a request has arrived that carried ``sent``; its own container gets one if that is not its place."""
        grant = self.books.grants[key]
        others = tuple(u for u in updates if u.id != key)
        if grant.life is Life.HELD:
            return others
        if not sent.cpus:  # it was not asked for a place; it may have got one meanwhile
            return updates
        give_back = grant.quota if sent.lift_quota and not grant.lifted else None
        if grant.stance is Stance.RELEASED:
            place = Placement(cpus=grant.runs_on)
        elif grant.stance is Stance.PLACED:
            place = grant.placement
        elif give_back is not None:
            place = UNTOUCHED
        else:
            return others
        has_its_cpus = (place.cpus or sent.cpus, place.mems or sent.mems) == (sent.cpus, sent.mems)
        if has_its_cpus and grant.lifted == sent.lift_quota:
            return others
        return (*others, Update(key, place, bool(sent.cpus - grant.cpus), why, give_back))

    # ------------------------------------------------------------------ the life of a container

    @_transition
    def started(self, container_id: str) -> None:
        """StartContainer was accepted, or the container was seen running."""
        grant = self.books.grants.get(container_id)
        if grant is None:
            return
        self.books.start_failures.pop((grant.container.pod.uid, grant.container.name), None)
        if grant.life is Life.CREATED:
            self.books.put(replace(grant, life=Life.RUNNING))

    @_transition
    def start_failed(self, container_id: str, message: str, now_s: float) -> bool:
        """StartContainer failed. True if the next create of this pod and name will go through untouched for it."""
        grant = self.books.grants.get(container_id)
        if grant is None or grant.stance is not Stance.PLACED:
            return False
        who = (grant.container.pod.uid, grant.container.name)
        self.books.start_failures[who] = self.books.start_failures.get(who, 0) + 1
        text = message.lower()
        ours = any(word in text for word in ("cpuset", "cpus", "mems"))
        self.books.outcome(container_id, f"start failed: {message[:MESSAGE_CHARS]}")
        if not ours and self.books.start_failures[who] < 2:
            return False
        self.books.change("distrust", self.books.distrusted, who, now_s + self.books.options.distrust_s)
        return True

    @_transition
    def exited(self, container_id: str, exit_code: Optional[int], now_s: float) -> tuple[Update, ...]:
        """The container stopped (``exit_code`` None: not known yet). Its place is held for its next attempt."""
        grant = self.books.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return ()
        if grant.stance not in (Stance.PLACED, Stance.OBSERVED, Stance.RELEASED):
            self.books.drop(container_id)
            return refresh(self.books)
        if grant.life is Life.HELD and (exit_code is None or grant.exit_code is not None):
            return ()
        finished = exit_code == 0
        hold_s = self.books.options.finished_hold_s if finished else self.books.options.restart_hold_s
        since_s = grant.since_s if grant.life is Life.HELD else now_s
        self.books.put(
            replace(
                grant, life=Life.HELD, since_s=since_s, hold_until_s=since_s + hold_s, exit_code=exit_code
            )
        )
        return ()

    @_transition
    def remove(self, container_id: str) -> tuple[Update, ...]:
        """The container is gone from the runtime: this attempt's place is free, no other's."""
        grant = self.books.grants.get(container_id)
        if grant is None:
            self.books.drop_replaced(lambda g: g.key == container_id)
        if grant is None or grant.life is Life.CREATING:
            return ()
        self.books.drop(container_id)
        return refresh(self.books)

    @_transition
    def tick(self, now_s: float) -> tuple[Update, ...]:
        """Let time pass: holds end, and so does distrust."""
        over = [k for k, g in self.books.grants.items() if g.life is Life.HELD and g.hold_until_s <= now_s]
        for key in over:
            self.books.drop(key)
        for who in [w for w, until_s in self.books.distrusted.items() if until_s <= now_s]:
            self.books.change("distrust", self.books.distrusted, who, None)
        return refresh(self.books)

    # ------------------------------------------------------------------ by command

    @_transition
    def release(self, container_id: str) -> Optional[Update]:
        """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
        grant = self.books.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return None
        if grant.stance is Stance.KUBELET:
            return None
        # Of one that was found foreign, or is released again since the runtime had failed, it may still be away;
        # and of one whose record was lost nobody knows.
        was_lifted = grant.placement.lift_quota and grant.stance is not Stance.OBSERVED
        was_lifted = was_lifted or grant.stance is Stance.ADOPTED
        give_back = grant.quota if was_lifted and grant.life is not Life.HELD else None
        if grant.stance not in (Stance.PLACED, Stance.ADOPTED, Stance.OBSERVED):
            self.books.put(replace(grant, stance=Stance.RELEASED, displaced=None, why="released by command"))
            only_quota = Update(container_id, UNTOUCHED, False, "released", give_back)
            return None if give_back is None else only_quota
        cpus, mems = self._unmanaged_place(grant)
        self.books.put(
            replace(grant, stance=Stance.RELEASED, runs_on=cpus, displaced=None, why="released by command")
        )
        if grant.stance is Stance.OBSERVED or grant.life is Life.HELD:
            return None
        place = Placement(cpus=cpus, mems=mems if grant.placement.mems else NO_CPUS)
        return Update(container_id, place, bool(grant.cpus - cpus), "released", give_back)

    def _unmanaged_place(self, grant: Grant) -> tuple[frozenset[int], frozenset[int]]:
        return (
            grant.fence.cpus or self.books.host.parent_cpus or self.books.host.usable,
            grant.fence.mems or self.books.host.mems,
        )

    @_transition
    def manage(self, container_id: str) -> tuple[Update, ...]:
        """Place a container that is not managed; nothing to do if it is unknown or cannot be placed.

        Returns its update, and those of others whose CPUs it gets.

        :raises PlacementRefused, BudgetSpent: as the policy.
        """
        grant = self.books.grants.get(container_id)
        if grant is None or grant.life not in (Life.CREATED, Life.RUNNING):
            return ()
        if grant.stance in (Stance.PLACED, Stance.KUBELET):
            return ()
        with self.books.without([container_id]):
            decision = self.books.policy.place(
                self.books.node, grant.container, grant.fence, self.books.pull(grant.container)
            )
        if not decision.placement.cpus:
            return ()
        was = {key: self.books.grants[key] for key in decision.others}
        managed = placed(grant, decision.placement, decision.why)
        self.books.put(managed)
        self._make_room(decision)
        self.books.record("adopt", container_id, managed, grant.since_s)
        others = [u for u in self._refreshed(was) if u.id != container_id]
        place = self.books.grants[container_id].placement
        own = Update(
            container_id, place, bool(grant.runs_on - place.cpus), "taken under management by command"
        )
        return (*(u for u in others if u.shrink), own, *(u for u in others if not u.shrink))

    @_transition
    def apply(self, plan: Plan) -> tuple[Update, ...]:
        """Carry out the moves of a plan that still hold; the others are dropped."""
        stale = plan.version != self.books.version
        updates = []
        for move in plan.moves:
            grant = self.books.grants.get(move.id)
            if (
                grant is None
                or grant.stance is not Stance.PLACED
                or grant.exclusive
                or grant.life is Life.HELD
            ):
                continue
            placement = replace(grant.placement, home=move.home, level=move.level)
            cpus = effective(self.books, placement, grant.fence)
            with self.books.without([grant.key]):
                if not cpus or (
                    stale and not still_holds(self.books, placement, grant.container, grant.fence)
                ):
                    continue
                memory = memory_for(self.books, cpus, grant.container, grant.fence)
            placement = replace(placement, cpus=cpus, mems=memory.nodes, memory_charge=memory.charge)
            placement = keep_memory(self.books, grant.placement, placement, grant.fence)
            moved = replace(grant, placement=placement, displaced=None, why=move.why or plan.why)
            self.books.put(moved)
            if has_changed(grant, moved) and grant.life is not Life.CREATING:
                updates.append(update_of(grant, moved))
        return tuple(updates)

    # ------------------------------------------------------------------ the node, and what was found out about it

    @_transition
    def rehost(
        self, host: Host, policy: Optional[Policy] = None, options: Optional[EngineOptions] = None
    ) -> tuple[Update, ...]:
        """The machine, its usable CPUs or the configuration have changed. Nothing is moved that need not."""
        before = self.books.host, self.books.policy, self.books.options, self.books.node
        old_topology = self.books.host.topology
        try:
            self.books.host = host
            self.books.policy = policy or self.books.policy
            self.books.options = options or self.books.options
            self.books.node = self.books.new_node(host)
            for grant in list(self.books.grants.values()):
                now = grown(grant, old_topology, host.topology)
                if now is not grant:
                    self.books.store(now)
                self.books.node.add(grant.key, resident_of(now))
            return self._refreshed(self._end_lifts(before[1]), force=True)
        except BaseException:
            self.books.host, self.books.policy, self.books.options, self.books.node = before
            raise

    def _end_lifts(self, before: Policy) -> Mapping[str, Grant]:
        """Have quotas kept that the policy before this one has lifted; returns the records as they were."""
        settings = [getattr(policy, "settings", None) for policy in (before, self.books.policy)]
        was = lifts_to_end(self.books.grants.values(), *settings)
        for grant in was.values():
            self.books.put(replace(grant, placement=replace(grant.placement, lift_quota=False)))
        return was

    @_transition
    def restore(self, grants: Iterable[Grant], tickets: Iterable[Ticket], pods: Iterable[Pod], history: Iterable[Record],
                distrusted: dict[tuple[str, str], float]) -> tuple[Update, ...]:  # fmt: skip
        """Take over the records of the daemon before this one. Tickets of calls that ended with it are in doubt.

        Returns updates only for containers whose CPUs are not usable any more.
        """
        for pod in pods:
            self.books.change("pod", self.books.pods, pod.id, pod)
        # Of a CPU that is offline now the place is not known, but it is there, and may come back.
        known = frozenset(self.books.host.topology.cpus) | self.books.host.topology.data.offline
        for grant in grants:
            # A place that names CPUs this machine does not have was made for another machine: it is made anew.
            if grant.placement.home - known:
                grant = replace(grant, placement=replace(grant.placement, home=NO_CPUS), displaced=None)
            self.books.put(grant)
        for ticket in tickets:
            self.books.put_ticket(replace(ticket, in_doubt=True))
        # Half of a pair is of no use to anybody.
        for ticket in [t for t in self.books.tickets.values() if t.key not in self.books.grants]:
            self.books.drop_ticket(ticket.id)
        pending = {t.key for t in self.books.tickets.values()}
        for key in [k for k, g in self.books.grants.items() if g.life is Life.CREATING and k not in pending]:
            self.books.drop(key)
        self.books.history.extend(history)
        for who, until_s in distrusted.items():
            self.books.change("distrust", self.books.distrusted, who, until_s)
        # A number is never used twice: ``explain`` finds decisions by it.
        used = [
            key.rsplit("-", 1)[1]
            for key in (*self.books.tickets, *(r.id for r in self.books.history))
            if key.startswith("ticket-")
        ]
        self.books.counter = max([self.books.counter, *map(int, used)])
        return refresh(self.books, force=True)

    @_transition
    def adopt(self, grant: Grant) -> tuple[Update, ...]:
        """Take a container into the records as it runs; it loses what belongs to others already."""
        return self._put_and_settle(grant)

    @_transition
    def amend(self, grant: Grant) -> tuple[Update, ...]:
        """Replace the record of a known container by what was found out about it."""
        if grant.key not in self.books.grants:
            raise KeyError(f"{grant.key} is not known")
        return self._put_and_settle(grant)

    def _put_and_settle(self, grant: Grant) -> tuple[Update, ...]:
        self.books.put(grant)
        settle(self.books, grant, barred_from_owning(self.books))
        settled = self.books.grants[grant.key]
        updates = refresh(self.books)
        if has_changed(grant, settled) and all(u.id != grant.key for u in updates):
            updates += (update_of(grant, settled),)
        return updates
