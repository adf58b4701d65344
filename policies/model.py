"""The vocabulary of placement: frozen values, shared by policies, engine and shell.

Units are in the names: ``milli_`` = thousandths of a CPU, ``_bytes``, ``_s`` = seconds. Sets of CPUs and of
NUMA nodes are ``frozenset[int]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import Any, Optional, Protocol, TypeVar

from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS

#: The levels a placement can have, in the order of the ladder; ``none`` = we set nothing.
PLACEMENT_LEVELS = (
    "core",
    "cluster",
    "ccx",
    "nccx",
    "numa",
    "numa+ccx",
    "2numa",
    "socket",
    "machine",
    "reserved",
    "none",
)


#: What a container is to the others; a policy tells these two.
PROTECTED, BATCH = "protected", "batch"


class Qos(str, Enum):
    """The quality-of-service class of a pod, as Kubernetes spells it in cgroup paths."""

    GUARANTEED = "guaranteed"
    BURSTABLE = "burstable"
    BESTEFFORT = "besteffort"


@dataclass(frozen=True)
class Resources:
    """The resources of a container. ``milli_limit`` None = no CPU limit; a memory figure of 0 = none.

    ``quota_period_us``: of the CPU quota that is the limit, in microseconds; 0 = the limit is no quota.
    ``hugepage_sizes``: the sizes of the huge pages it may have, in bytes.
    """

    milli_request: int = 0
    milli_limit: Optional[int] = None
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    quota_period_us: int = 100_000
    hugepage_sizes: frozenset[int] = NO_CPUS


#: The sources of a pod's size that kubelet writes: RunPodSandbox and its update, and the cgroup that it keeps for the pod.
SANDBOX_RESOURCES, POD_CGROUP = "sandbox resources", "the pod's cgroup"


@dataclass(frozen=True)
class PodSize:
    """The whole pod's CPUs: ``milli_request``, ``milli_limit`` (None: not all containers are limited), and its source.

    ``milli_overhead``: as much of both is the sandbox's own (its runtime class's). ``is_past``: an init container has
    needed that much, and is over.
    """

    milli_request: int
    milli_limit: Optional[int]
    source: str
    milli_overhead: int = 0
    is_past: bool = False

    @property
    def is_of_sandbox(self) -> bool:
        """Whether kubelet tells it, of the sandbox or of the pod's cgroup: no container can have more."""
        return self.source in (SANDBOX_RESOURCES, POD_CGROUP)

    @property
    def milli_of_containers(self) -> int:
        """The requests of the containers together."""
        return max(0, self.milli_request - self.milli_overhead)

    @property
    def limit_of_containers(self) -> Optional[int]:
        """The limit of the containers together."""
        return None if self.milli_limit is None else max(0, self.milli_limit - self.milli_overhead)


