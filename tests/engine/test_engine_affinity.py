"""Traffic in the engine: a container that is created comes near those it will talk to, and people can see why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.report import explain
from cri_proxy.simulator.preview import records_of, what_would_move
from policies.affinity.graph.traffic import Edge, Traffic
from policies.machine.cpus import format_cpus
from policies.model import NO_CONSTRAINT, Constraint, Container, Resources
from policies.settings import EngineOptions
from tests.config.configs import read
from tests.machines import HYGON_7285_2S
from tests.scenes import Number, Shadow, again, engine_on, make_container, make_pod, run, topology

CCX = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]
HASH = "5d4f8c7b9d"


def replica(workload: str, suffix: str, cpus: Number = 2) -> Container:
    """A container of a Deployment's pod."""
    pod = replace(make_pod(f"{workload}-{HASH}-{suffix}"), labels={"pod-template-hash": HASH})
    return make_container("app", limit=cpus, request=cpus, pod=pod)


def traffic(*edges: tuple[str, str, float], owners: tuple[tuple[str, str, float], ...] = ()) -> Traffic:
    def both_ways(given: tuple[tuple[str, str, float], ...]) -> dict[str, dict[str, float]]:
        weights: dict[str, dict[str, float]] = {}
        for a, b, weight in given:
            weights.setdefault(a, {})[b] = weight
            weights.setdefault(b, {})[a] = weight
        return weights

    listed = tuple(Edge(a, b, weight, weight * 64, weight / 10) for a, b, weight in edges)
    return Traffic(1, both_ways(edges), both_ways(owners), listed)


WEB_DB = ("default/web/app", "default/db/app", 200_000.0)


@pytest.fixture
def engine() -> Engine:
    """A db on CCX 0, others on the next three: the fifth is the emptiest."""
    engine = engine_on(HYGON_7285_2S)
    run(engine, replica("db", "aaaaa"), "db")
    for number in range(3):
        run(engine, make_container(f"o{number}", limit=2, request=2), f"o{number}")
    return engine


def ccx_of(engine: Engine, key: str) -> int:
    return CCX.index(engine.grants[key].cpus)


# ---------------------------------------------------------------------- placed at create


def test_a_new_replica_comes_near_its_owners_peers_before_any_traffic(engine) -> None:
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    grant = run(engine, replica("web", "bbbbb"), "web")
    assert ccx_of(engine, "web") == ccx_of(engine, "db") == 0
    assert grant.why.endswith(f"; near default/db-{HASH}-aaaaa/app (about 12.8 MB/s)")


def test_without_edges_of_its_own_it_goes_where_it_would_without_traffic(engine) -> None:
    engine.set_traffic(traffic(("db", "o1", 5e5), owners=(WEB_DB,)))
    decision = engine.admit(make_container("x", limit=2), NO_CONSTRAINT, 1.0).decision
    other = engine_on(HYGON_7285_2S)
    for grant in engine.grants.values():
        if grant.key != "ticket-5":
            run(other, grant.container, grant.key)
    assert other.admit(make_container("x", limit=2), NO_CONSTRAINT, 1.0).decision == decision


def test_room_comes_before_peers_and_people_are_told(engine) -> None:
    run(engine, make_container("big", limit=6, request=6), "big", within=Constraint(CCX[0]))
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    grant = run(engine, replica("web", "bbbbb"), "web")
    assert ccx_of(engine, "web") == 1  # of the same node
    assert grant.why.endswith("(about 12.8 MB/s)")


def test_peers_in_another_node_are_said_to_be_far() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, replica("db", "aaaaa"), "db", within=Constraint(CCX[0]))
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    grant = run(engine, replica("web", "bbbbb"), "web", within=Constraint(CCX[9]))
    assert grant.why.endswith(f"; far from default/db-{HASH}-aaaaa/app (about 12.8 MB/s)")


def test_at_most_three_peers_are_named() -> None:
    engine = engine_on(HYGON_7285_2S)
    for number in range(5):
        run(engine, replica(f"db{number}", "aaaaa", 0.1), f"db{number}", within=Constraint(CCX[0]))
    owners = tuple(("default/web/app", f"default/db{n}/app", 1e5 + n) for n in range(5))
    engine.set_traffic(traffic(owners=owners))
    why = run(engine, replica("web", "bbbbb", 0.1), "web").why
    assert [f"db{n}-" in why for n in range(5)] == [False, False, True, True, True]


def test_replicas_of_one_owner_that_talk_come_together_though_they_are_pods_of_their_own() -> None:
    engine = engine_on(HYGON_7285_2S)
    engine.set_traffic(traffic(owners=(("default/ring/app", "default/ring/app", 1e5),)))
    for suffix in ("aaaaa", "bbbbb", "ccccc"):
        run(engine, replica("ring", suffix), suffix)
    assert {ccx_of(engine, key) for key in engine.grants} == {0}


def test_a_pod_that_is_larger_than_its_containers_is_not_hindered(engine) -> None:
    """Its domain P is looked for as if the pod were alone, among those that peers are near first."""
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    web = replica("web", "bbbbb")
    sized = replace(web, pod=replace(web.pod, size=make_pod("p", size=(3, 3)).size))
    run(engine, sized, "web")
    assert ccx_of(engine, "web") == 0


