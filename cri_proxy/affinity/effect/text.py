"""What was measured around a plan: as plain data, and as lines for people. Pure.

A gain is only what was counted on this machine, and is told as what it is: so many fills before, so many after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cri_proxy.affinity.effect.comparison import UNKNOWN, Effect
from cri_proxy.affinity.effect.events import EventSet


def effect_row(events: EventSet, effect: Effect, left_out: int) -> dict[str, Any]:
    """An effect as plain data. ``left_out``: containers that ``affinity.measure_descriptors`` was too small for."""
    known = effect.verdict != UNKNOWN
    return {
        "verdict": effect.verdict,
        "cpu": events.cpu,
        "per": events.per_words,
        "events": [
            {"name": event.name, "words": event.words, "before": before, "after": after}
            for event, before, after in zip(events.events, effect.before, effect.after)
            if known
        ],
        "noise": effect.noise,
        "compared": effect.compared,
        "idle": effect.idle,
        "left_out": left_out,
        "unseen": events.unseen,
    }


def worse_sentence(effect: Effect, per_words: str) -> str:
    """Why moves are taken back."""
    return (
        f"its plan's containers fetch {sum(effect.after):.3f} lines from other L3s and nodes per {per_words}, before it was "
        f"{sum(effect.before):.3f} (windows before differ by {effect.noise:.3f})"
    )


def effect_lines(row: Mapping[str, Any]) -> list[str]:
    """The last measured plan, without indentation; nothing was measured yet: no line."""
    if not row:
        return []
    lines = [
        f"{event['words']} per {row['per']}: {event['before']:.3f} before, {event['after']:.3f} after"
        for event in row["events"]
    ]
    taken_back = f"; {row['taken_back']} taken back" if row.get("taken_back") else ""
    lines.append(f"last plan {row['age_s']:.0f} s ago: {_verdict(row)}{taken_back}; {_of_what(row)}")
    l3 = row.get("l3") or {}
    for words, before, after in l3.get("shares", ()):
        lines.append(f"{words}: {before:.1%} before, {after:.1%} after (of all that runs there)")
    if row["unseen"]:
        lines.append(row["unseen"])
    return lines


def _verdict(row: Mapping[str, Any]) -> str:
    if row["verdict"] == UNKNOWN:
        return "no effect is known, as no container was busy before and after"
    return f"{row['verdict']} (windows before differ by {row['noise']:.3f})"


def _of_what(row: Mapping[str, Any]) -> str:
    parts = [f"{row['compared']} container{'' if row['compared'] == 1 else 's'} compared"]
    if row["idle"]:
        parts.append(f"{row['idle']} too idle")
    if row["left_out"]:
        parts.append(f"{row['left_out']} left out (affinity.measure_descriptors)")
    return ", ".join(parts)
