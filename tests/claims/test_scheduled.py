"""What a scheduler gives a claim by the devices that it is told, is there: claims and containers come and go at random."""

from __future__ import annotations

import random
from collections import Counter
from typing import Optional

import pytest

from cri_proxy.claims.devices import WHOLE, devices_of, find_device
from cri_proxy.engine.claims import owning
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ClaimPart
from policies.model import PlacementPreferences
from tests.claim_scenes import having, owned, prepare
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S, UNEVEN_CCX
from tests.scenes import engine_on, host_of, make_container, run

#: What comes: a claim of so many CPUs of an L3, one of a whole L3 (0), a container that owns CPUs, one that shares.
CLAIMS, OWNER, SHARER = (1, 1, 1, 2, 2, 3, 4, 0), "owner", "sharer"
STEPS = 200


class Scheduler:
    """The first device that has room, by what was told of devices and what was given since; ``given``: by claim."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[str, int]] = {}

    def give(self, engine: Engine, uid: str, cpus: int) -> Optional[str]:
        used = Counter[str]()
        for device, count in self.given.values():
            used[device] += count
        for device in devices_of(engine):
            l3, whole = device.counters[0], f"{device.counters[0]}{WHOLE}"
            if device.kind == "l3" and cpus and not used[whole] and used[l3] + cpus <= len(device.cpus):
                break
            if device.kind == "whole-l3" and not cpus and not used[whole] and not used[l3]:
                break
        else:
            return None
        self.given[uid] = device.name, cpus or len(device.cpus)
        return device.name


@pytest.mark.parametrize("machine", [HYGON_7285_2S, EPYC_NPS1_1S, UNEVEN_CCX])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_scheduler_gives_is_prepared(machine: str, seed: int) -> None:
    chance, scheduler = random.Random(seed), Scheduler()
    engine: Engine = engine_on(host_of(machine, reserved="0"))
    there: list[str] = []
    for step in range(STEPS):
        if chance.random() < 0.4 and there:
            key = there.pop(chance.randrange(len(there)))
            engine.remove(f"c-{key}")
            if scheduler.given.pop(key, None):
                engine.unprepare(key, float(step))
        else:
            _come(engine, scheduler, chance.choice([*CLAIMS, OWNER, SHARER]), f"{step}")
            there += [f"{step}"] if f"c-{step}" in engine.grants else []
        assert not broken_invariants(engine)


def _come(engine: Engine, scheduler: Scheduler, kind: object, key: str) -> None:
    if kind == SHARER:
        run(engine, make_container(key, limit=4, request=0.1), f"c-{key}")
        return
    if kind == OWNER:
        run(
            engine,
            make_container(key, limit=1, request=1, preferences=owning(PlacementPreferences())),
            f"c-{key}",
        )
        return
    assert isinstance(kind, int)
    name = scheduler.give(engine, key, kind)
    if name is None:
        return
    device = find_device(engine, name)
    assert device is not None
    count = scheduler.given[key][1]
    prepare(engine, key, ClaimPart("cpus", count, device.bounds, PlacementPreferences(), (name,)))
    assert len(owned(engine, key)) == count
    run(engine, having(key, key, limit=count), f"c-{key}")
