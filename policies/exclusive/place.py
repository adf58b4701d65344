"""Containers with CPUs of their own: which CPUs, in which domain, with what beside them.

Whole CPUs are chosen by policies/exclusive/pick.py: in one L3 if they fit there, else in one NUMA node, and so on, by
best fit, so that whole CCXs stay whole. Among places of one size, in this order: inside the pod's domain P, near
peers (affinity), near devices (hints), where the shared containers lose the least. A mixed container shares, for
the fraction of its request, the other CPUs of the same domain: it goes where these have room for it, and of such
places to the one that fits best where owning is the rule (``ownership: exclusive``), else to the least loaded one.

Which containers own CPUs (``ask_of``) is the table of the topology-aware policies of Intel's cri-resource-manager and
nri-plugins:

    reserved namespace, or asked for          the reserved CPUs
    Burstable, BestEffort, Guaranteed < 1     shared
    Guaranteed = 1                            1 of its own, isolated preferred; shared if annotated
    Guaranteed 1 .. 2, fractional             1 of its own and the fraction shared; shared if preferred or annotated
    Guaranteed >= 2, whole                    all its own; isolated, or shared, if annotated
    Guaranteed >= 2, fractional               shared; whole part its own if annotated

Where CPUs are shared by default (the preset ``hygon``) only containers that ask for it own any; a container of
any class that asks owns the whole part of its request.

Of a pod with resources of its own the containers without a request share what the others leave of the pod's: where
that is whole CPUs and a container with that request would own them, they own them together.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Callable, Optional, Union

from policies.exclusive.pick import Claim, Pick, most_in_one, pick
from policies.exclusive.sparing import emptied_by, needs_of, shared_all_the_same, take_sparing
from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Domain, Topology
from policies.memory import with_memory
from policies.model import (
    Affinity,
    Constraint,
    Container,
    Decision,
    NoAffinity,
    Placement,
    PlacementRefused,
    PlacementRequest,
    Qos,
)
from policies.node import NANO_PER_MILLI, Node
from policies.pod_domain import PodDomains
from policies.settings import PlacementSettings
from policies.wanted import demand_of, hinted_nodes, l3_mode_of, missed_hints

#: The levels a pick can have, small to large.
RANKS = {
    name: rank
    for rank, name in enumerate(
        ("core", "cluster", "ccx", "nccx", "numa", "numa+ccx", "2numa", "socket", "machine")
    )
}
#: How CPUs are counted for a claim that does not take every free one, by its ``smt``.
COUNTED = {"full-core": " in whole cores", "hide": " in whole cores", "spread": ", one thread a core"}
#: As much of a claim's cost comes before what others lose of the CPUs they want.
BEFORE_LOSS = 7


@dataclass(frozen=True)
class CpuDemand:
    """The claim of a container: ``full`` CPUs of its own, ``milli_shared`` of shared ones; or reserved CPUs.

    ``isolated``: avoid, prefer or require isolated CPUs for those of its own.
    """

    full: int = 0
    milli_shared: int = 0
    is_reserved: bool = False
    isolated: str = "avoid"

    @property
    def is_mixed(self) -> bool:
        """Whether it has CPUs of its own and a part of the shared ones."""
        return bool(self.full and self.milli_shared)


def ask_of(container: Container, settings: PlacementSettings, has_reserved: bool = True) -> CpuDemand:
    """The row of the table for a container. Without reserved CPUs reserved namespaces are like others."""
    preferences, request, pods = container.preferences, container.resources.milli_request, container.pod_share
    shared = CpuDemand(milli_shared=request)
    # 1. Reserved, by annotation or by namespace.
    in_namespace = any(fnmatchcase(container.pod.namespace, name) for name in settings.reserved_namespaces)
    if preferences.reserved or (has_reserved and in_namespace and preferences.reserved is None):
        return CpuDemand(milli_shared=request, is_reserved=True)
    # 2. By its own words. Containers without a request of their own have the pod's together, if that is known for sure.
    full, fraction = divmod(request if pods is None else pods.milli_pod, 1000)
    if pods is not None and (container.resources.milli_limit is None or fraction):
        return shared
    asks = "exclusive" in (preferences.ownership, preferences.l3) or preferences.isolated == "require"
    if preferences.ownership == "shared" or not full:
        return shared
    isolated = preferences.isolated or "avoid"
    if asks:
        return CpuDemand(full, fraction, isolated=isolated)
    # 3. By class and size.
    if settings.ownership != "exclusive" or container.qos is not Qos.GUARANTEED:
        return shared
    if full == 1 and not preferences.isolated and settings.prefer_isolated:
        isolated = "prefer"
    if fraction and (full > 1 or settings.prefer_shared):
        return shared
    return CpuDemand(full, fraction, isolated=isolated)


class Owning:
    """Places containers that own CPUs on one machine."""

    def __init__(self, topology: Topology, settings: PlacementSettings, pods: PodDomains) -> None:
        self.topology = topology
        self.settings = settings
        self.pods = pods

    def place(self, node: Node, request: PlacementRequest, ask: CpuDemand) -> Union[Decision, str]:
        """A decision, or in words why there is none and the container has to share.

        :raises PlacementRefused: its annotations demand what cannot be had.
        """
        container, constraint, affinity = request.container, request.constraint, request.affinity
        near, keep = request.near, request.keep
        # 1. What may be owned: never the last shared CPU, nor reserved ones.
        free = node.usable - node.exclusive - node.reserved
        if constraint.cpus is not None:
            free &= constraint.cpus
        isolated = free & self.topology.data.isolated
        ordinary = free - node.isolated
        kept, grown = _kept(self.topology, _alone(node, keep, constraint), ask.full)
        # 2. Isolated CPUs, all or none; then the others.
        found: Optional[Pick] = None
        claim = self._claim(node, container, ask, affinity, kept, constraint)
        if ask.isolated in ("prefer", "require") and len(isolated) >= ask.full:
            found = self._pick(node, container, isolated, claim, affinity, near)
        if found is None and ask.isolated == "require":
            raise PlacementRefused(
                f"{container.path} demands {ask.full} isolated CPUs; {len(isolated)} are free"
                + (f" ({format_cpus(isolated)})" if isolated else "")
            )
        if found is None:
            found = self._pick(node, container, ordinary, claim, affinity, near)
        if found is None:
            return self._not_owned(container, claim, ordinary)
        if kept:
            whole = self._in_fewer(node, container, ordinary | kept, ask, affinity, kept, constraint, found)
            if whole is not None:
                found, kept, grown = whole, NO_CPUS, ()
        if ask.is_mixed and not node.shared - found.cpus:
            return f"{ask.full} exclusive CPUs would leave no shared CPU"
        self._check_hints(container, found)
        # 3. The shared CPUs, and the cpuset that is sent.
        home, level = self._home(node, container, ask, found, constraint)
        shared = (home & node.shared) - found.cpus
        if not node.usable - node.exclusive - found.cpus - node.isolated:
            return f"{ask.full} exclusive CPUs would leave none for others"
        cpus = (found.cpus - found.hidden) | shared
        lift = (container.preferences.cfs_quota or self.settings.cfs_quota) == "lift"
        place = Placement(
            cpus=cpus,
            exclusive=found.cpus,
            level=level,
            home=home,
            grown=grown + ((found.cpus - kept,) if keep is not None and found.cpus - kept else ()),
            hidden=found.hidden,
            lift_quota=lift and not ask.is_mixed and container.resources.milli_limit is not None,
        )
        fits = RANKS[found.level] <= max(RANKS[self._ideal(ask.full)], RANKS["ccx"])
        why = found.why + (f", and {ask.milli_shared}m on shared ones" if ask.is_mixed else "")
        emptied = emptied_by(node, found.cpus - kept)
        why = "; ".join(filter(None, (why, emptied, shared_all_the_same(node, found.cpus - kept))))
        return with_memory(node, container, self.settings, constraint, place, why, fits and not emptied)

    def _claim(
        self,
        node: Node,
        container: Container,
        ask: CpuDemand,
        affinity: Optional[Affinity],
        kept: frozenset[int],
        constraint: Constraint,
    ) -> Claim:
        smt = container.preferences.smt or self.settings.smt
        hinted = hinted_nodes(container, self.settings)
        packed = self.settings.ownership == "exclusive"
        squeeze = _squeeze(node, ask.milli_shared, packed, constraint.cpus)
        fixed = frozenset().union(*[need.cpus for need in needs_of(node) if need.is_fixed])

        def cost(cpus: frozenset[int]) -> tuple[float, ...]:
            pull, fault = 0.0, 0
            if affinity is not None:
                pull, fault = affinity.cost(container, cpus), affinity.fault(container, cpus)
            missed = missed_hints(hinted, self.topology.nodes_of(cpus)) if hinted else 0
            return (len(fixed & cpus), fault, pull, missed, *squeeze(cpus))

        return Claim(
            ask.full,
            l3=l3_mode_of(container, self.settings),
            numa_required=bool(demand_of(container, self.settings)),
            smt=smt,
            keep=kept,
            cost=cost,
            best_fit=not ask.is_mixed,
        )

    def _pick(
        self,
        node: Node,
        container: Container,
        free: frozenset[int],
        claim: Claim,
        affinity: Optional[Affinity],
        near: Optional[frozenset[int]],
    ) -> Optional[Pick]:
        """The pick that leaves enough CPUs to containers that can go nowhere else, if there is one; else any. Of equally
        good ones that which leaves containers that share CPUs as many as they want."""

        def take(pool: frozenset[int]) -> Optional[Pick]:
            return self._nearest(node, container, pool, claim, affinity, near)

        def take_anywhere(pool: frozenset[int]) -> Optional[Pick]:
            return pick(self.topology, pool | claim.keep, claim)

        found = take_sparing(node, free, claim.keep, take, lambda found: found.cpus)
        loss = 0 if found is None else self._loss(node, claim, found)
        if found is None or not loss:
            return found
        pool = node.to_spare(free, claim.count - len(claim.keep))
        other = take_sparing(node, pool, claim.keep, take_anywhere, lambda found: found.cpus)
        if other is None or not self._is_as_good(node, container, claim, other, found):
            return found
        return other if self._loss(node, claim, other) < loss else found

    def _loss(self, node: Node, claim: Claim, found: Pick) -> int:
        """What the containers that share its CPUs lose by a pick of what each of them wants, in milli-CPUs."""
        new = found.cpus - claim.keep
        return node.shortfall_milli(new, len(new))

    def _is_as_good(self, node: Node, container: Container, claim: Claim, one: Pick, other: Pick) -> bool:
        """Whether a pick is no worse for its own container: in as small a domain, on as few cores, as near its peers and
        devices, and in the NUMA nodes of the other one if its pod has others."""
        tree, cost = self.topology, claim.cost
        alone = not node.of_pod(container.pod.uid)
        return (
            RANKS[one.level] <= RANKS[other.level]
            and len({tree.core_of[c] for c in one.cpus}) <= len({tree.core_of[c] for c in other.cpus})
            and (cost is None or cost(one.cpus)[:BEFORE_LOSS] <= cost(other.cpus)[:BEFORE_LOSS])
            and (alone or tree.nodes_of(one.cpus) == tree.nodes_of(other.cpus))
        )

    def _in_fewer(
        self,
        node: Node,
        container: Container,
        free: frozenset[int],
        ask: CpuDemand,
        affinity: Optional[Affinity],
        kept: frozenset[int],
        constraint: Constraint,
        found: Pick,
    ) -> Optional[Pick]:
        """Where a container that has grown out of its L3 fits as a whole: in its NUMA nodes if it can be; None if nowhere
        better than ``found``, where it keeps its CPUs."""
        if found.cpus <= kept or RANKS[found.level] <= RANKS["ccx"]:
            return None
        claim = self._claim(node, container, ask, affinity, NO_CPUS, constraint)
        nodes = self.topology.nodes_of(kept)
        here = NO_CPUS.union(*[leaf.cpus for leaf in self.topology.leaves if leaf.nodes <= nodes])
        for pool in (free & here, free):
            anew = self._pick(node, container, pool, claim, affinity, None)
            if anew is not None and RANKS[anew.level] < RANKS[found.level]:
                return anew
        return None

    def _nearest(
        self,
        node: Node,
        container: Container,
        free: frozenset[int],
        claim: Claim,
        affinity: Optional[Affinity],
        near: Optional[frozenset[int]],
    ) -> Optional[Pick]:
        """The pick inside the pod's domain, or near its old place, if that is as good as anywhere; else anywhere."""
        anywhere = pick(self.topology, free | claim.keep, claim)
        if anywhere is None or claim.keep:
            return anywhere
        leaves = (
            self.pods.leaves_of(near)
            if near
            else self.pods.find(node, node.capacity(), container, affinity, packed=True)
        )
        if leaves is None or len(leaves) == len(self.topology.leaves):
            return anywhere
        inside = frozenset().union(*[self.topology.leaves[i].cpus for i in leaves])
        within = pick(self.topology, free & inside, claim)
        if within is not None and RANKS[within.level] <= RANKS[anywhere.level]:
            graph = affinity or NoAffinity()
            is_kept = graph.fault(container, within.cpus) <= graph.fault(container, anywhere.cpus)
            return within if is_kept else anywhere
        return anywhere

    def _not_owned(self, container: Container, claim: Claim, free: frozenset[int]) -> str:
        """:raises PlacementRefused: a demand cannot be met."""
        demand = "l3" if claim.l3 == "require" else "numa" if claim.numa_required else ""
        free_cpus = most_in_one(self.topology, free, claim, demand or "machine")
        how = COUNTED.get(claim.smt, "") + (
            f"; it keeps CPUs {format_cpus(claim.keep)}" if claim.keep else ""
        )
        if claim.l3 == "exclusive":
            wanted = f"L3s{' of one NUMA node' if demand else ''} to itself"
            found = f"the L3s{' of one' if demand else ''} that are wholly free have"
        elif demand:
            word = "L3" if demand == "l3" else "NUMA node"
            wanted, found = f"one {word}", f"the largest free {word} has"
        else:
            return f"{claim.count} exclusive CPUs are wanted, {free_cpus} are free{how}: it shares"
        raise PlacementRefused(
            f"{container.path} wants {claim.count} CPUs in {wanted}; {found} {free_cpus}{how}"
        )

    def _check_hints(self, container: Container, found: Pick) -> None:
        hinted = hinted_nodes(container, self.settings)
        if container.preferences.strict_hints and missed_hints(hinted, self.topology.nodes_of(found.cpus)):
            raise PlacementRefused(
                f"{container.path} demands CPUs near its devices (NUMA node "
                f"{format_cpus(frozenset().union(*hinted))}); {len(found.cpus)} are not free there"
            )

    def _home(
        self, node: Node, container: Container, ask: CpuDemand, found: Pick, constraint: Constraint
    ) -> tuple[frozenset[int], str]:
        """Where a container lives, and the level of that: its own CPUs, and for a fraction the fewest around them.

        That is a domain around them, the leaves that they are in, or these and the nearest other one: whichever has the
        fewest CPUs of those with room for the fraction.
        """
        if not ask.is_mixed:
            return found.cpus, found.level
        tree = self.topology
        levels = (
            ("cluster", "cluster"),
            ("l3", "ccx"),
            ("numa", "numa"),
            ("socket", "socket"),
            ("machine", "machine"),
        )
        # By size: an L3 may be larger than a NUMA node, and a node larger than a socket.
        domains = sorted(
            ((d.cpus, name) for level, name in levels for d in tree.at(level)), key=lambda d: len(d[0])
        )
        mine = {tree.leaves[index] for index in {node.leaf_of[cpu] for cpu in found.cpus}}
        inside = NO_CPUS.union(*[leaf.cpus for leaf in mine])
        nodes = tree.nodes_of(found.cpus)

        def nearest(leaf: Domain) -> tuple[int, int]:
            # Of equally near ones that which others have taken the most of: whole free ones stay whole.
            far = sum(tree.distance(a, b) for a in nodes for b in leaf.nodes)
            return far, len(leaf.cpus & node.shared)

        others = sorted((leaf for leaf in tree.leaves if leaf not in mine), key=nearest)
        around = [cpus for cpus, _ in domains if found.cpus <= cpus]
        for cpus in sorted((*around, inside, *(inside | leaf.cpus for leaf in others)), key=len):
            home = cpus if constraint.cpus is None else cpus & constraint.cpus
            left = (home & node.shared) - found.cpus
            if left and len(left) * 1000 - node.charge_milli(left) >= ask.milli_shared:
                return home, next(name for domain, name in domains if cpus <= domain)
        whole = tree.root.cpus if constraint.cpus is None else constraint.cpus
        return whole, "machine"

    def _ideal(self, count: int) -> str:
        """The level that a claim would have on the empty machine."""
        for level, name in (("l3", "ccx"), ("numa", "numa"), ("socket", "socket")):
            # An L3 of several NUMA nodes is no smaller than its socket here: as few nodes as can be come first.
            domains = [d for d in self.topology.at(level) if level != "l3" or len(d.nodes) == 1]
            if any(len(d.cpus & self.topology.online) >= count for d in domains):
                return name
        return "machine"


