"""The connections of a relay, in the order in which they are closed when there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Callable, Generic, Optional, TypeVar

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


# ---------------------------------------------------------------------- memory


class BufferBudget(Generic[Item]):
    """How much is kept for all connections together. ``most``: bytes; with more, one of them is to go."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        #: Those for which there is anything.
        self._sizes: dict[Item, int] = {}

    def note(self, item: Item, size: int) -> bool:
        """So much is kept for one now. Whether all together is too much: then ask for ``loser`` until there is none."""
        before = self._sizes.get(item, 0)
        if size == before:
            return self.total > self.most
        self.total += size - before
        if size:
            self._sizes[item] = size
        else:
            del self._sizes[item]
        return self.total > self.most

    def discard(self, item: Item) -> None:
        """Nothing is kept for one any more."""
        self.total -= self._sizes.pop(item, 0)

    def loser(self, value: Callable[[Item], tuple[bool, float]]) -> Optional[Item]:
        """The one of least value among those with at least half an equal share of all that is kept; None: all may stay.

        There always is one. What is kept for the others is not what there is too much of.
        """
        if self.total <= self.most:
            return None
        share = self.total / len(self._sizes) / 2
        return min((item for item, size in self._sizes.items() if size >= share), key=value)
