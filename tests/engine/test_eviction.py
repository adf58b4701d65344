"""Moving others so that one container fits: only where it then does, few of them, and back if it was for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from policies.machine.cpus import format_cpus
from policies.model import Container
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S
from tests.scenes import constraint, cpus_of, dump, engine_on, host_of, make_container, run, told

#: NUMA node 0 of the Hygon machine alone: two CCXs of 8 CPUs.
CCX_0, CCX_1 = "0-3,64-67", "4-7,68-71"
NODE_0 = "0-7,64-71"


def app(name: str, request: float) -> Container:
    return make_container(name, limit=8, request=request)


def scattered(options: EngineOptions = EngineOptions(), small: float = 1) -> Engine:  # noqa: B008
    """2,000m left in one CCX and 1,000m in the other: 3,000m fit neither, unless the small one moves."""
    engine = engine_on(host_of(HYGON_7285_2S, usable=NODE_0), options=options)
    for name, request in (("a", 5), ("b", 5), ("c", small), ("d", 2)):
        run(engine, app(name, request), name)
    assert cpus_of(engine) == {"a": CCX_0, "b": CCX_1, "c": CCX_0, "d": CCX_1}
    return engine


def test_who_is_in_the_way_moves_and_is_told_before_the_create() -> None:
    engine = scattered()
    admission = engine.admit(app("new", 3), constraint(), 10.0)
    assert format_cpus(admission.placement.cpus) == CCX_0
    assert told(admission.before) == {"c": CCX_1}
    assert "moved to make room" in admission.decision.why
    assert "makes room" in engine.grants["c"].why
    assert broken_invariants(engine) == []


def test_a_refused_create_gives_the_first_places_back() -> None:
    engine = scattered()
    before = cpus_of(engine)
    admission = engine.admit(app("new", 3), constraint(), 10.0)
    assert told(engine.cancel(admission.ticket, 11.0)) == {"c": CCX_0}
    assert cpus_of(engine) == before


def test_what_was_moved_and_has_gone_or_changed_since_is_not_moved_back() -> None:
    engine = scattered()
    admission = engine.admit(app("new", 3), constraint(), 10.0)
    engine.remove("c")
    assert engine.cancel(admission.ticket, 11.0) == ()
    assert broken_invariants(engine) == []


@pytest.mark.parametrize(
    ("what", "options", "request_cpus"),
    [
        ("it would not help", EngineOptions(), 4),
        ("the configuration forbids it", EngineOptions(max_moves=0), 3),
    ],
)
def test_nobody_is_moved_if(what: str, options: EngineOptions, request_cpus: int) -> None:
    engine = scattered(options)
    before = cpus_of(engine)
    admission = engine.admit(app("new", request_cpus), constraint(), 10.0)
    assert not admission.decision.others
    assert (*admission.before, *admission.after) == ()
    assert {key: cpus for key, cpus in cpus_of(engine).items() if key in before} == before


@pytest.mark.parametrize("why", ["held", "fenced"])
def test_containers_that_have_ended_or_are_fenced_in_stay(why: str) -> None:
    engine = scattered()
    if why == "held":
        engine.exited("c", 1, 9.0)
    else:
        engine.amend(replace(engine.grants["c"], constraint=constraint(CCX_0)))
    admission = engine.admit(app("new", 3), constraint(), 10.0)
    assert "c" not in admission.decision.others


def test_the_same_container_is_not_moved_to_and_fro() -> None:
    engine = scattered()
    run(engine, app("new", 3), "new", 10.0)
    before = cpus_of(engine)
    for number in range(3):
        engine.cancel(engine.admit(app(f"more-{number}", 3), constraint(), 20.0).ticket, 21.0)
    assert cpus_of(engine) == before


def test_a_failed_create_leaves_no_trace() -> None:
    engine = scattered()
    before = dump(engine)
    engine.cancel(engine.admit(app("new", 3), constraint(), 10.0).ticket, 11.0)
    after = dump(engine)
    # The reason of a container that was moved and came back says so.
    for state in (before, after):
        state.pop("grants"), state.pop("residents")
    assert after == before
