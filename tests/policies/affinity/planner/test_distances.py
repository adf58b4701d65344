"""Distances and sites of the named machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from policies.affinity.planner.distances import distance_ns, tree_of
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import Problem, Vertex
from policies.machine.topology import Topology
from tests import machines
from tests.scenes import topology

L3_NS, SLIT_NS = 84.0, 4.1


def levels(name: str) -> dict[str, int]:
    tree = topology(name)
    made = tree_of(tree, [8000] * len(tree.leaves), distance_ns(tree, L3_NS, SLIT_NS))
    counts: dict[str, int] = {}
    for site in made.sites:
        counts[site.level] = counts.get(site.level, 0) + 1
    return counts


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_a_matrix_is_symmetric_zero_in_a_leaf_and_never_negative(name: str) -> None:
    matrix = distance_ns(topology(name), L3_NS, SLIT_NS)
    for a, row in enumerate(matrix):
        assert row[a] == 0
        for b, distance in enumerate(row):
            assert distance == matrix[b][a]
            assert a == b or distance >= L3_NS


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_sites_are_the_leaves_first_and_no_box_twice(name: str) -> None:
    tree = topology(name)
    made = tree_of(tree, range(len(tree.leaves)), distance_ns(tree, L3_NS, SLIT_NS))
    assert [site.leaves for site in made.sites[: len(made.leaves)]] == [(i,) for i in range(len(made.leaves))]
    assert len({site.leaves for site in made.sites}) == len(made.sites)
    assert [leaf.capacity_milli for leaf in made.leaves] == list(range(len(made.leaves)))


def test_hygon_distances_are_an_l3_a_node_and_a_socket_apart() -> None:
    tree = topology(machines.HYGON_7285_2S)
    matrix = distance_ns(tree, L3_NS, SLIT_NS)
    found = {round(distance, 1) for distance in matrix[0]}
    slit = sorted({tree.distance(0, node) for node in tree.node_ids} - {10})
    assert found == {0.0, 84.0, *[round(84 + 4.1 * (each - 10), 1) for each in slit]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (machines.HYGON_7285_2S, {"ccx": 16, "numa": 8, "socket": 2, "machine": 1}),
        (machines.EPYC_NPS1_1S, {"ccx": 8, "numa": 1}),
        (machines.MONOLITHIC_2S, {"ccx": 2, "machine": 1}),
        (machines.VM_NO_CACHE_INFO, {"numa": 2, "machine": 1}),
        (machines.SNC_2S, {"numa": 4, "socket": 2, "machine": 1}),
    ],
)
def test_where_levels_coincide_there_is_one_site_of_the_lowest(name: str, expected: dict[str, int]) -> None:
    assert levels(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (machines.KUNPENG_48_2S, {"cluster": 24, "numa": 4, "socket": 2, "machine": 1}),
        (machines.ALTRA_1S, {"cluster": 40, "numa": 1}),
        (machines.KUNPENG_64_OLD_KERNEL, {"ccx": 4, "socket": 2, "machine": 1}),
    ],
)
def test_clusters_are_the_lowest_sites_where_they_are_leaves(name: str, expected: dict[str, int]) -> None:
    tree = Topology(machines.machine(name), to_clusters=True)
    sites = tree_of(tree, [4000] * len(tree.leaves), distance_ns(tree, L3_NS, SLIT_NS)).sites
    assert Counter(site.level for site in sites) == expected


def test_a_cluster_is_nearer_than_the_rest_of_the_l3() -> None:
    tree = Topology(machines.machine(machines.KUNPENG_48_2S), to_clusters=True)
    matrix = distance_ns(tree, 84.0, 4.0, cluster_ns=20.0)
    # In the cluster; the L3 (six clusters); the socket's other node (12); the other socket's (20, 22).
    assert matrix[0][:13] == (0.0, *[20.0] * 5, *[92.0] * 6, 124.0)
    assert matrix[0][23] == matrix[23][0] == 132.0


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_the_distance_of_clusters_is_none_between_l3s(name: str) -> None:
    tree = topology(name)
    assert distance_ns(tree, L3_NS, SLIT_NS, cluster_ns=1.0) == distance_ns(
        tree, L3_NS, SLIT_NS, cluster_ns=9.0
    )


def test_a_plan_brings_talking_containers_into_one_cluster_then_into_one_l3() -> None:
    tree = Topology(machines.machine(machines.KUNPENG_48_2S), to_clusters=True)
    made = tree_of(tree, [4000] * 24, distance_ns(tree, L3_NS, SLIT_NS))
    # Three of 2 CPUs: two of them fill a cluster. All of them far from each other, in three NUMA nodes.
    vertices = tuple(Vertex(f"c{i}", 2000, at, tuple(range(24))) for i, at in enumerate((0, 6, 12)))
    edges = ((0, 1, 2e6), (1, 2, 1e6), (0, 2, 1e6))
    found = plan(Problem(made, vertices, edges))
    at = {vertex.key: vertex.at for vertex in vertices} | {move.key: move.target for move in found.moves}
    assert at["c0"] == at["c1"] != at["c2"]
    assert at["c0"] // 6 == at["c2"] // 6


def test_both_directions_of_an_asymmetric_slit_are_averaged() -> None:
    data = machines.machine(machines.MONOLITHIC_2S)
    lopsided = Topology(replace(data, distance=((10, 20), (40, 10))))
    assert distance_ns(lopsided, L3_NS, 1.0)[0][1] == distance_ns(lopsided, L3_NS, 1.0)[1][0] == 84 + 20


def test_capacities_that_do_not_belong_to_the_machine_are_refused() -> None:
    tree = topology(machines.EPYC_NPS1_1S)
    with pytest.raises(
        ValueError, match="1 capacities and 8 rows of distances were given; the machine has 8 leaves"
    ):
        tree_of(tree, [8000], distance_ns(tree, L3_NS, SLIT_NS))
