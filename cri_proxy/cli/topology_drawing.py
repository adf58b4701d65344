"""The picture of a machine that ``cri-resmgr topology`` prints: boxes in boxes, with their CPUs and memory.

A box is a list of lines of one length. All boxes of a level are laid out alike, side by side as far as that
makes the picture lower; a machine with very many L3s gets one line for each instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Optional

from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import EFFICIENT, Domain, Topology

#: The 32 CCXs of two EPYC 9754 in NPS1 are still seen at once; 64 boxes are a wall.
MAX_BOXES = 40
#: A common terminal window. To stay below it boxes are put closer together, CPU lists broken, labels cut.
SCREEN_LINES = 45
#: Longer labels are cut: to the first length where there is room, to the second where the screen is short.
LABEL_WIDTHS = (24, 16)
#: How many widths of leaves are tried between the widest and the narrowest.
WIDTHS_TRIED = 8

GIB = 1024**3
_ASCII = str.maketrans("┌┐└┘─│…", "++++-|~")
_WORDS = {
    "machine": "machine",
    "socket": "socket",
    "die": "die",
    "numa": "NUMA node",
    "l3": "L3",
    "cluster": "cluster",
}


def draw_topology(
    topology: Topology,
    usable: Optional[frozenset[int]] = None,
    labels: Optional[Mapping[int, Sequence[str]]] = None,
    *,
    width: int = 100,
    ascii: bool = False,
) -> str:
    """Draw a machine in at most ``width`` columns (80 or more).

    Online CPUs outside ``usable`` (None: all are usable) are named in their boxes. ``labels``: short lines,
    such as names of containers, for the box of a leaf, by its index in ``Topology.leaves``.
    """
    leaves = tuple(
        _Leaf(_title(topology, leaf), _notes(topology, leaf, usable), tuple((labels or {}).get(index, ())))
        for index, leaf in enumerate(topology.leaves)
    )
    head = [*_wrap(_headline(topology), width), *_wrap(_legend(topology), width), ""]
    tail = [*_outside(topology, width), *_draw_distances(topology, width)]
    body = _draw_machine(topology, leaves, width, SCREEN_LINES - len(head) - len(tail))
    text = "".join(f"{line.rstrip()}\n" for line in [*head, *body, *tail])
    return text.translate(_ASCII) if ascii else text


@frozen
class _Leaf:
    """What stands in the box of a leaf: title, CPUs and what is special about them, the caller's labels."""

    title: str
    notes: tuple[str, ...]
    labels: tuple[str, ...]

    def widths(self) -> tuple[int, int]:
        """Columns with which nothing is broken, and those without which it cannot be drawn."""
        longest = max(map(len, self.labels), default=0)
        pieces = (len(piece.strip()) for note in self.notes for piece in _pieces(note))
        wide = max(len(self.title), min(longest, LABEL_WIDTHS[0]), *map(len, self.notes))
        return wide, max(len(self.title), min(longest, LABEL_WIDTHS[1]), *pieces)


@frozen
class _Style:
    """``leaf_width``: columns inside a leaf's box. ``columns``: boxes side by side, by depth in the tree."""

    leaf_width: int
    gap: int
    columns: tuple[int, ...]


# ---------------------------------------------------------------------- words


def _headline(topology: Topology) -> str:
    """``HygonGenuine: 2 sockets, 8 NUMA nodes, 16 L3 slices (CCX), 64 cores, 128 CPUs, 512 GiB``."""
    sockets = len({c.socket for c in topology.cpus.values()})
    l3s, offline = len(topology.at("l3")), len(topology.data.offline)
    clusters, memory = len(topology.at("cluster")), sum(topology.data.memory.values())
    counts = [
        _count(sockets, "socket"),
        _count(len(topology.node_ids), "NUMA node"),
        f"{l3s} L3 slices (CCX)" if l3s > sockets else _count(l3s, "L3 cache") if l3s else "L3 not known",
        *([_count(clusters, "cluster")] if clusters else []),
        _count(len({(c.socket, c.core) for c in topology.cpus.values()}), "core"),
        _count(len(topology.online), "CPU") + (f" ({offline} more offline)" if offline else ""),
        *([_memory(memory)] if memory else []),
    ]
    return f"{topology.data.vendor or 'Unknown vendor'}: {', '.join(counts)}"


def _legend(topology: Topology) -> str:
    """Which level holds which: ``socket > NUMA node = die > L3 of 4 cores``."""
    leaves = [leaf for leaf in topology.leaves if leaf.levels != ("rest",)] or topology.leaves
    shapes: dict[str, None] = {}
    for leaf in leaves:
        chain = [_merged(d) for d in topology.domains if leaf.cpus <= d.cpus]
        shapes.setdefault(" > ".join(part for part in chain if part))
    sizes = sorted({_cores(topology, leaf) for leaf in leaves})
    size = _count(sizes[0], "core") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} cores"
    return f"Boxes: {', or '.join(shapes)} of {size}"


