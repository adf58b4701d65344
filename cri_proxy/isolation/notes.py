"""Sentences about what cannot be had: a node has hundreds of containers, and an operator reads some lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: How many sentences of a subject are told.
MOST = 8


def some(notes: Iterable[str]) -> tuple[str, ...]:
    """Each sentence once, the first of them where there are many, and how many more there are."""
    found = tuple(dict.fromkeys(notes))
    more = len(found) - MOST
    return found if more <= 0 else (*found[:MOST], f"and {more} more like these")
