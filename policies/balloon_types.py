"""What a configuration says about balloons: pools of CPUs that grow and shrink with the containers in them.

Names and meanings are those of nri-plugins' and Intel's balloons policies.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.model import Condition

#: Levels of ``share_idle_cpus_in_same``, small to large; "" = off.
SHARE_LEVELS = ("core", "l3cache", "numa", "die", "package", "system")

#: Names of the balloon types that are always there.
RESERVED, DEFAULT = "reserved", "default"


@dataclass(frozen=True)
class BalloonType:
    """One entry of ``BalloonTypes``. CPUs in whole CPUs; 0 = no limit (``max_cpus`` -1: the type is banned here)."""

    name: str
    namespaces: tuple[str, ...] = ()
    match: tuple[Condition, ...] = ()
    group_by: str = ""
    min_cpus: int = 0
    max_cpus: int = 0
    min_balloons: int = 0
    max_balloons: int = 0
    #: 0 = highest; balloons that are made at the start are made in this order.
    allocator_priority: int = 0
    prefer_new_balloons: bool = False
    prefer_spreading_pods: bool = False
    prefer_per_namespace_balloon: bool = False
    prefer_spread_on_physical_cores: bool = False
    allocator_topology_balancing: bool = False
    hide_hyperthreads: bool = False
    prefer_isolated_cpus: bool = False
    #: Paths of devices (PCI addresses, or sysfs paths of caches and nodes), the most important first.
    prefer_close_to_devices: tuple[str, ...] = ()
    share_idle_cpus_in_same: str = ""
    memory: str = ""


@dataclass(frozen=True)
class BalloonSettings:
    """The section ``policy.balloons``; what a type does not say it inherits (done when the configuration is read)."""

    types: tuple[BalloonType, ...] = ()
