"""Traffic between containers as the rest of the program sees it: an immutable picture of a graph.

Weights are cache lines a second (bytes / 64 + K x messages), already smoothed, floored and capped
(policies/affinity/graph/graph.py). An *owner* is the workload a container is a replica of:
``namespace/workload/container`` (policies/affinity/pull/owners.py).

Edges count that matter to both of their ends (``counted``). Kept out are the edges to services that all call (name servers,
metrics collectors, the control plane of a mesh): they are light for the caller or for the service. The rule, by weight w in
lines a second, with total(e) = the sum of all edges of an end e, each capped at most_weight *before* anything is
summed, so that made-up traffic cannot push a neighbour's real edges under a floor:

1. w < least_weight: does not count.
2. w < least_share x total of either end: does not count.
3. An end is a *hub* if its heaviest edge is less than 10 x least_share of its total: by default, it has more than
   ten peers and none stands out. An edge of a hub counts only where it is more than half of the total of the other
   end (which then has none better to be near), or where the other end's total is at least half of the hub's
   (both are equals: replicas that all talk to each other are no hubs for each other).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Optional

from policies.frozen import dataclass

#: What endpoints are called of which only the pod is known.
POD_PREFIX = "pod:"
LINE_BYTES = 64
#: A container of whose traffic a smaller part was seen is not moved: its heaviest peer may not have been seen.
LEAST_TRUST = 0.5

#: The two ends of an edge.
Key = tuple[str, str]
Weights = Mapping[str, Mapping[str, float]]

#: A hub's heaviest edge is below this many least_shares of its traffic.
HUB_SHARES = 10
#: Above this part of an end's traffic an edge is its main one; ends whose totals differ less are equals.
MAIN_PART = 0.5


@dataclass(frozen=True)
class Edge:
    """One undirected edge, for tables: rates in bytes and messages a second, ``weight`` in lines a second.

    ``kinds``: tcp, udp, unix, shm. ``is_pod_level``: an end is a pod, not a container.
    ``steady_weight``: the one that placements go by (``SteadyWeight``); 0 = ``weight`` is.
    """

    a: str
    b: str
    weight: float
    bytes_per_s: float = 0.0
    messages_per_s: float = 0.0
    kinds: tuple[str, ...] = ()
    is_pod_level: bool = False
    steady_weight: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """A graph at one moment.

    ``edges``: by container id, then by peer's container id; symmetric. ``owners``: the same between owners, all
    replicas of both together; it remembers owners whose containers are gone. ``version`` grows with every change.
    ``frozen``: why the picture is old ("" = it is fresh). ``trust``: of endpoints of whose traffic some was lost, the part
    that was seen.
    """

    version: int = 0
    edges: Weights = field(default_factory=dict)
    owners: Weights = field(default_factory=dict)
    listed: tuple[Edge, ...] = ()
    frozen: str = ""
    trust: Mapping[str, float] = field(default_factory=dict)


def traffic_of(
    version: int,
    edges: Iterable[Edge],
    owners: Mapping[Key, float],
    frozen: str = "",
    trust: Optional[Mapping[str, float]] = None,
) -> Traffic:
    """The picture that these edges, between containers and between owners, make."""
    listed = sorted(edges, key=lambda edge: (-edge.weight, edge.a, edge.b))
    return Traffic(
        version,
        _symmetric((edge.a, edge.b, edge.steady_weight or edge.weight) for edge in listed),
        _symmetric((a, b, weight) for (a, b), weight in sorted(owners.items())),
        tuple(listed),
        frozen,
        trust or {},
    )


def read_amount(value: Any) -> float:
    """A rate, a weight or a time as it was written to JSON.

    :raises ValueError, TypeError: it is no number, below 0, or not finite.
    """
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{value} is no number of 0 or more")
    return number


def _symmetric(edges: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Weights by one end, then by the other, both ways."""
    weights: dict[str, dict[str, float]] = {}
    for a, b, weight in edges:
        weights.setdefault(a, {})[b] = weight
        weights.setdefault(b, {})[a] = weight
    return weights


def counted(weights: Mapping[Key, float], least_weight: float, least_share: float) -> dict[Key, float]:
    """The edges that count, in the order given. ``weights`` are capped; a key's two ends may be the same."""
    total, heaviest = totals_of(weights)
    hubs = {end for end, most in heaviest.items() if most < HUB_SHARES * least_share * total[end]}
    found = {}
    for (a, b), weight in weights.items():
        if weight < least_weight or weight < least_share * max(total[a], total[b]):
            continue
        if a in hubs and not _is_worth_it(weight, total[a], total[b]):
            continue
        if b in hubs and not _is_worth_it(weight, total[b], total[a]):
            continue
        found[(a, b)] = weight
    return found


def totals_of(weights: Mapping[Key, float]) -> tuple[dict[str, float], dict[str, float]]:
    """For each end the sum of its edges, and the heaviest of them."""
    total: dict[str, float] = {}
    heaviest: dict[str, float] = {}
    for ends, weight in weights.items():
        for end in set(ends):
            total[end] = total.get(end, 0.0) + weight
            if weight >= heaviest.get(end, 0.0):
                heaviest[end] = weight
    return total, heaviest


def _is_worth_it(weight: float, total_of_hub: float, total_of_other: float) -> bool:
    return weight > MAIN_PART * total_of_other or total_of_other >= MAIN_PART * total_of_hub
