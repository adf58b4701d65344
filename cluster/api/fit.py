"""A NodePlacement's status that is not too large: rows beyond the limit are left out, and counted. Pure.

etcd takes 1.5 MiB for an object, and every watcher of nodes gets it each time: with 256 KiB in all, managedFields, spec
and metadata included, ``STATUS_BYTES`` remain for the status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

OBJECT_BYTES = 256 * 1024
#: 16 KiB for metadata with managedFields (3 KiB measured), and 24 KiB for what people and the operator write.
STATUS_BYTES = OBJECT_BYTES - 40 * 1024
#: Rows of the lists at most, whatever room there is.
MOST_TEXTS, MOST_PROBLEMS, MOST_OVERRIDES, MOST_GROUPS, MOST_MEMBERS = 32, 32, 128, 64, 32
#: Each of 5,000 nodes has them in the operator's memory.
MOST_REMOTE = 32
#: L3s that protected and batch containers share.
MOST_SHARED = 32
#: Subjects of isolation: there are fewer.
MOST_SUBJECTS = 16
#: Characters of a text: a sentence, and a shorter one where room is scarce.
LONG, SHORT = 200, 60
ID_DIGITS = 13
#: States of containers that nothing is to be done about: others are shown first where not all can be.
ORDINARY = ("managed", "adopted", "kubelet")

Row = dict[str, Any]


def size(value: Any) -> int:
    """The bytes of a value as compact JSON, as the server keeps it."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def fit(status: Mapping[str, Any], most_bytes: int = STATUS_BYTES) -> dict[str, Any]:
    """A status of at most as many bytes as compact JSON, with ``counts`` filled in; the given one is not changed.

    The order of rows stays. Left out are, in this order and only as far as need be: ends of long texts; containers with
    nothing to be said about them, smallest first; groups, lightest first; zones, last first. Then there is nothing left
    that grows with the node.
    """
    counts = _counts(status)
    found = _limited(status, counts)
    # 1. Shorter reasons.
    if size(found) > most_bytes:
        found["placements"] = [_shortened(row, counts, SHORT) for row in found.get("placements", [])]
    # 2. Fewer rows, list by list.
    for name, order in _ORDERS.items():
        found["counts"] = counts
        rows = found.get(name, [])
        room = most_bytes - size({**found, name: []}) - _COUNTS_GROW
        if rows and size(rows) > room:
            found[name] = _most_important(rows, order, room)
            counts[f"{name}LeftOut"] += len(rows) - len(found[name])
    return {**found, "counts": counts}


#: Digits that counts may gain while rows are left out.
_COUNTS_GROW = 64


def _counts(status: Mapping[str, Any]) -> dict[str, int]:
    placements = status.get("placements", [])
    states = [row.get("state", "") for row in placements]
    return {
        "placements": len(placements),
        "placementsLeftOut": 0,
        "managed": states.count("managed"),
        "unplaced": states.count("unplaced"),
        "zones": len(status.get("zones", [])),
        "zonesLeftOut": 0,
        "affinityGroups": len(status.get("affinityGroups", [])),
        "affinityGroupsLeftOut": 0,
        "membersLeftOut": 0,
        "remoteTraffic": len(status.get("remoteTraffic", [])),
        "remoteTrafficLeftOut": 0,
        "overridesLeftOut": 0,
        "problemsLeftOut": 0,
        "warningsLeftOut": 0,
        "textsShortened": 0,
    }


def _limited(status: Mapping[str, Any], counts: dict[str, int]) -> dict[str, Any]:
    """A copy in which no text is long and no list but that of containers and zones is."""
    found = dict(status)
    if "placements" in found:
        found["placements"] = [_compact(row, counts) for row in found["placements"]]
    for name, most in (
        ("warnings", MOST_TEXTS),
        ("overrides", MOST_OVERRIDES),
        ("affinityGroups", MOST_GROUPS),
        ("remoteTraffic", MOST_REMOTE),
    ):
        if name in found:
            counts[f"{name}LeftOut"] += max(0, len(found[name]) - most)
            found[name] = [_shortened(item, counts, LONG) for item in found[name][:most]]
    if "affinityGroups" in found:
        found["affinityGroups"] = [_few_members(group, counts) for group in found["affinityGroups"]]
    if "claims" in found:
        found["claims"] = _shortened(found["claims"], counts, LONG)
    if "policy" in found and found["policy"] is not None:
        found["policy"] = _shortened(found["policy"], counts, LONG)
    if "doctor" in found:
        problems = found["doctor"].get("problems", [])
        counts["problemsLeftOut"] += max(0, len(problems) - MOST_PROBLEMS)
        kept = [_shortened(problem, counts, LONG) for problem in problems[:MOST_PROBLEMS]]
        found["doctor"] = {**found["doctor"], "problems": kept}
    if "conditions" in found:
        found["conditions"] = [_shortened(condition, counts, 4 * LONG) for condition in found["conditions"]]
    return found


def _compact(row: Row, counts: dict[str, int]) -> Row:
    """A container without keys that say nothing."""
    kept = {key: value for key, value in row.items() if value not in ("", None) and value is not False}
    if "containerId" in kept:
        kept["containerId"] = kept["containerId"][:ID_DIGITS]
    short: Row = _shortened(kept, counts, LONG)
    return short


def _shortened(item: Any, counts: dict[str, int], most: int) -> Any:
    """A text, or a mapping's texts, cut at ``most`` characters."""
    if isinstance(item, dict):
        return {key: _shortened(value, counts, most) for key, value in item.items()}
    if not isinstance(item, str) or len(item) <= most:
        return item
    counts["textsShortened"] += 1
    return f"{item[: most - 3]}..."


def _few_members(group: Row, counts: dict[str, int]) -> Row:
    members = group.get("members", [])
    counts["membersLeftOut"] += max(0, len(members) - MOST_MEMBERS)
    return {**group, "members": members[:MOST_MEMBERS]}


def _of_placement(row: Row) -> tuple[Any, ...]:
    """Containers without a place, containers with a demand, and large ones come first."""
    ordinary = row.get("state") in ORDINARY
    return (ordinary, not row.get("demand"), not row.get("exclusive"), -row.get("milliCpus", 0))


def _as_listed(_: Row) -> tuple[Any, ...]:
    return ()


_ORDERS: Mapping[str, Callable[[Row], tuple[Any, ...]]] = {
    "placements": _of_placement,
    "affinityGroups": _as_listed,
    "zones": _as_listed,
}


def _most_important(rows: list[Row], order: Callable[[Row], tuple[Any, ...]], room: int) -> list[Row]:
    """As many rows as there is room for, by importance, in the order that they had."""
    by_importance = sorted(range(len(rows)), key=lambda index: (order(rows[index]), index))
    # A comma each, and the brackets.
    ends = accumulate(size(rows[index]) + 1 for index in by_importance)
    kept = sorted(index for index, end in zip(by_importance, ends) if end + 2 <= room)
    return [rows[index] for index in kept]
