"""Every Node has a NodePlacement, and nothing else has one for long."""

from __future__ import annotations

from cluster.operator.objects import NodePlacement, read_node_placement
from cluster.operator.plan import GONE_S, collect


def placements(*names: str) -> list[NodePlacement]:
    return [read_node_placement({"metadata": {"name": name, "uid": f"uid-{name}"}}) for name in names]


def test_nodes_without_one_get_one() -> None:
    assert collect({"b", "a", "c"}, placements("c"), {}, 0.0).create == ("a", "b")


def test_that_of_a_gone_node_goes_after_a_while() -> None:
    first = collect({"a"}, placements("a", "gone"), {}, 100.0)
    assert first.delete == ()
    assert first.wake_at == 100.0 + GONE_S
    later = collect({"a"}, placements("a", "gone"), first.missing_since, 100.0 + GONE_S)
    assert [each.name for each in later.delete] == ["gone"]


def test_a_node_that_comes_back_in_time_keeps_it() -> None:
    first = collect({"a"}, placements("a", "b"), {}, 0.0)
    back = collect({"a", "b"}, placements("a", "b"), first.missing_since, 30.0)
    assert back.missing_since == {}
    assert collect({"a"}, placements("a", "b"), back.missing_since, 70.0).delete == ()


def test_where_no_node_is_known_nothing_is_deleted() -> None:
    assert collect(set(), placements("a"), {"a": 0.0}, 1e6).delete == ()
