"""The traffic between replicas of two owners, remembered longer than the replicas live. Pure.

The weight of two owners is the mean, in lines a second, of what all their replicas exchanged while both owners had
some: a plain mean in the first hour and a half, later one in which what lies a half-life back (an hour, however
fast edges of containers fade) counts half. While one of them has no replica nothing fades: scaled down to zero
overnight is not the same as no longer talking. Owners that have exchanged nothing for a day are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.affinity.graph.traffic import Key, read_amount

HALF_LIFE_S = 3600.0
FORGOTTEN_AFTER_S = 86_400.0
#: Of more edges the lightest are forgotten: jobs whose names never come again must not fill the memory.
MOST_EDGES = 20_000


class _Memory:
    __slots__ = ("observed_s", "silent_s", "weight")

    def __init__(self, weight: float = 0.0, observed_s: float = 0.0, silent_s: float = 0.0) -> None:
        self.weight = weight
        self.observed_s = observed_s
        self.silent_s = silent_s


class OwnerMemory:
    """Edges between owners (``a`` <= ``b``; the same twice = replicas of one owner among themselves)."""

    def __init__(self) -> None:
        self._edges: dict[Key, _Memory] = {}

    def observe(self, seconds: float, lines: Mapping[Key, float], replicas: Mapping[str, int]) -> None:
        """Take in what owners exchanged in an interval; ``replicas``: how many each owner has now."""
        for key in lines:
            self._edges.setdefault(key, _Memory())
        share = 1.0 - 2.0 ** (-seconds / HALF_LIFE_S)
        for key, memory in list(self._edges.items()):
            seen = lines.get(key, 0.0)
            memory.silent_s = 0.0 if seen else memory.silent_s + seconds
            if memory.silent_s > FORGOTTEN_AFTER_S:
                del self._edges[key]
            elif seen or _are_both_there(key, replicas):
                memory.observed_s += seconds
                part = max(share, seconds / memory.observed_s)
                memory.weight += part * (seen / seconds - memory.weight)
        self._keep_the_heaviest()

    def weights(self) -> dict[Key, float]:
        """Lines a second by pair of owners."""
        return {key: memory.weight for key, memory in self._edges.items()}

    def state(self) -> list[list[Any]]:
        """As JSON: a row an edge."""
        return [[a, b, m.weight, m.observed_s, m.silent_s] for (a, b), m in sorted(self._edges.items())]

    def restore(self, rows: Any, elapsed_s: float) -> None:
        """Take over what ``state()`` gave, ``elapsed_s`` ago.

        :raises ValueError: it is something else.
        """
        restored = {}
        for a, b, weight, observed_s, silent_s in rows:
            memory = _Memory(read_amount(weight), read_amount(observed_s), read_amount(silent_s) + elapsed_s)
            if memory.silent_s <= FORGOTTEN_AFTER_S:
                restored[(str(a), str(b))] = memory
        self._edges = restored

    def _keep_the_heaviest(self) -> None:
        if len(self._edges) > MOST_EDGES:
            kept = sorted(self._edges.items(), key=lambda item: (-item[1].weight, item[0]))[:MOST_EDGES]
            self._edges = dict(kept)


def _are_both_there(key: Key, replicas: Mapping[str, int]) -> bool:
    a, b = key
    return replicas.get(a, 0) >= 1 + (a == b) and replicas.get(b, 0) >= 1
