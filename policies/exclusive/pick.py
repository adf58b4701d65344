"""The exclusive CPUs of a container: whole cores, whole L3s, best fit.

Of all ways to take the CPUs of a claim the first by this tuple wins: (NUMA nodes; cores of which it has a part;
L3s; distance between the nodes; of these the cores that another container has the rest of; a wholly free L3 used in
part; free CPUs left in the L3s used; cost; free CPUs left in the nodes used; clusters of cores
(``gather``); lowest ids). Kept CPUs count as used already. Cores in part come before L3s because
kubelet never splits a core that it need not; where one L3 is demanded they come after. An odd thread parts a whole free
core elsewhere rather than joining another container on its core, but neither another L3 nor a farther node is used for
that.

Which cores of an L3 these are is settled last (``gather``): they come from as few clusters as can be, cores that share an L2
or the tags of the L3. How many cores an L3 gives is settled before, and where an L3 has no clusters nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Callable, Optional

from policies.exclusive.cell_search import CHOICES, CellChoice, Cost, choices, node_sets
from policies.exclusive.cells import (
    MENDS,
    WHOLE,
    Cell,
    Ground,
    Seen,
    grounds_of,
    look,
    more_split_cores,
    take_threads,
)
from policies.frozen import dataclass
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology

#: Of choices that are equally good so many are asked for their cost.
COSTED = 64
#: Machines whose cells are kept: before and after a change of its CPUs.
MACHINES_KEPT = 2
Threads = tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """CPUs wanted for one container alone.

    ``count``: whole CPUs. ``l3``: prefer (as few L3s as can be), require (one L3 or nothing), exclusive (the
    L3s it gets are no other's), spread (one thread a core over many L3s). ``numa_required``: one NUMA node
    or nothing. ``smt``: "" (whole cores first), full-core (nothing but whole cores; an odd thread leaves its
    core's other thread idle), hide (whole cores, of which one thread each runs: ``count`` is then the number
    of CPUs that are owned), spread (one thread a core, the others stay free). ``keep``: CPUs it has and should
    keep. ``cost``: what makes one place better than another that is equally large; a tuple, lowest first.
    ``best_fit`` False: it shares the L3 besides, so that the cheapest place comes before the fullest.
    """

    count: int
    l3: str = "prefer"
    numa_required: bool = False
    smt: str = ""
    keep: frozenset[int] = NO_CPUS
    cost: Optional[Callable[[frozenset[int]], tuple[float, ...]]] = None
    best_fit: bool = True


@dataclass(frozen=True)
class Pick:
    """CPUs to own; ``hidden``: those of them that nothing runs on. ``level`` as in PLACEMENT_LEVELS; ``why`` in words."""

    cpus: frozenset[int]
    hidden: frozenset[int]
    level: str
    why: str


def pick(topology: Topology, free: frozenset[int], claim: Claim) -> Optional[Pick]:
    """The CPUs of ``free`` for a claim; None where it cannot be met. Same input, same answer.

    ``free`` are the CPUs that may be owned now (``claim.keep`` included).
    """
    return _picker(topology).pick(free, claim)


def most_in_one(topology: Topology, free: frozenset[int], claim: Claim, level: str) -> int:
    """The most CPUs that a claim finds in one domain: an "l3", a "numa" node, or the "machine"."""
    return _picker(topology).most_in_one(free, claim, level)


class Picker:
    """The cells of one machine. Built once per topology; ``pick`` is called for every container."""

    def __init__(self, topology: Topology) -> None:
        self.grounds = grounds_of(topology)
        self._ground_of = {cpu: g for g in self.grounds for core in g.cores for cpu in core.threads}
        self._core_of = {cpu: core.index for g in self.grounds for core in g.cores for cpu in core.threads}
        self._seen: Seen = {}
        self._is_mixed = len({g.has_l3 for g in self.grounds}) > 1
        nodes = sorted({g.node for g in self.grounds})
        # Not the topology itself: it is what the pickers are remembered by, as long as it lives.
        self._distances = {(a, b): topology.distance(a, b) for a in nodes for b in nodes}

    def pick(self, free: frozenset[int], claim: Claim) -> Optional[Pick]:
        """As ``pick`` of this module."""
        claim = replace(claim, keep=claim.keep.intersection(self._ground_of))
        if claim.count < 1:
            return None
        if claim.count < len(claim.keep):
            # It gives back: the CPUs that stay are picked from its own.
            free, claim = claim.keep, replace(claim, keep=NO_CPUS)
        owned = self._owned(free, claim)
        if owned is None and claim.smt == "spread":
            owned = self._owned(free, replace(claim, smt=""))
        if owned is None:
            return None
        cpus, hidden = self._hide(owned, claim)
        grounds = self._grounds_under(cpus)
        if claim.numa_required and len({g.node for g in grounds}) > 1:
            return None
        if claim.l3 == "require" and len({g.l3 for g in grounds}) > 1:
            return None
        return Pick(cpus, hidden, self._level(cpus, grounds), self._why(cpus, hidden, grounds))

    def most_in_one(self, free: frozenset[int], claim: Claim, level: str) -> int:
        """As ``most_in_one`` of this module."""
        cpus: dict[Any, int] = {}
        for cell in look(self.grounds, free, claim.keep, claim.smt, self._seen, claim.l3 == "exclusive"):
            domain = {"l3": cell.ground.l3, "numa": cell.ground.node}.get(level)
            cpus[domain] = cpus.get(domain, 0) + cell.free + len(cell.ground.cpus & claim.keep)
        return max(cpus.values(), default=0)

    # ------------------------------------------------------------------ which CPUs

    def _owned(self, free: frozenset[int], claim: Claim) -> Optional[list[int]]:
        """The exclusive CPUs, but for CPUs that only complete an L3; the kept ones come first."""
        if claim.l3 == "spread":
            wide = self._spread_out(free, claim)
            if wide is not None:
                return wide
        cells = look(self.grounds, free, claim.keep, claim.smt, self._seen, claim.l3 == "exclusive")
        if claim.l3 == "exclusive" and not {c.ground.index for c in cells if c.held} >= {
            self._ground_of[cpu].index for cpu in claim.keep
        }:
            return None
        want, kept = claim.count - len(claim.keep), sorted(claim.keep)
        if want <= 0:
            return kept
        # 1. From the fewest L3s of the fewest nodes.
        key, best = self._best(cells, want, claim)
        if not best:
            return None
        if with_l3 := self._with_l3(cells):
            its_key, its_best = self._best(with_l3, want, claim)
            if its_best and its_key[0] <= key[0]:
                cells, key, best = with_l3, its_key, its_best
        # 2. If cores are split without need: the same from whole cores, in more L3s of as few nodes.
        if not claim.smt and claim.l3 == "prefer" and key[1] > more_split_cores(cells, want)[0]:
            key, best = min(
                (key, best), self._best(_without_splits(cells, want, best[0].nodes), want, claim), key=_key
            )
        # 3. Of equally good choices the cheapest.
        whole_cores = claim.smt in ("full-core", "hide")
        return kept + _cheapest(best, cells, want, claim, whole_cores)

    def _best(self, cells: list[Cell], want: int, claim: Claim) -> tuple[tuple[int, ...], list[CellChoice]]:
        """The best choices and their key; none if there are not so many CPUs."""
        best: list[CellChoice] = []
        best_key: tuple[int, ...] = ()
        for number, choice in enumerate(choices(cells, want, self._distance)):
            found = choice.cells()
            taken = [c for c in found if c.free]
            slack = sum(c.free for c in taken) - want
            (split, joined), l3s = more_split_cores(found, want), len({c.ground.l3 for c in found})
            key = (
                len(choice.nodes),
                *((l3s, split) if claim.l3 == "require" else (split, l3s)),
                sum(self._distances[a, b] for a in choice.nodes for b in choice.nodes if a != b),
                joined,
                int(claim.best_fit and slack > 0 and all(c.whole for c in taken)),
                slack if claim.best_fit else 0,
            )
            if not best or key < best_key:
                best, best_key = [choice], key
            elif key == best_key:
                best.append(choice)
            if number >= CHOICES:
                break
        return best_key, best

    def _with_l3(self, cells: list[Cell]) -> list[Cell]:
        """The cells without the cores that have no L3, such as the low-power ones of hybrid CPUs; none where all are alike.

        They come first, unless that takes more NUMA nodes.
        """
        return [c for c in cells if c.ground.has_l3 or c.held] if self._is_mixed else []

    def _distance(self, a: int, b: int) -> int:
        return self._distances[a, b]

    def _spread_out(self, free: frozenset[int], claim: Claim) -> Optional[list[int]]:
        """One core after the other, always in the L3 that has given the fewest; all in the fewest NUMA nodes."""
        cells = look(self.grounds, free, claim.keep, claim.smt or "spread", self._seen)
        kept = {core: self._ground_of[cpu].index for cpu, core in self._core_of.items() if cpu in claim.keep}
        width = max((len(core.threads) for g in self.grounds for core in g.cores), default=1)
        want = (-(-claim.count // width) if claim.smt == "hide" else claim.count) - len(kept)
        sets = self._sets_with_cores(cells, want)
        if with_l3 := self._with_l3(cells):
            fewer = self._sets_with_cores(with_l3, want)
            if fewer and len(fewer[0]) <= len(sets[0]):
                cells, sets = with_l3, fewer
        best: Optional[tuple[tuple[float, ...], list[int]]] = None
        for nodes in sets:
            here = [c for c in cells if c.ground.node in nodes]
            given = {c.ground.index: sum(kept[core] == c.ground.index for core in kept) for c in here}
            rest = {c.ground.index: sorted(c.takes, key=lambda take: take[0] != WHOLE)[::-1] for c in here}
            last = {c.ground.index for c in here if not c.ground.has_l3}
            found: list[int] = []
            for _ in range(want):
                index = min(
                    (i for i in rest if rest[i]), key=lambda i: (i in last, given[i], -len(rest[i]), i)
                )
                given[index] += 1
                found.extend(rest[index].pop()[1])
            price = claim.cost(claim.keep.union(found)) if claim.cost else ()
            key = (-sum(map(bool, given.values())), *price, *nodes)
            if best is None or key < best[0]:
                best = key, found
        return None if best is None else sorted(claim.keep) + best[1]

    def _sets_with_cores(self, cells: list[Cell], want: int) -> list[tuple[int, ...]]:
        """The sets of as few NUMA nodes as can be that have so many cores to take a thread of."""
        cores_in: dict[int, int] = {}
        for cell in cells:
            cores_in[cell.ground.node] = cores_in.get(cell.ground.node, 0) + len(cell.takes)
        held = sorted({c.ground.node for c in cells if c.held})
        return list(node_sets(cores_in, want, held, self._distance))

    def _hide(self, owned: list[int], claim: Claim) -> tuple[frozenset[int], frozenset[int]]:
        """All that is owned, and what of it nothing runs on."""
        running = frozenset(owned)
        one_thread = claim.smt == "hide" or (claim.l3 == "spread" and len(owned) > claim.count)
        if one_thread:
            lowest: dict[int, int] = {}
            for cpu in sorted(owned):
                lowest.setdefault(self._core_of[cpu], cpu)
            running = frozenset(lowest.values())
        elif len(owned) > claim.count:
            running = frozenset(owned[: claim.count])
        cpus = frozenset(owned)
        if claim.l3 == "exclusive":
            for ground in self._grounds_under(cpus):
                cpus = cpus.union(*(core.threads for core in ground.cores))
        return cpus, cpus - running

    # ------------------------------------------------------------------ kinds

    def _grounds_under(self, cpus: Iterable[int]) -> list[Ground]:
        return [self.grounds[i] for i in sorted({self._ground_of[cpu].index for cpu in cpus})]

    def _level(self, cpus: frozenset[int], grounds: Sequence[Ground]) -> str:
        nodes = {g.node for g in grounds}
        if len({self._core_of[cpu] for cpu in cpus}) == 1:
            return "core"
        if len(nodes) == 1:
            if not all(g.has_l3 for g in grounds):
                return "numa"
            return "ccx" if len({g.l3 for g in grounds}) == 1 else "nccx"
        if len(nodes) == 2:
            return self._level_of_two(grounds, nodes)
        return "socket" if len({g.socket for g in grounds}) == 1 else "machine"

    def _level_of_two(self, grounds: Sequence[Ground], nodes: set[int]) -> str:
        for node in nodes:
            here = [g for g in self.grounds if g.node == node]
            if len(here) > 1 and sum(g.node == node for g in grounds) == 1 and here[0].has_l3:
                return "numa+ccx"
        return "2numa"

    def _why(self, cpus: frozenset[int], hidden: frozenset[int], grounds: Sequence[Ground]) -> str:
        nodes = sorted({g.node for g in grounds})
        l3s = len({g.l3 for g in grounds})
        where = f"NUMA node {nodes[0]}" if len(nodes) == 1 else f"NUMA nodes {', '.join(map(str, nodes))}"
        if all(g.has_l3 for g in grounds):
            where = f"{'one L3' if l3s == 1 else f'{l3s} L3s'} of {where}"
        idle = f", {len(hidden)} of them idle" if hidden else ""
        return f"{len(cpus)} exclusive {'CPU' if len(cpus) == 1 else 'CPUs'} in {where}{idle}"


@lru_cache(maxsize=MACHINES_KEPT)
def _picker(topology: Topology) -> Picker:
    return Picker(topology)


def _key(found: tuple[tuple[int, ...], list[CellChoice]]) -> tuple[bool, tuple[int, ...]]:
    return not found[1], found[0]


def _without_splits(cells: list[Cell], want: int, nodes: tuple[int, ...]) -> list[Cell]:
    """The cells with their whole cores only; where those are too few, all of these nodes' cells that have some."""
    whole = [cell.whole_cores() for cell in cells]
    if sum(c.free for c in whole) >= want:
        return [c for c in whole if c.free or c.held]
    here = [c for c in cells if c.ground.node in nodes]
    return [replace(c, held=True) if any(c.kinds[MENDS]) or any(c.kinds[WHOLE]) else c for c in here]


def _cheapest(
    best: list[CellChoice], cells: list[Cell], want: int, claim: Claim, whole_cores: bool
) -> list[int]:
    """Of choices that are equally good the one with the lowest cost, in the fullest nodes, in the fewest clusters, with the
    lowest ids.
    """
    free_in: dict[int, int] = {}
    for cell in cells:
        free_in[cell.ground.node] = free_in.get(cell.ground.node, 0) + cell.free
    cost = None if claim.cost is None else _remembering(claim.cost)
    options: list[tuple[tuple[float, ...], int, int, list[int], list[int]]] = []
    for choice in best:
        for found in choice.versions(cost):
            taken = gather(found, take_threads(found, want, whole_cores), claim.keep, cost)
            price = cost(claim.keep.union(taken)) if cost else ()
            room = sum(free_in[node] for node in {c.ground.node for c in found})
            clusters = clusters_under(found, claim.keep.union(taken))
            options.append((price, room, clusters, sorted(c.ground.index for c in found), taken))
        if cost and len(options) >= COSTED:
            break
    return min(options)[4]


def _remembering(cost: Cost) -> Cost:
    known: dict[frozenset[int], tuple[float, ...]] = {}

    def remembered(cpus: frozenset[int]) -> tuple[float, ...]:
        if cpus not in known:
            known[cpus] = cost(cpus)
        return known[cpus]

    return remembered


def gather(
    cells: Iterable[Cell], taken: Sequence[int], keep: frozenset[int], cost: Optional[Cost]
) -> list[int]:
    """Threads as ``take_threads`` has taken them, whole cores exchanged for others of their L3 in fewer clusters.

    A cluster that is to give a part of its cores is one that is not wholly free, then the one that is left with the
    least, then the cheapest, then the first. Clusters in which it keeps CPUs come first.
    """
    found = list(taken)
    for cell in cells:
        if cell.ground.clusters:
            found = _gather_in(cell, found, keep, cost)
    return found


def clusters_under(cells: Iterable[Cell], cpus: Iterable[int]) -> int:
    """How many clusters some CPUs of these cells are in; 0 where there are none."""
    of = frozenset(cpus)
    return sum([not cluster.isdisjoint(of) for cell in cells for cluster in cell.ground.clusters])


def _gather_in(cell: Cell, taken: list[int], keep: frozenset[int], cost: Optional[Cost]) -> list[int]:
    all_taken = frozenset(taken)
    whole = [threads for kind, threads in cell.takes if kind == WHOLE]
    ours = [threads for threads in whole if all_taken.issuperset(threads)]
    # Cores of which a part is taken stay, as do those of CPUs that have lost some threads.
    open_to = [threads for threads in whole if threads in ours or all_taken.isdisjoint(threads)]
    if not 0 < len(ours) < len(open_to) or len({len(threads) for threads in open_to}) > 1:
        return taken
    held = keep | all_taken.difference(*ours)
    chosen = _from_fewest(cell.ground.clusters, open_to, len(ours), held, cost)
    swapped = {old: new for olds, news in zip(sorted(ours), sorted(chosen)) for old, new in zip(olds, news)}
    return [swapped.get(cpu, cpu) for cpu in taken]


def _from_fewest(
    clusters: Iterable[frozenset[int]],
    cores: Sequence[Threads],
    count: int,
    held: frozenset[int],
    cost: Optional[Cost],
) -> list[Threads]:
    """So many of these cores."""
    #: By cluster whether it has CPUs there, whether all of it is free, and the cores.
    rest: list[tuple[bool, bool, list[Threads]]] = []
    for cluster in clusters:
        here = [threads for threads in cores if threads[0] in cluster]
        if here:
            is_held = not cluster.isdisjoint(held)
            rest.append((is_held, sum(map(len, here)) == len(cluster), here))
    chosen: list[Threads] = []

    def part(option: tuple[bool, bool, list[Threads]]) -> tuple[Any, ...]:
        """The better one of clusters that hold the missing CPUs."""
        _, is_whole, here = option
        left = len(here) - (count - len(chosen))
        price = cost(frozenset().union(*here)) if cost is not None else ()
        return (is_whole and left > 0, left, price, here[0])

    def all_of(option: tuple[bool, bool, list[Threads]]) -> tuple[Any, ...]:
        """Where none holds it: the better one to be taken as a whole."""
        here = option[2]
        price = cost(frozenset().union(*here)) if cost is not None else ()
        return (-len(here), price, here[0])

    while len(chosen) < count:
        # 1. Clusters in which it has CPUs first. 2. One that holds all that is missing; else the largest.
        options = [option for option in rest if option[0]] or rest
        enough = [option for option in options if len(option[2]) >= count - len(chosen)]
        best = min(enough, key=part) if enough else min(options, key=all_of)
        rest.remove(best)
        chosen += best[2][: count - len(chosen)]
    return chosen
