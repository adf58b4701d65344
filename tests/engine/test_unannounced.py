"""Containers that no create request announced: one step for what takes a proxy two."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Life, Management
from cri_proxy.engine.resync import UnannouncedContainer, in_order, leave_untouched
from cri_proxy.front_ends.placer import Placer
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import Container, PlacementPreferences, PlacementRefused, Qos
from tests.machines import HYGON_7285_2S, MONOLITHIC_2S
from tests.scenes import Owning, constraint, dump, engine_on, host_of, make_container, run, topology
from tests.told_at_once import ToldAtOnce

ALL = "0-127"


def unannounced(
    container: Container, cpus: Optional[str] = None, key: str = "new", **more: Any
) -> UnannouncedContainer:
    return UnannouncedContainer(key, container, cpus=None if cpus is None else parse_cpus(cpus), **more)


def come(engine: ToldAtOnce, app: UnannouncedContainer, enforce: bool = True) -> list[tuple[str, str]]:
    """Place it; what the runtime is told, in order."""
    with engine.quiet():
        Placer(engine).create_late(app, 10.0, enforce)
    assert broken_invariants(engine) == []
    return [(update.id, format_cpus(update.placement.cpus)) for update in engine.tell_all()]


# ---------------------------------------------------------------------- placing


def test_its_record_is_that_of_a_container_whose_create_we_saw() -> None:
    container = make_container("app", limit=2, request=1)
    seen, late = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    run(seen, container, "new", 10.0)
    assert come(late, unannounced(container)) == [("new", "0-3,64-67")]
    assert {**dump(late), "policy": None} == {**dump(seen), "policy": None}
    assert late.tickets == {}


def test_one_that_was_not_started_yet_is_placed_before_its_start() -> None:
    engine, container = engine_on(HYGON_7285_2S), make_container("app", limit=2, request=1)
    app = unannounced(container, is_running=False)
    with engine.quiet():
        Placer(engine).create_late(app, 10.0, True)
    assert engine.grants["new"].life is Life.CREATED
    assert [(u.id, u.why) for u in engine.tell_all()] == [("new", "placed before its start")]
    leave_untouched(engine, unannounced(container, key="other", is_running=False), 11.0, "not placed")
    assert engine.grants["other"].life is Life.CREATED


def test_who_makes_room_is_told_first() -> None:
    host = host_of(MONOLITHIC_2S)
    engine = engine_on(host, policy=Owning(topology(MONOLITHIC_2S)))
    shared = [run(engine, make_container(f"shared{i}", limit=2), f"old{i}") for i in range(2)]
    owner = make_container("owner", limit=2, qos=Qos.GUARANTEED)
    told = come(engine, unannounced(owner))
    assert [key for key, _ in told] == ["old0", "new"]
    assert engine.grants["old0"].cpus < shared[0].cpus


TOLD: dict[str, tuple[Optional[str], bool, list[str]]] = {
    "its cpuset is all CPUs": (ALL, True, ["0-3,64-67"]),
    "its cpuset is not known": (None, True, ["0-3,64-67"]),
    "it runs there already": ("0-3,64-67", True, []),
    "mode observe": (ALL, False, []),
}


@pytest.mark.parametrize(("cpus", "enforce", "told"), TOLD.values(), ids=TOLD)
def test_it_is_told_only_what_it_does_not_have(cpus, enforce, told) -> None:
    engine = engine_on(HYGON_7285_2S)
    found = come(engine, unannounced(make_container("app", limit=2), cpus), enforce)
    assert [cpuset for _, cpuset in found] == told


def test_who_has_ended_before_it_was_told_is_told_nothing() -> None:
    engine, app = engine_on(HYGON_7285_2S), unannounced(make_container("app", limit=2))
    with engine.quiet():
        Placer(engine).create_late(app, 10.0, True)
        engine.exited("new", 1, 11.0)
    assert engine.tell_all() == ()


def test_a_cpuset_it_was_created_with_is_a_fence(engine) -> None:
    app = unannounced(make_container("app", limit=2), "2-20", constraint=constraint("2-20"))
    [(_, cpuset)] = come(engine, app)
    assert parse_cpus(cpuset) < parse_cpus("2-20")
    assert engine.grants["new"].constraint == constraint("2-20")


def test_one_that_cannot_be_placed_leaves_no_trace_and_is_then_known_as_it_is(engine) -> None:
    app = unannounced(make_container("app", limit=12, preferences=PlacementPreferences(l3="require")), ALL)
    before = dump(engine)
    with pytest.raises(PlacementRefused) as caught:
        Placer(engine).create_late(app, 10.0, True)
    assert dump(engine) == before
    leave_untouched(engine, app, 10.0, f"not placed: {caught.value}")
    grant = engine.grants["new"]
    assert (grant.stance, grant.life, format_cpus(grant.cpus)) == (Management.UNTOUCHED, Life.RUNNING, ALL)
    assert engine.lacking() == []
    assert broken_invariants(engine) == []


def test_they_come_in_the_order_of_their_starts() -> None:
    app = make_container("app")
    late, early, same = (
        unannounced(app, key=key, started_at_ns=at) for key, at in (("a", 2), ("c", 1), ("b", 1))
    )
    assert [app.id for app in in_order([late, early, same])] == ["b", "c", "a"]
