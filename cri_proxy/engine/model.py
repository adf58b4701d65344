"""The values of the engine: records and what it hands out, the node it is on, what people ask of that, and its zones.

Frozen values, units in the names. Times are seconds since boot (CLOCK_BOOTTIME), given by the caller: they keep their
meaning through a restart of the daemon, and a reboot ends them all.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from enum import Enum
from typing import Any, NamedTuple, Optional

from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.machine.domain_names import domain_text, read_domain
from policies.machine.topology import Domain, Topology
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementPreferences,
    Quota,
    Resident,
    Resources,
    altered,
    used_milli,
    wanted_milli,
)


class Management(str, Enum):
    """Whose cpuset a container has."""

    PLACED = "placed"  # ours: kept, repaired, moved with topology changes
    ADOPTED = "adopted"  # was there before us: kept until a grant needs its CPUs
    OBSERVED = "observed"  # decided in mode observe: nothing was sent
    OPTED_OUT = "opted out"  # by annotation, namespace or runtime handler
    KUBELET = "kubelet-exclusive"  # kubelet's static CPU manager owns these CPUs
    UNTOUCHED = "untouched"  # we could not or would not place it (policy none, fail open, empty constraint)
    WAITING = "waiting"  # made while it was not known which CPUs are owned: placed once that is
    RELEASED = "released"  # given back by command
    FOREIGN = "foreign"  # another writer keeps changing it


#: Containers that the node leaves alone.
LEFT_ALONE = (Management.RELEASED, Management.OPTED_OUT)


class Life(str, Enum):
    """Where a grant is in its life; the end, free, is having no record."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    HELD = "held"
    #: No container: CPUs of a claim, for the containers that have it. It is there until it is unprepared.
    CLAIM = "claim"


@frozen
class ClaimPart:
    """What one request of a claim was allocated: ``count`` CPUs of its own out of ``cpus``, those of its devices.

    ``preferences``: as of a container that is to own them.
    """

    request: str
    count: int
    cpus: frozenset[int]
    preferences: PlacementPreferences = PlacementPreferences()
    devices: tuple[str, ...] = ()


