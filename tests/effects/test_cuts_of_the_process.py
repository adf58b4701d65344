"""The daemon as a process of its own is killed before each effect of a short story, and begun again on what is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import grpc
import pytest

from cri_api.control import ControlError
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CPU_PERIOD_US, CriClient, Pod, cgroup_parent
from tests.effects.process import VARIABLE
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, until
from tests.functional.support import compared, eventually, live_cpusets, new_agent, placed, start
from tests.machines import GIB

pytestmark = pytest.mark.long

CUTTING = (sys.executable, "-m", "tests.effects.process")
LIFTING: dict[str, Any] = {"policy": {"Active": "topology-aware"}, "placement": {"cfs_quota": "lift"}}
OWNER: dict[str, Any] = {"qos": "guaranteed", "memory_limit": GIB}


@dataclass
class Site:
    """``quotas``: what kubelet has told of each container, by id; ``limits``: of each pod, by the file of its cgroup."""

    agent: Agent
    runtime: FakeRuntime
    client: CriClient
    quotas: dict[str, int] = field(default_factory=dict)
    limits: dict[Path, str] = field(default_factory=dict)

    async def pod(self, name: str, milli: int) -> Pod:
        parent = cgroup_parent("guaranteed", f"uid-{name}")
        file = self.agent.folder / "cgroup" / parent.lstrip("/") / "cpu.max"
        file.parent.mkdir(parents=True, exist_ok=True)
        self.limits[file] = f"{milli * CPU_PERIOD_US // 1000} {CPU_PERIOD_US}"
        file.write_text(self.limits[file])
        return await self.client.run_pod(name, uid=f"uid-{name}", cgroup_parent=parent)

    async def create(self, pod: Pod, name: str, milli: int, attempt: int = 0) -> str:
        made = await self.client.create(pod, name, cpu_limit=milli, attempt=attempt, **OWNER)
        self.quotas[made] = milli * CPU_PERIOD_US // 1000
        return made

    async def owner(self, name: str, milli: int = 4000) -> str:
        made = await self.create(await self.pod(name, milli), name, milli)
        await self.client.start(made)
        return made


async def create(site: Site) -> None:
    await site.owner("web", 6000)


async def resize(site: Site) -> None:
    await site.client.update(
        next(iter(site.quotas)), cpu_quota=800_000, cpu_period=CPU_PERIOD_US, cpu_shares=8192
    )


async def exit_and_again(site: Site) -> None:
    [first, *_] = site.quotas
    record = site.runtime.pods[site.runtime.containers[first].sandbox_id]
    meta = record.config.metadata
    await site.client.stop(first)
    again = await site.create(
        Pod(record.id, meta.uid, meta.name, meta.namespace, record.config), meta.name, 4000, 1
    )
    await site.client.start(again)


async def release_and_adopt(site: Site) -> None:
    await ask(site.agent, "release", all=True)
    await ask(site.agent, "adopt", all=True)


async def reset_policy(site: Site) -> None:
    await ask(site.agent, "reset-policy", replace=True)


async def end_of_a_pod(site: Site) -> None:
    [first, *_] = site.quotas
    del site.quotas[first]
    sandbox = site.runtime.containers[first].sandbox_id
    await site.client.stop_pod(sandbox)
    await site.client.remove_pod(sandbox)


STORIES: dict[str, Callable[[Site], Awaitable[None]]] = {
    "create": create,
    "resize": resize,
    "exit and next attempt": exit_and_again,
    "release and adopt": release_and_adopt,
    "reset-policy": reset_policy,
    "end of a pod": end_of_a_pod,
}
#: What a client sees of a daemon that dies.
GONE = (grpc.aio.AioRpcError, ControlError, OSError, asyncio.IncompleteReadError, ValueError)


@pytest.mark.parametrize("story", STORIES)
async def test_a_daemon_that_is_killed_before_any_effect_is_followed_by_one_that_brings_all_in_order(
    story,
) -> None:
    number = 0
    while await _is_cut(story, number):
        number += 1
    assert number > 2


async def _is_cut(story: str, number: int) -> bool:
    """Whether the story has as many effects; then what must hold is so after the next start."""
    with tempfile.TemporaryDirectory(prefix="cut-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime, new_agent(runtime, **LIFTING) as agent:
            begun = agent.folder / "begun"
            await start(agent, command=CUTTING, environment={VARIABLE: f"{number}:{begun}"})
            async with CriClient(agent.socket) as client:
                site = Site(agent, runtime, client)
                for name in ("one", "two"):
                    await site.owner(name)
                begun.touch()
                with contextlib.suppress(*GONE):
                    await STORIES[story](site)
            assert agent.process is not None
            is_cut = await _has_died(agent)
            if not is_cut:
                await agent.kill()
            await eventually(lambda: all(call.finished for call in runtime.calls), "calls of the dead go on")
            await start(agent)
            await _check(site, f"{story}, cut at {number}")
            return is_cut


async def _has_died(agent: Agent) -> bool:
    """Whether it was cut. What goes on after the story's last answer is over once it has compared lists and is idle."""
    assert agent.process is not None
    with contextlib.suppress(*GONE):
        await compared(agent)
    if agent.process.returncode is None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(agent.process.wait(), 0.1)
    return agent.process.returncode == -signal.SIGKILL


async def _check(site: Site, where: str) -> None:
    agent, runtime = site.agent, site.runtime
    await compared(agent)
    status = await until(agent, lambda status: not status["updates_waiting"])
    assert status["invariants"] == [], where
    known, live = await placed(agent), live_cpusets(runtime)
    assert live.keys() <= known.keys() <= runtime.containers.keys(), where
    for key, cpus in live.items():
        assert known[key]["cpus"] == cpus, (where, known[key])
        others = [parse_cpus(live[other]) for other in live if other != key]
        owned = parse_cpus(known[key]["exclusive"])
        assert all(owned.isdisjoint(other) for other in others), (where, known[key], live)
    for key in site.quotas:
        assert key in runtime.containers, where
    await ask(agent, "release", all=True)
    for key, quota in site.quotas.items():
        if key in live:
            now = runtime.containers[key].resources
            wanted = {quota, now.cpu_shares * CPU_PERIOD_US // 1024}  # a resize was made, or was not
            assert now.cpu_quota in wanted and parse_cpus(now.cpuset_cpus) == frozenset(range(128)), where
    for file, limit in site.limits.items():
        await eventually(
            lambda file=file, limit=limit: file.read_text() == limit, f"{where}: {file} has {limit}"
        )
