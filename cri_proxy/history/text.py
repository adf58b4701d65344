"""The history as lines for a terminal, and what ``--since`` says. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone, tzinfo
from typing import Any, Optional

from cri_proxy.engine.changes import CAUSES

#: As many containers that one entry has changed alike are named.
NAMED = 3
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d|w)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


class BadTime(ValueError):
    """A text that is no time. The message says what is expected."""


def read_since(text: str, now_s: float) -> float:
    """When ``--since`` is, in seconds since 1970: so long ago (``90s``, ``2h``, ``3d``), or a date and time (ISO 8601; where
    no zone is said that of this machine).

    :raises BadTime: it is neither.
    """
    length = _LENGTH.fullmatch(text.strip())
    if length is not None:
        return now_s - float(length[1]) * _UNITS[length[2]]
    try:
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        expected = "a length of time such as 30m, 2h or 3d, or a time such as 2026-01-31 or 2026-01-31T14:00"
        raise BadTime(f"{text!r:.40} is no time, expected {expected}") from None


def entry_lines(row: Mapping[str, Any], zone: Optional[tzinfo] = None) -> Iterator[str]:
    """An entry: what was decided, then what it has changed. ``zone``: None = that of this machine."""
    operation = CAUSES.get(row["operation"], row["operation"])
    about = f" {row['container'] or row['id'][:13]}" if row["container"] or row["id"] else ""
    line = f"{time_text(row['time_s'], zone)}  {operation}{about}"
    # A cause that is no decision about its container has left its place as it is, or ended it.
    where = f"{row['cpus'] or 'untouched'} ({row['level']})" if row["stance"] else ""
    said = ", ".join(filter(None, (where, row["why"])))
    yield f"{line}{': ' if said else ''}{said}{' -> ' if row['outcome'] else ''}{row['outcome']}"
    for change in row["changes"]:
        names = [one["container"] or one["id"][:13] for one in change["containers"]]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        why = f", {change['why']}" if change["why"] else ""
        place = f"{change['cpus'] or 'untouched'} ({change['level']})"
        yield f"    {change['operation']} {', '.join(names[:NAMED])}{more}: {place}{why}"
    move = row["move"]
    if move is not None:
        for side in ("nearer", "farther", "exchanged"):
            names = [one["container"] or one["id"][:13] for one in move[side]]
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                words = {"nearer": "nearer to", "farther": "farther from", "exchanged": "changed places with"}
                yield f"    {words[side]} {', '.join(names[:NAMED])}{more}"


def time_text(time_s: float, zone: Optional[tzinfo] = None) -> str:
    """A time as a person reads it, to the second."""
    return datetime.fromtimestamp(time_s, timezone.utc).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")
