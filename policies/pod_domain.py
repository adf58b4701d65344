"""The pod rule: P, the smallest domain whose CPUs hold the whole pod and whose room holds its requests.

A pod never widens the rung of one of its containers; P only says which candidates come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from policies.machine.topology import Domain, Topology
from policies.model import Affinity, Container, Resident, wanted_milli
from policies.node import NANO_PER_MILLI, Capacity, Node

#: As many homes are remembered with their leaves: many containers have one home, and go elsewhere together.
HOMES_KEPT = 256


class PodDomains:
    """The domains of one machine by size, to find the P of a container's pod in."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._by_size = _by_size(topology)
        self._leaves: dict[frozenset[int], frozenset[int]] = {}

    def leaves_of(self, home: frozenset[int]) -> frozenset[int]:
        """The leaves that some CPUs are in."""
        found = self._leaves.get(home)
        if found is None:
            leaves = enumerate(self.topology.leaves)
            found = frozenset(i for i, leaf in leaves if not leaf.cpus.isdisjoint(home))
            if len(self._leaves) >= HOMES_KEPT:
                self._leaves.clear()
            self._leaves[home] = found
        return found

    def find(
        self,
        node: Node,
        capacity: Capacity,
        container: Container,
        affinity: Optional[Affinity],
        packed: bool = False,
    ) -> Optional[frozenset[int]]:
        """The leaves of P, or None where the pod is this one container or no domain holds it.

        ``packed``: of domains of one size the one that is left with the fewest CPUs, not the least loaded; of
        those the one where least is taken from others.
        """
        uid = container.pod.uid
        peers = node.of_pod(uid)
        total, total_request = _pod_totals(container, peers.values())
        if not peers and total == wanted_milli(container):
            return None
        # 1. Not counting the pod itself: the domains that hold it and have room for it. Where it has containers
        #    already, only those around them: a smaller domain elsewhere would tear it apart.
        without = capacity.credit(peers, uid) if peers else capacity
        own = frozenset().union(*[r.exclusive for r in peers.values()])
        placed = [r.cpus for r in peers.values() if r.cpus]
        here = frozenset(i for cpus in placed for i in self.leaves_of(cpus))
        for domains in self._by_size:
            found = [
                d
                for d in domains
                if (not here or not here.isdisjoint(d.leaves))
                and (capacity.cap(d.leaves) + len(own & d.cpus)) * 1000 >= max(total, 1)
                and without.room_nano(d.leaves) + len(own & d.cpus) * 1000 * NANO_PER_MILLI
                >= total_request * NANO_PER_MILLI
            ]
            # 2. Of the smallest ones the one that has most of the pod, then as for candidates.
            if found:

                def key(d: Domain) -> tuple[int, int, float, int, int, tuple[int, ...]]:
                    most = sum(1000 * len(cpus & d.cpus) // len(cpus) for cpus in placed)
                    cost, fault = 0.0, 0
                    if affinity is not None:
                        cpus = capacity.allowed(d.leaves)
                        cost, fault = affinity.cost(container, cpus), affinity.fault(container, cpus)
                    left = capacity.cap(d.leaves) if packed else without.share_nano(d.leaves)
                    lost = (
                        node.shortfall_milli(capacity.allowed(d.leaves), -(-total // 1000)) if packed else 0
                    )
                    return (-most, fault, cost, left, lost, d.leaves)

                return frozenset(min(found, key=key).leaves)
        return None


def _pod_totals(container: Container, peers: Iterable[Resident]) -> tuple[int, int]:
    """CPUs and requests of the whole pod, in milli-CPUs: as it was announced, else of its known containers."""
    wanted, request = wanted_milli(container), container.resources.milli_request
    size = container.pod.size
    limit, least = 0, 0
    if size is not None:
        limit, least = (
            size.milli_request if size.milli_limit is None else size.milli_limit,
            size.milli_request,
        )
    placed = list(peers)
    # The request of an ended init container says of the others only that they need no more.
    if size is None or (size.is_past and placed):
        total, asked = sum(r.milli_wanted for r in placed), sum(r.milli_request for r in placed)
        if size is None:
            return wanted + total, request + asked
        return max(wanted, min(limit, wanted + total)), max(request, min(least, request + asked))
    return max(limit, wanted), max(least, request)


def _by_size(topology: Topology) -> tuple[tuple[Domain, ...], ...]:
    """The domains from the smallest level to the machine. Boxes of one level are equals, whatever CPUs some of them lack."""
    sizes: dict[int, list[Domain]] = {}
    for domain in topology.domains:
        size = max(len(d.cpus) for d in topology.at(domain.levels[-1]))
        sizes.setdefault(size, []).append(domain)
    return tuple(tuple(domains) for _, domains in sorted(sizes.items()))
