"""Server-side apply, as far as ours needs it: fields, their owners, and what becomes of both.

https://kubernetes.io/docs/reference/using-api/server-side-apply/ A list is one field, except those of MAP_LISTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Path = tuple[Any, ...]
#: Owners of each field, by its path.
Fields = dict[Path, frozenset[str]]

#: Lists whose items are fields of their own, by the keys of an item: as packaging/cluster/crds has them.
MAP_LISTS: dict[Path, tuple[str, ...]] = {
    ("status", "conditions"): ("type",),
    ("spec", "overrides"): ("namespace", "pod", "container"),
    ("metadata", "ownerReferences"): ("uid",),
}
ATOMIC: set[Path] = {("status", "machine")}


class Conflict(Exception):
    """A field that another manager owns is to be another."""


def applied(
    found: Mapping[str, Any], fields: Fields, wanted: Mapping[str, Any], manager: str, force: bool
) -> tuple[dict[str, Any], Fields]:
    """The object and the owners after ``manager`` has applied ``wanted``; both are parts that this path may write.

    :raises Conflict: without ``force``.
    """
    before, mine = flat(found), flat(wanted)
    owners = dict(fields)
    after = dict(before)
    # 1. What another owns and is to differ.
    fought = {
        path: others
        for path, value in mine.items()
        if (others := owners.get(path, frozenset()) - {manager}) and before.get(path) != value
    }
    if fought and not force:
        path, others = next(iter(fought.items()))
        raise Conflict(
            f'Apply failed with 1 conflict: conflict with "{min(others)}": .{".".join(map(str, path))}'
        )
    for path in fought:
        owners[path] = frozenset()
    # 2. What this manager owned and no longer wants.
    for path in [path for path, names in owners.items() if manager in names and path not in mine]:
        owners[path] -= {manager}
        if not owners[path]:
            del owners[path]
            after.pop(path, None)
    # 3. What it wants; a field takes the place of those below or above it.
    for path, value in mine.items():
        for other in [each for each in after if each != path and _is_above(each, path)]:
            del after[other]
            owners.pop(other, None)
        after[path] = value
        owners[path] = owners.get(path, frozenset()) | {manager}
    return whole(after), owners


def changed_by(before: Mapping[str, Any], after: Mapping[str, Any], fields: Fields, manager: str) -> Fields:
    """Owners after a write that is no apply: what it changes is its manager's alone."""
    old, new = flat(before), flat(after)
    owners = {path: names for path, names in fields.items() if path in new}
    for path, value in new.items():
        if path[0] in ("apiVersion", "kind") or path == ("metadata", "name"):
            continue
        if path not in old or old[path] != value:
            owners[path] = frozenset({manager})
    return owners


def flat(value: Any, at: Path = ()) -> dict[Path, Any]:
    """Fields by path. An item of a map list has its keys in the path."""
    if at in MAP_LISTS and isinstance(value, list):
        found: dict[Path, Any] = {}
        for item in value:
            key = tuple(item.get(name) for name in MAP_LISTS[at])
            found.update({(*at, key, *path): leaf for path, leaf in flat(item).items()})
        return found
    if isinstance(value, Mapping) and value and at not in ATOMIC:
        found = {}
        for name, inner in value.items():
            found.update(flat(inner, (*at, name)))
        return found
    return {} if value is None else {at: value}


def whole(fields: Mapping[Path, Any]) -> dict[str, Any]:
    """The object that has these fields."""
    made: dict[Any, Any] = {}
    for path, value in fields.items():
        at = made
        for word in path[:-1]:
            at = at.setdefault(word, {})
        at[path[-1]] = value
    for path in MAP_LISTS:
        parent = made
        for word in path[:-1]:
            parent = parent.get(word, {})
        if isinstance(parent.get(path[-1]), dict):
            parent[path[-1]] = list(parent[path[-1]].values())
    return made


def _is_above(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