def test_a_resize_keeps_to_its_old_home_before_it_follows_its_peers() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, replica("db", "aaaaa"), "db", within=Constraint(CCX[9]))
    run(engine, replica("web", "bbbbb"), "web")
    run(engine, make_container("big", limit=6, request=6), "big", within=Constraint(CCX[0]))
    engine.set_traffic(traffic(("db", "web", 2e5)))
    admission = engine.resize("web", Resources(9000, 9000), NO_CONSTRAINT, 1.0)
    assert admission is not None
    assert CCX[0] <= admission.placement.cpus  # around its old home, as without traffic
    engine.cancel(admission.ticket, 1.0)
    assert broken_invariants(engine) == []


def test_traffic_that_is_frozen_counts_as_before(engine) -> None:
    engine.set_traffic(replace(traffic(owners=(WEB_DB,)), frozen="the observer is gone"))
    run(engine, replica("web", "bbbbb"), "web")
    assert ccx_of(engine, "web") == 0


def test_where_affinity_is_off_nothing_pulls() -> None:
    engine = engine_on(HYGON_7285_2S, options=EngineOptions(use_traffic=False))
    run(engine, replica("db", "aaaaa"), "db")
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    grant = run(engine, replica("web", "bbbbb"), "web")
    assert (ccx_of(engine, "web"), "near" in grant.why) == (1, False)


# ---------------------------------------------------------------------- the picture


def test_a_new_picture_moves_nobody_and_is_not_written_down(engine) -> None:
    engine.drain()
    before = engine.version, dict(engine.grants)
    engine.set_traffic(traffic(("db", "o1", 5e5), owners=(WEB_DB,)))
    assert (engine.version, dict(engine.grants), engine.drain()) == (*before, {})
    assert engine.traffic.edges["db"] == {"o1": 5e5}


def test_replicas_are_counted_through_restarts_resizes_and_ends(engine) -> None:
    state, web = engine, replica("web", "bbbbb")
    run(engine, web, "w0")
    engine.exited("w0", 1, 1.0)
    run(engine, again(web, 1), "w1", 2.0)
    assert state.replicas["default/web/app"] == {"w1"}
    admission = engine.resize("w1", Resources(3000, 3000), NO_CONSTRAINT, 3.0)
    assert admission is not None
    engine.commit(admission.ticket, 4.0)
    assert state.replicas["default/web/app"] == {"w1"}
    engine.remove("w1")
    assert "default/web/app" not in state.replicas


def test_a_create_that_fails_leaves_no_replica(engine) -> None:
    engine.cancel(engine.admit(replica("web", "bbbbb"), NO_CONSTRAINT, 1.0).ticket, 1.0)
    assert "default/web/app" not in engine.replicas


def test_a_trial_of_another_configuration_knows_the_traffic(engine) -> None:
    engine.set_traffic(traffic(("db", "o1", 5e5)))
    config = read("{}").config
    assert records_of(engine).traffic is engine.traffic
    assert what_would_move(records_of(engine), config, config, engine.host) == ()


def test_the_journal_is_complete(engine) -> None:
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    shadow = Shadow()
    run(engine, replica("web", "bbbbb"), "web")
    shadow.follow(engine)
    assert shadow.differs_from(engine) == []


# ---------------------------------------------------------------------- explained


@pytest.mark.parametrize(
    ("ccx", "where"),
    [(0, "same L3"), (1, "same NUMA node"), (2, "same socket"), (8, "different sockets")],
)
def test_explain_says_whom_it_talks_to_and_where_that_is(ccx, where) -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, make_container("a", limit=2), "a", within=Constraint(CCX[0]))
    run(engine, make_container("b", limit=2), "b", within=Constraint(CCX[ccx]))
    engine.set_traffic(traffic(("a", "b", 2e5)))
    document = explain(engine, "a")
    assert document is not None
    assert document["containers"][0]["peers"] == [
        {
            "id": "b",
            "container": "default/pod-of-b/b",
            "weight": 2e5,
            "bytes_per_s": 12.8e6,
            "messages_per_s": 2e4,
            "remembered": False,
            "where": where,
        }
    ]
    assert f"  talks to default/pod-of-b/b: 12.8 MB/s, 20000 messages/s ({where})" in explain_text(document)


def test_explain_tells_what_is_only_remembered(engine) -> None:
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    run(engine, replica("web", "bbbbb"), "web")
    document = explain(engine, "web")
    assert document is not None
    assert "about 12.8 MB/s, from what other replicas have done (same L3)" in explain_text(document)


def test_without_peers_nothing_is_said(engine) -> None:
    document = explain(engine, "db")
    assert document is not None
    assert document["containers"][0]["peers"] == []
    assert "talks to" not in explain_text(document)


def test_a_container_for_the_whole_machine_is_near_everybody(engine) -> None:
    engine.set_traffic(traffic(owners=(WEB_DB,)))
    grant = run(engine, replica("web", "bbbbb", 120), "web")
    assert format_cpus(grant.cpus) == "0-127"
    assert "near default/db" in grant.why