def _alone(node: Node, keep: Optional[Placement], constraint: Constraint) -> Optional[Placement]:
    """A placement with what its caller lets it have, and without what others own too: those of another policy's group."""
    if keep is None:
        return None
    group = node.groups.get(keep.group) if keep.group else None
    own = keep.exclusive if group is None else keep.exclusive.difference(*group.sets())
    return replace(keep, exclusive=own if constraint.cpus is None else own & constraint.cpus, group="")


def _kept(
    topology: Topology, keep: Optional[Placement], count: int
) -> tuple[frozenset[int], tuple[frozenset[int], ...]]:
    """Of the CPUs a container has those it keeps, the newest given back first; and which of them were added later."""
    if keep is None or not keep.exclusive:
        return NO_CPUS, ()
    # 1. The CPUs as they were added: those of its start, then each growth.
    added = frozenset().union(*keep.grown)
    steps = [keep.exclusive - added, *(step & keep.exclusive for step in keep.grown)]
    # 2. Whole steps while they fit; of the one that does not the part that goes best with the rest.
    kept: frozenset[int] = NO_CPUS
    grown: list[frozenset[int]] = []
    for number, step in enumerate(steps):
        room = count - len(kept)
        if len(step) > room:
            part = pick(topology, kept | step, Claim(count, keep=kept)) if room else None
            step = part.cpus - kept if part is not None else NO_CPUS
        kept |= step
        if number and step:
            grown.append(step)
    return kept, tuple(grown)


