"""How much more a plan must save while containers come and go and plans move others after them. Pure.

Where containers come and go, there is always something a little better than what is there, a part of it by the chances of
what was measured. Each plan for it pays, and the node is never still. So moves are held against plans that come after them,
less and less; where no container ends they are not, and what is better is had at once.
"""

from __future__ import annotations

from collections.abc import Collection

#: After so long half of it is forgotten, of moves and of containers that have ended.
HALF_LIFE_S = 3600.0
#: So many moves double what a plan must save, as many more add as much again; that is never more than so many times.
RESTLESS_MOVES, MOST_UNREST = 3.0, 4.0
#: Moves count in full where as many containers have ended as this part of those there are; where fewer have, less.
CHURN = 0.25


class Unrest:
    """Of one node. Times in seconds, given by the caller; a clock that goes back is one that stands still."""

    def __init__(self) -> None:
        self._containers: frozenset[str] = frozenset()
        self._ended = self._moves = self._at_s = 0.0

    def see(self, containers: Collection[str], now_s: float) -> None:
        """These are there; to be called before each plan."""
        self._fade(now_s)
        now = frozenset(containers)
        self._ended += len(self._containers - now)
        self._containers = now

    def moved(self, count: int, now_s: float) -> None:
        """So many containers were moved by a plan."""
        self._fade(now_s)
        share = self._ended / (CHURN * len(self._containers)) if self._containers else 0.0
        self._moves = min(self._moves + count * min(share, 1.0), (MOST_UNREST - 1.0) * RESTLESS_MOVES)

    def factor(self, now_s: float) -> float:
        """How many times as much as at rest a plan must save: 1 to ``MOST_UNREST``."""
        self._fade(now_s)
        return 1.0 + self._moves / RESTLESS_MOVES

    def _fade(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        keep = 2.0 ** (-passed_s / HALF_LIFE_S)
        self._ended *= keep
        self._moves *= keep
        self._at_s += passed_s
