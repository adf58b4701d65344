"""The engine: who has which place, and every way that can change.

One object holds the grants, the tickets and the node's books. Every public method is one transition: it runs
to its end without waiting for anything, or raises and leaves no trace. What has to happen in the world is
returned (an ``Admission``, ``Update``s); what has to be written down is collected in the journal, which the
shell drains after each call. Times are seconds since boot, given by the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, Callable, Optional, TypeVar, Union, cast

from cri_proxy.core.cri import scoped_annotation
from cri_proxy.core.grants import Admission, Grant, Life, Plan, Record, Stance, Ticket, TicketKind, Update
from cri_proxy.core.host import EngineOptions, Host
from policies.cpus import NO_CPUS, format_cpus
from policies.hygon import wanted_milli
from policies.memory import Memory, choose_memory
from policies.model import (
    NO_FENCE,
    UNTOUCHED,
    Affinity,
    BudgetSpent,
    Container,
    Decision,
    Fence,
    Placement,
    PlacementRefused,
    Pod,
    PodSize,
    Qos,
    Resources,
)
from policies.node import Node, Resident
from policies.registry import Policy
from policies.topology import Topology

#: Annotations that opt a container out, with the value that does it: ours, and nri-plugins' two.
OPT_OUT = {
    "cri-resmgr.io/manage": "false",
    "cpu.preserve.resource-policy.nri.io": "true",
    "memory.preserve.resource-policy.nri.io": "true",
}
#: Books key of the CPUs that kubelet has assigned to containers that were not created yet.
KUBELET_KEY = "kubelet"
HISTORY = 1000
#: As much of an error message is kept: runc's name the file that failed after 200 of how it got there (seen).
MESSAGE_CHARS = 1000

#: Exclusive sets that are placed anew change the sets of others, and so on; it settles in two or three rounds.
REFRESH_ROUNDS = 8

JournalKey = tuple[str, str]
JournalValue = Union[Grant, Ticket, Pod, Record, float, None]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _transition(method: _Method) -> _Method:
    """A public method that changes records: it runs to its end, or what it has done is undone."""

    @wraps(method)
    def run(self: Engine, *args: Any, **kwargs: Any) -> Any:
        if self._undo is not None:  # it is a part of another one
            return method(self, *args, **kwargs)
        self._undo = {}
        newest = self.history[-1].number if self.history else 0
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self._roll_back(newest)
            raise
        finally:
            self._undo = None

    return cast(_Method, run)


class Engine:
    """All state about placements of one node. ``version`` grows with every change."""

    def __init__(self, host: Host, policy: Policy, options: EngineOptions, affinity: Optional[Affinity] = None) -> None:
        self.host = host
        self.policy = policy
        self.options = options
        self.affinity = affinity
        self.grants: dict[str, Grant] = {}
        self.tickets: dict[str, Ticket] = {}
        self.pods: dict[str, Pod] = {}
        #: Until when the next create of (pod uid, container name) goes through untouched.
        self.distrusted: dict[tuple[str, str], float] = {}
        self.start_failures: dict[tuple[str, str], int] = {}
        self.history: deque[Record] = deque(maxlen=HISTORY)
        self.version = 0
        self.longest_create_s = 0.0
        self.counter = 0
        self._journal: dict[JournalKey, JournalValue] = {}
        #: While a transition runs: the records it has changed, as (table, key, value before).
        self._undo: Optional[dict[JournalKey, tuple[dict[Any, Any], Any, Any]]] = None
        #: Keys of grants by (pod uid, container name) and by sandbox.
        self._names: dict[tuple[str, str], set[str]] = {}
        self._sandboxes: dict[str, set[str]] = {}
        self.node = self._new_node(host)
        #: The pools for which every dependent set was last computed: without a change of them nothing can have moved.
        self._refreshed = self._pools()

    # ------------------------------------------------------------------ pods

    @_transition
    def add_pod(self, pod: Pod) -> None:
        """Remember a sandbox that is running."""
        self._change("pod", self.pods, pod.id, pod)

    @_transition
    def resize_pod(self, sandbox_id: str, size: Optional[PodSize]) -> None:
        """UpdatePodSandboxResources was accepted: the pod's size from now on."""
        pod = self.pods.get(sandbox_id)
        if pod is not None and size is not None:
            self.add_pod(replace(pod, size=size))

    @_transition
    def end_pod(self, sandbox_id: str) -> tuple[Update, ...]:
        """The sandbox was stopped or removed: its containers are gone, and its holds end."""
        for key in sorted(self._sandboxes.get(sandbox_id, ())):
            if self.grants[key].life is not Life.CREATING:
                self._drop(key)
        self._drop_replaced(lambda grant: grant.container.pod.id == sandbox_id)
        pod = self.pods.get(sandbox_id)
        if pod is not None:
            self._change("pod", self.pods, sandbox_id, None)
            for who in [w for w in self.start_failures if w[0] == pod.uid]:
                del self.start_failures[who]
        return self._refresh()

    # ------------------------------------------------------------------ creating a container

    @_transition
    def admit(self, container: Container, fence: Fence, now_s: float, enforce: bool = True) -> Admission:
        """Reserve a place for a container that is about to be created.

        ``enforce`` False (mode observe): decide and remember, send nothing.

        :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
        """
        stance, reason = self._stance(container, fence, now_s)
        # 1. Set aside what this container replaces: earlier attempts, and init containers that have finished.
        replaced = self._predecessors(container)
        keys = {g.key for g in replaced}
        # Should they come back: nobody waits for them any more, so ``resync`` must find out.
        replaced_tickets = tuple(replace(t, in_doubt=True) for t in self.tickets.values() if t.key in keys)
        self._set_aside(replaced, replaced_tickets)
        # 2. Decide.
        given_up: tuple[Grant, ...] = ()
        if stance is Stance.PLACED:
            decision, given_up = self._decide(container, fence, replaced)
            if not decision.placement.cpus:
                stance = Stance.UNTOUCHED
        else:
            decision = Decision(UNTOUCHED, reason)
        # 3. Book it under the ticket.
        runs_on = NO_CPUS
        if stance is Stance.PLACED and not enforce:
            stance = Stance.OBSERVED
        if stance is not Stance.PLACED:
            runs_on = fence.cpus or self.host.parent_cpus or self.host.usable
        self.counter += 1
        key = f"ticket-{self.counter}"
        grant = Grant(key, container, decision.placement, stance, fence, runs_on=runs_on, since_s=now_s, why=decision.why)
        sent = decision.placement if stance is Stance.PLACED else UNTOUCHED
        ticket = Ticket(key, TicketKind.CREATE, key, now_s, "", sent, False, replaced + given_up, replaced_tickets)
        self._put(grant)
        self._put_ticket(ticket)
        self._record("create", key, grant, now_s)
        before, after = _split(self._refresh())
        return Admission(key, decision, stance, sent, before, after)

    @_transition
    def bind(self, ticket_id: str, container_id: str, now_s: float) -> tuple[Update, ...]:
        """The runtime has created the container. Returns what it missed while it was on its way."""
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self._drop_ticket(ticket_id)
        pending = self.grants[ticket.key]
        self._drop(ticket.key)
        if container_id in self.grants:
            self._drop(container_id)
        if not ticket.in_doubt:
            self.longest_create_s = max(self.longest_create_s, now_s - ticket.since_s)
        bound = replace(pending, key=container_id, life=Life.CREATED, since_s=now_s)
        self._put(bound)
        self._rename(ticket_id, container_id)
        updates = self._refresh()
        return self._with_missed(updates, container_id, ticket.sent, "changed while the container was being created")

    @_transition
    def cancel(self, ticket_id: str, now_s: float, reason: str = "refused by the runtime") -> tuple[Update, ...]:
        """The runtime has said no, or nothing was sent: as if it had never been asked for."""
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self._drop_ticket(ticket_id)
        self._drop(ticket.key)
        self._put_back(ticket.replaces, ticket.replaced_tickets)
        self._outcome(ticket.target or ticket_id, reason)
        return self._refresh()

    @_transition
    def doubt(self, ticket_id: str) -> None:
        """Nobody knows whether the container exists: it keeps its CPUs until ``resync`` finds out."""
        ticket = self.tickets.get(ticket_id)
        if ticket is not None:
            self._put_ticket(replace(ticket, in_doubt=True))
            self._outcome(ticket.target or ticket_id, "in doubt")

    # ------------------------------------------------------------------ resizing a container

    @_transition
    def resize(self, container_id: str, resources: Resources, fence: Fence, now_s: float) -> Optional[Admission]:
        """Reserve the place a container gets with new resources; its old one stays reserved until ``commit``.

        ``fence``: a cpuset in the request is the new fence. None if the container is not known.
        """
        old = self.grants.get(container_id)
        if old is None or old.life is Life.CREATING:
            return None
        new_fence = Fence(fence.cpus or old.fence.cpus, fence.mems or old.fence.mems)
        container = replace(old.container, resources=resources)
        self.counter += 1
        key = f"ticket-{self.counter}"
        decision, stance, runs_on = self._resized(old, container, new_fence, fence, now_s)
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
        self._put(pending)
        sent = decision.placement if stance is Stance.PLACED else UNTOUCHED
        self._put_ticket(Ticket(key, TicketKind.RESIZE, key, now_s, container_id, sent))
        self._record("resize", container_id, pending, now_s)
        before, after = _split(self._refresh())
        return Admission(key, decision, stance, sent, before, after)

    @_transition
    def commit(self, ticket_id: str, now_s: float) -> tuple[Update, ...]:
        """The runtime has accepted a resize: the new place replaces the old one. Returns updates for others and itself."""
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            return ()
        self._drop_ticket(ticket_id)
        pending = self.grants[ticket.key]
        self._drop(ticket.key)
        old = self.grants.get(ticket.target)
        if old is None:  # it was removed meanwhile
            return self._refresh()
        bound = replace(old, container=pending.container, fence=pending.fence)
        # What was released, or given up as foreign, while the request was on its way stays so.
        if old.stance not in (Stance.RELEASED, Stance.FOREIGN) or pending.stance is not Stance.PLACED:
            bound = replace(
                bound,
                placement=pending.placement,
                stance=pending.stance,
                runs_on=pending.runs_on,
                displaced=pending.displaced,
                why=pending.why,
            )
        self._put(bound)
        self._outcome(ticket.target, "resized")
        updates = self._refresh()
        return self._with_missed(updates, ticket.target, ticket.sent, "changed while the container was being resized")

    def _with_missed(self, updates: tuple[Update, ...], key: str, sent: Placement, why: str) -> tuple[Update, ...]:
        """Updates after a request has arrived that carried ``sent``; its own container gets one if that is not its place."""
        grant = self.grants[key]
        others = tuple(u for u in updates if u.id != key)
        if not sent.cpus or grant.life is Life.HELD:
            return others
        if grant.stance is Stance.RELEASED:
            place = Placement(cpus=grant.runs_on)
        elif grant.stance is Stance.PLACED:
            place = grant.placement
        else:
            return others
        if (place.cpus, place.mems or sent.mems) == (sent.cpus, sent.mems):
            return others
        return (*others, Update(key, place, bool(sent.cpus - place.cpus), why))

    def _resized(
        self, old: Grant, container: Container, fence: Fence, asked: Fence, now_s: float
    ) -> tuple[Decision, Stance, frozenset[int]]:
        if old.stance is not Stance.PLACED and not (old.stance is Stance.KUBELET and asked.cpus):
            runs_on, placement = asked.cpus or old.runs_on, old.placement
            if old.stance is Stance.ADOPTED and asked.cpus:
                placement = replace(placement, home=asked.cpus, exclusive=placement.exclusive & asked.cpus)
            return Decision(placement, f"{old.stance.value}: left as it is"), old.stance, runs_on
        if self._kubelet_owned(container, fence):
            return Decision(UNTOUCHED, "kubelet gave it CPUs of its own"), Stance.KUBELET, fence.cpus or NO_CPUS
        same_wish = wanted_milli(container) == wanted_milli(old.container) and fence.cpus == old.fence.cpus
        stay = old.placement
        with self._without([old.key]):
            if not same_wish or not stay.cpus:
                decision = self.policy.place(self.node, container, fence, self.affinity, stay.home or None)
                if not decision.placement.cpus:
                    untouched = Decision(UNTOUCHED, decision.why)
                    return untouched, Stance.UNTOUCHED, fence.cpus or self.host.parent_cpus or self.host.usable
                if decision.placement.level != stay.level or not self._still_holds(stay, container, fence):
                    moved = self._keep_memory(stay, decision.placement, fence)
                    return replace(decision, placement=moved), Stance.PLACED, NO_CPUS
            return self._stay(stay, container, fence, old), Stance.PLACED, NO_CPUS

    def _still_holds(self, stay: Placement, container: Container, fence: Fence) -> bool:
        cpus = self._effective(stay, fence)
        room = len(cpus) * 1000 - self.node.charge_milli(cpus)
        return bool(cpus) and len(cpus) * 1000 >= wanted_milli(container) and room >= container.resources.milli_request

    def _stay(self, stay: Placement, container: Container, fence: Fence, old: Grant) -> Decision:
        """The same CPUs, without the container in the books; memory nodes are only added, where a larger limit needs them."""
        cpus = self._effective(stay, fence) or stay.cpus
        kept = replace(stay, cpus=cpus)
        why = "stays where it is: the same rung"
        same_limit = container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes
        if stay.mems and not (same_limit and fence.mems == old.fence.mems):
            memory = self._memory_for(cpus, container, fence)
            kept = self._keep_memory(stay, replace(kept, mems=memory.nodes, memory_charge=memory.charge), fence)
            why += f"; {memory.why}" if memory.why else ""
        return Decision(kept, why)

    def _memory_for(self, cpus: frozenset[int], container: Container, fence: Fence) -> Memory:
        """Memory nodes for CPUs that the policy has not chosen just now; none if it sets none."""
        settings = getattr(self.policy, "settings", None)
        if settings is None:
            return Memory()
        limit = container.resources.memory_limit_bytes
        return choose_memory(self.node, cpus, limit, settings.memory, settings.memory_only_nodes, fence.mems)

    def _keep_memory(self, old: Placement, new: Placement, fence: Fence) -> Placement:
        """A change of CPUs inside the memory nodes never touches them; else the old ones stay beside the new."""
        if not old.mems:
            return replace(new, mems=NO_CPUS, memory_charge=())
        allowed = self.node.mems if fence.mems is None else self.node.mems & fence.mems
        kept = old.mems & allowed
        if not kept:
            return new
        if not new.mems:  # its memory limit is gone; its memory is still there
            return replace(new, mems=kept, memory_charge=())
        same_limit = sum(size for _, size in old.memory_charge) == sum(size for _, size in new.memory_charge)
        if same_limit and kept == old.mems and self.host.topology.nodes_of(new.cpus) <= kept:
            return replace(new, mems=kept, memory_charge=old.memory_charge)
        return replace(new, mems=kept | new.mems)

    # ------------------------------------------------------------------ the life of a container

    @_transition
    def started(self, container_id: str) -> None:
        """StartContainer was accepted, or the container was seen running."""
        grant = self.grants.get(container_id)
        if grant is None:
            return
        self.start_failures.pop((grant.container.pod.uid, grant.container.name), None)
        if grant.life is Life.CREATED:
            self._put(replace(grant, life=Life.RUNNING))

    @_transition
    def start_failed(self, container_id: str, message: str, now_s: float) -> bool:
        """StartContainer failed. True if the next create of this pod and name will go through untouched for it."""
        grant = self.grants.get(container_id)
        if grant is None or grant.stance is not Stance.PLACED:
            return False
        who = (grant.container.pod.uid, grant.container.name)
        self.start_failures[who] = self.start_failures.get(who, 0) + 1
        text = message.lower()
        ours = any(word in text for word in ("cpuset", "cpus", "mems"))
        self._outcome(container_id, f"start failed: {message[:MESSAGE_CHARS]}")
        if not ours and self.start_failures[who] < 2:
            return False
        self._change("distrust", self.distrusted, who, now_s + self.options.distrust_s)
        return True

    @_transition
    def exited(self, container_id: str, exit_code: Optional[int], now_s: float) -> tuple[Update, ...]:
        """The container stopped (``exit_code`` None: not known yet). Its place is held for its next attempt."""
        grant = self.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return ()
        if grant.stance not in (Stance.PLACED, Stance.OBSERVED):
            self._drop(container_id)
            return self._refresh()
        if grant.life is Life.HELD and (exit_code is None or grant.exit_code is not None):
            return ()
        finished = exit_code == 0
        hold_s = self.options.finished_hold_s if finished else self.options.restart_hold_s
        since_s = grant.since_s if grant.life is Life.HELD else now_s
        self._put(replace(grant, life=Life.HELD, since_s=since_s, hold_until_s=since_s + hold_s, exit_code=exit_code))
        return ()

    @_transition
    def remove(self, container_id: str) -> tuple[Update, ...]:
        """The container is gone from the runtime: this attempt's place is free, no other's."""
        grant = self.grants.get(container_id)
        if grant is None:
            self._drop_replaced(lambda g: g.key == container_id)
        if grant is None or grant.life is Life.CREATING:
            return ()
        self._drop(container_id)
        return self._refresh()

    @_transition
    def tick(self, now_s: float) -> tuple[Update, ...]:
        """Let time pass: holds end, and so does distrust."""
        over = [k for k, g in self.grants.items() if g.life is Life.HELD and g.hold_until_s <= now_s]
        for key in over:
            self._drop(key)
        for who in [w for w, until_s in self.distrusted.items() if until_s <= now_s]:
            self._change("distrust", self.distrusted, who, None)
        return self._refresh()

    # ------------------------------------------------------------------ by command

    @_transition
    def release(self, container_id: str) -> Optional[Update]:
        """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
        grant = self.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return None
        if grant.stance is Stance.KUBELET:
            return None
        if grant.stance not in (Stance.PLACED, Stance.ADOPTED, Stance.OBSERVED):
            self._put(replace(grant, stance=Stance.RELEASED, displaced=None, why="released by command"))
            return None
        cpus, mems = self._unmanaged_place(grant)
        self._put(replace(grant, stance=Stance.RELEASED, runs_on=cpus, displaced=None, why="released by command"))
        if grant.stance is Stance.OBSERVED or grant.life is Life.HELD:
            return None
        place = Placement(cpus=cpus, mems=mems if grant.placement.mems else NO_CPUS)
        return Update(container_id, place, bool(grant.cpus - cpus), "released")

    def _unmanaged_place(self, grant: Grant) -> tuple[frozenset[int], frozenset[int]]:
        return grant.fence.cpus or self.host.parent_cpus or self.host.usable, grant.fence.mems or self.host.mems

    @_transition
    def manage(self, container_id: str) -> Optional[Update]:
        """Place a container that is not managed; None if it is unknown or cannot be placed.

        :raises PlacementRefused, BudgetSpent: as the policy.
        """
        grant = self.grants.get(container_id)
        if grant is None or grant.life not in (Life.CREATED, Life.RUNNING):
            return None
        if grant.stance in (Stance.PLACED, Stance.KUBELET):
            return None
        with self._without([container_id]):
            decision = self.policy.place(self.node, grant.container, grant.fence, self.affinity)
        if not decision.placement.cpus:
            return None
        placed = self._placed(grant, decision.placement, decision.why)
        self._put(placed)
        self._record("adopt", container_id, placed, grant.since_s)
        place = placed.placement
        return Update(container_id, place, bool(grant.runs_on - place.cpus), "taken under management by command")

    def _placed(self, grant: Grant, placement: Placement, why: str) -> Grant:
        return replace(
            grant, stance=Stance.PLACED, placement=placement, runs_on=NO_CPUS, displaced=None, repairs=(), why=why
        )

    @_transition
    def apply(self, plan: Plan) -> tuple[Update, ...]:
        """Carry out the moves of a plan that still hold; the others are dropped."""
        stale = plan.version != self.version
        updates = []
        for move in plan.moves:
            grant = self.grants.get(move.id)
            if grant is None or grant.stance is not Stance.PLACED or grant.exclusive or grant.life is Life.HELD:
                continue
            placement = replace(grant.placement, home=move.home, level=move.level)
            cpus = self._effective(placement, grant.fence)
            with self._without([grant.key]):
                if not cpus or (stale and not self._still_holds(placement, grant.container, grant.fence)):
                    continue
                memory = self._memory_for(cpus, grant.container, grant.fence)
            placement = replace(placement, cpus=cpus, mems=memory.nodes, memory_charge=memory.charge)
            placement = self._keep_memory(grant.placement, placement, grant.fence)
            moved = replace(grant, placement=placement, displaced=None, why=move.why or plan.why)
            self._put(moved)
            if _has_changed(grant, moved) and grant.life is not Life.CREATING:
                updates.append(_update(grant, moved))
        return tuple(updates)

    # ------------------------------------------------------------------ the node changes

    @_transition
    def rehost(self, host: Host, policy: Optional[Policy] = None, options: Optional[EngineOptions] = None) -> tuple[Update, ...]:
        """The machine, its usable CPUs or the configuration have changed. Nothing is moved that need not."""
        before = self.host, self.policy, self.options, self.node
        old_topology = self.host.topology
        try:
            self.host = host
            self.policy = policy or self.policy
            self.options = options or self.options
            self.node = self._new_node(host)
            for grant in list(self.grants.values()):
                grown = _grown(grant, old_topology, host.topology)
                if grown is not grant:
                    self._store(grown)
                self.node.add(grant.key, _resident(grown))
            return self._refresh(force=True)
        except BaseException:
            self.host, self.policy, self.options, self.node = before
            raise

    def _new_node(self, host: Host) -> Node:
        node = Node(host.topology, host.usable, host.mems, host.reserved)
        assigned: frozenset[int] = frozenset().union(*host.kubelet_exclusive.values()) & host.topology.online
        if assigned:
            node.add(KUBELET_KEY, Resident("", 0, 0, NO_CPUS, assigned))
        return node

    def _refresh(self, force: bool = False) -> tuple[Update, ...]:
        """Recompute every set that depends on others, and say whose has really changed. Losers come first."""
        if not force and self._refreshed == self._pools():
            return ()
        before = dict(self.grants)
        for _ in range(REFRESH_ROUNDS):
            self._refreshed = self._pools()
            # A resize on its way has its container in the books twice; the two are in nobody's way but others'.
            own = {t.target: self.grants[t.key].exclusive for t in self.tickets.values() if t.target}
            own.update({t.key: before[t.target].exclusive for t in self.tickets.values() if t.target in before})
            for key in sorted(self.grants, key=lambda k: (self.grants[k].since_s, k)):
                self._settle(self.grants[key], own.get(key, NO_CPUS))
            if self._refreshed == self._pools():
                break
        updates = [
            _update(was, now)
            for was, now in ((was, self.grants[key]) for key, was in before.items())
            if now is not was and now.life in (Life.CREATED, Life.RUNNING) and _has_changed(was, now)
        ]
        return tuple(sorted(updates, key=lambda u: (not u.shrink, u.id)))

    def _kubelets(self) -> frozenset[int]:
        """CPUs that kubelet has given to single containers; there it has the last word."""
        known = [g.runs_on for g in self.grants.values() if g.stance is Stance.KUBELET]
        return frozenset().union(*self.host.kubelet_exclusive.values(), *known)

    def _pools(self) -> tuple[int, frozenset[int], frozenset[int]]:
        return id(self.node), self.node.shared, self.node.exclusive

    def _settle(self, grant: Grant, own: frozenset[int]) -> None:
        """Bring one grant in line with the pools; ``own``: CPUs that are exclusive to it by another record."""
        if grant.stance is Stance.PLACED or (grant.stance is Stance.UNTOUCHED and grant.displaced is not None):
            self._settle_placed(grant, own)
        elif grant.stance is Stance.ADOPTED:
            self._settle_adopted(grant, own)

    def _settle_placed(self, grant: Grant, own: frozenset[int]) -> None:
        # 1. Back to the place it had before its CPUs went away, if all of that is there again.
        back = grant.displaced
        if back is not None and self._is_free(back, grant, own):
            mems = (back.mems & self.node.mems) or grant.placement.mems
            back = replace(back, mems=mems)
            self._put(self._placed(grant, back, "its first place is there again"))
            return
        # 2. The same domain, as far as it may be used now.
        placement = grant.placement
        cpus = self._effective(placement, grant.fence, own)
        if cpus and placement.exclusive.isdisjoint((self._kubelets() - own) | self.node.reserved):
            mems = placement.mems & self.node.mems
            if cpus != placement.cpus or mems != placement.mems:
                why = "CPUs of its domain came or went" if cpus != placement.cpus else "memory nodes came or went"
                charge = placement.memory_charge
                if placement.mems and not mems:
                    with self._without([grant.key]):
                        memory = self._memory_for(cpus, grant.container, grant.fence)
                    anywhere = self.node.mems if grant.fence.mems is None else NO_CPUS
                    mems, charge = memory.nodes or anywhere, memory.charge
                self._put(replace(grant, placement=replace(placement, cpus=cpus, mems=mems, memory_charge=charge), why=why))
            return
        # 3. Nothing of it is left: somewhere else, with the way back kept; or nowhere, until there is something.
        first = back or placement
        anew = self._place_anew(grant)
        if anew is not None and anew.placement.cpus:
            kept = self._keep_memory(placement if placement.cpus else first, anew.placement, grant.fence)
            moved = self._placed(grant, kept, f"its CPUs are gone: {anew.why}")
            self._put(replace(moved, displaced=first))
        elif grant.stance is Stance.PLACED:
            why = "its CPUs are gone, and there are no others for it"
            runs_on = (placement.cpus & self.host.topology.online) or grant.fence.cpus or self.host.parent_cpus
            self._put(
                replace(grant, stance=Stance.UNTOUCHED, placement=UNTOUCHED, runs_on=runs_on, displaced=first, why=why)
            )

    def _settle_adopted(self, grant: Grant, own: frozenset[int]) -> None:
        """An adopted container keeps what it has, less what others now own."""
        online = self.host.topology.online
        cpus = (grant.placement.home & online) - (self.node.exclusive - grant.exclusive - own)
        if cpus == grant.runs_on & online:
            return
        if cpus:
            self._put(replace(grant, runs_on=cpus, why="CPUs it ran on belong to another now"))
            return
        anew = self._place_anew(grant)
        if anew is not None and anew.placement.cpus:
            self._put(self._placed(grant, anew.placement, f"its CPUs are gone: {anew.why}"))

    def _place_anew(self, grant: Grant) -> Optional[Decision]:
        """Where the policy would put a container that is in the books now; None if it will not."""
        with self._without([grant.key]):
            try:
                return self.policy.place(self.node, grant.container, grant.fence, self.affinity)
            except (PlacementRefused, BudgetSpent):
                return None

    def _is_free(self, place: Placement, grant: Grant, own: frozenset[int]) -> bool:
        others = self.node.exclusive - grant.exclusive - own
        return place.exclusive.isdisjoint(others) and self._effective(place, grant.fence, own) == place.cpus

    def _effective(self, placement: Placement, fence: Fence, own: frozenset[int] = NO_CPUS) -> frozenset[int]:
        """The CPUs of a placement that may be used now."""
        if placement.level == "reserved":
            cpus = self.node.shared_reserved
        else:
            cpus = placement.home & (self.node.shared | (own & self.node.usable))
        cpus |= placement.exclusive & self.node.usable
        return cpus if fence.cpus is None else cpus & fence.cpus

    @contextmanager
    def _without(self, keys: Iterable[str]) -> Iterator[None]:
        """The node's books without some containers, for as long as a question is asked."""
        removed = [(key, self.node.remove(key)) for key in keys]
        try:
            yield
        finally:
            for key, resident in removed:
                self.node.add(key, resident)

    # ------------------------------------------------------------------ deciding

    def _stance(self, container: Container, fence: Fence, now_s: float) -> tuple[Stance, str]:
        """Whether the container is ours to place, and why not."""
        reason = self.opted_out(container)
        if reason:
            return Stance.OPTED_OUT, reason
        if self._kubelet_owned(container, fence):
            return Stance.KUBELET, "kubelet gave it CPUs of its own"
        until_s = self.distrusted.get((container.pod.uid, container.name), 0.0)
        if until_s > now_s:
            return Stance.UNTOUCHED, "it failed to start where it was placed: untouched for ten minutes"
        if fence.cpus is not None and not fence.cpus & self.host.usable:
            return Stance.UNTOUCHED, f"the caller's cpuset {format_cpus(fence.cpus)} holds no usable CPU"
        return Stance.PLACED, ""

    def opted_out(self, container: Container) -> str:
        """Why a container is not to be managed at all; "" if it is."""
        pod = container.pod
        for key, value in OPT_OUT.items():
            given = scoped_annotation(pod.annotations, key, container.name)
            if given is not None and given.strip().lower() == value:
                return f"opted out by annotation {key}"
        if any(fnmatchcase(pod.namespace, glob) for glob in self.options.unmanaged_namespaces):
            return f"namespace {pod.namespace} is not managed"
        if pod.runtime_handler and any(fnmatchcase(pod.runtime_handler, g) for g in self.options.unmanaged_handlers):
            return f"runtime handler {pod.runtime_handler} is not managed"
        return ""

    def _kubelet_owned(self, container: Container, fence: Fence) -> bool:
        if (container.pod.uid, container.name) in self.host.kubelet_exclusive:
            return fence.cpus is not None
        request = container.resources.milli_request
        whole = request > 0 and request % 1000 == 0 and container.qos is Qos.GUARANTEED
        return whole and fence.cpus is not None and len(fence.cpus) * 1000 == request

    def _decide(self, container: Container, fence: Fence, replaced: tuple[Grant, ...]) -> tuple[Decision, tuple[Grant, ...]]:
        """The place of the attempt before, if that can be had; else the policy's; holds of others given up if that helps."""
        again = self._same_place(container, fence, replaced)
        if again is not None:
            return again, ()
        decision = self.policy.place(self.node, container, fence, self.affinity)
        if decision.fits:
            return decision, ()
        held = sorted((g for g in self.grants.values() if g.life is Life.HELD), key=lambda g: (g.since_s, g.key))
        # Oldest first, and no more of them than needed: the smallest number with which it fits, by bisection.
        low, high = 1, len(held)
        best: Optional[tuple[int, Decision]] = None
        while low <= high:
            count = (low + high) // 2 if best is not None else high
            with self._without(g.key for g in held[:count]):
                trial = self.policy.place(self.node, container, fence, self.affinity)
            if trial.fits:
                best, high = (count, trial), count - 1
            elif best is None:
                break  # not even with all of them
            else:
                low = count + 1
        if best is None:
            return decision, ()
        # Those that are elsewhere do not help, however old.
        cpus = best[1].placement.cpus
        given_up = tuple(g for g in held[: best[0]] if not g.cpus.isdisjoint(cpus))
        self._set_aside(given_up, ())
        names = ", ".join(g.container.path for g in given_up[:3]) + ("" if len(given_up) < 4 else ", ...")
        return replace(best[1], why=f"{best[1].why}; the place held for {names} was given up"), given_up

    def _same_place(self, container: Container, fence: Fence, replaced: Iterable[Grant]) -> Optional[Decision]:
        previous = [
            g
            for g in replaced
            if g.container.name == container.name and g.stance in (Stance.PLACED, Stance.OBSERVED)
        ]
        if not previous:
            return None
        last = max(previous, key=lambda g: g.container.attempt)
        if wanted_milli(last.container) != wanted_milli(container) or last.fence.cpus != fence.cpus:
            return None
        if not self._effective(last.placement, fence):
            return None
        again = self._stay(last.placement, container, fence, last)
        return replace(again, why=f"the place of attempt {last.container.attempt} was held for it")

    def _predecessors(self, container: Container) -> tuple[Grant, ...]:
        """Grants this container takes over from: earlier attempts of it, and finished init containers of its sandbox."""
        uid, name = container.pod.uid, container.name
        in_flight = {t.key for t in self.tickets.values() if not t.in_doubt}
        found = []
        for key in sorted(self._names.get((uid, name), ())):
            grant = self.grants[key]
            earlier = grant.container.attempt < container.attempt or grant.life is Life.HELD
            if key not in in_flight and (earlier or grant.life is Life.CREATING):
                found.append(grant)
        for key in sorted(self._sandboxes.get(container.pod.id, ())):
            grant = self.grants[key]
            if grant.life is Life.HELD and grant.exit_code == 0 and grant.container.name != name:
                found.append(grant)
        # A resize that is on its way for one of them has lost its container.
        keys = {g.key for g in found}
        found += [self.grants[t.key] for t in self.tickets.values() if t.target in keys and t.key not in keys]
        return tuple(found)

    # ------------------------------------------------------------------ records

    def _set_aside(self, grants: Iterable[Grant], tickets: Iterable[Ticket]) -> None:
        for grant in grants:
            self._drop(grant.key)
        for ticket in tickets:
            self._drop_ticket(ticket.id)

    def _put_back(self, grants: Iterable[Grant], tickets: Iterable[Ticket]) -> None:
        for grant in grants:
            taken = grant.exclusive & self.node.exclusive
            if grant.key in self.grants or (taken and grant.life is Life.HELD):
                continue
            if taken:
                grant = replace(grant, placement=replace(grant.placement, exclusive=grant.placement.exclusive - taken))
            self._put(grant)
        for ticket in tickets:
            if ticket.key in self.grants:
                self._put_ticket(ticket)

    def _drop_replaced(self, gone: Callable[[Grant], bool]) -> None:
        """Containers that were removed while they were set aside are not put back."""
        for ticket in list(self.tickets.values()):
            left = tuple(g for g in ticket.replaces if g.life is Life.CREATING or not gone(g))
            if len(left) < len(ticket.replaces):
                self._put_ticket(replace(ticket, replaces=left))

    def _put(self, grant: Grant) -> None:
        """Insert or replace a grant, in the records and in the books."""
        if grant.key in self.grants:
            self.node.remove(grant.key)
        self.node.add(grant.key, _resident(grant))
        self._store(grant)

    def _store(self, grant: Grant) -> None:
        self._change("grant", self.grants, grant.key, grant)
        container = grant.container
        self._names.setdefault((container.pod.uid, container.name), set()).add(grant.key)
        self._sandboxes.setdefault(container.pod.id, set()).add(grant.key)

    def _drop(self, key: str) -> None:
        container = self.grants[key].container
        self._change("grant", self.grants, key, None)
        self.node.remove(key)
        _discard(self._names, (container.pod.uid, container.name), key)
        _discard(self._sandboxes, container.pod.id, key)

    def _put_ticket(self, ticket: Ticket) -> None:
        self._change("ticket", self.tickets, ticket.id, ticket)

    def _drop_ticket(self, ticket_id: str) -> None:
        self._change("ticket", self.tickets, ticket_id, None)

    def _change(self, kind: str, table: dict[Any, Any], key: Any, value: JournalValue) -> None:
        """Set one record (None: delete it); what it was before is kept until the transition is over."""
        name = key if isinstance(key, str) else "\n".join(key)
        if self._undo is not None:
            self._undo.setdefault((kind, name), (table, key, table.get(key)))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        self._note(kind, name, value)

    def _roll_back(self, newest: int) -> None:
        """Undo a transition that was cut short; ``newest``: the last record in the history before it."""
        undo, self._undo = self._undo or {}, {}
        for (kind, _), (table, key, before) in undo.items():
            if kind != "grant":
                self._change(kind, table, key, before)
            elif before is not None:
                self._put(before)
            elif key in self.grants:
                self._drop(key)
        self._refreshed = (0, NO_CPUS, NO_CPUS)
        for record in [r for r in self.history if r.number > newest]:
            self._amend(record.id, outcome="undone: an error in cri-resmgr")

    def _note(self, kind: str, key: str, value: JournalValue) -> None:
        self.version += 1
        self._journal[(kind, key)] = value

    def drain(self) -> dict[JournalKey, JournalValue]:
        """What has changed since the last call, to be written down: the last value of each record, None = gone."""
        journal, self._journal = self._journal, {}
        return journal

    @_transition
    def restore(self, grants: Iterable[Grant], tickets: Iterable[Ticket], pods: Iterable[Pod], history: Iterable[Record],
                distrusted: dict[tuple[str, str], float]) -> tuple[Update, ...]:  # fmt: skip
        """Take over the records of the daemon before this one. Tickets of calls that ended with it are in doubt.

        Returns updates only for containers whose CPUs are not usable any more.
        """
        for pod in pods:
            self._change("pod", self.pods, pod.id, pod)
        for grant in grants:
            self._put(grant)
        for ticket in tickets:
            self._put_ticket(replace(ticket, in_doubt=True))
        # Half of a pair is of no use to anybody.
        for ticket in [t for t in self.tickets.values() if t.key not in self.grants]:
            self._drop_ticket(ticket.id)
        pending = {t.key for t in self.tickets.values()}
        for key in [k for k, g in self.grants.items() if g.life is Life.CREATING and k not in pending]:
            self._drop(key)
        self.history.extend(history)
        for who, until_s in distrusted.items():
            self._change("distrust", self.distrusted, who, until_s)
        # A number is never used twice: ``explain`` finds decisions by it.
        used = [key.rsplit("-", 1)[1] for key in (*self.tickets, *(r.id for r in self.history)) if key.startswith("ticket-")]
        self.counter = max([self.counter, *map(int, used)])
        return self._refresh(force=True)

    @_transition
    def adopt(self, grant: Grant) -> tuple[Update, ...]:
        """Take a container into the records as it runs; it loses what belongs to others already."""
        return self._put_and_settle(grant)

    @_transition
    def amend(self, grant: Grant) -> tuple[Update, ...]:
        """Replace the record of a known container by what was found out about it."""
        if grant.key not in self.grants:
            raise KeyError(f"{grant.key} is not known")
        return self._put_and_settle(grant)

    def _put_and_settle(self, grant: Grant) -> tuple[Update, ...]:
        self._put(grant)
        self._settle(grant, NO_CPUS)
        settled = self.grants[grant.key]
        updates = self._refresh()
        if _has_changed(grant, settled) and all(u.id != grant.key for u in updates):
            updates += (_update(grant, settled),)
        return updates

    # ------------------------------------------------------------------ history

    def _record(self, operation: str, container_id: str, grant: Grant, now_s: float) -> None:
        number = self.history[-1].number + 1 if self.history else 1
        container = grant.container
        record = Record(number, now_s, operation, container.path, container.pod.uid, container_id, grant.stance.value,
                        grant.placement, grant.why)  # fmt: skip
        self._remember(record)

    def _remember(self, record: Record) -> None:
        self.history.append(record)
        self._note("record", str(record.number), record)

    def _rename(self, ticket_id: str, container_id: str) -> None:
        self._amend(ticket_id, id=container_id, outcome="created")

    def _outcome(self, container_id: str, outcome: str) -> None:
        self._amend(container_id, outcome=outcome)

    def _amend(self, container_id: str, **changes: str) -> None:
        for index in range(len(self.history) - 1, -1, -1):
            if self.history[index].id == container_id:
                self.history[index] = replace(self.history[index], **changes)  # type: ignore[arg-type]
                self._note("record", str(self.history[index].number), self.history[index])
                return


