"""How much of a container's traffic was seen."""

from __future__ import annotations

import pytest

from bpf.sources.samples import Flow
from policies.affinity.graph.graph import SeenParts

AB = Flow("a", "b", messages=600)


def test_where_nothing_was_lost_there_is_nothing_to_tell() -> None:
    parts = SeenParts()
    parts.observe(10.0, [AB], {}, 66.0)
    assert parts.trust == {}


@pytest.mark.parametrize(
    ("connections", "told"),
    [(1, {}), (100, {"a": 0.8}), (300, {"a": 0.5}), (100_000, {"a": 0.0})],
)
def test_a_lost_connection_counts_as_a_request_and_its_response(
    connections: int, told: dict[str, float]
) -> None:
    parts = SeenParts()
    parts.observe(10.0, [AB, Flow("b", "c", messages=10_000)], {"a": connections}, 66.0)
    assert parts.trust == told


def test_what_was_lost_is_forgotten_like_rates_and_with_the_container() -> None:
    parts = SeenParts()
    parts.observe(10.0, [AB], {"a": 900, "b": 900}, 10.0)
    for _ in range(3):
        parts.observe(10.0, [AB], {}, 10.0)
    assert parts.trust["a"] > 0.5
    parts.forget({"a"})
    for _ in range(30):
        parts.observe(10.0, [AB], {}, 10.0)
    assert parts.trust == {}
