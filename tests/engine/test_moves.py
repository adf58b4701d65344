"""The moves of a plan: all that still hold in one transition, each can be taken back. See test_engine_updates.py, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.affinity.report import move_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import CpusetUpdate, Move, Plan
from cri_proxy.engine.moves import LISTED
from cri_proxy.engine.report import explain, recent_moves
from policies.hygon import TopologyAware
from policies.machine.cpus import format_cpus
from policies.model import Constraint, Qos, Resources
from tests.machines import GIB, HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, Number, Shadow, dump, engine_on, make_container, run, topology

CCX = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]


def shared(*placed: tuple[str, int], cpus: Number = 4, memory: int = 1) -> Engine:
    """Containers on the CCXs of these numbers."""
    engine = engine_on(HYGON_7285_2S)
    for key, ccx in placed:
        within = Constraint(CCX[ccx])
        run(engine, make_container(key, limit=cpus, request=cpus, memory=memory), key, within=within)
        grant = engine.grants[key]
        engine.amend(replace(grant, constraint=Constraint()))
    return engine


def owning(*placed: tuple[str, int], cpus: int = 2) -> Engine:
    engine = engine_on(HYGON_7285_2S, policy=TopologyAware(topology(HYGON_7285_2S), TOPOLOGY_AWARE))
    for key, ccx in placed:
        within = Constraint(CCX[ccx])
        run(engine, make_container(key, limit=cpus, qos=Qos.GUARANTEED), key, within=within)
        engine.amend(replace(engine.grants[key], constraint=Constraint()))
    return engine


def move(engine: Engine, key: str, ccx: int) -> Move:
    return Move(key, CCX[ccx], "ccx", "to be near its peer", engine.grants[key].placement)


def carry_out(engine: Engine, *moves: Move, exclusive: bool = False, at_s: float = 9.0) -> list[str]:
    """The ids of those told, in order."""
    updates = engine.apply(Plan(engine.version, moves, "plan: it pays", at_s, exclusive))
    assert broken_invariants(engine) == []
    return [update.id for update in updates]


def where(engine: Engine, key: str) -> Optional[int]:
    return next((i for i, cpus in enumerate(CCX) if engine.grants[key].cpus <= cpus), None)


@pytest.fixture
def engine() -> Engine:
    return shared(("a", 0))


# ---------------------------------------------------------------------- what is told of them


def test_the_last_moves_are_told_with_their_reason_the_latest_first() -> None:
    engine = shared(("a", 0), ("b", 0), ("c", 1), cpus=2)
    carry_out(engine, move(engine, "a", 1), at_s=9.0)
    carry_out(engine, move(engine, "b", 1), at_s=11.0)
    rows = recent_moves(engine, 10, 12.0)
    assert [(row["containers"], row["operation"], row["age_s"]) for row in rows] == [
        (["default/pod-of-b/b"], "moved", 1.0),
        (["default/pod-of-a/a"], "moved", 3.0),
    ]
    assert all(row["why"] == "to be near its peer; plan: it pays" for row in rows)
    assert recent_moves(engine, 1, 12.0) == rows[:1]


def test_containers_that_one_cause_has_moved_alike_are_one_entry() -> None:
    engine = owning(("own", 0))
    for number in range(5):
        run(
            engine,
            make_container(f"c{number}", limit=1, request=0.5),
            f"c{number}",
            within=Constraint(CCX[0]),
        )
    engine.remove("own")
    [row] = recent_moves(engine, 10, 21.0)
    assert (row["operation"], row["count"], len(row["containers"])) == ("grown", 5, 3)
    assert "default/pod-of-own/own (removal)" in row["why"]


# ---------------------------------------------------------------------- a plan


def test_a_swap_of_two_that_fill_their_domains_is_made_as_a_whole() -> None:
    engine = shared(("a", 0), ("b", 1), cpus=8)
    assert carry_out(engine, move(engine, "a", 1), move(engine, "b", 0)) == ["a", "b"]
    assert (where(engine, "a"), where(engine, "b")) == (1, 0)


def test_who_relied_on_a_move_that_does_not_hold_stays_as_well() -> None:
    engine = shared(("a", 0), ("b", 1), cpus=8)
    moves = move(engine, "a", 1), move(engine, "b", 0)
    engine.release("b")
    assert carry_out(engine, *moves) == []
    assert where(engine, "a") == 0


def test_a_move_into_a_full_domain_is_dropped_and_the_others_are_made() -> None:
    engine = shared(("a", 0), ("b", 1), ("c", 2), cpus=8)
    assert carry_out(engine, move(engine, "a", 1), move(engine, "c", 3)) == ["c"]


def test_the_history_says_why_and_when(engine) -> None:
    carry_out(engine, move(engine, "a", 1), at_s=12.0)
    record = engine.history[-1]
    assert (record.operation, record.id, record.at_s) == ("rebalance", "a", 12.0)
    assert record.why == engine.grants["a"].why == "to be near its peer; plan: it pays"


def test_what_does_not_move_is_not_in_the_history(engine) -> None:
    before = len(engine.history)
    assert carry_out(engine, move(engine, "a", 0)) == []
    assert len(engine.history) == before


def test_a_container_with_a_resize_on_its_way_is_not_moved(engine) -> None:
    planned = move(engine, "a", 1)
    admission = engine.resize("a", Resources(4000, 5000), Constraint(), 5.0)
    assert admission is not None
    assert carry_out(engine, planned) == []
    engine.commit(admission.ticket, 6.0)
    assert carry_out(engine, planned) == ["a"]


def test_inside_a_node_memory_is_not_touched_across_nodes_the_new_is_added(engine) -> None:
    carry_out(engine, move(engine, "a", 1))
    assert format_cpus(engine.grants["a"].placement.mems) == "0"
    carry_out(engine, move(engine, "a", 2))
    assert format_cpus(engine.grants["a"].placement.mems) == "0-1"


def charged_gib(engine: Engine) -> dict[int, int]:
    """What each memory node is charged, in GiB, without those that are charged nothing."""
    sizes = {n: engine.node.memory_charged(n) // GIB for n in engine.node.topology.node_ids}
    return {n: size for n, size in sizes.items() if size}


@pytest.mark.parametrize(
    ("ccxs", "charged"),
    [
        ([1], {0: 1}),
        ([2], {0: 1, 1: 1}),
        ([2, 3], {0: 1, 1: 1}),
        ([2, 0], {0: 1, 1: 1}),
        ([2, 4], {0: 1, 1: 1, 2: 1}),
    ],
    ids=["in its node", "to another node", "and on in that one", "and back", "and to a third node"],
)
def test_a_memory_limit_is_charged_on_all_nodes_its_memory_may_be_on(engine, ccxs, charged) -> None:
    for ccx in ccxs:
        carry_out(engine, move(engine, "a", ccx))
    assert charged_gib(engine) == charged


def test_a_newcomer_is_not_promised_the_memory_of_those_that_were_moved_away() -> None:
    engine = shared(*((f"a{number}", 0) for number in range(8)), cpus=1, memory=7)
    carry_out(engine, *(move(engine, f"a{number}", 2) for number in range(8)))
    new = run(engine, make_container("new", limit=4, memory=50), "new", within=Constraint(CCX[0]))
    assert format_cpus(new.placement.mems) != "0"


@pytest.mark.parametrize(("memory", "charged"), [(1, {0: 1, 1: 1}), (4, {0: 2, 1: 4})])
def test_a_new_memory_limit_is_charged_where_it_runs_and_bounds_what_it_left_behind(memory, charged) -> None:
    engine = shared(("a", 0), memory=2)
    carry_out(engine, move(engine, "a", 2))
    admission = engine.resize("a", Resources(4000, 4000, 0, memory * GIB), Constraint(), 5.0)
    assert admission is not None
    engine.commit(admission.ticket, 6.0)
    assert charged_gib(engine) == charged


# ---------------------------------------------------------------------- CPUs of its own


def test_who_owns_cpus_stays_unless_that_is_wanted() -> None:
    engine = owning(("a", 0))
    assert carry_out(engine, move(engine, "a", 5)) == []
    assert carry_out(engine, move(engine, "a", 5), exclusive=True) == ["a"]
    grant = engine.grants["a"]
    assert (where(engine, "a"), len(grant.exclusive), grant.exclusive == grant.cpus) == (5, 2, True)


def test_those_who_share_the_domain_make_room_first() -> None:
    engine = owning(("a", 0))
    run(engine, make_container("s", limit=4, request=4), "s", within=Constraint(CCX[5]))
    assert carry_out(engine, move(engine, "a", 5), exclusive=True) == ["s", "a"]


def test_nobody_comes_to_own_what_sharers_have_asked_for() -> None:
    engine = owning(("a", 0))
    run(engine, make_container("s", limit=7, request=7), "s", within=Constraint(CCX[5]))
    assert carry_out(engine, move(engine, "a", 5), exclusive=True) == []


# ---------------------------------------------------------------------- taken back


def taken_back(
    engine: Engine, planned: Move, why: str = "the runtime refused it"
) -> tuple[CpusetUpdate, ...]:
    updates = engine.take_back([planned], why)
    assert broken_invariants(engine) == []
    return updates


@pytest.mark.parametrize("target", [1, 2], ids=["in its node", "in another node"])
def test_a_move_that_is_taken_back_leaves_the_placement_of_before(engine, target) -> None:
    before = dump(engine)
    planned = move(engine, "a", target)
    carry_out(engine, planned)
    [update] = taken_back(engine, planned)
    grant = engine.grants["a"]
    assert (update.id, update.placement) == ("a", grant.placement)
    assert grant.why == "back at its place before the plan: the runtime refused it"
    assert engine.history[-2].outcome == "taken back: the runtime refused it"
    assert engine.history[-1].operation == "move taken back"
    engine.amend(replace(grant, why=before["grants"]["a"].why))  # type: ignore[index]
    assert dump(engine) == before


def test_a_container_whose_old_place_is_taken_stays_at_the_new_one() -> None:
    engine = shared(("a", 0), ("b", 1), cpus=8)
    moves = move(engine, "a", 1), move(engine, "b", 0)
    carry_out(engine, *moves)
    assert taken_back(engine, moves[0]) == ()
    assert where(engine, "a") == 1


def test_one_that_is_elsewhere_by_now_is_left_alone(engine) -> None:
    planned = move(engine, "a", 1)
    carry_out(engine, planned)
    carry_out(engine, move(engine, "a", 3))
    assert taken_back(engine, planned) == ()
    assert where(engine, "a") == 3


@pytest.mark.parametrize("end", ["removed", "released", "exited"])
def test_what_is_not_ours_any_more_is_left_alone(engine, end) -> None:
    planned = move(engine, "a", 1)
    carry_out(engine, planned)
    {"removed": engine.remove, "released": engine.release, "exited": lambda key: engine.exited(key, 1, 9.0)}[
        end
    ]("a")
    assert taken_back(engine, planned) == ()


def test_own_cpus_that_somebody_else_has_got_meanwhile_are_not_taken_back() -> None:
    engine = owning(("a", 0), cpus=6)
    planned = move(engine, "a", 5)
    carry_out(engine, planned, exclusive=True)
    run(engine, make_container("b", limit=6, qos=Qos.GUARANTEED), "b", within=Constraint(CCX[0]))
    assert taken_back(engine, planned) == ()


def test_own_cpus_are_taken_back_while_they_are_free() -> None:
    engine = owning(("a", 0))
    before = engine.grants["a"].exclusive
    planned = move(engine, "a", 5)
    carry_out(engine, planned, exclusive=True)
    assert [update.id for update in taken_back(engine, planned)] == ["a"]
    assert engine.grants["a"].exclusive == before


def test_plans_are_in_the_journal() -> None:
    engine, shadow = shared(("a", 0)), Shadow()
    planned = move(engine, "a", 1)
    carry_out(engine, planned)
    shadow.follow(engine)
    taken_back(engine, planned)
    shadow.follow(engine)
    assert shadow.differs_from(engine) == []


# ---------------------------------------------------------------------- what explain says of both sides


def moves_of(engine: Engine, key: str, now_s: float = 69.0) -> list[str]:
    document = explain(engine, key, now_s)
    assert document is not None
    return [move_text(row) for row in document["containers"][0]["moves"]]


def near(engine: Engine, key: str, ccx: int, *peers: str, exchange: int = 0) -> Move:
    return replace(move(engine, key, ccx), peers=peers, gain=0.0032, exchange=exchange)


def test_a_move_is_told_of_the_container_and_of_the_peers_that_stayed() -> None:
    engine = shared(("a", 0), ("b", 1), ("c", 0))
    carry_out(engine, near(engine, "a", 1, "b", "c"))
    number = engine.history[-1].number
    rest = f"60 s ago (#{number}), to save 3.2 mCPU; plan: it pays"
    assert moves_of(engine, "a") == [
        f"moved 60 s ago (#{number}) nearer to default/pod-of-b/b, farther from default/pod-of-c/c, to save 3.2 mCPU; "
        "plan: it pays"
    ]
    assert moves_of(engine, "b") == [f"default/pod-of-a/a came nearer {rest}"]
    assert moves_of(engine, "c") == [f"default/pod-of-a/a went farther away {rest}"]


def test_each_of_those_that_change_places_names_the_others_once() -> None:
    engine = shared(("a", 0), ("b", 1), ("c", 2), ("x", 1), cpus=4)
    ring = [
        near(engine, key, ccx, *peers, exchange=1)
        for key, ccx, peers in (("a", 1, "x"), ("b", 2, "x"), ("c", 0, ""))
    ]
    carry_out(engine, *ring)
    [a], [b], [c] = [moves_of(engine, key) for key in "abc"]
    assert "nearer to default/pod-of-x/x, in exchange with default/pod-of-b/b, default/pod-of-c/c" in a
    assert "farther from default/pod-of-x/x, in exchange with default/pod-of-a/a, default/pod-of-c/c" in b
    assert "in exchange with default/pod-of-a/a, default/pod-of-b/b" in c
    came, went = sorted(moves_of(engine, "x"))
    assert came.startswith("default/pod-of-a/a came nearer") and went.startswith("default/pod-of-b/b went")


def test_peers_that_move_together_into_one_place_are_told_once() -> None:
    engine = shared(("a", 0), ("b", 1))
    carry_out(engine, near(engine, "a", 5, "b"), near(engine, "b", 5, "a"))
    [a], [b] = moves_of(engine, "a"), moves_of(engine, "b")
    assert "nearer to default/pod-of-b/b" in a
    assert "nearer to default/pod-of-a/a" in b


def test_a_move_that_was_taken_back_says_so_to_both() -> None:
    engine = shared(("a", 0), ("b", 1))
    there = near(engine, "a", 1, "b")
    carry_out(engine, there)
    engine.take_back([there], "the runtime refused it")
    for key in "ab":
        assert moves_of(engine, key)[0].endswith(" -> taken back: the runtime refused it")


def test_a_peer_that_is_gone_keeps_its_name_as_long_as_the_history_has_it() -> None:
    engine = shared(("a", 0), ("b", 1))
    carry_out(engine, near(engine, "a", 1, "b"))
    before = moves_of(engine, "a"), moves_of(engine, "b")
    engine.remove("b")
    assert moves_of(engine, "a") == before[0]
    engine = shared(("a", 0), ("b", 1))
    carry_out(engine, near(engine, "a", 1, "b"))
    engine.remove("a")
    assert moves_of(engine, "b") == before[1]


def test_as_many_moves_are_told_as_peers() -> None:
    engine = shared(("a", 0), ("b", 1))
    for _ in range(LISTED):
        for ccx in (1, 0):
            carry_out(engine, near(engine, "a", ccx, "b"))
    assert len(moves_of(engine, "b")) == LISTED
