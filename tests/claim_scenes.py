"""Short ways to say: this claim of CPUs, prepared, and a container that has it. On the two-socket Hygon."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from cri_api.claims import claim_key, part_name
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import unmet
from cri_proxy.engine.model import ClaimPart, ContainerRecord
from policies.machine.cpus import parse_cpus
from policies.model import Container, PlacementPreferences
from tests.scenes import Number, make_container

CCX_0, CCX_1 = "0-3,64-67", "4-7,68-71"
NODE_0 = "0-7,64-71"


def part(
    count: int,
    cpus: str = CCX_0,
    request: str = "cpus",
    devices: tuple[str, ...] = ("l3-0",),
    **preferences: str,
) -> ClaimPart:
    """``count`` CPUs of a device; ``preferences``: as in PlacementPreferences."""
    return ClaimPart(request, count, parse_cpus(cpus), PlacementPreferences(**preferences), devices)  # type: ignore[arg-type]


def key_of(uid: str, request: str = "cpus") -> str:
    return claim_key(part_name(uid, request))


def prepare(engine: Engine, uid: str, *parts: ClaimPart, now_s: float = 0.0) -> tuple[ContainerRecord, ...]:
    """Prepare the claim ``default/claim-UID``, by default of 4 CPUs of the first CCX."""
    made: tuple[ContainerRecord, ...] = engine.prepare(
        uid, "default", f"claim-{uid}", parts or (part(4),), now_s
    )
    assert not unmet(engine)
    return made


def owned(engine: Engine, uid: str, request: str = "cpus") -> frozenset[int]:
    return engine.grants[key_of(uid, request)].exclusive


def having(name: str, *uids: str, limit: Number = 4, request: Optional[Number] = None) -> Container:
    """A container that has these claims; ``request`` defaults to ``limit``."""
    container = make_container(name, limit=limit, request=limit if request is None else request)
    return replace(container, claims=tuple(key_of(uid) for uid in uids))
