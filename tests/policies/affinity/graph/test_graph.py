"""Samples in, a smoothed graph out: half-life, expiry, caps, owners, what readers are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.sources.samples import Flow
from policies.affinity.graph.graph import EndpointIdentity, Graph, GraphEdge, GraphSettings

#: 64 kB a second: 1,000 lines.
LINES_1000 = 64_000


def graph(**settings: Any) -> Graph:
    return Graph(GraphSettings(**{"half_life_s": 60.0, "least_weight": 1.0, **settings}))


def feed(graph: Graph, seconds: float, *flows: Flow, step: float = 10.0) -> None:
    """The same rate for some time: of each flow ``bytes_ab`` a second."""
    for _ in range(round(seconds / step)):
        graph.observe(step, [Flow(f.a, f.b, f.kind, int(f.bytes_ab * step)) for f in flows])


def weight(graph: Graph, a: str = "a", b: str = "b") -> float:
    return graph.traffic().edges.get(a, {}).get(b, 0.0)


def identity(name: str, owner: str = "") -> EndpointIdentity:
    return EndpointIdentity(name, namespace=owner.partition("/")[0], owner=owner)


AB = Flow("a", "b", bytes_ab=LINES_1000)


def test_a_weight_is_bytes_in_lines_and_messages() -> None:
    found = graph(message_lines=30.0)
    found.observe(600 * 60.0, [Flow("b", "a", "tcp", 64 * 36_000_000, 0, 36_000)])
    [edge] = found.edges
    assert edge.weight == pytest.approx(1000.0 + 30.0)
    assert (edge.bytes_ab_per_s, edge.bytes_ba_per_s) == (0.0, pytest.approx(64_000.0))


@pytest.mark.parametrize("step", [1.0, 10.0, 60.0])
def test_after_one_half_life_half_of_a_new_rate_is_believed(step: float) -> None:
    found = graph()
    feed(found, 60, AB, step=step)
    assert weight(found) == pytest.approx(500.0)


def test_traffic_that_has_stopped_counts_half_after_a_half_life() -> None:
    found = graph()
    feed(found, 6000, AB)
    feed(found, 60)
    assert found.edges[0].weight == pytest.approx(500.0, rel=0.02)


def test_an_edge_sleeps_after_ten_half_lives_and_expires_after_a_hundred() -> None:
    found = graph(least_weight=0.0)
    feed(found, 6000, Flow("a", "b", bytes_ab=10**12))
    feed(found, 600)
    assert weight(found) > 0
    feed(found, 10)
    assert (found.edges[0].weight, weight(found) > 0) == (0, True)
    feed(found, 5390)
    assert len(found.edges) == 1
    feed(found, 10)
    assert found.edges == []


def test_of_too_many_edges_the_lightest_that_sleep_go(monkeypatch) -> None:
    monkeypatch.setattr("policies.affinity.graph.graph.MOST_EDGES", 2)
    found = graph(least_weight=0.0)
    flows = [Flow("a", end, bytes_ab=number * 10**6) for number, end in enumerate("bcde", 1)]
    feed(found, 60, *flows)
    assert len(found.edges) == 4
    feed(found, 700, flows[0])
    assert [(edge.a, edge.b) for edge in found.edges] == [("a", "b"), ("a", "e")]


def test_one_edge_has_no_more_influence_than_its_cap() -> None:
    found = graph(most_weight=5000.0)
    feed(found, 600, Flow("a", "evil", bytes_ab=10**12), Flow("a", "b", bytes_ab=10**6))
    assert weight(found, "a", "evil") == 5000.0
    assert weight(found, "a", "b") == 5000.0


def test_kinds_add_up_on_one_edge() -> None:
    found = graph()
    found.observe(
        60, [Flow("a", "b", "tcp", 10**6), Flow("b", "a", "unix", messages=100), Flow("a", "a", "tcp", 5)]
    )
    assert [(e.a, e.b, e.kinds) for e in found.edges] == [("a", "b", ("tcp", "unix"))]


def test_a_pod_as_an_end_is_said() -> None:
    found = graph()
    found.observe(60, [Flow("pod:1", "a", bytes_ab=10**6)])
    assert [edge.is_pod_level for edge in found.traffic().listed] == [True]


WITHIN = {
    "node": {("a", "b"), ("a", "c"), ("a", "d"), ("a", "x")},
    "namespace": {("a", "b"), ("a", "c")},
    "owner": {("a", "b")},
}


@pytest.mark.parametrize(("within", "expected"), WITHIN.items())
def test_traffic_counts_only_inside_what_is_configured(within: str, expected: set[tuple[str, str]]) -> None:
    owners = {"a": "shop/web/nginx", "b": "shop/web/sidecar", "c": "shop/db/pg", "d": "blog/web/nginx"}
    found = graph(within=within)
    flows = [Flow("a", end, bytes_ab=10**7) for end in "bcdx"]
    found.observe(60, flows, {name: identity(name, owner) for name, owner in owners.items()})
    assert {(edge.a, edge.b) for edge in found.edges} == expected


# ---------------------------------------------------------------------- owners

WEB, DB = "shop/web/nginx", "shop/db/pg"
TWO = {"a1": identity("a1", WEB), "a2": identity("a2", WEB), "b1": identity("b1", DB)}


def test_owners_exchange_what_their_replicas_do_together() -> None:
    found = graph()
    found.observe(10, [Flow("a1", "b1", bytes_ab=640_000), Flow("b1", "a2", bytes_ab=640_000)], TWO)
    assert [(e.a, e.b, e.weight) for e in found.owner_edges] == [(DB, WEB, 2000.0)]


def test_containers_that_end_take_their_edges_with_them_and_their_owners_stay() -> None:
    found = graph()
    found.observe(60, [Flow("a1", "b1", bytes_ab=10**7)], TWO)
    before = found.traffic().owners
    found.forget({"a1", "a2", "b1"})
    found.observe(3600, [], {})
    assert found.edges == []
    assert found.traffic().owners == before


def test_owners_that_do_not_talk_any_more_fade_in_hours_while_both_are_there() -> None:
    found = graph()
    for _ in range(10):
        found.observe(3600, [Flow("a1", "b1", bytes_ab=64_000 * 3600)], TWO)
    found.observe(3600, [], TWO)
    assert found.owner_edges[0].weight == pytest.approx(500.0, rel=0.01)


def test_owners_are_forgotten_after_a_day_of_silence() -> None:
    found = graph()
    found.observe(10, [Flow("a1", "b1", bytes_ab=10**9)], TWO)
    found.observe(86_000, [], {})
    assert found.owner_edges
    found.observe(500, [], {})
    assert found.owner_edges == []


def test_replicas_of_one_owner_talk_to_themselves() -> None:
    found = graph()
    found.observe(10, [Flow("a1", "a2", bytes_ab=640_000)], TWO)
    assert found.traffic().owners == {WEB: {WEB: 1000.0}}


# ---------------------------------------------------------------------- what readers are told


def test_a_reader_is_told_of_what_has_changed_by_more_than_one_percent() -> None:
    found = graph()
    feed(found, 6000, AB, Flow("c", "d", bytes_ab=LINES_1000))
    version = found.version
    feed(found, 10, AB, Flow("c", "d", bytes_ab=2 * LINES_1000))
    changes = found.changes_since(version)
    assert changes is not None
    assert [(edge.a, edge.b) for edge in changes.edges.changed] == [("c", "d")]
    feed(found, 10, AB, Flow("c", "d", bytes_ab=LINES_1000))
    found.forget({"a"})
    found.refresh()
    later = found.changes_since(version)
    assert later is not None
    assert later.edges.gone == [("a", "b")]


def test_nothing_new_is_no_new_version() -> None:
    found = graph()
    feed(found, 60_000, AB, step=600)
    version = found.version
    feed(found, 600, AB)
    assert found.version == version


def test_a_reader_from_the_future_is_told_everything() -> None:
    assert graph().changes_since(7) is None


_ends = st.sampled_from(["a1", "a2", "b1", "x", "pod:1"])
_flows = st.lists(
    st.builds(Flow, _ends, _ends, st.sampled_from(["tcp", "unix"]), st.integers(0, 10**9)), max_size=8
)
_samples = st.lists(st.tuples(st.floats(0.1, 100), _flows, st.sets(_ends)), max_size=12)


@given(_samples, st.integers(0, 12))
def test_changes_make_of_an_old_picture_the_new_one(samples: list[Any], reads_at: int) -> None:
    found, known, version = graph(), {}, 0
    for number, (seconds, flows, ended) in enumerate(samples):
        if number == reads_at:
            known, version = {(e.a, e.b): e for e in found.edges}, found.version
        found.forget(ended)
        found.observe(seconds, flows, TWO)
    changes = found.changes_since(version)
    assert changes is not None
    for key in changes.edges.gone:
        known.pop(key, None)
    known.update({(edge.a, edge.b): edge for edge in changes.edges.changed})
    # Changes of less than 1 % are not told.
    assert {key: edge.weight for key, edge in known.items()} == pytest.approx(
        {(edge.a, edge.b): edge.weight for edge in found.edges}, rel=0.021
    )


@given(_samples)
def test_a_graph_is_symmetric_positive_and_survives_a_restart(samples: list[Any]) -> None:
    found = graph()
    for seconds, flows, ended in samples:
        found.forget(ended)
        found.observe(seconds, flows, TWO)
    traffic = found.traffic()
    assert all(traffic.edges[b][a] == w > 0 for a, peers in traffic.edges.items() for b, w in peers.items())
    assert all(a != b for a, peers in traffic.edges.items() for b in peers)
    again = graph()
    again.restore(json.loads(json.dumps(found.state())))
    assert keys(again.edges) >= keys(found.edges)
    assert again.version >= found.version


def keys(edges: list[GraphEdge]) -> set[tuple[str, str]]:
    return {(edge.a, edge.b) for edge in edges}


RUBBISH: list[Any] = [
    None,
    [],
    {},
    {"version": 1, "observed_s": 1, "edges": [[1, 2]], "owners": []},
    {"version": 1, "observed_s": 1, "edges": [["a", "b", -1, 0, 0, 0, []]], "owners": []},
    {"version": 1, "observed_s": 1, "edges": [], "owners": [["a", "b", "x", 0, 0]]},
    {"version": "x", "observed_s": 1, "edges": [], "owners": []},
]


@pytest.mark.parametrize("state", RUBBISH)
def test_rubbish_is_refused_as_a_whole(state: Any) -> None:
    found = graph()
    feed(found, 60, AB)
    before = found.edges
    with pytest.raises(ValueError):
        found.restore(state)
    assert found.edges == before


def test_after_a_reboot_only_owners_are_remembered() -> None:
    found = graph()
    found.observe(10, [Flow("a1", "b1", bytes_ab=10**7)], TWO)
    again = graph()
    again.restore(found.state(), with_edges=False)
    assert (again.edges, again.owner_edges, again.observed_s) == ([], found.owner_edges, 0.0)
