"""The checker finds what it is there to find: each rule is broken once, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, Management
from policies.machine.cpus import NO_CPUS, parse_cpus
from policies.model import NO_CONSTRAINT, Placement, Qos
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import Owning, constraint, engine_on, host_of, make_container, run, topology


def healthy() -> Engine:
    """Two containers with CPUs of their own (0 and 4), one shared, one adopted, one on its way, one being resized."""
    tree = topology(VM_NO_CACHE_INFO)
    assigned = {("uid-later", "app"): parse_cpus("7")}
    engine = engine_on(host_of(tree, reserved="3", kubelet_exclusive=assigned), policy=Owning(tree))
    run(engine, make_container("a", limit=1, qos=Qos.GUARANTEED), "a", within=constraint("0-2"))
    run(engine, make_container("b", limit=1, qos=Qos.GUARANTEED), "b", within=constraint("4-6"))
    run(engine, make_container("shared", limit=2, memory=1), "shared", within=constraint("0-3", "0"))
    run(engine, make_container("adopted", limit=2), "adopted")
    engine.amend(replace(engine.grants["adopted"], stance=Management.ADOPTED, runs_on=parse_cpus("5-6")))
    engine.resize("a", engine.grants["a"].container.resources, NO_CONSTRAINT, 1.0)
    engine.admit(make_container("flying", limit=2), NO_CONSTRAINT, 1.0)
    return engine


def test_nothing_is_wrong_with_a_healthy_engine() -> None:
    assert broken_invariants(healthy()) == []


def change(engine: Engine, key: str, **placement: frozenset[int]) -> None:
    grant = engine.grants[key]
    engine.put(replace(grant, placement=replace(grant.placement, **placement)))


def misbooked(engine: Engine) -> None:
    resident = engine.node.remove("shared")
    engine.node.add("shared", replace(resident, milli_request=1))


BREACHES: dict[str, Callable[[Engine], None]] = {
    "CPU 4 is exclusive to a, b": lambda e: change(e, "a", exclusive=parse_cpus("4"), cpus=parse_cpus("4")),
    "CPU 4 is exclusive to b and shared by shared": lambda e: change(e, "shared", cpus=parse_cpus("1-2,4")),
    "CPU 4 is exclusive to b and shared by adopted": lambda e: e.put(
        replace(e.grants["adopted"], runs_on=parse_cpus("4-6"))
    ),
    "CPU 7 is exclusive to kubelet and shared by shared": lambda e: change(e, "shared", cpus=parse_cpus("7")),
    "has an empty cpuset": lambda e: change(e, "shared", cpus=NO_CPUS),
    "has CPUs that are not usable: 99": lambda e: change(e, "shared", cpus=parse_cpus("99")),
    "has memory nodes that are not usable: 5": lambda e: change(e, "shared", mems=parse_cpus("5")),
    "left the caller's cpuset 0-3": lambda e: change(e, "shared", cpus=parse_cpus("5")),
    "left the caller's memory nodes 0": lambda e: change(e, "shared", mems=parse_cpus("1")),
    "has exclusive CPUs that are reserved: 3": lambda e: change(e, "a", exclusive=parse_cpus("3")),
    "do not hold the containers": lambda e: e.node.remove("shared"),
    "is not booked as it is recorded": misbooked,
    "but pending are": lambda e: e.drop_ticket(next(reversed(e.tickets))),
    "tickets for": lambda e: e.drop(next(reversed(e.tickets))),
}


@pytest.mark.parametrize(("sentence", "breach"), BREACHES.items(), ids=BREACHES)
def test_every_breach_is_found(sentence: str, breach: Callable[[Engine], None]) -> None:
    engine = healthy()
    breach(engine)
    assert any(sentence in problem for problem in broken_invariants(engine))


def test_what_is_not_ours_may_run_anywhere() -> None:
    engine = healthy()
    for stance in (Management.OPTED_OUT, Management.RELEASED, Management.FOREIGN, Management.UNTOUCHED):
        container = make_container(f"c-{stance.value}")
        engine.adopt(
            ContainerRecord(container.name, container, Placement(), stance, runs_on=parse_cpus("0-7"))
        )
    assert not [p for p in broken_invariants(engine) if "exclusive" in p]
