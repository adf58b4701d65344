"""A source that is dead: what it told stays, and says since when it is not of now, and why. Real processes, killed.

What is drawn of it is in tests/view (page, top), what the cluster is told in tests/cluster/agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.agent import Agent, merged
from tests.cri_client import CriClient
from tests.functional.conftest import ask, until
from tests.functional.test_affinity import AUTO, MANUAL, create, edges, flow
from tests.observer import ObserverProcess


async def old(agent: Agent, name: str, command: str = "status") -> Any:
    """What is told of figures, as soon as they are old."""
    return (await until(agent, lambda document: name in document["old"], command))["old"][name]


async def test_traffic_of_a_killed_observer_is_old_everywhere_until_another_one_tells(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    began_s = time.time()
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]) as observer:
        web, _ = [await create(client, name) for name in ("web", "db")]
        await edges(agent)
        for command in ("status", "affinity", "report"):
            assert (await ask(agent, command))["old"] == {}
        assert "cri_resmgr_affinity_edges 1.0" in (await agent.cli("metrics"))[1]
        await observer.end(signal.SIGKILL)
        row = await old(agent, "traffic")
        assert began_s < row["since_s"] < time.time() and row["age_s"] >= 0
        assert row["why"].startswith(("the observer has ended", "no observer answers at "))
        for command in ("affinity", "report"):
            assert (await ask(agent, command))["old"]["traffic"]["since_s"] == row["since_s"]
        assert (await ask(agent, "explain", container=web))["old"].keys() == {"traffic"}
        for words in (("status",), ("affinity",), ("explain", web)):
            _, out, _ = await agent.cli(*words)
            assert "traffic is of " in out and " ago: " in out, out
        # The series end, and that of the observer itself says why.
        metrics = (await agent.cli("metrics"))[1]
        assert "cri_resmgr_observer_up 0.0" in metrics
        assert "\ncri_resmgr_affinity_edges " not in metrics and "\ncri_resmgr_observer_count{" not in metrics
        await observer.start()
        await until(agent, lambda status: status["old"] == {})
        assert "cri_resmgr_affinity_edges 1.0" in (await agent.cli("metrics"))[1]


async def test_the_next_daemon_says_how_old_the_traffic_is_that_it_begins_with(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client:
        async with ObserverProcess(agent, [flow("web", "db")]):
            for name in ("web", "db"):
                await create(client, name)
            await edges(agent)
        await agent.terminate()
        await agent.start()
        row = await old(agent, "traffic")
        assert row["since_s"] <= time.time()


async def test_a_daemon_without_an_observer_has_nothing_that_is_old(agent, client) -> None:
    await create(client, "web")
    assert (await ask(agent, "status"))["old"] == {}


async def test_what_a_plan_has_found_is_old_when_the_planner_dies_again_and_again(start_agent) -> None:
    agent = await start_agent(**merged(AUTO, {"affinity": {"hysteresis": 1.0}}))
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        for name in ("web", "db"):
            await create(client, name)
        await edges(agent)
        await until(agent, lambda status: bool(status["affinity"]["waits_for"]))
        killing = asyncio.ensure_future(_kill_planners(agent))
        try:
            row = await old(agent, "plan")
        finally:
            killing.cancel()
        assert row["why"].startswith("the planner does not work: the planner has ended with -9")
        assert row["since_s"] < time.time()
        await until(agent, lambda status: "plan" not in status["old"])


async def test_containers_of_a_runtime_that_is_gone_are_old_until_it_is_back(runtime, agent, client) -> None:
    await create(client, "web")
    await until(agent, lambda status: status["containers"] == {"placed": 1})
    assert (await ask(agent, "status"))["old"] == {}
    await runtime.stop()
    row = await old(agent, "containers")
    assert row["why"].startswith("the runtime is not there") and row["since_s"] < time.time()
    assert (await ask(agent, "report"))["old"]["containers"]["since_s"] == row["since_s"]
    assert "containers' states are of " in (await agent.cli("status"))[1]
    await runtime.start()
    await until(agent, lambda status: status["old"] == {})


async def _kill_planners(agent: Agent) -> None:
    """Each that the daemon starts, before it has answered."""
    assert agent.process is not None
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    while True:
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"planner_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
        await asyncio.sleep(0.01)
