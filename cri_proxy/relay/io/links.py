"""The connections of a relay, in the order in which they are closed when there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Generic, Optional, TypeVar

Item = TypeVar("Item")


class Kind(IntEnum):
    """What a connection is good for; the least first."""

    UNFINISHED = 0  # its client has not said its preface
    UNUSED = 1  # there was no call yet
    IDLE = 2  # there were calls, and there is none now
    BUSY = 3
    GOING = 4  # closed, and its client has yet to go


#: Kinds of which there may be a limited number together, and the part of it that each has for itself: a client that has
#: just connected is not closed for one that is idle. Those that are GOING are counted by themselves.
RESTING = {Kind.UNFINISHED: 0.25, Kind.UNUSED: 0.25, Kind.IDLE: 0.5}


class Links(Generic[Item]):
    """Whatever is done here takes the same time with ten of them and with thousands."""

    def __init__(self) -> None:
        #: Each in the order in which they became what they are.
        self._by_kind: dict[Kind, dict[Item, None]] = {kind: {} for kind in Kind}
        self._kinds: dict[Item, Kind] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[Item]:
        """A list of its own: it may be changed meanwhile."""
        return iter(list(self._kinds))

    def count(self, *kinds: Kind) -> int:
        return sum(len(self._by_kind[kind]) for kind in kinds)

    def place(self, item: Item, kind: Kind) -> None:
        """An item has become this, now."""
        self.discard(item)
        self._kinds[item] = kind
        self._by_kind[kind][item] = None

    def discard(self, item: Item) -> None:
        kind = self._kinds.pop(item, None)
        if kind is not None:
            del self._by_kind[kind][item]

    def oldest(self, kind: Kind) -> Item:
        """The one that has been it for longest; there must be one."""
        return next(iter(self._by_kind[kind]))

    def surplus(self, most: int) -> Optional[Item]:
        """The one to close if more than so many rest: the oldest of the first kind that has more than its part."""
        if self.count(*RESTING) <= most:
            return None
        kind = next(kind for kind, part in RESTING.items() if self.count(kind) > part * most)
        return self.oldest(kind)
