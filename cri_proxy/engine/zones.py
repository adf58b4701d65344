"""The places of a machine that have a name outside: ``socket-0``, ``node-0``, ``l3-0``. Pure.

People read ``numa-0``: see ``domain_names``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.machine.domain_names import domain_text
from policies.machine.topology import Domain, Topology

#: Kinds of zones by the level of their domains, largest first: what a zone's name begins with, and its type.
ZONES = {"socket": ("socket", "Socket"), "numa": ("node", "Node"), "l3": ("l3", "L3")}
_RANKS = {level: rank for rank, level in enumerate(ZONES)}


@dataclass(frozen=True)
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
