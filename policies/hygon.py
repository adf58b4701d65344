"""The default policy: the ladder of the Hygon tuning manual, with shared ownership of CPUs.

Every container climbs the ladder by its own CPU limit (policies/ladder.py); a pod never widens the rung of
one of its containers, it only says which domain comes first (the pod rule): P is the smallest domain whose
CPUs hold the limits of the whole pod and whose room holds its requests.
"""

from __future__ import annotations

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
    PlacementSettings,
    Qos,
)
from policies.node import NANO_PER_MILLI, Node, Survey
from policies.topology import Topology


class Hygon:
    """The ladder policy for one machine."""

    name = "hygon"
    owns_exclusively = False

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.topology = topology
        self.settings = settings
        self.ladder = Ladder(topology, settings.ladder)

    def place(
        self,
        node: Node,
        container: Container,
        fence: Fence = NO_FENCE,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
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
        )
        try:
            choice = self.ladder.climb(survey, node, want)
        except LookupError:
            return Decision(UNTOUCHED, f"none of the CPUs the caller allows ({format_cpus(fence.cpus or ())}) may be used")
        home = choice.site.home if fence.cpus is None else choice.site.home & fence.cpus
        return self._with_memory(node, container, fence, choice.cpus, home, choice.site.level, note + choice.why, choice.has_room)

    def _with_memory(
        self, node: Node, container: Container, fence: Fence, cpus: frozenset[int], home: frozenset[int], level: str, why: str, fits: bool
    ) -> Decision:
        limit = container.resources.memory_limit_bytes
        memory = choose_memory(node, cpus, limit, self.settings.memory, self.settings.memory_only_nodes, fence.mems)
        placement = Placement(cpus=cpus, mems=memory.nodes, level=level, home=home, memory_charge=memory.charge)
        return Decision(placement, f"{why}; {memory.why}" if memory.why else why, fits)

    def _place_reserved(self, node: Node, container: Container, fence: Fence) -> object:
        """A decision on the reserved CPUs; else a phrase why not; "" where the question does not arise."""
        names = self.settings.reserved_namespaces
        if not node.reserved or not any(fnmatchcase(container.pod.namespace, name) for name in names):
            return ""
        cpus = node.reserved if fence.cpus is None else node.reserved & fence.cpus
        free = len(cpus) * 1000 - node.charge_milli(cpus)
        if not cpus or wanted_milli(container) > len(cpus) * 1000 or container.resources.milli_request > free:
            return f"the reserved CPUs {format_cpus(cpus)} have {max(free, 0)}m left of {len(cpus)} CPUs, placed like others"
        why = f"namespace {container.pod.namespace} shares the {len(cpus)} reserved CPUs"
        return self._with_memory(node, container, fence, cpus, cpus, "reserved", why, True)

    def _floor(self, container: Container) -> str:
        """The lowest level a container may have: with a limit any, without one what the configuration says."""
        if container.resources.milli_limit is not None:
            return "ccx"
        return self.settings.besteffort if container.qos is Qos.BESTEFFORT else self.settings.unlimited

    def _leaves_of(self, home: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i, leaf in enumerate(self.topology.leaves) if not leaf.cpus.isdisjoint(home))

    def _pod_leaves(self, node: Node, survey: Survey, container: Container, affinity: Optional[Affinity]) -> Optional[frozenset[int]]:
        """The leaves of P, or None where the pod is this one container or no domain holds it."""
        uid = container.pod.uid
        peers = {key: r for key, r in node.residents.items() if r.pod_uid == uid}
        wanted, request = wanted_milli(container), container.resources.milli_request
        size = container.pod.size
        if size is not None:
            total = max(size.milli_request if size.milli_limit is None else size.milli_limit, wanted)
            total_request = max(size.milli_request, request)
        else:
            total = wanted + sum(r.milli_wanted for r in peers.values())
            total_request = request + sum(r.milli_request for r in peers.values())
        if not peers and total == wanted:
            return None
        without = survey.credit(peers, uid) if peers else survey

        best: Optional[tuple[tuple[int, int, float, int, int], tuple[int, ...]]] = None
        for index, domain in enumerate(self.topology.domains):
            cap = survey.cap(domain.leaves)
            if not cap or cap * 1000 < total or without.room_nano(domain.leaves) < total_request * NANO_PER_MILLI:
                continue
            # Smallest first; of equals the one where the pod is already, then as for candidates.
            here = sum(1000 * len(r.cpus & domain.cpus) // len(r.cpus) for r in peers.values() if r.cpus)
            pull = affinity.cost(container, survey.allowed(domain.leaves)) if affinity is not None else 0.0
            key = (cap, -here, pull, without.share_nano(domain.leaves), index)
            if best is None or key < best[0]:
                best = (key, domain.leaves)
        return None if best is None else frozenset(best[1])


def wanted_milli(container: Container) -> int:
    """``n`` of the ladder: the CPU limit, or the request of a container without one; in milli-CPUs."""
    limit = container.resources.milli_limit
    return container.resources.milli_request if limit is None else limit
