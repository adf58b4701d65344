"""The planner's parts: clusters, pairings, the order of moves, prices, loads."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.assign import Clustering
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.multilevel import Chance, combined, divided
from policies.affinity.planner.order import MOST_TRIED, Order, ordered
from policies.affinity.planner.problem import PlanSettings
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.relabel import best_pairing, relabel
from policies.affinity.planner.repair import repair
from tests.policies.affinity.problems import cost, machine, problem, random_problem, vertex

TREE = machine()


def free(instance: Instance) -> list[list[float]]:
    return [[0.0] * len(instance.rows)] * len(instance.sizes)


def test_clusters_are_merged_along_the_heaviest_edges_and_grow_no_larger_than_allowed() -> None:
    clustering = Clustering([2, 2, 2, 2], [(0, 1, 5.0), (1, 2, 9.0), (2, 3, 4.0)], 0.0)
    clustering.merge(4)
    assert sorted(sorted(clustering.members[cluster]) for cluster in clustering.alive()) == [[0], [1, 2], [3]]
    clustering.merge(6)
    assert sorted(sorted(clustering.members[cluster]) for cluster in clustering.alive()) == [[0, 1, 2], [3]]


def test_who_is_to_be_apart_is_not_merged() -> None:
    clustering = Clustering([1, 1, 1], [(0, 1, 2.0), (1, 2, 1.0), (0, 2, -5.0)], 0.0)
    clustering.merge(10)
    assert len(clustering.alive()) == 2


@pytest.mark.parametrize("seed", range(12))
def test_a_pairing_is_the_best_of_all(seed: int) -> None:
    random = Random(seed)
    count = random.randrange(1, 7)
    values = [[float(random.randrange(10)) for _ in range(count)] for _ in range(count)]
    chosen = best_pairing(values)
    assert sorted(chosen) == list(range(count))

    def value(order: tuple[int, ...]) -> float:
        return sum([values[row][column] for row, column in enumerate(order)])

    assert value(tuple(chosen)) == max([value(order) for order in permutations(range(count))])


def test_a_plan_with_sockets_exchanged_is_laid_back() -> None:
    present = [4, 4, 5, 5, 6, 7]
    vertices = [vertex(TREE, f"c{index}", site) for index, site in enumerate(present)]
    ring = {(f"c{index}", f"c{(index + 1) % 6}"): 1.0 for index in range(6)}
    assert relabel(Instance(problem(TREE, vertices, ring)), [3, 3, 2, 2, 1, 0], present) == present


def test_a_relabelled_plan_costs_the_same_and_moves_no_more() -> None:
    for seed in range(20):
        asked = random_problem(seed)
        instance = Instance(asked)
        if not all(instance.movable):
            continue
        present = [each.at for each in asked.vertices]
        random = Random(seed)
        wanted = [random.choice(sites) for sites in instance.sites]
        laid = relabel(instance, wanted, present)
        if Arrangement(instance, wanted).excess():
            continue
        assert Arrangement(instance, laid).excess() == 0


@pytest.mark.parametrize("seed", range(10))
def test_refinement_counts_its_gain_and_takes_moves_back(seed: int) -> None:
    asked = random_problem(seed)
    instance = Instance(asked)
    start = [each.at for each in asked.vertices]
    before = cost(asked, {each.key: each.at for each in asked.vertices})
    refinement = Refinement(Arrangement(instance, start), free(instance), 1e-12, deep=True)
    refinement.run(range(len(start)), 10_000)
    assert before - instance.cost(refinement.arrangement.at) == pytest.approx(refinement.gained)
    assert refinement.gained >= 0
    refinement.undo(0)
    assert refinement.arrangement.at == start
    assert refinement.arrangement.load == Arrangement(instance, start).load


@pytest.mark.parametrize("seed", range(10))
def test_a_multilevel_division_keeps_sites_and_what_is_fixed_and_is_the_same_each_time(seed: int) -> None:
    asked = random_problem(seed)
    instance = Instance(asked)
    at = [each.at for each in asked.vertices]
    roaming = [u for u in instance.connected if instance.movable[u] and instance.single[at[u]] >= 0]
    if not roaming:
        return
    for roamer in roaming:
        at[roamer] = -1
    made, work = divided(instance, at, roaming, 0.5, 0.5, Chance(1), 10_000)
    assert (made, work) == divided(instance, at, roaming, 0.5, 0.5, Chance(1), 10_000)
    assert all(site in instance.sites[u] for u, site in enumerate(made))
    assert [site for u, site in enumerate(made) if u not in roaming] == [site for site in at if site >= 0]


@pytest.mark.parametrize("seed", range(10))
def test_a_placement_combined_with_another_never_becomes_worse(seed: int) -> None:
    asked = random_problem(seed)
    instance = Instance(asked)
    at = [each.at for each in asked.vertices]
    roaming = [u for u in instance.connected if instance.movable[u] and instance.single[at[u]] >= 0]
    if not roaming:
        return
    random = Random(seed)
    other = [random.choice(sites) for sites in instance.sites]
    made, _ = combined(instance, at, other, roaming, free(instance), 10_000)
    assert instance.cost(made) <= instance.cost(at) * (1 + 1e-9)
    assert Arrangement(instance, made).excess() == Arrangement(instance, at).excess() == 0


def test_merged_vertices_cost_what_the_single_ones_do() -> None:
    asked = random_problem(3)
    instance = Instance(asked)
    at = [each.at for each in asked.vertices]
    by_site: dict[int, list[int]] = {}
    for number, site in enumerate(at):
        by_site.setdefault(site, []).append(number)
    coarse, owner = instance.merged(list(by_site.values()), frozenset(range(len(at))))
    assert [list(by_site)[number] for number in owner] == at
    assert sum(coarse.sizes) == sum(instance.sizes)
    between = sum([weight for near in coarse.near for _, weight in near]) / 2
    assert between == pytest.approx(sum([w for a, b, w in asked.edges if at[a] != at[b]]))


def test_repair_takes_out_who_is_cheapest_to_take() -> None:
    vertices = [
        vertex(TREE, "tied", 0, 4),
        vertex(TREE, "peer", 0, 3, fixed=True),
        vertex(TREE, "idle", 0, 4),
    ]
    instance = Instance(problem(TREE, vertices, {("tied", "peer"): 1}))
    refinement = Refinement(Arrangement(instance, [0, 0, 0]), free(instance), 0.0)
    assert repair(refinement)
    assert refinement.arrangement.at[:2] == [0, 0]
    assert refinement.arrangement.at[2] != 0


def test_a_ring_of_moves_is_opened_by_one_detour() -> None:
    tree = machine(sockets=1, nodes=1, l3s=4)
    vertices = [vertex(tree, f"c{index}", index, 8) for index in range(3)]
    fixed = [vertex(tree, f"x{index}", index, 0, fixed=True) for index in range(3)]
    edges = {(f"c{index}", f"x{(index + 1) % 3}"): 1.0 for index in range(3)}
    instance = Instance(problem(tree, [*vertices, *fixed], edges))
    steps, _ = ordered(instance, [0, 1, 2, 0, 1, 2], [1, 2, 0, 0, 1, 2])
    assert len(steps) == 4
    at = [0, 1, 2]
    for moved, source, target, *_ in steps:
        assert at[moved] == source
        at[moved] = target
        assert len(set(at)) == 3
    assert at == [1, 2, 0]


def test_exchanges_are_looked_for_so_often_and_no_more() -> None:
    tree = machine(sockets=1, nodes=1, l3s=2, cpus=8)
    count = 2 * MOST_TRIED
    small = [vertex(tree, f"c{index}", 0, 0.01) for index in range(count)]
    asked = problem(tree, [*small, vertex(tree, "all", 1, 8, fixed=True)], {("c0", "all"): 1})
    order = Order(Instance(asked), [0] * count + [1], [1] * (count + 1))
    order.run()
    assert order.tried == MOST_TRIED
    assert not order.steps
    assert len(order.blocked()) == count


def test_memory_follows_only_to_new_nodes() -> None:
    numa_0, socket_0 = 8, 12
    asked = problem(TREE, [vertex(TREE, "a", 0, memory_gib=4)], {})
    instance = Instance(asked)
    assert instance.migrated_bytes(0, 0, 1) == 0
    assert instance.migrated_bytes(0, 0, 2) == 4 << 30
    assert instance.migrated_bytes(0, numa_0, socket_0) == 2 << 30
    assert instance.migrated_bytes(0, socket_0, 3) == 0
    settings = PlanSettings()
    assert instance.move_cost(0, 0, 1) == settings.refill_bytes / settings.migration_bytes_per_s


def test_a_wide_demand_is_spread_by_capacity_and_never_rounded_down() -> None:
    instance = Instance(problem(machine(sockets=1, nodes=1, l3s=3), [], {}))
    wide = len(instance.leaves) - 1
    assert [part for _, part in instance.parts(1_000_000, wide)] == [333_334] * 3
