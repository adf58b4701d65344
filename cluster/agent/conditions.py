"""Conditions of a NodePlacement, as the API's conventions have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Characters of a message; the rest stands in the daemon's own status.
ENOUGH = 2000

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


@dataclass(frozen=True)
class Condition:
    """``reason`` is one word in camel case; ``message`` are sentences for people."""

    type: str
    status: str
    reason: str
    message: str = ""


def written(
    conditions: Iterable[Condition], before: Sequence[Mapping[str, Any]], now: str, generation: int = 0
) -> list[dict[str, Any]]:
    """The conditions as an object has them.

    ``before``: the conditions written last; a condition whose status is the same keeps its time. ``now``: RFC 3339.
    ``generation``: the spec that was looked at; 0 = it says nothing about that.
    """
    earlier = {condition.get("type"): condition for condition in before}
    return [_written(condition, earlier.get(condition.type, {}), now, generation) for condition in conditions]


def _written(condition: Condition, before: Mapping[str, Any], now: str, generation: int) -> dict[str, Any]:
    same = before.get("status") == condition.status and before.get("lastTransitionTime")
    document = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": shortened(condition.message, ENOUGH),
        "lastTransitionTime": before["lastTransitionTime"] if same else now,
    }
    return {**document, "observedGeneration": generation} if generation else document


def shortened(text: str, most: int) -> str:
    """One line of at most ``most`` characters; three dots where something was left out."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
