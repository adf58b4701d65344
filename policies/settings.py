"""The options that policies and the engine read; docs/configuration.md says what each does."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Optional

from policies.balloons.types import BalloonSettings, parse_name
from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS
from policies.model import MatchExpression


@dataclass(frozen=True)
class PlacementSettings:
    """The options of the ``placement`` section, and of the active policy's own."""

    ladder: str = "manual"
    unlimited: str = "numa"
    besteffort: str = "numa"
    memory: str = "prefer"
    memory_only_nodes: frozenset[int] = NO_CPUS
    #: The kinds of memory of a container that asks for none: those of its balloon's type; empty = any.
    memory_types: frozenset[str] = frozenset()
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    #: What an annotation may say of one container, for all: see ``PlacementPreferences``.
    ownership: str = "shared"
    size: str = "limit"
    l3: str = "prefer"
    smt: str = ""
    cfs_quota: str = "keep"
    hints: frozenset[str] = frozenset(("devices", "mounts"))
    #: Guaranteed containers of 1 to 2 CPUs prefer isolated CPUs; none has CPUs of its own unless annotated.
    prefer_isolated: bool = True
    prefer_shared: bool = False
    colocate_pods: bool = False
    colocate_namespaces: bool = False
    balloons: BalloonSettings = field(default_factory=BalloonSettings)

    def for_group(self, group: str) -> PlacementSettings:
        """The settings for a container of a group (``Placement.group``): a balloon's type has some of its own."""
        named = parse_name(group) if group and self.balloons.types else None
        kind = next((kind for kind in self.balloons.types if named and kind.name == named[0]), None)
        if kind is None or not (kind.memory or kind.memory_types):
            return self
        return replace(self, memory=kind.memory or self.memory, memory_types=kind.memory_types)

    @property
    def places_memory(self) -> bool:
        """Whether any container is given memory nodes."""
        return self.memory != "off" or any(kind.memory not in ("", "off") for kind in self.balloons.types)


@dataclass(frozen=True)
class ClassSelectors:
    """Which containers are protected and which are batch, where no annotation says it: ``namespace/GLOB``, ``qos/CLASS``,
    ``balloon/TYPE``."""

    protected: tuple[str, ...] = ("qos/Guaranteed",)
    batch: tuple[str, ...] = ("qos/BestEffort",)


@dataclass(frozen=True)
class EngineOptions:
    """The options of the ``placement`` section that the engine reads; seconds, namespace globs, handler names."""

    restart_hold_s: float = 300.0
    finished_hold_s: float = 30.0
    doubt_s: float = 120.0
    distrust_s: float = 600.0
    unmanaged_namespaces: tuple[str, ...] = ()
    unmanaged_handlers: tuple[str, ...] = ()
    #: Containers for which one of these holds are not managed either.
    preserve: tuple[MatchExpression, ...] = ()
    #: Containers that may be moved so that one fits; whether also those that own CPUs.
    max_moves: int = 4
    move_exclusive: bool = False
    #: A container that was moved for others, or by a plan, is not moved for others again before.
    cooldown_s: float = 600.0
    #: Whether traffic that was seen draws containers to each other; what a declared weight of 1 counts beside it.
    use_traffic: bool = True
    declared_weight: float = 10_000.0
    #: What says the classes of containers; None: no subject of isolation is on, and they have none.
    classes: Optional[ClassSelectors] = None
    #: Whether protected and batch containers are kept out of each other's L3s where that costs nothing else.
    keeps_apart: bool = False
