"""Composite balloons and loads through the engine: restarts, attempts, resizes, and another configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from policies.balloons.policy import SPARE_S, Balloons
from policies.balloons.types import BALANCE, BalloonSettings, BalloonType, LoadClass
from policies.machine.cpus import format_cpus
from policies.model import NO_CONSTRAINT, Resources
from policies.settings import PlacementSettings
from tests.engine.test_engine_balloons import asks, balloons_on, restarted
from tests.machines import HYGON_7285_2S
from tests.scenes import again, cpus_of, run, told

NODES = [
    BalloonType(f"n{node}", prefer_close_to_devices=(f"/sys/devices/system/node/node{node}",))
    for node in (0, 4)
]
BOTH = BalloonType("both", namespaces=("db",), components=("n0", "n4"))
EITHER = BalloonType(
    "either",
    namespaces=("web",),
    components=("n0", "n4"),
    component_creation=BALANCE,
    prefer_new_balloons=True,
)


@pytest.fixture
def engine() -> Engine:
    return balloons_on(HYGON_7285_2S, BOTH, EITHER, *NODES)


def configured(engine: Engine, *types: BalloonType, loads: tuple[LoadClass, ...] = ()) -> Balloons:
    settings = PlacementSettings(balloons=BalloonSettings(types, loads=loads))
    return Balloons(engine.host.topology, settings)


def test_both_parts_grow_for_a_container_and_shrink_after_it(engine) -> None:
    run(engine, asks("a", 4), "a")
    admission = engine.admit(asks("b", 4), NO_CONSTRAINT, 0.0)
    assert told(admission.after) == {"a": "0-1,32-33,64-65,96-97"}
    engine.bind(admission.ticket, "b", 0.0)
    engine.remove("b")
    engine.tick(SPARE_S)
    assert format_cpus(engine.grants["a"].cpus) == "0,32,64,96"
    assert broken_invariants(engine) == []


def test_a_create_that_fails_takes_back_what_all_parts_have_grown(engine) -> None:
    run(engine, asks("a", 4), "a")
    before = cpus_of(engine)
    admission = engine.admit(asks("b", 8), NO_CONSTRAINT, 0.0)
    engine.cancel(admission.ticket, 0.0)
    assert cpus_of(engine) == before and broken_invariants(engine) == []


def test_a_resize_is_one_of_all_parts(engine) -> None:
    run(engine, asks("a", 4), "a")
    admission = engine.resize("a", Resources(8000), NO_CONSTRAINT, 0.0)
    assert admission is not None
    engine.commit(admission.ticket, 0.0)
    assert format_cpus(engine.grants["a"].cpus) == "0-1,32-33,64-65,96-97"


def test_a_restart_changes_nothing_and_the_parts_are_the_same(engine) -> None:
    for number, namespace in enumerate(("db", "web", "web", "db", "web")):
        run(engine, asks(f"c{number}", number + 1, namespace), f"c{number}")
    engine.remove("c1")
    parts = {key: engine.policy.parts_of(grant.placement) for key, grant in engine.grants.items()}
    next_one, updates = restarted(engine)
    assert updates == () and cpus_of(next_one) == cpus_of(engine)
    assert {key: next_one.policy.parts_of(grant.placement) for key, grant in next_one.grants.items()} == parts
    assert next_one.policy.tidy(next_one.node, next_one.now_s) == {}


def test_the_next_attempt_of_a_container_is_of_the_same_component(engine) -> None:
    for name in ("a", "b", "c"):
        run(engine, asks(name, 2, "web"), name)
    before = engine.grants["b"].placement
    assert format_cpus(before.cpus) == "32,96"
    engine.exited("b", 1, 0.0)
    run(engine, again(asks("b", 2, "web"), 1), "b-1")
    assert engine.grants["b-1"].placement == before


def test_nothing_moves_when_components_or_loads_are_configured_anew_and_what_grows_goes_by_them(
    engine,
) -> None:
    run(engine, asks("a", 4), "a")
    run(engine, asks("w", 2, "web"), "w")
    loads = (LoadClass("memory", "l3cache"),)
    plain = replace(BOTH, components=("memory", "memory"))
    policy = configured(engine, plain, EITHER, *NODES, BalloonType("memory", loads=("memory",)), loads=loads)
    assert engine.rehost(engine.host, policy) == ()
    run(engine, asks("b", 4), "b")
    own = engine.grants["b"].cpus
    assert own > engine.node.topology.core_mates(0) and len(own) == 8
    assert broken_invariants(engine) == []


def test_containers_of_a_type_that_is_composite_no_more_keep_their_cpus(engine) -> None:
    run(engine, asks("a", 4), "a")
    before = cpus_of(engine)
    assert engine.rehost(engine.host, configured(engine, replace(BOTH, components=()))) == ()
    assert cpus_of(engine) == before and engine.policy.parts_of(engine.grants["a"].placement) == ()
