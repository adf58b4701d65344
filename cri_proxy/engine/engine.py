"""The engine: which container has which place, and every way that can change.

Every public method is one transition: it runs to its end without waiting for anything, or raises and leaves no
trace. It changes records only. What containers are to be told by that is in ``pending``, until they were told
(``told.py``); what has to be written down is collected in the journal, which the daemon drains after each call. Times are
seconds since boot, given by the caller. The records themselves are in ``ledger.py``, what is decided about one container
in ``decision.py``, what that does to others in ``recompute.py``; requests under way in ``tickets.py``, what commands do in
``commands.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, Callable, Optional, TypeVar, cast

from cri_proxy.config.engine_options import EngineOptions
from cri_proxy.engine import commands as interventions
from cri_proxy.engine import mend, moves, pins, sizing, told
from cri_proxy.engine import tickets as requests
from cri_proxy.engine.changes import note_changes
from cri_proxy.engine.host import Host
from cri_proxy.engine.ledger import MESSAGE_CHARS, JournalKey, JournalValue, Ledger
from cri_proxy.engine.notable import LARGER_RUNG, REFUSED, UNPLACED, NotableEvents
from cri_proxy.engine.orders import Orders
from cri_proxy.engine.quota import lifts_to_end
from cri_proxy.engine.recompute import grown, put_and_recompute, refresh
from cri_proxy.engine.records import (
    Admission,
    CpusetUpdate,
    DecisionRecord,
    Grant,
    Life,
    Move,
    Plan,
    Stance,
    Ticket,
    Told,
    resident_of,
)
from cri_proxy.engine.told import told_by
from policies.affinity.graph.traffic import Traffic
from policies.affinity.pull.observed import Observed
from policies.machine.cpus import NO_CPUS
from policies.memory import MemoryCharge
from policies.model import (
    Affinity,
    BudgetSpent,
    Container,
    CpusetConstraint,
    PlacementRefused,
    Pod,
    PodSize,
    Resources,
)
from policies.node import Node
from policies.policy import Policy

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _transition(method: _Method) -> _Method:
    """A public method that changes records: it runs to its end, or what it has done is undone.

    What it has done to the places of containers is in the history then, with the last time that was told.
    """
    arguments = list(signature(method).parameters)[1:]
    time_at = arguments.index("now_s") if "now_s" in arguments else len(arguments)

    @wraps(method)
    def run(self: Engine, *args: Any, **kwargs: Any) -> Any:
        ledger = self.ledger
        if ledger.undo is not None:  # it is a part of another one
            return method(self, *args, **kwargs)
        ledger.undo = {}
        newest, refreshed = ledger.newest_record, ledger.refreshed
        ledger.now_s = args[time_at] if time_at < len(args) else kwargs.get("now_s", ledger.now_s)
        try:
            returned = method(self, *args, **kwargs)
            note_changes(ledger, method.__name__, newest)
            ledger.note_groups()
            if isinstance(returned, Admission):
                ledger.keep_request(refreshed)
            return returned
        except BaseException:
            ledger.roll_back(newest)
            raise
        finally:
            ledger.undo = None
            ledger.amended, ledger.found, ledger.owned_before, ledger.together = {}, {}, {}, {}

    return cast(_Method, run)


class Engine:
    """All state about placements of one node, and its transitions."""

    def __init__(
        self, host: Host, policy: Policy, options: EngineOptions, affinity: Optional[Affinity] = None
    ) -> None:
        self.ledger = Ledger(host, policy, options, affinity)

    # ------------------------------------------------------------------ questions

    @property
    def host(self) -> Host:
        """The node as it was last read."""
        return self.ledger.host

    @property
    def node(self) -> Node:
        """The accounts: pools, charges, room."""
        return self.ledger.node

    @property
    def policy(self) -> Policy:
        return self.ledger.policy

    @property
    def options(self) -> EngineOptions:
        return self.ledger.options

    @property
    def grants(self) -> Mapping[str, Grant]:
        """Grants by container id, or by ticket while the container is being created."""
        return self.ledger.grants

    @property
    def told(self) -> Mapping[str, Told]:
        """What containers were told last, by id."""
        return self.ledger.told

    def lacking(self, gives_back: bool = False) -> list[CpusetUpdate]:
        """The updates of containers that have not what they should, in no order; ``gives_back``: as in ``pending``."""
        return told.lacking(self.ledger, gives_back)

    def lacks(self, container_id: str, gives_back: bool = False) -> bool:
        """Whether one container has not what it should."""
        return told.lacks(self.ledger, container_id, gives_back)

    def pending(self, gives_back: bool = False) -> list[CpusetUpdate]:
        """The updates that may go out now, those that lose CPUs first; ``gives_back``: but only what gives back what we
        have taken (mode observe, or off)."""
        return told.pending(self.ledger, gives_back)

    def not_alone(self, key: str) -> tuple[str, ...]:
        """The ids of others that may still be on CPUs which a container owns, and are to leave them."""
        return told.not_alone(self.ledger, key)

    def begin_update(self, container_id: str, gives_back: bool = False) -> Optional[CpusetUpdate]:
        """The update of a container, which goes out now; None = there is nothing to tell it, or one is on its way.

        ``took``, ``refused`` or ``unanswered`` must follow.
        """
        return told.begin(self.ledger, container_id, gives_back)

    def took(self, container_id: str) -> None:
        """The runtime has taken the update of a container, or there is no such container any more."""
        told.took(self.ledger, container_id)

    def refused(self, container_id: str, error: str) -> None:
        """The runtime has refused the update of a container: it has what it had."""
        told.refused(self.ledger, container_id, error)

    def unanswered(self, container_id: str) -> None:
        """Whether the runtime has taken the update of a container is not known: it is told again."""
        told.unanswered(self.ledger, container_id)

    def saw(self, container_id: str, **seen: Any) -> None:
        """A container was seen to have this (fields of ``Told``); what it lacks by that it is told."""
        if (before := self.ledger.told.get(container_id)) is not None:
            self.ledger.tell(container_id, before._replace(**seen))

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return self.ledger.tickets

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Sandboxes by id."""
        return self.ledger.pods

    @property
    def distrusted(self) -> Mapping[tuple[str, str], float]:
        """Until when creates of (pod uid, container name) go through untouched."""
        return self.ledger.distrusted

    @property
    def history(self) -> deque[DecisionRecord]:
        """The last decisions, oldest first."""
        return self.ledger.history

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.ledger.version

    @property
    def traffic(self) -> Traffic:
        """The traffic between containers, as the observer reported it last."""
        return self.ledger.observed.traffic

    def set_traffic(self, traffic: Traffic) -> None:
        """Decide by this picture of the traffic from now on. No container is moved by it, and nothing is written down."""
        self.ledger.observed = Observed(traffic)

    def set_orders(self, orders: Orders) -> None:
        """Decide by what people ask of this node from now on. No container is moved by it, and nothing is written down.

        Those that an override pins elsewhere are moved by ``apply`` with ``pinning_plan``.
        """
        self.ledger.set_orders(orders)

    def pinned_outside(self) -> tuple[str, ...]:
        """The containers that are not in the zones that overrides pin them to."""
        return pins.outside(self.ledger)

    def pinning_plan(self, keys: Iterable[str], now_s: float) -> Plan:
        """The moves by which some of them get there, as things are now. Each costs about as much as a create."""
        return pins.plan_of_pins(self.ledger, keys, now_s)

    @property
    def notable(self) -> NotableEvents:
        """What owners of containers should hear of."""
        return self.ledger.notable

    def tell(self, notable: NotableEvents) -> None:
        """Have what owners should hear of kept there from now on."""
        self.ledger.notable = notable

    def around_lifted(self) -> tuple[Grant, ...]:
        """The grants of the pods with a container whose placement takes its CPU quota away."""
        grants = self.ledger.grants
        pods = {grants[key].container.pod.uid for key in self.ledger.lifting}
        return tuple(grants[key] for pod in sorted(pods) for key in self.node.of_pod(pod) if key in grants)

    @property
    def longest_create_s(self) -> float:
        """The longest create seen, in seconds."""
        return self.ledger.longest_create_s

    def drain(self, at_once: bool = False) -> dict[JournalKey, JournalValue]:
        """What has changed since the last call, to be written down: the last value of each record, None = gone.

        ``at_once``: without what a daemon that starts works out anew, which waits for the next call without it.
        """
        return self.ledger.drain(at_once)

    @property
    def has_derived(self) -> bool:
        """Whether ``drain`` has left something for later."""
        return bool(self.ledger.derived)

    # ------------------------------------------------------------------ pods

    @_transition
    def add_pod(self, pod: Pod) -> None:
        """Remember a sandbox that is running."""
        self.ledger.change("pod", self.ledger.pods, pod.id, pod)
        self.ledger.unshared.add(pod.id)

    @_transition
    def resize_pod(
        self,
        sandbox_id: str,
        size: Optional[PodSize],
        memory_limit_bytes: int,
        now_s: float,
        enforce: bool = True,
    ) -> None:
        """A pod has this size and memory limit (None, 0: not told) from now on: UpdatePodSandboxResources was accepted.

        Its containers without resources of their own are placed by it, as by a resize; ``enforce`` False: the next time.
        """
        requests.resize_pod(self.ledger, sandbox_id, size, memory_limit_bytes, now_s, enforce)

    @_transition
    def end_pod(self, sandbox_id: str) -> None:
        """The sandbox was stopped or removed: its containers are gone, and its holds end."""
        for key in sorted(self.ledger.sandboxes.get(sandbox_id, ())):
            if self.ledger.grants[key].life is not Life.CREATING:
                self.ledger.drop(key)
        self.ledger.drop_replaced(lambda grant: grant.container.pod.id == sandbox_id)
        pod = self.ledger.pods.get(sandbox_id)
        if pod is not None:
            self.ledger.change("pod", self.ledger.pods, sandbox_id, None)
            for who in [w for w in self.ledger.start_failures if w[0] == pod.uid]:
                del self.ledger.start_failures[who]
            if pod.uid not in {other.uid for other in self.ledger.pods.values()}:
                for who in [w for w in self.ledger.distrusted if w[0] == pod.uid]:
                    self.ledger.change("distrust", self.ledger.distrusted, who, None)
        refresh(self.ledger)

    # ------------------------------------------------------------------ requests on their way to the runtime

    def admit(
        self, container: Container, fence: CpusetConstraint, now_s: float, enforce: bool = True
    ) -> Admission:
        """Reserve a place for a container that is about to be created.

        ``enforce`` False (mode observe): decide and remember, send nothing.

        :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
        """
        try:
            admission = self._admit(container, fence, now_s, enforce)
        except PlacementRefused as error:
            self.notable.add(REFUSED, container, str(error))
            raise
        except BudgetSpent as error:
            self.notable.add(UNPLACED, container, str(error))
            raise
        if admission.stance is Stance.PLACED and not admission.decision.fits:
            self.notable.add(LARGER_RUNG, container, admission.decision.why)
        elif admission.stance is Stance.UNTOUCHED and self.policy.name != "none":
            self.notable.add(UNPLACED, container, admission.decision.why)
        return admission

    @_transition
    def _admit(self, container: Container, fence: CpusetConstraint, now_s: float, enforce: bool) -> Admission:
        return requests.admit(self.ledger, container, fence, now_s, enforce)

    @_transition
    def bind(self, ticket_id: str, container_id: str, now_s: float) -> None:
        """The runtime has created the container: what it was told is what the request carried."""
        requests.bind(self.ledger, ticket_id, container_id, now_s)

    @_transition
    def cancel(self, ticket_id: str, now_s: float, reason: str = "refused by the runtime") -> None:
        """The runtime has said no, or nothing was sent: as if it had never been asked for."""
        requests.cancel(self.ledger, ticket_id, now_s, reason)

    @_transition
    def doubt(self, ticket_id: str) -> None:
        """Whether the container exists is not known: it keeps its CPUs until ``resync`` finds out. No other waits for it."""
        requests.doubt(self.ledger, ticket_id)

    @_transition
    def resize(
        self, container_id: str, resources: Resources, fence: CpusetConstraint, now_s: float
    ) -> Optional[Admission]:
        """Reserve the place a container gets with new resources; its old one stays reserved until ``commit``.

        ``fence``: a cpuset in the request is the new fence. None if the container is not known.
        """
        return requests.resize(self.ledger, container_id, resources, fence, now_s)

    @_transition
    def commit(self, ticket_id: str, now_s: float) -> None:
        """The runtime has accepted a resize: the new place replaces the old one."""
        requests.commit(self.ledger, ticket_id, now_s)

    @_transition
    def follow_resources(
        self, container_id: str, resources: Resources, now_s: float, enforce: bool = True
    ) -> None:
        """The runtime has given a container other resources without our knowing: place it by them, as by a resize.

        ``enforce`` False: they are known, and its place is chosen the next time this is called with True. What the
        policy refuses stays where it is.
        """
        requests.follow(self.ledger, container_id, resources, now_s, enforce)

    # ------------------------------------------------------------------ the life of a container

    @_transition
    def started(self, container_id: str) -> None:
        """StartContainer was accepted, or the container was seen running."""
        grant = self.ledger.grants.get(container_id)
        if grant is None:
            return
        self.ledger.start_failures.pop((grant.container.pod.uid, grant.container.name), None)
        if grant.life is Life.CREATED:
            self.ledger.put(replace(grant, life=Life.RUNNING))

    @_transition
    def start_failed(self, container_id: str, message: str, now_s: float) -> bool:
        """StartContainer failed. True if the next create of this pod and name will go through untouched for it."""
        grant = self.ledger.grants.get(container_id)
        if grant is None or grant.stance is not Stance.PLACED:
            return False
        who = (grant.container.pod.uid, grant.container.name)
        self.ledger.start_failures[who] = self.ledger.start_failures.get(who, 0) + 1
        text = message.lower()
        ours = any(word in text for word in ("cpuset", "cpus", "mems"))
        self.ledger.outcome(container_id, f"start failed: {message[:MESSAGE_CHARS]}")
        if not ours and self.ledger.start_failures[who] < 2:
            return False
        self.ledger.change("distrust", self.ledger.distrusted, who, now_s + self.ledger.options.distrust_s)
        return True

    @_transition
    def exited(self, container_id: str, exit_code: Optional[int], now_s: float) -> None:
        """The container stopped (``exit_code`` None: not known yet). Its place is held for its next attempt."""
        grant = self.ledger.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return
        if grant.stance not in (Stance.PLACED, Stance.OBSERVED, Stance.RELEASED):
            self.ledger.drop(container_id)
            refresh(self.ledger)
            return
        if grant.life is Life.HELD and (exit_code is None or grant.exit_code is not None):
            return
        finished = exit_code == 0
        hold_s = self.ledger.options.finished_hold_s if finished else self.ledger.options.restart_hold_s
        since_s = grant.since_s if grant.life is Life.HELD else now_s
        self.ledger.put(
            replace(
                grant, life=Life.HELD, since_s=since_s, hold_until_s=since_s + hold_s, exit_code=exit_code
            )
        )

    @_transition
    def remove(self, container_id: str, outcome: str = "") -> None:
        """The container is gone from the runtime, or will never run: this attempt's place is free, no other's.

        ``outcome``: what is remembered of it where that is news.
        """
        grant = self.ledger.grants.get(container_id)
        if grant is None:
            self.ledger.drop_replaced(lambda g: g.key == container_id)
        if grant is None or grant.life is Life.CREATING:
            return
        self.ledger.drop(container_id)
        if outcome:
            self.ledger.outcome(container_id, outcome)
        refresh(self.ledger)

    @_transition
    def tick(self, now_s: float) -> None:
        """Let time pass: holds end, and so does distrust."""
        raw, held = self.ledger.grants.raw, self.ledger.held
        over = [k for k in raw if k in held and raw[k].hold_until_s <= now_s] if held else []
        for key in over:
            self.ledger.drop(key)
        for who in [w for w, until_s in self.ledger.distrusted.items() if until_s <= now_s]:
            self.ledger.change("distrust", self.ledger.distrusted, who, None)
        self.ledger.forget_gone()
        refresh(self.ledger)

    # ------------------------------------------------------------------ by command

    @_transition
    def release(self, container_id: str) -> None:
        """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
        interventions.release(self.ledger, container_id)

    @_transition
    def manage(self, container_id: str) -> bool:
        """Place a container that is not managed; False if it is unknown or cannot be placed.

        :raises PlacementRefused, BudgetSpent: as the policy.
        """
        return interventions.manage(self.ledger, container_id)

    @_transition
    def apply(self, plan: Plan) -> None:
        """Make the moves of a plan that still hold; the others are dropped."""
        moves.apply(self.ledger, plan)

    @_transition
    def take_back(self, made: Sequence[Move], why: str = "") -> bool:
        """Undo a move of a plan, or an exchange (the runtime refused it, containers wait), if the places before hold.

        ``made``: as ``plan_of`` has made them; they go back at once, all of them that are there still, or none: False,
        if one is elsewhere by now, or its old place is taken.
        """
        return moves.take_back(self.ledger, made, why)

    # ------------------------------------------------------------------ sized by demand

    def sized_sets(self) -> tuple[sizing.Sized, ...]:
        """The containers whose sets are sized by what they use."""
        return tuple(sizing.sized_sets(self.ledger))

    def shrunk(self, only_unsized: bool = False) -> tuple[str, ...]:
        """The containers with a size of their own; ``only_unsized``: those of them that are not sized by demand any more."""
        return sizing.shrunk(self.ledger, only_unsized)

    @_transition
    def note_use(self, used: Mapping[str, int]) -> None:
        """What containers in the sets of their limits use, milli-CPUs by id: it counts where others are placed. No set
        changes by it."""
        sizing.note_use(self.ledger, used)

    @_transition
    def size(self, container_id: str, milli_size: Optional[int], why: str, now_s: float) -> bool:
        """Give a container the smallest place, near its own, that holds ``milli_size`` milli-CPUs; None = its limit.

        False if it stays as it is: there is no such place, it may not be moved now, or it is gone.
        """
        return sizing.size(self.ledger, container_id, milli_size, why, now_s)

    # ------------------------------------------------------------------ the node, and what was found out about it

    @_transition
    def rehost(
        self, host: Host, policy: Optional[Policy] = None, options: Optional[EngineOptions] = None
    ) -> None:
        """The machine, its usable CPUs or the configuration have changed. Nothing is moved that need not."""
        before = self.ledger.host, self.ledger.policy, self.ledger.options, self.ledger.node
        old_topology = self.ledger.host.topology
        self.ledger.grants.fill()
        try:
            self.ledger.host = host
            self.ledger.policy = policy or self.ledger.policy
            self.ledger.options = options or self.ledger.options
            self.ledger.node = self.ledger.new_node(host)
            for grant in list(self.ledger.grants.values()):
                now = self.ledger.bounded(grown(grant, old_topology, host.topology))
                if now is not grant:
                    self.ledger.store(now)
                self.ledger.node.add(grant.key, resident_of(now))
            self.ledger.charge_lacking()
            self._end_lifts(before[1])
            refresh(self.ledger, force=True)
        except BaseException:
            self.ledger.host, self.ledger.policy, self.ledger.options, self.ledger.node = before
            self.ledger.owned_before.clear()  # by the books that are no more
            raise

    def _end_lifts(self, before: Policy) -> None:
        """Have quotas kept that the policy before this one has lifted."""
        settings = [getattr(policy, "settings", None) for policy in (before, self.ledger.policy)]
        for grant in lifts_to_end(self.ledger.grants.values(), *settings).values():
            self.ledger.put(replace(grant, placement=replace(grant.placement, lift_quota=False)))

    def note_free_memory(self, free_memory: Mapping[int, int]) -> None:
        """Decide by this much free memory from now on, in bytes by NUMA node. Nothing is moved by it, or written down."""
        self.ledger.host = replace(self.ledger.host, free_memory=free_memory)
        self.ledger.node.free_memory = free_memory

    @_transition
    def restore(self, grants: Iterable[Grant], tickets: Iterable[Ticket], pods: Iterable[Pod],
                history: Iterable[DecisionRecord],
                distrusted: dict[tuple[str, str], float]) -> None:  # fmt: skip
        """Take over the records of the daemon before this one. Tickets of calls that ended with it are in doubt."""
        history = list(history)
        for pod in pods:
            self.ledger.change("pod", self.ledger.pods, pod.id, pod)
        # Of a CPU that is offline now the place is not known, but it is there, and may come back.
        known = frozenset(self.ledger.host.topology.cpus) | self.ledger.host.topology.data.offline
        for grant in grants:
            # A place that names CPUs this machine does not have was made for another machine: it is made anew.
            if grant.placement.home - known:
                grant = replace(grant, placement=replace(grant.placement, home=NO_CPUS), displaced=None)
            self.ledger.put(grant)
            self.ledger.found[grant.key] = grant
            if grant.life is not Life.CREATING:
                self.ledger.tell(grant.key, told_by(grant))
        for pod in [pod for pod in self.ledger.pods.values() if pod.size is not None]:
            self.ledger.put_pod(pod)
        for ticket in tickets:
            self.ledger.put_ticket(replace(ticket, in_doubt=True))
            for key in ticket.waiting:  # it has grown in its record only
                if key in self.ledger.told:
                    self.ledger.tell(key, Told(NO_CPUS))
        # Half of a pair is of no use.
        for ticket in [t for t in self.ledger.tickets.values() if t.key not in self.ledger.grants]:
            self.ledger.drop_ticket(ticket.id)
        pending = {t.key for t in self.ledger.tickets.values()}
        for key in [k for k, g in self.ledger.grants.items() if g.life is Life.CREATING and k not in pending]:
            self.ledger.drop(key)
        self.ledger.history.extend(history)
        for record in history:
            self.ledger.now_s = max(self.ledger.now_s, record.at_s)
            for change in record.changes:
                self.ledger.changed.update(dict.fromkeys(change.keys, (record, change)))
        for who, until_s in distrusted.items():
            self.ledger.change("distrust", self.ledger.distrusted, who, until_s)
        # A number is never used twice: ``explain`` finds decisions by it.
        used = [
            key.rsplit("-", 1)[1]
            for key in (*self.ledger.tickets, *(r.id for r in self.ledger.history))
            if key.startswith("ticket-")
        ]
        self.ledger.counter = max([self.ledger.counter, *map(int, used)])
        refresh(self.ledger, force=True)

    @_transition
    def adopt(self, grant: Grant) -> None:
        """Take a container into the records as it runs; it loses what belongs to others already."""
        self._enter(grant)

    def _enter(self, grant: Grant) -> None:
        self.ledger.tell(grant.key, told_by(grant))
        put_and_recompute(self.ledger, grant)

    @_transition
    def take_over(self, gone: Iterable[str], tickets: Iterable[Ticket], found: Iterable[Grant]) -> None:
        """Replace records that are no longer true, and requests that have ended, by those of what runs."""
        for ticket in tickets:
            self.ledger.drop_ticket(ticket.id)
        for key in [*gone, *(ticket.key for ticket in tickets)]:
            if key in self.ledger.grants:
                self.ledger.drop(key)
        for grant in found:
            self._enter(grant)
        refresh(self.ledger)

    @_transition
    def note_memory(
        self, container_id: str, mems: Optional[frozenset[int]], held: Optional[MemoryCharge]
    ) -> None:
        """Charge a known container's memory as it was found.

        ``mems``: its memory nodes, empty = not set; ``held``: bytes by node. None = not looked at.
        """
        self.ledger.note_memory(container_id, mems, held)

    @_transition
    def amend(self, grant: Grant, seen: Optional[Told] = None) -> None:
        """Replace the record of a known container by what was found out about it.

        ``seen``: what it was seen to have, where that is not what it was told last.
        """
        if grant.key not in self.ledger.grants:
            raise KeyError(f"{grant.key} is not known")
        if seen is None and grant.stance is not Stance.PLACED:
            seen = self.ledger.told.get(grant.key, Told(None))._replace(cpus=grant.runs_on)
        if seen is not None:
            self.ledger.tell(grant.key, seen)
        put_and_recompute(self.ledger, grant)

    @_transition
    def mend(self, now_s: float) -> tuple[str, ...]:
        """Mend what must never be (``invariants.py``): asked after each comparison with the runtime. Mostly nothing.

        Returns what was broken, in sentences; what could not be mended is broken still.
        """
        return mend.mend(self.ledger, now_s)
