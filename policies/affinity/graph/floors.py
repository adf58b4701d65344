"""The edges of a graph that count: they matter to both of their ends. Pure.

Kept out are the edges to services that all call (name servers, metrics collectors, the control
plane of a mesh): they are light for the caller or for the service. The rule, by weight w in
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

from collections.abc import Mapping

from policies.affinity.graph.traffic import Key

#: A hub's heaviest edge is below this many least_shares of its traffic.
HUB_SHARES = 10
#: Above this part of an end's traffic an edge is its main one; ends whose totals differ less are equals.
MAIN_PART = 0.5


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
