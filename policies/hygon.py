"""The default policy: the ladder of the Hygon tuning manual, with shared ownership of CPUs.

Every container climbs the ladder by its own CPU limit (policies/ladder.py); the pod rule says which domains come
first (policies/pod_domain.py). Containers that are to own CPUs (policies/exclusive/rules.py) are placed by
policies/exclusive/place.py: here only those whose annotations ask for it, in the preset ``topology-aware`` the
Guaranteed ones. Isolated CPUs (``isolcpus``) are kept for containers that own them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from policies.exclusive.place import Owning
from policies.exclusive.rules import ask_of
from policies.ladder import ANY_LEVEL, Climb, Ladder, RungChoice
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology
from policies.memory import with_memory
from policies.model import (
    NO_CONSTRAINT,
    UNTOUCHED,
    Affinity,
    Container,
    CpusetConstraint,
    Decision,
    NoAffinity,
    Placement,
    PlacementRefused,
    Qos,
    limit_milli,
    wanted_milli,
)
from policies.node import Node
from policies.pod_domain import PodDomains
from policies.reserved import reserved_place
from policies.settings import PlacementSettings
from policies.wanted import demand_of, hinted_nodes, l3_mode_of, size_mode_of

#: Staircases that are kept, by the CPUs of each leaf and what holds a container's limit.
SIZES_KEPT = 256
#: Levels inside one NUMA node.
ONE_NODE = ("core", "cluster", "ccx", "nccx", "numa")


class Hygon:
    """The ladder policy for one machine."""

    name = "hygon"
    owns_exclusively = False
    keeps_isolated_apart = True
    moves_others = True

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        self.topology = topology
        self.settings = settings
        self.ladder = Ladder(topology, settings.ladder)
        self.pods = PodDomains(topology)
        self._owning = Owning(topology, settings, self.pods)
        #: For containers whose sets are sized by demand: it has a place for every number of CCXs of a node.
        self._fine: Optional[Ladder] = self.ladder if self.ladder.fine else None
        self._sizes: dict[object, tuple[int, ...]] = {}

    def place(
        self,
        node: Node,
        container: Container,
        fence: CpusetConstraint = NO_CONSTRAINT,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
        keep: Optional[Placement] = None,
    ) -> Decision:
        """Choose CPUs and memory nodes for a container that is not in the books yet.

        ``near``: the home it has now, if it is placed anew (a resize): domains around or inside it come first.

        :raises BudgetSpent: the machine offers more places than may be looked at.
        :raises PlacementRefused: its annotations demand what cannot be had.
        """
        if container.preferences.refusal:
            raise PlacementRefused(container.preferences.refusal)
        ask = ask_of(container, self.settings, bool(node.reserved))
        note = ""
        if ask.full:
            owned = self._owning.place(node, container, ask, fence, affinity, near, keep)
            if isinstance(owned, Decision):
                return _noted(owned, container)
            note = f"{owned}; "
        elif ask.is_reserved:
            reserved = self._place_reserved(node, container, fence)
            if isinstance(reserved, Decision):
                return _noted(reserved, container)
            note = f"{reserved}; "
        shared = self.place_shared(node, container, fence, affinity, near)
        # A container that should own CPUs and has none does not fit, wherever it is.
        decided = replace(shared, why=note + shared.why, fits=shared.fits and not ask.full)
        return _noted(decided, container)

    def place_shared(
        self,
        node: Node,
        container: Container,
        fence: CpusetConstraint = NO_CONSTRAINT,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
    ) -> Decision:
        """The place of a container on shared CPUs, by the ladder."""
        survey = node.survey(fence.cpus)
        is_sized = container.milli_size is not None
        graph = affinity or NoAffinity()
        hinted = hinted_nodes(container, self.settings)
        want = Climb(
            wanted_milli(container),
            container.resources.milli_request,
            self._floor(container),
            self.pods.leaves_of(near) if near else self.pods.find(node, survey, container, affinity),
            None if affinity is None else (lambda cpus: graph.cost(container, cpus)),
            self.topology.nodes_of(near or ()),
            hinted,
            wanted_milli(container) if is_sized else 0,
        )
        try:
            choice = (self._fine_ladder() if is_sized else self.ladder).climb(survey, node, want)
        except LookupError:
            allowed = (
                "the machine has" if fence.cpus is None else f"{fence.of} allows ({format_cpus(fence.cpus)})"
            )
            return Decision(UNTOUCHED, f"none of the CPUs {allowed} may be used")
        self._check_demands(container, choice, hinted)
        home = choice.site.home if fence.cpus is None else choice.site.home & fence.cpus
        thin = (container.preferences.smt or self.settings.smt) in ("hide", "spread")
        cpus = self.topology.one_thread_per_core(choice.cpus) if thin else choice.cpus
        place = Placement(cpus=cpus, level=choice.site.level, home=home, one_thread=thin)
        return with_memory(node, container, self.settings, fence, place, choice.why, choice.has_room)

    def sizes(self, node: Node, container: Container, fence: CpusetConstraint) -> tuple[int, ...]:
        """How large the places are that a container sized by demand can have, milli-CPUs, the last by its limit; ()
        where its set is not sized by demand: see ``why_not_sized``."""
        if self.why_not_sized(node, container):
            return ()
        survey = node.survey(fence.cpus)
        by_limit = limit_milli(container), self._floor_by_limit(container)
        key = survey.caps, by_limit
        if key not in self._sizes:
            if len(self._sizes) >= SIZES_KEPT:
                self._sizes.clear()
            most = self.ladder.size_of(survey, *by_limit)
            smaller = [size for size in self._fine_ladder().sizes(survey) if size < most]
            self._sizes[key] = tuple(size * 1000 for size in (*smaller, most))
        return self._sizes[key]

    def why_not_sized(self, node: Node, container: Container) -> str:
        """Why the set of a container is not sized by demand; "" = it is."""
        if size_mode_of(container, self.settings) != "demand":
            return "its set is sized by its limit"
        if not self.fits_by_room(node, container):
            return "it is to have CPUs of its own, or the reserved ones"
        if (container.preferences.smt or self.settings.smt) in ("hide", "spread"):
            return "it gets one thread of each core"
        if l3_mode_of(container, self.settings) == "spread":
            return "it is to be spread over many L3s"
        return ""

    def _fine_ladder(self) -> Ladder:
        if self._fine is None:
            self._fine = Ladder(self.topology, "fine")
        return self._fine

    def fits_by_room(self, node: Node, container: Container) -> bool:
        """Whether it is placed by the ladder: it is to own no CPUs, and not to share the reserved ones."""
        ask = ask_of(container, self.settings, bool(node.reserved))
        return not ask.full and not ask.is_reserved

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        """Nothing: no container is moved because another left."""
        return {}

    def _place_reserved(self, node: Node, container: Container, fence: CpusetConstraint) -> object:
        """A decision on the reserved CPUs; else a phrase why not."""
        if not node.reserved:
            return "there are no reserved CPUs"
        place = reserved_place(node, container, fence)
        if isinstance(place, str):
            return f"{place}, placed like others"
        who = "it" if container.preferences.reserved else f"namespace {container.pod.namespace}"
        why = f"{who} shares the {len(place.cpus)} reserved CPUs"
        return with_memory(node, container, self.settings, fence, place, why)

    def _floor(self, container: Container) -> str:
        """The lowest level a container may have: of one sized by demand any, else by its limit."""
        return ANY_LEVEL if container.milli_size is not None else self._floor_by_limit(container)

    def _floor_by_limit(self, container: Container) -> str:
        """With a limit any level, without one what the configuration says."""
        mode = l3_mode_of(container, self.settings)
        if mode == "spread":
            return "socket"
        if container.resources.milli_limit is not None:
            return ANY_LEVEL
        if mode == "require":
            return "ccx"
        return self.settings.besteffort if container.qos is Qos.BESTEFFORT else self.settings.unlimited

    def _check_demands(
        self, container: Container, choice: RungChoice, hinted: tuple[frozenset[int], ...]
    ) -> None:
        """:raises PlacementRefused: the best place there is is not what the container demands."""
        who, wanted = container.path, wanted_milli(container) / 1000
        level, room = choice.site.level, "" if choice.has_room else " with room"
        demand = demand_of(container, self.settings)
        if demand == "l3" and (level not in ("cluster", "ccx") or choice.is_full):
            raise PlacementRefused(f"{who} wants {wanted:g} CPUs in one L3{room}; there is none")
        if demand and (level not in ONE_NODE or choice.is_full):
            raise PlacementRefused(f"{who} wants {wanted:g} CPUs in one NUMA node{room}; there is none")
        if container.preferences.strict_hints and any(h.isdisjoint(choice.site.nodes) for h in hinted):
            raise PlacementRefused(
                f"{who} demands CPUs near its devices; NUMA node {format_cpus(frozenset().union(*hinted))} has no room"
            )


def _noted(decision: Decision, container: Container) -> Decision:
    """What of its annotations was ignored belongs to the explanation."""
    notes = container.preferences.notes
    return replace(decision, why="; ".join((decision.why, *notes))) if notes else decision
