"""Creates that the runtime refuses leave every container as it was, over the real socket and with others under way.

The random sequences of tests/engine/test_engine_properties.py are longer; here the daemon, its sender and the runtime take
part.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import pytest

from tests.cri_client import CriClient, Pod
from tests.functional.conftest import HANG_S, ask, run_guaranteed, until
from tests.functional.support import cpusets, run_pod_with

POLICIES: dict[str, Any] = {
    "hygon": {"Active": "hygon"},
    "topology-aware": {"Active": "topology-aware"},
    "balloons": {"Active": "balloons"},
}
SIZES: tuple[dict[str, Any], ...] = (
    {"cpu_limit": 2000, "memory_limit": 1 << 30, "qos": "guaranteed"},
    {"cpu_limit": 6000, "memory_limit": 1 << 30, "qos": "guaranteed"},
    {"cpu_limit": 3000, "cpu_request": 900},
    {"cpu_limit": 16_000, "cpu_request": 500},
    {"cpu_limit": 100_000, "cpu_request": 1000},
)


async def refused(client: CriClient, pod: Pod, **size: Any) -> bool:
    try:
        await client.create(pod, "refused", **size)
    except grpc.aio.AioRpcError as error:
        return error.code() == grpc.StatusCode.INTERNAL
    return False


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
async def test_creates_that_are_refused_together_leave_all_as_it_was(
    runtime, start_agent, policy, seed
) -> None:
    agent, dice = await start_agent(policy=policy), random.Random(seed)
    async with CriClient(agent.socket) as client:
        for number in range(8):
            await run_pod_with(client, f"web-{number}", **dice.choice(SIZES))
        await until(agent, lambda status: status["updates_waiting"] == 0)
        before = cpusets(runtime)
        rows = {row["id"]: (row["cpus"], row["exclusive"]) for row in await ask(agent, "placements")}
        sizes = [dice.choice(SIZES) for _ in range(4)]
        pods = [
            await (
                run_guaranteed(client, f"new-{number}") if "qos" in size else client.run_pod(f"new-{number}")
            )
            for number, size in enumerate(sizes)
        ]
        done = len(runtime.calls_of("CreateContainer"))
        holds = [asyncio.Event() for _ in pods]
        for hold in holds:
            runtime.script("CreateContainer", hold=hold, error=(13, "no"), times=1)
        creating = [asyncio.ensure_future(refused(client, pod, **size)) for pod, size in zip(pods, sizes)]
        await runtime.wait_for_call("CreateContainer", done + len(pods))
        for hold in dice.sample(holds, len(holds)):
            hold.set()
        assert await asyncio.wait_for(asyncio.gather(*creating), HANG_S) == [True] * len(pods)
    await runtime.wait_until(lambda: cpusets(runtime) == before)
    status = await until(agent, lambda status: status["updates_waiting"] == 0)
    assert (status["in_doubt"], status["invariants"], cpusets(runtime)) == (0, [], before)
    after = {row["id"]: (row["cpus"], row["exclusive"]) for row in await ask(agent, "placements")}
    assert after == rows
