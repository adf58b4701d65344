"""Containers that own CPUs together: each one's record says what they own, also after a restart in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from policies.balloons.policy import SPARE_S, Balloons
from policies.balloons.types import BalloonSettings
from policies.model import NO_CONSTRAINT
from policies.settings import PlacementSettings
from tests.engine.test_engine_balloons import asks, balloons_on, restarted, run
from tests.engine.test_random_search import Searched, sequence_of
from tests.machines import HYGON_7285_2S
from tests.scenes import Shadow, engine_on


def pooled(members: int) -> Engine:
    engine = balloons_on(HYGON_7285_2S)
    for number in range(members):
        run(engine, asks(f"c{number}", 0.01, "default"), f"c{number}")
    engine.drain()
    return engine


def test_what_others_own_with_a_container_that_makes_it_more_is_written_after_it() -> None:
    engine = pooled(10)
    before = engine.grants["c0"].exclusive
    admission = engine.admit(asks("new", 2, "default"), NO_CONSTRAINT, 0.0)
    at_once = {key for kind, key in engine.drain(at_once=True) if kind == "grant"}
    assert at_once == {admission.ticket} and len(engine.drain()) >= 10
    engine.bind(admission.ticket, "new", 0.0)
    own = engine.grants["new"].exclusive
    assert own > before and {grant.exclusive for grant in engine.grants.values()} == {own}
    # What they give back is written at once.
    engine.drain()
    engine.remove("new")
    engine.tick(SPARE_S)
    assert {key for kind, key in engine.drain(at_once=True) if kind == "grant"} == set(engine.grants) | {
        "new"
    }
    left = engine.grants["c0"].exclusive
    assert len(left) == len(before) and engine.node.exclusive == left
    after, updates = restarted(engine)
    assert updates == () and {grant.exclusive for grant in after.grants.values()} == {left}
    assert broken_invariants(engine) == broken_invariants(after) == []


def test_a_restart_before_that_was_written_gives_all_what_the_newest_owns() -> None:
    engine, shadow = pooled(5), Shadow()
    before = engine.grants["c0"].exclusive
    shadow.tables["grant"] = dict(engine.grants)
    admission = engine.admit(asks("new", 3, "default"), NO_CONSTRAINT, 0.0)
    engine.bind(admission.ticket, "new", 0.0)
    own = engine.grants["new"].exclusive
    for (kind, key), value in engine.drain(at_once=True).items():
        if kind == "grant" and value is not None:
            shadow.tables["grant"][key] = value
    assert {grant.exclusive for grant in shadow.tables["grant"].values()} == {before, own}  # type: ignore[attr-defined]
    after = engine_on(engine.host, policy=engine.policy)
    after.restore(shadow.tables["grant"].values(), [], engine.pods.values(), (), {})  # type: ignore[arg-type]
    assert {grant.exclusive for grant in after.grants.values()} == {own}
    assert broken_invariants(after) == []


def state_of(engine: Engine) -> dict[str, object]:
    node = engine.node
    return {
        "grants": dict(engine.grants),
        "tickets": dict(engine.tickets),
        "claims": (node.claims, node.claims_alone, node.shared, node.capacity()),
    }


def test_a_transition_that_is_cut_short_leaves_a_group_with_what_it_owned() -> None:
    engine = pooled(5)
    before = state_of(engine)
    real, engine.record = engine.record, _fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        engine.admit(asks("new", 2, "default"), NO_CONSTRAINT, 0.0)
    engine.record = real  # type: ignore[method-assign]
    assert state_of(engine) == before and broken_invariants(engine) == []


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def default_pool(tree: Any, settings: PlacementSettings) -> Balloons:
    """All containers are in one balloon, which shares the idle CPUs around it."""
    return Balloons(tree, replace(settings, balloons=BalloonSettings()))


@pytest.mark.parametrize("seeds", [range(10), range(10, 20)], ids=str)
def test_all_that_can_happen_to_the_one_balloon_of_a_node(seeds: range) -> None:
    for seed in seeds:
        where, _, steps = sequence_of(seed)
        node = type("One", (Searched,), {"name": where, "make_policy": staticmethod(default_pool)})()
        for name, arguments in steps:
            if name == "switch" or (name in ("accepted", "refused", "nobody_knows") and not node.calls):
                continue
            getattr(node, name)(**arguments)
            node.check()
        node.teardown()
