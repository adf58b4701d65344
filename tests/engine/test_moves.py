"""The moves of a plan: all that still hold in one transition, each can be taken back. See test_engine_updates.py, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.records import CpusetUpdate, Move, Plan
from policies.machine.cpus import format_cpus
from policies.model import CpusetConstraint, Qos, Resources
from policies.topology_aware import TopologyAware
from tests.machines import GIB, HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, Number, Shadow, dump, engine_on, make_container, run, topology

CCX = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]


def shared(*placed: tuple[str, int], cpus: Number = 4, memory: int = 1) -> Engine:
    """Containers on the CCXs of these numbers."""
    engine = engine_on(HYGON_7285_2S)
    for key, ccx in placed:
        within = CpusetConstraint(CCX[ccx])
        run(engine, make_container(key, limit=cpus, request=cpus, memory=memory), key, within=within)
        grant = engine.grants[key]
        engine.amend(replace(grant, fence=CpusetConstraint()))
    return engine


def owning(*placed: tuple[str, int], cpus: int = 2) -> Engine:
    engine = engine_on(HYGON_7285_2S, policy=TopologyAware(topology(HYGON_7285_2S), TOPOLOGY_AWARE))
    for key, ccx in placed:
        within = CpusetConstraint(CCX[ccx])
        run(engine, make_container(key, limit=cpus, qos=Qos.GUARANTEED), key, within=within)
        engine.amend(replace(engine.grants[key], fence=CpusetConstraint()))
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


def test_the_updates_are_in_the_order_of_the_plan() -> None:
    engine = shared(("a", 0), ("b", 1), ("c", 2))
    moves = [move(engine, key, ccx) for key, ccx in (("c", 4), ("a", 5), ("b", 6))]
    assert carry_out(engine, *moves) == ["c", "a", "b"]


def test_the_history_says_why_and_when() -> None:
    engine = shared(("a", 0))
    carry_out(engine, move(engine, "a", 1), at_s=12.0)
    record = engine.history[-1]
    assert (record.operation, record.id, record.at_s) == ("rebalance", "a", 12.0)
    assert record.why == engine.grants["a"].why == "to be near its peer; plan: it pays"


def test_what_does_not_move_is_not_in_the_history() -> None:
    engine = shared(("a", 0))
    before = len(engine.history)
    assert carry_out(engine, move(engine, "a", 0)) == []
    assert len(engine.history) == before


def test_a_container_with_a_resize_on_its_way_is_not_moved() -> None:
    engine = shared(("a", 0))
    planned = move(engine, "a", 1)
    admission = engine.resize("a", Resources(4000, 5000), CpusetConstraint(), 5.0)
    assert admission is not None
    assert carry_out(engine, planned) == []
    engine.commit(admission.ticket, 6.0)
    assert carry_out(engine, planned) == ["a"]


def test_inside_a_node_memory_is_not_touched_across_nodes_the_new_is_added() -> None:
    engine = shared(("a", 0))
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
def test_a_memory_limit_is_charged_on_all_nodes_its_memory_may_be_on(
    ccxs: list[int], charged: dict[int, int]
) -> None:
    engine = shared(("a", 0))
    for ccx in ccxs:
        carry_out(engine, move(engine, "a", ccx))
    assert charged_gib(engine) == charged


def test_a_newcomer_is_not_promised_the_memory_of_those_that_were_moved_away() -> None:
    engine = shared(*((f"a{number}", 0) for number in range(8)), cpus=1, memory=7)
    carry_out(engine, *(move(engine, f"a{number}", 2) for number in range(8)))
    new = run(engine, make_container("new", limit=4, memory=50), "new", within=CpusetConstraint(CCX[0]))
    assert format_cpus(new.placement.mems) != "0"


@pytest.mark.parametrize(("memory", "charged"), [(1, {0: 1, 1: 1}), (4, {0: 2, 1: 4})])
def test_a_new_memory_limit_is_charged_where_it_runs_and_bounds_what_it_left_behind(
    memory: int, charged: dict[int, int]
) -> None:
    engine = shared(("a", 0), memory=2)
    carry_out(engine, move(engine, "a", 2))
    admission = engine.resize("a", Resources(4000, 4000, 0, memory * GIB), CpusetConstraint(), 5.0)
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
    run(engine, make_container("s", limit=4, request=4), "s", within=CpusetConstraint(CCX[5]))
    assert carry_out(engine, move(engine, "a", 5), exclusive=True) == ["s", "a"]


def test_nobody_comes_to_own_what_sharers_have_asked_for() -> None:
    engine = owning(("a", 0))
    run(engine, make_container("s", limit=7, request=7), "s", within=CpusetConstraint(CCX[5]))
    assert carry_out(engine, move(engine, "a", 5), exclusive=True) == []


# ---------------------------------------------------------------------- taken back


def taken_back(
    engine: Engine, planned: Move, why: str = "the runtime refused it"
) -> tuple[CpusetUpdate, ...]:
    updates = engine.take_back([planned], why)
    assert broken_invariants(engine) == []
    return updates


@pytest.mark.parametrize("target", [1, 2], ids=["in its node", "in another node"])
def test_a_move_that_is_taken_back_leaves_the_placement_of_before(target: int) -> None:
    engine = shared(("a", 0))
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


def test_one_that_is_elsewhere_by_now_is_left_alone() -> None:
    engine = shared(("a", 0))
    planned = move(engine, "a", 1)
    carry_out(engine, planned)
    carry_out(engine, move(engine, "a", 3))
    assert taken_back(engine, planned) == ()
    assert where(engine, "a") == 3


@pytest.mark.parametrize("end", ["removed", "released", "exited"])
def test_what_is_not_ours_any_more_is_left_alone(end: str) -> None:
    engine = shared(("a", 0))
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
    run(engine, make_container("b", limit=6, qos=Qos.GUARANTEED), "b", within=CpusetConstraint(CCX[0]))
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
