"""The disk with the state hangs: no call waits for it longer than told, and nothing moves, whatever comes next.

The disk is a file system of our own (FUSE) that really answers no request: not a stat, not an open, not a write.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_api.control import ControlError
from cri_proxy.front_ends.late_placement import LOOKED
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional import support
from tests.functional.conftest import (
    HANG_S,
    VERSION,
    ask,
    counter,
    cpus_of,
    create_exclusive,
    resyncs,
    run_guaranteed,
    until,
)
from tests.functional.nri_host import ScriptedHost, make_container
from tests.functional.support import run_without_us
from tests.functional.test_cluster_layer import GOLD
from tests.functional.test_nri_plugin import PLUGIN, as_told
from tests.hanging_disk import HangingDisk, hanging_disk, is_possible

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs root and /dev/fuse")


class Node:
    """A daemon whose state is on a disk that can hang."""

    def __init__(self, agent: Agent, disk: HangingDisk) -> None:
        self.agent, self.disk = agent, disk


@pytest_asyncio.fixture
async def node(runtime: FakeRuntime) -> AsyncIterator[Node]:
    async with support.new_agent(runtime, constants={"state_wait_s": 0.3, "reconcile_poll_s": 0.1}) as agent:
        with hanging_disk(agent.state, agent.folder / "on-disk") as disk:
            yield Node(agent, disk)
            disk.go()
            await agent.kill()


async def test_calls_go_on_and_all_is_written_when_the_disk_answers(runtime, node) -> None:
    agent, disk = node.agent, node.disk
    mark = agent.control.with_name("unsaved")
    await support.start(agent, environment={"WATCHDOG_USEC": "200000"})
    async with CriClient(agent.socket) as client:
        _, before = await support.run_pod_with(client, "before", cpu_limit=8000)
        disk.hang()
        ids = [(await support.run_pod_with(client, name, cpu_limit=8000))[1] for name in ("a", "b", "c")]
        assert all(cpus_of(runtime, container_id) for container_id in ids)
        await client.stop(before)
        status = await ask(agent, "status")
        assert "does not answer" in status["degraded"]["state"] and status["state_unsaved"] > 0
        assert counter(status, "state_late_total") > 0
        assert (await ask(agent, "explain", container=ids[0]))["unsaved"] and mark.exists()
        agent.receive_all()
        await agent.wait_notified("WATCHDOG=1")
        disk.go()
    status = await until(agent, lambda status: not status["degraded"] and not status["state_unsaved"])
    names = {row["container"] for row in (await ask(agent, "history"))["entries"]}
    assert {f"default/{name}/{name}" for name in ("before", "a", "b", "c")} <= names
    assert not (await ask(agent, "explain", container=ids[0]))["unsaved"] and not mark.exists()
    at_the_runtime = support.cpusets(runtime)
    status = await support.restart(agent)
    assert (status["containers"], status["held"]) == ({"placed": 4}, 1)
    assert (support.updates(runtime), support.cpusets(runtime)) == (0, at_the_runtime)


async def test_a_create_waits_for_its_record_and_nothing_else_does(runtime, node) -> None:
    agent, disk = node.agent, node.disk
    agent.write_config({"constants": {"state_wait_s": 3600}})
    await support.start(agent)
    async with CriClient(agent.socket) as client, CriClient(agent.socket) as other:
        pod = await client.run_pod("web")
        disk.hang()
        creating = asyncio.ensure_future(client.create(pod, "app", cpu_limit=8000))
        await until(agent, lambda status: status["state_unsaved"] > 0)
        assert (await other.call_bytes(VERSION, b"")).code == 0
        assert runtime.calls_of("CreateContainer") == []
        disk.go()
        assert cpus_of(runtime, await asyncio.wait_for(creating, HANG_S))


async def test_what_was_not_saved_before_a_kill_is_found_at_the_runtime(runtime, node) -> None:
    agent, disk = node.agent, node.disk
    await support.start(agent)
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("web")
        saved = await client.create(pod, "saved", cpu_request=100, cpu_limit=2000)
        await client.start(saved)
        disk.hang()
        db = await run_guaranteed(client, "db")
        own = runtime.cpuset(saved).split(",")[0]
        owner = await create_exclusive(client, db, "db", own)
        await client.start(owner)
        assert not cpus_of(runtime, owner) & cpus_of(runtime, saved)
        sent, at_the_runtime = support.updates(runtime), support.cpusets(runtime)
        await asyncio.wait_for(agent.kill(), HANG_S)
        disk.go()
        status = await support.start(agent)
        assert support.live_cpusets(runtime) == at_the_runtime
        assert support.updates(runtime) == sent
        assert "did not get to save" in status["degraded"]["lost state"]
    async with CriClient(agent.socket) as client:
        _, new = await support.run_pod_with(client, "new", cpu_limit=8000)
    assert not cpus_of(runtime, new) & cpus_of(runtime, owner)
    assert (await support.placed(agent)).keys() >= {saved, owner, new}


@pytest.mark.parametrize("front_end", ["standalone", "nri-plugin"])
async def test_what_was_placed_and_not_saved_is_taken_as_it_runs_where_it_might_have_come_meanwhile(
    runtime, node, front_end
) -> None:
    agent, disk = node.agent, node.disk
    path, looked = agent.folder / "nri.sock", agent.folder / "on-disk" / LOOKED
    agent.write_config({"nri": {"plugin": {"socket": str(path)}}, "constants": {"reconcile_poll_s": 0.05}})

    async def start() -> None:
        if front_end == "standalone":
            await agent.start("--standalone")
            await until(agent, lambda status: looked.exists())
        else:
            await agent.start(command=PLUGIN)
            await until(agent, lambda status: status["nri"]["connected"])

    async with ScriptedHost(path) as host:
        await start()
        looked.touch()
        disk.hang()
        key = run_without_us(runtime, "web", cpu_limit=4000, running=front_end == "standalone")
        pod, container = as_told(runtime, key)
        if front_end == "nri-plugin":
            cpus = (await host.create(pod, container)).adjust.linux.resources.cpu.cpus
            runtime.containers[key].resources.cpuset_cpus = cpus
            runtime.containers[key].state = cri.CONTAINER_RUNNING
            runtime.containers[key].started_at = time.time_ns()
            await host.tell("PostCreateContainer", pod, container)
            await host.tell("PostStartContainer", pod, container)
        await runtime.wait_until(lambda: runtime.cpuset(key) != "")
        await until(agent, lambda status: status["updates_waiting"] == 0)
        place, sent = runtime.cpuset(key), support.updates(runtime)
        await asyncio.wait_for(agent.kill(), HANG_S)
        disk.go()
        host.drop()
        await start()
        [row] = await until(agent, lambda rows: len(rows) == 1, "placements")
        assert (row["stance"], row["cpus"], runtime.cpuset(key)) == ("adopted", place, place)
        assert support.updates(runtime) == sent


async def test_it_can_be_stopped_and_is_ready_and_passes_while_the_disk_hangs(runtime, node) -> None:
    agent, disk = node.agent, node.disk
    await support.start(agent)
    async with CriClient(agent.socket) as client:
        await support.run_pod_with(client, "a", cpu_limit=8000)
        disk.hang()
        await support.run_pod_with(client, "b", cpu_limit=8000)
    assert await agent.terminate() == 0
    # 1. At its start it cannot read what it knew: bytes pass, and it says why.
    await agent.start(environment={"WATCHDOG_USEC": "200000"})
    await agent.wait_notified("WATCHDOG=1")
    async with CriClient(agent.socket) as client:
        _, passed = await support.run_pod_with(client, "c", cpu_limit=8000)
    status = await ask(agent, "status")
    assert status["mode"] == "off" and "does not answer" in status["degraded"]["state"]
    assert runtime.cpuset(passed) == ""
    # 2. When the disk answers it takes over what runs.
    disk.go()
    # What was placed before its end and not saved, and what has passed meanwhile, keep what they have.
    status = await until(agent, lambda status: status["degraded"].keys() == {"lost state"})
    assert sum(status["containers"].values()) == 3
    assert support.updates(runtime) == 0


async def test_a_daemon_that_has_not_read_its_state_yet_is_not_said_to_be_well(node) -> None:
    """A container that starts before then is one that ran before: what waits for a daemon to be well must wait for more."""
    agent, disk = node.agent, node.disk
    disk.hang()
    await agent.start(ready=False)

    async def first() -> Any:
        while True:
            with contextlib.suppress(OSError):
                return await ask(agent, "status")
            await asyncio.sleep(0.001)

    status = await asyncio.wait_for(first(), HANG_S)
    assert status["degraded"]
    view = await ask(agent, "report", parts=["degraded"])
    assert view["degraded"]
    disk.go()
    await until(agent, lambda status: not status["degraded"])


async def test_a_reload_and_commands_do_not_wait_for_the_disk(runtime, node) -> None:
    agent, disk = node.agent, node.disk
    await support.start(agent)
    disk.hang()
    agent.write_config({"log": {"level": "debug"}})
    status = await asyncio.wait_for(support.reloaded(agent), HANG_S)
    assert "does not answer" in status["degraded"]["state"] and "last config" in status["degraded"]
    assert (await ask(agent, "mode", mode="observe"))["mode"] == "observe"
    assert (await ask(agent, "acknowledge")) == {"acknowledged": ""}
    assert "disk answers" in (await ask(agent, "reset-policy"))["state"]
    disk.go()
    await until(agent, lambda status: not status["degraded"] and not status["state_unsaved"])
    assert (await support.restart(agent))["mode"] == "observe"


async def test_a_policy_of_the_cluster_that_was_refused_for_the_disk_is_in_force_at_no_start(node) -> None:
    agent, disk = node.agent, node.disk
    await support.start(agent)
    disk.hang()
    with pytest.raises(ControlError, match="the disk does not answer"):
        await ask(agent, "cluster-policy", **GOLD)
    disk.go()
    await until(agent, lambda status: not status["degraded"] and not status["state_unsaved"])
    await support.restart(agent)
    assert (await ask(agent, "cluster-policy"))["policy"] is None
    await ask(agent, "cluster-policy", **GOLD)
    await support.restart(agent)
    assert (await ask(agent, "cluster-policy"))["policy"]["name"] == "gold"


async def test_an_nri_answer_that_comes_too_late_is_none_and_its_container_is_placed_after_its_start(
    runtime, node
) -> None:
    agent, disk = node.agent, node.disk
    path = agent.folder / "nri.sock"
    agent.write_config({"nri": {"plugin": {"socket": str(path)}}, "constants": {"state_wait_s": 3600}})
    async with ScriptedHost(path) as host:
        await agent.start(command=PLUGIN)
        await until(
            agent, lambda status: status["nri"]["connected"] and resyncs(status) and not status["books"]
        )
        pod, container = as_told(runtime, run_without_us(runtime, "late", cpu_limit=4000, running=False))
        disk.hang()
        assert await host.create(pod, container) == nri.CreateContainerResponse()
        # The runtime was told nothing: nothing is placed.
        status = await ask(agent, "status")
        assert counter(status, "failed_open_total{reason=late}") == 1
        assert (status["in_doubt"], await ask(agent, "placements")) == (0, [])
        disk.go()
        await host.tell("PostCreateContainer", pod, container)
        assert await ask(agent, "placements") == []
        runtime.containers[container.id].state = cri.CONTAINER_RUNNING
        await host.tell("PostStartContainer", pod, container)
        [row] = await until(agent, lambda rows: [r["stance"] for r in rows] == ["placed"], "placements")
        await runtime.wait_until(lambda: runtime.cpuset(container.id) == row["cpus"])


async def test_an_nri_update_that_is_answered_too_late_is_followed_by_what_the_runtime_has_made_of_it(
    runtime, node
) -> None:
    agent, disk = node.agent, node.disk
    path = agent.folder / "nri.sock"
    agent.write_config({"nri": {"plugin": {"socket": str(path)}}, "constants": {"state_wait_s": 3600}})
    async with ScriptedHost(path) as host:
        await agent.start(command=PLUGIN)
        await until(
            agent, lambda status: status["nri"]["connected"] and resyncs(status) and not status["books"]
        )
        pod, container = as_told(runtime, run_without_us(runtime, "late", cpu_limit=4000, running=False))
        record = runtime.containers[container.id]
        small = (await host.create(pod, container)).adjust.linux.resources.cpu.cpus
        record.resources.cpuset_cpus, record.state = small, cri.CONTAINER_RUNNING
        await host.tell("PostCreateContainer", pod, container)
        await host.tell("PostStartContainer", pod, container)
        disk.hang()
        larger = make_container(pod, cpu_limit=12_000).linux.resources
        request = nri.UpdateContainerRequest(pod=pod, container=container, linux_resources=larger)
        assert await host.call("UpdateContainer", request) == nri.UpdateContainerResponse()
        status = await ask(agent, "status")
        assert (status["in_doubt"], counter(status, "failed_open_total{reason=late}")) == (0, 1)
        disk.go()
        record.resources.cpu_quota, record.resources.cpu_shares = larger.cpu.quota.value, 12 * 1024
        await host.tell("PostUpdateContainer", pod, container)
        [row] = await until(
            agent, lambda rows: [r["cpu_limit_milli"] for r in rows] == [12_000], "placements"
        )
        await runtime.wait_until(lambda: runtime.cpuset(container.id) == row["cpus"] != small)
