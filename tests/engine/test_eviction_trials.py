"""Trials of moves that are left out would have come to nothing: each is made here, and compared."""

from __future__ import annotations

from random import Random

import pytest

from cri_proxy.engine import place as eviction
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.moves import being_resized
from policies.machine.topology import Topology
from policies.model import Constraint, Container, Qos, Resources
from policies.registry import POLICIES
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S, SNC_2S, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import engine_on, host_of, make_pod

MACHINES = (HYGON_7285_2S, EPYC_NPS1_1S, SNC_2S, UNEVEN_CCX, VM_NO_CACHE_INFO)

#: Those on which some trials find a place and some are left out.
BY_LEAF = (HYGON_7285_2S, EPYC_NPS1_1S, UNEVEN_CCX)


def some_container(random: Random, number: int, largest: int) -> Container:
    qos = random.choice((Qos.GUARANTEED, Qos.BURSTABLE, Qos.BURSTABLE, Qos.BURSTABLE))
    request = random.randrange(50, largest, 50)
    limit = request if qos is Qos.GUARANTEED else max(request, random.choice((2000, 4000, 8000, 20_000)))
    pod = make_pod(f"{number}", namespace=random.choice(("default", "default", "kube-system")))
    return Container(pod, "app", 0, qos, Resources(request, limit, 0, 0))


def full_engine(random: Random, policy: str, name: str) -> Engine:
    """A machine with about as many requests as it has CPUs, some containers in fences."""
    host = host_of(name, reserved=random.choice(("", "0-1")))
    tree: Topology = host.topology
    settings = PlacementSettings(ownership="exclusive" if policy == "topology-aware" else "shared")
    options = EngineOptions(max_moves=4, move_exclusive=random.random() < 0.5)
    engine = engine_on(host, policy=POLICIES[policy](tree, settings), options=options)
    largest = random.choice((500, 2000, 5000))
    left = len(tree.online) * random.choice((950, 1000, 1050))
    number = 0
    while left > 0:
        container = some_container(random, number, largest)
        left -= container.resources.milli_request
        few = frozenset(random.sample(sorted(tree.online), len(tree.online) // 2 + 1))
        constraint = Constraint(few if random.random() < 0.1 and container.qos is Qos.BURSTABLE else None)
        admission = engine.admit(container, constraint, float(number))
        engine.bind(admission.ticket, f"c{number}", float(number))
        number += 1
    for key in random.sample(sorted(engine.grants), number // 20):
        engine.remove(key)
    return engine


@pytest.mark.parametrize("policy", ["hygon", "topology-aware"])
@pytest.mark.parametrize("name", MACHINES)
def test_a_trial_that_is_left_out_would_have_found_nothing(name: str, policy: str) -> None:
    random = Random(f"{name} {policy}")
    left_out = found = 0
    for _ in range(4):
        engine = full_engine(random, policy, name)
        state = engine
        for number in range(12):
            container = some_container(random, 10_000 + number, 3000)
            room = eviction.Room(state, container)
            for domain, missing in eviction._targets(state, container):
                movers = eviction._enough(state, domain.cpus, max(missing, 1), 4, being_resized(state))
                if not movers:
                    continue
                trial = eviction.with_moves(state, container, Constraint(), domain, movers)
                found += trial is not None
                if not room.may_hold(domain, movers):
                    left_out += 1
                    assert trial is None, (domain.name, container, [g.key for g in movers])
    if name in BY_LEAF:
        assert found and left_out
