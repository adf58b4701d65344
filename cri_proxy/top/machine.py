"""The machine as boxes: sockets in columns, NUMA nodes as boxes, L3s as their cells. Pure.

Whichever is in which, the outermost of three levels is a column with a headline, the next one a box, the innermost a
cell. A machine with too many L3s for the room gets a line for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_lowercase
from typing import Optional

from cri_proxy.top.canvas import BOLD, COLOURS, DIM, HIGH, LOW, MIDDLE, PLAIN, TITLE, Canvas, Line, Span, cut
from cri_proxy.top.snapshot import Container, Place, Snapshot, by_place
from policies.machine.cpus import parse_cpus

#: ``l3-15 100% 8/8`` and one blank at each side.
LEAST_CELL = 16
#: A cell needs no more lines than these.
MOST_LINES = 8
#: From so many lines on load and charge have a line each.
ROOMY = 4
#: The least columns of a name beside others.
LEAST_NAME = 7

Residents = Mapping[tuple[str, ...], Sequence[Container]]


@dataclass(frozen=True)
class Arrangement:
    """How boxes lie side by side, and how many lines a cell has."""

    columns: int
    boxes: int
    cells: int
    lines: int


@dataclass(frozen=True)
class Shape:
    """What decides an arrangement: of each column, of each of its boxes, the number of cells; are there headlines?"""

    columns: tuple[tuple[int, ...], ...]
    has_headlines: bool


@dataclass(frozen=True)
class Namespaces:
    """A letter and a colour for each namespace."""

    names: tuple[str, ...]

    def letter(self, container: Container) -> str:
        """Upper case: it has CPUs of its own."""
        index = self.names.index(container.namespace)
        letter = ascii_lowercase[index] if index < len(ascii_lowercase) else "?"
        return letter.upper() if container.is_exclusive else letter

    def look(self, container: Container) -> str:
        return COLOURS[self.names.index(container.namespace) % len(COLOURS)]

    def legend(self) -> Line:
        """``a default  b kube-system``."""
        spans = []
        for index, name in enumerate(self.names):
            letter = ascii_lowercase[index] if index < len(ascii_lowercase) else "?"
            spans.append(Span(f" {letter} {name} ", COLOURS[index % len(COLOURS)]))
        return tuple(spans)


def arrange(shape: Shape, width: int, height: int) -> Optional[Arrangement]:
    """The arrangement with the most room in its cells; None: there is none that fits."""
    return _arrange(shape, width, height)


@lru_cache(maxsize=16)
def _arrange(shape: Shape, width: int, height: int) -> Optional[Arrangement]:
    best: tuple[int, int, Arrangement] = (0, 0, Arrangement(1, 1, 1, 1))
    most_boxes = max(map(len, shape.columns), default=0)
    most_cells = max((cells for column in shape.columns for cells in column), default=0)
    for columns, boxes, cells in product(
        range(1, len(shape.columns) + 1), range(1, most_boxes + 1), range(1, most_cells + 1)
    ):
        inner = _cell_width(_box_width(_column_width(width, columns), boxes), cells)
        if inner < LEAST_CELL:
            continue
        for lines in range(MOST_LINES, 0, -1):
            arrangement = Arrangement(columns, boxes, cells, lines)
            needed = height_of(shape, arrangement)
            if needed <= height:
                best = max(best, (inner * lines, -needed, arrangement), key=lambda one: one[:2])
                break
    return best[2] if best[0] else None


def shape_of(places: Sequence[Place]) -> Shape:
    """How many boxes and cells a machine has."""
    columns = _columns(places)
    counts = tuple(tuple(len(cells) for _, cells in boxes) for _, boxes in columns)
    return Shape(counts, any(place is not None for place, _ in columns))


def _columns(
    places: Sequence[Place],
) -> list[tuple[Optional[Place], list[tuple[Place, tuple[Place, ...]]]]]:
    """The columns with their boxes with their cells. One column without a headline holds what is in none."""
    columns: list[tuple[Optional[Place], list[tuple[Place, tuple[Place, ...]]]]] = []
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


def height_of(shape: Shape, arrangement: Arrangement) -> int:
    """The lines that an arrangement takes."""
    return sum(_row_heights(shape, arrangement))


def _row_heights(shape: Shape, arrangement: Arrangement) -> list[int]:
    """Of each row of columns. Boxes one below the other share a line."""
    columns, headline = shape.columns, int(shape.has_headlines)
    heights = [
        headline + 1 + sum(height - 1 for height in _heights(column, arrangement)) for column in columns
    ]
    return [max(heights[at : at + arrangement.columns]) for at in range(0, len(heights), arrangement.columns)]


def _heights(column: tuple[int, ...], arrangement: Arrangement) -> list[int]:
    """Of each row of boxes in a column."""
    heights = [_box_height(cells, arrangement) for cells in column]
    return [max(heights[at : at + arrangement.boxes]) for at in range(0, len(heights), arrangement.boxes)]


def _box_height(cells: int, arrangement: Arrangement) -> int:
    return 1 + -(-cells // arrangement.cells) * (arrangement.lines + 1)


def _column_width(width: int, columns: int) -> int:
    return (width - (columns - 1)) // columns


def _box_width(width: int, boxes: int) -> int:
    return width // boxes


def _cell_width(width: int, cells: int) -> int:
    return (width - 1) // cells - 1


# ---------------------------------------------------------------------- boxes


def draw_boxes(
    canvas: Canvas, top: int, snapshot: Snapshot, shown: Sequence[Container], arrangement: Arrangement
) -> None:
    """Draw the machine from line ``top`` on, with the containers that are ``shown``."""
    residents, names = by_place(shown, snapshot.places), Namespaces(snapshot.namespaces)
    columns = _columns(snapshot.places)
    shape = shape_of(snapshot.places)
    width = _column_width(canvas.width, arrangement.columns)
    for row, height in enumerate(_row_heights(shape, arrangement)):
        first = row * arrangement.columns
        for index, (place, boxes) in enumerate(columns[first : first + arrangement.columns]):
            x = index * (width + 1)
            if place is not None:
                _headline(canvas, top, x, width, place, residents, names, TITLE)
            # A column without a headline is level with those that have one.
            _draw_column(canvas, top + shape.has_headlines, x, width, boxes, residents, names, arrangement)
        top += height


def _draw_column(
    canvas: Canvas,
    y: int,
    x: int,
    width: int,
    boxes: Sequence[tuple[Place, tuple[Place, ...]]],
    residents: Residents,
    names: Namespaces,
    arrangement: Arrangement,
) -> None:
    box_width = _box_width(width, arrangement.boxes)
    for first in range(0, len(boxes), arrangement.boxes):
        row = boxes[first : first + arrangement.boxes]
        for index, (place, cells) in enumerate(row):
            left = x + index * box_width
            height = _box_height(len(cells), arrangement)
            canvas.box(y, left, height, box_width, joins_above=first > 0)
            own: Residents = {} if cells == (place,) else residents
            _headline(canvas, y, left + 1, box_width - 2, place, own, names, BOLD)
            _draw_cells(canvas, y, left, box_width, place, cells, residents, names, arrangement)
        y += max(_box_height(len(cells), arrangement) for _, cells in row) - 1


def _draw_cells(
    canvas: Canvas,
    y: int,
    x: int,
    width: int,
    box: Place,
    cells: Sequence[Place],
    residents: Residents,
    names: Namespaces,
    arrangement: Arrangement,
) -> None:
    inner = _cell_width(width, arrangement.cells)
    for index, cell in enumerate(cells):
        row, column = divmod(index, arrangement.cells)
        top, left = y + 1 + row * (arrangement.lines + 1), x + 1 + column * (inner + 1)
        if column:
            for line in range(arrangement.lines):
                canvas.put(top + line, left - 1, "│", DIM)
        if row and not column:
            canvas.put(top - 1, x, f"├{'─' * (width - 2)}┤", DIM)
        if row and column:
            canvas.put(top - 1, left - 1, "┼", DIM)
        # The box has said it already.
        title = "" if cell is box else cell.title
        for line, spans in enumerate(cell_lines(cell, title, residents.get(cell.names, ()), names, inner - 1,
                                                arrangement.lines)):  # fmt: skip
            at = left + 1
            for text, look in spans:
                at = canvas.put(top + line, at, text, look)


def _headline(
    canvas: Canvas,
    y: int,
    x: int,
    width: int,
    place: Place,
    residents: Residents,
    names: Namespaces,
    look: str,
) -> None:
    """Title, load, charge, memory; then what is in no smaller box."""
    spans: list[Span] = [
        Span(f" {place.title} ", look),
        _load_span(place),
        Span(f" {charge_text(place)} ", PLAIN),
    ]
    if place.exclusive:
        spans.append(Span(f"own {len(parse_cpus(place.exclusive))} ", BOLD))
    if place.memory_bytes:
        memory = f"{place.memory_charged_bytes / 2**30:.0f}/{place.memory_bytes / 2**30:.0f} GiB "
        if sum(len(span.text) for span in spans) + len(memory) <= width:
            spans.append(Span(memory, PLAIN))
    room = width - sum(len(span.text) for span in spans) - 1
    own = residents.get(place.names, ())
    if own and place.children and room >= 3:
        spans += letters(own, names, room)
        spans.append(Span(" ", PLAIN))
    for text, its_look in spans:
        x = canvas.put(y, x, text[:width], its_look)
        width = max(0, width - len(text))


# ---------------------------------------------------------------------- cells


def cell_lines(
    place: Place, title: str, residents: Sequence[Container], names: Namespaces, width: int, lines: int
) -> list[Line]:
    """One box of the innermost: name, load, charge, CPUs that belong to containers alone, containers."""
    title = f"{title} " if title else ""
    own = f" own {place.exclusive}" if place.exclusive else ""
    if lines >= ROOMY:
        load = bar_spans("load ", place.load, percent(place.load), width)
        share = place.charged_milli / place.allocatable_milli if place.allocatable_milli else 0.0
        charge = bar_spans("asked", share, charge_text(place), width)
        own = own if title else own.strip()
        head: list[Line] = [
            (Span(cut(title.strip(), width), BOLD), Span(cut(own, width - len(title.strip())), BOLD))
        ]
        head = [line for line in head if any(span.text for span in line)]
        return [*head, load, charge, *chips(residents, names, width, lines - 2 - len(head))]
    count = f" x{len(parse_cpus(place.exclusive))}" if place.exclusive else ""
    charge_words = f" {charge_text(place)}"
    spans = [Span(title, BOLD), _load_span(place), Span(charge_words, PLAIN)]
    left = width - sum(len(span.text) for span in spans)
    if count and len(count) <= left:
        spans.append(Span(count, BOLD))
        left -= len(count)
    if lines == 1:
        if residents and left >= 3:
            spans += [Span(" ", PLAIN), *letters(residents, names, left - 1)]
        return [tuple(spans)]
    return [tuple(spans), *chips(residents, names, width, lines - 1)]


def chips(residents: Sequence[Container], names: Namespaces, width: int, lines: int) -> list[Line]:
    """Containers in a few lines: by name where all of them have room, else a letter each."""
    if not residents or lines < 1:
        return []
    ordered = sorted(residents, key=lambda one: (one.namespace, one.pod, one.name))
    # 1. As few columns as hold all of them.
    columns = -(-len(ordered) // lines)
    each = (width - (columns - 1)) // columns
    if each >= LEAST_NAME + 2:
        found = []
        for first in range(0, len(ordered), columns):
            spans: list[Span] = []
            for container in ordered[first : first + columns]:
                name = cut(f"{names.letter(container)} {_short(container)}", each)
                spans.append(Span(f"{name:{each}}", names.look(container)))
                spans.append(Span(" ", PLAIN))
            found.append(tuple(spans[:-1]))
        return found
    # 2. Letters: in lines that are full, or how many of each.
    if len(ordered) > width * lines:
        return [tuple(letters(ordered, names, width))]
    return [tuple(letters(ordered[at : at + width], names, width)) for at in range(0, len(ordered), width)]


def letters(residents: Sequence[Container], names: Namespaces, width: int) -> list[Span]:
    """A letter each, those of a namespace together; where they have no room, how many of each: ``a14 B2``."""
    ordered = sorted(residents, key=lambda one: (one.namespace, one.pod, one.name))
    counts: dict[tuple[str, str], int] = {}
    for container in ordered:
        which = names.letter(container), names.look(container)
        counts[which] = counts.get(which, 0) + 1
    if len(ordered) <= width:
        return [Span(letter * count, look) for (letter, look), count in counts.items()]
    spans: list[Span] = []
    left, untold = width, len(ordered)
    for (letter, look), count in counts.items():
        text, more = f"{letter}{count} ", f"+{untold - count}"
        # What is left out is said, too.
        if len(text.rstrip()) + (len(more) + 1 if untold > count else 0) > left:
            break
        spans.append(Span(text, look))
        left, untold = left - len(text), untold - count
    return [*spans, Span(f"+{untold}"[:left], DIM)] if untold else spans


def _short(container: Container) -> str:
    """The name that tells most in little room."""
    return container.pod if container.name in container.pod or container.name == "app" else container.name


def charge_text(place: Place) -> str:
    """``5.5/8``: CPUs asked for, and those there are."""
    charged, whole = place.charged_milli / 1000, place.allocatable_milli / 1000
    return f"{charged:.1f}".replace(".0", "") + f"/{whole:g}"


def percent(load: Optional[float]) -> str:
    """``  7%``; ``-`` where it is not known."""
    return "   -" if load is None else f"{round(load * 100):3d}%"


def _load_span(place: Place) -> Span:
    return Span(percent(place.load).strip(), load_look(place.load))


def load_look(load: Optional[float]) -> str:
    """What a load looks like: quiet, busy, full."""
    return PLAIN if load is None else LOW if load < 0.5 else MIDDLE if load < 0.9 else HIGH


def bar_spans(word: str, share: Optional[float], text: str, width: int) -> Line:
    """``load ███░░░  42%``."""
    room = width - len(word) - len(text) - 2
    part = 0.0 if share is None else min(1.0, max(0.0, share))
    full = round(part * room) if room > 0 else 0
    return (
        Span(f"{word} ", DIM),
        Span("█" * full, load_look(share)),
        Span("░" * max(0, room - full), DIM),
        Span(f" {text}", PLAIN),
    )


# ---------------------------------------------------------------------- a line for each


def list_lines(snapshot: Snapshot, shown: Sequence[Container], width: int) -> list[Line]:
    """The machine as a list, for the many L3s that no boxes hold."""
    residents, names = by_place(shown, snapshot.places), Namespaces(snapshot.namespaces)
    lines: list[Line] = []
    for place in snapshot.places:
        lines += _list(place, 0, residents, names, width)
    return lines


def _list(place: Place, depth: int, residents: Residents, names: Namespaces, width: int) -> list[Line]:
    indent = "  " * depth
    start = (
        Span(f"{indent}{place.title} ", BOLD if place.children else PLAIN),
        Span(f"{percent(place.load).strip()} ", load_look(place.load)),
        Span(charge_text(place) + " ", PLAIN),
        Span(f"own {cut(place.exclusive, 24)} " if place.exclusive else "", BOLD),
    )
    left = width - sum(len(span.text) for span in start)
    own = letters(residents.get(place.names, ()), names, left) if left >= 3 else []
    lines: list[Line] = [(*start, *own)]
    for child in place.children:
        lines += _list(child, depth + 1, residents, names, width)
    return lines
