"""The node's books: which container is charged on which CPUs, and how much room that leaves in each domain.

Charges follow the design: a container's CPU request is spread evenly over the CPUs of its cpuset; where it owns
some of them, what its own do not carry is spread over the others. They are kept per CPU in nano-CPUs
(integers), so that adding and removing give back exactly the sums of before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Optional

from policies.frozen import dataclass
from policies.groups import Group
from policies.homes import Homes
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology
from policies.model import BATCH, PROTECTED, Container, Placement, Resident, altered

#: CPUs, each with how many claim it.
Claims = frozenset[tuple[int, int]]

NANO_PER_MILLI = 1_000_000
#: For ordering candidates every container counts at least this much, so that containers without a request spread too.
MIN_ORDER_MILLI = 10
#: Sets of CPUs that are remembered with the L3s they are in.
SETS_KEPT = 256
#: Constraints whose capacities are kept up to date.
CONSTRAINTS_KEPT = 8


def charges(resident: Resident) -> list[tuple[frozenset[int], int, int]]:
    """Its charge on each of its CPUs, by set of CPUs: its request, and its weight in ordering.

    Where it owns CPUs and shares others for the rest of its request, that rest is on the shared ones. Of claims' CPUs it
    shares nothing with others.
    """
    cpus, exclusive, milli = resident.cpus, resident.exclusive, resident.milli_request
    if resident.claimed:
        cpus = cpus - resident.claimed
    own = cpus & exclusive if exclusive and not resident.group else NO_CPUS
    if not own or own == cpus:
        return [_spread(cpus, milli, resident.milli_used)] if cpus else []
    milli_shared = max(milli % 1000, milli - len(exclusive) * 1000)
    return [_spread(own, milli - milli_shared), _spread(cpus - own, milli_shared)]


def _spread(cpus: frozenset[int], milli: int, milli_used: int = 0) -> tuple[frozenset[int], int, int]:
    """A request on each of some CPUs, in nano-CPUs, and its weight in ordering."""
    count, counts_for = len(cpus), max(milli, milli_used, MIN_ORDER_MILLI)
    return cpus, milli * NANO_PER_MILLI // count, counts_for * NANO_PER_MILLI // count


def _is_alike(one: Resident, other: Resident) -> bool:
    """Whether two bookings of a container differ in nothing but its CPUs."""
    was, now = one.placement, other.placement
    return bool(
        one.container is other.container
        and one.container is not None
        and was is not None
        and now is not None
        and was.group == now.group
        and (was.group or (was.home is now.home and was.level == now.level))
        and bool(one.exclusive) == bool(other.exclusive)
        and bool(was.cpus) == bool(now.cpus)
        and one.memory_charge == other.memory_charge
        and one.bounds == other.bounds
        and one.is_fixed == other.is_fixed
        and one.isolation == other.isolation
    )


@dataclass
class _LeafSums:
    """The figures of a capacity within one constraint, and the leaves whose charges have changed since they were added."""

    cpus: tuple[frozenset[int], ...]
    caps: tuple[int, ...]
    charge: list[int]
    order: list[int]
    stale: set[int]
    unions: dict[tuple[int, ...], frozenset[int]] = field(default_factory=dict)


class Node:
    """Topology, pools and residents of one machine. Policies read it; only the engine changes it."""

    def __init__(
        self,
        topology: Topology,
        usable: frozenset[int],
        mems: frozenset[int],
        reserved: frozenset[int],
        isolated: frozenset[int] = NO_CPUS,
    ) -> None:
        self.topology = topology
        #: CPUs that may be sent at all: online and allowed to kubelet's cgroup.
        self.usable = usable & topology.online
        #: NUMA nodes that may be sent: they have memory and kubelet's cgroup allows them.
        self.mems = mems & topology.memory_nodes
        self.reserved = reserved & self.usable
        #: CPUs that are given away only as exclusive CPUs (``isolcpus``, where the policy keeps them apart).
        self.isolated = isolated & self.usable
        self.residents: dict[str, Resident] = {}
        #: Grows with every change.
        self.version = 0
        #: Keys by pod. Most pods have one container, and a tuple of one takes a fifth of a set.
        self._of_pod: dict[str, tuple[str, ...]] = {}
        #: The containers of each group; their CPUs; and how often either has changed, so that it need not be read anew.
        self.groups: dict[str, Group] = {}
        self.group_versions: dict[str, int] = {}
        #: When the containers of a group have last changed, by the caller; seconds since boot.
        self.changed_s: dict[str, float] = {}
        #: What groups owned before a request that is taken back just now: they had better own that again.
        self.owned_before: dict[str, frozenset[int]] = {}
        #: Containers that own CPUs alone; and the number placed on CPUs that they own in no way.
        self.owners: dict[str, Resident] = {}
        #: Those of ``owners`` that are to own CPUs with others of their pods.
        self.owners_of_pods: dict[str, Resident] = {}
        self.sharers = 0
        #: Containers with affinity annotations.
        self.with_terms: dict[str, Resident] = {}
        self._charge: dict[int, int] = dict.fromkeys(topology.cpus, 0)
        self._order: dict[int, int] = dict.fromkeys(topology.cpus, 0)
        #: Index of the leaf of each CPU.
        self.leaf_of = {cpu: index for index, leaf in enumerate(topology.leaves) for cpu in leaf.cpus}
        #: The L3 of each leaf, and by L3 how many protected and how many batch containers may run in it.
        self.cache_of = [
            next(n for n, cache in enumerate(topology.caches) if index in cache.leaves)
            for index in range(len(topology.leaves))
        ]
        self.protected = [0] * len(topology.caches)
        self.batch = [0] * len(topology.caches)
        self._caches_of: dict[frozenset[int], tuple[int, ...]] = {}
        #: Containers that could make room for others, by home and request.
        self.homes = Homes(self.leaf_of)
        #: Charges that are not entered yet, by set of CPUs: nano-CPUs a CPU, and those for ordering. Many containers
        #: share one set, and when it changes they all move from one to another at once.
        self._unentered: dict[frozenset[int], list[int]] = {}
        self._sets: dict[frozenset[int], int] = {}
        #: By set of CPUs: the milli-CPUs wanted by containers that would lose of it, with counts; by leaf the sets.
        self._wants: dict[frozenset[int], dict[int, int]] = {}
        self._wanted_on: dict[int, set[frozenset[int]]] = {}
        #: The containers that can only be on some of the CPUs, by these.
        self._bound: dict[tuple[frozenset[int], bool], int] = {}
        #: How many claim each exclusive CPU, and how many of them are in no group: a container alone, or all those of a
        #: group that own the same set. These are counted, so that a set is entered once, however many own it.
        self._exclusive: dict[int, int] = {}
        self._alone: dict[int, int] = {}
        self._owned_by: dict[tuple[str, frozenset[int]], int] = {}
        self._memory: dict[int, int] = dict.fromkeys(topology.node_ids, 0)
        #: Of that, the charges of pods for containers that have their pod's limit.
        self._memory_of_pod: dict[str, dict[int, int]] = {}
        #: The free memory of NUMA nodes when it was last looked at, in bytes; a node that is not named has any.
        self.free_memory: Mapping[int, int] = {}
        #: Bytes of NUMA nodes that are kept for the system.
        self.reserved_memory: Mapping[int, int] = {}
        #: The engine's results from the pools; forgotten when these change.
        self.allowed_now: dict[object, frozenset[int]] = {}
        #: Grows whenever the exclusive CPUs change, and with them the shared ones.
        self.pool_version = 0
        self._pool: Optional[frozenset[int]] = None
        self._claims: Optional[Claims] = None
        self._claims_alone: Optional[Claims] = None
        self._sums: dict[Optional[frozenset[int]], _LeafSums] = {}

    # ------------------------------------------------------------------ changes

    def add(self, key: str, resident: Resident) -> None:
        """Put a container into the books under ``key``, which must be new. CPUs the machine does not have are left out."""
        if key in self.residents:
            raise KeyError(f"{key} is in the books already")
        if not resident.cpus <= self._charge.keys():
            resident = replace(resident, cpus=resident.cpus.intersection(self._charge))
        self.residents[key] = resident
        self._of_pod[resident.pod_uid] = (*self._of_pod.get(resident.pod_uid, ()), key)
        if resident.container is not None and resident.container.preferences.affinity:
            self.with_terms[key] = resident
        if group := resident.group:
            self.groups.setdefault(group, Group()).add(key, resident)
        elif resident.exclusive:
            self._enter_owner(key, resident)
        self.sharers += resident.shares
        self.homes.add(key, resident.placement, resident.milli_request)
        self._book(resident, +1)

    def remove(self, key: str) -> Resident:
        """Take a container out; returns its booking, so that it can be put back."""
        resident = self.residents.pop(key)
        self.with_terms.pop(key, None)
        if group := resident.group:
            self.groups[group].remove(key)
            if not self.groups[group]:
                del self.groups[group]
        self.owners.pop(key, None)
        self.owners_of_pods.pop(key, None)
        self.sharers -= resident.shares
        self.homes.remove(key, resident.placement, resident.milli_request)
        others = tuple(other for other in self._of_pod.pop(resident.pod_uid) if other != key)
        if others:
            self._of_pod[resident.pod_uid] = others
        self._book(resident, -1)
        return resident

    def replace(self, key: str, resident: Resident) -> None:
        """Book a container that is in the books otherwise. As ``remove`` and ``add``, and less work where only its
        CPUs are others."""
        was = self.residents[key]
        if not _is_alike(was, resident) or not resident.cpus <= self._charge.keys():
            self.remove(key)
            self.add(key, resident)
            return
        self.version += 1
        group = resident.group
        self.residents[key] = resident
        if key in self.with_terms:
            self.with_terms[key] = resident
        if group:
            self.groups[group].remove(key)
            self.groups[group].add(key, resident)
            self.group_versions[group] = self.version
        elif resident.exclusive:
            self._enter_owner(key, resident)
        # The charge in a group depends on nothing else.
        if was.cpus != resident.cpus or (was.exclusive != resident.exclusive and not group):
            self._book_cpus(was, -1)
            self._book_cpus(resident, +1)
        if was.exclusive != resident.exclusive:
            self._claim(group, resident.exclusive, +1)
            self._claim(group, was.exclusive, -1)

    def _enter_owner(self, key: str, resident: Resident) -> None:
        self.owners[key] = resident
        if resident.container is not None and resident.container.pod_share is not None:
            self.owners_of_pods[key] = resident

    def share(self, places: Mapping[str, Optional[Placement]], cpus: frozenset[int]) -> None:
        """Book containers that have one set of CPUs on another: as ``replace`` of each, where only its CPUs are others.

        ``places``: what their placements are now, by key; None = it is not placed. They own no CPUs, or are of one group and
        own the same, before and after.
        """
        sizes: dict[tuple[int, int], int] = {}
        wants: dict[int, int] = {}
        classes: dict[str, int] = {}
        was = place = None
        for key, place in places.items():
            was = self.residents[key]
            exclusive = NO_CPUS if place is None else place.exclusive
            now = altered(was, cpus=cpus, placement=place, exclusive=exclusive)
            self.residents[key] = now
            if key in self.with_terms:
                self.with_terms[key] = now
            size, wanted = (was.milli_request, was.milli_used), was.milli_wanted
            sizes[size] = sizes.get(size, 0) + 1
            if wanted:
                wants[wanted] = wants.get(wanted, 0) + 1
            if was.isolation:
                classes[was.isolation] = classes.get(was.isolation, 0) + 1
        if was is None:
            return
        old, group = was.cpus, was.group
        for size, number in sizes.items():
            for sign, part in ((-1, old), (1, cpus)):
                _, share, order = _spread(part, *size)
                entry = self._unentered.setdefault(part, [0, 0])
                entry[0] += sign * share * number
                entry[1] += sign * order * number
        for sign, part in ((-1, old), (1, cpus)):
            left = self._sets[part] = self._sets.get(part, 0) + sign * len(places)
            if not left:
                del self._sets[part]
            for milli, number in wants.items() if not group else ():
                self._want(part, milli, sign * number)
            for kind, number in classes.items():
                self._note_class(kind, part, sign * number)
        self.version += len(places)
        if group and place is not None:
            self.groups[group].change({key: self.residents[key] for key in places})
            self.group_versions[group] = self.version
            if place.exclusive != was.exclusive:
                self._claim(group, place.exclusive, len(places))
                self._claim(group, was.exclusive, -len(places))

    def _book(self, resident: Resident, sign: int) -> None:
        self.version += 1
        group = resident.group
        if group:
            self.group_versions[group] = self.version
        self._book_cpus(resident, sign)
        if resident.bounds is not None:
            bound = resident.bounds, resident.is_fixed
            self._bound[bound] = self._bound.get(bound, 0) + sign
            if not self._bound[bound]:
                del self._bound[bound]
        if resident.exclusive:
            self._claim(group, resident.exclusive, sign)
        if resident.memory_charge and resident.has_limit_of_pod:
            self._book_memory_of_pod(resident.pod_uid)
        else:
            for node, size in resident.memory_charge:
                self._memory[node] = self._memory.get(node, 0) + sign * size

    def _book_cpus(self, resident: Resident, sign: int) -> None:
        for part, share, order in charges(resident):
            entry = self._unentered.setdefault(part, [0, 0])
            entry[0] += sign * share
            entry[1] += sign * order
        if resident.isolation:
            self._note_class(resident.isolation, resident.cpus, sign)
        count = self._sets.get(resident.cpus, 0) + sign
        self._sets[resident.cpus] = count
        if not count:
            del self._sets[resident.cpus]
        # What loses those of its CPUs that another container takes for itself.
        if (
            resident.milli_wanted
            and resident.cpus
            and not (resident.exclusive or resident.group or resident.is_fixed)
        ):
            self._want(resident.cpus, resident.milli_wanted, sign)

    def _note_class(self, kind: str, cpus: frozenset[int], more: int) -> None:
        """Count a class in the L3s of some CPUs; standard containers disturb and are disturbed by none."""
        if kind not in (PROTECTED, BATCH):
            return
        caches = self._caches_of.get(cpus)
        if caches is None:
            if len(self._caches_of) >= SETS_KEPT:
                self._caches_of.clear()
            found = {self.cache_of[self.leaf_of[cpu]] for cpu in cpus}
            caches = self._caches_of[cpus] = tuple(sorted(found))
        counts = self.protected if kind == PROTECTED else self.batch
        for cache in caches:
            counts[cache] += more

    def company(self, kind: str, places: Sequence[tuple[int, ...]]) -> list[int]:
        """How ill places suit a container of a class, by their leaves; 0 = well. Of a protected one: the L3s in which batch
        may run. Of a batch one: those in which a protected one may, and, if these are as many, those without batch yet."""
        if kind == PROTECTED:
            scores = [1 if count else 0 for count in self.batch]
        else:
            shared = len(self.batch) + 1
            scores = [
                (shared if protected else 0) + (0 if batch else 1)
                for protected, batch in zip(self.protected, self.batch)
            ]
        cache_of = self.cache_of
        return [
            scores[cache_of[leaves[0]]]
            if len(leaves) == 1
            else sum([scores[cache] for cache in {cache_of[leaf] for leaf in leaves}])
            for leaves in places
        ]

    def _claim(self, group: str, exclusive: frozenset[int], more: int) -> None:
        """Note that there is one more or one less that owns some CPUs, alone; of a group there may be ``more`` than one."""
        if not exclusive:
            return
        sign = more
        if group:
            owners = self._owned_by.get((group, exclusive), 0)
            left = self._owned_by[group, exclusive] = owners + more
            if left and owners:
                return
            if not left:
                del self._owned_by[group, exclusive]
            sign = 1 if more > 0 else -1
        for counts in (self._exclusive,) if group else (self._exclusive, self._alone):
            for cpu in exclusive:
                counts[cpu] = counts.get(cpu, 0) + sign
                if not counts[cpu]:
                    del counts[cpu]
        self.pool_version += 1
        self._pool = self._claims = self._claims_alone = None
        self._sums.clear()
        self.allowed_now.clear()

    def _want(self, cpus: frozenset[int], milli: int, sign: int) -> None:
        """Note that there is one more or one less that wants so much of a set."""
        wants = self._wants.get(cpus)
        if wants is None:
            wants = self._wants[cpus] = {}
            for leaf in {self.leaf_of[cpu] for cpu in cpus}:
                self._wanted_on.setdefault(leaf, set()).add(cpus)
        count = wants.get(milli, 0) + sign
        if count:
            wants[milli] = count
            return
        del wants[milli]
        if not wants:
            del self._wants[cpus]
            for leaf in {self.leaf_of[cpu] for cpu in cpus}:
                self._wanted_on[leaf].discard(cpus)

    def _book_memory_of_pod(self, pod_uid: str) -> None:
        """Charge the limit that containers of a pod have together: on each node the most that one of them has there."""
        was, now = self._memory_of_pod.pop(pod_uid, {}), dict[int, int]()
        for resident in self.of_pod(pod_uid).values():
            for node, size in resident.memory_charge if resident.has_limit_of_pod else ():
                now[node] = max(now.get(node, 0), size)
        if now:
            self._memory_of_pod[pod_uid] = now
        for node in sorted(was.keys() | now.keys()):
            self._memory[node] = self._memory.get(node, 0) + now.get(node, 0) - was.get(node, 0)

    def _enter(self) -> None:
        """Enter the charges that are waiting."""
        touched: set[int] = set()
        for cpus, (share, order) in self._unentered.items():
            if not share and not order:
                continue
            for cpu in cpus:
                self._charge[cpu] += share
                self._order[cpu] += order
                touched.add(self.leaf_of[cpu])
        self._unentered.clear()
        for sums in self._sums.values():
            sums.stale |= touched

    # ------------------------------------------------------------------ questions

    @property
    def exclusive(self) -> frozenset[int]:
        """CPUs that belong to one container alone."""
        return frozenset(self._exclusive)

    @property
    def claims(self) -> Claims:
        """The exclusive CPUs, each with how many claim it: containers alone, and the sets that groups own."""
        if self._claims is None:
            self._claims = frozenset(self._exclusive.items())
        return self._claims

    def claimants(self, cpu: int) -> int:
        """How many records claim a CPU: a resize on its way is a second one."""
        return self._alone.get(cpu, 0) + sum([n for (_, own), n in self._owned_by.items() if cpu in own])

    @property
    def claims_alone(self) -> Claims:
        """The same of records in no group: the number of all stays as it was where one of a group goes and another comes."""
        if self._claims_alone is None:
            self._claims_alone = frozenset(self._alone.items())
        return self._claims_alone

    @property
    def shared(self) -> frozenset[int]:
        """CPUs for containers without CPUs of their own: usable, not reserved, not isolated, not exclusive.

        Isolated CPUs (the kernel balances no load there), and after them reserved ones, are used by others only
        when no shared CPU is left at all.
        """
        if self._pool is None:
            free = self.usable - self.exclusive
            self._pool = (free - self.isolated - self.reserved) or free - self.reserved or free
        return self._pool

    @property
    def shared_reserved(self) -> frozenset[int]:
        """CPUs for the containers of reserved namespaces: the reserved ones that belong to no container alone."""
        return self.reserved - self.exclusive

    @property
    def bounds(self) -> Iterable[tuple[frozenset[int], bool]]:
        """The sets that containers are bound to (``Resident.bounds``), and whether they are fixed there."""
        return self._bound.keys()

    def charge_milli(self, cpus: Iterable[int]) -> int:
        """Requests charged on some CPUs, in milli-CPUs, rounded up."""
        self._enter()
        return -(-sum(self._charge.get(c, 0) for c in cpus) // NANO_PER_MILLI)

    def shortfall_milli(self, cpus: frozenset[int], count: int) -> int:
        """The loss of others by ``count`` of these CPUs, in milli-CPUs below what each of them wants, added up."""
        total = 0
        for shared in {s for leaf in {self.leaf_of[c] for c in cpus} for s in self._wanted_on.get(leaf, ())}:
            wants = self._wants[shared]
            if max(wants) <= (len(shared) - count) * 1000:
                continue
            # As few of theirs as can be.
            here = len(cpus & shared)
            lost = min(here, max(0, count - len(cpus) + here))
            has, left = len(shared) * 1000, (len(shared) - lost) * 1000
            total += sum([n * (min(milli, has) - min(milli, left)) for milli, n in wants.items()])
        return total

    def to_spare(self, cpus: frozenset[int], count: int) -> frozenset[int]:
        """Of these CPUs the ones in leaves that can lose ``count`` of them, or all, and leave each container that shares
        there as many CPUs as it wants."""
        found: list[frozenset[int]] = []
        for index, leaf in enumerate(self.topology.leaves):
            here = leaf.cpus & cpus
            most = min(count, len(here)) * 1000
            if not most:
                continue
            for shared in self._wanted_on.get(index, ()):
                if len(shared) * 1000 - most < max(self._wants[shared]):
                    break
            else:
                found.append(here)
        return NO_CPUS.union(*found)

    def memory_charged(self, node: int) -> int:
        """Bytes of memory charged to a NUMA node: limits, and what containers without one hold."""
        return self._memory.get(node, 0)

    def memory_shared(self, container: Container) -> Mapping[int, int]:
        """The charge by node already of the limit that a container has together with others of its pod."""
        limit = container.resources.memory_limit_bytes
        is_shared = limit and limit == container.pod.memory_limit_bytes
        return self._memory_of_pod.get(container.pod.uid, {}) if is_shared else {}

    def of_pod(self, pod_uid: str) -> Mapping[str, Resident]:
        """The containers of one pod, by key."""
        return {key: self.residents[key] for key in self._of_pod.get(pod_uid, ())}

    def containers_on(self, cpus: frozenset[int]) -> int:
        """How many containers may run on at least one of these CPUs."""
        return self.containers_on_each([cpus])[0]

    def containers_on_each(self, places: Iterable[frozenset[int]]) -> list[int]:
        """``containers_on`` of each set of CPUs."""
        found = []
        for cpus in places:
            total = 0
            for group, count in self._sets.items():
                if not group.isdisjoint(cpus):
                    total += count
            found.append(total)
        return found

    def capacity(self, constraint: Optional[frozenset[int]] = None) -> Capacity:
        """Capacity and load of every leaf, as seen by a shared container behind ``constraint``."""
        self._enter()
        sums = self._sums.get(constraint)
        if sums is None:
            sums = self._sums[constraint] = self._new_sums(constraint)
        for index in sums.stale:
            cpus = sums.cpus[index]
            sums.charge[index] = sum([self._charge[c] for c in cpus])
            sums.order[index] = sum([self._order[c] for c in cpus])
        sums.stale.clear()
        return Capacity(sums.cpus, sums.caps, tuple(sums.charge), tuple(sums.order), sums.unions)

    def _new_sums(self, constraint: Optional[frozenset[int]]) -> _LeafSums:
        # Kubelet's static CPU manager puts all containers behind the same few constraints.
        if len(self._sums) >= CONSTRAINTS_KEPT:
            self._sums.clear()
        pool = self.shared if constraint is None else self.shared & constraint
        cpus = tuple(leaf.cpus & pool for leaf in self.topology.leaves)
        count = len(cpus)
        return _LeafSums(cpus, tuple(len(leaf) for leaf in cpus), [0] * count, [0] * count, set(range(count)))


@dataclass(frozen=True)
class Capacity:
    """Per leaf of the topology: the CPUs that may be used, how many, and the nano-CPUs charged on them.

    ``order_nano`` counts every container at least MIN_ORDER_MILLI; it decides between candidates,
    ``charge_nano`` decides whether there is room. ``unions``: the CPUs of sets of leaves that were asked for; the
    containers of one place share one set of them in memory.
    """

    cpus: tuple[frozenset[int], ...]
    caps: tuple[int, ...]
    charge_nano: tuple[int, ...]
    order_nano: tuple[int, ...]
    unions: dict[tuple[int, ...], frozenset[int]] = field(default_factory=dict, compare=False, repr=False)

    def cap(self, leaves: Iterable[int]) -> int:
        """CPUs in these leaves."""
        caps = self.caps
        return sum([caps[i] for i in leaves])

    def room_nano(self, leaves: Iterable[int]) -> int:
        """Nano-CPUs of these leaves that no request is charged on; negative when overcommitted."""
        caps, charge = self.caps, self.charge_nano
        return sum([caps[i] * 1000 * NANO_PER_MILLI - charge[i] for i in leaves])

    def unused_nano(self, leaves: Iterable[int]) -> int:
        """Nano-CPUs of these leaves that neither a request nor what a container uses counts for."""
        caps, order = self.caps, self.order_nano
        return sum([caps[i] * 1000 * NANO_PER_MILLI - order[i] for i in leaves])

    def most_room_nano(self) -> int:
        """More than this no set of leaves has room for."""
        return sum(
            [max(0, cap * 1000 * NANO_PER_MILLI - charge) for cap, charge in zip(self.caps, self.charge_nano)]
        )

    def share_nano(self, leaves: Iterable[int]) -> int:
        """Charged nano-CPUs per CPU of these leaves, rounded down."""
        order, caps = self.order_nano, self.caps
        total = sum([caps[i] for i in leaves])
        return sum([order[i] for i in leaves]) // total if total else 0

    # Of many places at once: a policy asks for all places of a rung, and a call each takes longer than the sum.

    def caps_of(self, places: Iterable[Iterable[int]]) -> list[int]:
        """``cap`` of the leaves of each place."""
        caps, found = self.caps, []
        for leaves in places:
            total = 0
            for i in leaves:
                total += caps[i]
            found.append(total)
        return found

    def rooms_nano(self, places: Iterable[Iterable[int]]) -> list[int]:
        """``room_nano`` of the leaves of each place."""
        caps, charge, found = self.caps, self.charge_nano, []
        for leaves in places:
            room = 0
            for i in leaves:
                room += caps[i] * 1000 * NANO_PER_MILLI - charge[i]
            found.append(room)
        return found

    def shares_nano(self, places: Iterable[Iterable[int]]) -> list[int]:
        """``share_nano`` of the leaves of each place."""
        caps, order, found = self.caps, self.order_nano, []
        for leaves in places:
            total = charged = 0
            for i in leaves:
                total += caps[i]
                charged += order[i]
            found.append(charged // total if total else 0)
        return found

    def sets_of(self, places: Iterable[tuple[int, ...]]) -> list[frozenset[int]]:
        """``allowed`` of the leaves of each place."""
        known = self.unions
        return [known.get(leaves) or self.allowed(leaves) for leaves in places]

    def allowed(self, leaves: Iterable[int]) -> frozenset[int]:
        """The CPUs of these leaves that may be used."""
        key = tuple(leaves)
        union = self.unions.get(key)
        if union is None:
            union = self.unions[key] = frozenset().union(*[self.cpus[i] for i in key])
        return union

    def credit(self, residents: Mapping[str, Resident], pod_uid: str) -> Capacity:
        """The same, as if the containers of one pod were not there."""
        charge, order = list(self.charge_nano), list(self.order_nano)
        for resident in residents.values():
            if resident.pod_uid != pod_uid:
                continue
            for cpus, each, each_order in charges(resident):
                for index, leaf in enumerate(self.cpus):
                    overlap = len(leaf & cpus)
                    if overlap:
                        charge[index] -= each * overlap
                        order[index] -= each_order * overlap
        return Capacity(self.cpus, self.caps, tuple(charge), tuple(order))