def _squeeze(
    node: Node, milli_shared: int, packed: bool, bound: Optional[frozenset[int]]
) -> Callable[[frozenset[int]], tuple[int, ...]]:
    """The effect of taking some CPUs on the shared containers of their leaves, in milli-CPUs.

    How far these would be overcommitted; for a mixed container that is to be ``packed`` how many CPUs are left there;
    on how many siblings of others' own CPUs its shared part would run; what the others lose of the CPUs up to their
    limits; and how much they ask for: of two places the one where fewer notice.
    """
    # What a mixed container shares is inside the bound that its caller has set.
    capacity = node.capacity(bound if milli_shared else None)
    # An adopted container may name CPUs that the machine does not have.
    owned = [cpu for cpu in node.exclusive if cpu in node.topology.cpus] if milli_shared else []
    siblings = frozenset().union(*[node.topology.core_mates(cpu) for cpu in owned])

    def squeeze(cpus: frozenset[int]) -> tuple[int, ...]:
        taken: dict[int, int] = {}
        for cpu in cpus:
            leaf = node.leaf_of[cpu]
            taken[leaf] = taken.get(leaf, 0) + 1
        lacking = asked = beside = left = 0
        for index, count in taken.items():
            charge = capacity.order_nano[index] // NANO_PER_MILLI
            asked += charge
            beside += len((capacity.cpus[index] & siblings) - cpus)
            left += capacity.caps[index] - count if milli_shared and packed else 0
            lacking += max(0, charge + milli_shared - (capacity.caps[index] - count) * 1000)
        return lacking, left, beside, node.shortfall_milli(cpus, len(cpus)), asked

    return squeeze
