"""Hundreds of containers are told something by one create, the runtime is slow, daemon and runtime are killed meanwhile.

Each container is told once more than needed at most, none is taken for changed by another program, and no answer waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.effects.node import Life, World
from tests.machines import GIB, HYGON_7285_2S, machine

CONTAINERS = 240
CONFIG: dict[str, Any] = {
    "policy": {"Active": "topology-aware"},
    "placement": {"besteffort": "machine", "unlimited": "machine"},
}
OWNER: dict[str, Any] = {"qos": "guaranteed", "memory_limit": GIB, "cpu_limit": 4000}
#: A busy runtime took 18 s for as many, eight at a time.
UPDATE_S = 0.6


@pytest.fixture
def world() -> Iterator[World]:
    """A node with many containers that share all CPUs, on which the runtime has become slow."""
    world = World.make(machine(HYGON_7285_2S), CONFIG)
    Life(world).play(_fill)
    world.turns_s["UpdateContainerResources"] = UPDATE_S / 2
    yield world
    world.close()


async def _fill(life: Life) -> None:
    for number in range(CONTAINERS):
        pod = await life.run_pod(f"p{number}", "besteffort")
        await life.start(await life.create(pod, f"c{number}", qos="besteffort"))
    await life.rest()


def told(world: World) -> Counter[str]:
    """How often each container is told something from now on; it grows."""
    counts: Counter[str] = Counter()

    def on_way(method: str, message: bytes, raw: Any) -> None:
        if method == "UpdateContainerResources":
            counts[cri.UpdateContainerResourcesRequest.FromString(message).container_id] += 1

    world.on_way = on_way
    return counts


async def take_cpus(life: Life) -> float:
    """A container that owns CPUs all others have to leave; how long its create took."""
    loop = asyncio.get_running_loop()
    pod, began_s = await life.run_pod("owner", "guaranteed"), loop.time()
    made = await life.create(pod, "owner", **OWNER)
    took_s = loop.time() - began_s
    life.spawn(life.start(made))  # it waits for the others to leave, two seconds at most
    return took_s


def drift(life: Life) -> int:
    """How many containers were taken for changed by another program."""
    value = life.daemon.services.metrics.registry.get_sample_value(
        "cri_resmgr_drift_total", {"result": "repaired"}
    )
    return int(value or 0)


def all_have_left(world: World) -> bool:
    containers = {c.name: parse_cpus(c.resources.cpuset_cpus) for c in world.runtime.containers.values()}
    owned = containers.pop("owner")
    return all(owned.isdisjoint(cpus) for cpus in containers.values())


def test_comparisons_meanwhile_send_nothing_again(world: World) -> None:
    counts = told(world)

    async def story(life: Life) -> None:
        assert await take_cpus(life) < UPDATE_S
        for number in range(12):
            await life.look()
            pod, began_s = (
                await life.run_pod(f"late{number}", "besteffort"),
                asyncio.get_running_loop().time(),
            )
            await life.create(pod, f"late{number}", qos="besteffort")
            assert asyncio.get_running_loop().time() - began_s < UPDATE_S
            await life.rest(2.0)
        assert drift(life) == 0

    life = Life(world)
    life.interval_s = 5.0
    life.play(story)
    assert all_have_left(world)
    assert (len(counts), set(counts.values())) == (CONTAINERS, {1})


@pytest.mark.parametrize("after_s", [0.0, 1.0, 5.0, 12.0])
def test_a_kill_of_the_daemon_while_hundreds_wait_costs_one_update_more_at_most(
    world: World, after_s: float
) -> None:
    counts = told(world)

    async def story(life: Life) -> None:
        await take_cpus(life)
        await life.rest(after_s)

    async def rest(life: Life) -> None:
        pod, began_s = await life.run_pod("late", "besteffort"), asyncio.get_running_loop().time()
        await life.create(pod, "late", qos="besteffort")
        assert asyncio.get_running_loop().time() - began_s < UPDATE_S
        await life.rest(40.0)
        await life.look()
        await life.rest()
        assert drift(life) == 0

    Life(world).play(story)
    Life(world).play(rest)
    assert all_have_left(world)
    assert set(counts.values()) <= {1, 2}
    # Only those that were under way are told again.
    assert sum(counts.values()) <= CONTAINERS + 8


@pytest.mark.parametrize("after_s", [1.0, 5.0])
def test_a_runtime_that_dies_while_hundreds_wait_costs_one_update_more_at_most(
    world: World, after_s: float
) -> None:
    counts = told(world)

    async def story(life: Life) -> None:
        await take_cpus(life)
        await life.rest(after_s)
        world.is_away = True
        await life.rest(3.0)
        world.is_away = False
        await life.rest(60.0)
        await life.look()
        await life.rest()
        assert drift(life) == 0

    Life(world).play(story)
    assert all_have_left(world)
    assert set(counts.values()) <= {1, 2}
    assert sum(counts.values()) <= CONTAINERS + 8


def test_daemon_and_runtime_are_killed_together(world: World) -> None:
    counts = told(world)

    async def story(life: Life) -> None:
        await take_cpus(life)
        await life.rest(4.0)
        world.is_away = True
        await life.rest(0.5)

    async def rest(life: Life) -> None:
        await life.rest(3.0)
        world.is_away = False
        await life.rest(60.0)
        await life.look()
        await life.rest()
        assert drift(life) == 0

    Life(world).play(story)
    Life(world).play(rest)
    assert all_have_left(world)
    assert set(counts.values()) <= {1, 2}
