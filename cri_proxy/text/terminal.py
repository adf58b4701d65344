"""What texts for a terminal are made of: tables, lengths of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], lines: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Columns as wide as they must be; those of ``right`` are aligned to the right."""
    rows = [tuple(titles), *map(tuple, lines)]
    widths = [_widest(column) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _widest(texts: Iterable[str]) -> int:
    return max(map(len, texts))


def stance_text(stance: str) -> str:
    """What people read for a container's stance or state: ``foreign``, as programs have it, says too little."""
    return "modified externally" if stance == "foreign" else stance


def duration_text(seconds: float) -> str:
    """A length of time as a person says it, in one unit."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
