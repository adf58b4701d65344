"""The types of balloons in a configuration: pools of CPUs that grow and shrink with the containers in them.

Names and meanings are those of nri-plugins' and Intel's balloons policies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Optional

from policies.frozen import dataclass
from policies.groups import Group
from policies.model import MatchExpression

#: Levels of ``share_idle_cpus_in_same``, small to large; "" = off.
SHARE_LEVELS = ("core", "l3cache", "numa", "die", "package", "system")
#: Levels of ``one_per``.
PER_LEVELS = ("l3cache", "numa", "die", "package")
#: Values of ``irq_mode``; "" = neither.
IRQ_MODES = ("sink", "isolate")

#: Levels of a load class, small to large.
LOAD_LEVELS = ("core", "l2cache", "l3cache", "numa", "die", "package")
#: Values of ``component_creation``.
ALL, BALANCE = "all", "balance-balloons"
#: Before the name of an extended resource, or a glob: the device of it that kubelet has given to a container.
POD_RESOURCE = "podresourceapi:"

#: Names of the balloon types that are always there.
RESERVED, DEFAULT = "reserved", "default"


@dataclass(frozen=True)
class LoadClass:
    """One entry of ``LoadClasses``: a load of the domains of a level, which no two balloons are to have in one domain.

    ``overloads``: nor two CPUs of one balloon.
    """

    name: str
    level: str
    overloads: bool = False


@dataclass(frozen=True)
class BalloonType:
    """One entry of ``BalloonTypes``. CPUs in whole CPUs; 0 = no limit (``max_cpus`` -1: the type is banned here).

    ``parts``: what a balloon of a composite type (one with ``components``) is made of, once that is known
    (``policies.balloons.composites``); a configuration has none.
    """

    name: str
    namespaces: tuple[str, ...] = ()
    match: tuple[MatchExpression, ...] = ()
    group_by: str = ""
    min_cpus: int = 0
    max_cpus: int = 0
    min_balloons: int = 0
    max_balloons: int = 0
    #: One balloon in each domain of this level, whatever the two above say: l3cache, numa, die, package; "" = off.
    one_per: str = ""
    #: 0 = highest; balloons that are made at the start are made in this order.
    allocator_priority: int = 0
    prefer_new_balloons: bool = False
    prefer_spreading_pods: bool = False
    prefer_per_namespace_balloon: bool = False
    prefer_spread_on_physical_cores: bool = False
    allocator_topology_balancing: bool = False
    hide_hyperthreads: bool = False
    prefer_isolated_cpus: bool = False
    #: performance, efficient; "" = any.
    prefer_core_type: str = ""
    #: Paths of devices (PCI addresses, or sysfs paths of caches and nodes) or extended resources, the most important first.
    prefer_close_to_devices: tuple[str, ...] = ()
    share_idle_cpus_in_same: str = ""
    memory: str = ""
    #: Interrupts that its CPUs handle, and whether they handle all others, or none: sink, isolate; "" = as they come.
    irq_claim: tuple[str, ...] = ()
    irq_mode: str = ""
    #: Kinds of memory of containers that ask for none: of dram, hbm, pmem; empty = as without the type.
    memory_types: frozenset[str] = frozenset()
    #: Whether its containers are zones of the node's NodeResourceTopology.
    show_containers_in_nrt: bool = False
    #: The classes of ``control.scheduling`` and ``control.cpu`` that its containers have; nothing of a placement.
    scheduling_class: str = ""
    cpu_class: str = ""
    #: Names of load classes, the most important first.
    loads: tuple[str, ...] = ()
    #: Names of the types that a balloon of this type is made of: of all of them, or of the one with the fewest balloons.
    components: tuple[str, ...] = ()
    component_creation: str = ALL
    parts: tuple[Part, ...] = ()

    @property
    def all_loads(self) -> tuple[str, ...]:
        """Its load classes, and those of its parts."""
        return self.loads if not self.parts else (*self.loads, *[x for p in self.parts for x in p.kind.loads])

    @property
    def asks_kubelet(self) -> bool:
        """Whether the places of its balloons depend on the devices of a container."""
        return any(device.startswith(POD_RESOURCE) for device in self.prefer_close_to_devices)

    def size_for(self, milli: int) -> int:
        """The CPUs of a balloon whose containers request ``milli`` milli-CPUs: never none, never above the limit."""
        if self.parts:
            most = max(milli, self.min_cpus * 1000)
            return self.within_limit(sum([part.kind.size_for(most // part.divisor) for part in self.parts]))
        return self.within_limit(max(self.min_cpus, -(-milli // 1000), 1))

    def within_limit(self, count: int) -> int:
        """As many of these CPUs as a balloon may have."""
        return min(count, self.max_cpus) if self.max_cpus > 0 else count


@dataclass(frozen=True)
class Part:
    """A part of a composite balloon: its CPUs are chosen as those of a balloon of type ``kind``, and are one in ``divisor``
    of the balloon's."""

    kind: BalloonType
    divisor: int


