"""Clusters of containers that are worth a common place: heavy edges first, as large as the place at most.

Heavy-edge agglomeration as in multilevel graph partitioning (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998),
with a capacity in place of a number of parts, and bottom-up along the tree like TreeMatch (Jeannot, Mercier,
Tessier, TPDS 25(4), 2014): what was merged to fill a leaf is merged on to fill a NUMA node, then a socket.
An edge is worth its weight by a power of the smaller end's size: a hub does not eat its neighbours one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush


class Clustering:
    """Clusters that grow: ``merge`` up to a size, then further. A cluster goes by the number of one of its items."""

    def __init__(
        self, sizes: Sequence[int], edges: Iterable[tuple[int, int, float]], exponent: float
    ) -> None:
        self.members = [[item] for item in range(len(sizes))]
        self._sizes = list(sizes)
        self._factor = [size**-exponent for size in sizes]
        self._exponent = exponent
        self._near: list[dict[int, float]] = [{} for _ in sizes]
        for a, b, weight in edges:
            self._near[a][b] = self._near[b][a] = self._near[a].get(b, 0.0) + weight

    def size(self, cluster: int) -> int:
        """The sizes of its items, in all."""
        return self._sizes[cluster]

    def alive(self) -> list[int]:
        """The clusters there are, the largest first."""
        found = [cluster for cluster, members in enumerate(self.members) if members]
        return sorted(found, key=lambda cluster: (-self._sizes[cluster], cluster))

    def merge(self, most: int) -> None:
        """Merge along the edge that is worth most, again and again, while two ends are not larger than ``most``."""
        sizes, factor, near = self._sizes, self._factor, self._near
        heap = [
            (-weight * max(factor[a], factor[b]), a, b)
            for a, edges in enumerate(near)
            for b, weight in edges.items()
            if a < b and weight > 0 and sizes[a] + sizes[b] <= most
        ]
        heapify(heap)
        while heap:
            worth, a, b = heappop(heap)
            weight = near[a].get(b, 0.0)
            # Clusters never shrink: what is too large now, or gone, can be forgotten.
            if weight <= 0 or sizes[a] + sizes[b] > most:
                continue
            now = -weight * max(factor[a], factor[b])
            if now > worth:
                # The ends grew since: worth less by now, so it has to wait for its turn.
                heappush(heap, (now, a, b))
                continue
            if now < worth:
                continue
            self._join(a, b, most, heap)

    def _join(self, a: int, b: int, most: int, heap: list[tuple[float, int, int]]) -> None:
        sizes, factor, near = self._sizes, self._factor, self._near
        if len(near[a]) < len(near[b]):
            a, b = b, a
        mine, theirs = near[a], near[b]
        self.members[a] += self.members[b]
        self.members[b] = []
        sizes[a] += sizes[b]
        factor[a] = sizes[a] ** -self._exponent
        del mine[b], theirs[a]
        size, own = sizes[a], factor[a]
        for c, weight in theirs.items():
            ends = near[c]
            del ends[b]
            mine[c] = ends[a] = weight = weight + mine.get(c, 0.0)
            if weight > 0 and size + sizes[c] <= most:
                worth = -weight * max(own, factor[c])
                heappush(heap, (worth, a, c) if a < c else (worth, c, a))
        near[b] = {}
