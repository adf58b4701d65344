"""The default policy: the ladder of the Hygon tuning manual, with shared ownership of CPUs.

Every container climbs the ladder by its own CPU limit (policies/ladder.py); the pod rule says which domains come
first (policies/pod_domain.py). Containers that are to own CPUs (policies/exclusive/place.py) are placed by
policies/exclusive/place.py: here only those whose annotations ask for it, in the preset ``topology-aware`` the
Guaranteed ones. Isolated CPUs (``isolcpus``) are kept for containers that own them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional, Union

from policies.exclusive.place import CpuDemand, Owning, ask_of
from policies.groups import is_pod_group, pod_group
from policies.ladder import ANY_LEVEL, Climb, Ladder, RungChoice
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.memory import with_memory
from policies.model import (
    BATCH,
    PROTECTED,
    UNTOUCHED,
    BudgetSpent,
    Constraint,
    Container,
    Decision,
    NoAffinity,
    Placement,
    PlacementRefused,
    PlacementRequest,
    Qos,
    Resident,
    altered,
    limit_milli,
    wanted_milli,
)
from policies.node import NANO_PER_MILLI, Capacity, Node
from policies.pod_domain import PodDomains
from policies.policy import Policy
from policies.reserved import reserved_place
from policies.settings import PlacementSettings
from policies.wanted import demand_of, hinted_nodes, l3_mode_of, size_mode_of

#: Staircases that are kept, by the CPUs of each leaf and what holds a container's limit.
SIZES_KEPT = 256
#: Levels inside one NUMA node.
ONE_NODE = ("core", "cluster", "ccx", "nccx", "numa")


class Hygon(Policy):
    """The ladder policy for one machine."""

    name = "hygon"
    keeps_isolated_apart = True
    moves_others = True
    holds_claims = True

    def __init__(self, topology: Topology, settings: PlacementSettings) -> None:
        super().__init__(topology, settings)
        self.ladder = Ladder(topology, settings.ladder)
        self.pods = PodDomains(topology)
        self._owning = Owning(topology, settings, self.pods)
        #: For containers whose sets are sized by demand: it has a place for every number of CCXs of a node.
        self._fine: Optional[Ladder] = self.ladder if self.ladder.fine else None
        self._sizes: dict[object, tuple[int, ...]] = {}

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        """Choose CPUs and memory nodes for a container that is not in the books yet.

        :raises BudgetSpent: the machine offers more places than may be looked at.
        :raises PlacementRefused: its annotations demand what cannot be had.
        """
        container = request.container
        if container.preferences.refusal:
            raise PlacementRefused(container.preferences.refusal)
        ask = ask_of(container, self.settings, bool(node.reserved))
        note = ""
        if ask.full:
            owned = self._owned(node, request, ask)
            if isinstance(owned, Decision):
                return self._noted(owned, container)
            note = f"{owned}; "
        elif ask.is_reserved:
            reserved = self._place_reserved(node, container, request.constraint)
            if isinstance(reserved, Decision):
                return self._noted(reserved, container)
            note = f"{reserved}; "
        shared = self.place_shared(node, request)
        # A container that should own CPUs and has none does not fit, wherever it is.
        decided = altered(shared, why=note + shared.why, fits=shared.fits and not ask.full)
        return self._noted(decided, container)

    def _noted(self, decision: Decision, container: Container) -> Decision:
        """What of its annotations was ignored belongs to the explanation."""
        notes = self.ignored(container)
        return replace(decision, why="; ".join((decision.why, *notes))) if notes else decision

    def _owned(self, node: Node, request: PlacementRequest, ask: CpuDemand) -> Union[Decision, str]:
        """As ``Owning.place``; what containers own together as their pod's, one that comes later owns as well."""
        container, constraint, keep = request.container, request.constraint, request.keep
        if container.pod_share is None:
            return self._owning.place(node, request, ask)
        group = pod_group(container.pod)
        books = node.groups.get(group)
        if books is None:
            alone = keep if keep is None or keep.group != group else altered(keep, group="")
            found = self._owning.place(node, altered(request, keep=alone), ask)
            if isinstance(found, str):
                return found
            return replace(found, placement=altered(found.placement, group=group))
        theirs = next(iter(books.members.values())).placement
        assert theirs is not None  # else it is in no group
        cpus = (
            books.own - theirs.hidden
            if constraint.cpus is None
            else (books.own - theirs.hidden) & constraint.cpus
        )
        if not cpus:
            return f"of its pod's {len(books.own)} exclusive CPUs {constraint.of} allows none"
        place = altered(theirs, cpus=cpus, mems=NO_CPUS, exclusive=books.own, memory_charge=())
        why = f"the {len(books.own)} exclusive CPUs of its pod"
        return with_memory(node, container, self.settings, constraint, place, why)

    def place_shared(self, node: Node, request: PlacementRequest) -> Decision:
        """The place of a container on shared CPUs, by the ladder."""
        container, constraint, affinity, near = (
            request.container,
            request.constraint,
            request.affinity,
            request.near,
        )
        capacity = node.capacity(constraint.cpus)
        is_sized = container.milli_size is not None
        graph = affinity or NoAffinity()
        hinted, kind = hinted_nodes(container, self.settings), request.isolation
        want = Climb(
            wanted_milli(container),
            container.resources.milli_request,
            self._floor(container),
            self.pods.leaves_of(near) if near else self.pods.find(node, capacity, container, affinity),
            None if affinity is None else (lambda cpus: graph.cost(container, cpus)),
            None if affinity is None else (lambda cpus: graph.fault(container, cpus)),
            self.topology.nodes_of(near or ()),
            hinted,
            wanted_milli(container) if is_sized else 0,
            None if kind not in (PROTECTED, BATCH) else (lambda places: node.company(kind, places)),
        )
        try:
            choice = (self._fine_ladder() if is_sized else self.ladder).climb(capacity, node, want)
        except LookupError:
            allowed = (
                "the machine has"
                if constraint.cpus is None
                else f"{constraint.of} allows ({format_cpus(constraint.cpus)})"
            )
            return Decision(UNTOUCHED, f"none of the CPUs {allowed} may be used")
        beside = self._beside_its_pod(node, capacity, request, choice)
        if beside is not None:
            why = f"{choice.why.partition(':')[0]}: where its pod is"
            return with_memory(node, container, self.settings, constraint, beside, why)
        self._check_demands(capacity, container, choice, hinted)
        home = choice.site.home if constraint.cpus is None else choice.site.home & constraint.cpus
        squeezed = self.ladder.is_wider(choice.site.level, want.milli_wanted, want.floor) and not is_sized
        thin = (container.preferences.smt or self.settings.smt) in ("hide", "spread")
        cpus = self.topology.one_thread_per_core(choice.cpus) if thin else choice.cpus
        place = Placement(cpus=cpus, level=choice.site.level, home=home, one_thread=thin, squeezed=squeezed)
        why = (
            choice.why
            + ("; squeezed, its own level is smaller" if squeezed else "")
            + (_thin_text(container, cpus, choice.cpus) if thin else "")
        )
        return with_memory(node, container, self.settings, constraint, place, why, choice.has_room)

    def _beside_its_pod(
        self, node: Node, capacity: Capacity, request: PlacementRequest, choice: RungChoice
    ) -> Optional[Placement]:
        """The place of the containers that share their pod's CPUs with this one, if it is as good as the chosen one and
        has room for the container's own request."""
        container, graph = request.container, request.affinity or NoAffinity()
        mate = _mate(node, container, request.constraint)
        theirs = None if mate is None else mate.placement
        if theirs is None or len(theirs.home) * 1000 < wanted_milli(container):
            return None
        leaves = sorted(self.pods.leaves_of(theirs.home))
        cpus = capacity.allowed(leaves) & theirs.home
        own = 0 if container.pod_share is not None else container.resources.milli_request
        is_larger = len(theirs.home) > len(choice.site.home)
        if graph.fault(container, theirs.home) > graph.fault(container, choice.site.home):
            return None
        if not cpus or is_larger or capacity.room_nano(leaves) < own * NANO_PER_MILLI:
            return None
        cpus = self.topology.one_thread_per_core(cpus) if theirs.one_thread else cpus
        return Placement(cpus=cpus, level=theirs.level, home=theirs.home, one_thread=theirs.one_thread)

    def sizes(self, node: Node, container: Container, constraint: Constraint) -> tuple[int, ...]:
        """How large the places are that a container sized by demand can have, milli-CPUs, the last by its limit; ()
        where its set is not sized by demand: see ``why_not_sized``."""
        if self.why_not_sized(node, container):
            return ()
        capacity = node.capacity(constraint.cpus)
        by_limit = limit_milli(container), self._floor_by_limit(container)
        key = capacity.caps, by_limit
        if key not in self._sizes:
            if len(self._sizes) >= SIZES_KEPT:
                self._sizes.clear()
            most = self.ladder.size_of(capacity, *by_limit)
            smaller = [size for size in self._fine_ladder().sizes(capacity) if size < most]
            self._sizes[key] = tuple(size * 1000 for size in (*smaller, most))
        return self._sizes[key]

    def why_not_sized(self, node: Node, container: Container) -> str:
        """Why the set of a container is not sized by demand; "" = it is."""
        if size_mode_of(container, self.settings) != "demand":
            return "its cpuset is sized by its limit"
        if not self.fits_by_room(node, container):
            return "it is to have exclusive CPUs, or the reserved ones"
        if (container.preferences.smt or self.settings.smt) in ("hide", "spread"):
            return "it gets one thread of each core"
        if l3_mode_of(container, self.settings) == "spread":
            return "it is to be spread over many L3s"
        if container.claims:
            return "it has claims, and with them their CPUs"
        if container.pod_share is not None and container.pod_share.count > 1:
            return "it shares its pod's CPUs with others"
        return ""

    def _fine_ladder(self) -> Ladder:
        if self._fine is None:
            self._fine = Ladder(self.topology, "fine")
        return self._fine

    def fits_by_room(self, node: Node, container: Container) -> bool:
        """Whether it is placed by the ladder: it is to own no CPUs, and not to share the reserved ones."""
        ask = ask_of(container, self.settings, bool(node.reserved))
        return not ask.full and not ask.is_reserved

    def tidy(self, node: Node, now_s: float) -> Mapping[str, Placement]:
        """The placements of containers that own CPUs together, where that should be other CPUs now. No other container is
        moved because another left."""
        # 1. By pod the containers that own CPUs together, and the ones that have come to share CPUs they owned alone.
        together = {
            name: list(group.members.items()) for name, group in node.groups.items() if is_pod_group(name)
        }
        for key, owner in node.owners_of_pods.items():
            if owner.container is not None and owner.placement:
                together.setdefault(pod_group(owner.container.pod), []).append((key, owner))
        # 2. As many CPUs as they request together; of those they have as many as can be.
        changed: dict[str, Placement] = {}
        for name, members in together.items():
            changed.update(self._together(node, name, members))
        return changed

    def _together(
        self, node: Node, name: str, members: Sequence[tuple[str, Resident]]
    ) -> Mapping[str, Placement]:
        """The placements of a pod's containers that own CPUs together, where they differ from the present ones."""
        first = next(
            (m for _, m in members if m.container is not None and m.container.pod_share is not None), None
        )
        if first is None or first.container is None or first.placement is None:
            return {}
        now = first.placement
        ask = ask_of(first.container, self.settings, bool(node.reserved))
        if ask.full and ask.full not in (len(now.exclusive), len(now.exclusive - now.hidden)):
            constraint, alone = Constraint(first.inside), altered(now, group="")
            request = PlacementRequest(first.container, constraint, keep=alone)
            with contextlib.suppress(PlacementRefused, BudgetSpent):  # what they have they keep
                found = self._owning.place(node, request, ask)
                now = now if isinstance(found, str) else found.placement
        changed = {}
        for key, member in members:
            was = member.placement
            if was is None or (was.group == name and was.exclusive == now.exclusive):
                continue
            running = now.exclusive - now.hidden
            cpus = running if member.inside is None else running & member.inside
            mems = was.mems and was.mems | (self.topology.nodes_of(running) & node.mems)
            changed[key] = altered(
                was, cpus=cpus, mems=mems, exclusive=now.exclusive, hidden=now.hidden, home=now.home,
                level=now.level, grown=now.grown, group=name,
            )  # fmt: skip
        return changed

    def _place_reserved(self, node: Node, container: Container, constraint: Constraint) -> object:
        """A decision on the reserved CPUs; else a phrase why not."""
        if not node.reserved:
            return "there are no reserved CPUs"
        place = reserved_place(node, container, constraint)
        if isinstance(place, str):
            return f"{place}, placed like others"
        subject = "it" if container.preferences.reserved else f"namespace {container.pod.namespace}"
        why = f"{subject} shares the {len(place.cpus)} reserved CPUs"
        return with_memory(node, container, self.settings, constraint, place, why)

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
        self, capacity: Capacity, container: Container, choice: RungChoice, hinted: tuple[frozenset[int], ...]
    ) -> None:
        """:raises PlacementRefused: the best place there is is not what the container demands."""
        path, wanted = container.path, wanted_milli(container) / 1000
        level, room = choice.site.level, "" if choice.has_room else " with room"
        demand = demand_of(container, self.settings)
        if demand == "l3" and (level not in ("cluster", "ccx") or choice.is_full):
            free = self._largest_free(capacity, "l3")
            raise PlacementRefused(
                f"{path} wants {wanted:g} CPUs in one L3{room}; the largest free L3 has {free:g}"
            )
        if demand and (level not in ONE_NODE or choice.is_full):
            free = self._largest_free(capacity, "numa")
            largest = f"the largest free NUMA node has {free:g}"
            raise PlacementRefused(f"{path} wants {wanted:g} CPUs in one NUMA node{room}; {largest}")
        if container.preferences.strict_hints and any(h.isdisjoint(choice.site.nodes) for h in hinted):
            raise PlacementRefused(
                f"{path} demands CPUs near its devices; NUMA node {format_cpus(frozenset().union(*hinted))} has no room"
            )

    def _largest_free(self, capacity: Capacity, level: str) -> float:
        """CPUs of one domain of a level that no container requests, where they are most."""
        domains = self.topology.at(level) or self.topology.at("numa")
        rooms = [capacity.room_nano(self.pods.leaves_of(domain.cpus)) for domain in domains]
        return max(0, *rooms) // NANO_PER_MILLI / 1000


