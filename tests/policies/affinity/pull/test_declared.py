"""Declared affinity: who pulls whom, both ways, and what a place then costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from policies.affinity.pull.declared import Combined, DeclaredAffinity, peers_of
from policies.machine.cpus import parse_cpus
from policies.model import (
    AffinityTerm,
    Container,
    MatchExpression,
    NoAffinity,
    PlacementPreferences,
    Resident,
)
from policies.node import Node
from policies.settings import PlacementSettings
from tests.machines import ALL_MACHINES, EPYC_NPS4_1S, HYGON_7285_2S, MONOLITHIC_2S, VM_NO_CACHE_INFO
from tests.scenes import make_container, make_pod, node_of, topology

EVERYBODY = MatchExpression("", "AlwaysTrue")
ALONE = PlacementSettings()
PODS = PlacementSettings(colocate_pods=True)
NAMESPACES = PlacementSettings(colocate_namespaces=True)


def named(*names: str) -> MatchExpression:
    return MatchExpression("name", "In", names)


def container(name: str, pod: str = "web", *terms: AffinityTerm, namespace: str = "default") -> Container:
    made = make_container(name, pod=make_pod(pod, namespace=namespace))
    return replace(made, preferences=PlacementPreferences(affinity=terms))


def term(match: MatchExpression, weight: int = 1, scope: MatchExpression = EVERYBODY) -> AffinityTerm:
    return AffinityTerm(scope, match, weight)


def put(node: Node, who: Container, cpus: str) -> None:
    key = f"{who.pod.name}/{who.name}/{len(node.residents)}"
    node.add(key, Resident(who.pod.uid, 100, 100, parse_cpus(cpus), container=who))


def cost(node: Node, who: Container, cpus: str, settings: PlacementSettings = ALONE) -> Optional[float]:
    affinity = peers_of(node, who, settings)
    return None if affinity is None else affinity.cost(who, parse_cpus(cpus))


# ---------------------------------------------------------------------- distance


# hygon-7285-2s: CCXs of 8 CPUs, two a NUMA node; four nodes a socket.
def test_distances_rise_with_the_levels_of_the_machine() -> None:
    tree = topology(HYGON_7285_2S)
    affinity = DeclaredAffinity(tree, [(tree.leaves[0].cpus, 1)])
    costs = [affinity.cost(container("app"), leaf.cpus) for leaf in tree.leaves]
    # Its own CCX, the other one of its node, those of the other nodes of its socket, the other socket.
    assert costs == [0.0, 1.0, *[1.6 if leaf.socket == 0 else 2.8 for leaf in tree.leaves[2:]]]


def test_a_place_of_several_leaves_costs_their_mean() -> None:
    tree = topology(HYGON_7285_2S)
    affinity = DeclaredAffinity(tree, [(tree.leaves[0].cpus, 4)])
    who, first, second = container("app"), tree.leaves[0].cpus, tree.leaves[1].cpus
    assert affinity.cost(who, first | second) == 2.0
    assert affinity.cost(who, first | {min(second)}) == 4 / 9
    assert affinity.cost(who, frozenset()) == 0.0


def test_the_nearest_part_of_a_peer_counts() -> None:
    tree = topology(HYGON_7285_2S)
    wide = tree.leaves[0].cpus | tree.leaves[-1].cpus
    affinity = DeclaredAffinity(tree, [(wide, 1)])
    assert affinity.cost(container("app"), tree.leaves[0].cpus) == 0.0
    assert affinity.cost(container("app"), tree.leaves[-1].cpus) == 0.0
    assert affinity.cost(container("app"), tree.leaves[1].cpus) == 1.0


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_nothing_is_nearer_than_the_peers_own_leaf(name) -> None:
    tree = topology(name)
    for peer in (tree.leaves[0], tree.leaves[-1]):
        affinity = DeclaredAffinity(tree, [(peer.cpus, 3)])
        costs = {leaf: affinity.cost(container("app"), leaf.cpus) for leaf in tree.leaves}
        assert costs[peer] == 0.0
        assert all(value > 0 for leaf, value in costs.items() if leaf is not peer)


# ---------------------------------------------------------------------- who is a peer


def test_nobody_says_anything_as_a_rule(node) -> None:
    put(node, container("db"), "0-7")
    put(node, container("other", "shop"), "8-15")
    assert peers_of(node, container("app"), ALONE) is None


def test_a_term_pulls_to_those_it_means() -> None:
    node = node_of(EPYC_NPS4_1S)
    first, second = (leaf.cpus for leaf in node.topology.leaves[:2])
    node.add("db", Resident("uid-web", 0, 0, first, container=container("db")))
    app = container("app", "web", term(named("db"), 5))
    affinity = peers_of(node, app, ALONE)
    assert affinity is not None
    assert affinity.cost(app, first) == 0.0
    assert affinity.cost(app, second) > 0.0


def test_a_term_of_one_that_is_there_pulls_as_well(node) -> None:
    put(node, container("db", "web", term(named("app"), 5)), "0")
    there = cost(node, container("app"), "0")
    assert there == 0.0
    assert cost(node, container("app"), "63") == cost(node, container("app", "shop"), "63") != 0.0
    assert cost(node, container("log"), "63") is None


def test_both_ways_add_up(node) -> None:
    put(node, container("db", "web", term(named("app"), 5)), "0")
    one_way = cost(node, container("app"), "63")
    both_ways = cost(node, container("app", "web", term(named("db"), 5)), "63")
    assert one_way is not None
    assert both_ways == 2 * one_way


def test_an_anti_affinity_makes_the_far_end_cheaper() -> None:
    node = node_of(MONOLITHIC_2S)
    put(node, container("noisy"), "0")
    app = container("app", "web", term(named("noisy"), -3))
    near, far = (min(leaf.cpus) for leaf in node.topology.leaves[:2])
    at_far = cost(node, app, str(far))
    assert cost(node, app, str(near)) == 0.0
    assert at_far is not None
    assert at_far < 0.0


def test_as_much_pull_as_push_says_nothing(node) -> None:
    put(node, container("db"), "0")
    app = container("app", "web", term(named("db"), 3), term(MatchExpression("name", "Exists"), -3))
    assert peers_of(node, app, ALONE) is None


SCOPES = [
    # scope, whether db of the same pod, of the same namespace, of another namespace is meant
    (MatchExpression("pod/uid", "Equals", ("uid-web",)), (True, False, False)),
    (MatchExpression("pod/namespace", "Equals", ("default",)), (True, True, False)),
    (MatchExpression("pod/namespace", "Matches", ("d*",)), (True, True, False)),
    (MatchExpression("namespace", "NotEqual", ("default",)), (False, False, True)),
    (MatchExpression("pod/name", "In", ("shop", "bank")), (False, True, True)),
    (MatchExpression("pod/uid", "Equals", ("*",)), (True, True, True)),
    (EVERYBODY, (True, True, True)),
]
PLACES = [("web", "default"), ("shop", "default"), ("bank", "finance")]


@pytest.mark.parametrize(("scope", "meant"), SCOPES)
def test_only_those_in_scope_are_meant(scope, meant) -> None:
    app = container("app", "web", term(named("db"), 1, scope))
    for (pod, namespace), is_meant in zip(PLACES, meant):
        node = node_of(HYGON_7285_2S)
        put(node, container("db", pod, namespace=namespace), "0")
        assert (peers_of(node, app, ALONE) is not None) is is_meant, pod


@pytest.mark.parametrize(("scope", "meant"), SCOPES)
def test_and_the_same_the_other_way_round(node, scope, meant) -> None:
    put(node, container("app", "web", term(named("db"), 1, scope)), "0")
    for (pod, namespace), is_meant in zip(PLACES, meant):
        db = container("db", pod, namespace=namespace)
        assert (peers_of(node, db, ALONE) is not None) is is_meant, pod


def test_another_attempt_of_the_container_is_no_peer(node) -> None:
    app = container("app", "web", term(MatchExpression("name", "Exists"), 5))
    put(node, app, "0")
    assert peers_of(node, replace(app, attempt=1), ALONE) is None
    replica = container("app", "web-2", term(MatchExpression("name", "Exists"), 5))
    assert peers_of(node, replica, ALONE) is not None


def test_those_without_cpus_or_without_a_name_are_no_peers(node) -> None:
    put(node, container("db"), "")
    node.add("kubelet", Resident("", 0, 0, parse_cpus("0-3")))
    assert peers_of(node, container("app", "web", term(MatchExpression("name", "Exists"))), PODS) is None


# ---------------------------------------------------------------------- colocation


COLOCATION = [
    # settings, whether the container has terms of its own, peers it is drawn to
    (ALONE, False, ()),
    (PODS, False, ("pod",)),
    (NAMESPACES, False, ("pod", "namespace")),
    (replace(PODS, colocate_namespaces=True), False, ("pod", "namespace")),
    (PODS, True, ()),
]


@pytest.mark.parametrize(("settings", "has_terms", "drawn_to"), COLOCATION)
def test_colocation_draws_containers_without_terms_of_their_own(settings, has_terms, drawn_to) -> None:
    own = [term(named("nobody"))] if has_terms else []
    app = container("app", "web", *own)
    peers = {
        "pod": container("db"),
        "namespace": container("db", "shop"),
        "stranger": container("db", "bank", namespace="finance"),
    }
    for name, peer in peers.items():
        node = node_of(VM_NO_CACHE_INFO)
        put(node, peer, "0")
        assert (peers_of(node, app, settings) is not None) is (name in drawn_to), name


def test_colocation_weighs_ten(node) -> None:
    put(node, container("db"), "0")
    declared = cost(node, container("app", "web", term(named("db"), 10)), "63")
    assert cost(node, container("app"), "63", PODS) == declared
    assert declared is not None
    assert declared > 0


def test_the_order_of_the_books_makes_no_difference() -> None:
    app = container("app", "web", term(MatchExpression("name", "Exists"), 7))
    peers = [(container(f"c{n}", f"p{n}"), f"{3 * n}") for n in range(9)]
    costs = []
    for order in (peers, peers[::-1]):
        node = node_of(HYGON_7285_2S)
        for peer, cpus in order:
            put(node, peer, cpus)
        costs.append([cost(node, app, str(cpu)) for cpu in range(64)])
    assert costs[0] == costs[1]


def test_two_affinities_add_up() -> None:
    tree = topology(HYGON_7285_2S)
    declared = DeclaredAffinity(tree, [(tree.leaves[0].cpus, 1)])
    who, far = container("app"), tree.leaves[-1].cpus
    assert Combined(declared, NoAffinity()).cost(who, far) == declared.cost(who, far)
    assert Combined(declared, declared).cost(who, far) == 2 * declared.cost(who, far)
