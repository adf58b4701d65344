"""Sizes by demand on one simulated node, for ``bench.short``: the real engine and controller, and containers whose use is
known.

Each container uses a steady part of its limit and waits for nothing. Two windows later its set is as large as its use asks
for; the result is how many L3s it may run on then, beside those that it may by its limit.
"""

from __future__ import annotations

from random import Random

from cri_proxy.affinity.demand.controller import ContainerSet, DemandController
from cri_proxy.affinity.demand.estimate import DemandSample, DemandSettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.hygon import Hygon
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT, Container, Pod, Qos, Resources
from policies.settings import EngineOptions, PlacementSettings

CONTAINERS = 40
#: The part of its limit that a container uses.
USED = (0.1, 0.45)
LIMITS_MILLI = (2000, 4000, 8000, 12_000, 16_000)
SECOND_NS = 1_000_000_000
PASSED_S = 3600


def l3s_beside_limits(topology: Topology) -> float:
    """L3s in the sets of all containers after an hour, beside those in their sets by limit."""
    random, settings = Random(1), DemandSettings()
    host = Host(topology, topology.online, topology.memory_nodes, topology.online)
    engine = Engine(host, Hygon(topology, PlacementSettings(size="demand")), EngineOptions())
    milli_used = {}
    for number in range(CONTAINERS):
        limit = random.choice(LIMITS_MILLI)
        milli_used[f"c{number}"] = used = int(limit * random.uniform(*USED))
        _begin(engine, number, Resources(milli_request=used, milli_limit=limit))
    by_limit = _l3s(engine)
    controller = DemandController(settings)
    _follow(engine, controller)
    now_s = 0.0
    while (now_s := controller.next_due_s(now_s)) < PASSED_S:
        for key in controller.due(now_s):
            used_ns = int(now_s * milli_used[key] / 1000 * SECOND_NS)
            controller.sample(key, DemandSample(int(now_s * SECOND_NS), used_ns, waited_ns=0))
        for resize in controller.decide(now_s):
            if engine.size(resize.key, resize.milli_size, resize.why, now_s) is None:
                controller.refused(resize, now_s)
            else:
                controller.made(resize, now_s)
        _follow(engine, controller)
        engine.drain()
    return _l3s(engine) / by_limit


def _begin(engine: Engine, number: int, resources: Resources) -> None:
    pod = Pod(f"sandbox-{number}", f"uid-{number}", f"pod-{number}", "bench")
    admission = engine.admit(Container(pod, "app", 0, Qos.BURSTABLE, resources), NO_CONSTRAINT, 0.0)
    engine.bind(admission.ticket, f"c{number}", 0.0)
    engine.started(f"c{number}")
    engine.drain()


def _follow(engine: Engine, controller: DemandController) -> None:
    sets = {}
    for each in engine.sized_sets():
        resources = engine.grants[each.key].container.resources
        sets[each.key] = ContainerSet(
            each.steps, each.milli_set, resources.milli_request, resources.milli_limit
        )
    controller.follow(sets)
    controller.set_triggers(controller.wants_trigger)


def _l3s(engine: Engine) -> int:
    caches = engine.host.topology.caches
    return sum(bool(cache.cpus & grant.cpus) for grant in engine.grants.values() for cache in caches)
