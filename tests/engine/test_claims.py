"""Claims of CPUs: what they own, what their containers have, and what becomes of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

import pytest

from cri_api.claims import claim_key, part_name
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants, unmet
from cri_proxy.engine.model import ClaimPart, ContainerRecord, Life, ListedContainer, Management
from cri_proxy.engine.resync import Listing
from cri_proxy.engine.snapshot import everything, read_record, write_record
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import (
    NO_CONSTRAINT,
    Container,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    Qos,
    Resources,
)
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S
from tests.scenes import again, dump, engine_on, host_of, make_container, make_pod, run, told
from tests.told_at_once import resync

CCX_0, CCX_1 = "0-3,64-67", "4-7,68-71"
NODE_0 = "0-7,64-71"


def part(
    count: int,
    cpus: str = CCX_0,
    request: str = "cpus",
    devices: tuple[str, ...] = ("l3-0",),
    **preferences: str,
) -> ClaimPart:
    return ClaimPart(request, count, parse_cpus(cpus), PlacementPreferences(**preferences), devices)  # type: ignore[arg-type]


def key_of(uid: str, request: str = "cpus") -> str:
    return claim_key(part_name(uid, request))


def prepare(engine: Engine, uid: str, *parts: ClaimPart, now_s: float = 0.0) -> tuple[ContainerRecord, ...]:
    made: tuple[ContainerRecord, ...] = engine.prepare(
        uid, "default", f"claim-{uid}", parts or (part(4),), now_s
    )
    assert not unmet(engine)
    return made


def having(name: str, *uids: str, limit: float = 4, request: Optional[float] = None) -> Container:
    container = make_container(name, limit=limit, request=limit if request is None else request)
    return replace(container, claims=tuple(key_of(uid) for uid in uids))


def cpus(engine: Engine, key: str) -> str:
    return format_cpus(engine.grants[key].cpus)


def test_a_claim_owns_cpus_of_its_device_before_there_is_a_container(engine: Engine) -> None:
    (record,) = prepare(engine, "a")
    assert record.is_claim and record.key == key_of("a")
    assert len(record.exclusive) == 4 and record.exclusive <= parse_cpus(CCX_0)
    assert record.exclusive.isdisjoint(engine.node.shared)


def test_its_container_has_them(engine: Engine) -> None:
    prepare(engine, "a")
    grant = run(engine, having("app", "a"), "c1")
    assert grant.cpus == grant.placement.claimed == engine.grants[key_of("a")].exclusive
    assert not grant.exclusive and not broken_invariants(engine)
