"""Containers by home and by request: how much each one inside some CPUs would free.

An index beside the node's books. It holds what could be moved to make room: containers that are placed, that request
CPUs, and that neither a group nor the reserved CPUs hold. A question costs what the leaves it is about hold, whatever
else the node does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Optional

from policies.model import Placement

#: The negated request in milli-CPUs and the key: in ascending order the largest request comes first, equals by key.
Entry = tuple[int, str]


class Homes:
    """Keys of containers by the home they have; ``leaf_of``: the index of the leaf of each CPU of the machine."""

    def __init__(self, leaf_of: Mapping[int, int]) -> None:
        self._leaf_of = leaf_of
        #: By home the entries of its containers, sorted.
        self._entries: dict[frozenset[int], list[Entry]] = {}
        #: Homes by the leaf of their lowest CPU; None: the machine does not have that CPU, or there is none.
        self._starting_on: dict[Optional[int], set[frozenset[int]]] = {}

    def add(self, key: str, placement: Optional[Placement], milli_request: int) -> None:
        """Note a container, if it could make room for others."""
        if placement is None or not _is_movable(placement, milli_request):
            return
        entries = self._entries.get(placement.home)
        if entries is None:
            entries = self._entries[placement.home] = []
            self._starting_on.setdefault(self._first_leaf(placement.home), set()).add(placement.home)
        insort(entries, (-milli_request, key))

    def remove(self, key: str, placement: Optional[Placement], milli_request: int) -> None:
        """Forget a container that was added with the same words."""
        if placement is None or not _is_movable(placement, milli_request):
            return
        entries = self._entries[placement.home]
        del entries[bisect_left(entries, (-milli_request, key))]
        if not entries:
            del self._entries[placement.home]
            self._starting_on[self._first_leaf(placement.home)].discard(placement.home)

    def largest(self, cpus: frozenset[int]) -> Iterator[str]:
        """Containers inside of these CPUs, the largest request first, equal ones by key."""
        return _keys(_merged(self._inside(cpus)))

    def at_least(self, cpus: frozenset[int], milli_request: int) -> Iterator[str]:
        """The ones that request as much or more, in the opposite order: the smallest request first."""
        # No key is less than the empty one: before this entry are all that request as much or more.
        end = (1 - milli_request, "")
        parts = [_backwards(entries, bisect_left(entries, end)) for entries in self._inside(cpus)]
        return _keys(merge(*parts, reverse=True) if len(parts) > 1 else parts[0] if parts else ())

    def _inside(self, cpus: frozenset[int]) -> list[list[Entry]]:
        """The entries of each home that lies inside of these CPUs."""
        leaves: set[Optional[int]] = {self._leaf_of.get(cpu) for cpu in cpus}
        leaves.add(None)
        homes = [home for leaf in leaves for home in self._starting_on.get(leaf, ()) if home <= cpus]
        return [self._entries[home] for home in homes]

    def _first_leaf(self, home: frozenset[int]) -> Optional[int]:
        return self._leaf_of.get(min(home)) if home else None


def _is_movable(placement: Placement, milli_request: int) -> bool:
    return bool(milli_request and not placement.group and placement.level != "reserved")


def _merged(parts: list[list[Entry]]) -> Iterable[Entry]:
    return parts[0] if len(parts) == 1 else merge(*parts)


def _backwards(entries: list[Entry], end: int) -> Iterator[Entry]:
    """The entries before ``end``, the last one first."""
    return (entries[index] for index in range(end - 1, -1, -1))


def _keys(entries: Iterable[Entry]) -> Iterator[str]:
    return (key for _, key in entries)
