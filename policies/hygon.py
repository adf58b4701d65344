"""The default policy: the ladder of the Hygon tuning manual, with shared ownership of CPUs.

Every container climbs the ladder by its own CPU limit (policies/ladder.py); a pod never widens the rung of
one of its containers, it only says which domain comes first (the pod rule): P is the smallest domain whose
CPUs hold the limits of the whole pod and whose room holds its requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Optional

from policies.cpus import format_cpus
from policies.ladder import Climb, Ladder
from policies.memory import choose_memory
from policies.model import (
    NO_FENCE,
    UNTOUCHED,
    Affinity,
    Container,
    Decision,
    Fence,
    NoAffinity,
    Placement,
    Qos,
)
from policies.node import NANO_PER_MILLI, Node, Resident, Survey
from policies.settings import PlacementSettings
from policies.topology import Domain, Topology


class Hygon:
    """The ladder policy for one machine."""

    name = "hygon"
    owns_exclusively = False
    keeps_isolated_apart = False

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.topology = topology
        self.settings = settings
        self.ladder = Ladder(topology, settings.ladder)
        self._by_size = _by_size(topology)

    def place(
        self,
        node: Node,
        container: Container,
        fence: Fence = NO_FENCE,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
        keep: Optional[Placement] = None,
    ) -> Decision:
        """Choose CPUs and memory nodes for a container that is not in the books yet.

        ``near``: the home it has now, if it is placed anew (a resize): domains around or inside it come first.

        :raises BudgetSpent: the machine offers more places than may be looked at.
        """
        reserved = self._place_reserved(node, container, fence)
        note = ""
        if isinstance(reserved, Decision):
            return reserved
        if reserved:
            note = f"{reserved}; "
        survey = node.survey(fence.cpus)
        graph = affinity or NoAffinity()
        pull = None if affinity is None else (lambda cpus: graph.cost(container, cpus))
        want = Climb(
            wanted_milli(container),
            container.resources.milli_request,
            self._floor(container),
            self._leaves_of(near) if near else self._pod_leaves(node, survey, container, affinity),
            pull,
            self.topology.nodes_of(near or ()),
        )
        try:
            choice = self.ladder.climb(survey, node, want)
        except LookupError:
            allowed = (
                "the machine has" if fence.cpus is None else f"the caller allows ({format_cpus(fence.cpus)})"
            )
            return Decision(UNTOUCHED, f"{note}none of the CPUs {allowed} may be used")
        home = choice.site.home if fence.cpus is None else choice.site.home & fence.cpus
        return self._with_memory(
            node, container, fence, choice.cpus, home, choice.site.level, note + choice.why, choice.has_room
        )

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        """Nothing: nobody is moved because somebody left."""
        return {}

    def _with_memory(
        self,
        node: Node,
        container: Container,
        fence: Fence,
        cpus: frozenset[int],
        home: frozenset[int],
        level: str,
        why: str,
        fits: bool,
    ) -> Decision:
        limit = container.resources.memory_limit_bytes
        memory = choose_memory(
            node, cpus, limit, self.settings.memory, self.settings.memory_only_nodes, fence.mems
        )
        placement = Placement(
            cpus=cpus, mems=memory.nodes, level=level, home=home, memory_charge=memory.charge
        )
        return Decision(placement, f"{why}; {memory.why}" if memory.why else why, fits)

    def _place_reserved(self, node: Node, container: Container, fence: Fence) -> object:
        """A decision on the reserved CPUs; else a phrase why not; "" where the question does not arise."""
        names = self.settings.reserved_namespaces
        if not node.reserved or not any(fnmatchcase(container.pod.namespace, name) for name in names):
            return ""
        home = node.reserved if fence.cpus is None else node.reserved & fence.cpus
        cpus = home & node.shared_reserved
        free = len(cpus) * 1000 - node.charge_milli(cpus)
        if not cpus or wanted_milli(container) > len(cpus) * 1000 or container.resources.milli_request > free:
            return f"the reserved CPUs {format_cpus(cpus)} have {max(free, 0)}m left of {len(cpus)} CPUs, placed like others"
        why = f"namespace {container.pod.namespace} shares the {len(cpus)} reserved CPUs"
        return self._with_memory(node, container, fence, cpus, home, "reserved", why, True)

    def _floor(self, container: Container) -> str:
        """The lowest level a container may have: with a limit any, without one what the configuration says."""
        if container.resources.milli_limit is not None:
            return "ccx"
        return self.settings.besteffort if container.qos is Qos.BESTEFFORT else self.settings.unlimited

    def _leaves_of(self, home: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i, leaf in enumerate(self.topology.leaves) if not leaf.cpus.isdisjoint(home))

    def _pod_leaves(
        self, node: Node, survey: Survey, container: Container, affinity: Optional[Affinity]
    ) -> Optional[frozenset[int]]:
        """The leaves of P, or None where the pod is this one container or no domain holds it."""
        uid = container.pod.uid
        peers = node.of_pod(uid)
        total, total_request = _pod_totals(container, peers.values())
        if not peers and total == wanted_milli(container):
            return None
        # 1. Not counting the pod itself: the domains that hold it and have room for it. Where it has containers
        #    already, only those around them: a smaller domain elsewhere would tear it apart.
        without = survey.credit(peers, uid) if peers else survey
        placed = [r.cpus for r in peers.values() if r.cpus]
        here = frozenset(i for cpus in placed for i in self._leaves_of(cpus))
        for domains in self._by_size:
            found = [
                d
                for d in domains
                if (not here or not here.isdisjoint(d.leaves))
                and survey.cap(d.leaves) * 1000 >= max(total, 1)
                and without.room_nano(d.leaves) >= total_request * NANO_PER_MILLI
            ]
            # 2. Of the smallest ones the one that has most of the pod, then as for candidates.
            if found:

                def key(d: Domain) -> tuple[int, float, int, tuple[int, ...]]:
                    most = sum(1000 * len(cpus & d.cpus) // len(cpus) for cpus in placed)
                    cost = affinity.cost(container, survey.allowed(d.leaves)) if affinity is not None else 0.0
                    return (-most, cost, without.share_nano(d.leaves), d.leaves)

                return frozenset(min(found, key=key).leaves)
        return None


def _pod_totals(container: Container, peers: Iterable[Resident]) -> tuple[int, int]:
    """CPUs and requests of the whole pod, in milli-CPUs: as it was announced, else of what is known of it so far."""
    wanted, request = wanted_milli(container), container.resources.milli_request
    size = container.pod.size
    if size is None:
        placed = list(peers)
        return wanted + sum(r.milli_wanted for r in placed), request + sum(r.milli_request for r in placed)
    limit = size.milli_request if size.milli_limit is None else size.milli_limit
    return max(limit, wanted), max(size.milli_request, request)


def _by_size(topology: Topology) -> tuple[tuple[Domain, ...], ...]:
    """The domains from the smallest level to the machine. Boxes of one level are equals, whatever CPUs some of them lack."""
    sizes: dict[int, list[Domain]] = {}
    for domain in topology.domains:
        size = max(len(d.cpus) for d in topology.at(domain.levels[-1]))
        sizes.setdefault(size, []).append(domain)
    return tuple(tuple(domains) for _, domains in sorted(sizes.items()))


def wanted_milli(container: Container) -> int:
    """``n`` of the ladder: the CPU limit, or the request of a container without one; in milli-CPUs."""
    limit = container.resources.milli_limit
    return container.resources.milli_request if limit is None else limit
