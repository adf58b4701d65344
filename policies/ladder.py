"""The ladder: the size of domain that a container gets, and the domain of that size.

    (fine) n <= cap(cluster)   -> one cluster of cores                             cluster
    n <= cap(ccx)              -> one CCX                                          ccx
    (fine) n <= cap(k CCXs)    -> the fewest CCXs of one NUMA node that hold n     nccx
    n <= cap(numa)             -> one NUMA node                                    numa
    n <= cap(numa) + cap(ccx)  -> a node and one CCX of another, nearest node      numa+ccx
    n <= 2 cap(numa)           -> two NUMA nodes, the nearest pair                 2numa
    else                       -> the socket, or the whole machine                 socket, machine

``n`` is the CPU limit; ``cap`` counts the CPUs a shared container may use now. A rung is open if some site
(a domain, or a pair of them) of that level has cap >= n. Of the sites of the lowest open rung the first by
this tuple wins: (no room; what is declared to be apart or required to be near is not kept; outside the pod's domain P;
others use too much of it, for one sized by demand; affinity cost; hints missed; distance inside the set; where classes are
kept apart, quarter of the charged share and company; charged share; number of containers; lowest id). Where none has room
but one of a later rung has, that one is taken; where none has anywhere, the least loaded of the lowest open rung.

Clusters are there where the tree has them as leaves (``Topology(to_clusters=True)``), for containers with a limit: the
floor ``ccx`` of those without one is no cluster.

A level that the machine does not have has no rung; where two rungs give the same CPUs the lower one names
the level. An L3 that is larger than a NUMA node has its rung above two nodes; sockets that lie inside a NUMA
node (interleaved memory) have theirs below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Callable, Optional

from policies.frozen import dataclass
from policies.machine.topology import Domain, Topology
from policies.model import BudgetSpent
from policies.node import NANO_PER_MILLI, Capacity, Node
from policies.reasons import with_figures
from policies.wanted import missed_hints

#: Limits whose own levels are kept.
SIZES_KEPT = 256
#: Sites looked at for one decision. 1,024 CPUs in 128 CCXs make 8,200 pairs at worst (NPS1); ten times that is a bug.
BUDGET = 100_000

#: The lowest levels that a container without a limit can be given; "ccx" is as low as the machine goes.
FLOORS = ("ccx", "numa", "socket", "machine")
#: The lowest level of a container that has a limit: whatever the machine has that holds it.
ANY_LEVEL = "cluster"

CRITERIA = (
    "room",
    "declared",
    "pod",
    "use",
    "affinity",
    "hints",
    "distance",
    "crowding",
    "company",
    "allocated share",
    "number of containers",
    "lowest id",
)


#: What two sites are told apart by: how badly what is declared is kept, outside P, whether others use too much of it,
#: affinity cost, hints missed, distance inside, how crowded it is in steps, how ill its company suits, charged share.
Key = tuple[int, int, int, float, int, int, int, int, int]
#: Places are as crowded as each other, where it is about company, while their shares are in the same quarter.
CROWDING_STEP = NANO_PER_MILLI * 250


#: As many origins are remembered with the distances from them: hundreds of containers may go elsewhere together.
FAR_KEPT = 64


@dataclass(frozen=True)
class RungDomain:
    """One place a rung offers: leaves (indices), their nodes, and the sum of distances between those nodes.

    ``ccxs``: of how many CCXs it is made, on the rung of several. ``near``: all of it is in one socket.
    """

    level: str
    name: str
    leaves: tuple[int, ...]
    home: frozenset[int]
    nodes: frozenset[int]
    spread: int
    ids: tuple[int, ...]
    ccxs: int = 0
    near: bool = True


@dataclass(frozen=True)
class Climb:
    """The wish: CPUs (``milli_wanted``), the request, the lowest level allowed, the pod's leaves, the pull of peers.

    ``origin``: the NUMA nodes a container that is placed anew comes from; ``pod_leaves`` are then its old home's.
    ``hinted``: the NUMA nodes of each thing it uses. ``milli_used``: its known usage, where its set is sized by
    demand: places come first in which as much is neither requested nor used by others. ``company``: how ill places
    suit its class, by their leaves, where classes are kept apart.
    """

    milli_wanted: int
    milli_request: int
    floor: str = "ccx"
    pod_leaves: Optional[frozenset[int]] = None
    affinity: Optional[Callable[[frozenset[int]], float]] = None
    fault: Optional[Callable[[frozenset[int]], int]] = None
    origin: frozenset[int] = frozenset()
    hinted: tuple[frozenset[int], ...] = ()
    milli_used: int = 0
    company: Optional[Callable[[Sequence[tuple[int, ...]]], list[int]]] = None


@dataclass(frozen=True)
class RungChoice:
    """The site taken, its usable CPUs, whether its rung is the lowest open one and had room, and why in words.

    ``is_full``: the site itself has no room for the request, on whatever rung it is.
    """

    site: RungDomain
    cpus: frozenset[int]
    has_room: bool
    why: str
    is_full: bool


class Ladder:
    """The rungs of one machine. Built once per topology; ``climb`` is called for every container."""

    def __init__(self, topology: Topology, kind: str = "manual") -> None:
        self.topology = topology
        self.fine = kind == "fine"
        self.rungs: tuple[tuple[str, tuple[RungDomain, ...]], ...] = tuple(
            (level, sites) for level, sites in _rungs(topology, self.fine) if sites
        )
        self.ccxs_of_node = {
            min(node.nodes): ccxs
            for node in topology.at("numa")
            for ccxs in [tuple(d for d in topology.caches if d.cpus <= node.cpus)]
            if len(ccxs) > 2 and all("l3" in ccx.levels for ccx in ccxs)
        }
        levels = [level for level, _ in self.rungs]
        self._start = {floor: _first_rung(levels, floor) for floor in (ANY_LEVEL, *FLOORS)}
        order = [name for level in levels for name in (("nccx", level) if level == "numa" else (level,))]
        self._order = {level: rank for rank, level in enumerate(order)}
        self._own_rank: dict[tuple[int, str], int] = {}
        #: By leaves of a pod and nodes that a container comes from: how far the site of some leaves is.
        self._far: dict[tuple[frozenset[int], frozenset[int]], dict[tuple[int, ...], int]] = {}

    def climb(self, capacity: Capacity, node: Node, want: Climb) -> RungChoice:
        """Find the site for a container.

        :raises BudgetSpent: more than ``BUDGET`` sites would have to be looked at.
        :raises LookupError: no CPU of the machine may be used at all.
        """
        first_level = ""
        first_sites: list[RungDomain] = []
        need = want.milli_request * NANO_PER_MILLI
        hopeless = need > capacity.most_room_nano()
        # 1. The rungs from the floor up, each with the sites that hold n: the lowest open one, a later one if
        #    only that has room.
        for level, sites in self._open_rungs(capacity, want):
            if not first_sites:
                first_level, first_sites = level, sites
            rooms = capacity.rooms_nano([s.leaves for s in sites])
            with_room = [s for s, room in zip(sites, rooms) if room >= need]
            if with_room:
                note = "" if level == first_level else f"no room in {_plain(first_level)}; "
                return self._pick(capacity, node, want, with_room, len(sites), note)
            if hopeless:
                break
        # 2. No rung is open: n is larger than the machine.
        if not first_sites:
            return self._machine(capacity, want)
        # 3. No room anywhere: the least loaded of the lowest open rung.
        best = min(first_sites, key=lambda s: (capacity.share_nano(s.leaves), s.ids))
        why = (
            f"no room anywhere for {want.milli_request}m: the least loaded {_plain(first_level)}, {best.name}"
        )
        return RungChoice(best, capacity.allowed(best.leaves), False, why, is_full=True)

    def is_wider(self, level: str, milli_wanted: int, floor: str) -> bool:
        """Whether a level is wider than the one that holds as much on the empty machine."""
        key = milli_wanted, floor
        rank = self._own_rank.get(key)
        if rank is None:
            if len(self._own_rank) >= SIZES_KEPT:
                self._own_rank.clear()
            cpus = tuple([leaf.cpus & self.topology.online for leaf in self.topology.leaves])
            none = (0,) * len(cpus)
            empty = Capacity(cpus, tuple([len(leaf) for leaf in cpus]), none, none)
            own, _ = next(self._open_rungs(empty, Climb(milli_wanted, 0, floor)), ("machine", []))
            rank = self._own_rank[key] = self._order[own]
        return self._order[level] > rank

    def sizes(self, capacity: Capacity) -> tuple[int, ...]:
        """How many CPUs its places have, by the largest of each kind; ascending."""
        found = {max(map(capacity.cap, [site.leaves for site in sites])) for _, sites in self.rungs}
        for ccxs in self.ccxs_of_node.values() if self.fine else ():
            caps = sorted((capacity.cap(ccx.leaves) for ccx in ccxs), reverse=True)
            found.update(sum(caps[:count]) for count in range(2, len(caps)))
        return tuple(sorted(found - {0}))

    def size_of(self, capacity: Capacity, milli_wanted: int, floor: str) -> int:
        """How many CPUs the places of the rung have that holds so much, by the largest; all if none does."""
        _, sites = next(self._open_rungs(capacity, Climb(milli_wanted, 0, floor)), ("", []))
        caps = [capacity.cap(site.leaves) for site in sites]
        return max(caps, default=capacity.cap(range(len(capacity.caps))))

    def _open_rungs(self, capacity: Capacity, want: Climb) -> Iterator[tuple[str, list[RungDomain]]]:
        looked = 0
        for level, sites in self.rungs[self._start[want.floor] :]:
            if level == "numa" and self.fine and want.floor in (ANY_LEVEL, "ccx"):
                several = self._several_ccxs(capacity, want)
                if several:
                    yield "nccx", several
            looked += len(sites)
            if looked > BUDGET:
                raise BudgetSpent(f"more than {BUDGET} places to look at")
            caps = capacity.caps_of([s.leaves for s in sites])
            fitting = [s for s, cap in zip(sites, caps) if cap > 0 and cap * 1000 >= want.milli_wanted]
            # Pairs across sockets count only where no pair inside one holds n.
            near = [s for s in fitting if s.near]
            if fitting:
                yield level, near or fitting

    def _several_ccxs(self, capacity: Capacity, want: Climb) -> list[RungDomain]:
        """Per NUMA node its fewest CCXs that hold n: the least loaded ones, those of the pod's domain first."""
        sites: list[RungDomain] = []
        for node_id, ccxs in self.ccxs_of_node.items():
            caps = sorted((capacity.cap(ccx.leaves) for ccx in ccxs), reverse=True)
            count = next((k for k in range(2, len(ccxs)) if sum(caps[:k]) * 1000 >= want.milli_wanted), None)
            if count is None:
                continue
            chosen = _take_ccxs(capacity, ccxs, count, want)
            leaves = tuple(i for ccx in chosen for i in ccx.leaves)
            # Room comes first: where the pod or its peers are and there is none, the least loaded.
            if capacity.room_nano(leaves) < want.milli_request * NANO_PER_MILLI:
                chosen = _take_ccxs(capacity, ccxs, count, replace(want, pod_leaves=None, affinity=None))
                leaves = tuple(i for ccx in chosen for i in ccx.leaves)
            elif want.milli_used and not _is_unused(capacity, leaves, want):
                chosen = _take_ccxs(capacity, ccxs, count, replace(want, affinity=None))
                leaves = tuple(i for ccx in chosen for i in ccx.leaves)
            home = frozenset().union(*[ccx.cpus for ccx in chosen])
            names = ", ".join(ccx.name for ccx in chosen)
            sites.append(
                RungDomain("nccx", names, leaves, home, frozenset([node_id]), 0, leaves, len(chosen))
            )
        fewest = min((s.ccxs for s in sites), default=0)
        return [s for s in sites if s.ccxs == fewest]

    def _machine(self, capacity: Capacity, want: Climb) -> RungChoice:
        cpus = capacity.allowed(range(len(capacity.caps)))
        if not cpus:
            raise LookupError("no CPU may be used")
        site = self.rungs[-1][1][0]
        has_room = capacity.room_nano(site.leaves) >= want.milli_request * NANO_PER_MILLI
        why = f"{_wanted(want.milli_wanted)}: the whole machine has {len(cpus)}, all of them"
        return RungChoice(site, cpus, has_room, why, is_full=not has_room)

    def _pick(
        self, capacity: Capacity, node: Node, want: Climb, sites: list[RungDomain], of: int, note: str
    ) -> RungChoice:
        # The number of containers is costly to know and seldom decides: it is looked up among equals only.
        keys = self._keys(capacity, want, sites)
        best_key = min(keys)
        equals = [s for s, key in zip(sites, keys) if key == best_key]
        best, counts = equals[0], dict[tuple[int, ...], int]()
        if len(equals) > 1:
            on_each = node.containers_on_each(capacity.sets_of([s.leaves for s in equals]))
            ids = [s.ids for s in equals]
            best = equals[min(zip(on_each, ids, range(len(equals))))[2]]
            counts = dict(zip(ids, on_each))
        decided = _decided_by(capacity, best, list(zip(keys, sites)), counts, of)
        cpus = capacity.allowed(best.leaves)
        why = (
            f"{note}{_wanted(want.milli_wanted)}: {_plain(best.level)} ({_count(len(cpus))}), "
            f"{best.name}, {decided}"
        )
        return RungChoice(best, cpus, not note, why, is_full=False)

    def _keys(self, capacity: Capacity, want: Climb, sites: list[RungDomain]) -> list[Key]:
        """Of each site what comes before the number of containers; what is not asked for is not looked at."""
        none, pod, affinity = [0] * len(sites), want.pod_leaves, want.affinity
        outside = none if pod is None else self._outside(want, pod, sites)
        used = [int(not _is_unused(capacity, s.leaves, want)) for s in sites] if want.milli_used > 0 else none
        costs, faults = [0.0] * len(sites), none
        if affinity is not None:
            costs = [affinity(capacity.allowed(s.leaves)) for s in sites]
        if want.fault is not None:
            faults = [want.fault(capacity.allowed(s.leaves)) for s in sites]
        hints = [missed_hints(want.hinted, s.nodes) for s in sites] if want.hinted else none
        spreads = [s.spread for s in sites]
        shares = capacity.shares_nano([s.leaves for s in sites])
        steps, company = none, none
        if want.company is not None:
            steps = [share // CROWDING_STEP for share in shares]
            company = want.company([s.leaves for s in sites])
        return list(zip(faults, outside, used, costs, hints, spreads, steps, company, shares))

    def _outside(self, want: Climb, pod: frozenset[int], sites: list[RungDomain]) -> list[int]:
        """How far each site is from the pod's leaves; 0: it is within them, or around them."""
        known = self._far.get((pod, want.origin))
        if known is None:
            if len(self._far) >= FAR_KEPT:
                self._far.clear()
            known = self._far[pod, want.origin] = {}
        found = []
        for site in sites:
            far = known.get(site.leaves)
            if far is None:
                far = known[site.leaves] = self._distance(want.origin, pod, site)
            found.append(far)
        return found

    def _distance(self, origin: frozenset[int], pod: frozenset[int], site: RungDomain) -> int:
        leaves = frozenset(site.leaves)
        if leaves <= pod or pod <= leaves:
            return 0
        # Placed anew: of the other domains those near its memory come first.
        return max(min(self.topology.distance(o, n) for o in origin) for n in site.nodes) if origin else 1


def _decided_by(
    capacity: Capacity,
    best: RungDomain,
    keyed: list[tuple[Key, RungDomain]],
    counts: dict[tuple[int, ...], int],
    of: int,
) -> str:
    """What told the winner from its nearest rival, and by how much; ``of``: how many hold the container at all."""
    key = next(key for key, site in keyed if site is best)
    others = [(key, site.ids, site) for key, site in keyed if site is not best]
    if not others:
        return "the only one that holds it" if of == 1 else f"the only one with room ({of} hold it)"
    those = f"{of} that hold it" if len(keyed) == of else f"{len(keyed)} with room ({of} hold it)"
    rival_key, _, rival = min(others, key=lambda other: other[:2])
    for place, (name, ours, theirs) in enumerate(zip(CRITERIA[1:10], key, rival_key)):
        if ours != theirs:
            alike = sum([other[:place] == key[:place] for other, _ in keyed])
            those = those if alike == len(keyed) else f"{alike} otherwise alike, of {those}"
            figures = f"{name} {_number(ours)}, next {_number(theirs)}"
            if name == "company":
                return f"of {those} where its class meets the fewest that it disturbs or is disturbed by"
            if name in ("crowding", "allocated share"):
                milli, next_milli = int(key[-1]) // NANO_PER_MILLI, int(rival_key[-1]) // NANO_PER_MILLI
                figures = f"allocated share {milli}m a CPU, next {next_milli}m"
                return with_figures(
                    f"the emptiest of {those}: {_emptier(capacity, best.leaves, rival.leaves)}", figures
                )
            if name == "use":
                return f"of {those} one where others leave it what it uses"
            if name == "declared":
                return f"of {those} where what is declared to be apart or near is kept best"
            if name == "pod":
                return f"of {those} the nearest to its pod or its former place"
            if name == "affinity":
                return with_figures(f"of {those} the nearest to its peers{_nearer(ours, theirs)}", figures)
            # Compiled, whole numbers are floats here.
            here, there = _number(ours), _number(theirs)
            if name == "hints":
                return (
                    f"of {those} the nearest to what it uses: {here} on other NUMA nodes, {there} in the next"
                )
            return f"of {those} the one whose NUMA nodes are nearest to each other: distance {here}, {there} in the next"
    rivals = [count for ids, count in counts.items() if ids != best.ids]
    if rivals and counts[best.ids] < min(rivals):
        return f"of {those} the one with the fewest containers: {counts[best.ids]}, {min(rivals)} in the next"
    alike = sum([other == key for other, _ in keyed])
    return (
        f"the first of {those}, all alike"
        if alike == len(keyed)
        else f"the first of {alike} alike, of {those}"
    )


def _emptier(capacity: Capacity, leaves: tuple[int, ...], others: tuple[int, ...]) -> str:
    """How many CPUs are requested in a place, and in the next. Where that does not tell them apart, what is used or runs
    without a request has."""
    caps = capacity.cap(leaves), capacity.cap(others)
    one, other = [
        cap - capacity.room_nano(place) / (1000 * NANO_PER_MILLI)
        for cap, place in zip(caps, (leaves, others))
    ]
    if one * caps[1] >= other * caps[0]:
        return f"{round(one, 1):g} of {_count(caps[0])} requested there, and more runs in the next"
    ours, theirs = _told_apart(one, other)
    of_other = "" if caps[0] == caps[1] else f" of {caps[1]}"
    return f"{ours} of {_count(caps[0])} requested there, {theirs}{of_other} in the next"


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart, at most three after the point."""
    for digits in (1, 2, 3):
        texts = f"{round(one, digits):g}", f"{round(other, digits):g}"
        if texts[0] != texts[1]:
            break
    return texts


def _nearer(ours: float, theirs: float) -> str:
    """How much less far its traffic goes than from the next place; "" where something is to be far."""
    return (
        f": {(theirs - ours) / theirs:.0%} less distance to them than in the next"
        if 0 <= ours < theirs
        else ""
    )


def _take_ccxs(capacity: Capacity, ccxs: tuple[Domain, ...], count: int, want: Climb) -> tuple[Domain, ...]:
    pod = want.pod_leaves or frozenset()
    affinity = want.affinity

    def key(ccx: Domain) -> tuple[int, bool, float, int, int, int, tuple[int, ...]]:
        fault = want.fault(capacity.allowed(ccx.leaves)) if want.fault is not None else 0
        cost = affinity(capacity.allowed(ccx.leaves)) if affinity is not None else 0.0
        outside = bool(pod) and pod.isdisjoint(ccx.leaves)
        share, step, company = capacity.share_nano(ccx.leaves), 0, 0
        if want.company is not None:
            step, company = share // CROWDING_STEP, want.company([ccx.leaves])[0]
        return (fault, outside, cost, step, company, share, ccx.leaves)

    chosen: list[Domain] = []
    held = 0
    rest = sorted(ccxs, key=key)
    while len(chosen) < count:
        # The first by key that still leaves enough for n, whatever the sizes of the others.
        for ccx in rest:
            cap = capacity.cap(ccx.leaves)
            others = sorted((capacity.cap(o.leaves) for o in rest if o is not ccx), reverse=True)
            if (held + cap + sum(others[: count - len(chosen) - 1])) * 1000 >= want.milli_wanted:
                chosen.append(ccx)
                held += cap
                rest.remove(ccx)
                break
    return tuple(sorted(chosen, key=lambda ccx: ccx.leaves))


def _is_unused(capacity: Capacity, leaves: Iterable[int], want: Climb) -> bool:
    """Whether a container's usage is left there."""
    return capacity.unused_nano(leaves) >= want.milli_used * NANO_PER_MILLI


def _first_rung(levels: list[str], floor: str) -> int:
    """Where the climb starts: the rung of the floor, or of the next larger one if the machine has no such level."""
    if floor == ANY_LEVEL:
        return 0
    if floor == "ccx":
        return int(levels[0] == "cluster")
    if floor in levels:
        return levels.index(floor)
    later = FLOORS[FLOORS.index(floor) :]
    return next(i for i, level in enumerate(levels) if level in later)


def _rungs(topology: Topology, fine: bool) -> list[tuple[str, tuple[RungDomain, ...]]]:
    nodes = topology.at("numa")
    ccxs = topology.at("l3")
    # An L3 inside a NUMA node is the first rung; one that holds several nodes comes after two nodes.
    inner = bool(ccxs) and all(len(c.nodes) == 1 for c in ccxs)
    ccx_rung = ("ccx", tuple(_site(topology, "ccx", "l3", [c]) for c in ccxs))
    numa_rung = ("numa", tuple(_site(topology, "numa", "numa", [n]) for n in nodes))
    pairs = [(a, b) for a in nodes for b in nodes if min(a.nodes) < min(b.nodes)]
    two_rung = ("2numa", tuple(_site(topology, "2numa", "numa", [a, b]) for a, b in pairs))
    socket_rung = ("socket", tuple(_site(topology, "socket", "socket", [s]) for s in topology.at("socket")))
    machine_rung = ("machine", (_site(topology, "machine", "machine", [topology.root]),))
    clusters = topology.at("cluster") if fine else ()
    cluster_rung = ("cluster", tuple(_site(topology, "cluster", "cluster", [c]) for c in clusters))
    if not inner:
        return [cluster_rung, numa_rung, two_rung, ccx_rung, socket_rung, machine_rung]
    mixed = [(n, c) for n in nodes for c in ccxs if not c.nodes & n.nodes]
    mixed_rung = ("numa+ccx", tuple(_site(topology, "numa+ccx", "numa", [n], c) for n, c in mixed))
    if any(len({topology.leaves[i].socket for i in n.leaves}) > 1 for n in nodes):
        return [cluster_rung, ccx_rung, socket_rung, numa_rung, mixed_rung, two_rung, machine_rung]
    return [cluster_rung, ccx_rung, numa_rung, mixed_rung, two_rung, socket_rung, machine_rung]


def _site(
    topology: Topology, level: str, kind: str, boxes: list[Domain], ccx: Optional[Domain] = None
) -> RungDomain:
    parts = boxes + ([ccx] if ccx else [])
    leaves = tuple(sorted({i for p in parts for i in p.leaves}))
    nodes = frozenset().union(*[p.nodes for p in parts])
    names = [b.name_at(kind) for b in boxes] + ([ccx.name_at("l3")] if ccx else [])
    ids = tuple(b.ids[b.levels.index(kind)] for b in boxes) + (
        (ccx.ids[ccx.levels.index("l3")],) if ccx else ()
    )
    home = frozenset().union(*[p.cpus for p in parts])
    near = len({p.socket for p in parts}) == 1
    spread = topology.spread(nodes) if level in ("numa+ccx", "2numa") else 0
    return RungDomain(level, " + ".join(names), leaves, home, nodes, spread, ids, near=near)


_WORDS = {
    "cluster": "one cluster of cores",
    "ccx": "one CCX",
    "nccx": "CCXs of one NUMA node",
    "numa": "one NUMA node",
    "numa+ccx": "a NUMA node and a CCX of the nearest",
    "2numa": "two NUMA nodes",
    "socket": "one socket",
    "machine": "the machine",
}


def _plain(level: str) -> str:
    return _WORDS[level]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _count(cpus: int) -> str:
    return "1 CPU" if cpus == 1 else f"{cpus} CPUs"


def _wanted(milli: int) -> str:
    if not milli:
        return "no CPUs asked for"
    return f"{milli / 1000:g} CPUs wanted" if milli != 1000 else "1 CPU wanted"