@dataclass(frozen=True)
class Pod:
    """A pod sandbox. ``id`` is the runtime's sandbox id; ``size`` None = must be learnt from its containers.

    ``memory_limit_bytes``: of all its containers together; 0 = none, or not told.
    """

    id: str
    uid: str
    name: str = ""
    namespace: str = ""
    cgroup_parent: str = ""
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    size: Optional[PodSize] = None
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class MatchExpression:
    """One test of an affinity rule: ``key`` as in nri-plugins ("pod/namespace", "labels/app", ":,:pod/name,name")."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class AffinityTerm:
    """A container's wish to be near (``weight`` > 0) or far from (< 0) those in ``scope`` that ``match``.

    Traffic outvotes no wish to be far, and none to be near that is ``required``.
    """

    scope: MatchExpression
    match: MatchExpression
    weight: int
    required: bool = False


@dataclass(frozen=True)
class PlacementPreferences:
    """The annotations on one container's placement. "" and None = not set.

    ``ownership``: shared, exclusive. ``size``: limit, demand, what its shared set is sized by. ``isolated``: avoid,
    prefer, require. ``reserved``: whether it is to run on the reserved CPUs. ``l3``: prefer, require (one L3 or no
    container), exclusive (no other in its L3s), spread (over many L3s). ``numa``: require (one node or no container).
    ``smt``: full-core (whole cores only), hide (one thread a core is used, the other stays idle), spread (one thread a
    core). ``cfs_quota``: keep, lift.
    ``memory_types``: of dram, hbm, pmem. ``hints``: the kinds of hints that count, of "devices" and "mounts";
    ``hints_allow``, ``hints_deny``: globs of paths. ``strict_hints``: no container where a hint cannot be met.
    ``balloon``: the type of balloon. ``isolation_class``: protected, standard, batch: what it is to others.
    ``rdt_class``, ``blockio_class``, ``cpu_class``, ``memory_class``, ``scheduling_class``: the class of the configured
    section of that name that it asks for. ``quota_turbo``: whether its CPU quota may be raised for a while.
    ``memory``: pin, prefer: of the memory of containers with a claim that says it.
    ``notes``: sentences about what could not be understood and is ignored.
    ``refusal``: the sentence with which the create fails, since a demand could not be understood.
    """

    ownership: str = ""
    size: str = ""
    isolated: str = ""
    reserved: Optional[bool] = None
    l3: str = ""
    numa: str = ""
    smt: str = ""
    cfs_quota: str = ""
    memory_types: frozenset[str] = frozenset()
    hints: Optional[frozenset[str]] = None
    hints_allow: tuple[str, ...] = ()
    hints_deny: tuple[str, ...] = ()
    strict_hints: bool = False
    balloon: str = ""
    isolation_class: str = ""
    rdt_class: str = ""
    blockio_class: str = ""
    cpu_class: str = ""
    memory_class: str = ""
    scheduling_class: str = ""
    quota_turbo: Optional[bool] = None
    memory: str = ""
    affinity: tuple[AffinityTerm, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: str = ""


#: Kinds of hints; resources are devices of which a device plugin has told kubelet where they are, and count as devices.
DEVICES, MOUNTS, RESOURCES = "devices", "mounts", "resources"


@dataclass(frozen=True)
class Hint:
    """Something a container uses that is near some NUMA nodes.

    ``kind``: devices or mounts, whose ``path`` is one; or resources, whose ``path`` is an extended resource's name.
    """

    kind: str
    path: str
    nodes: frozenset[int]


@dataclass(frozen=True)
class PodShare:
    """The share in its pod of a container without resources of its own.

    ``told``: its resources as its caller wrote them: the pod's, or none. ``milli_pod``: what the ``count`` containers that
    share are charged together.
    """

    told: Resources
    milli_pod: int
    count: int


@dataclass(frozen=True)
class Container:
    """A container as a policy sees it. ``attempt`` counts restarts; its id is known only to the engine.

    ``milli_size``: the size of its shared set by its usage, where that is sized by demand; None = its limit.
    ``milli_used``: what one in the set of its limit uses with headroom, where it is sized by demand; 0 = not known.
    ``pod_share``: where it has no resources of its own; ``resources`` is then its part of the pod's
    (policies/pod_share.py). ``tells_own``: an update has told its own request. ``claims``: the keys of the claims' parts
    that it has (cri_api/claims.py).
    """

    pod: Pod
    name: str
    attempt: int = 0
    qos: Qos = Qos.BESTEFFORT
    resources: Resources = Resources()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    preferences: PlacementPreferences = PlacementPreferences()
    hints: tuple[Hint, ...] = ()
    milli_size: Optional[int] = None
    milli_used: int = 0
    pod_share: Optional[PodShare] = None
    tells_own: bool = False
    claims: tuple[str, ...] = ()

    @property
    def told(self) -> Resources:
        """Its resources as its caller wrote them."""
        return self.resources if self.pod_share is None else self.pod_share.told

    @property
    def path(self) -> str:
        """``namespace/pod/container``, what people call it."""
        return f"{self.pod.namespace}/{self.pod.name}/{self.name}"


@dataclass(frozen=True)
class Constraint:
    """The bounds of our sets. None = no bound.

    ``caller``: what the caller set itself, where the pod's cgroup allows less than that; None = all of it is.
    """

    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    caller: Optional[Constraint] = None

    @property
    def asked(self) -> Constraint:
        """The caller's own cpuset."""
        return self.caller or self

    @property
    def of(self) -> str:
        """Its origin, for sentences."""
        return "the caller" if self.caller is None else "the pod's cgroup"

    def within(self, allowed: Constraint) -> Constraint:
        """The caller's part of it, as far as the pod's cgroup allows that."""
        asked = self.asked
        cpus, mems = _both(asked.cpus, allowed.cpus), _both(asked.mems, allowed.mems)
        return asked if (cpus, mems) == (asked.cpus, asked.mems) else Constraint(cpus, mems, asked)


