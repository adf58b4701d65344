"""The planner: what it proposes, in what order, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings, Problem, Vertex
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.repair import pack_anew
from tests.policies.affinity.problems import FREE, SHIPPED, after, cost, loads, machine, problem, vertex

TREE = machine()
ONE_NODE = machine(sockets=1, nodes=1, l3s=2)


def two_apart(weight: float, settings: PlanSettings = SHIPPED, memory_gib: float = 0) -> Problem:
    """Two containers on two sockets."""
    vertices = [vertex(TREE, "a", 0, memory_gib=memory_gib), vertex(TREE, "b", 7, memory_gib=memory_gib)]
    return problem(TREE, vertices, {("a", "b"): weight}, settings)


def test_a_pair_is_brought_into_one_l3_by_one_move() -> None:
    answer = plan(two_apart(1))
    assert answer.accepted
    assert len(answer.moves) == 1
    assert answer.cost_before == pytest.approx(0.174)
    assert answer.cost_after == 0
    assert answer.moves[0].gain == pytest.approx(0.174)
    assert "saves 0.174 of the 0.174 CPUs that traffic out of an L3 costs (100.0%)" in answer.why


def test_traffic_that_is_not_worth_the_cache_stays_where_it_is() -> None:
    answer = plan(two_apart(1e-7))
    assert not answer.accepted
    assert answer.moves == ()
    assert answer.cost_after == answer.cost_before


def test_a_moved_container_saves_the_least_gain() -> None:
    # A thousandth of a million lines over 174 ns save 0.000174 CPUs.
    assert not plan(two_apart(0.001)).accepted
    assert plan(two_apart(0.001, replace(SHIPPED, least_gain=0.0001))).accepted


def test_memory_makes_a_move_to_another_node_dear_and_one_inside_the_node_not() -> None:
    # 4 GiB at 1 GB/s are 4.3 s of a CPU; 0.02 million lines over 174 ns for 600 s save 2.1.
    assert not plan(two_apart(0.02, memory_gib=4)).accepted
    inside = [vertex(TREE, "a", 0, memory_gib=4), vertex(TREE, "b", 1, memory_gib=4)]
    answer = plan(problem(TREE, inside, {("a", "b"): 0.02}))
    assert answer.accepted
    assert answer.move_cost < 0.1


def test_more_memory_than_may_migrate_keeps_a_container_in_its_node() -> None:
    vertices = [vertex(TREE, "a", 0, memory_gib=9), vertex(TREE, "b", 7, memory_gib=9)]
    assert not plan(problem(TREE, vertices, {("a", "b"): 100})).accepted
    lighter = [vertices[0], replace(vertices[1], memory_bytes=0)]
    answer = plan(problem(TREE, lighter, {("a", "b"): 100}))
    assert [(move.key, move.target) for move in answer.moves] == [("b", 0)]


def test_a_saving_below_the_hysteresis_is_no_plan() -> None:
    fixed = [vertex(TREE, "x", 0, fixed=True), vertex(TREE, "y", 7, fixed=True)]
    vertices = [*fixed, vertex(TREE, "a", 2), vertex(TREE, "b", 3)]
    edges = {("x", "y"): 10.0, ("a", "b"): 1.0}
    answer = plan(problem(TREE, vertices, edges))
    assert not answer.accepted
    assert "at least 10% are needed" in answer.why
    assert plan(problem(TREE, vertices, edges, replace(SHIPPED, hysteresis=0.01))).accepted
    restless = plan(problem(TREE, vertices, edges, replace(SHIPPED, hysteresis=0.01, unrest=25.0)))
    assert not restless.accepted
    assert "at least 25% are needed, 25.0 times as much as at rest" in restless.why


def test_containers_that_do_not_fit_one_l3_together_go_next_door() -> None:
    vertices = [vertex(TREE, "a", 0, 6), vertex(TREE, "b", 7, 6)]
    answer = plan(problem(TREE, vertices, {("a", "b"): 1}))
    at = after(problem(TREE, vertices, {("a", "b"): 1}), answer)
    assert {at["a"] // 2} == {at["b"] // 2}
    assert at["a"] != at["b"]


def test_who_is_to_be_apart_is_sent_far_away() -> None:
    vertices = [vertex(TREE, "a", 0), vertex(TREE, "b", 0)]
    asked = problem(TREE, vertices, {("a", "b"): -1})
    at = after(asked, plan(asked))
    assert TREE.leaves[at["a"]].socket != TREE.leaves[at["b"]].socket


def test_a_container_without_edges_moves_only_to_make_room() -> None:
    vertices = [vertex(TREE, "a", 0, 4), vertex(TREE, "b", 7, 4), vertex(TREE, "idle", 2, 1)]
    alone = problem(TREE, vertices, {("a", "b"): 1})
    assert "idle" not in [move.key for move in plan(alone).moves]
    tree = machine(sockets=1, nodes=1, l3s=3)
    vertices = [vertex(tree, "a", 0, 4), vertex(tree, "b", 1, 4, fixed=True), vertex(tree, "idle", 1, 4)]
    asked = problem(tree, vertices, {("a", "b"): 1})
    at = after(asked, plan(asked))
    assert at["a"] == 1
    assert at["idle"] != 1


def test_a_swap_goes_through_a_third_place_and_breaks_no_capacity() -> None:
    tree = machine(sockets=1, nodes=1, l3s=3)
    vertices = [
        vertex(tree, "x", 0, 3, fixed=True),
        vertex(tree, "y", 1, 3, fixed=True),
        vertex(tree, "wants-y", 0, 5),
        vertex(tree, "wants-x", 1, 5),
    ]
    asked = problem(tree, vertices, {("x", "wants-x"): 1, ("y", "wants-y"): 1})
    answer = plan(asked)
    assert len(answer.moves) == 3
    assert after(asked, answer) == {"x": 0, "y": 1, "wants-x": 0, "wants-y": 1}
    for count in range(4):
        assert max(loads(asked, after(asked, answer, count))) <= 8_000_000


def crossed(
    cpus: float = 3.5,
    overcommit: float = 0.5,
    *,
    may_overlap: bool = True,
    memory_gib: float = 0,
    free_gib: float = 9,
) -> Problem:
    """Two pairs of containers on two L3s of 8 CPUs, each with its ends in both, and no third L3."""
    tree = machine(sockets=2, nodes=1, l3s=1) if memory_gib else ONE_NODE
    free = {node: int(free_gib * (1 << 30)) for node in (0, 1)}
    ends = [("x", 0), ("y", 1), ("wants-y", 0), ("wants-x", 1)]
    vertices = [
        replace(
            vertex(tree, key, at, cpus, fixed=key in "xy", memory_gib=memory_gib),
            may_overlap=may_overlap or key in "xy",
        )
        for key, at in ends
    ]
    settings = replace(SHIPPED, exchange_overcommit=overcommit)
    edges = {("x", "wants-x"): 1, ("y", "wants-y"): 1}
    return problem(replace(tree, free_bytes=free), vertices, edges, settings)


def test_containers_change_places_where_there_is_no_third_one() -> None:
    asked = crossed()
    answer = plan(asked)
    assert after(asked, answer) == {"x": 0, "y": 1, "wants-x": 0, "wants-y": 1}
    assert [move.exchange for move in answer.moves] == [1, 1]
    assert (answer.out_of_reach, answer.blocked) == (0, ())
    meanwhile = loads(asked, after(asked, answer, 1))
    assert max(meanwhile) == 10_500_000


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (crossed(may_overlap=False), "containers with exclusive CPUs never overlap"),
        (crossed(overcommit=0.3), "30% above the CPUs of a place"),
        (crossed(cpus=4, overcommit=0.0), "0% above the CPUs of a place"),
        (crossed(memory_gib=2, free_gib=1), "within the memory that is free"),
    ],
    ids=["CPUs of their own", "too large", "not at all", "memory"],
)
def test_an_exchange_that_may_not_be_is_left_out_and_said(asked: Problem, why: str) -> None:
    answer = plan(asked)
    assert not answer.accepted
    assert {(move.key, move.target) for move in answer.blocked} == {("wants-x", 0), ("wants-y", 1)}
    assert {move.behind[0] for move in answer.blocked} == {"wants-x", "wants-y"}
    assert all(why in move.why for move in answer.blocked)
    assert answer.out_of_reach == pytest.approx(answer.cost_before)
    assert (
        f"{answer.out_of_reach:.3g} CPUs more are out of reach: 2 containers wait for places of others"
        in answer.why
    )
    assert why in answer.why


def test_memory_that_fits_beside_the_others_is_no_hindrance() -> None:
    assert plan(crossed(memory_gib=2, free_gib=2)).accepted


def test_a_single_move_to_a_node_without_memory_for_it_is_not_made_and_said() -> None:
    tree = machine(sockets=2, nodes=1, l3s=1)
    tree = replace(tree, free_bytes={0: 0, 1: 7 << 30})
    a, b = vertex(tree, "a", 0, 1, memory_gib=8), vertex(tree, "b", 1, 1, fixed=True)
    answer = plan(problem(tree, [a, b], {("a", "b"): 1}, FREE))
    assert not answer.moves
    [blocked] = answer.blocked
    assert (blocked.key, blocked.behind) == ("a", ())
    assert blocked.why == "its NUMA node has too little memory free"
    assert "1 container waits: its NUMA node has too little memory free" in answer.why


def test_a_move_waits_until_another_has_left_it_memory() -> None:
    tree = machine(sockets=2, nodes=1, l3s=1)
    tree = replace(tree, free_bytes={0: 4 << 30, 1: 0})
    vertices = [
        *(vertex(tree, "x", 0, 1, fixed=True), vertex(tree, "y", 1, 1, fixed=True)),
        *(vertex(tree, "to-y", 0, 1, memory_gib=4), vertex(tree, "to-x", 1, 1, memory_gib=4)),
    ]
    asked = problem(tree, vertices, {("x", "to-x"): 1, ("y", "to-y"): 2}, FREE)
    assert [move.key for move in plan(asked).moves] == ["to-x", "to-y"]


def test_moves_that_save_only_together_are_made_together() -> None:
    tree = machine(sockets=2, nodes=1, l3s=1)
    vertices = [
        *(vertex(tree, "x", 0, 0, fixed=True), vertex(tree, "z", 1, 0, fixed=True)),
        *(vertex(tree, "a", 0, 1), vertex(tree, "b", 0, 1)),
    ]
    edges = {("a", "b"): 5.0, ("a", "x"): 1.0, ("a", "z"): 2.0, ("b", "z"): 3.0}
    asked = problem(tree, vertices, edges, FREE)
    assert [(move.target, move.exchange) for move in plan(asked).moves] == [(1, 1), (1, 1)]


def test_three_that_wait_for_each_other_change_places_in_a_ring() -> None:
    tree = machine(sockets=1, nodes=1, l3s=3)
    fixed = [vertex(tree, f"x{l3}", l3, 4, fixed=True) for l3 in range(3)]
    movers = [vertex(tree, f"c{l3}", l3, 4) for l3 in range(3)]
    asked = problem(tree, [*fixed, *movers], {(f"x{(l3 + 1) % 3}", f"c{l3}"): 1 for l3 in range(3)})
    answer = plan(asked)
    at = after(asked, answer)
    assert [at[f"c{l3}"] for l3 in range(3)] == [1, 2, 0]
    assert [move.exchange for move in answer.moves] == [1, 1, 1]


def test_an_overfull_l3_is_repaired_whatever_it_saves() -> None:
    vertices = [vertex(TREE, f"c{index}", 0, 3) for index in range(4)]
    asked = problem(TREE, vertices, {(f"c{index}", f"c{index + 1}"): 1 for index in range(3)})
    answer = plan(asked)
    assert answer.accepted
    assert (answer.overfull_before, answer.overfull_after) == (1, 0)
    assert "repair, without hysteresis" in answer.why
    assert max(loads(asked, after(asked, answer))) <= 8_000_000


def test_what_only_fits_when_it_is_packed_anew_is_packed_anew() -> None:
    # 4 + 4 + 4 and 5 + 4 + 3 fill two L3s of 12; from 5 + 4 + 4 and 4 + 4 + 3 it takes 4 for 3 and no other swap.
    tree = machine(sockets=1, nodes=1, l3s=2, cpus=12)
    sizes = [(0, 5), (0, 4), (0, 4), (1, 4), (1, 4), (1, 3)]
    vertices = [vertex(tree, f"c{index}", at, cpus) for index, (at, cpus) in enumerate(sizes)]
    search = Refinement(
        Arrangement(Instance(problem(tree, vertices, {})), [at for at, _ in sizes]), [[0.0] * 4] * 6, 0.0
    )
    assert pack_anew(search)
    assert search.arrangement.load == [12_000_000, 12_000_000]


def test_an_overfull_l3_that_no_prefix_of_moves_can_mend_stays_and_is_said() -> None:
    vertices = [vertex(ONE_NODE, f"c{index}", index // 2, 5) for index in range(4)]
    answer = plan(problem(ONE_NODE, vertices, {}))
    assert not answer.accepted
    assert answer.overfull_after == 2
    assert "4 CPUs are above capacity and no move makes it less" in answer.why


def test_wide_containers_move_between_sites_of_their_level_and_count_on_all_leaves() -> None:
    node_0, node_3 = 8, 11
    vertices = [vertex(TREE, "wide", node_0, 12), vertex(TREE, "peer", node_3, 12)]
    asked = problem(TREE, vertices, {("wide", "peer"): 1})
    answer = plan(asked)
    at = after(asked, answer)
    assert TREE.sites[at["wide"]].level == TREE.sites[at["peer"]].level == "numa"
    assert at["wide"] != at["peer"]
    assert (
        TREE.leaves[TREE.sites[at["wide"]].leaves[0]].socket
        == TREE.leaves[TREE.sites[at["peer"]].leaves[0]].socket
    )
    assert max(loads(asked, at)) == 6_000_000


def test_a_container_that_is_nowhere_gets_a_place_beside_its_peer() -> None:
    vertices = [vertex(TREE, "a", 5), vertex(TREE, "new", -1)]
    answer = plan(problem(TREE, vertices, {("a", "new"): 1}))
    assert [(move.key, move.source, move.target) for move in answer.moves] == [("new", -1, 5)]


def test_the_best_move_comes_first() -> None:
    vertices = [
        *[vertex(TREE, f"hub{index}", index, fixed=True) for index in range(3)],
        *[vertex(TREE, f"c{index}", 7) for index in range(3)],
    ]
    edges = {("hub0", "c0"): 1.0, ("hub1", "c1"): 3.0, ("hub2", "c2"): 2.0}
    assert [move.key for move in plan(problem(TREE, vertices, edges)).moves] == ["c1", "c2", "c0"]


def test_exchanged_sockets_are_no_reason_to_move() -> None:
    # Four pairs on the second socket: a plan made anew would fill the first one.
    vertices = [vertex(TREE, f"{end}{pair}", 4 + pair, 4) for pair in range(4) for end in "ab"]
    edges = {(f"a{pair}", f"b{pair}"): 1.0 for pair in range(4)}
    assert not plan(problem(TREE, vertices, edges, FREE)).accepted


def test_nothing_to_do_is_an_answer() -> None:
    answer = plan(problem(TREE, [], {}))
    assert not answer.accepted
    assert "no better placement" in answer.why
    assert plan(problem(TREE, [vertex(TREE, "a", 0)], {})).moves == ()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Vertex("a", 1000, 0, ()), "container 'a' may be at (); expected sites from 0 to 13"),
        (Vertex("a", 1000, 0, (0, 14)), "container 'a' may be at (0, 14); expected sites from 0 to 13"),
        (Vertex("a", 1000, 1, (0,)), "container 'a' is at site 1; expected one of its (0,), or -1"),
    ],
)
def test_a_problem_that_contradicts_itself_is_refused_with_the_place(bad: Vertex, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan(problem(TREE, [bad], {}))
    assert str(caught.value) == says


def test_an_edge_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"edge \(0, 3\) is not between two of the 1 containers"):
        plan(Problem(TREE, (vertex(TREE, "a", 0),), ((0, 3, 1.0),)))


def test_costs_are_those_of_the_placements() -> None:
    asked = two_apart(2, FREE)
    answer = plan(asked)
    assert answer.cost_before == pytest.approx(cost(asked, {"a": 0, "b": 7}))
    assert answer.cost_after == pytest.approx(cost(asked, after(asked, answer)))