@frozen
class ContainerRecord:
    """One container's place. ``key`` is its runtime id, or its ticket's id while it is being created.

    ``runs_on`` is where it runs when that is not ``placement.cpus`` (any stance but PLACED).
    ``displaced``: the placement it had before its CPUs went away, to go back to when they return.
    ``repairs`` are the times at which drift was repaired. ``runs_in``: the cgroup that its processes run in where
    that is not its own, whose cpuset then binds nothing; "" = its own. ``is_outgrown``: its resources have changed while
    nothing could be sent; it is placed by them when that can be done. ``quota_taken``: we have taken its CPU quota away
    once, so that the daemon owes it if it is not there. ``runs_on_mems`` is where its memory may come from when that is
    not ``placement.mems``, as far as it was looked at; ``memory_charge``, bytes by NUMA node, is what it is charged when
    that is not ``placement.memory_charge``: its limit there, or without one what it was last seen to hold. ``moved_s``:
    when a plan has moved it last, 0 = never. ``isolation``: what it is to others, protected, standard or batch, and
    ``isolation_why`` what says so; "" where no subject of isolation is on. ``asked``: what NRI plugins have asked for
    that isolation does and CRI cannot say, by the names of PlacementPreferences' fields, and scheduling.
    ``turbo_us``: the CPU quota, in microseconds of its period, that it is to have for a while instead of its own, 0 = its
    own; ``turbo_top_us``: the most of it that it may still have, 0 = it is known to have its own. Its limit stays.
    ``part``: of a claim's part what it was made of; ``key`` is the claim's, and ``container`` stands for the part.
    """

    key: str
    container: Container
    placement: Placement
    stance: Management
    constraint: Constraint = NO_CONSTRAINT
    life: Life = Life.CREATING
    runs_on: frozenset[int] = NO_CPUS
    since_s: float = 0.0
    hold_until_s: float = 0.0
    exit_code: Optional[int] = None
    displaced: Optional[Placement] = None
    repairs: tuple[float, ...] = ()
    why: str = ""
    runs_in: str = ""
    is_outgrown: bool = False
    quota_taken: bool = False
    runs_on_mems: frozenset[int] = NO_CPUS
    memory_charge: tuple[tuple[int, int], ...] = ()
    moved_s: float = 0.0
    isolation: str = ""
    isolation_why: str = ""
    asked: tuple[tuple[str, str], ...] = ()
    turbo_us: int = 0
    turbo_top_us: int = 0
    part: Optional[ClaimPart] = None

    @property
    def is_claim(self) -> bool:
        """Whether it is a claim's part, and no container."""
        return self.life is Life.CLAIM

    @property
    def is_made(self) -> bool:
        """Whether it is a container that the runtime has made: no claim's part, and not still on its way."""
        return self.life not in (Life.CREATING, Life.CLAIM)

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs it is charged on; in mode observe those it would have, so that the next decision makes sense."""
        return (
            self.placement.cpus if self.stance in (Management.PLACED, Management.OBSERVED) else self.runs_on
        )

    @property
    def mems(self) -> frozenset[int]:
        """The memory nodes it is charged on; empty = all of kubelet's, or not looked at yet."""
        return self.placement.mems if self.has_placed_memory else self.runs_on_mems

    @property
    def has_placed_memory(self) -> bool:
        """Whether its placement says where its memory may come from."""
        return self.stance in (Management.PLACED, Management.OBSERVED) and bool(self.placement.mems)

    @property
    def lifted(self) -> bool:
        """Whether we have taken its CPU quota away."""
        return self.stance is Management.PLACED and self.placement.lift_quota

    @property
    def quota(self) -> Optional[Quota]:
        """The CPU quota it has without us; None = it has none."""
        resources = self.container.told
        if resources.milli_limit is None or not resources.quota_period_us:
            return None
        return Quota(resources.milli_limit * resources.quota_period_us // 1000, resources.quota_period_us)

    @property
    def raised_us(self) -> int:
        """The CPU quota that it should have instead of its own; 0 = its own, or none."""
        quota = self.quota if self.turbo_us and self.has_turbo and not self.lifted else None
        return 0 if quota is None or self.turbo_us <= quota.quota_us else self.turbo_us

    @property
    def has_turbo(self) -> bool:
        """Whether its quota is, or may still be, another one than its own, and that is ours to say."""
        return self.turbo_top_us > 0 and self.stance in (Management.PLACED, Management.ADOPTED)

    def is_turbo(self, quota_us: int, period_us: int) -> bool:
        """Whether a quota that was read is one of those it may have been given. systemd rounds up to hundredths of a CPU."""
        own = self.quota
        if own is None or not self.turbo_top_us or period_us != own.period_us:
            return False
        rounded_us = own.period_us // 100
        return own.quota_us + rounded_us <= quota_us <= self.turbo_top_us + rounded_us

    @property
    def exclusive(self) -> frozenset[int]:
        """The CPUs that no other container may use."""
        if self.stance is Management.KUBELET:
            return self.runs_on
        return self.placement.exclusive if self.stance in (Management.PLACED, Management.ADOPTED) else NO_CPUS

    @property
    def own(self) -> frozenset[int]:
        """The same, and the CPUs of its claims, which it shares with no other containers than theirs."""
        claimed = self.placement.claimed
        return self.exclusive | claimed if claimed and self.stance is Management.PLACED else self.exclusive


#: What residents are made from: a hundred of them may change with one decision.
_NO_RESIDENT = Resident("", 0, 0, NO_CPUS)


def resident_of(grant: ContainerRecord) -> Resident:
    """What a grant is among the containers of the node."""
    container, place, exclusive = grant.container, grant.placement, grant.exclusive
    is_placed = grant.stance is Management.PLACED
    charge = (place.memory_charge if grant.has_placed_memory else ()) or grant.memory_charge
    if grant.life is Life.HELD and not container.resources.memory_limit_bytes:
        charge = ()  # it held that
    # The CPUs it can be on where it owns none: those its caller allows, or those of a cpuset that is not ours.
    bounds = grant.constraint.cpus
    if not is_placed:
        bounds = place.home if grant.stance is Management.ADOPTED else grant.runs_on
    if place.claimed and (is_placed or grant.stance is Management.OBSERVED):
        return _member_of(grant, charge)
    return altered(
        _NO_RESIDENT,
        pod_uid=container.pod.uid,
        milli_request=container.resources.milli_request,
        milli_wanted=wanted_milli(container),
        milli_used=used_milli(container),
        cpus=place.cpus if is_placed else grant.cpus,
        exclusive=exclusive,
        memory_charge=charge,
        container=container,
        placement=place if is_placed else None,
        inside=grant.constraint.cpus,
        bounds=None if exclusive or place.level == "reserved" else bounds,
        is_fixed=not is_placed and grant.stance is not Management.ADOPTED,
        isolation=grant.isolation,
    )


def _member_of(grant: ContainerRecord, charge: tuple[tuple[int, int], ...]) -> Resident:
    """A container with claims: it is charged what its claims have not, owns nothing, and is not to be moved."""
    container, place = grant.container, grant.placement
    return altered(
        _NO_RESIDENT,
        pod_uid=container.pod.uid,
        milli_request=milli_beside(container, len(place.claimed)) if place.home else 0,
        milli_wanted=wanted_milli(container),
        cpus=place.cpus,
        memory_charge=charge,
        container=container,
        inside=grant.constraint.cpus,
        isolation=grant.isolation,
        claimed=place.claimed & place.cpus,
    )


def milli_beside(container: Container, claimed: int) -> int:
    """What a container requests beside ``claimed`` CPUs of its claims, in milli-CPUs.

    People repeat a claim's number in the request: one that is at least as much includes it.
    """
    own, share = container.resources.milli_request, container.pod_share
    milli = own if share is None else share.milli_pod
    if milli < claimed * 1000:
        return own
    return milli - claimed * 1000 if share is None else (milli - claimed * 1000) // share.count


class TicketKind(str, Enum):
    CREATE = "create"
    RESIZE = "resize"


class Told(NamedTuple):
    """What a container has, as far as we know: by what it was told last, or as it was seen since.

    ``cpus`` None: not known. ``mems``: empty = not set by us. ``is_lifted``: we have taken its CPU quota away. ``why``: the
    reason that its record had then. ``cause``: why it has not what its record says, where that does not say it.
    ``owned``: what it owned then. ``is_sure`` False: it is on ``cpus``, or on some of them. ``refused``: what the runtime
    has said to the last update since, "" = it has not refused it. ``ignores_mems``: it takes memory nodes and does not set
    them: they are not told again. ``turbo_us``: the quota it was given for a while instead of its own, 0 = it has its own,
    -1 = which of them is not known.
    """

    cpus: Optional[frozenset[int]]
    mems: frozenset[int] = NO_CPUS
    is_lifted: bool = False
    why: str = ""
    cause: str = ""
    owned: frozenset[int] = NO_CPUS
    is_sure: bool = True
    refused: str = ""
    ignores_mems: bool = False
    turbo_us: int = 0


#: ``Told.turbo_us`` where it is not known.
UNKNOWN_QUOTA = -1


@frozen
class Ticket:
    """A request on its way to the runtime.

    ``key`` is the pending grant's key in the books. ``target``: the id of the container a resize is about.
    ``sent``: the placement the request carries, while the grant's own may change under way.
    ``replaces``: grants and tickets set aside for it, put back if it fails. ``moved``: the placements that
    others had before they made room for it, by key, with those they have been given. ``found``: the stance
    that the container of a resize had when it was asked for. ``waiting``: the containers that grow by it, told when it
    ends.
    """

    id: str
    kind: TicketKind
    key: str
    since_s: float
    target: str = ""
    sent: Placement = UNTOUCHED
    in_doubt: bool = False
    replaces: tuple[ContainerRecord, ...] = ()
    replaced_tickets: tuple[Ticket, ...] = ()
    moved: tuple[tuple[str, Placement, Placement], ...] = ()
    found: Optional[Management] = None
    waiting: tuple[str, ...] = ()


@frozen
class CpusetUpdate:
    """A cpuset (and mems) that a container must get. ``shrink``: it loses CPUs, so it is told first.

    ``give_back``: the CPU quota that it has by it: its own, which we had taken away or raised, or one for a while.
    """

    id: str
    placement: Placement
    shrink: bool
    why: str
    give_back: Optional[Quota] = None


class Begun(NamedTuple):
    """An update on its way: what its container had when it went out, and has once it was taken."""

    update: CpusetUpdate
    had: Told
    has: Told


@frozen
class Admission:
    """The answer to ``admit`` and ``resize``. ``placement`` is what to send: empty where the request stays untouched.

    ``give_back``: the CPU quota to send with it, since it had been taken away or raised.
    """

    ticket: str
    decision: Decision
    stance: Management
    placement: Placement
    give_back: Optional[Quota] = None


@frozen
class ListedContainer:
    """One container as the runtime lists it. ``cpus``/``mems`` None = not looked up; "" in the runtime = all = empty.

    ``inherited``: what it runs on where ``cpus`` is empty, as far as its cgroup tells. ``runs_in``: as in its grant;
    None = not looked up. ``resources``: what it has now, as it is known where that cannot be told; None = not looked up.
    ``has_no_quota``: it is seen to have none. ``held``: bytes of memory by NUMA node that it cannot give back, None = not
    looked up. ``claims``: those that the runtime shows it has, as far as that was looked up.
    """

    id: str
    sandbox_id: str
    pod_uid: str
    name: str
    attempt: int
    running: bool
    exited: bool
    exit_code: Optional[int] = None
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    inherited: frozenset[int] = NO_CPUS
    runs_in: Optional[str] = None
    resources: Optional[Resources] = None
    has_no_quota: bool = False
    held: Optional[tuple[tuple[int, int], ...]] = None
    claims: tuple[str, ...] = ()


@frozen
class Move:
    """One step of a plan: the container's new home and level. ``was``: the placement it had when the plan was made.

    ``exchange``: moves of one number above 0 change places: they are sent one after another, and stand or fall together.
    ``gain``: CPU-seconds a second that it is to save, of an exchange what the whole of it does. ``peers``: the ids of those
    that it exchanges most with, heaviest first, for the records.
    """

    id: str
    home: frozenset[int]
    level: str
    why: str = ""
    was: Optional[Placement] = None
    exchange: int = 0
    gain: float = 0.0
    peers: tuple[str, ...] = ()


@frozen
class Plan:
    """Moves that were worked out from the engine's state of ``version``, in the order in which to make them.

    ``at_s``: when they are made, for the records. ``is_order``: it brings containers into the zones that overrides pin
    them to, those with exclusive CPUs too; else those stay where they are.
    """

    version: int
    moves: tuple[Move, ...] = field(default_factory=tuple)
    why: str = ""
    at_s: float = 0.0
    is_order: bool = False


@frozen
class PlacementChange:
    """What became of the places of some containers by one cause: of those of ``keys`` the same.

    ``operation``: shrunk, grown, moved (other CPUs), changed (what of them is its own, memory nodes, level), repaired
    (its cpuset was set again), or the stance it has now. ``cpus``, ``mems``, ``level``: the place after it. ``why``:
    the reason it has for that; "" = the one it had still holds.
    """

    operation: str
    stance: str
    cpus: frozenset[int]
    mems: frozenset[int]
    level: str
    why: str = ""
    keys: tuple[str, ...] = ()


@frozen
class MoveEffect:
    """What a move of a plan has brought, for ``explain`` of both sides: ``gain`` as the plan has reckoned it, and by id
    the peers that the container is nearer to now, those it is farther from, and those it has changed places with."""

    gain: float = 0.0
    nearer: tuple[str, ...] = ()
    farther: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()


@frozen
class DecisionRecord:
    """One decision as it is kept for ``explain``: what was asked, what was decided, how it ended.

    ``changes``: what it has done to the places of others. A cause that is no decision about its container (it was
    removed, say) has a record where it has changed some. ``path`` is "" where the cause is no container. ``move``: of
    a move of a plan, what it has brought.
    """

    number: int
    at_s: float
    operation: str
    path: str
    pod_uid: str
    id: str
    stance: str
    placement: Placement
    why: str
    outcome: str = ""
    changes: tuple[PlacementChange, ...] = ()
    move: Optional[MoveEffect] = None


# ---------------------------------------------------------------------- the node


@frozen
class Host:
    """One node at one moment.

    ``usable``: online, in the effective cpuset of kubelet's cgroup or another that pods are in, and (if configured)
    available to us. ``mems``: NUMA nodes of those cgroups. ``parent_cpus``: what a container without any cpuset runs on.
    ``kubelet_exclusive``: kubelet's own assignments, as ``read_exclusive`` has them; ``knows_kubelet`` False: they cannot
    be read.
    ``free_memory``: what was free when it was read, in bytes by NUMA node; one that is not named has any.
    ``bounds``: what cgroups with pods allow, by path, where that is not the same for all; "" = where no other counts.
    ``reserved_memory``: bytes by NUMA node that limits may not fill.
    """

    topology: Topology
    usable: frozenset[int]
    mems: frozenset[int]
    parent_cpus: frozenset[int] = NO_CPUS
    reserved: frozenset[int] = NO_CPUS
    kubelet_exclusive: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    knows_kubelet: bool = True
    free_memory: Mapping[int, int] = field(default_factory=dict)
    bounds: Mapping[str, Constraint] = field(default_factory=dict)
    reserved_memory: Mapping[int, int] = field(default_factory=dict)

    def kubelets(self, container: Container, container_id: str) -> Optional[frozenset[int]]:
        """The CPUs that kubelet has given to a container, or to its pod, alone; None: it has given none."""
        uid = container.pod.uid
        names = (uid, container.name), (uid, ""), ("", container_id)
        return next((self.kubelet_exclusive[name] for name in names if name in self.kubelet_exclusive), None)

    def bounded(self, constraint: Constraint, cgroup_parent: str) -> Constraint:
        """A caller's constraint inside of what the cgroup of a pod allows: the nearest of those that are known."""
        path = pod_cgroup(cgroup_parent) if self.bounds else ""
        while path and path not in self.bounds:
            path = path.rpartition("/")[0]
        return constraint.within(self.bounds.get(path, NO_CONSTRAINT))


def pod_cgroup(cgroup_parent: str) -> str:
    """The path of a pod's cgroup below the mount of a hierarchy, without a slash at its start.

    ``kubepods-burstable-podU.slice`` (systemd driver) is a unit name: systemd puts it below one slice for
    every dash (systemd.slice(5)). Paths (cgroupfs driver, and kind's) are what they are.
    """
    path = cgroup_parent.strip("/")
    if "/" in path or not path.endswith(".slice"):
        return path
    parts = path[: -len(".slice")].split("-")
    return "/".join("-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))


# ---------------------------------------------------------------------- what owners of containers should hear of

# Programs that follow the node ask for what came after the number they know, and tell it on.

#: As many are kept: a minute of a node on which all goes wrong.
KEPT = 256
#: As much of a reason is told: an event's note in Kubernetes has 1,024 characters.
MESSAGE_CHARS = 1000

#: Kinds, and how grave they are: placed on a larger rung than wished, refused, moved near a peer, left unplaced.
LARGER_RUNG, REFUSED, MOVED, UNPLACED = "LargerRung", "Refused", "MovedNearPeer", "Unplaced"
#: Of isolation: the kernel has refused a value, no class of service is left, and less for batch is not enough.
TREATMENT_REFUSED, NO_CLASS_OF_SERVICE = "IsolationRefused", "NoClassOfService"
PROTECTION_AT_FLOOR = "ProtectionAtFloor"
#: Of claims: its CPUs are others now; it has fewer than it was given.
CLAIM_MOVED, CLAIM_SHORT = "ClaimMoved", "ClaimShort"
TYPES = {
    LARGER_RUNG: "Warning",
    REFUSED: "Warning",
    MOVED: "Normal",
    UNPLACED: "Warning",
    TREATMENT_REFUSED: "Warning",
    NO_CLASS_OF_SERVICE: "Warning",
    PROTECTION_AT_FLOOR: "Warning",
    CLAIM_MOVED: "Normal",
    CLAIM_SHORT: "Warning",
}


@frozen
class NotableEvent:
    """One thing that happened to a container; ``message``: one line."""

    seq: int
    reason: str
    type: str
    namespace: str
    pod: str
    pod_uid: str
    container: str
    message: str


class NotableEvents:
    """The last ``KEPT`` events of one daemon's life, numbered from 1."""

    def __init__(self) -> None:
        self._events: deque[NotableEvent] = deque(maxlen=KEPT)
        self._next = 1

    def add(self, reason: str, container: Container, message: str) -> None:
        """Something has happened to a container."""
        text = " ".join(message.split())
        pod = container.pod
        self._events.append(
            NotableEvent(
                self._next,
                reason,
                TYPES[reason],
                pod.namespace,
                pod.name,
                pod.uid,
                container.name,
                text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "...",
            )
        )
        self._next += 1

    def since(self, known: Optional[int]) -> dict[str, Any]:
        """The events from number ``known`` on (None: all that are kept), the next number, and how many are lost."""
        first = 1 if known is None else known
        kept = [asdict(event) for event in self._events if event.seq >= first]
        oldest = self._events[0].seq if self._events else self._next
        lost = max(0, oldest - first) if known is not None else 0
        return {"events": kept, "events_next": self._next, "events_lost": lost}


# ---------------------------------------------------------------------- orders

# Containers pinned to zones, and that nothing is moved. Orders stay until they are taken back, over restarts too.

#: As many overrides are taken: each is held against every container of its names.
MOST = 1000
#: Names in Kubernetes have 253 characters at most.
NAME_CHARS = 253
_FIELDS = ("namespace", "pod", "container", "zone")


class BadOrder(ValueError):
    """An order that cannot be read. The message is a sentence that names the place."""


@frozen
class Override:
    """A container that belongs into a zone. ``pod`` may end in ``*``: all pods whose names begin so.

    ``zone``: the name that programs have for it, ``node-0``; ``text`` is what people read.
    """

    namespace: str
    pod: str
    container: str
    zone: str

    @property
    def text(self) -> str:
        """The zone as sentences name it."""
        return domain_text(self.zone)

    def matches(self, container: Container) -> bool:
        """Whether it is about a container."""
        pod = container.pod
        if (pod.namespace, container.name) != (self.namespace, self.container):
            return False
        return pod.name.startswith(self.pod[:-1]) if self.pod.endswith("*") else pod.name == self.pod


@frozen
class Orders:
    """``freeze``: no container that runs is moved. Of several ``overrides`` about one container the first counts."""

    freeze: bool = False
    overrides: tuple[Override, ...] = ()


NO_ORDERS = Orders()


def read_overrides(given: Any) -> tuple[Override, ...]:
    """Overrides as a command has them.

    :raises BadOrder: what was given is no list of them.
    """
    if not isinstance(given, list):
        raise BadOrder("overrides is no list, expected a list of namespace, pod, container and zone")
    if len(given) > MOST:
        raise BadOrder(f"overrides has {len(given)} items, expected at most {MOST}")
    return tuple(_read_override(item, f"overrides[{index}]") for index, item in enumerate(given))


def _read_override(item: Any, where: str) -> Override:
    if not isinstance(item, Mapping):
        raise BadOrder(f"{where} is no object, expected namespace, pod, container and zone")
    unknown = sorted(str(key) for key in item if key not in _FIELDS)
    if unknown:
        raise BadOrder(
            f"{where} has the unknown field {unknown[0][:NAME_CHARS]!r}, expected {', '.join(_FIELDS)}"
        )
    for name in _FIELDS:
        value = item.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS or not value.isprintable():
            raise BadOrder(
                f"{where}.{name} is {_shown(value)}, expected a name of 1 to {NAME_CHARS} characters"
            )
        if "*" in (value[:-1] if name == "pod" else value):
            raise BadOrder(f"{where}.{name} is {_shown(value)}, expected a * nowhere but at the end of pod")
    namespace, pod, container, zone = (item[name] for name in _FIELDS)
    return Override(namespace, pod, container, read_domain(zone))


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (str, int, float, bool, type(None))) else "no text"
    return text if len(text) <= 60 else text[:57] + '..."'


def write_orders(orders: Orders) -> str:
    """Orders as they are kept."""
    return json.dumps({"freeze": orders.freeze, "overrides": [asdict(o) for o in orders.overrides]})


def read_orders(text: str) -> tuple[Orders, tuple[str, ...]]:
    """Orders as they were kept ("" = none were), and a sentence for each that makes no sense here; it is left out.

    An order that a later version has kept must not keep the daemon from its start, nor cost the other orders: fields
    that this version does not know are passed over.
    """
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return NO_ORDERS, ("what was kept is not JSON",)
    items = document.get("overrides", []) if isinstance(document, dict) else None
    if not isinstance(items, list):
        return NO_ORDERS, ("what was kept is no object with a list of overrides",)
    found, left_out = [], []
    for index, item in enumerate(items[:MOST]):
        known = {name: item.get(name) for name in _FIELDS} if isinstance(item, Mapping) else item
        try:
            found.append(_read_override(known, f"overrides[{index}]"))
        except BadOrder as error:
            left_out.append(str(error))
    return Orders(document.get("freeze") is True, tuple(found)), tuple(left_out)


# ---------------------------------------------------------------------- zones

# The places of a machine that have a name outside: socket-0, node-0, l3-0. People read numa-0: see ``domain_names``.

#: Kinds of zones by the level of their domains, largest first: what a zone's name begins with, and its type.
ZONES = {"socket": ("socket", "Socket"), "numa": ("node", "Node"), "l3": ("l3", "L3")}
_RANKS = {level: rank for rank, level in enumerate(ZONES)}


@frozen
class Zone:
    """One place that has a name."""

    name: str
    level: str
    domain: Domain


def zones_of(topology: Topology) -> tuple[Zone, ...]:
    """The zones of a machine, largest first, each kind by its ids."""
    return tuple(
        Zone(f"{kind}-{id_at(domain, level)}", level, domain)
        for level, (kind, _) in ZONES.items()
        for domain in topology.at(level)
    )


def id_at(domain: Domain, level: str) -> int:
    """The id that a domain has as a box of one of its levels."""
    return domain.ids[domain.levels.index(level)]


def zone_around(zones: Iterable[Zone], cpus: frozenset[int]) -> str:
    """The smallest zone that holds all of some CPUs; "" = none does, or there are none."""
    around = [zone for zone in zones if cpus and cpus <= zone.domain.cpus]
    # Domains with the same CPUs go by the smaller kind.
    return min(around, key=lambda z: (len(z.domain.cpus), -_RANKS[z.level])).name if around else ""


def parent_of(zones: Iterable[Zone], zone: Zone) -> str:
    """The next larger kind of zone that holds all of one; "" = there is none."""
    around = [z for z in zones if _RANKS[z.level] < _RANKS[zone.level] and zone.domain.cpus <= z.domain.cpus]
    return max(around, key=lambda z: _RANKS[z.level]).name if around else ""


def names_text(zones: Sequence[Zone]) -> str:
    """All names, for a sentence: ``socket-0 to socket-1, numa-0 to numa-7``."""
    parts = []
    for level in ZONES:
        names = [domain_text(zone.name) for zone in zones if zone.level == level]
        parts += [names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"] if names else []
    return ", ".join(parts)
