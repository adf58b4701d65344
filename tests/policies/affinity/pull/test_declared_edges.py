"""Declarations as edges between containers that run."""

from __future__ import annotations

from dataclasses import replace

from policies.affinity.pull.declared import MOST_MEANT, DeclaredEdges, declares_any
from policies.machine.cpus import parse_cpus
from policies.model import AffinityTerm, Container, MatchExpression, PlacementPreferences, Resident
from policies.node import Node
from policies.settings import PlacementSettings
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, node_of

EVERYBODY = MatchExpression("", "AlwaysTrue")
ALONE = PlacementSettings()


def named(name: str, weight: int) -> AffinityTerm:
    return AffinityTerm(EVERYBODY, MatchExpression("name", "In", (name,)), weight)


def container(name: str, *terms: AffinityTerm, pod: str = "") -> Container:
    return replace(
        make_container(name, pod=make_pod(pod or name)), preferences=PlacementPreferences(affinity=terms)
    )


def books(*containers: Container) -> Node:
    node = node_of(HYGON_7285_2S)
    for number, each in enumerate(containers):
        node.add(f"k{number}", Resident(each.pod.uid, 0, 0, parse_cpus("0"), container=each))
    return node


def edges(node: Node, settings: PlacementSettings = ALONE, *keys: str) -> dict[tuple[str, str], int]:
    """Between all containers, or some of them."""
    asked = keys or tuple(node.residents)
    declared = DeclaredEdges(node, settings, asked)
    for key in asked:
        declared.add(key)
    return declared.weights


def test_a_term_is_an_edge_to_each_that_it_means() -> None:
    node = books(container("app", named("db", 5)), container("db", pod="a"), container("db", pod="b"))
    assert edges(node) == {("k0", "k1"): 5, ("k0", "k2"): 5}


def test_the_terms_of_both_ends_are_added() -> None:
    assert edges(books(container("app", named("db", 5)), container("db", named("app", -2)))) == {
        ("k0", "k1"): 3
    }


def test_terms_that_cancel_each_other_are_no_edge() -> None:
    assert edges(books(container("app", named("db", 2)), container("db", named("app", -2)))) == {}


def test_colocation_by_configuration_counts_once() -> None:
    node = books(container("app", pod="p"), container("side", pod="p"), container("other"))
    assert edges(node, PlacementSettings(colocate_pods=True)) == {("k0", "k1"): 10}


def test_a_term_that_means_half_the_node_is_left_out() -> None:
    many = [container("db", pod=f"p{number}") for number in range(MOST_MEANT + 1)]
    assert edges(books(container("app", named("db", 5)), *many)) == {}


def test_only_the_containers_asked_for_count() -> None:
    node = books(container("app", named("db", 5)), container("db"))
    assert edges(node, ALONE, "k0") == {}


def test_without_terms_and_colocation_there_is_nothing_to_look_at() -> None:
    plain, with_terms = books(container("app")), books(container("app", named("db", 5)))
    assert not declares_any(plain, ALONE)
    assert declares_any(plain, PlacementSettings(colocate_namespaces=True))
    assert declares_any(with_terms, ALONE)
