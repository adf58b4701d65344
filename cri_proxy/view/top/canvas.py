"""A screen that is written to in any order and read as lines of spans: texts with what they look like. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: What a text looks like, by what it says; the terminal has an attribute for each (``io/terminal.py``).
PLAIN, BOLD, DIM, TITLE, SELECTED, ALARM = "plain", "bold", "dim", "title", "selected", "alarm"
#: A load below a half, below nine tenths, and above.
LOW, MIDDLE, HIGH = "low", "middle", "high"
#: Namespaces take turns.
COLOURS = ("colour 1", "colour 2", "colour 3", "colour 4", "colour 5", "colour 6")

#: Every character here that is not ASCII, and what stands for it.
_ASCII = str.maketrans("┌┐└┘├┤┬┴┼─│█░…·", "+++++++++-|#.~.")


class TextSpan(NamedTuple):
    """Some characters of a line that look the same."""

    text: str
    look: str


Line = tuple[TextSpan, ...]


class Canvas:
    """``height`` lines of ``width`` cells, all blank at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[" "] * width for _ in range(height)]
        self._looks = [[PLAIN] * width for _ in range(height)]

    def put(self, y: int, x: int, text: str, look: str = PLAIN) -> int:
        """Write a text; what is outside is left off. Returns the column after it."""
        end = x + len(text)
        if 0 <= y < self.height and 0 <= x < self.width:
            text = text[: self.width - x]
            self._cells[y][x : x + len(text)] = text
            self._looks[y][x : x + len(text)] = [look] * len(text)
        return end

    def line(self, y: int, spans: Line, x: int = 0) -> None:
        """Write a line of spans from a column on."""
        for text, look in spans:
            x = self.put(y, x, text, look)

    def box(self, y: int, x: int, height: int, width: int, *, joins_above: bool = False) -> None:
        """The frame of a box; ``joins_above``: its upper line is the lower one of the box above."""
        left, right = ("├", "┤") if joins_above else ("┌", "┐")
        self.put(y, x, f"{left}{'─' * (width - 2)}{right}", DIM)
        for row in range(y + 1, y + height - 1):
            self.put(row, x, "│", DIM)
            self.put(row, x + width - 1, "│", DIM)
        self.put(y + height - 1, x, f"└{'─' * (width - 2)}┘", DIM)

    def lines(self, *, ascii_only: bool = False) -> list[Line]:
        """The screen; blanks at the ends of lines are left off."""
        return [self._spans(y, ascii_only) for y in range(self.height)]

    def _spans(self, y: int, ascii_only: bool) -> Line:
        whole, looks = "".join(self._cells[y]), self._looks[y]
        text = whole.translate(_ASCII) if ascii_only else whole
        end = self.width
        while end and text[end - 1] == " " and looks[end - 1] != SELECTED:
            end -= 1
        spans: list[TextSpan] = []
        start = 0
        for at in range(1, end + 1):
            if at == end or looks[at] != looks[start]:
                spans.append(TextSpan(text[start:at], looks[start]))
                start = at
        return tuple(spans)


def dimmed(line: Line) -> Line:
    """A line of what is not of now: neither a load nor a namespace has its colour."""
    return tuple(TextSpan(text, look if look in (TITLE, SELECTED, ALARM) else DIM) for text, look in line)


def columns_of(spans: Iterable[TextSpan]) -> int:
    """The columns that some spans take."""
    return sum(len(span.text) for span in spans)


def cut(text: str, width: int) -> str:
    """A text in at most so many columns."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…" if width > 0 else ""


def cut_inside(text: str, width: int) -> str:
    """A name in at most so many columns, without its middle: generated names are told apart by both ends."""
    end = (width - 1) // 2
    return text if len(text) <= width or width < 5 else f"{text[: width - 1 - end]}…{text[-end:]}"


def text_of(lines: list[Line]) -> str:
    """What a screen says, whatever it looks like."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)
