"""Kill -9 at any instant loses nothing and moves nothing; a state file that is no use is set aside and rebuilt."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, rows, until
from tests.functional.support import (
    BusyKubelet,
    cpusets,
    eventually,
    live_cpusets,
    new_agent,
    placed,
    restart,
    run_pod_with,
    run_without_us,
    start,
    updates,
)
from tests.machines import HYGON_7285_2S, machine, take_offline

OPERATIONS = 200
#: Calls that a kill may find under way, and whether the runtime has done it by then.
HELD = [
    (method, done)
    for method in ("CreateContainer", "StartContainer", "UpdateContainerResources", "RemoveContainer", "RunPodSandbox")
    for done in (False, True)
]


# ---------------------------------------------------------------------- a long run


@pytest.mark.parametrize("seed", range(10, 46))
async def test_a_daemon_that_is_killed_again_and_again_loses_nothing_and_moves_nothing(
    runtime: FakeRuntime, seed: int
) -> None:
    choose = random.Random(seed)
    kubelet = BusyKubelet(runtime, seed)
    kills = sorted(choose.sample(range(15, OPERATIONS), 9))
    async with new_agent(runtime) as agent:
        await start(agent)
        done = 0
        for stop_at in [*kills, OPERATIONS]:
            async with CriClient(agent.socket) as client:
                while done < stop_at:
                    await kubelet.operation(client)
                    done += 1
                await _check_all_is_known(agent, runtime)
                if stop_at == OPERATIONS:
                    break
                before = await placed(agent)
                if choose.random() < 0.3:
                    await agent.kill()
                    untouched = set(before)
                else:
                    under_way = await _kill_in_the_middle(agent, runtime, client, kubelet, choose)
                    untouched = set(before) - under_way
            at_the_runtime, sent = cpusets(runtime), updates(runtime)
            await start(agent)
            assert cpusets(runtime) == at_the_runtime, f"restart {stop_at} changed a cpuset"
            assert updates(runtime) == sent
            after = await _check_all_is_known(agent, runtime)
            for key in untouched & set(after):
                assert after[key]["cpus"] == before[key]["cpus"], f"restart {stop_at} forgot a place"


async def _kill_in_the_middle(
    agent: Agent, runtime: FakeRuntime, client: CriClient, kubelet: BusyKubelet, choose: random.Random
) -> set[str]:
    """Kill the daemon while requests are under way; the containers they were about."""
    method, done = choose.choice(HELD)
    hold = asyncio.Event()
    script = runtime.script(method, hold=hold, act_before_error=done)
    seen = len(runtime.calls)
    tasks = [asyncio.ensure_future(operation) for operation in kubelet.several(client, 4)]
    settled = asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: script.used > 0 or all(task.done() for task in tasks), "nothing happens")
    await agent.kill()
    for result in await settled:
        assert result is None or not isinstance(result, BaseException) or isinstance(result, grpc.aio.AioRpcError)
    hold.set()
    await eventually(lambda: all(call.finished for call in runtime.calls), "calls of the dead go on")
    runtime.scripts.remove(script)
    about = {getattr(call.message, "container_id", "") for call in runtime.calls[seen:]}
    pods = {getattr(call.message, "pod_sandbox_id", "") for call in runtime.calls[seen:]}
    return about | {key for key, record in runtime.containers.items() if record.sandbox_id in pods}


async def _check_all_is_known(agent: Agent, runtime: FakeRuntime) -> dict[str, Any]:
    """No container is lost, none is invented, all runs where the daemon says, invariants hold."""
    status = await ask(agent, "status")
    assert status["invariants"] == []
    assert status["degraded"] == {}
    known = await placed(agent)
    live = live_cpusets(runtime)
    assert set(live) <= set(known) <= set(runtime.containers)
    for key, cpus in live.items():
        assert known[key]["cpus"] == cpus, known[key]
    return known
