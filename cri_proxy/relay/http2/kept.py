"""How much is kept in memory for all connections together, and which of them is to go when it is too much."""

from __future__ import annotations

from typing import Callable, Generic, Optional, TypeVar

Item = TypeVar("Item")


class Kept(Generic[Item]):
    """``most``: bytes for all together."""

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