def _both(one: Optional[frozenset[int]], other: Optional[frozenset[int]]) -> Optional[frozenset[int]]:
    if one is None or other is None:
        return other if one is None else one
    return one & other


NO_CONSTRAINT = Constraint()


@dataclass(frozen=True)
class Placement:
    """Where a container runs.

    ``cpus`` and ``mems`` are sent (empty: not set). ``home`` holds all CPUs of the chosen domains,
    also CPUs that are offline or taken just now: ``cpus`` is recomputed from it as (``home`` and shared) or
    ``exclusive``. ``exclusive`` is the part of ``cpus`` that belongs to this container alone; or, with a
    ``group``, to the containers of that group (a balloon: "TYPE[NUMBER]"), which then all have the same set.
    ``memory_charge``: bytes of the memory limit by NUMA node. ``grown``: the CPUs that resizes have added to
    ``exclusive``, oldest first: a shrink gives the newest back. ``hidden``: those of ``exclusive`` that nothing
    runs on, the container neither. ``one_thread``: of its shared CPUs it gets one thread a core.
    ``lift_quota``: the CPU quota is taken away. ``squeezed``: its level is wider than its own, for want of room.
    ``claimed``: what the claims it has own: the part of ``cpus`` that these and their other containers share with no others,
    and of that, too, some may be ``hidden``.
    """

    cpus: frozenset[int] = NO_CPUS
    mems: frozenset[int] = NO_CPUS
    exclusive: frozenset[int] = NO_CPUS
    level: str = "none"
    home: frozenset[int] = NO_CPUS
    memory_charge: tuple[tuple[int, int], ...] = ()
    group: str = ""
    grown: tuple[frozenset[int], ...] = ()
    hidden: frozenset[int] = NO_CPUS
    one_thread: bool = False
    lift_quota: bool = False
    squeezed: bool = False
    claimed: frozenset[int] = NO_CPUS


UNTOUCHED = Placement()


@dataclass(frozen=True)
class PlacementRequest:
    """What a policy is asked about one container, which is not in the books of the node.

    ``constraint``: the bound that its caller has set. ``affinity``: what draws it to others, None = nothing. ``near``: the
    home it has now, where it is placed anew: domains around or inside it come first. ``keep``: the placement it has,
    where it is resized; of its exclusive CPUs as many stay as can, and it stays in its balloon. ``isolation``: its class
    where protected and batch containers are to be kept out of each other's L3s, else "".
    """

    container: Container
    constraint: Constraint = NO_CONSTRAINT
    affinity: Optional[Affinity] = None
    near: Optional[frozenset[int]] = None
    keep: Optional[Placement] = None
    isolation: str = ""


@dataclass(frozen=True)
class Decision:
    """A policy's answer. ``fits`` False = it is placed, but no domain of its rung had room. ``why`` is for people.

    ``others``: the new placements of containers that must make room or move with it, by their keys in the books.
    """

    placement: Placement
    why: str
    fits: bool = True
    others: Mapping[str, Placement] = field(default_factory=dict)


