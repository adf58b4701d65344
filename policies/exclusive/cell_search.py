"""The ways to take CPUs of cells: from as few NUMA nodes, and there from as few cells, as can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from math import comb
from typing import Callable, Optional

from policies.exclusive.cells import Cell
from policies.frozen import dataclass

#: Sets of NUMA nodes that are all looked at; of more, one from every node outwards. 8 nodes have at most 70 of one size.
NODE_SETS = 500
#: Ways to choose the cells that are looked at, the largest cells first: of one set of nodes, and of all.
CHOICES_OF_NODES = 60
CHOICES = 240

#: Distance between two NUMA nodes.
Distance = Callable[[int, int], int]
#: What makes CPUs a better place than others; lowest first.
Cost = Callable[[frozenset[int]], tuple[float, ...]]


@dataclass(frozen=True)
class CellChoice:
    """Cells to take threads of: of each group of like cells a number, beside the held ones."""

    nodes: tuple[int, ...]
    held: tuple[Cell, ...]
    groups: tuple[tuple[tuple[Cell, ...], int], ...]

    def versions(self, cost: Optional[Cost]) -> Iterator[list[Cell]]:
        """The cells; where one of several like ones is needed, and there is a cost to tell them apart, each of them."""
        if cost is not None and len(self.groups) == 1 and self.groups[0][1] == 1:
            for cell in self.groups[0][0]:
                yield CellChoice(self.nodes, self.held, (((cell,), 1),)).cells()
        else:
            yield self.cells(cost)

    def cells(self, cost: Optional[Cost] = None) -> list[Cell]:
        """The cells: of like ones the cheapest, else the first. Wholly free ones before those to be left in part, and
        last those that are no L3."""
        found = list(self.held)
        for cells, count in self.groups:
            if cost is not None and len(cells) > count:
                costs = {cell.ground.index: cost(free_threads(cell)) for cell in cells}
                cells = tuple(sorted(cells, key=lambda c: (costs[c.ground.index], c.ground.index)))
            found.extend(cells[:count])
        return sorted(
            found, key=lambda c: (not c.held, not c.ground.has_l3, not c.whole, c.free, c.ground.index)
        )


def free_threads(cell: Cell) -> frozenset[int]:
    """All threads that may be taken of a cell."""
    return frozenset(cpu for _, threads in cell.takes for cpu in threads)


def choices(cells: list[Cell], want: int, distance: Distance) -> Iterator[CellChoice]:
    """Ways to take ``want`` threads from as few NUMA nodes, and there from as few cells, as can be."""
    by_node: dict[int, list[Cell]] = {}
    for cell in cells:
        by_node.setdefault(cell.ground.node, []).append(cell)
    # 1. The fewest nodes, those it is on already for a start.
    held_nodes = sorted({c.ground.node for c in cells if c.held})
    free_in = {node: sum(c.free for c in there) for node, there in by_node.items()}
    # 2. The sets of so many nodes that need the fewest cells.
    sets: list[tuple[int, tuple[int, ...]]] = []
    for nodes in node_sets(free_in, want, held_nodes, distance):
        needed = _fewest([c for node in nodes for c in by_node[node]], want)
        if needed is not None:
            sets.append((needed, nodes))
    if not sets:
        return
    fewest = min(count for count, _ in sets)
    # 3. There, every choice of so many cells.
    for count, nodes in sets:
        if count == fewest:
            yield from _cell_choices([c for node in nodes for c in by_node[node]], nodes, count, want)


def node_sets(
    free_in: dict[int, int], want: int, held: list[int], distance: Distance
) -> Iterator[tuple[int, ...]]:
    """The sets of as few NUMA nodes as can be, the held ones among them, that have ``want`` free."""
    others = [node for node in sorted(free_in) if node not in held and free_in[node]]
    for extra in _extra_nodes(others, free_in, want - sum(free_in[node] for node in held), distance):
        yield tuple(sorted((*held, *extra)))


def _extra_nodes(
    others: list[int], free_in: dict[int, int], missing: int, distance: Distance
) -> Iterator[tuple[int, ...]]:
    if missing <= 0:
        yield ()
        return
    size = total = 0
    largest = sorted(others, key=lambda node: (-free_in[node], node))
    for node in largest:
        size, total = size + 1, total + free_in[node]
        if total >= missing:
            break
    else:
        return
    if comb(len(others), size) <= NODE_SETS:
        candidates: Iterable[tuple[int, ...]] = combinations(others, size)
    else:
        near = [
            sorted(others, key=lambda node: (distance(seed, node), -free_in[node], node))[:size]
            for seed in others
        ]
        candidates = sorted({tuple(sorted(found)) for found in [*near, largest[:size]]})
    for found in candidates:
        if sum(free_in[node] for node in found) >= missing:
            yield found


def _fewest(cells: list[Cell], want: int) -> Optional[int]:
    """How many cells beside the held ones are needed; None if all are not enough."""
    want -= sum(c.free for c in cells if c.held)
    for count, free in enumerate(sorted((c.free for c in cells if not c.held), reverse=True)):
        if want <= 0:
            return count
        want -= free
    return None if want > 0 else sum(not c.held for c in cells)


def _cell_choices(cells: list[Cell], nodes: tuple[int, ...], count: int, want: int) -> Iterator[CellChoice]:
    held = tuple(c for c in cells if c.held)
    want -= sum(c.free for c in held)
    # Cells of one shape and node are one group, so that an empty machine has one choice and not thousands.
    like: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        if not cell.held and cell.free:
            like.setdefault((cell.ground.node, cell.shape), []).append(cell)
    groups = sorted(like.values(), key=lambda group: (-group[0].free, group[0].ground.index))
    for counts in islice(_counts(groups, 0, count, want), CHOICES_OF_NODES):
        yield CellChoice(nodes, held, tuple((tuple(g), n) for g, n in zip(groups, counts) if n))


def _counts(groups: list[list[Cell]], at: int, count: int, want: int) -> Iterator[tuple[int, ...]]:
    """How many cells of each group, ``count`` in all, so that they hold ``want``; the largest first."""
    if count == 0:
        if want <= 0:
            yield ()
        return
    if not _can_hold(groups, at, count, want):
        return
    for number in range(min(count, len(groups[at])), -1, -1):
        for rest in _counts(groups, at + 1, count - number, want - number * groups[at][0].free):
            yield (number, *rest)


def _can_hold(groups: list[list[Cell]], at: int, count: int, want: int) -> bool:
    for group in groups[at:]:
        number = min(count, len(group))
        count, want = count - number, want - number * group[0].free
        if not count:
            break
    return not count and want <= 0
