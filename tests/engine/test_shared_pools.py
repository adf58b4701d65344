"""Containers that share a set which another container takes CPUs from are entered at once, as if each had been alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import CpusetUpdate
from policies.hygon import TopologyAware
from policies.model import NO_CONSTRAINT, Container, PlacementPreferences, Qos
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import HYGON_7285_2S
from tests.scenes import Shadow, constraint, dump, engine_on, host_of, make_container, make_pod, run


def pool(members: int) -> Engine:
    """Containers that share one L3, of which some are kept from a CPU of it, or have a memory limit."""
    host = host_of(HYGON_7285_2S)
    policy = TopologyAware(host.topology, PlacementSettings(ownership="exclusive"))
    engine = engine_on(host, policy=policy, options=EngineOptions(max_moves=0))
    for number in range(members):
        container = make_container(
            f"c{number}", request=0.01, limit=2, pod=make_pod(f"p{number % 3}"), memory=number % 2
        )
        within = constraint("0-6") if number % 3 == 0 else constraint("0-7,64-71")
        run(engine, container, f"c{number}", within=within)
    return engine


def owner() -> Container:
    container = make_container("own", request=3, limit=3, memory=1, qos=Qos.GUARANTEED)
    return replace(container, preferences=PlacementPreferences(ownership="exclusive", l3="require"))


@pytest.mark.parametrize("members", [1, 12])
def test_each_that_loses_cpus_is_told_once_and_has_them_back_when_the_owner_goes(members: int) -> None:
    engine, shadow = pool(members), Shadow()
    before = dump(engine)
    admission = engine.admit(owner(), constraint("0-7"), 10.0)
    updates = admission.before + engine.bind(admission.ticket, "own", 11.0)
    own = engine.grants["own"].exclusive
    hit = {key for key, grant in before["grants"].items() if grant.cpus & own}  # type: ignore[attr-defined]
    assert own and sorted(u.id for u in updates) == sorted(hit) and all(u.shrink for u in updates)
    for update in updates:
        was = before["grants"][update.id]  # type: ignore[index]
        assert update == CpusetUpdate(update.id, engine.grants[update.id].placement, True, update.why)
        assert update.placement.cpus == was.cpus - own
    assert broken_invariants(engine) == []
    shadow.follow(engine)
    assert shadow.differs_from(engine) == []
    assert {u.id for u in engine.remove("own")} == hit
    after = dump(engine)
    assert after["grants"] == before["grants"] and after["capacity"] == before["capacity"]


def test_a_transition_that_is_cut_short_leaves_the_shared_sets_as_they_were() -> None:
    engine = pool(9)
    before = dump(engine)
    real, engine.put_ticket = engine.put_ticket, None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        engine.admit(owner(), NO_CONSTRAINT, 10.0)
    engine.put_ticket = real  # type: ignore[method-assign]
    assert dump(engine) == before and broken_invariants(engine) == []
