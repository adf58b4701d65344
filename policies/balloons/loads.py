"""Load classes: what two balloons of one load are to share none of, a core, an L2, an L3 or a larger domain.

A load is the last thing that counts in the choice of CPUs: before it come CPUs that others have a better claim to, and after
it L3s and NUMA nodes. Where too few domains are without it, those come first that the fewest balloons load.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Callable

from policies.balloons.types import BalloonType, LoadClass
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Cpu, Topology

#: By load class the CPUs whose domain at least one other balloon loads, those that at least two do, and so on.
Loaded = Mapping[str, tuple[frozenset[int], ...]]
NOTHING_LOADED: Loaded = {}


class Loads:
    """The load classes on one machine. A class that is not there is no load of anything."""

    def __init__(self, topology: Topology, classes: tuple[LoadClass, ...]) -> None:
        self._topology = topology
        self._classes = {load.name: load for load in classes}
        self._domains = {level: _domains(topology, level) for level in {load.level for load in classes}}

    def overloads(self, kind: BalloonType) -> bool:
        """Whether the CPUs of a balloon are to be of different domains, and not whole cores: it hides no threads."""
        if kind.hide_hyperthreads:
            return False
        return any(self._classes[name].overloads for name in kind.loads if name in self._classes)

    def around(self, name: str, cpus: Iterable[int]) -> frozenset[int]:
        """All CPUs of the domains that some CPUs load."""
        load = self._classes.get(name)
        if load is None:
            return NO_CPUS
        domain_of = self._domains[load.level]
        return frozenset().union(*{domain_of[cpu] for cpu in cpus if cpu in domain_of})

    def added(self, to: Loaded, balloons: Iterable[tuple[BalloonType, frozenset[int]]]) -> Loaded:
        """With what balloons of these types load that have these CPUs."""
        found = dict(to)
        for kind, cpus in balloons:
            for name in kind.loads:
                found[name] = _deeper(found.get(name, ()), self.around(name, cpus))
        return found

    def preferred(
        self, kind: BalloonType, have: frozenset[int], pool: frozenset[int], count: int, loaded: Loaded
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The CPUs of ``pool`` that a balloon is to choose from, which has ``have`` and is to have ``count``; and those of
        them that it must take. Without as many in ``pool`` it has the choice of all."""
        # 1. The CPUs in the order in which they are taken: first by how many balloons have the first load there, and then
        #    whether they would be beside others of this balloon.
        groups = [pool - have]
        for name in dict.fromkeys(kind.loads):
            for layers in (loaded.get(name, ()), self._overloaded(name, kind, have, pool, loaded)):
                if layers:
                    groups = [part for group in groups for part in _by_layer(group, layers)]
        # 2. All of a group, while that is too little.
        taken = have
        for group in groups:
            if len(taken) + len(group) >= count:
                return taken, taken | group
            taken |= group
        return have, pool

    def _overloaded(
        self, name: str, kind: BalloonType, have: frozenset[int], pool: frozenset[int], loaded: Loaded
    ) -> tuple[frozenset[int], ...]:
        """The CPUs beside those that it has, and of the others all but one of a domain."""
        load = self._classes.get(name)
        if load is None or not load.overloads or (kind.hide_hyperthreads and load.level == "core"):
            return ()
        domain_of = self._domains[load.level]
        others = NO_CPUS.union(*[layer for other in kind.loads for layer in loaded.get(other, ())[:1]])
        beside = self.around(name, have)
        first: dict[frozenset[int], int] = {}
        for cpu in (*sorted(pool - others - beside), *sorted((pool & others) - beside)):
            first.setdefault(domain_of[cpu], cpu)
        if kind.hide_hyperthreads:  # whole cores, of which one thread runs
            return (pool.difference(*[self._topology.core_mates(cpu) for cpu in first.values()]),)
        return (pool.difference(first.values()),)


def _deeper(layers: tuple[frozenset[int], ...], cpus: frozenset[int]) -> tuple[frozenset[int], ...]:
    """With one balloon more that loads these."""
    found: list[frozenset[int]] = []
    for layer in layers:
        found.append(layer | cpus)
        cpus &= layer
    return (*found, cpus) if cpus else tuple(found)


def _by_layer(group: frozenset[int], layers: tuple[frozenset[int], ...]) -> Iterator[frozenset[int]]:
    """The CPUs of a group that are in none of the layers, in one, in two and so on; but empty ones."""
    for layer in layers:
        if rest := group - layer:
            yield rest
        group &= layer
    if group:
        yield group


def _domains(topology: Topology, level: str) -> Mapping[int, frozenset[int]]:
    """By CPU all CPUs of its domain."""
    key = _key(topology, level)
    members: dict[Hashable, set[int]] = {}
    for cpu, place in topology.cpus.items():
        members.setdefault(key(place), set()).add(cpu)
    return {cpu: domain for domain in map(frozenset, members.values()) for cpu in domain}


def _key(topology: Topology, level: str) -> Callable[[Cpu], Hashable]:
    def core(place: Cpu) -> Hashable:
        return (place.socket, "core", place.core)

    # x86 kernels call the CPUs of an L2 a cluster. Arm's, where nothing has a vendor, tell no L2s: they are cores'.
    has_l2s = bool(topology.data.vendor)
    return {
        "core": core,
        "l2cache": lambda c: (c.socket, c.cluster) if has_l2s and c.cluster is not None else core(c),
        "l3cache": lambda c: (c.socket, c.l3) if c.l3 is not None else c.numa,
        "numa": lambda c: c.numa,
        "die": lambda c: (c.socket, c.die),
        "package": lambda c: c.socket,
    }[level]