def _merged(domain: Domain) -> str:
    names = [_WORDS.get(level, "CPUs without L3") for level in domain.levels]
    return " = ".join(names if len(names) > 1 else [name for name in names if name != "machine"])


def _title(topology: Topology, domain: Domain) -> str:
    """``socket 0 = NUMA 0 = L3 0, 64 GiB``; a die is named only where it is a box of its own."""
    levels = [level for level in domain.levels if level not in ("machine", "die")] or list(domain.levels)
    names = [domain.name_at(level).replace("NUMA node", "NUMA") for level in levels if level != "rest"]
    title = " = ".join(names) or "no L3"
    if "numa" in domain.levels:
        node = domain.ids[domain.levels.index("numa")]
        size = topology.memory_bytes(node)
        title += "" if size is None else f", {_memory(size)}{_pages(topology, node)}"
    if not domain.children and len({_cores(topology, leaf) for leaf in topology.leaves}) > 1:
        title += f", {_count(_cores(topology, domain), 'core')}"
    return title


def _notes(topology: Topology, leaf: Domain, usable: Optional[frozenset[int]]) -> tuple[str, ...]:
    """The CPUs of a leaf, and those of them that are something special."""
    isolated, online = topology.data.isolated, leaf.cpus & topology.online
    special = {
        "offline": leaf.cpus - online,
        "efficient": online & topology.data.core_types.get(EFFICIENT, NO_CPUS),
        "isolated": online & isolated,
        "not usable": online - isolated - usable if usable is not None else NO_CPUS,
    }
    notes = [f"{word} {format_cpus(cpus)}" for word, cpus in special.items() if cpus]
    return (format_cpus(online) or "no CPU online", *notes)


def _outside(topology: Topology, width: int) -> list[str]:
    """What the tree does not show: memory without CPUs, CPUs without a place."""
    lines: list[str] = []
    for node in sorted(set(topology.node_ids) - {c.numa for c in topology.cpus.values()}):
        size = topology.memory_bytes(node)
        text = "" if size is None else f", {_memory(size)}{_pages(topology, node)}"
        # By its size alone it is a guess.
        is_told = node in topology.data.memory_bandwidth and node in topology.high_bandwidth_nodes
        text += ", of high bandwidth (HBM)" if is_told else ""
        lines.append(f"NUMA {node}: no CPUs{text}")
    lost = topology.data.offline - frozenset(topology.cpus)
    return lines + (_wrap(f"offline, place not known: {format_cpus(lost)}", width) if lost else [])


def _cores(topology: Topology, domain: Domain) -> int:
    return len({(topology.cpus[cpu].socket, topology.cpus[cpu].core) for cpu in domain.cpus})


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _pages(topology: Topology, node: int) -> str:
    pools = topology.hugepage_bytes(node)
    return f" ({_memory(pools)} of it huge pages)" if pools else ""


def _memory(size: int) -> str:
    if not size:
        return "no memory"
    return f"{size / GIB:.0f} GiB" if size >= 10 * GIB else f"{size / GIB:.1f} GiB".replace(".0 ", " ")


# ---------------------------------------------------------------------- boxes


def _draw_machine(topology: Topology, leaves: tuple[_Leaf, ...], width: int, height: int) -> list[str]:
    best: list[str] = []
    # 1. From the roomiest leaves to the closest: the first picture that is low enough, else the lowest.
    for leaf_width, gap in product(_leaf_widths(leaves), (1, 0)):
        if len(leaves) > MAX_BOXES or 0 < len(best) <= height:
            break
        # 2. Of all numbers of columns the lowest picture, and of those the narrowest.
        styles = (_Style(leaf_width, gap, columns) for columns in _columns(topology))
        drawn = [_draw(topology, topology.root, leaves, style) for style in styles]
        fitting = [(len(lines), len(lines[0]), lines) for lines in drawn if len(lines[0]) <= width]
        if fitting and (not best or min(fitting)[0] < len(best)):
            best = min(fitting)[-1]
    # 3. Too many boxes, or too narrow for them.
    return best or _list(topology, topology.root, leaves, width)


