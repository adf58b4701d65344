"""Hubs glue nothing; what matters to both ends counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.affinity.graph.traffic import Key, counted

PAIRS: dict[Key, float] = {(f"web{i}", f"wrk{i}"): 1e6 for i in range(4)}
EVERYBODY = [end for key in PAIRS for end in key]
REPLICAS = [f"{side}{i}" for side in "ab" for i in range(12)]


def star(hub: str, ends: list[str], weight: float) -> dict[Key, float]:
    return {(hub, end): weight for end in ends}


def idle(count: int) -> list[str]:
    return [f"idle{i}" for i in range(count)]


GRAPHS: dict[str, tuple[Mapping[Key, float], Mapping[Key, float]]] = {
    "pairs": (PAIRS, PAIRS),
    "too light to count": ({("a", "b"): 999.0}, {}),
    "a hub that everybody calls a little": ({**PAIRS, **star("dns", EVERYBODY, 5_000.0)}, PAIRS),
    "a hub of many, too": ({**PAIRS, **star("dns", [*EVERYBODY, *idle(200)], 5_000.0)}, PAIRS),
    "a hub is near those who only talk to it": (
        star("dns", idle(50), 5_000.0),
        star("dns", idle(50), 5_000.0),
    ),
    "a load balancer's backends have better to do": (
        {**star("lb", idle(20), 4e4), **{(end, f"{end}-db"): 1e5 for end in idle(20)}},
        {(end, f"{end}-db"): 1e5 for end in idle(20)},
    ),
    "replicas that all talk to each other are no hubs": (
        {(a, b): 1e4 for a in REPLICAS[:12] for b in REPLICAS[12:]},
        {(a, b): 1e4 for a in REPLICAS[:12] for b in REPLICAS[12:]},
    ),
    "three tiers": ({("web", "app"): 1e6, ("app", "db"): 5e5}, {("web", "app"): 1e6, ("app", "db"): 5e5}),
    "among themselves": ({("ring", "ring"): 1e5}, {("ring", "ring"): 1e5}),
}


@pytest.mark.parametrize(("weights", "expected"), GRAPHS.values(), ids=GRAPHS.keys())
def test_what_matters_to_both_ends_counts(
    weights: Mapping[Key, float], expected: Mapping[Key, float]
) -> None:
    assert counted(weights, 1000.0, 0.01) == expected


def test_without_floors_everything_counts() -> None:
    weights = {**PAIRS, **star("dns", EVERYBODY, 1.0)}
    assert counted(weights, 0.0, 0.0) == weights


_ends = st.sampled_from("abcdefgh")
_graphs = st.dictionaries(
    st.tuples(_ends, _ends).map(lambda key: (min(key), max(key))), st.floats(0, 1e7), max_size=30
)


@given(_graphs)
def test_the_heaviest_edge_of_a_small_graph_counts(weights: dict[Key, float]) -> None:
    kept = counted(weights, 1.0, 0.01)
    heaviest = max(weights.values(), default=0.0)
    assert kept.items() <= weights.items()
    assert heaviest < 1.0 or heaviest in kept.values()
