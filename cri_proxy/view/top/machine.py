"""The machine as boxes: sockets in columns, NUMA nodes as boxes, L3s as their cells. Pure.

Whichever is in which, the outermost of three levels is a column with a headline, the next one a box, the innermost a
cell. A machine with too many L3s for the room gets a line for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_lowercase
from typing import Optional

from cri_proxy.isolation.monitoring import mib_text
from cri_proxy.view.snapshot import CacheFill, ContainerView, NodeSnapshot, Place, box_names
from cri_proxy.view.top.canvas import (
    BOLD,
    COLOURS,
    DIM,
    HIGH,
    LOW,
    MIDDLE,
    PLAIN,
    TITLE,
    Canvas,
    Line,
    TextSpan,
    columns_of,
    cut,
)
from policies.machine.cpus import parse_cpus

#: ``l3-15 100% 8/8`` and one blank at each side.
LEAST_CELL = 16
#: A cell needs no more lines than these.
MOST_LINES = 8
#: From so many lines on load and charge have a line each.
ROOMY = 4
#: The least columns of a name beside others.
LEAST_NAME = 7

#: A box with its cells.
_Cells = tuple[Place, tuple[Place, ...]]
Residents = Mapping[tuple[str, ...], Sequence[ContainerView]]


@dataclass(frozen=True)
class Grid:
    """How boxes lie side by side, and how many lines a cell has."""

    columns: int
    boxes: int
    cells: int
    lines: int


@dataclass(frozen=True)
class Shape:
    """What decides a grid: of each column, of each of its boxes, the number of cells; are there headlines?"""

    columns: tuple[tuple[int, ...], ...]
    has_headlines: bool


@dataclass(frozen=True)
class Namespaces:
    """A letter and a colour for each namespace."""

    names: tuple[str, ...]

    def letter(self, container: ContainerView) -> str:
        """Upper case: it has exclusive CPUs."""
        index = self.names.index(container.namespace)
        letter = ascii_lowercase[index] if index < len(ascii_lowercase) else "?"
        return letter.upper() if container.is_exclusive else letter

    def look(self, container: ContainerView) -> str:
        return COLOURS[self.names.index(container.namespace) % len(COLOURS)]

    def legend(self) -> Line:
        """``a default  b kube-system``."""
        spans = []
        for index, name in enumerate(self.names):
            letter = ascii_lowercase[index] if index < len(ascii_lowercase) else "?"
            spans.append(TextSpan(f" {letter} {name} ", COLOURS[index % len(COLOURS)]))
        return tuple(spans)


def arrange(shape: Shape, width: int, height: int) -> Optional[Grid]:
    """The grid with the most room in its cells; None: there is none that fits."""
    return _arrange(shape, width, height)


@lru_cache(maxsize=16)
def _arrange(shape: Shape, width: int, height: int) -> Optional[Grid]:
    best: tuple[int, int, Grid] = (0, 0, Grid(1, 1, 1, 1))
    most_boxes = max(map(len, shape.columns), default=0)
    most_cells = max((cells for column in shape.columns for cells in column), default=0)
    for columns, boxes, cells in product(
        range(1, len(shape.columns) + 1), range(1, most_boxes + 1), range(1, most_cells + 1)
    ):
        inner = _cell_width(_box_width(_column_width(width, columns), boxes), cells)
        if inner < LEAST_CELL:
            continue
        for lines in range(MOST_LINES, 0, -1):
            grid = Grid(columns, boxes, cells, lines)
            needed = height_of(shape, grid)
            if needed <= height:
                best = max(best, (inner * lines, -needed, grid), key=lambda one: one[:2])
                break
    return best[2] if best[0] else None


def shape_of(places: Sequence[Place]) -> Shape:
    """How many boxes and cells a machine has."""
    columns = _columns(places)
    counts = tuple(tuple(len(cells) for _, cells in boxes) for _, boxes in columns)
    return Shape(counts, any(place is not None for place, _ in columns))


def _columns(
    places: Sequence[Place],
) -> list[tuple[Optional[Place], list[_Cells]]]:
    """The columns with their boxes with their cells. One column without a headline holds what is in none."""
    columns: list[tuple[Optional[Place], list[_Cells]]] = []
    for place in places:
        if any(child.children for child in place.children):
            columns.append((place, [_box(child) for child in place.children]))
        elif columns and columns[-1][0] is None:
            columns[-1][1].append(_box(place))
        else:
            columns.append((None, [_box(place)]))
    return columns


def _box(place: Place) -> tuple[Place, tuple[Place, ...]]:
    """Four levels cannot be, but if they were, the innermost would count."""
    return place, place.leaves


def height_of(shape: Shape, grid: Grid) -> int:
    """The lines that a grid takes."""
    return sum(_row_heights(shape, grid))


def _row_heights(shape: Shape, grid: Grid) -> list[int]:
    """Of each row of columns. Boxes one below the other share a line."""
    columns, headline = shape.columns, int(shape.has_headlines)
    heights = [headline + 1 + sum(height - 1 for height in _heights(column, grid)) for column in columns]
    return [max(heights[at : at + grid.columns]) for at in range(0, len(heights), grid.columns)]


def _heights(column: tuple[int, ...], grid: Grid) -> list[int]:
    """Of each row of boxes in a column."""
    heights = [_box_height(cells, grid) for cells in column]
    return [max(heights[at : at + grid.boxes]) for at in range(0, len(heights), grid.boxes)]


def _box_height(cells: int, grid: Grid) -> int:
    return 1 + -(-cells // grid.cells) * (grid.lines + 1)


def _column_width(width: int, columns: int) -> int:
    return (width - (columns - 1)) // columns


def _box_width(width: int, boxes: int) -> int:
    return width // boxes


def _cell_width(width: int, cells: int) -> int:
    return (width - 1) // cells - 1


# ---------------------------------------------------------------------- boxes


def draw_boxes(
    canvas: Canvas, top: int, snapshot: NodeSnapshot, shown: Sequence[ContainerView], grid: Grid
) -> None:
    """Draw the machine from line ``top`` on, with the containers that are ``shown``."""
    residents, names = by_place(shown, snapshot.places), Namespaces(snapshot.namespaces)
    by_id = {container.id: container for container in shown}
    _Drawing(canvas, grid, residents, names, by_id).machine(top, snapshot.places)


@dataclass(frozen=True)
class _Drawing:
    """A machine on a canvas, with its containers."""

    canvas: Canvas
    grid: Grid
    residents: Residents
    names: Namespaces
    by_id: Mapping[str, ContainerView]

    def machine(self, top: int, places: Sequence[Place]) -> None:
        columns, shape = _columns(places), shape_of(places)
        width = _column_width(self.canvas.width, self.grid.columns)
        for row, height in enumerate(_row_heights(shape, self.grid)):
            first = row * self.grid.columns
            for index, (place, boxes) in enumerate(columns[first : first + self.grid.columns]):
                x = index * (width + 1)
                if place is not None:
                    self._headline(top, x, width, place, self.residents.get(place.names, ()), TITLE)
                # A column without a headline is level with those that have one.
                self._column(top + shape.has_headlines, x, width, boxes)
            top += height

    def _column(self, y: int, x: int, width: int, boxes: Sequence[_Cells]) -> None:
        box_width = _box_width(width, self.grid.boxes)
        for first in range(0, len(boxes), self.grid.boxes):
            row = boxes[first : first + self.grid.boxes]
            for index, (place, cells) in enumerate(row):
                left = x + index * box_width
                height = _box_height(len(cells), self.grid)
                self.canvas.box(y, left, height, box_width, joins_above=first > 0)
                own = () if cells == (place,) else self.residents.get(place.names, ())
                self._headline(y, left + 1, box_width - 2, place, own, BOLD)
                self._cells(y, left, box_width, place, cells)
            y += max(_box_height(len(cells), self.grid) for _, cells in row) - 1

    def _cells(self, y: int, x: int, width: int, box: Place, cells: Sequence[Place]) -> None:
        canvas, grid = self.canvas, self.grid
        inner = _cell_width(width, grid.cells)
        for index, cell in enumerate(cells):
            row, column = divmod(index, grid.cells)
            top, left = y + 1 + row * (grid.lines + 1), x + 1 + column * (inner + 1)
            if column:
                for line in range(grid.lines):
                    canvas.put(top + line, left - 1, "│", DIM)
            if row:
                canvas.put(top - 1, left - 1, "┼" if column else f"├{'─' * (width - 2)}┤", DIM)
            # The box has said it already.
            title = "" if cell is box else cell.title
            residents = self.residents.get(cell.names, ())
            lines = cell_lines(cell, title, residents, self.names, inner - 1, grid.lines, self.by_id)
            for offset, spans in enumerate(lines):
                canvas.line(top + offset, spans, left + 1)

    def _headline(
        self, y: int, x: int, width: int, place: Place, own: Sequence[ContainerView], look: str
    ) -> None:
        """Title, load, charge, memory; then what is in no smaller box."""
        spans = [
            TextSpan(f" {place.title} ", look),
            _load_span(place),
            TextSpan(f" {charge_text(place)} ", PLAIN),
        ]
        if place.exclusive:
            spans.append(TextSpan(f"exclusive {len(parse_cpus(place.exclusive))} ", BOLD))
        if place.memory_bytes:
            memory = f"{place.memory_charged_bytes / 2**30:.0f}/{place.memory_bytes / 2**30:.0f} GiB "
            if columns_of(spans) + len(memory) <= width:
                spans.append(TextSpan(memory, PLAIN))
        room = width - columns_of(spans) - 1
        if own and place.children and room >= 3:
            spans += [*letters(own, self.names, room), TextSpan(" ", PLAIN)]
        for text, its_look in spans:
            x = self.canvas.put(y, x, text[:width], its_look)
            width = max(0, width - len(text))


# ---------------------------------------------------------------------- cells


def cell_lines(
    place: Place,
    title: str,
    residents: Sequence[ContainerView],
    names: Namespaces,
    width: int,
    lines: int,
    by_id: Mapping[str, ContainerView] = {},
) -> list[Line]:
    """One box of the innermost: name, load, charge, CPUs that belong to containers alone, containers.

    ``by_id``: the containers whose lines an L3 may be filled by.
    """
    title = f"{title} " if title else ""
    count = f" x{len(parse_cpus(place.exclusive))}" if place.exclusive else ""
    own = f" exclusive {place.exclusive}" if place.exclusive else ""
    # A list that is cut would be another one.
    own = own if len(title) + len(own) <= width + 1 else count
    if lines >= ROOMY:
        load = bar_spans("load ", place.load, percent(place.load), width)
        share = place.charged_milli / place.allocatable_milli if place.allocatable_milli else 0.0
        charge = bar_spans("asked", share, charge_text(place), width)
        own = own if title else own.strip()
        head: list[Line] = [
            (TextSpan(cut(title.strip(), width), BOLD), TextSpan(cut(own, width - len(title.strip())), BOLD))
        ]
        head = [line for line in head if any(span.text for span in line)]
        shown = [*head, load, charge]
        if place.fill is not None and lines > len(shown) + 1:
            shown.append(fill_spans(place.fill, by_id, names, width))
        return [*shown, *chips(residents, names, width, lines - len(shown))]
    charge_words = f" {charge_text(place)}"
    spans = [TextSpan(title, BOLD), _load_span(place), TextSpan(charge_words, PLAIN)]
    left = width - columns_of(spans)
    if count and len(count) <= left:
        spans.append(TextSpan(count, BOLD))
        left -= len(count)
    if lines == 1:
        if residents and left >= 3:
            spans += [TextSpan(" ", PLAIN), *letters(residents, names, left - 1)]
        return [tuple(spans)]
    return [tuple(spans), *chips(residents, names, width, lines - 1)]


def chips(residents: Sequence[ContainerView], names: Namespaces, width: int, lines: int) -> list[Line]:
    """Containers in a few lines: by name where all of them have room, else a letter each."""
    if not residents or lines < 1:
        return []
    # 1. As few columns as hold all of them.
    columns = -(-len(residents) // lines)
    each = (width - (columns - 1)) // columns
    if each >= LEAST_NAME + 2:
        found = []
        for first in range(0, len(residents), columns):
            spans: list[TextSpan] = []
            for container in residents[first : first + columns]:
                name = cut(f"{names.letter(container)} {_short(container)}", each)
                spans.append(TextSpan(f"{name:{each}}", names.look(container)))
                spans.append(TextSpan(" ", PLAIN))
            found.append(tuple(spans[:-1]))
        return found
    # 2. Letters: in lines that are full, or how many of each.
    if len(residents) > width * lines:
        return [tuple(letters(residents, names, width))]
    return [
        tuple(letters(residents[at : at + width], names, width)) for at in range(0, len(residents), width)
    ]


def letters(residents: Sequence[ContainerView], names: Namespaces, width: int) -> list[TextSpan]:
    """A letter each, those of a namespace together; where they have no room, how many of each: ``a14 B2``."""
    counts: dict[tuple[str, str], int] = {}
    for container in residents:
        which = names.letter(container), names.look(container)
        counts[which] = counts.get(which, 0) + 1
    if len(residents) <= width:
        return [TextSpan(letter * count, look) for (letter, look), count in counts.items()]
    spans: list[TextSpan] = []
    left, untold = width, len(residents)
    for (letter, look), count in counts.items():
        text, more = f"{letter}{count} ", f"+{untold - count}"
        # What is left out is said, too.
        if len(text.rstrip()) + (len(more) + 1 if untold > count else 0) > left:
            break
        spans.append(TextSpan(text, look))
        left, untold = left - len(text), untold - count
    return [*spans, TextSpan(f"+{untold}"[:left], DIM)] if untold else spans


def _short(container: ContainerView) -> str:
    """The name that tells most in little room."""
    return container.pod if container.name in container.pod or container.name == "app" else container.name


def charge_text(place: Place) -> str:
    """``5.5/8``: CPUs asked for, and those there are."""
    charged, whole = place.charged_milli / 1000, place.allocatable_milli / 1000
    return f"{charged:.1f}".replace(".0", "") + f"/{whole:g}"


def fill_spans(fill: CacheFill, by_id: Mapping[str, ContainerView], names: Namespaces, width: int) -> Line:
    """``cache aaaab██░░ 5/8M``: whose lines fill an L3, a letter a container, those of others full."""
    text = fill_text(fill)
    room = max(0, width - len("cache") - len(text) - 2)
    spans, whole, done = [TextSpan("cache ", DIM)], max(fill.size_bytes, fill.bytes, 1), 0
    total = 0
    for key, size in (*fill.shares, ("", fill.others_bytes or 0)):
        total += size
        columns = round(total / whole * room) - done
        done += columns
        one = by_id.get(key)
        letter, look = ("█", DIM) if one is None else (names.letter(one), names.look(one))
        spans.append(TextSpan(letter * columns, look))
    return (*spans, TextSpan("░" * (room - done), DIM), TextSpan(f" {text}", PLAIN))


def fill_text(fill: CacheFill) -> str:
    """``12/32M``: what is filled of an L3, and its size, MiB."""
    whole = f"/{mib_text(fill.size_bytes)}" if fill.size_bytes else ""
    return f"{mib_text(fill.bytes)}{whole}M"


def percent(load: Optional[float]) -> str:
    """``  7%``; ``-`` where it is not known."""
    return "   -" if load is None else f"{round(load * 100):3d}%"


def _load_span(place: Place) -> TextSpan:
    return TextSpan(percent(place.load).strip(), load_look(place.load))


def load_look(load: Optional[float]) -> str:
    """What a load looks like: quiet, busy, full."""
    return PLAIN if load is None else LOW if load < 0.5 else MIDDLE if load < 0.9 else HIGH


def bar_spans(word: str, share: Optional[float], text: str, width: int) -> Line:
    """``load ███░░░  42%``."""
    room = width - len(word) - len(text) - 2
    part = 0.0 if share is None else min(1.0, max(0.0, share))
    full = round(part * room) if room > 0 else 0
    return (
        TextSpan(f"{word} ", DIM),
        TextSpan("█" * full, load_look(share)),
        TextSpan("░" * max(0, room - full), DIM),
        TextSpan(f" {text}", PLAIN),
    )


# ---------------------------------------------------------------------- a line for each


def list_lines(snapshot: NodeSnapshot, shown: Sequence[ContainerView], width: int) -> list[Line]:
    """The machine as a list, for the many L3s that no boxes hold."""
    residents, names = by_place(shown, snapshot.places), Namespaces(snapshot.namespaces)
    lines: list[Line] = []
    for place in snapshot.places:
        lines += _list(place, 0, residents, names, width)
    return lines


def _list(place: Place, depth: int, residents: Residents, names: Namespaces, width: int) -> list[Line]:
    indent = "  " * depth
    start = (
        TextSpan(f"{indent}{place.title} ", BOLD if place.children else PLAIN),
        TextSpan(f"{percent(place.load).strip()} ", load_look(place.load)),
        TextSpan(charge_text(place) + " ", PLAIN),
        TextSpan(f"exclusive {cut(place.exclusive, 24)} " if place.exclusive else "", BOLD),
    )
    left = width - columns_of(start)
    own = letters(residents.get(place.names, ()), names, left) if left >= 3 else []
    lines: list[Line] = [(*start, *own)]
    for child in place.children:
        lines += _list(child, depth + 1, residents, names, width)
    return lines


def by_place(
    containers: Iterable[ContainerView], places: Iterable[Place]
) -> dict[tuple[str, ...], list[ContainerView]]:
    """Containers by the names of their box, in the order of their own; those of none, which span sockets, by ``()``."""
    names = box_names(places)
    found: dict[tuple[str, ...], list[ContainerView]] = {}
    for container in sorted(containers, key=lambda one: (one.namespace, one.pod, one.name)):
        found.setdefault(names.get(container.zone, ()), []).append(container)
    return found