def _leaf_widths(leaves: Sequence[_Leaf]) -> list[int]:
    most, least = (max(widths) for widths in zip(*(leaf.widths() for leaf in leaves)))
    step = max(1, -(-(most - least) // (WIDTHS_TRIED - 1)))
    return sorted({*range(most, least, -step), least}, reverse=True)


def _columns(topology: Topology) -> Iterator[tuple[int, ...]]:
    """All numbers of columns: one number for every depth of the tree that has boxes in boxes."""
    most: list[int] = []
    row = [topology.root]
    while any(domain.children for domain in row):
        most.append(max(len(domain.children) for domain in row))
        row = [child for domain in row for child in domain.children]
    return product(*(range(1, count + 1) for count in most))


def _draw(
    topology: Topology, domain: Domain, leaves: Sequence[_Leaf], style: _Style, depth: int = 0
) -> list[str]:
    if not domain.children:
        return _draw_leaf(leaves[domain.leaves[0]], style.leaf_width)
    boxes = [_draw(topology, child, leaves, style, depth + 1) for child in domain.children]
    lines = _grid(boxes, min(style.columns[depth], len(boxes)), style.gap)
    # The machine itself needs no box, unless it is something else too.
    return lines if domain.levels == ("machine",) else _box(_title(topology, domain), lines)


def _draw_leaf(leaf: _Leaf, width: int) -> list[str]:
    notes = [line for note in leaf.notes for line in _wrap(note, width)]
    lines = [*notes, *(_cut(label, width) for label in leaf.labels)]
    return _box(leaf.title, [f"{line:{width}}" for line in lines])


def _box(title: str, lines: Sequence[str]) -> list[str]:
    inner = max(len(title), *map(len, lines))
    top = f"┌ {title} {'─' * (inner - len(title))}┐"
    return [top, *(f"│ {line:{inner}} │" for line in lines), f"└{'─' * (inner + 2)}┘"]


def _grid(boxes: Sequence[list[str]], columns: int, gap: int) -> list[str]:
    width = max(len(box[0]) for box in boxes)
    lines: list[str] = []
    for start in range(0, len(boxes), columns):
        row = boxes[start : start + columns]
        height = max(map(len, row))
        row = [_stretch(box, width, height) for box in row]
        row += [[" " * width] * height] * (columns - len(row))
        lines += [(" " * gap).join(parts) for parts in zip(*row)]
    return lines


def _stretch(box: list[str], width: int, height: int) -> list[str]:
    more = width - len(box[0])
    middle = [line[:-1] + " " * more + line[-1] for line in box[1:-1]]
    middle += [box[1][0] + " " * (width - 2) + box[1][-1]] * (height - len(box))
    top, bottom = (line[:-1] + "─" * more + line[-1] for line in (box[0], box[-1]))
    return [top, *middle, bottom]


def _wrap(text: str, width: int) -> list[str]:
    """Break a text after commas; a piece that is longer than ``width`` stays whole."""
    lines = [""]
    for piece in _pieces(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _pieces(text: str) -> list[str]:
    return re.findall(r"[^,]+,* *", text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# ---------------------------------------------------------------------- one line for each leaf


def _list(
    topology: Topology, domain: Domain, leaves: Sequence[_Leaf], width: int, indent: str = ""
) -> list[str]:
    if not domain.children:
        leaf = leaves[domain.leaves[0]]
        start = f"{indent}{leaf.title:{max(len(other.title) for other in leaves)}}  "
        room = width - len(start)
        text = _wrap(", ".join([*leaf.notes, *(_cut(label, room) for label in leaf.labels)]), room)
        return [(" " * len(start) if index else start) + line for index, line in enumerate(text)]
    lines = [] if domain.levels == ("machine",) else [indent + _title(topology, domain)]
    below = indent + "  " * len(lines)
    for child in domain.children:
        lines += _list(topology, child, leaves, width, below)
    return lines


# ---------------------------------------------------------------------- distances


def _draw_distances(topology: Topology, width: int) -> list[str]:
    nodes = topology.node_ids
    if len(nodes) < 2:
        return []
    told = "" if topology.data.distance is not None else " (the usual ones: the firmware tells none)"
    rows = {a: [topology.distance(a, b) for b in nodes] for a in nodes}
    cell = max(len(str(value)) for row in [*rows.values(), list(nodes)] for value in row) + 2
    head = f"{'to NUMA':<10}{_cells(nodes, cell)}"
    if len(head) <= width:
        lines = [head, *(f"NUMA {a:<5}{_cells(row, cell)}" for a, row in rows.items())]
    else:
        lines = [line for a, row in rows.items() for line in _wrap(_by_distance(a, nodes, row), width)]
    return ["", f"NUMA distances{told}", *lines]


def _cells(values: Sequence[int], cell: int) -> str:
    return "".join(f"{value:{cell}}" for value in values)


def _by_distance(node: int, nodes: Sequence[int], row: Sequence[int]) -> str:
    """``NUMA 0: 10 to 0, 12 to 1-3, 32 to 4-7``, for machines with more nodes than columns."""
    groups: dict[int, list[int]] = {}
    for other, value in zip(nodes, row):
        groups.setdefault(value, []).append(other)
    return f"NUMA {node}: " + ", ".join(f"{d} to {format_cpus(ids)}" for d, ids in sorted(groups.items()))
