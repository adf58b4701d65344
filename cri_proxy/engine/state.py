"""The engine's books: its records, the node's accounts that go with them, the journal, and the way to undo.

Every change of a record goes through ``change``, so that a transition that is cut short can be undone and the
journal holds exactly what must be written down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Callable, Optional, TypeVar, Union

from cri_proxy.engine.members import class_by_claims, member_place, without_claims
from cri_proxy.engine.model import (
    NO_ORDERS,
    Begun,
    ContainerRecord,
    CpusetUpdate,
    DecisionRecord,
    Host,
    Life,
    Management,
    MoveEffect,
    NotableEvents,
    Orders,
    Override,
    PlacementChange,
    Ticket,
    Told,
    Zone,
    resident_of,
    zones_of,
)
from policies.affinity.graph.traffic import Traffic
from policies.affinity.pull.declared import Combined, HeldPlaces, declaration_of, declares_any, peers_of
from policies.affinity.pull.observed import Observed, Peer, owner_of_container, pull_of
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.memory import MemoryCharge, spread_limit
from policies.model import (
    UNTOUCHED,
    Affinity,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementRequest,
    Pod,
    Resident,
    altered,
)
from policies.node import Node
from policies.policy import Policy
from policies.settings import ClassSelectors, EngineOptions

#: Key of the CPUs that kubelet has assigned to containers that were not created yet.
KUBELET_KEY = "kubelet"
HISTORY = 1000
#: What a container without a limit holds on a node may change by as much, or by one in SAME_PART, before the change is
#: written down: it changes a little between any two looks, and a write every 30 seconds for each is for nothing.
SAME_BYTES, SAME_PART = 16 * 1024**2, 20
#: As much of an error message is kept: runc's name the file that failed after 200 of how it got there (seen).
MESSAGE_CHARS = 1000

#: What all shared sets follow from: the node, its shared CPUs, and the claims on exclusive ones: all, those of no group.
Pools = tuple[int, frozenset[int], frozenset[tuple[int, int]], frozenset[tuple[int, int]]]
_Name = TypeVar("_Name")
JournalKey = tuple[str, str]
#: Records as they were before a transition has changed them: as (table, key, value), by kind and name.
Undo = dict[tuple[str, str], tuple[MutableMapping[Any, Any], Any, Any]]
JournalValue = Union[ContainerRecord, Ticket, Pod, DecisionRecord, float, None]


class State:
    """Everything the engine knows. Keeps records and accounts in step; decides nothing."""

    def __init__(
        self, host: Host, policy: Policy, options: EngineOptions, affinity: Optional[Affinity] = None
    ) -> None:
        self.host = host
        self.policy = policy
        self.options = options
        self.affinity = affinity
        #: The traffic between containers, as the observer reported it last; no record of the engine's own.
        self.observed = Observed(Traffic())
        self.grants: dict[str, ContainerRecord] = {}
        self.tickets: dict[str, Ticket] = {}
        self.pods: dict[str, Pod] = {}
        #: Tickets whose calls have ended with the daemon before this one, with when a list first had not their containers.
        self.orphans: dict[str, float] = {}
        #: By ticket what groups owned before it that own something else by it.
        self.owned_before: dict[str, dict[str, frozenset[int]]] = {}
        #: Until when the next create of (pod uid, container name) goes through untouched.
        self.distrusted: dict[tuple[str, str], float] = {}
        self.start_failures: dict[tuple[str, str], int] = {}
        self.history: deque[DecisionRecord] = deque(maxlen=HISTORY)
        #: The last change of each container's place that came of something else, and its cause.
        self.changed: dict[str, tuple[DecisionRecord, PlacementChange]] = {}
        #: The latest time that a transition was told.
        self.now_s = 0.0
        self.version = 0
        self.longest_create_s = 0.0
        self.counter = 0
        self.journal: dict[JournalKey, JournalValue] = {}
        #: What a daemon that starts works out anew in any case: it need not be written down before anything else is done.
        self.derived: dict[JournalKey, JournalValue] = {}
        #: While a transition runs: the records it has changed, as (table, key, value before).
        self.undo: Optional[Undo] = None
        #: The last request that was booked: the version since, what it has changed, and the pools before.
        self._request: tuple[int, Undo, Pools]
        #: While one runs: the entries it has amended, by the key it knows them by; and records it was handed as they were.
        self.amended: dict[str, DecisionRecord] = {}
        self.found: dict[str, ContainerRecord] = {}
        #: While one runs: grants that were given another set together, before and after it, and that set.
        self.together: dict[str, tuple[ContainerRecord, ContainerRecord, frozenset[int]]] = {}
        #: Keys of grants by (pod uid, container name) and by sandbox.
        self.names: dict[tuple[str, str], tuple[str, ...]] = {}
        self.sandboxes: dict[str, tuple[str, ...]] = {}
        #: Sandboxes in which a container has come, gone or been told otherwise since its pod's size was shared out.
        self.unshared: set[str] = set()
        #: Keys of grants whose containers have ended, and whose places are kept.
        self.held: set[str] = set()
        #: Keys of grants whose placements take the CPU quota away.
        self.lifting: set[str] = set()
        #: The containers whose quota was raised, or may still be.
        self.raised: set[str] = set()
        #: Keys of grants that have a place to go back to, and of those whose CPUs kubelet has given to them alone.
        self.displaced: set[str] = set()
        self.kubelets: set[str] = set()
        #: Keys of the grants of containers that have claims.
        self.members: set[str] = set()
        #: Keys of the grants whose places name no group, by home and by what they own: many have one home.
        self.places: dict[tuple[frozenset[int], frozenset[int]], dict[str, None]] = {}
        #: What the runtime was told of each container last, by id; of which the record, or that, has changed since they were
        #: compared; what these lack, with what it follows from; and the updates that are on their way. ``told.py`` alone
        #: works with the last three.
        self.told: dict[str, Told] = {}
        self.unsettled: set[str] = set()
        self.updates: dict[str, tuple[ContainerRecord, Told, bool, CpusetUpdate]] = {}
        self.under_way: dict[str, Begun] = {}
        #: Keys of grants by the workload their containers are replicas of.
        self.replicas: dict[str, set[str]] = {}
        #: What people ask of this node, and why containers are not where an override wants them, by key.
        self.orders: Orders = NO_ORDERS
        self.unpinned: dict[str, str] = {}
        #: By the ids of containers that are to be adopted: what they own, by the records of an engine before.
        self.claims: Mapping[str, frozenset[int]] = {}
        #: Overrides with their ranks: by all three names, and those for beginnings of pods' names by the other two.
        self._pins: dict[tuple[str, str, str], tuple[int, Override]] = {}
        self._pins_by_beginning: dict[tuple[str, str], list[tuple[int, Override]]] = {}
        self._zones: tuple[Optional[Topology], tuple[Zone, ...], dict[str, frozenset[int]]] = (None, (), {})
        #: What owners of containers should hear of; the daemon's own, which outlives this engine.
        self.notable = NotableEvents()
        self.node = self.new_node(host)
        #: Kinds of containers that were found no better place since all were tried: ``relief.py`` alone works with them.
        self.beyond_relief: set[object] = set()
        #: By owner of CPUs: the circumstances in which it could give none of them to another, and the ways that were tried.
        #: ``invariants.py`` alone works with it.
        self.in_vain: dict[str, tuple[Any, set[tuple[str, int]]]] = {}
        #: The pools for which every dependent set was last computed: without a change of them nothing can have moved.
        self.reconciled: Pools = self.pools
        self._request = -1, {}, self.pools

    @property
    def pools(self) -> Pools:
        """The pools as they are now."""
        return id(self.node), self.node.shared, self.node.claims, self.node.claims_alone

    @property
    def container_count(self) -> int:
        """How many containers there are records of: claims are none."""
        return sum(not grant.is_claim for grant in self.grants.values())

    @property
    def newest_record(self) -> int:
        """The number of the last entry of the history; 0 = there is none."""
        return self.history[-1].number if self.history else 0

    # ------------------------------------------------------------------ orders

    def follow_orders(self, orders: Orders) -> None:
        """Decide by these from now on."""
        self.orders, self.unpinned, self._pins, self._pins_by_beginning = orders, {}, {}, {}
        for rank, override in enumerate(orders.overrides):
            namespace, pod, name = override.namespace, override.pod, override.container
            if pod.endswith("*"):
                self._pins_by_beginning.setdefault((namespace, name), []).append((rank, override))
            else:
                self._pins.setdefault((namespace, pod, name), (rank, override))

    def pin_of(self, container: Container) -> Optional[Override]:
        """The override that counts for a container; None = there is none."""
        if not self.orders.overrides:
            return None
        pod = container.pod
        exact = self._pins.get((pod.namespace, pod.name, container.name))
        for rank, override in self._pins_by_beginning.get((pod.namespace, container.name), ()):
            if exact is not None and exact[0] < rank:
                break
            if override.matches(container):
                return override
        return None if exact is None else exact[1]

    @property
    def zones(self) -> tuple[Zone, ...]:
        """The places of this machine that have a name."""
        return self._zones_now()[1]

    @property
    def zone_cpus(self) -> Mapping[str, frozenset[int]]:
        """Their CPUs by name."""
        return self._zones_now()[2]

    def _zones_now(self) -> tuple[Optional[Topology], tuple[Zone, ...], dict[str, frozenset[int]]]:
        topology = self.host.topology
        if self._zones[0] is not topology:
            zones = zones_of(topology)
            self._zones = topology, zones, {zone.name: zone.domain.cpus for zone in zones}
        return self._zones

    @property
    def max_moves(self) -> int:
        """How many containers may be moved so that another fits: none while they are frozen."""
        return 0 if self.orders.freeze else self.options.max_moves

    # ------------------------------------------------------------------ records

    def next_ticket(self) -> str:
        """An id that was never used before."""
        self.counter += 1
        return f"ticket-{self.counter}"

    def put(self, grant: ContainerRecord) -> None:
        """Insert or replace a grant, in the records and in the books, inside of what its pod's cgroup allows."""
        grant = self.classified(self.bounded(grant))
        if self._lacks_charge(grant):
            self._unbook(grant.key)
            grant = altered(grant, memory_charge=self._charge(grant))
        book = self.node.replace if grant.key in self.node.residents else self.node.add
        book(grant.key, resident_of(grant))
        self.store(grant)

    def bounded(self, grant: ContainerRecord) -> ContainerRecord:
        """A grant with the constraint that it has on this host."""
        if not self.host.bounds and grant.constraint.caller is None:
            return grant
        constraint = self.host.bounded(grant.constraint, grant.container.pod.cgroup_parent)
        return grant if constraint == grant.constraint else altered(grant, constraint=constraint)

    def classified(self, grant: ContainerRecord, anew: bool = False) -> ContainerRecord:
        """A grant with the class of its container. ``anew``: what classes follow from has changed."""
        selectors = self.options.classes
        if selectors is None or grant.is_claim:
            return altered(grant, isolation="", isolation_why="") if grant.isolation else grant
        known = self.grants.get(grant.key)
        if (
            not anew
            and grant.isolation
            and known is not None
            and known.container is grant.container
            and known.placement.group == grant.placement.group
            and known.placement.claimed == grant.placement.claimed
        ):
            return grant
        found = self._class_of(grant.container, grant.placement.group, selectors)
        if grant.placement.claimed and not grant.container.preferences.isolation_class:
            found = class_by_claims(self.grants, grant.container) or found
        if found == (grant.isolation, grant.isolation_why):
            return grant
        return altered(grant, isolation=found[0], isolation_why=found[1])

    @staticmethod
    def _class_of(container: Container, group: str, selectors: ClassSelectors) -> tuple[str, str]:
        # Isolation is off by default, and then not imported.
        from cri_proxy.isolation.classes import class_of

        found = class_of(container, group, selectors)
        return found.kind, found.why

    def store(self, grant: ContainerRecord) -> None:
        known = self.grants.get(grant.key)
        if grant.key in self.told:
            self.unsettled.add(grant.key)
        if grant.lifted and not grant.quota_taken:
            grant = altered(grant, quota_taken=True)
        if grant.turbo_top_us and grant.life in (Life.CREATING, Life.HELD):
            grant = altered(grant, turbo_us=0, turbo_top_us=0)
        self.change("grant", self.grants, grant.key, grant)
        if grant.turbo_top_us:
            self.raised.add(grant.key)
        elif self.raised:
            self.raised.discard(grant.key)
        if grant.life is Life.HELD:
            self.held.add(grant.key)
        elif self.held:
            self.held.discard(grant.key)
        if grant.placement.lift_quota:
            self.lifting.add(grant.key)
        elif self.lifting:
            self.lifting.discard(grant.key)
        if grant.displaced is not None:
            self.displaced.add(grant.key)
        elif self.displaced:
            self.displaced.discard(grant.key)
        if known is not None:
            self._leave_place(known)
        if not grant.placement.group:
            place = grant.placement.home, grant.placement.exclusive
            self.places.setdefault(place, {})[grant.key] = None
        if grant.stance is Management.KUBELET:
            self.kubelets.add(grant.key)
        elif self.kubelets:
            self.kubelets.discard(grant.key)
        container = grant.container
        if container.claims:
            self.members.add(grant.key)
        elif self.members:
            self.members.discard(grant.key)
        if known is not None and known.container is container:
            return
        self.unshared.add(container.pod.id)
        if known is not None:  # what was found out about it may tell another owner
            discard(self.replicas, owner_of_container(known.container), grant.key)
        _enter(self.names, (container.pod.uid, container.name), grant.key)
        _enter(self.sandboxes, container.pod.id, grant.key)
        self.replicas.setdefault(owner_of_container(container), set()).add(grant.key)

    def _leave_place(self, grant: ContainerRecord) -> None:
        if not grant.placement.group:
            place = grant.placement.home, grant.placement.exclusive
            # One that an error has cut short is in the books, and nowhere yet.
            there = self.places.get(place, {})
            there.pop(grant.key, None)
            if not there:
                self.places.pop(place, None)

    def put_together(
        self, places: Mapping[str, Optional[Placement]], cpus: frozenset[int], why: str = ""
    ) -> None:
        """Give grants that have one set of CPUs another one: as ``put`` of each, at once, and written some time later.

        ``places``: by key what their placements are now, with these CPUs; None: it is adopted, and runs on them. ``why``: ""
        = their reasons still hold. They own no CPUs, or are of one group and own the same, before and after; what else is
        in the books of them stays: how their memory is charged, whether their quotas are lifted.
        """
        for key, place in places.items():
            grant = self.grants[key]
            changes = {"runs_on": cpus} if place is None else {"placement": place, "why": why or grant.why}
            now = altered(grant, **changes)
            if self.undo is not None:
                self.undo.setdefault(("grant", key), (self.grants, key, grant))
                self.together[key] = grant, now, cpus
            self.grants[key] = self.derived["grant", key] = now
        self.unsettled.update(places)
        self.version += len(places)
        self.node.share(places, cpus)

    def tell(self, key: str, told: Optional[Told]) -> None:
        """A container has this from now on, by what it was told or as it was seen; None: it is gone. It is no record:
        nothing is written."""
        if self.undo is not None:
            self.undo.setdefault(("told", key), (self.told, key, self.told.get(key)))
        self.unsettled.add(key)
        if told is None:
            self.told.pop(key, None)
            self.under_way.pop(key, None)
        else:
            self.told[key] = told

    def changed_grants(self) -> list[str]:
        """The keys of the grants that the transition that runs has changed so far, and that are there to be told of it."""
        return [key for kind, key in self.undo or () if kind == "grant" and key in self.unsettled]

    def forget_gone(self) -> None:
        """Forget what containers were told that were set aside and will not be put back."""
        if not self.tickets:
            for key in self.told.keys() - self.grants.keys():
                self.tell(key, None)

    def put_pod(self, pod: Pod) -> None:
        """Note a pod, in the records of its containers as well."""
        self.change("pod", self.pods, pod.id, pod)
        self.unshared.add(pod.id)
        for key in sorted(self.sandboxes.get(pod.id, ())):
            grant = self.grants[key]
            known = grant.container.pod
            if (known.size, known.memory_limit_bytes) != (pod.size, pod.memory_limit_bytes):
                now = replace(known, size=pod.size, memory_limit_bytes=pod.memory_limit_bytes)
                now = pod if now == pod else now
                self.put(replace(grant, container=replace(grant.container, pod=now)))

    def note_memory(self, key: str, mems: Optional[frozenset[int]], held: Optional[MemoryCharge]) -> None:
        """Charge a container as it was found: its limit on ``mems``, or without one what it holds.

        ``mems``: its memory nodes now, empty = not set; ``held``: bytes by node. None = not looked at.
        """
        if not self.policy.settings.places_memory:
            return
        now = grant = self.grants[key]
        has_limit = grant.container.resources.memory_limit_bytes > 0
        if mems is not None and mems != grant.runs_on_mems and not grant.has_placed_memory:
            now = altered(now, runs_on_mems=mems, memory_charge=() if has_limit else now.memory_charge)
        if held is not None and not has_limit and is_other_amount(grant.memory_charge, held):
            now = altered(now, memory_charge=held)
        if now is not grant or self._lacks_charge(grant):
            self.put(now)

    def book_use(self, key: str, milli_used: int) -> None:
        """Count what a container uses where others are placed. Its record on disk does not tell that: nothing is written."""
        grant = self.grants[key]
        now = altered(grant, container=altered(grant.container, milli_used=milli_used))
        if self.undo is not None:
            self.undo.setdefault(("grant", key), (self.grants, key, grant))
        self.grants[key] = now
        self.node.replace(key, resident_of(now))
        self.version += 1

    def charge_lacking(self) -> None:
        """Charge the limits that are charged to nodes which no memory comes from on this host any more."""
        for grant in list(self.grants.values()):
            if self._lacks_charge(grant):
                self.put(grant)

    def _lacks_charge(self, grant: ContainerRecord) -> bool:
        """Whether a limit is to be charged where the container runs, and is not, or is elsewhere."""
        limit = grant.container.resources.memory_limit_bytes
        is_told = grant.has_placed_memory and grant.placement.memory_charge
        if not limit or is_told or not self.policy.settings.places_memory:
            return False
        charge = dict(grant.memory_charge)
        return sum(charge.values()) != limit or not charge.keys() <= self._memory_nodes(grant)

    def _charge(self, grant: ContainerRecord) -> MemoryCharge:
        container = grant.container
        limit, shared = container.resources.memory_limit_bytes, self.node.memory_shared(container)
        return spread_limit(self.node, self._memory_nodes(grant), limit, shared)

    def _memory_nodes(self, grant: ContainerRecord) -> frozenset[int]:
        """The nodes that a container's memory may come from."""
        return grant.mems & self.host.topology.memory_nodes or self.node.mems

    def drop(self, key: str, keeps_told: bool = False) -> None:
        """Remove a grant. ``keeps_told``: it may come back, with what its container was told."""
        if key in self.told and not keeps_told:
            self.tell(key, None)
        container, group = self.grants[key].container, self.grants[key].placement.group
        self._leave_place(self.grants[key])
        self.change("grant", self.grants, key, None)
        self._unbook(key)
        if group in self.node.groups:
            self.node.changed_s[group] = self.now_s
        elif group:
            self.node.changed_s.pop(group, None)
        self.held.discard(key)
        self.lifting.discard(key)
        self.raised.discard(key)
        self.displaced.discard(key)
        self.kubelets.discard(key)
        self.members.discard(key)
        self.unpinned.pop(key, None)
        self.unshared.add(container.pod.id)
        _leave(self.names, (container.pod.uid, container.name), key)
        _leave(self.sandboxes, container.pod.id, key)
        discard(self.replicas, owner_of_container(container), key)

    def _unbook(self, key: str) -> None:
        if key in self.node.residents:
            self.node.remove(key)

    def put_ticket(self, ticket: Ticket) -> None:
        self.change("ticket", self.tickets, ticket.id, ticket)

    def drop_ticket(self, ticket_id: str) -> None:
        self.change("ticket", self.tickets, ticket_id, None)

    def set_aside(self, grants: Iterable[ContainerRecord], tickets: Iterable[Ticket]) -> None:
        for grant in grants:
            self.drop(grant.key, keeps_told=True)
        for ticket in tickets:
            self.drop_ticket(ticket.id)

    def put_back(self, grants: Iterable[ContainerRecord], tickets: Collection[Ticket]) -> None:
        targets = {ticket.key: ticket.target for ticket in tickets}
        for grant in grants:
            twin = self.grants.get(
                targets.get(grant.key, "")
            )  # a resize shares CPUs with the container it is about
            own = self.of_group(grant.placement.group) | (NO_CPUS if twin is None else twin.exclusive)
            taken = grant.exclusive & (self.node.exclusive - own)
            if grant.key in self.grants or (taken and grant.life is Life.HELD):
                continue
            if taken:
                grant = replace(
                    grant, placement=replace(grant.placement, exclusive=grant.placement.exclusive - taken)
                )
            self.put(grant)
        for ticket in tickets:
            if ticket.key in self.grants:
                self.put_ticket(ticket)

    def of_group(self, group: str) -> frozenset[int]:
        """The CPUs of a balloon: its containers own them together."""
        if not group:
            return NO_CPUS
        books = self.node.groups.get(group)
        # Also of those that are out of the books while a question is asked.
        of_it = [
            grant.exclusive
            for key, grant in self.grants.items()
            if grant.placement.group == group and (books is None or key not in books)
        ]
        return NO_CPUS.union(*of_it, *(() if books is None else books.sets()))

    def drop_replaced(self, gone: Callable[[ContainerRecord], bool]) -> None:
        """Containers that were removed while they were set aside are not put back."""
        for ticket in list(self.tickets.values()):
            left = tuple(g for g in ticket.replaces if g.life is Life.CREATING or not gone(g))
            if len(left) < len(ticket.replaces):
                self.put_ticket(replace(ticket, replaces=left))

    def pull(self, container: Container, key: str = "") -> Optional[Affinity]:
        """What draws a container to others: the traffic that was seen, and what annotations declare; None = nothing.

        ``key``: its key in the books, where it was in them before.
        """
        peers = self.peers(container, key)
        if not peers:
            known: Optional[Affinity] = peers_of(self.node, container, self.policy.settings)
        else:
            declared = declaration_of(self.node, container, self.policy.settings)
            known = pull_of(self.node, peers, declared, self.options.declared_weight)
        if self.affinity is None or known is None:
            return self.affinity or known
        return Combined(self.affinity, known)

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        """How badly what annotations declare for a container is kept on some CPUs, by the books as they are."""
        held = self._held_places(container)
        return 0 if held is None else held.fault(cpus)

    def is_kept_worse(self, container: Container, cpus: frozenset[int], than: frozenset[int]) -> bool:
        """Whether it is kept worse on some CPUs than on others: no move that can be left out is to do that."""
        held = self._held_places(container)
        return held is not None and held.fault(cpus) > held.fault(than)

    def _held_places(self, container: Container) -> Optional[HeldPlaces]:
        """None: nothing is declared on this node."""
        if not declares_any(self.node, self.policy.settings):
            return None
        declaration = declaration_of(self.node, container, self.policy.settings)
        return HeldPlaces(self.node.topology, declaration)

    def request(
        self, container: Container, constraint: Constraint, key: str = "", **more: Any
    ) -> PlacementRequest:
        """What the policy is asked about a container; ``key``: as in ``pull``, ``more``: ``near`` and ``keep``."""
        if self.options.keeps_apart and self.options.classes is not None:
            more["isolation"] = self._class_of(container, "", self.options.classes)[0]
        return PlacementRequest(container, constraint, self.pull(container, key), **more)

    def place(self, request: PlacementRequest) -> Decision:
        """The policy's answer by the books as they are; of a container with claims what these say.

        :raises PlacementRefused, BudgetSpent: as the policy.
        """
        container = request.container
        if not container.claims:
            return self.policy.place(self.node, request)
        decision = self.place_by_claims(container, request.constraint)
        if decision is not None:
            return decision
        # It owns none of its own: its claims may be prepared anew, and own theirs.
        preferences = altered(container.preferences, ownership="shared")
        alone = altered(request, container=altered(container, preferences=preferences))
        return without_claims(self.policy.place(self.node, alone), container)

    def place_by_claims(self, container: Container, constraint: Constraint) -> Optional[Decision]:
        """What a container's claims give it; None: it has none, or they give it nothing."""
        if not container.claims:
            return None
        return member_place(self.grants, self.node, self.policy.settings, container, constraint)

    def peers(self, container: Container, key: str = "") -> tuple[Peer, ...]:
        """Those in the books that a container talks to, or will by what is known of its owner; the strongest first."""
        if not self.options.use_traffic:
            return ()
        return self.observed.peers(self.node, self.replicas, container, key)

    @contextmanager
    def without(self, keys: Iterable[str]) -> Iterator[None]:
        """The node's books without some containers, for as long as a question is asked."""
        keys = list(keys)
        removed = [(key, self.node.remove(key)) for key in keys]
        try:
            yield
        finally:
            for key, resident in removed:
                self.node.add(key, resident)

    def new_node(self, host: Host) -> Node:
        isolated = host.topology.data.isolated if self.policy.keeps_isolated_apart else NO_CPUS
        node = Node(host.topology, host.usable, host.mems, host.reserved, isolated)
        node.free_memory, node.reserved_memory = host.free_memory, host.reserved_memory
        assigned: frozenset[int] = frozenset().union(*host.kubelet_exclusive.values()) & host.topology.online
        if assigned:
            node.add(KUBELET_KEY, Resident("", 0, 0, NO_CPUS, assigned))
        return node

    def change(self, kind: str, table: MutableMapping[Any, Any], key: Any, value: JournalValue) -> None:
        """Set one record (None: delete it); what it was before is kept until the transition is over."""
        name = key if isinstance(key, str) else "\n".join(key)
        if self.undo is not None:
            self.undo.setdefault((kind, name), (table, key, table.get(key)))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        self._note(kind, name, value)

    def roll_back(self, newest: int) -> None:
        """Undo a transition that was cut short; ``newest``: the last record in the history before it."""
        undo, self.undo = self.undo or {}, {}
        self._as_before(undo)
        for (kind, key), (_, _, before) in undo.items():
            if kind == "told":
                self.tell(key, before)
        self.reconciled = (0, NO_CPUS, frozenset(), frozenset())
        for record in [r for r in self.history if r.number > newest]:
            self._amend(record.id, outcome="undone: an error in cri-resmgr")

    def _as_before(self, undo: Undo) -> None:
        """Put records back; what containers were told they were told."""
        for (kind, _), (table, key, before) in list(undo.items()):
            if kind == "told":
                continue
            if kind != "grant":
                self.change(kind, table, key, before)
            elif before is not None:
                self.put(before)
            elif key in self.grants:
                self.drop(key)
            else:
                self._unbook(key)

    def keep_request(self, reconciled: Pools) -> None:
        """A request was booked by the transition that ends now; ``reconciled``: as it was before."""
        self._request = self.version, self.undo or {}, reconciled

    def take_back_request(self, ticket_id: str) -> bool:
        """Have all as it was before a request was booked, if nothing has changed since; else False, and nothing is done."""
        version, undo, reconciled = self._request
        if version != self.version or ("ticket", ticket_id) not in undo:
            return False
        changed_s = dict(self.node.changed_s)
        self._as_before(undo)
        self.node.changed_s, self.reconciled = changed_s, reconciled
        return True

    def _note(self, kind: str, key: str, value: JournalValue) -> None:
        self.version += 1
        self.journal[(kind, key)] = value
        if self.derived:
            self.derived.pop((kind, key), None)

    def drain(self, at_once: bool = False) -> dict[JournalKey, JournalValue]:
        """What has changed since the last call, to be written down: the last value of each record, None = gone.

        ``at_once``: without what may be written down some time later, which waits for the next call without it.
        """
        journal, self.journal = self.journal, {}
        if not at_once and self.derived:
            journal, self.derived = {**journal, **self.derived}, {}
        return journal

    def record(
        self,
        operation: str,
        container_id: str,
        grant: ContainerRecord,
        now_s: float,
        move: Optional[MoveEffect] = None,
    ) -> None:
        number = self.newest_record + 1
        container = grant.container
        record = DecisionRecord(number, now_s, operation, container.path, container.pod.uid, container_id,
                        grant.stance.value, grant.placement, grant.why, move=move)  # fmt: skip
        self._remember(record)

    def _remember(self, record: DecisionRecord) -> None:
        self.history.append(record)
        self.note_record(record)

    def note_record(self, record: DecisionRecord) -> None:
        """Have an entry of the history written down as it is now."""
        self._note("record", str(record.number), record)

    def rename(self, ticket_id: str, container_id: str) -> None:
        """A container that was known by its ticket has its id."""
        change = self.changed.pop(ticket_id, None)
        if change is not None:
            self.changed[container_id] = change
            self._rename_in_changes(ticket_id, container_id)
        self._amend(ticket_id, id=container_id, outcome="created")

    def _rename_in_changes(self, ticket_id: str, container_id: str) -> None:
        """In the entries of what came while it was created."""
        for index in range(len(self.history) - 1, -1, -1):
            record = self.history[index]
            if record.id == ticket_id:
                return
            if any(ticket_id in change.keys for change in record.changes):
                changes = tuple(
                    altered(c, keys=tuple(container_id if key == ticket_id else key for key in c.keys))
                    for c in record.changes
                )
                self.history[index] = altered(record, changes=changes)
                self.note_record(self.history[index])

    def outcome(self, container_id: str, outcome: str) -> None:
        self._amend(container_id, outcome=outcome)

    def _amend(self, container_id: str, **changes: str) -> None:
        for index in range(len(self.history) - 1, -1, -1):
            if self.history[index].id == container_id:
                self.history[index] = altered(self.history[index], **changes)
                self.note_record(self.history[index])
                self.amended[container_id] = self.history[index]
                return