def _resident(grant: Grant) -> Resident:
    container = grant.container
    charge = grant.placement.memory_charge if grant.stance is Stance.PLACED else ()
    return Resident(
        container.pod.uid, container.resources.milli_request, wanted_milli(container), grant.cpus, grant.exclusive, charge
    )


def _has_changed(was: Grant, now: Grant) -> bool:
    """Whether the runtime has to be told: of our own cpuset, or of what is left to an adopted container."""
    if now.stance is Stance.PLACED:
        return now.cpus != was.cpus or now.placement.mems != was.placement.mems
    return now.stance is Stance.ADOPTED and now.runs_on != was.runs_on


def _update(was: Grant, now: Grant) -> Update:
    place = now.placement if now.stance is Stance.PLACED else Placement(cpus=now.runs_on)
    return Update(now.key, place, bool(was.cpus - place.cpus), now.why)


def _discard(index: dict[Any, set[str]], name: Any, key: str) -> None:
    index[name].discard(key)
    if not index[name]:
        del index[name]


def _split(updates: tuple[Update, ...]) -> tuple[tuple[Update, ...], tuple[Update, ...]]:
    return tuple(u for u in updates if u.shrink), tuple(u for u in updates if not u.shrink)


def _grown(grant: Grant, old: Topology, new: Topology) -> Grant:
    """A grant with the CPUs that have joined its domains; an adopted container keeps what it has."""
    home = _grown_home(grant.placement.home, old, new)
    if home == grant.placement.home or grant.stance is Stance.ADOPTED:
        return grant
    return replace(grant, placement=replace(grant.placement, home=home))


def _grown_home(home: frozenset[int], old: Topology, new: Topology) -> frozenset[int]:
    """A leaf it held wholly is still held wholly."""
    known = frozenset(old.cpus)
    grown = set(home)
    for leaf in new.leaves if home else ():
        if leaf.cpus - known and leaf.cpus & known and leaf.cpus & known <= home:
            grown |= leaf.cpus
    return frozenset(grown)
