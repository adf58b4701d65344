"""Distances and sites of the named machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.affinity.planner.distances import distance_ns, tree_of
from policies.machine.topology import Topology
from tests.machines import (
    ALL_MACHINES,
    EPYC_NPS1_1S,
    HYGON_7285_2S,
    MONOLITHIC_2S,
    SNC_2S,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.scenes import topology

L3_NS, SLIT_NS = 84.0, 4.1


def levels(name: str) -> dict[str, int]:
    tree = topology(name)
    made = tree_of(tree, [8000] * len(tree.leaves), distance_ns(tree, L3_NS, SLIT_NS))
    counts: dict[str, int] = {}
    for site in made.sites:
        counts[site.level] = counts.get(site.level, 0) + 1
    return counts


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_a_matrix_is_symmetric_zero_in_a_leaf_and_never_negative(name: str) -> None:
    matrix = distance_ns(topology(name), L3_NS, SLIT_NS)
    for a, row in enumerate(matrix):
        assert row[a] == 0
        for b, distance in enumerate(row):
            assert distance == matrix[b][a]
            assert a == b or distance >= L3_NS


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_sites_are_the_leaves_first_and_no_box_twice(name: str) -> None:
    tree = topology(name)
    made = tree_of(tree, range(len(tree.leaves)), distance_ns(tree, L3_NS, SLIT_NS))
    assert [site.leaves for site in made.sites[: len(made.leaves)]] == [(i,) for i in range(len(made.leaves))]
    assert len({site.leaves for site in made.sites}) == len(made.sites)
    assert [leaf.capacity_milli for leaf in made.leaves] == list(range(len(made.leaves)))


def test_hygon_distances_are_an_l3_a_node_and_a_socket_apart() -> None:
    tree = topology(HYGON_7285_2S)
    matrix = distance_ns(tree, L3_NS, SLIT_NS)
    found = {round(distance, 1) for distance in matrix[0]}
    slit = sorted({tree.distance(0, node) for node in tree.node_ids} - {10})
    assert found == {0.0, 84.0, *[round(84 + 4.1 * (each - 10), 1) for each in slit]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (HYGON_7285_2S, {"ccx": 16, "numa": 8, "socket": 2, "machine": 1}),
        (EPYC_NPS1_1S, {"ccx": 8, "numa": 1}),
        (MONOLITHIC_2S, {"ccx": 2, "machine": 1}),
        (VM_NO_CACHE_INFO, {"numa": 2, "machine": 1}),
        (SNC_2S, {"numa": 4, "socket": 2, "machine": 1}),
    ],
)
def test_where_levels_coincide_there_is_one_site_of_the_lowest(name: str, expected: dict[str, int]) -> None:
    assert levels(name) == expected


def test_both_directions_of_an_asymmetric_slit_are_averaged() -> None:
    data = machine(MONOLITHIC_2S)
    lopsided = Topology(replace(data, distance=((10, 20), (40, 10))))
    assert distance_ns(lopsided, L3_NS, 1.0)[0][1] == distance_ns(lopsided, L3_NS, 1.0)[1][0] == 84 + 20


def test_capacities_that_do_not_belong_to_the_machine_are_refused() -> None:
    tree = topology(EPYC_NPS1_1S)
    with pytest.raises(
        ValueError, match="1 capacities and 8 rows of distances were given; the machine has 8 leaves"
    ):
        tree_of(tree, [8000], distance_ns(tree, L3_NS, SLIT_NS))
