"""Groups are what strong edges join; hubs and chains of weak edges join nobody."""

from __future__ import annotations

import pytest

from policies.affinity.graph.groups import groups_of
from policies.affinity.graph.traffic import Edge

GRAPHS: dict[str, tuple[dict[tuple[str, str], float], list[tuple[str, ...]]]] = {
    "nobody": ({}, []),
    "two pairs, heaviest first": ({("a", "b"): 1.0, ("c", "d"): 9.0}, [("c", "d"), ("a", "b")]),
    "pairs with a weak bridge": (
        {("a", "b"): 9.0, ("c", "d"): 9.0, ("b", "c"): 2.0},
        [("a", "b"), ("c", "d")],
    ),
    "a chain": ({("web", "app"): 4.0, ("app", "db"): 2.0}, [("app", "db", "web")]),
    "a hub of twelve": (
        {
            **{(f"a{i:02}", f"b{i:02}"): 1.0 for i in range(6)},
            **{("hub", f"{s}{i:02}"): 0.9 for s in "ab" for i in range(6)},
        },
        [(f"a{i:02}", f"b{i:02}") for i in range(6)],
    ),
}


@pytest.mark.parametrize(("weights", "expected"), GRAPHS.values(), ids=GRAPHS.keys())
def test_groups(weights: dict[tuple[str, str], float], expected: list[tuple[str, ...]]) -> None:
    groups = groups_of(Edge(a, b, weight) for (a, b), weight in weights.items())
    assert [group.members for group in groups] == expected


def test_the_weight_of_a_group_is_of_all_edges_inside() -> None:
    [group] = groups_of([Edge("a", "b", 4.0), Edge("b", "c", 4.0), Edge("a", "c", 0.5)])
    assert group.weight == 8.5


def test_ends_that_were_silent_for_long_are_in_no_group() -> None:
    assert groups_of([Edge("a", "b", 0.0), Edge("c", "d", 1.0)])[0].members == ("c", "d")
    assert groups_of([Edge("a", "b", 0.0)]) == []
