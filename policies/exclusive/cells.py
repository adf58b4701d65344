"""The machine as one claim finds it: of every L3 the cores, sorted by what owning their threads would mean.

A *cell* is the smallest domain that most containers are placed in (an L3; the NUMA node where L3 is unknown or
larger). Only online CPUs count: a core whose sibling is offline is a whole core of one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from policies.frozen import dataclass
from policies.machine.topology import Topology

#: Effects of taking the free threads of a core: it completes a core that is owned in part; takes a whole
#: free core; adds to a core that is shared with others anyway; or comes to share a core with others.
MENDS, WHOLE, LOOSE, HALF = range(4)


@dataclass(frozen=True)
class Core:
    """A physical core inside one cell: its online threads, lowest first."""

    index: int
    threads: tuple[int, ...]


@dataclass(frozen=True)
class Ground:
    """A cell of the machine, whatever uses it; ``cpus`` are its online ones.

    ``l3`` is the same for the cells of one L3 that spans NUMA nodes. ``clusters``: its parts whose cores share an L2 or
    L3 tags; none where some of its cores are in no cluster.
    """

    index: int
    node: int
    socket: int
    l3: tuple[int, int]
    has_l3: bool
    cores: tuple[Core, ...]
    cpus: frozenset[int]
    clusters: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True)
class Cell:
    """A cell as a claim sees it: ``free`` threads that it may take, and how many cores there are of each kind and size.

    ``kinds[kind][size]``: cores of a kind with ``size`` threads to take. ``whole``: all of it is free.
    ``held``: CPUs of it are kept.
    """

    ground: Ground
    free: int
    kinds: tuple[tuple[int, ...], ...]
    whole: bool
    held: bool
    takes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """Cells of one node that have the same shape are equally good."""
        return self.free, self.whole, self.kinds

    def whole_cores(self) -> Cell:
        """The cell without what would make it share cores with others."""
        takes = tuple(take for take in self.takes if take[0] in (MENDS, WHOLE))
        none = (0,) * len(self.kinds[0])
        kinds = (self.kinds[MENDS], self.kinds[WHOLE], none, none)
        return Cell(self.ground, sum(len(t) for _, t in takes), kinds, self.whole, self.held, takes)


def grounds_of(topology: Topology) -> tuple[Ground, ...]:
    """The cells of a machine that have online CPUs, in the order of the tree."""
    grounds: list[Ground] = []
    count = 0
    for leaf in topology.caches:
        by_core: dict[int, list[int]] = {}
        for cpu in sorted(leaf.cpus & topology.online):
            by_core.setdefault(topology.core_of[cpu], []).append(cpu)
        if not by_core:
            continue
        cores = tuple(Core(count + i, tuple(threads)) for i, threads in enumerate(by_core.values()))
        count += len(cores)
        here = topology.cpus[cores[0].threads[0]]
        l3 = (here.socket, here.l3) if here.l3 is not None else (-1, len(grounds))
        cpus = leaf.cpus & topology.online
        clusters = _clusters(topology, cpus)
        grounds.append(
            Ground(len(grounds), here.numa, here.socket, l3, here.l3 is not None, cores, cpus, clusters)
        )
    return tuple(grounds)


def _clusters(topology: Topology, cpus: frozenset[int]) -> tuple[frozenset[int], ...]:
    found: dict[Optional[int], set[int]] = {}
    for cpu in sorted(cpus):
        found.setdefault(topology.cpus[cpu].cluster, set()).add(cpu)
    return () if None in found or len(found) == 1 else tuple(map(frozenset, found.values()))


#: The last looks at cells: by cell, ``smt`` and the CPUs that were free.
Seen = dict[tuple[int, str, frozenset[int]], Optional[Cell]]
#: As many looks are kept: of the 128 L3s of the largest machines four states each.
SEEN_KEPT = 512


def look(
    grounds: Iterable[Ground],
    free: frozenset[int],
    keep: frozenset[int],
    smt: str,
    seen: Seen,
    only_whole: bool = False,
) -> list[Cell]:
    """The cells in which a claim may take threads or keeps some.

    ``smt``: full-core, hide = only whole cores; spread = one thread of each core. ``only_whole``: of cells
    that are wholly free or kept. ``seen`` saves looking again at cells where nothing has changed.
    """
    cells = []
    for ground in grounds:
        here, kept = free & ground.cpus, keep & ground.cpus
        if kept:
            cell = _look_at(ground, here - kept, kept, smt)
        elif not here:
            continue
        else:
            state = ground.index, smt, here
            if state not in seen:
                if len(seen) >= SEEN_KEPT:
                    seen.clear()
                seen[state] = _look_at(ground, here, kept, smt)
            cell = seen[state]
        if cell is not None and (not only_whole or ground.cpus <= here | kept):
            cells.append(cell)
    return cells


def _look_at(ground: Ground, free: frozenset[int], keep: frozenset[int], smt: str) -> Optional[Cell]:
    if not free and not keep:
        return None
    widest = max(len(core.threads) for core in ground.cores)
    kinds = [[0] * (widest + 1) for _ in range(4)]
    takes = []
    total = 0
    for core in ground.cores:
        threads = tuple([cpu for cpu in core.threads if cpu in free])
        if not threads:
            continue
        kind = _kind(core, threads, keep)
        if smt in ("full-core", "hide") and kind in (LOOSE, HALF):
            continue
        if smt == "spread":
            if not keep.isdisjoint(core.threads):
                continue
            threads = threads[:1]
        kinds[kind][len(threads)] += 1
        total += len(threads)
        takes.append((kind, threads))
    if not total and not keep:
        return None
    whole = len(free) == len(ground.cpus)
    return Cell(ground, total, tuple(map(tuple, kinds)), whole, bool(keep), tuple(takes))


def _kind(core: Core, threads: tuple[int, ...], keep: frozenset[int]) -> int:
    if len(threads) == len(core.threads):
        return WHOLE
    kept = sum([cpu in keep for cpu in core.threads]) if keep else 0
    if not kept:
        return HALF
    return MENDS if kept + len(threads) == len(core.threads) else LOOSE


def more_split_cores(cells: Iterable[Cell], want: int) -> tuple[int, int]:
    """By how many cores owned in part grows what one owns, if it takes ``want`` threads of these cells.

    And how many of these are cores that others have a part of now (HALF): parting a whole core joins nothing.

    The counting twin of ``take_threads``.
    """
    sizes: dict[tuple[int, int], int] = {}
    for cell in cells:
        for kind, counts in enumerate(cell.kinds):
            for size, count in enumerate(counts):
                if count:
                    sizes[kind, size] = sizes.get((kind, size), 0) + count
    split = loose = joined = 0
    whole_left = False
    # 1. Complete the cores that are owned in part, then whole cores, the widest first.
    for kind, size in sorted(sizes, key=lambda key: (key[0], -key[1])):
        if kind not in (MENDS, WHOLE):
            continue
        taken = min(sizes[kind, size], want // size)
        want -= taken * size
        left = sizes[kind, size] - taken
        if kind == MENDS:
            split -= taken
            loose += left * size
        else:
            whole_left = whole_left or left > 0
    # 2. Threads of cores that are shared with others anyway.
    want -= loose + sum(size * count for (kind, size), count in sizes.items() if kind == LOOSE)
    if want <= 0:
        return split, 0
    if whole_left:
        return split + 1, 0
    # 3. Threads of cores that others have a part of, of as few of them as can be.
    for size in sorted((size for kind, size in sizes if kind == HALF), reverse=True):
        taken = min(sizes[HALF, size], -(-want // size))
        split, joined = split + taken, joined + taken
        want -= taken * size
        if want <= 0:
            break
    return split, joined


def take_threads(cells: Iterable[Cell], want: int, whole_cores: bool = False) -> list[int]:
    """Threads of these cells, in the order of the cells; ``whole_cores``: up to the last core's threads more."""
    by_kind: list[list[tuple[int, ...]]] = [[], [], [], []]
    for cell in cells:
        for kind, threads in cell.takes:
            by_kind[kind].append(threads)
    taken: list[int] = []
    left: list[list[tuple[int, ...]]] = [[], []]
    # 1. Complete the cores that are owned in part, then whole cores, the widest first.
    for kind in (MENDS, WHOLE):
        for threads in sorted(by_kind[kind], key=len, reverse=True):
            if len(taken) + len(threads) <= want:
                taken.extend(threads)
            else:
                left[kind].append(threads)
    rest = want - len(taken)
    if rest and whole_cores:
        return taken + list(min((len(threads), threads) for threads in left[MENDS] + left[WHOLE])[1])
    # 2. Threads of cores that are shared with others anyway.
    for threads in left[MENDS] + by_kind[LOOSE]:
        taken.extend(threads[: want - len(taken)])
    rest = want - len(taken)
    if not rest:
        return taken
    # 3. A part of a whole core, so that no other runs there now; else of cores that others have a part of.
    enough = [threads for threads in by_kind[HALF] if len(threads) >= rest]
    if enough or left[WHOLE]:
        parted = left[WHOLE] or enough
        narrowest = min((len(threads), at) for at, threads in enumerate(parted))[1]
        return taken + list(parted[narrowest][:rest])
    for threads in sorted(by_kind[HALF], key=len, reverse=True):
        taken.extend(threads[: want - len(taken)])
    return taken
