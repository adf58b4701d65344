"""The planner's sites as placements know them: which one a container is in, and which others it could have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.records import Grant
from policies.affinity.planner.distances import distance_ns, tree_of
from policies.affinity.planner.problem import Tree
from policies.machine.topology import Topology
from policies.model import wanted_milli
from policies.node import Survey
from policies.settings import PlacementSettings
from policies.wanted import hinted_nodes, missed_hints

#: The levels of placements that are one domain, as the topology calls it. Containers that own CPUs are in the
#: smallest domain around them.
_DOMAINS = {
    "core": "l3",
    "cluster": "cluster",
    "ccx": "l3",
    "numa": "numa",
    "socket": "socket",
    "machine": "machine",
}


class CandidateDomains:
    """The sites of one machine, by their leaves. Made anew for each question; answers are kept while it is made."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        count = len(topology.leaves)
        zeros = tuple([(0.0,) * count] * count)
        self._sites = tree_of(topology, [0] * count, zeros).sites
        self._at = {frozenset(site.leaves): index for index, site in enumerate(self._sites)}
        #: The CPUs of each site.
        self.homes = [
            frozenset().union(*[topology.leaves[leaf].cpus for leaf in site.leaves]) for site in self._sites
        ]
        self.nodes = [topology.nodes_of(home) for home in self.homes]
        self._leaf_of = {cpu: index for index, leaf in enumerate(topology.leaves) for cpu in leaf.cpus}
        self._of_level = {
            level: tuple(sorted({self._at[frozenset(d.leaves)] for d in topology.at(kind)}))
            for level, kind in _DOMAINS.items()
        }
        self._around: dict[frozenset[int], int] = {}
        self._choices: dict[object, tuple[int, ...]] = {}
        self._of: dict[object, Optional[int]] = {}

    def tree(self, capacities: Sequence[int], settings: AffinitySettings) -> Tree:
        """The machine for the planner."""
        distances = distance_ns(self.topology, settings.l3_ns, settings.slit_ns, settings.cluster_ns)
        return tree_of(self.topology, capacities, distances)

    def around(self, cpus: frozenset[int]) -> int:
        """The smallest site that holds some CPUs."""
        if cpus not in self._around:
            leaves = self._leaves_of(cpus)
            holding = [
                (len(site.leaves), i) for i, site in enumerate(self._sites) if leaves <= {*site.leaves}
            ]
            self._around[cpus] = min(holding)[1]
        return self._around[cpus]

    def of(self, grant: Grant) -> Optional[int]:
        """The site a container was given; None if it is none of them (pairs of domains, parts of one)."""
        home, level, fence = grant.placement.home, grant.placement.level, grant.fence.cpus
        key = (home, level, fence, bool(grant.exclusive))
        if key not in self._of:
            self._of[key] = self._find(grant)
        return self._of[key]

    def _find(self, grant: Grant) -> Optional[int]:
        home, fence = grant.placement.home, grant.fence.cpus
        equals = self._of_level.get(grant.placement.level, ())
        if grant.exclusive:
            held = home | grant.placement.exclusive
            return next((i for i in equals if held <= self.homes[i]), None)
        leaves = self._leaves_of(home)
        site = self._at.get(leaves)
        if site is None or site not in equals:
            return None
        whole = self.homes[site] if fence is None else self.homes[site] & fence
        return site if home == whole else None

    def choice(
        self, grant: Grant, here: int, survey: Survey, settings: PlacementSettings, stays_in_node: bool
    ) -> tuple[int, ...]:
        """The sites of a container's level that hold what it wants, the present one among them.

        ``stays_in_node``: none on other NUMA nodes. A site that a caller's cpuset cuts is none; nor is one farther
        from the devices of the container.
        """
        hinted = hinted_nodes(grant.container, settings) if grant.container.hints else ()
        wanted = 0 if grant.exclusive else wanted_milli(grant.container)
        choice = self._holding(grant.placement.level, wanted, grant.fence.cpus, survey)
        if hinted:
            missed = missed_hints(hinted, self.nodes[here])
            choice = tuple([site for site in choice if missed_hints(hinted, self.nodes[site]) <= missed])
        if stays_in_node:
            choice = tuple([site for site in choice if self.nodes[site] <= self.nodes[here]])
        return choice if here in choice else (here, *choice)

    def _holding(
        self, level: str, wanted: int, fence: Optional[frozenset[int]], survey: Survey
    ) -> tuple[int, ...]:
        """The sites of a level that hold so many milli-CPUs, and that a fence does not cut."""
        key = (level, wanted, fence)
        if key not in self._choices:
            usable = {site: survey.allowed(self._sites[site].leaves) for site in self._of_level[level]}
            self._choices[key] = tuple(
                site
                for site, cpus in usable.items()
                if len(cpus) * 1000 >= max(wanted, 1) and (fence is None or cpus <= fence)
            )
        return self._choices[key]

    def shares(self, site: int, capacities: Sequence[int]) -> list[tuple[int, float]]:
        """How the demand of a container at a site is spread over leaves: as their capacities are."""
        leaves = self._sites[site].leaves
        total = sum([capacities[leaf] for leaf in leaves])
        return [(leaf, capacities[leaf] / total if total else 1 / len(leaves)) for leaf in leaves]

    def _leaves_of(self, cpus: frozenset[int]) -> frozenset[int]:
        return frozenset([self._leaf_of[cpu] for cpu in cpus if cpu in self._leaf_of])
