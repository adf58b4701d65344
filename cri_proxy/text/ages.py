"""Figures that are older than their interval: since when, and why. Pure.

The daemon decides it (``cri_proxy/daemon/ages.py``), and what draws only draws it. A document has them under ``old``, by
what they are figures of: ``{"traffic": {"since_s": 1764418984.1, "age_s": 241.0, "why": "the observer has ended"}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from cri_proxy.text.terminal import duration_text
from policies.frozen import frozen

TRAFFIC, CONTAINERS, PLAN = "traffic", "containers", "plan"
#: What they are called where they stand by themselves.
_NAMES = {TRAFFIC: "traffic", CONTAINERS: "containers' states", PLAN: "what the last plan has found"}


@frozen
class Old:
    """Figures that are not of now. ``since_s``: when they were taken, as Unix time; None = that is not known."""

    since_s: Optional[float]
    why: str


def old_document(found: Mapping[str, Optional[Old]], now_s: float) -> dict[str, dict[str, Any]]:
    """Those that are old, as plain data. ``now_s``: Unix time."""
    return {name: old_row(old, now_s) for name, old in found.items() if old is not None}


def old_row(old: Old, now_s: float) -> dict[str, Any]:
    """One of them."""
    age_s = None if old.since_s is None else round(max(0.0, now_s - old.since_s), 1)
    return {"since_s": old.since_s, "age_s": age_s, "why": old.why}


def old_text(name: str, row: Mapping[str, Any]) -> str:
    """``traffic is of 4 min ago: the observer has ended``."""
    return f"{_NAMES.get(name, name)} {_verb(name)} {since_text(row)}: {row['why']}"


def _verb(name: str) -> str:
    return "are" if name == CONTAINERS else "is"


def since_text(row: Mapping[str, Any]) -> str:
    """``of 4 min ago``."""
    age_s = row["age_s"]
    return "of before the daemon's start" if age_s is None else f"of {duration_text(age_s)} ago"


def old_texts(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for each that a document has under ``old``; a daemon before this version has none."""
    for name, row in (document.get("old") or {}).items():
        yield old_text(name, row)