@dataclass(frozen=True)
class Resident:
    """One container in the books. ``milli_wanted`` is its ``n``; ``memory_charge`` the bytes of memory by NUMA node
    that it may come to hold, or holds.

    ``container`` and ``placement`` are what the figures come from; a resident without them is not to be moved.
    ``inside``: the CPUs its caller lets it use; None = all. ``bounds``: the CPUs that it can be moved or shrunk to,
    where it owns none and those are not all; ``is_fixed``: it runs on its bounds, and is not ours to move or shrink.
    ``milli_used``: its weight in ordering beyond its request, where its set is sized by demand. ``isolation``: its class,
    "" where there are none. ``claimed``: those of its CPUs that its claims own, on which it is not charged.
    """

    pod_uid: str
    milli_request: int
    milli_wanted: int
    cpus: frozenset[int]
    exclusive: frozenset[int] = NO_CPUS
    memory_charge: tuple[tuple[int, int], ...] = ()
    container: Optional[Container] = None
    placement: Optional[Placement] = None
    inside: Optional[frozenset[int]] = None
    bounds: Optional[frozenset[int]] = None
    is_fixed: bool = False
    milli_used: int = 0
    isolation: str = ""
    claimed: frozenset[int] = NO_CPUS

    @property
    def group(self) -> str:
        """The group it shares its own CPUs with; "" for none."""
        return "" if self.placement is None else self.placement.group

    @property
    def shares(self) -> bool:
        """Whether it is placed on CPUs that neither it nor a group owns, and that are not reserved."""
        place = self.placement
        owns = self.exclusive or self.group
        return bool(place is not None and place.cpus and not owns and place.level != "reserved")

    @property
    def has_limit_of_pod(self) -> bool:
        """Whether its memory limit is its whole pod's: what all such containers of the pod hold is within one limit.

        Kubelet writes a pod's limit into each of its containers that has none of its own.
        """
        container = self.container
        limit = 0 if container is None else container.pod.memory_limit_bytes
        return container is not None and 0 < limit == container.resources.memory_limit_bytes


class PlacementRefused(Exception):
    """A policy cannot or may not place this container. The message names the demand and the free amount."""


class BudgetSpent(Exception):
    """A policy looked at more candidates than it may; the request then goes through untouched."""


class Affinity(Protocol):
    """How much a container is pulled to CPUs by its peers. The planner's graph implements it; lower is better."""

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        """Cost of running ``container`` on ``cpus``, in traffic units times distance; 0 = indifferent."""
        ...

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        """How badly what is declared to be apart, or required to be near, is kept on ``cpus``, by weights; 0 = it is.
        It comes before any cost."""
        ...


class NoAffinity:
    """No graph: every place costs the same."""

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return 0.0

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        return 0


_Value = TypeVar("_Value")
#: Values that are remembered to be shared: the latest, so that those of many containers stay among those of one each.
VALUES_KEPT = 512


def altered(value: _Value, **changes: object) -> _Value:
    """As ``dataclasses.replace``, and five times as fast, for values that only keep their arguments.

    One container that takes CPUs for itself can change the records of a hundred others.
    """
    new = object.__new__(type(value))
    new.__dict__.update(value.__dict__)
    new.__dict__.update(changes)
    return new


def kept_once(value: _Value) -> _Value:
    """An equal value of the same class, mostly the one object in memory that stands for all such: hundreds of containers
    may differ in nothing but their names. ``value`` can be hashed and is never changed."""
    kept: _Value = _first_equal(value)
    return kept


@lru_cache(maxsize=VALUES_KEPT, typed=True)
def _first_equal(value: Any) -> Any:
    return value


def limit_milli(container: Container) -> int:
    """The CPU limit, or the request of a container without one, which may be its pod's; in milli-CPUs."""
    limit, share = container.resources.milli_limit, container.pod_share
    request = container.resources.milli_request if share is None else share.milli_pod
    return request if limit is None else limit


def wanted_milli(container: Container) -> int:
    """``n`` of the ladder, in milli-CPUs: the CPU limit, or the request of a container without one; of one whose set is
    sized by demand its size, at least its request, at most its limit."""
    size, resources = container.milli_size, container.resources
    if size is None:
        return limit_milli(container)
    size = size if resources.milli_limit is None else min(size, resources.milli_limit)
    return max(size, resources.milli_request)


def used_milli(container: Container) -> int:
    """A container's size by its usage, in milli-CPUs; 0 = not known."""
    return container.milli_used if container.milli_size is None else wanted_milli(container)


@dataclass(frozen=True)
class Quota:
    """A CPU quota: ``quota_us`` microseconds of CPU time in every ``period_us``."""

    quota_us: int
    period_us: int