def _thin_text(container: Container, cpus: frozenset[int], whole: frozenset[int]) -> str:
    """The rest of a sentence about a shared set with one thread a core."""
    limit = container.resources.milli_limit
    fewer = (
        ", fewer than its limit"
        if limit is not None and len(cpus) * 1000 < min(limit, len(whole) * 1000)
        else ""
    )
    return f"; one thread of each core: {len(cpus)} of {len(whole)} CPUs{fewer}"


def _mate(node: Node, container: Container, constraint: Constraint) -> Optional[Resident]:
    """One of its pod that a container shares the pod's CPUs with, and that wants the same; None = there is none."""
    if container.milli_size is not None:
        return None
    wanted, is_sharing = wanted_milli(container), container.pod_share is not None
    for mate in node.of_pod(container.pod.uid).values():
        other = mate.container
        if other is None or not mate.shares or not (is_sharing or other.pod_share is not None):
            continue
        is_alike = other.preferences == container.preferences and mate.inside == constraint.cpus
        if is_alike and other.name != container.name and mate.milli_wanted == wanted:
            return mate
    return None


class TopologyAware(Hygon):
    """Exclusive CPUs by class and size, shared ones by the ladder; the settings' ``ownership`` is the default."""

    name = "topology-aware"
    owns_exclusively = True
    holds_claims = False
