"""Rule 5: a container that grows by a request is told after it, whatever becomes of the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, CpusetUpdate
from policies.machine.cpus import format_cpus
from policies.model import NO_CONSTRAINT, Qos, Resources
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import Owning, again, constraint, engine_on, make_container, run, told, topology

SHARER = make_container("app", limit=4)
OWNER = make_container("owner", limit=2, qos=Qos.GUARANTEED)


def one_grows() -> tuple[Engine, Admission]:
    """``app`` runs on 2-3 and may have 0-3 once the owner of 0-1 has moved to the other node, as it is about to."""
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, OWNER, "owner")
    run(engine, SHARER, "app", within=constraint("0-3"))
    assert format_cpus(engine.grants["app"].cpus) == "2-3"
    engine.exited("owner", 1, 10.0)
    smaller = replace(again(OWNER, 1), resources=Resources(1000, 1000))
    return engine, engine.admit(smaller, constraint("4-7"), 20.0)


#: How the request that it waits for can end so that it has the CPUs for good.
ENDS: dict[str, Callable[[Engine, str], tuple[CpusetUpdate, ...]]] = {
    "bound": lambda engine, ticket: engine.bind(ticket, "owner-1", 21.0),
    "in doubt": lambda engine, ticket: engine.doubt(ticket),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_rule_5_who_waits_to_grow_is_told_at_the_end(
    end: Callable[[Engine, str], tuple[CpusetUpdate, ...]],
) -> None:
    engine, admission = one_grows()
    assert told(admission.before) == {}
    assert told(end(engine, admission.ticket)) == {"app": "0-3"}
    assert told(engine.tick(22.0)) == {}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_rule_5_who_waits_to_grow_is_told_the_place_it_has_by_then(
    end: Callable[[Engine, str], tuple[CpusetUpdate, ...]],
) -> None:
    engine, admission = one_grows()
    taken = engine.admit(make_container("other", limit=1, qos=Qos.GUARANTEED), constraint("1"), 20.5)
    assert told(taken.before) == {}
    assert told(end(engine, admission.ticket)) == {"app": "0,2-3"}


def test_rule_5_who_was_to_grow_by_a_create_that_is_refused_stays() -> None:
    engine, admission = one_grows()
    assert told(engine.cancel(admission.ticket, 21.0)) == {}
    assert format_cpus(engine.grants["app"].cpus) == "2-3"


def test_rule_5_a_create_in_doubt_that_never_was_takes_back_what_others_got() -> None:
    engine, admission = one_grows()
    engine.doubt(admission.ticket)
    [update] = engine.cancel(admission.ticket, 200.0)
    assert (told([update]), update.shrink) == ({"app": "2-3"}, True)


def test_rule_5_a_resize_in_doubt_lets_others_grow_and_says_nothing_of_its_own_container() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    run(engine, OWNER, "owner")
    run(engine, SHARER, "app", within=constraint("0-3"))
    admission = engine.resize("owner", Resources(1000, 1000), NO_CONSTRAINT, 20.0)
    assert admission is not None
    waiting = set(engine.tickets[admission.ticket].waiting)
    assert set(told(engine.doubt(admission.ticket))) == waiting and "owner" not in waiting


# ---------------------------------------------------------------------- set aside while it waits


def test_rule_5_one_that_comes_back_from_its_refused_next_attempt_has_grown() -> None:
    for name, end in ENDS.items():
        engine, admission = one_grows()
        next_attempt = engine.admit(again(SHARER, 1), constraint("0-3"), 20.5)
        assert "app" not in engine.grants
        assert "app" not in told(end(engine, admission.ticket)), name
        # It is still the one that runs, on the CPUs it had before all this.
        assert told(engine.cancel(next_attempt.ticket, 22.0)) == {"app": "0-3"}, name
        assert broken_invariants(engine) == []


def test_rule_5_it_has_grown_also_where_that_attempt_was_in_doubt_itself() -> None:
    engine, admission = one_grows()
    next_attempt = engine.admit(again(SHARER, 1), constraint("0-3"), 20.5)
    engine.bind(admission.ticket, "owner-1", 21.0)
    assert told(engine.doubt(next_attempt.ticket)) == {}
    assert told(engine.cancel(next_attempt.ticket, 200.0)) == {"app": "0-3"}


def test_rule_5_it_stays_where_both_are_refused() -> None:
    engine, admission = one_grows()
    next_attempt = engine.admit(again(SHARER, 1), constraint("0-3"), 20.5)
    engine.cancel(admission.ticket, 21.0)
    assert told(engine.cancel(next_attempt.ticket, 22.0)).get("app", "2-3") == "2-3"
    assert format_cpus(engine.grants["app"].cpus) == "2-3"


def test_rule_5_one_whose_next_attempt_is_there_is_told_nothing() -> None:
    engine, admission = one_grows()
    next_attempt = engine.admit(again(SHARER, 1), constraint("0-3"), 20.5)
    assert told(engine.bind(next_attempt.ticket, "app-1", 21.0)) == {}
    assert told(engine.bind(admission.ticket, "owner-1", 22.0)) == {}


def test_rule_5_who_waits_for_a_create_that_another_attempt_takes_over_from_waits_for_that() -> None:
    before, _ = one_grows()
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    # The daemon was killed before any container was told.
    assert engine.restore(before.grants.values(), before.tickets.values(), (), (), {}) == ()
    smaller = replace(again(OWNER, 2), resources=Resources(1000, 1000))
    admission = engine.admit(smaller, constraint("4-7"), 30.0)
    assert told(engine.bind(admission.ticket, "owner-2", 31.0)) == {"app": "0-3"}
