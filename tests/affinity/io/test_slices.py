"""The planner's question is read in slices, and is that of one state all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.affinity.io.rebalancer import TRIES, ask_in_slices
from cri_proxy.affinity.problem import PlanningSnapshot, snapshot_of, snapshot_slices
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from policies.affinity.graph.traffic import Edge, Traffic
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, host_of, make_container, run

SETTINGS = AffinitySettings()
NOW_S = 100.0
COUNT = 150


def busy_engine() -> Engine:
    """Containers that talk, each with the next one."""
    engine = engine_on(HYGON_7285_2S)
    for number in range(COUNT):
        run(engine, make_container(f"c{number:03}", limit=1, request=0.1), f"id-{number:03}")
    pairs = [(f"id-{number:03}", f"id-{number + 1:03}") for number in range(COUNT - 1)]
    weights: dict[str, dict[str, float]] = {}
    for a, b in pairs:
        weights.setdefault(a, {})[b] = weights.setdefault(b, {})[a] = 1e5
    engine.set_traffic(Traffic(1, weights, {}, tuple(Edge(a, b, 1e5, 64e5) for a, b in pairs)))
    return engine


async def asked(engine: Engine) -> Optional[PlanningSnapshot]:
    return await ask_in_slices(engine, lambda: snapshot_slices(engine, SETTINGS, NOW_S), pause_s=0)


async def test_others_have_their_turns_between_the_slices() -> None:
    engine = busy_engine()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    question = await asked(engine)
    task.cancel()
    # Four times the containers, and whatever else is read besides.
    assert turns > 4 * COUNT / 100
    assert question == snapshot_of(engine, SETTINGS, NOW_S)


CHANGES = {
    "a container came": lambda engine: run(engine, make_container("new", limit=1), "id-new", NOW_S),
    "a container went": lambda engine: engine.remove("id-000"),
    "a container was moved": lambda engine: engine.release("id-001"),
    "CPUs went": lambda engine: engine.rehost(host_of(HYGON_7285_2S, usable="0-63")),
    "the configuration changed": lambda engine: engine.rehost(replace(engine.host)),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_in_between_is_in_the_question(change: str) -> None:
    engine = busy_engine()

    async def later() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        CHANGES[change](engine)

    question, _ = await asyncio.gather(asked(engine), later())
    assert question == snapshot_of(engine, SETTINGS, NOW_S)


async def test_an_engine_that_is_never_still_cannot_be_asked_about() -> None:
    engine = busy_engine()
    changes = 0

    async def restless() -> None:
        nonlocal changes
        while True:
            changes += 1
            run(engine, make_container("one more", limit=1), f"id-more-{changes}", NOW_S)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(restless())
    assert await asked(engine) is None
    task.cancel()
    assert changes >= TRIES
