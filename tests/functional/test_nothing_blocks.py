"""No call waits for another one: what the runtime takes its time for, it takes for one client only.

Shown by the order of events: what must not wait is complete while the other is still held.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient
from tests.functional.conftest import (
    HANG_S,
    ask,
    charged_milli,
    counter,
    cpus_of,
    create_exclusive,
    run_guaranteed,
)


async def test_everything_else_goes_on_while_a_create_is_held(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    running = await client.create(pod, "running", cpu_request=100)
    await client.start(running)
    release = asyncio.Event()
    runtime.script("CreateContainer", hold=release, times=1)
    held = asyncio.ensure_future(client.create(pod, "held", cpu_request=100))
    call = await runtime.wait_for_call("CreateContainer", 2)
    async with CriClient(agent.socket) as other:
        await asyncio.wait_for(other.call("Version", cri.VersionRequest()), HANG_S)
        await asyncio.wait_for(client.call("Status", cri.StatusRequest()), HANG_S)
        assert [c.id for c in await asyncio.wait_for(client.list_containers(), HANG_S)] == [running]
        await asyncio.wait_for(client.create(pod, "in the same pod", cpu_request=100), HANG_S)
        next_pod = await asyncio.wait_for(other.run_pod("next"), HANG_S)
        created = await asyncio.wait_for(other.create(next_pod, "in another", cpu_request=100), HANG_S)
        await asyncio.wait_for(other.start(created), HANG_S)
        await asyncio.wait_for(client.update(running, cpu_shares=512), HANG_S)
        await asyncio.wait_for(client.stop(running), HANG_S)
        await asyncio.wait_for(client.remove(running), HANG_S)
        await asyncio.wait_for(client.remove_pod(next_pod.id), HANG_S)
    assert not call.finished
    release.set()
    assert cpus_of(runtime, await held)


async def test_a_hundred_creates_are_at_the_runtime_at_once_and_all_are_placed(
    runtime, agent, client
) -> None:
    pods = [await client.run_pod(f"web-{number}") for number in range(100)]
    release = asyncio.Event()
    runtime.script("CreateContainer", hold=release)
    creating = [
        asyncio.ensure_future(client.create(pod, "app", cpu_request=250, cpu_limit=1000)) for pod in pods
    ]
    await runtime.wait_for_call("CreateContainer", 100)
    assert not any(call.finished for call in runtime.calls_of("CreateContainer"))
    release.set()
    ids = await asyncio.wait_for(asyncio.gather(*creating), HANG_S)
    assert len(set(ids)) == 100 and all(cpus_of(runtime, container_id) for container_id in ids)
    status = await ask(agent, "status")
    assert charged_milli(status) == 100 * 250
    # Two hundred places of one CPU each: nobody had to be squeezed in, nobody had to move.
    assert max(row["charged_milli"] for row in status["domains"] if row["level"] == "l3") == 7 * 250
    assert runtime.calls_of("UpdateContainerResources") == []


async def owner_beside(runtime, agent, client) -> tuple[list[str], str]:
    """Two containers whose updates the runtime does not answer yet, and one that owns a CPU of theirs; created only."""
    pod = await client.run_pod("web")
    others = [await client.create(pod, name, cpu_request=100, cpu_limit=2000) for name in ("a", "b")]
    db = await run_guaranteed(client, "db")
    own = runtime.cpuset(others[0]).split(",")[0]
    owner = await asyncio.wait_for(create_exclusive(client, db, "db", own), HANG_S)
    assert runtime.cpuset(owner) == own
    await runtime.wait_for_call("UpdateContainerResources", 2)
    return others, owner


async def test_a_create_does_not_wait_and_a_start_waits_a_limited_time_for_others_to_leave(
    runtime, start_agent
) -> None:
    agent = await start_agent(constants={"placement_shrink_wait_s": 1})
    async with CriClient(agent.socket) as client:
        runtime.script("UpdateContainerResources", then_hang=True)
        _, owner = await owner_beside(runtime, agent, client)
        hanging = runtime.calls_of("UpdateContainerResources")
        assert not any(call.finished for call in hanging)
        status = await ask(agent, "status")
        assert status["not_alone"] == {"default/db/db": ["default/web/a", "default/web/b"]}
        assert (await ask(agent, "explain", container="default/db/db"))["containers"][0]["not_alone"] == [
            "default/web/a",
            "default/web/b",
        ]
        await asyncio.wait_for(client.start(owner), HANG_S)
        # Others are not held up either: not by what hangs, and not by the wait.
        pod = await client.run_pod("more")
        late = await asyncio.wait_for(client.create(pod, "late", cpu_request=100, cpu_limit=2000), HANG_S)
        assert cpus_of(runtime, late) and not cpus_of(runtime, late) & cpus_of(runtime, owner)
    status = await ask(agent, "status")
    assert status["updates_waiting"] == 2
    assert counter(status, "requests_total{method=CreateContainer,outcome=placed}") == 3
    assert counter(status, "not_alone_total{method=StartContainer}") == 1
    assert counter(status, "start_failures_total{next_create=untouched}") == 0


async def test_one_that_would_rather_not_run_than_with_others_does_not_start_and_is_not_to_blame(
    runtime, start_agent
) -> None:
    agent = await start_agent(constants={"placement_shrink_wait_s": 1})
    async with CriClient(agent.socket) as client:
        first = await client.create(await client.run_pod("web"), "a", cpu_request=100, cpu_limit=120_000)
        runtime.script("UpdateContainerResources", then_hang=True)
        pod = await run_guaranteed(client, "db")
        asked = {"cri-resmgr.io/l3": "exclusive"}
        owner = await client.create(
            pod, "db", cpu_limit=4000, memory_limit=1 << 30, qos="guaranteed", annotations=asked
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(client.start(owner), HANG_S)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "are its own by l3: exclusive, and default/web/a may still run there" in (
        caught.value.details() or ""
    )
    assert runtime.calls_of("StartContainer") == [] and first
    status = await ask(agent, "status")
    assert status["distrusted"] == []
    assert counter(status, "start_failures_total{next_create=placed}") == 0


async def test_a_start_waits_while_others_leave(runtime, start_agent) -> None:
    agent = await start_agent(constants={"placement_shrink_wait_s": 3600})
    async with CriClient(agent.socket) as client:
        release = asyncio.Event()
        runtime.script("UpdateContainerResources", hold=release)
        others, owner = await owner_beside(runtime, agent, client)
        starting = asyncio.ensure_future(client.start(owner))
        pod = await client.run_pod("more")
        await asyncio.wait_for(client.create(pod, "b", cpu_request=100, cpu_limit=2000), HANG_S)
        assert runtime.calls_of("StartContainer") == []
        release.set()
        await asyncio.wait_for(starting, HANG_S)
        [start] = runtime.calls_of("StartContainer")
        assert all(call.finished < start.sequence for call in runtime.calls_of("UpdateContainerResources"))
        assert not any(cpus_of(runtime, other) & cpus_of(runtime, owner) for other in others)


async def test_a_start_after_a_restart_waits_for_what_the_comparison_finds(runtime, start_agent) -> None:
    """The daemon is killed after its answer to a create, before others have left: the next one does not know."""
    agent = await start_agent(constants={"placement_shrink_wait_s": 3600})
    async with CriClient(agent.socket) as client:
        hanging = runtime.script("UpdateContainerResources", then_hang=True)
        others, owner = await owner_beside(runtime, agent, client)
    await agent.kill()
    runtime.scripts.remove(hanging)
    listing = asyncio.Event()
    runtime.script("ListContainers", hold=listing)
    await agent.start()
    async with CriClient(agent.socket) as client:
        starting = asyncio.ensure_future(client.start(owner))
        await asyncio.wait_for(client.run_pod("more"), HANG_S)
        assert runtime.calls_of("StartContainer") == []
        listing.set()
        await asyncio.wait_for(starting, HANG_S)
    assert not any(cpus_of(runtime, other) & cpus_of(runtime, owner) for other in others)