@dataclass(frozen=True)
class BalloonSettings:
    """The section ``policy.balloons``; what a type does not say it inherits (done when the configuration is read)."""

    types: tuple[BalloonType, ...] = ()
    #: Of the two types that are always there, where the configuration does not name them.
    show_containers_in_nrt: bool = False
    loads: tuple[LoadClass, ...] = ()

    def shows(self, group: str) -> bool:
        """Whether the containers of a group (``Placement.group``) are zones of NodeResourceTopology."""
        named = parse_name(group)
        if named is None:
            return False
        kind = next((kind for kind in self.types if kind.name == named[0]), None)
        return self.show_containers_in_nrt if kind is None else kind.show_containers_in_nrt


#: The two types as they are where the configuration does not name them. Containers that none matches are not
#: squeezed into their request: they also run on the CPUs around that are in no balloon. Not on those of the
#: whole machine: every change anywhere would be one for each of them.
BUILT_IN = {
    RESERVED: BalloonType(RESERVED, allocator_priority=3, max_balloons=1),
    DEFAULT: BalloonType(DEFAULT, allocator_priority=3, max_balloons=1, share_idle_cpus_in_same="numa"),
}


@dataclass(frozen=True)
class Balloon:
    """One balloon as the books have it. ``cpus``: those it owns, or that are set aside for it while it is empty.

    ``group``: its containers in the books, None = it is empty; ``milli``: their requests; ``twice``: the keys of those
    that are there twice, since they are being resized. ``region``: the CPUs it may get, None = all.
    """

    kind: BalloonType
    number: int
    cpus: frozenset[int]
    group: Optional[Group] = None
    milli: int = 0
    twice: frozenset[str] = frozenset()
    region: Optional[frozenset[int]] = None

    @property
    def name(self) -> str:
        """``TYPE[NUMBER]``, the group of its containers' placements."""
        return name_of(self.kind, self.number)


def name_of(kind: BalloonType, number: int) -> str:
    """The name of a balloon."""
    return f"{kind.name}[{number}]"


@lru_cache(maxsize=4096)
def parse_name(name: str) -> Optional[tuple[str, int]]:
    """Type and number of a balloon's name; None if it is none."""
    kind, bracket, number = name.rpartition("[")
    if not bracket or not number.endswith("]") or not number[:-1].isdecimal():
        return None
    return kind, int(number[:-1])


def all_types(settings: BalloonSettings) -> tuple[BalloonType, ...]:
    """The types in the order in which containers are matched: reserved first and default last, unless listed."""
    named = {kind.name for kind in settings.types}
    first = () if RESERVED in named else (BUILT_IN[RESERVED],)
    last = () if DEFAULT in named else (BUILT_IN[DEFAULT],)
    return (*first, *settings.types, *last)
