"""What is counted of a sequence: how many containers were placed worse than needed, in each way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from bench.placement.search import fewest
from bench.placement.sequences import OWNERS, Create
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology


@dataclass(frozen=True)
class Given:
    """What a container was given: its cpuset, and the CPUs that no other container may run on. Both may change later."""

    cpus: frozenset[int]
    owned: frozenset[int] = NO_CPUS
    mems: frozenset[int] = NO_CPUS


@dataclass
class Tally:
    """How many containers of how many were placed worse than needed, in each way.

    Of owners: ``l3s``, ``nodes``: their own CPUs are over more than so many CPUs need on an empty machine; ``_avoidable``:
    more than were needed with what no other owned. ``split``: they share a core with another owner. ``shared``: they own
    too few CPUs, or none. ``clusters``: of cores, as ``l3s``; ``beside``: another owner has a part of the same cluster.
    Of all: ``refused``: the create failed. ``wide_l3s``, ``wide_nodes``: the cpuset is over more than the limit needs on
    an empty machine; ``_avoidable``: more than were needed with what no other owned. ``few``: the cpuset is smaller than
    the limit. ``mems``: more than its CPUs'. ``beside_running``: of all operations together, the containers that ran
    before and after one; ``changed``: of these, the ones whose cpuset was changed.
    """

    created: int = 0
    owners: int = 0
    refused: int = 0
    shared: int = 0
    l3s: int = 0
    l3s_avoidable: int = 0
    nodes: int = 0
    nodes_avoidable: int = 0
    split: int = 0
    mems: int = 0
    clusters: int = 0
    clusters_avoidable: int = 0
    beside: int = 0
    wide_l3s: int = 0
    wide_l3s_avoidable: int = 0
    wide_nodes: int = 0
    wide_nodes_avoidable: int = 0
    few: int = 0
    beside_running: int = 0
    changed: int = 0

    def made(self, tree: Topology, create: Create, given: Optional[Given], others: frozenset[int]) -> None:
        """A container was created, or not (None). ``others``: the CPUs that other containers own."""
        self.created += 1
        is_owner = create.kind in OWNERS
        self.owners += is_owner
        if given is None:
            self.refused += 1
            return
        self.mems += given.mems > tree.nodes_of(given.cpus)
        self.few += len(given.cpus) * 1000 < create.milli_limit
        free = tree.online - tree.core_mates(0) - others
        size = -(-create.milli_limit // 1000)
        for level, name in (("l3", "wide_l3s"), ("numa", "wide_nodes")):
            self._span(tree, level, name, given.cpus, size, free, max(1, min(size, len(free))))
        if not is_owner:
            return
        if len(given.owned) < create.cpus or given.owned & others:
            self.shared += 1
            return
        count = max(create.cpus, min(len(given.owned), size))
        for level, name in (("l3", "l3s"), ("numa", "nodes")):
            self._span(tree, level, name, given.owned, count, free, len(given.owned))
        self.split += any(not tree.core_mates(cpu).isdisjoint(others) for cpu in given.owned)
        clusters = clusters_of(tree)
        mine = [cluster for cluster in clusters if not cluster.isdisjoint(given.owned)]
        self.clusters += bool(clusters) and len(mine) > -(-count // len(clusters[0]))
        self.clusters_avoidable += len(mine) > fewest([len(c & free) for c in clusters], len(given.owned))
        self.beside += any(not cluster.isdisjoint(others) for cluster in mine)

    def _span(
        self,
        tree: Topology,
        level: str,
        name: str,
        cpus: frozenset[int],
        count: int,
        free: frozenset[int],
        wanted: int,
    ) -> None:
        """Count CPUs that are over too many domains: for ``count`` on an empty machine, for ``wanted`` of what is free."""
        domains = tree.at(level)
        used = sum(not domain.cpus.isdisjoint(cpus) for domain in domains)
        excess = used > -(-count // len(domains[0].cpus))
        avoidable = used > fewest([len(domain.cpus & free) for domain in domains], wanted)
        setattr(self, name, getattr(self, name) + excess)
        setattr(self, f"{name}_avoidable", getattr(self, f"{name}_avoidable") + avoidable)

    def passed(self, before: Mapping[int, Given], after: Mapping[int, Given]) -> None:
        """An operation is over; by number, what the containers had before and have after it."""
        both = before.keys() & after.keys()
        self.beside_running += len(both)
        self.changed += sum(before[number].cpus != after[number].cpus for number in both)


def clusters_of(tree: Topology) -> list[frozenset[int]]:
    """The clusters of cores of a machine; none where it has none."""
    found: dict[tuple[int, Optional[int]], set[int]] = {}
    for c in tree.cpus.values():
        found.setdefault((c.socket, c.cluster), set()).add(c.cpu)
    return (
        [] if any(cluster is None for _, cluster in found) else [frozenset(group) for group in found.values()]
    )
