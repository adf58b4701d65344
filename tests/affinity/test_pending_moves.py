"""What ``explain`` says of a container that a plan would move, and that stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.affinity.moves import pending_moves, plan_of
from cri_proxy.affinity.problem import PlanningSnapshot
from cri_proxy.affinity.report import would_move_text
from cri_proxy.engine.engine import Engine
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import BlockedMove, Proposal
from tests.affinity.test_problem import CCX, TALK, apart, ask, both_ways, moved_to, put
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

__all__ = ["apart"]

NO_PLAN = Proposal(False, (), 1, 1, 0, 0, 0, "no better placement than the present one was found")


def told(
    engine: Engine,
    question: PlanningSnapshot,
    key: str,
    proposal: Optional[Proposal] = None,
    now_s: float = 100.0,
) -> str:
    """The line of ``explain``; "" = it has none."""
    answer = plan(question.problem) if proposal is None else proposal
    pending = pending_moves(question, answer).get(key)
    row = None if pending is None else pending.row(engine.grants[key], "for its turn", now_s)
    return "" if row is None else would_move_text(row)


def test_an_accepted_move_waits_for_its_turn_until_it_is_made(apart) -> None:
    question = ask(apart, TALK)
    proposal = plan(question.problem)
    first, second = [move.key for move in proposal.moves]
    apart.apply(plan_of(apart, question, proposal, 1))
    assert told(apart, question, first, proposal) == ""
    assert told(apart, question, second, proposal).endswith("; waits for its turn")


def test_a_container_that_a_plan_has_moved_says_how_long_it_cools(apart) -> None:
    apart.apply(plan_of(apart, ask(apart, TALK), moved_to(ask(apart, TALK), "a", 9), 10, now_s=200.0))
    question = ask(apart, both_ways(("a", "b", 2e5)), now_s=500.0)
    assert told(apart, question, "a", NO_PLAN, now_s=560.0) == (
        "would move to L3 3 beside default/pod-of-b/b, which saves 31.6 mCPU; "
        "waits for affinity.cooldown (4 min left)"
    )
    assert told(apart, question, "a", NO_PLAN, now_s=800.0) == ""


def test_what_cools_stays_silent_where_the_plan_brings_its_peer(apart) -> None:
    apart.apply(plan_of(apart, ask(apart, TALK), moved_to(ask(apart, TALK), "a", 9), 10, now_s=200.0))
    question = ask(apart, both_ways(("a", "b", 2e5)), now_s=500.0)
    assert [move.key for move in plan(question.problem).moves] == ["b"]
    assert told(apart, question, "a", now_s=560.0) == ""


def test_what_cools_would_move_near_a_full_domain_not_into_it() -> None:
    engine = engine_on(HYGON_7285_2S)
    for key, ccx, cpus in (("a", 0, 2), ("b", 3, 2), ("c", 3, 5)):
        put(engine, key, CCX[ccx], cpus=cpus)
    engine.apply(plan_of(engine, ask(engine, TALK), moved_to(ask(engine, TALK), "a", 1), 10, now_s=200.0))
    question = ask(engine, both_ways(("a", "b", 2e5)), now_s=500.0)
    assert told(engine, question, "a", NO_PLAN, now_s=500.0) == (
        "would move to L3 2, nearer to its peers, which saves 4.9 mCPU; waits for affinity.cooldown (5 min left)"
    )


def test_a_container_whose_traffic_was_lost_says_that_it_waits_for_trust(apart) -> None:
    question = ask(apart, replace(TALK, trust={"a": 0.3}))
    assert told(apart, question, "a", NO_PLAN) == (
        "would move to L3 3 beside default/pod-of-b/b, which saves 21.7 mCPU; "
        "waits for trust: less than 50% of its traffic was seen, as tables were full"
    )


@pytest.mark.parametrize("settings", [{"hysteresis": 1.0}, {"least_gain": 0.1}])
def test_moves_that_do_not_pay_are_told_with_what_they_would_save(apart, settings) -> None:
    question = ask(apart, TALK, **settings)
    proposal = plan(question.problem)
    assert proposal.moves == ()
    for move in proposal.held:
        assert "; waits until it pays (affinity.hysteresis): " in told(apart, question, move.key, proposal)
    assert bool(proposal.held) == ("hysteresis" in settings)


def test_a_blocked_move_names_what_is_in_its_way(apart) -> None:
    question = ask(apart, TALK)
    blocked = BlockedMove("a", 0, 3, ("b",), "containers with exclusive CPUs never overlap")
    assert told(apart, question, "a", replace(NO_PLAN, blocked=(blocked,))) == (
        "would move to L3 3 beside default/pod-of-b/b, which saves 21.7 mCPU; waits for room: the place of "
        "default/pod-of-b/b, and containers with exclusive CPUs never overlap"
    )


def test_a_container_that_has_been_moved_since_says_nothing(apart) -> None:
    question = ask(apart, TALK)
    blocked = replace(NO_PLAN, blocked=(BlockedMove("a", 0, 3, ("b",), "no room"),))
    apart.apply(plan_of(apart, question, moved_to(question, "a", 7), 10))
    assert told(apart, question, "a", blocked) == ""