def is_other_amount(before: MemoryCharge, now: MemoryCharge) -> bool:
    """Whether what a container holds differs from what it is charged by enough to be written down."""
    if not before:
        return bool(now)
    was, held = dict(before), dict(now)
    return any(
        abs(held.get(node, 0) - was.get(node, 0)) > max(SAME_BYTES, was.get(node, 0) // SAME_PART)
        for node in was.keys() | held.keys()
    )


def _enter(index: dict[_Name, tuple[str, ...]], name: _Name, key: str) -> None:
    """Note a key under a name that few have: most often this one alone, for which a tuple takes a fifth of a set."""
    there = index.get(name, ())
    if key not in there:
        index[name] = (*there, key)


def _leave(index: dict[_Name, tuple[str, ...]], name: _Name, key: str) -> None:
    others = tuple(other for other in index.pop(name) if other != key)
    if others:
        index[name] = others


def discard(index: dict[Any, set[str]], name: Any, key: str) -> None:
    index[name].discard(key)
    if not index[name]:
        del index[name]


# ---------------------------------------------------------------------- what a transition has done to others

# One entry a cause, with all containers that it has changed: a create that takes CPUs from ninety others is one entry
# of a thousand, and costs one record on disk. ``explain`` finds a container's changes by its id.

#: The placement of a container that was made while it was not known which CPUs are owned.
LATE = "late placement"
#: What transitions are called in the history, where that is not their own name.
CAUSES = {
    "admit": "create",
    "bind": "create",
    "cancel": "refused request",
    "commit": "resize",
    "follow_resources": "resize",
    "end_pod": "end of the pod",
    "exited": "exit",
    "remove": "removal",
    "tick": "end of a hold",
    "manage": "adopt",
    "place_waiting": LATE,
    "apply": "rebalance",
    "take_back": "move taken back",
    "adopt": "comparison",
    "take_over": "comparison",
    "amend": "comparison",
    "restore": "restart",
    "rehost": "machine or configuration",
    "set_orders": "end of a freeze",
    "follow_kubelet": "kubelet's exclusive CPUs",
    "mend_records": "mend",
    "give_way": "mend",
}
#: A ``PlacementChange`` without its keys.
_What = tuple[str, str, frozenset[int], frozenset[int], str, str]
#: These are about no container.
ABOUT_NONE = ("restore", "rehost", "set_orders", "follow_kubelet")


def note_changes(state: State, transition: str, newest: int) -> None:
    """Enter what a transition that has come to its end has changed; ``newest``: the last entry before it."""
    made = [] if transition in ABOUT_NONE else _made_since(state, newest)
    # An entry of their own says where these are.
    told = {record.id for record in made}
    for key, record in state.amended.items():
        if key in state.grants and state.grants[key].cpus == record.placement.cpus:
            told.add(key)
    about: Optional[ContainerRecord] = None
    #: Many share one set and lose the same of it: those are compared once.
    alike: dict[tuple[object, ...], tuple[ContainerRecord, ContainerRecord, list[str]]] = {}
    together = state.together
    for (kind, key), (_, _, before) in (state.undo or {}).items():
        if kind != "grant":
            continue
        if (
            (moved := together.get(key)) is not None
            and moved[0] is before
            and moved[1] is state.grants.get(key)
        ):
            if key not in told:
                place, is_held = before.placement, before.life is Life.HELD
                signs = id(moved[2]), before.cpus, place.level, place.mems, before.stance, is_held
                alike.setdefault(signs, (before, moved[1], []))[2].append(key)
            about = about or moved[1]
            continue
        now = state.grants.get(key)
        before = before or state.found.get(key)
        # It begins with the container it is about.
        about = about or now or before
        if now is None:
            state.changed.pop(key, None)
        elif before is not None and before is not now and key not in told:
            alike[(key,)] = before, now, [key]
    found: dict[_What, list[str]] = {}
    for before, now, keys in alike.values():
        operation = _operation(before, now)
        if operation:
            why = "" if now.why == before.why else now.why
            place = now.placement
            what = operation, now.stance.value, now.cpus, place.mems, place.level, why
            found.setdefault(what, []).extend(keys)
    if not found or about is None:
        return
    changes = tuple(PlacementChange(*what, tuple(keys)) for what, keys in found.items())
    if made:
        cause = altered(made[0], changes=changes)
        state.history[len(state.history) - len(made)] = cause
    else:
        cause = _cause(state, transition, None if transition in ABOUT_NONE else about, changes)
        state.history.append(cause)
    state.note_record(cause)
    for change in changes:
        state.changed.update(dict.fromkeys(change.keys, (cause, change)))


def _made_since(state: State, newest: int) -> list[DecisionRecord]:
    made: list[DecisionRecord] = []
    for record in reversed(state.history):
        if record.number <= newest:
            break
        made.append(record)
    return made[::-1]


def _operation(before: ContainerRecord, now: ContainerRecord) -> str:
    """What has become of a container's place, as in ``PlacementChange``; "" = nothing."""
    if now.life is Life.HELD:
        return ""
    if now.stance is not before.stance:
        return now.stance.value
    cpus_before, cpus = before.cpus, now.cpus
    if cpus != cpus_before:
        return "shrunk" if cpus < cpus_before else "grown" if cpus > cpus_before else "moved"
    was, place = before.placement, now.placement
    # What its group owns is told of the group: it is no change of the container's own.
    owns_other = place.exclusive != was.exclusive and not (place.group and place.group == was.group)
    if owns_other or (place.mems, place.level) != (was.mems, was.level):
        return "changed"
    return "repaired" if now.repairs and now.repairs != before.repairs else ""


def _cause(
    state: State, transition: str, about: Optional[ContainerRecord], changes: tuple[PlacementChange, ...]
) -> DecisionRecord:
    """An entry for a cause that has none of its own."""
    number = state.newest_record + 1
    operation = CAUSES.get(transition, transition.replace("_", " "))
    if about is None:
        return DecisionRecord(number, state.now_s, operation, "", "", "", "", UNTOUCHED, "", "", changes)
    container = about.container
    return DecisionRecord(number, state.now_s, operation, container.path, container.pod.uid, about.key, about.stance.value,
                  about.placement, about.why, "", changes)  # fmt: skip
