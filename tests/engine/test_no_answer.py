"""A request that comes to nothing, and a policy without an answer: all stays as it was."""

from __future__ import annotations

import random
from typing import Any, Callable

import pytest

from cri_proxy.engine import transitions
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Move, Plan
from policies.balloons.policy import Balloons
from policies.hygon import Hygon, TopologyAware
from policies.machine.topology import Topology
from policies.model import (
    NO_CONSTRAINT,
    BudgetSpent,
    PlacementPreferences,
    PlacementRefused,
    PlacementRequest,
    Qos,
)
from policies.policy import Policy
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import HYGON_7285_2S, UNEVEN_CCX
from tests.scenes import HYGON, TOPOLOGY_AWARE, dump, engine_on, host_of, listen_in, make_container, run

POLICIES: dict[str, Callable[[Topology], Policy]] = {
    "hygon": lambda tree: Hygon(tree, HYGON),
    "topology-aware": lambda tree: TopologyAware(tree, TOPOLOGY_AWARE),
    "balloons": lambda tree: Balloons(tree, HYGON),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_a_create_that_is_taken_back_at_once_leaves_all_as_it_was(policy, seed) -> None:
    dice = random.Random(seed)
    host = host_of(UNEVEN_CCX)
    engine = engine_on(
        host, policy=POLICIES[policy](host.topology), options=EngineOptions(move_exclusive=True)
    )
    for number in range(16):
        limit = dice.choice((0.5, 1, 2, 3, 5))
        qos = dice.choice((Qos.GUARANTEED, Qos.BURSTABLE))
        container = make_container(f"c{number}", limit, limit, qos=qos)
        try:
            before = dump(engine)
            admission = engine.admit(container, NO_CONSTRAINT, float(number))
            engine.cancel(admission.ticket, float(number))
            assert dump(engine) == before
            run(engine, container, f"c{number}", float(number))
        except (PlacementRefused, BudgetSpent):
            continue
    assert broken_invariants(engine) == []


def busy(policy: str, settings: PlacementSettings = HYGON) -> Any:
    """Containers of which some own CPUs and one has half of what it wants."""
    host = host_of(HYGON_7285_2S)
    made = (
        TopologyAware(host.topology, settings)
        if policy == "topology-aware"
        else Hygon(host.topology, settings)
    )
    engine = engine_on(host, policy=made, options=EngineOptions(max_moves=0))
    for number in range(16):
        run(engine, make_container(f"web-{number}", limit=8, request=1), f"web-{number}")
    owning = PlacementPreferences(ownership="exclusive")
    run(engine, make_container("db", limit=4, qos=Qos.GUARANTEED, preferences=owning), "db")
    engine.options = EngineOptions()
    return engine


def moved(engine: Any, key: str) -> Plan:
    """A plan by which a container goes to the last L3."""
    home = engine.host.topology.leaves[-1].cpus
    return Plan(engine.version, (Move(key, home, "ccx", "for a test"),), is_order=True)


#: What goes on beside the calls and asks the policy, and whether it has done anything.
BESIDE: dict[str, Callable[[Any], Any]] = {
    "relief": lambda engine: engine.relieve(100.0),
    "a set that grows": lambda engine: engine.size("web-3", 8000, "by demand", 100.0),
    "a set that shrinks": lambda engine: engine.size("web-3", 2000, "by demand", 100.0),
    "a move of an owner": lambda engine: engine.apply(moved(engine, "db")),
}


@pytest.mark.parametrize("error", [BudgetSpent("too many"), PlacementRefused("not so")])
@pytest.mark.parametrize("what", BESIDE)
def test_what_goes_on_beside_the_calls_leaves_all_as_it_is_where_the_policy_has_no_answer(
    what, error
) -> None:
    engine = busy("hygon", PlacementSettings(size="demand"))
    asked = []

    def refuse(request: PlacementRequest) -> None:
        asked.append(request)
        raise error

    listen_in(engine, refuse)
    before = dump(engine)
    assert not BESIDE[what](engine)
    assert asked
    assert dump(engine) == before


def test_only_a_container_that_is_there_and_is_not_managed_is_taken_under_management() -> None:
    engine = busy("hygon")
    assert transitions.manage(engine, "gone") is False
    assert transitions.manage(engine, "web-1") is False
    engine.release("web-1")
    engine.release("web-2")
    engine.exited("web-2", 1, 50.0)
    assert transitions.manage(engine, "web-2") is False
    assert transitions.manage(engine, "web-1") is True
