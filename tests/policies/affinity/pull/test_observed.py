"""Traffic that was seen: who pulls whom, by the container's own edges or by what its owner is known for."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from policies.affinity.graph.traffic import Edge, Traffic
from policies.affinity.pull.declared import Declaration
from policies.affinity.pull.observed import Observed, Peer, pull_of
from policies.machine.cpus import parse_cpus
from policies.model import Container, Pod, Resident
from policies.node import Node
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, node_of

NOTHING = Declaration({}, {}, frozenset(), frozenset())
HASH = "5d4f8c7b9d"


def replica(workload: str, suffix: str, name: str = "app") -> Container:
    """A container of a Deployment's pod."""
    pod: Pod = make_pod(f"{workload}-{HASH}-{suffix}")
    return make_container(name, pod=replace(pod, labels={"pod-template-hash": HASH}))


def both_ways(*edges: tuple[str, str, float]) -> dict[str, dict[str, float]]:
    weights: dict[str, dict[str, float]] = {}
    for a, b, weight in edges:
        weights.setdefault(a, {})[b] = weight
        weights.setdefault(b, {})[a] = weight
    return weights


class Books:
    """A node and who is in it."""

    def __init__(self, **containers: tuple[Container, str]) -> None:
        self.node: Node = node_of(HYGON_7285_2S)
        self.replicas: dict[str, set[str]] = {}
        for key, (container, cpus) in containers.items():
            self.add(key, container, cpus)

    def add(self, key: str, container: Container, cpus: str) -> None:
        self.node.add(key, Resident(container.pod.uid, 0, 0, parse_cpus(cpus), container=container))
        workload = container.pod.name.split(f"-{HASH}")[0]
        self.replicas.setdefault(f"default/{workload}/{container.name}", set()).add(key)

    def peers(self, traffic: Traffic, container: Container, key: str = "") -> dict[str, float]:
        found = Observed(traffic).peers(self.node, self.replicas, container, key)
        return {peer.key: peer.weight for peer in found}


WEB, WEB2, DB, DB2 = (
    replica("web", "aaaaa"),
    replica("web", "bbbbb"),
    replica("db", "ccccc"),
    replica("db", "ddddd"),
)
OWNERS = both_ways(("default/web/app", "default/db/app", 1200.0))


def test_a_container_that_was_seen_is_pulled_by_its_own_edges() -> None:
    books = Books(w1=(WEB, "0"), d1=(DB, "4"), d2=(DB2, "8"))
    traffic = Traffic(edges=both_ways(("w1", "d2", 500.0)), owners=OWNERS)
    assert books.peers(traffic, WEB, "w1") == {"d2": 500.0}


def test_one_that_was_not_seen_is_pulled_by_its_owners_peers() -> None:
    books = Books(d1=(DB, "4"), d2=(DB2, "8"))
    assert books.peers(Traffic(owners=OWNERS), WEB) == {"d1": 600.0, "d2": 600.0}


def test_what_owners_exchange_is_divided_over_the_replicas_of_both() -> None:
    books = Books(w1=(WEB, "0"), d1=(DB, "4"))
    assert books.peers(Traffic(owners=OWNERS), WEB2) == {"d1": 600.0}


def test_replicas_that_talk_to_each_other_pull_by_their_pairs() -> None:
    books = Books(w1=(WEB, "0"), w2=(WEB2, "4"))
    traffic = Traffic(owners={"default/web/app": {"default/web/app": 300.0}})
    assert books.peers(traffic, replica("web", "eeeee")) == {"w1": 100.0, "w2": 100.0}


def test_the_attempt_before_is_no_peer() -> None:
    books = Books(w1=(WEB, "0"))
    traffic = Traffic(owners={"default/web/app": {"default/web/app": 300.0}})
    assert books.peers(traffic, replace(WEB, attempt=1)) == {}


def test_peers_that_are_not_in_the_books_pull_nobody() -> None:
    traffic = Traffic(edges=both_ways(("w1", "gone", 500.0)))
    assert Books(w1=(WEB, "0")).peers(traffic, WEB, "w1") == {}


def test_a_pod_stands_for_its_containers() -> None:
    side = replica("db", "ccccc", "sidecar")
    books = Books(w1=(WEB, "0"), d1=(DB, "4"), s1=(side, "8"))
    traffic = Traffic(edges=both_ways(("w1", f"pod:{DB.pod.uid}", 500.0)))
    assert books.peers(traffic, WEB, "w1") == {"d1": 250.0, "s1": 250.0}
    assert books.peers(traffic, DB, "d1") == {"w1": 250.0}


def test_rates_are_those_of_the_listed_edge_whichever_end_comes_first() -> None:
    books = Books(w1=(WEB, "0"), d1=(DB, "4"))
    traffic = Traffic(edges=both_ways(("d1", "w1", 9.0)), listed=(Edge("d1", "w1", 9.0, 640.0, 2.0),))
    assert Observed(traffic).peers(books.node, {}, WEB, "w1") == (Peer("d1", 9.0, 640.0, 2.0),)


def test_the_strongest_comes_first_and_equals_by_their_keys() -> None:
    books = Books(w1=(WEB, "0"), d1=(DB, "4"), d2=(DB2, "8"), w2=(WEB2, "12"))
    traffic = Traffic(edges=both_ways(("w1", "d2", 5.0), ("w1", "d1", 5.0), ("w1", "w2", 9.0)))
    assert list(books.peers(traffic, WEB, "w1")) == ["w2", "d1", "d2"]


@pytest.mark.parametrize(
    ("declared", "nearer"),
    [(0, "4-7"), (1, "4-7"), (3, "8-11"), (-1, "4-7")],
    ids=["no declaration", "a weaker one", "a stronger one", "one that pushes away"],
)
def test_a_declaration_counts_beside_traffic_by_its_weight(declared: int, nearer: str) -> None:
    books = Books(d1=(DB, "4-7"), d2=(DB2, "8-11"))
    weights = {parse_cpus("8-11"): declared} if declared else {}
    apart = frozenset({"d2"} if declared < 0 else ())
    declaration = Declaration(weights, {}, apart, frozenset())
    pull = pull_of(books.node, [Peer("d1", 20_000.0)], declaration, 10_000.0)
    assert pull is not None
    costs = {cpus: pull.cost(WEB, parse_cpus(cpus)) for cpus in ("4-7", "8-11")}
    assert min(costs, key=lambda cpus: costs[cpus]) == nearer


def test_traffic_does_not_draw_those_that_are_declared_to_be_apart() -> None:
    books = Books(d1=(DB, "4-7"), d2=(DB2, "8-11"))
    declaration = Declaration({parse_cpus("4-7"): -1}, {}, frozenset({"d1"}), frozenset())
    peers = [Peer("d1", 1e12), Peer("d2", 1e9)]
    pull = pull_of(books.node, peers, declaration, 10_000.0)
    assert pull is not None
    assert pull.fault(WEB, parse_cpus("4-7")) == 1
    assert pull.fault(WEB, parse_cpus("8-11")) == 0
    alone = pull_of(books.node, peers[:1], declaration, 10_000.0)
    assert alone is not None
    assert alone.cost(WEB, parse_cpus("4-7")) > alone.cost(WEB, parse_cpus("8-11")), "far is still better"


def test_without_anybody_there_is_no_pull() -> None:
    nothing: Optional[object] = pull_of(Books().node, [], NOTHING, 1.0)
    assert nothing is None
