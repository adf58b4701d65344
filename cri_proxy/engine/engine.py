"""The engine: which container has which place, and every way that can change.

Every public method is one transition: it runs to its end without waiting for anything, or raises and leaves no
trace. It changes records only. What containers are to be told by that is in ``pending``, until they were told
(``told.py``); what has to be written down is collected in the journal, which the daemon drains after each call. Times are
seconds since boot, given by the caller. The records themselves are in ``state.py``, what is decided about one container
in ``place.py``, what that does to others in ``reconcile.py``; requests under way and what commands do in ``transitions.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from math import inf
from typing import Any, Callable, Optional, TypeVar, cast

from cri_proxy.engine import claims, invariants, moves, place, relief, sizing
from cri_proxy.engine import told as telling
from cri_proxy.engine import transitions as requests
from cri_proxy.engine.model import (
    LARGER_RUNG,
    REFUSED,
    UNKNOWN_QUOTA,
    UNPLACED,
    Admission,
    ContainerRecord,
    DecisionRecord,
    Host,
    Life,
    Management,
    Orders,
    Ticket,
    Told,
    resident_of,
)
from cri_proxy.engine.reconcile import grown, put_and_reconcile, reconcile
from cri_proxy.engine.resources import lifts_to_end, unlimited_pods
from cri_proxy.engine.state import MESSAGE_CHARS, State, note_changes
from cri_proxy.engine.told import told_by
from policies.affinity.graph.traffic import Traffic
from policies.affinity.pull.observed import Observed
from policies.machine.cpus import NO_CPUS
from policies.model import (
    BudgetSpent,
    Constraint,
    Container,
    PlacementRefused,
    Pod,
)
from policies.policy import Policy
from policies.settings import EngineOptions

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _is_of_place(message: str) -> bool:
    """Whether an error of the runtime is about the CPUs or memory nodes of a container."""
    return any(word in message.lower() for word in ("cpuset", "cpus", "mems"))


def _transition(method: _Method) -> _Method:
    """A public method that changes records: it runs to its end, or what it has done is undone.

    What it has done to the places of containers is in the history then, with the last time that was told.
    """
    arguments = list(signature(method).parameters)[1:]
    time_at = arguments.index("now_s") if "now_s" in arguments else len(arguments)

    @wraps(method)
    def run(self: Engine, *args: Any, **kwargs: Any) -> Any:
        if self.undo is not None:  # it is a part of another one
            return method(self, *args, **kwargs)
        self.undo = {}
        newest, reconciled = self.newest_record, self.reconciled
        self.now_s = args[time_at] if time_at < len(args) else kwargs.get("now_s", self.now_s)
        try:
            returned = method(self, *args, **kwargs)
            note_changes(self, method.__name__, newest)
            if isinstance(returned, Admission):
                self.keep_request(reconciled)
            return returned
        except BaseException:
            self.roll_back(newest)
            raise
        finally:
            self.undo = None
            self.amended, self.found, self.together = {}, {}, {}

    return cast(_Method, run)


class Engine(State):
    """All state about placements of one node, and its transitions."""

    # ------------------------------------------------------------------ questions

    pinned_outside, pinning_plan = place.outside, place.plan_of_pins
    sized_sets, shrunk = sizing.sized_sets, sizing.shrunk
    lacks, any_lacks, lacking = telling.lacks, telling.any_lacks, telling.lacking
    pending, not_alone, all_not_alone = telling.pending, telling.not_alone, telling.all_not_alone

    @property
    def traffic(self) -> Traffic:
        """The traffic between containers, as the observer reported it last."""
        return self.observed.traffic

    def set_traffic(self, traffic: Traffic) -> None:
        """Decide by this picture of the traffic from now on. No container is moved by it, and nothing is written down."""
        self.observed = Observed(traffic)

    def unlimited_pods(self) -> frozenset[str]:
        """The ``cgroup_parent`` of every pod whose quota should be lifted."""
        pods = {self.grants[key].container.pod.uid for key in self.lifting | self.raised}
        return unlimited_pods(
            self.grants[key] for pod in sorted(pods) for key in self.node.of_pod(pod) if key in self.grants
        )

    # ------------------------------------------------------------------ what containers were told: no record changes

    begin_update, took, refused, unanswered = telling.begin, telling.took, telling.refused, telling.unanswered
    may_have, saw = telling.may_have, telling.saw

    # ------------------------------------------------------------------ pods

    @_transition
    def add_pod(self, pod: Pod) -> None:
        """Remember a sandbox that is running."""
        self.change("pod", self.pods, pod.id, pod)
        self.unshared.add(pod.id)

    resize_pod = _transition(requests.resize_pod)
    follow_classes = _transition(requests.follow_classes)

    @_transition
    def end_pod(self, sandbox_id: str) -> None:
        """The sandbox was stopped or removed: its containers are gone, and its holds end."""
        for key in sorted(self.sandboxes.get(sandbox_id, ())):
            if self.grants[key].life is not Life.CREATING:
                self.drop(key)
        self.drop_replaced(lambda grant: grant.container.pod.id == sandbox_id)
        pod = self.pods.get(sandbox_id)
        if pod is not None:
            self.change("pod", self.pods, sandbox_id, None)
            for who in [w for w in self.start_failures if w[0] == pod.uid]:
                del self.start_failures[who]
            if pod.uid not in {other.uid for other in self.pods.values()}:
                for who in [w for w in self.distrusted if w[0] == pod.uid]:
                    self.change("distrust", self.distrusted, who, None)
        reconcile(self)

    # ------------------------------------------------------------------ requests on their way to the runtime

    def admit(
        self,
        container: Container,
        constraint: Constraint,
        now_s: float,
        enforce: bool = True,
        meanwhile: Optional[frozenset[int]] = None,
    ) -> Admission:
        """Reserve a place for a container that is about to be created.

        ``enforce`` False (mode observe): decide and remember, send nothing. ``meanwhile``: it is not known who owns which
        CPUs, but these have no owner that the records do not name; the container runs there, or on reserved ones, or where
        the caller says, until ``place_waiting``.

        :raises PlacementRefused, BudgetSpent: as the policy; nothing has changed then.
        """
        try:
            admission = self._admit(container, constraint, now_s, enforce, meanwhile)
        except PlacementRefused as error:
            self.notable.add(REFUSED, container, str(error))
            raise
        except BudgetSpent as error:
            self.notable.add(UNPLACED, container, str(error))
            raise
        if admission.stance is Management.PLACED and not admission.decision.fits:
            self.notable.add(LARGER_RUNG, container, admission.decision.why)
        elif admission.stance is Management.UNTOUCHED and self.policy.name != "none":
            self.notable.add(UNPLACED, container, admission.decision.why)
        return admission

    _admit = _transition(requests.admit)
    bind, cancel = _transition(requests.bind), _transition(requests.cancel)
    doubt, commit = _transition(requests.doubt), _transition(requests.commit)
    resize, follow_resources = _transition(requests.resize), _transition(requests.follow_resources)

    # ------------------------------------------------------------------ claims

    prepare, unprepare = _transition(claims.prepare), _transition(claims.unprepare)

    # ------------------------------------------------------------------ the life of a container

    @_transition
    def heard(self, container_id: str, asked: Mapping[str, str]) -> None:
        """NRI plugins have asked for this of a container (``ContainerRecord.asked``), beside what they have before."""
        grant = self.grants.get(container_id)
        if grant is not None:
            self.put(replace(grant, asked=tuple(sorted({**dict(grant.asked), **asked}.items()))))

    @_transition
    def started(self, container_id: str) -> None:
        """StartContainer was accepted, or the container was seen running."""
        grant = self.grants.get(container_id)
        if grant is None:
            return
        self.start_failures.pop((grant.container.pod.uid, grant.container.name), None)
        if grant.life is Life.CREATED:
            self.put(replace(grant, life=Life.RUNNING))

    @_transition
    def start_failed(self, container_id: str, message: str, now_s: float) -> bool:
        """StartContainer failed. True if the next create of this pod and name will go through untouched for it."""
        grant = self.grants.get(container_id)
        if grant is None or grant.stance is not Management.PLACED:
            return False
        who = (grant.container.pod.uid, grant.container.name)
        self.start_failures[who] = self.start_failures.get(who, 0) + 1
        self.outcome(container_id, f"start failed: {message[:MESSAGE_CHARS]}")
        if not _is_of_place(message) and self.start_failures[who] < 2:
            return False
        self.change("distrust", self.distrusted, who, now_s + self.options.distrust_s)
        return True

    def create_failed(self, ticket_id: str, message: str, now_s: float) -> bool:
        """CreateContainer failed; ``cancel`` follows. CRI-O makes the cgroup then, where containerd does so at the start:
        a place that is to blame counts as there, and True says the same. Other reasons do not count."""
        return _is_of_place(message) and self.start_failed(ticket_id, message, now_s)

    @_transition
    def exited(self, container_id: str, exit_code: Optional[int], now_s: float) -> None:
        """The container stopped (``exit_code`` None: not known yet). Its place is held for its next attempt."""
        grant = self.grants.get(container_id)
        if grant is None or grant.life is Life.CREATING:
            return
        if grant.stance not in (Management.PLACED, Management.OBSERVED, Management.RELEASED):
            self.drop(container_id)
            reconcile(self)
            return
        if grant.life is Life.HELD and (exit_code is None or grant.exit_code is not None):
            return
        finished = exit_code == 0
        hold_s = self.options.finished_hold_s if finished else self.options.restart_hold_s
        since_s = grant.since_s if grant.life is Life.HELD else now_s
        self.put(
            replace(
                grant, life=Life.HELD, since_s=since_s, hold_until_s=since_s + hold_s, exit_code=exit_code
            )
        )

    @_transition
    def remove(self, container_id: str, outcome: str = "") -> None:
        """The container is gone from the runtime, or will never run: this attempt's place is free, no other's.

        ``outcome``: what is remembered of it where that is news.
        """
        grant = self.grants.get(container_id)
        if grant is None:
            self.drop_replaced(lambda g: g.key == container_id)
        if grant is None or grant.life is Life.CREATING:
            return
        self.drop(container_id)
        if outcome:
            self.outcome(container_id, outcome)
        reconcile(self)

    @_transition
    def tick(self, now_s: float) -> None:
        """Let time pass: holds end, and so does distrust."""
        held = self.held
        over = [k for k, g in self.grants.items() if k in held and g.hold_until_s <= now_s] if held else []
        for key in over:
            self.drop(key)
        for who in [w for w, until_s in self.distrusted.items() if until_s <= now_s]:
            self.change("distrust", self.distrusted, who, None)
        self.forget_gone()
        reconcile(self)

    # ------------------------------------------------------------------ by command

    @_transition
    def set_orders(self, orders: Orders) -> None:
        """Decide by these from now on. What a freeze alone has kept from its first place goes back there with the freeze's
        end, as it would with the next start; no other container is moved by it."""
        was_frozen = self.orders.freeze
        self.follow_orders(orders)
        if was_frozen and not orders.freeze:
            reconcile(self, force=True)

    release, manage = _transition(requests.release), _transition(requests.manage)
    manage_all = _transition(requests.manage_all)
    place_waiting = _transition(requests.place_waiting)
    apply, take_back = _transition(moves.apply), _transition(moves.take_back)

    # ------------------------------------------------------------------ sized by demand

    note_use, size = _transition(sizing.note_use), _transition(sizing.size)

    # ------------------------------------------------------------------ the node, and what was found out about it

    @_transition
    def rehost(
        self, host: Host, policy: Optional[Policy] = None, options: Optional[EngineOptions] = None
    ) -> None:
        """The machine, its usable CPUs or the configuration have changed. Nothing is moved that need not."""
        before = self.host, self.policy, self.options, self.node
        old_topology = self.host.topology
        self.version += 1  # a request that was booked before is not taken back as if nothing had changed
        try:
            self.host = host
            self.policy = policy or self.policy
            self.options = options or self.options
            self.node = self.new_node(host)
            self.node.changed_s = before[3].changed_s
            for grant in list(self.grants.values()):
                now = self.classified(self.bounded(grown(grant, old_topology, host.topology)), anew=True)
                if now is not grant:
                    self.store(now)
                self.node.add(grant.key, resident_of(now))
            self.charge_lacking()
            self._end_lifts(before[1])
            reconcile(self, force=True)
        except BaseException:
            self.host, self.policy, self.options, self.node = before
            raise

    @_transition
    def follow_kubelet(self, given: Mapping[tuple[str, str], frozenset[int]]) -> None:
        """Kubelet has given other CPUs to single containers than it had, as ``Host.kubelet_exclusive`` has them."""
        self.rehost(replace(self.host, kubelet_exclusive=given, knows_kubelet=True))

    def _end_lifts(self, before: Policy) -> None:
        """Have quotas kept that the policy before this one has lifted."""
        settings = [getattr(policy, "settings", None) for policy in (before, self.policy)]
        for grant in lifts_to_end(self.grants.values(), *settings).values():
            self.put(replace(grant, placement=replace(grant.placement, lift_quota=False)))

    def note_free_memory(self, free_memory: Mapping[int, int]) -> None:
        """Decide by this much free memory from now on, in bytes by NUMA node. Nothing is moved by it, or written down."""
        self.host = replace(self.host, free_memory=free_memory)
        self.node.free_memory = free_memory

    @_transition
    def restore(self, grants: Iterable[ContainerRecord], tickets: Iterable[Ticket], pods: Iterable[Pod],
                history: Iterable[DecisionRecord],
                distrusted: dict[tuple[str, str], float]) -> None:  # fmt: skip
        """Take over the records of the daemon before this one. Tickets of calls that ended with it are in doubt."""
        history = list(history)
        for pod in pods:
            self.change("pod", self.pods, pod.id, pod)
        # Of a CPU that is offline now the place is not known, but it is there, and may come back.
        known = frozenset(self.host.topology.cpus) | self.host.topology.data.offline
        for grant in grants:
            # A place that names CPUs this machine does not have was made for another machine: it is made anew.
            if grant.placement.home - known:
                grant = replace(grant, placement=replace(grant.placement, home=NO_CPUS), displaced=None)
            # A quota that was raised, or was about to be, is its own again, whatever it is now.
            quota_us = UNKNOWN_QUOTA if grant.turbo_top_us else 0
            grant = replace(grant, turbo_us=0) if grant.turbo_us else grant
            self.put(grant)
            self.found[grant.key] = grant
            if grant.is_made:
                self.tell(grant.key, told_by(grant)._replace(turbo_us=quota_us))
        for pod in [pod for pod in self.pods.values() if pod.size is not None]:
            self.put_pod(pod)
        for ticket in tickets:
            self.put_ticket(replace(ticket, in_doubt=True))
            self.orphans.update({one.id: inf for one in (ticket, *ticket.replaced_tickets)})
            for key in ticket.waiting:  # it has grown in its record only
                if key in self.told:
                    self.tell(key, Told(NO_CPUS))
        # Half of a pair is of no use.
        for ticket in [t for t in self.tickets.values() if t.key not in self.grants]:
            self.drop_ticket(ticket.id)
        pending = {t.key for t in self.tickets.values()}
        for key in [k for k, g in self.grants.items() if g.life is Life.CREATING and k not in pending]:
            self.drop(key)
        self.history.extend(history)
        for record in history:
            self.now_s = max(self.now_s, record.at_s)
            for change in record.changes:
                self.changed.update(dict.fromkeys(change.keys, (record, change)))
        for who, until_s in distrusted.items():
            self.change("distrust", self.distrusted, who, until_s)
        # A number is never used twice: ``explain`` finds decisions by it.
        used = [
            key.rsplit("-", 1)[1]
            for key in (*self.tickets, *(r.id for r in self.history))
            if key.startswith("ticket-")
        ]
        self.counter = max([self.counter, *map(int, used)])
        # What balloons have to spare they had when the daemon before this one ended.
        self.node.changed_s = dict.fromkeys(self.node.groups, self.now_s)
        reconcile(self, force=True)

    @_transition
    def adopt(self, grant: ContainerRecord) -> None:
        """Take a container into the records as it runs; it loses what belongs to others already."""
        self._enter(grant)

    def _enter(self, grant: ContainerRecord) -> None:
        self.tell(grant.key, told_by(grant))
        put_and_reconcile(self, grant)

    @_transition
    def take_over(
        self, gone: Iterable[str], tickets: Iterable[Ticket], found: Iterable[ContainerRecord]
    ) -> None:
        """Replace records that are no longer true, and requests that have ended, by those of what runs."""
        for ticket in tickets:
            self.drop_ticket(ticket.id)
        for key in [*gone, *(ticket.key for ticket in tickets)]:
            if key in self.grants:
                self.drop(key)
        for grant in found:
            self._enter(grant)
        reconcile(self)

    note_memory = _transition(State.note_memory)

    @_transition
    def amend(self, grant: ContainerRecord, seen: Optional[Told] = None) -> None:
        """Replace the record of a known container by what was found out about it.

        ``seen``: what it was seen to have, where that is not what it was told last.
        """
        if grant.key not in self.grants:
            raise KeyError(f"{grant.key} is not known")
        if seen is None and grant.stance is not Management.PLACED:
            seen = self.told.get(grant.key, Told(None))._replace(cpus=grant.runs_on)
        if seen is not None:
            self.tell(grant.key, seen)
        put_and_reconcile(self, grant)

    relieve = _transition(relief.relieve)

    _mend_records, _give_way = _transition(invariants.mend_records), _transition(invariants.give_way)

    def mend_slices(self, now_s: float) -> Iterator[tuple[str, ...]]:
        """Mend what must never be, in slices, so that calls can pass in between. The first tells what was broken, in
        sentences; what could not be mended is broken still."""
        crowded = invariants.crowded_out(self)
        yield (*self._mend_records(now_s), *crowded)
        helped: set[str] = set()
        while not self._give_way(helped, now_s):
            yield ()

    def mend(self, now_s: float) -> tuple[str, ...]:
        """The same in one go."""
        broken, *_ = self.mend_slices(now_s)
        return broken
