"""The records the engine keeps: grants, tickets, and what it hands out. Frozen values, units in the names.

Times are seconds since boot (CLOCK_BOOTTIME), given by the caller: they keep their meaning through a restart
of the daemon, and a reboot ends them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Optional

from policies.machine.cpus import NO_CPUS
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    Container,
    CpusetConstraint,
    Decision,
    Placement,
    Quota,
    Resources,
    altered,
    used_milli,
    wanted_milli,
)
from policies.node import Resident


class Stance(str, Enum):
    """Whose cpuset a container has."""

    PLACED = "placed"  # ours: kept, repaired, moved with topology changes
    ADOPTED = "adopted"  # was there before us: kept until a grant needs its CPUs
    OBSERVED = "observed"  # decided in mode observe: nothing was sent
    OPTED_OUT = "opted out"  # by annotation, namespace or runtime handler
    KUBELET = "kubelet-exclusive"  # kubelet's static CPU manager owns these CPUs
    UNTOUCHED = "untouched"  # we could not or would not place it (policy none, fail open, empty fence)
    RELEASED = "released"  # given back by command
    FOREIGN = "foreign"  # another writer keeps changing it


class Life(str, Enum):
    """Where a grant is in its life; the end, free, is having no record."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    HELD = "held"


@dataclass(frozen=True)
class Grant:
    """One container's place. ``key`` is its runtime id, or its ticket's id while it is being created.

    ``runs_on`` is where it runs when that is not ``placement.cpus`` (any stance but PLACED).
    ``displaced``: the placement it had before its CPUs went away, to go back to when they return.
    ``repairs`` are the times at which drift was repaired. ``runs_in``: the cgroup that its processes run in where
    that is not its own, whose cpuset then binds nothing; "" = its own. ``is_outgrown``: its resources have changed while
    nothing could be sent; it is placed by them when that can be done. ``quota_taken``: we have taken its CPU quota away
    once, so that the daemon owes it if it is not there. ``runs_on_mems`` is where its memory may come from when that is
    not ``placement.mems``, as far as it was looked at; ``memory_charge``, bytes by NUMA node, is what it is charged when
    that is not ``placement.memory_charge``: its limit there, or without one what it was last seen to hold. ``moved_s``:
    when a plan has moved it last, 0 = never.
    """

    key: str
    container: Container
    placement: Placement
    stance: Stance
    fence: CpusetConstraint = NO_CONSTRAINT
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

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs it is charged on; in mode observe those it would have, so that the next decision makes sense."""
        return self.placement.cpus if self.stance in (Stance.PLACED, Stance.OBSERVED) else self.runs_on

    @property
    def mems(self) -> frozenset[int]:
        """The memory nodes it is charged on; empty = all of kubelet's, or not looked at yet."""
        return self.placement.mems if self.has_placed_memory else self.runs_on_mems

    @property
    def has_placed_memory(self) -> bool:
        """Whether its placement says where its memory may come from."""
        return self.stance in (Stance.PLACED, Stance.OBSERVED) and bool(self.placement.mems)

    @property
    def lifted(self) -> bool:
        """Whether we have taken its CPU quota away."""
        return self.stance is Stance.PLACED and self.placement.lift_quota

    @property
    def quota(self) -> Optional[Quota]:
        """The CPU quota it has without us; None = it has none."""
        resources = self.container.told
        if resources.milli_limit is None or not resources.quota_period_us:
            return None
        return Quota(resources.milli_limit * resources.quota_period_us // 1000, resources.quota_period_us)

    @property
    def exclusive(self) -> frozenset[int]:
        """The CPUs that no other container may use."""
        if self.stance is Stance.KUBELET:
            return self.runs_on
        return self.placement.exclusive if self.stance in (Stance.PLACED, Stance.ADOPTED) else NO_CPUS


#: What residents are made from: a hundred of them may change with one decision.
_NO_RESIDENT = Resident("", 0, 0, NO_CPUS)


def resident_of(grant: Grant) -> Resident:
    """What a grant is among the containers of the node."""
    container, place, exclusive = grant.container, grant.placement, grant.exclusive
    is_placed = grant.stance is Stance.PLACED
    charge = (place.memory_charge if grant.has_placed_memory else ()) or grant.memory_charge
    if grant.life is Life.HELD and not container.resources.memory_limit_bytes:
        charge = ()  # it held that
    # The CPUs it can be on where it owns none: those its caller allows, or those of a cpuset that is not ours.
    bounds = grant.fence.cpus
    if not is_placed:
        bounds = place.home if grant.stance is Stance.ADOPTED else grant.runs_on
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
        inside=grant.fence.cpus,
        bounds=None if exclusive or place.level == "reserved" else bounds,
        is_fixed=not is_placed and grant.stance is not Stance.ADOPTED,
    )


class TicketKind(str, Enum):
    CREATE = "create"
    RESIZE = "resize"


class Told(NamedTuple):
    """What a container has, as far as we know: by what it was told last, or as it was seen since.

    ``cpus`` None: not known. ``mems``: empty = not set by us. ``is_lifted``: we have taken its CPU quota away. ``why``: the
    reason that its record had then. ``cause``: why it has not what its record says, where that does not say it.
    ``owned``: what it owned then. ``is_sure`` False: it is on ``cpus``, or on some of them. ``refused``: what the runtime
    has said to the last update since, "" = it has not refused it. ``ignores_mems``: it takes memory nodes and does not set
    them: they are not told again.
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


@dataclass(frozen=True)
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
    replaces: tuple[Grant, ...] = ()
    replaced_tickets: tuple[Ticket, ...] = ()
    moved: tuple[tuple[str, Placement, Placement], ...] = ()
    found: Optional[Stance] = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True)
class CpusetUpdate:
    """A cpuset (and mems) that a container must get. ``shrink``: it loses CPUs, so it is told first.

    ``give_back``: the CPU quota that we had taken away from it.
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


@dataclass(frozen=True)
class Admission:
    """The answer to ``admit`` and ``resize``. ``placement`` is what to send: empty where the request stays untouched.

    ``give_back``: the CPU quota to send with it, since it had been taken away.
    """

    ticket: str
    decision: Decision
    stance: Stance
    placement: Placement
    give_back: Optional[Quota] = None


@dataclass(frozen=True)
class ListedContainer:
    """One container as the runtime lists it. ``cpus``/``mems`` None = not looked up; "" in the runtime = all = empty.

    ``inherited``: what it runs on where ``cpus`` is empty, as far as its cgroup tells. ``runs_in``: as in its grant;
    None = not looked up. ``resources``: what it has now, as it is known where that cannot be told; None = not looked up.
    ``has_no_quota``: it is seen to have none. ``held``: bytes of memory by NUMA node that it cannot give back, None = not
    looked up.
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class MoveEffect:
    """What a move of a plan has brought, for ``explain`` of both sides: ``gain`` as the plan has reckoned it, and by id
    the peers that the container is nearer to now, those it is farther from, and those it has changed places with."""

    gain: float = 0.0
    nearer: tuple[str, ...] = ()
    farther: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()


@dataclass(frozen=True)
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
