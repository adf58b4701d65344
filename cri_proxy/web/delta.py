"""What has changed between two documents: what is sent of the second one to a page that has the first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cri_proxy.web.document import Document

#: ``set``: of sections the rows that are new or other; ``gone``: of sections the ids that are not there any more.
Delta = Mapping[str, Mapping[str, Any]]


def delta(before: Document, now: Document) -> dict[str, dict[str, Any]]:
    """What makes ``now`` of ``before``; empty = they are the same. Both have the same sections."""
    changed: dict[str, Any] = {}
    gone: dict[str, Any] = {}
    for section, rows in now.items():
        old = before[section]
        # A row that is the same object is the same: no comparison for those.
        new = {
            key: row
            for key, row in rows.items()
            if key not in old or (old[key] is not row and old[key] != row)
        }
        left = [key for key in old if key not in rows]
        if new:
            changed[section] = new
        if left:
            gone[section] = left
    return {name: part for name, part in (("set", changed), ("gone", gone)) if part}


def patched(before: Document, change: Delta) -> dict[str, dict[str, Any]]:
    """The document after a change: what the page does with it, for tests of both."""
    after = {section: dict(rows) for section, rows in before.items()}
    for section, keys in change.get("gone", {}).items():
        for key in keys:
            after[section].pop(key, None)
    for section, rows in change.get("set", {}).items():
        after[section].update(rows)
    return after
