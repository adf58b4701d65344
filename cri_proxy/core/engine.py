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

#: Annotations that opt a container out, with the value that does it: ours, and nri-plugins' two.
OPT_OUT = {
    "cri-resmgr.io/manage": "false",
    "cpu.preserve.resource-policy.nri.io": "true",
    "memory.preserve.resource-policy.nri.io": "true",
}
#: Books key of the CPUs that kubelet has assigned to containers that were not created yet.
KUBELET_KEY = "kubelet"
HISTORY = 1000

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
        self._refreshed = (id(self.node), self.node.pool_version)

    # ------------------------------------------------------------------ pods

    def add_pod(self, pod: Pod) -> None:
        """Remember a sandbox that is running."""
        self._change("pod", self.pods, pod.id, pod)

    def resize_pod(self, sandbox_id: str, size: Optional[PodSize]) -> None:
        """UpdatePodSandboxResources was accepted: the pod's size from now on."""
        pod = self.pods.get(sandbox_id)
        if pod is not None and size is not None:
            self.add_pod(replace(pod, size=size))

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

    def admit(self, container: Container, fence: Fence, now_s: float, enforce: bool = True) -> Admission:
        """Reserve a place for a container that is about to be created.

        ``enforce`` False (mode observe): decide and remember, send nothing.

        :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
        """
        stance, reason = self._stance(container, fence, now_s)
        # 1. Set aside what this container replaces: earlier attempts, and init containers that have finished.
        replaced = self._predecessors(container)
        keys = {g.key for g in replaced}
        replaced_tickets = tuple(t for t in self.tickets.values() if t.key in keys)
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

    def doubt(self, ticket_id: str) -> None:
        """Nobody knows whether the container exists: it keeps its CPUs until ``resync`` finds out."""
        ticket = self.tickets.get(ticket_id)
        if ticket is not None:
            self._put_ticket(replace(ticket, in_doubt=True))
            self._outcome(ticket.target or ticket_id, "in doubt")

    # ------------------------------------------------------------------ resizing a container

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
            runs_on = asked.cpus or old.runs_on
            return Decision(old.placement, f"{old.stance.value}: left as it is"), old.stance, runs_on
        if self._kubelet_owned(container, fence):
            return Decision(UNTOUCHED, "kubelet gave it CPUs of its own"), Stance.KUBELET, fence.cpus or NO_CPUS
        same_wish = wanted_milli(container) == wanted_milli(old.container) and fence.cpus == old.fence.cpus
        resident = self.node.remove(old.key)
        try:
            stay = old.placement
            if not same_wish or not stay.cpus:
                decision = self.policy.place(self.node, container, fence, self.affinity, old.placement.home or None)
                if not decision.placement.cpus:
                    return Decision(UNTOUCHED, decision.why), Stance.UNTOUCHED, fence.cpus or self.host.parent_cpus
                if decision.placement.level != stay.level or not self._still_holds(stay, container, fence):
                    return replace(decision, placement=self._keep_memory(stay, decision.placement)), Stance.PLACED, NO_CPUS
            return self._stay(stay, container, fence, old), Stance.PLACED, NO_CPUS
        finally:
            self.node.add(old.key, resident)

    def _still_holds(self, stay: Placement, container: Container, fence: Fence) -> bool:
        cpus = self._effective(stay, fence)
        room = len(cpus) * 1000 - self.node.charge_milli(cpus)
        return len(cpus) * 1000 >= wanted_milli(container) and room >= container.resources.milli_request

    def _stay(self, stay: Placement, container: Container, fence: Fence, old: Grant) -> Decision:
        """The same CPUs; memory nodes are only ever added, where a larger memory limit needs them."""
        cpus = self._effective(stay, fence) or stay.cpus
        if container.resources.memory_limit_bytes == old.container.resources.memory_limit_bytes or not stay.mems:
            return Decision(replace(stay, cpus=cpus), "stays where it is: the same rung")
        settings = getattr(self.policy, "settings", None)
        if settings is None:
            return Decision(replace(stay, cpus=cpus), "stays where it is: the same rung")
        memory = choose_memory(
            self.node, cpus, container.resources.memory_limit_bytes, settings.memory, settings.memory_only_nodes, fence.mems
        )
        kept = replace(stay, cpus=cpus, mems=stay.mems | memory.nodes, memory_charge=memory.charge)
        return Decision(kept, "stays where it is: the same rung" + (f"; {memory.why}" if memory.why else ""))

    def _keep_memory(self, old: Placement, new: Placement) -> Placement:
        """A change of CPUs inside the memory nodes never touches them; else the old ones stay beside the new."""
        if not old.mems or not new.mems:
            return new if old.mems else replace(new, mems=NO_CPUS, memory_charge=())
        if self.host.topology.nodes_of(new.cpus) <= old.mems:
            return replace(new, mems=old.mems, memory_charge=old.memory_charge)
        return replace(new, mems=old.mems | new.mems)

    # ------------------------------------------------------------------ the life of a container

    def started(self, container_id: str) -> None:
        """StartContainer was accepted, or the container was seen running."""
        grant = self.grants.get(container_id)
        if grant is None:
            return
        self.start_failures.pop((grant.container.pod.uid, grant.container.name), None)
        if grant.life is Life.CREATED:
            self._put(replace(grant, life=Life.RUNNING))

    def start_failed(self, container_id: str, message: str, now_s: float) -> bool:
        """StartContainer failed. True if the next create of this pod and name will go through untouched for it."""
        grant = self.grants.get(container_id)
        if grant is None or grant.stance is not Stance.PLACED:
            return False
        who = (grant.container.pod.uid, grant.container.name)
        self.start_failures[who] = self.start_failures.get(who, 0) + 1
        text = message.lower()
        ours = any(word in text for word in ("cpuset", "cpus", "mems"))
        self._outcome(container_id, f"start failed: {message[:200]}")
        if not ours and self.start_failures[who] < 2:
            return False
        self.distrusted[who] = now_s + self.options.distrust_s
        self._note("distrust", "\n".join(who), self.distrusted[who])
        return True

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

    def remove(self, container_id: str) -> tuple[Update, ...]:
        """The container is gone from the runtime: this attempt's place is free, no other's."""
        grant = self.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return ()
        self._drop(container_id)
        return self._refresh()

    def tick(self, now_s: float) -> tuple[Update, ...]:
        """Let time pass: holds end, and so does distrust."""
        over = [k for k, g in self.grants.items() if g.life is Life.HELD and g.hold_until_s <= now_s]
        for key in over:
            self._drop(key)
        for who in [w for w, until_s in self.distrusted.items() if until_s <= now_s]:
            del self.distrusted[who]
            self._note("distrust", "\n".join(who), None)
        return self._refresh() if over else ()

    # ------------------------------------------------------------------ by command

    def release(self, container_id: str) -> Optional[Update]:
        """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
        grant = self.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return None
        cpus, mems = self._unmanaged_place(grant)
        ours = grant.stance in (Stance.PLACED, Stance.ADOPTED)
        self._put(replace(grant, stance=Stance.RELEASED, runs_on=cpus, displaced=None, why="released by command"))
        if not ours or grant.life is Life.HELD:
            return None
        return Update(container_id, Placement(cpus=cpus, mems=mems if grant.placement.mems else NO_CPUS), False, "released")

    def _unmanaged_place(self, grant: Grant) -> tuple[frozenset[int], frozenset[int]]:
        return grant.fence.cpus or self.host.parent_cpus or self.host.usable, grant.fence.mems or self.host.mems

    def manage(self, container_id: str) -> Optional[Update]:
        """Place a container that is not managed; None if it is unknown or cannot be placed.

        :raises PlacementRefused, BudgetSpent: as the policy.
        """
        grant = self.grants.get(container_id)
        if grant is None or grant.life not in (Life.CREATED, Life.RUNNING) or grant.stance is Stance.PLACED:
            return None
        resident = self.node.remove(container_id)
        try:
            decision = self.policy.place(self.node, grant.container, grant.fence, self.affinity)
        finally:
            self.node.add(container_id, resident)
        if not decision.placement.cpus:
            return None
        placed = replace(grant, stance=Stance.PLACED, placement=decision.placement, runs_on=NO_CPUS, repairs=(), why=decision.why)
        self._put(placed)
        self._record("adopt", container_id, placed, grant.since_s)
        return _update(placed, grant.runs_on, "taken under management by command")

    def apply(self, plan: Plan) -> tuple[Update, ...]:
        """Carry out the moves of a plan that still hold; the others are dropped."""
        updates = []
        for move in plan.moves:
            grant = self.grants.get(move.id)
            if grant is None or grant.stance is not Stance.PLACED or grant.exclusive or grant.life is Life.HELD:
                continue
            placement = replace(grant.placement, home=move.home, level=move.level)
            cpus = self._effective(placement, grant.fence)
            if plan.version != self.version:
                resident = self.node.remove(grant.key)
                fits = self._still_holds(replace(placement, cpus=cpus), grant.container, grant.fence)
                self.node.add(grant.key, resident)
                if not fits:
                    continue
            if cpus and cpus != grant.placement.cpus:
                updates.append(self._move(replace(grant, displaced=None), replace(placement, cpus=cpus), move.why or plan.why))
        return tuple(updates)

    # ------------------------------------------------------------------ the node changes

    def rehost(self, host: Host, policy: Optional[Policy] = None, options: Optional[EngineOptions] = None) -> tuple[Update, ...]:
        """The machine, its usable CPUs or the configuration have changed. Nothing is moved that need not."""
        old_topology = self.host.topology
        self.host = host
        self.policy = policy or self.policy
        self.options = options or self.options
        self._refreshed = (0, 0)
        self.node = self._new_node(host)
        for grant in list(self.grants.values()):
            home = _grown_home(grant.placement.home, old_topology.leaves, host.topology.leaves)
            if home != grant.placement.home:
                grant = replace(grant, placement=replace(grant.placement, home=home))
                self._store(grant)
            self.node.add(grant.key, _resident(grant))
        return self._refresh()

    def _new_node(self, host: Host) -> Node:
        node = Node(host.topology, host.usable, host.mems, host.reserved)
        assigned: frozenset[int] = frozenset().union(*host.kubelet_exclusive.values()) & host.topology.online
        if assigned:
            node.add(KUBELET_KEY, Resident("", 0, 0, NO_CPUS, assigned))
        return node

    def _refresh(self) -> tuple[Update, ...]:
        """Recompute every set that depends on others, and say whose has really changed. Losers come first."""
        if self._refreshed == (id(self.node), self.node.pool_version):
            return ()
        updates: list[Update] = []
        for key in sorted(self.grants, key=lambda k: (self.grants[k].since_s, k)):
            grant = self.grants[key]
            if grant.stance is Stance.PLACED:
                updates += self._refresh_placed(grant)
            elif grant.stance is Stance.ADOPTED:
                updates += self._refresh_adopted(grant)
        self._refreshed = (id(self.node), self.node.pool_version)
        return tuple(sorted(updates, key=lambda u: (not u.shrink, u.id)))

    def _refresh_placed(self, grant: Grant) -> list[Update]:
        back = grant.displaced
        if back is not None and self._effective(back, grant.fence) == back.cpus:
            return self._moved(grant, replace(grant, displaced=None), back, "its first place is there again")
        cpus = self._effective(grant.placement, grant.fence)
        if cpus == grant.placement.cpus:
            return []
        if cpus:
            return self._moved(grant, grant, replace(grant.placement, cpus=cpus), "CPUs of its domain came or went")
        resident = self.node.remove(grant.key)
        decision = self.policy.place(self.node, grant.container, grant.fence, self.affinity)
        self.node.add(grant.key, resident)
        if not decision.placement.cpus:
            return []
        anew = replace(decision.placement, mems=decision.placement.mems | (grant.placement.mems & self.node.mems)
                       if grant.placement.mems else NO_CPUS)  # fmt: skip
        return self._moved(grant, replace(grant, displaced=back or grant.placement), anew, f"its CPUs are gone: {decision.why}")

    def _moved(self, old: Grant, new: Grant, placement: Placement, why: str) -> list[Update]:
        update = self._move(new, placement, why, old.placement.cpus)
        return [update] if old.life in (Life.CREATED, Life.RUNNING) else []

    def _move(self, grant: Grant, placement: Placement, why: str, was: Optional[frozenset[int]] = None) -> Update:
        before = grant.placement.cpus if was is None else was
        kept = self._keep_memory(grant.placement, placement) if placement.mems == grant.placement.mems else placement
        moved = replace(grant, placement=kept, why=why)
        self._put(moved)
        return _update(moved, before, why)

    def _refresh_adopted(self, grant: Grant) -> list[Update]:
        """An adopted container keeps what it has, less what others now own."""
        taken = self.node.exclusive
        if not taken and grant.runs_on == grant.placement.home:
            return []
        cpus = (grant.placement.home & self.host.topology.online) - taken
        if cpus == grant.runs_on & self.host.topology.online:
            return []
        if not cpus:
            update = self.manage(grant.key)
            return [update] if update else []
        changed = replace(grant, runs_on=cpus)
        self._put(changed)
        return [Update(grant.key, Placement(cpus=cpus), cpus < grant.runs_on, "CPUs it ran on belong to another now")]

    def _effective(self, placement: Placement, fence: Fence) -> frozenset[int]:
        pool = self.node.reserved if placement.level == "reserved" else self.node.shared
        cpus = placement.home & pool if placement.level != "reserved" else pool
        cpus |= placement.exclusive & self.node.usable
        return cpus if fence.cpus is None else cpus & fence.cpus

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
        low, high, best = 1, len(held), None
        while low <= high:
            count = (low + high) // 2
            removed = [(g, self.node.remove(g.key)) for g in held[:count]]
            try:
                trial = self.policy.place(self.node, container, fence, self.affinity)
            finally:
                for grant, resident in removed:
                    self.node.add(grant.key, resident)
            if trial.fits:
                best, high = (count, trial), count - 1
            elif count == len(held):
                break
            else:
                low = count + 1
        if best is None:
            return decision, ()
        given_up = tuple(held[: best[0]])
        self._set_aside(given_up, ())
        names = ", ".join(g.container.path for g in given_up[:3]) + ("" if len(given_up) < 4 else ", ...")
        return replace(best[1], why=f"{best[1].why}; the place held for {names} was given up"), given_up

    def _same_place(self, container: Container, fence: Fence, replaced: Iterable[Grant]) -> Optional[Decision]:
        previous = [g for g in replaced if g.container.name == container.name and g.stance in (Stance.PLACED, Stance.OBSERVED)]
        if not previous:
            return None
        last = max(previous, key=lambda g: g.container.attempt)
        if wanted_milli(last.container) != wanted_milli(container) or last.fence.cpus != fence.cpus:
            return None
        cpus = self._effective(last.placement, fence)
        if not cpus:
            return None
        return Decision(replace(last.placement, cpus=cpus), f"the place of attempt {last.container.attempt} was held for it")

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
        for key, grant in self.grants.items():
            done = grant.life is Life.HELD and grant.exit_code == 0 and grant.container.pod.id == container.pod.id
            if done and grant.container.name != name:
                found.append(self.grants[key])
        return tuple(found)

    # ------------------------------------------------------------------ records

    def _set_aside(self, grants: Iterable[Grant], tickets: Iterable[Ticket]) -> None:
        for grant in grants:
            self._drop(grant.key)
        for ticket in tickets:
            self._drop_ticket(ticket.id)

    def _put_back(self, grants: Iterable[Grant], tickets: Iterable[Ticket]) -> None:
        for grant in grants:
            if grant.key not in self.grants:
                self._put(grant)
        for ticket in tickets:
            self._put_ticket(ticket)

    def _put(self, grant: Grant) -> None:
        """Insert or replace a grant, in the records and in the books."""
        if grant.key in self.grants:
            self.node.remove(grant.key)
        self.node.add(grant.key, _resident(grant))
        self._store(grant)

    def _store(self, grant: Grant) -> None:
        self.grants[grant.key] = grant
        self._names.setdefault((grant.container.pod.uid, grant.container.name), set()).add(grant.key)
        self._note("grant", grant.key, grant)

    def _drop(self, key: str) -> None:
        grant = self.grants.pop(key)
        self.node.remove(key)
        who = (grant.container.pod.uid, grant.container.name)
        self._names[who].discard(key)
        if not self._names[who]:
            del self._names[who]
        self._note("grant", key, None)

    def _put_ticket(self, ticket: Ticket) -> None:
        self.tickets[ticket.id] = ticket
        self._note("ticket", ticket.id, ticket)

    def _drop_ticket(self, ticket_id: str) -> None:
        del self.tickets[ticket_id]
        self._note("ticket", ticket_id, None)

    def _note(self, kind: str, key: str, value: JournalValue) -> None:
        self.version += 1
        self._journal[(kind, key)] = value

    def drain(self) -> dict[JournalKey, JournalValue]:
        """What has changed since the last call, to be written down: the last value of each record, None = gone."""
        journal, self._journal = self._journal, {}
        return journal

    def restore(self, grants: Iterable[Grant], tickets: Iterable[Ticket], pods: Iterable[Pod], history: Iterable[Record],
                distrusted: dict[tuple[str, str], float]) -> tuple[Update, ...]:  # fmt: skip
        """Take over the records of the daemon before this one. Tickets of calls that ended with it are in doubt.

        Returns updates only for containers whose CPUs are not usable any more.
        """
        for pod in pods:
            self.pods[pod.id] = pod
        for grant in grants:
            self._put(grant)
        for ticket in tickets:
            if ticket.key in self.grants:
                self._put_ticket(replace(ticket, in_doubt=True))
        self.history.extend(history)
        self.distrusted.update(distrusted)
        numbers = [int(t.rsplit("-", 1)[1]) for t in self.tickets]
        self.counter = max([self.counter, *numbers])
        self._refreshed = (0, 0)
        return self._refresh()

    def adopt(self, grant: Grant) -> tuple[Update, ...]:
        """Take a container into the records as it runs."""
        self._put(grant)
        return self._refresh()

    def amend(self, grant: Grant) -> tuple[Update, ...]:
        """Replace the record of a known container by what was found out about it."""
        if grant.key not in self.grants:
            raise KeyError(f"{grant.key} is not known")
        self._put(grant)
        return self._refresh()

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


def _update(grant: Grant, was: frozenset[int], why: str) -> Update:
    return Update(grant.key, grant.placement, grant.placement.cpus < was, why)


def _split(updates: tuple[Update, ...]) -> tuple[tuple[Update, ...], tuple[Update, ...]]:
    return tuple(u for u in updates if u.shrink), tuple(u for u in updates if not u.shrink)


def _grown_home(home: frozenset[int], old_leaves: Iterable[object], new_leaves: Iterable[object]) -> frozenset[int]:
    """A home with the CPUs that have joined its domains: a leaf it held wholly is still held wholly."""
    if not home:
        return home
    known = frozenset().union(*[leaf.cpus for leaf in old_leaves])  # type: ignore[attr-defined]
    grown = set(home)
    for leaf in new_leaves:
        here: frozenset[int] = leaf.cpus  # type: ignore[attr-defined]
        if here - known and here & known and here & known <= home:
            grown |= here
    return frozenset(grown)
