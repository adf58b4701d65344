"""Containers that belong together: the parts into which a graph falls without its weak edges and its hubs. Pure.

For people and dashboards; placement works on the edges themselves, because belonging together this way is
transitive, and a chain of neighbours may fill a machine. The rule: an edge joins its ends if it is at least a
quarter of the heaviest edge of each of them, and neither is a hub (an end whose heaviest edge is less than a tenth
of all its traffic). A container joined to none is in no group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from policies.affinity.graph.traffic import totals_of
from policies.frozen import dataclass

LEAST_OF_HEAVIEST = 0.25
HUB_PART = 0.1


class WeightedEdge(Protocol):
    """Two ends and a weight."""

    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def weight(self) -> float: ...


@dataclass(frozen=True)
class TrafficGroup:
    """``members`` by id; ``weight``: of all edges between them, lines a second."""

    members: tuple[str, ...]
    weight: float


def groups_of(edges: Iterable[WeightedEdge]) -> list[TrafficGroup]:
    """The groups, heaviest first."""
    weights = {(edge.a, edge.b): edge.weight for edge in edges}
    total, heaviest = totals_of(weights)
    hubs = {end for end, most in heaviest.items() if most < HUB_PART * total[end]}
    # 1. Join the ends of every edge that is strong for both.
    leader: dict[str, str] = {}
    for (a, b), weight in sorted(weights.items()):
        is_strong = 0 < weight >= LEAST_OF_HEAVIEST * max(heaviest[a], heaviest[b])
        if is_strong and a not in hubs and b not in hubs:
            leader[_find(leader, a)] = _find(leader, b)
    # 2. Collect the ends with the same leader, and their traffic inside.
    members: dict[str, list[str]] = {}
    for end in sorted(leader):
        members.setdefault(_find(leader, end), []).append(end)
    inside = dict.fromkeys(members, 0.0)
    for (a, b), weight in weights.items():
        if a in leader and b in leader and _find(leader, a) == _find(leader, b):
            inside[_find(leader, a)] += weight
    groups = [TrafficGroup(tuple(found), inside[first]) for first, found in members.items()]
    return sorted(groups, key=lambda group: (-group.weight, group.members))


def _find(leader: dict[str, str], end: str) -> str:
    """The leader of an end's set, which every end of a joined edge gets; paths are halved on the way."""
    leader.setdefault(end, end)
    while leader[end] != end:
        leader[end] = leader[leader[end]]
        end = leader[end]
    return end
