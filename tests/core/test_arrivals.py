"""Containers that nobody announced: one step for what takes a proxy two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.core.arrivals import (
    Arrival,
    in_order,
    leave_untouched,
    own_update,
    place,
    resize,
    resources_now,
)
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Life, Stance
from cri_proxy.core.invariants import broken_invariants
from policies.cpus import format_cpus, parse_cpus
from policies.model import Container, PlacementRefused, Qos, Resources, Wishes
from tests.machines import GIB, HYGON_7285_2S, MONOLITHIC_2S
from tests.scenes import (
    TOPOLOGY_AWARE,
    Owning,
    dump,
    engine_on,
    fence,
    host_of,
    make_container,
    run,
    topology,
)

ALL = "0-127"


def arrival(container: Container, cpus: Optional[str] = None, key: str = "new", **more: Any) -> Arrival:
    return Arrival(key, container, cpus=None if cpus is None else parse_cpus(cpus), **more)


def come(engine: Engine, who: Arrival, enforce: bool = True) -> list[tuple[str, str]]:
    """Place it; what the runtime is told, in order."""
    steps = place(engine, who, 10.0, enforce)
    assert broken_invariants(engine) == []
    updates = (*steps.before, *own_update(engine, who), *steps.after)
    return [(update.id, format_cpus(update.placement.cpus)) for update in updates]


# ---------------------------------------------------------------------- placing


def test_its_record_is_that_of_a_container_whose_create_we_saw() -> None:
    container = make_container("app", limit=2, request=1)
    seen, late = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    run(seen, container, "new", 10.0)
    assert come(late, arrival(container)) == [("new", "0-3,64-67")]
    assert {**dump(late), "policy": None} == {**dump(seen), "policy": None}
    assert late.tickets == {}


def test_who_makes_room_is_told_first() -> None:
    host = host_of(MONOLITHIC_2S)
    engine = engine_on(host, policy=Owning(topology(MONOLITHIC_2S)))
    shared = [run(engine, make_container(f"shared{i}", limit=2), f"old{i}") for i in range(2)]
    owner = make_container("owner", limit=2, qos=Qos.GUARANTEED)
    told = come(engine, arrival(owner))
    assert [key for key, _ in told] == ["old0", "new"]
    assert engine.grants["old0"].cpus < shared[0].cpus


TOLD: dict[str, tuple[Optional[str], bool, list[str]]] = {
    "its cpuset is all CPUs": (ALL, True, ["0-3,64-67"]),
    "its cpuset is not known": (None, True, ["0-3,64-67"]),
    "it runs there already": ("0-3,64-67", True, []),
    "mode observe": (ALL, False, []),
}


@pytest.mark.parametrize(("cpus", "enforce", "told"), TOLD.values(), ids=TOLD)
def test_it_is_told_only_what_it_does_not_have(cpus: Optional[str], enforce: bool, told: list[str]) -> None:
    engine = engine_on(HYGON_7285_2S)
    found = come(engine, arrival(make_container("app", limit=2), cpus), enforce)
    assert [cpuset for _, cpuset in found] == told


def test_who_has_ended_before_it_was_told_is_told_nothing() -> None:
    engine, who = engine_on(HYGON_7285_2S), arrival(make_container("app", limit=2))
    place(engine, who, 10.0, True)
    engine.exited("new", 1, 11.0)
    assert own_update(engine, who) == ()
    engine.remove("new")
    assert own_update(engine, who) == ()


def test_a_cpuset_it_was_created_with_is_a_fence() -> None:
    engine = engine_on(HYGON_7285_2S)
    who = arrival(make_container("app", limit=2), "2-20", fence=fence("2-20"))
    [(_, cpuset)] = come(engine, who)
    assert parse_cpus(cpuset) < parse_cpus("2-20")
    assert engine.grants["new"].fence == fence("2-20")


def test_one_that_cannot_be_placed_leaves_no_trace_and_is_then_known_as_it_is() -> None:
    engine = engine_on(HYGON_7285_2S)
    who = arrival(make_container("app", limit=12, wishes=Wishes(l3="require")), ALL)
    before = dump(engine)
    with pytest.raises(PlacementRefused) as caught:
        place(engine, who, 10.0, True)
    assert dump(engine) == before
    assert leave_untouched(engine, who, 10.0, f"not placed: {caught.value}") == ()
    grant = engine.grants["new"]
    assert (grant.stance, grant.life, format_cpus(grant.cpus)) == (Stance.UNTOUCHED, Life.RUNNING, ALL)
    assert own_update(engine, who) == ()
    assert broken_invariants(engine) == []


def test_they_come_in_the_order_of_their_starts() -> None:
    app = make_container("app")
    late, early, same = (
        arrival(app, key=key, started_at_ns=at) for key, at in (("a", 2), ("c", 1), ("b", 1))
    )
    assert [who.id for who in in_order([late, early, same])] == ["b", "c", "a"]


# ---------------------------------------------------------------------- resizes

APP = replace(
    make_container("app", limit=2, request=1, memory=1),
    resources=Resources(1000, 2000, 0, GIB, 100_000),
)
AS_CREATED: dict[str, int] = {
    "cpu_shares": 1024, "cpu_quota": 200_000, "cpu_period": 100_000, "memory_limit_in_bytes": GIB
}  # fmt: skip
FOUND: dict[str, tuple[dict[str, int], Optional[Resources]]] = {
    "as created": (AS_CREATED, None),
    "the runtime tells nothing": ({}, None),
    "a larger limit": ({**AS_CREATED, "cpu_quota": 800_000}, replace(APP.resources, milli_limit=8000)),
    "a larger request": ({**AS_CREATED, "cpu_shares": 2048}, replace(APP.resources, milli_request=2000)),
    "more memory": (
        {**AS_CREATED, "memory_limit_in_bytes": 2 * GIB},
        replace(APP.resources, memory_limit_bytes=2 * GIB),
    ),
    "the limit is gone": (
        {**AS_CREATED, "cpu_quota": -1},
        replace(APP.resources, milli_limit=None),
    ),
}


@pytest.mark.parametrize(("linux", "resources"), FOUND.values(), ids=FOUND)
def test_a_resize_is_seen_by_what_the_runtime_has(
    linux: dict[str, int], resources: Optional[Resources]
) -> None:
    engine = engine_on(HYGON_7285_2S)
    grant = run(engine, APP, "app")
    found = resources_now(grant, cri.LinuxContainerResources(**linux))
    assert (None if found is None else replace(found, quota_period_us=100_000)) == resources


def test_a_quota_that_we_have_lifted_is_no_resize() -> None:
    owner = replace(
        make_container("app", limit=2, qos=Qos.GUARANTEED, memory=1),
        resources=Resources(2000, 2000, GIB, GIB, 100_000),
    )
    settings = replace(TOPOLOGY_AWARE, cfs_quota="lift")
    engine = engine_on(HYGON_7285_2S, settings)
    grant = run(engine, owner, "app")
    assert grant.lifted
    linux = {**AS_CREATED, "cpu_shares": 2048}
    assert resources_now(grant, cri.LinuxContainerResources(**{**linux, "cpu_quota": -1})) is None
    larger = resources_now(grant, cri.LinuxContainerResources(**{**linux, "cpu_quota": 300_000}))
    assert larger is not None and larger.milli_limit == 3000


def test_a_container_that_was_resized_is_placed_anew_at_once() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, APP, "app")
    steps = resize(engine, "app", replace(APP.resources, milli_limit=9000), 50.0)
    assert [(update.id, format_cpus(update.placement.cpus)) for update in steps.after] == [
        ("app", "0-7,64-71")
    ]
    assert (steps.before, dict(engine.tickets), broken_invariants(engine)) == ((), {}, [])
    assert engine.grants["app"].container.resources.milli_limit == 9000


def test_a_resize_within_its_place_tells_nobody() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, APP, "app")
    steps = resize(engine, "app", replace(APP.resources, milli_limit=3000), 50.0)
    assert (steps.before, steps.after) == ((), ())
    assert engine.grants["app"].container.resources.milli_limit == 3000


def test_a_resize_of_one_that_has_gone_is_nothing() -> None:
    engine = engine_on(HYGON_7285_2S)
    steps = resize(engine, "app", APP.resources, 50.0)
    assert (steps.before, steps.after) == ((), ())
