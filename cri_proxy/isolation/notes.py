"""Sentences about what cannot be had: a node has hundreds of containers, and an operator reads some lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cri_proxy.text.sources import quote

#: How many sentences of a subject are told.
MOST = 8


def some(notes: Iterable[str]) -> tuple[str, ...]:
    """Each sentence once, the first of them where there are many, and how many more there are."""
    found = tuple(dict.fromkeys(notes))
    more = len(found) - MOST
    return found if more <= 0 else (*found[:MOST], f"and {more} more like these")


def not_configured(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """About classes that are asked for, and are not in their section."""
    return some(
        f"the {kind} class {quote(name)} is not configured: its containers are treated as if they did not ask for it"
        for name in sorted(set(names))
    )
