"""No call waits for another one: what the runtime takes its time for, it takes for one client only.

Shown by the order of events: what must not wait is complete while the other is still held.
"""

from __future__ import annotations

import asyncio

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
    until,
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


async def test_a_create_waits_a_limited_time_for_others_to_make_room(runtime, start_agent) -> None:
    # On a busy machine both updates are on their way within this time.
    agent = await start_agent(constants={"placement_shrink_wait_s": 1})
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("web")
        first, second = [
            await client.create(pod, name, cpu_request=100, cpu_limit=2000) for name in ("a", "b")
        ]
        assert runtime.cpuset(first) == runtime.cpuset(second)
        runtime.script("UpdateContainerResources", then_hang=True)
        db = await run_guaranteed(client, "db")
        own = runtime.cpuset(first).split(",")[0]
        owner = await asyncio.wait_for(create_exclusive(client, db, "db", own), HANG_S)
        hanging = runtime.calls_of("UpdateContainerResources")
        assert len(hanging) == 2 and not any(call.finished for call in hanging)
        create = runtime.calls_of("CreateContainer")[-1]
        assert all(call.sequence < create.sequence for call in hanging)
        assert runtime.cpuset(owner) == own
        # Others are not held up either: not by what hangs, and not by the wait.
        late = await asyncio.wait_for(client.create(pod, "late", cpu_request=100, cpu_limit=2000), HANG_S)
        assert cpus_of(runtime, late) and not cpus_of(runtime, late) & cpus_of(runtime, owner)
    status = await ask(agent, "status")
    assert status["updates_waiting"] == 2
    assert counter(status, "requests_total{method=CreateContainer,outcome=placed}") == 3


async def test_a_create_waits_while_others_do_make_room(runtime, start_agent) -> None:
    agent = await start_agent(constants={"placement_shrink_wait_s": 3600})
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("web")
        victim = await client.create(pod, "a", cpu_request=100, cpu_limit=2000)
        release = asyncio.Event()
        runtime.script("UpdateContainerResources", hold=release)
        db = await run_guaranteed(client, "db")
        own = runtime.cpuset(victim).split(",")[0]
        creating = asyncio.ensure_future(create_exclusive(client, db, "db", own))
        await runtime.wait_for_call("UpdateContainerResources")
        # The decision is made and written down; the request has not been sent.
        await until(agent, lambda rows: any(row["container"] == "db" for row in rows), "placements")
        assert len(runtime.calls_of("CreateContainer")) == 1
        await asyncio.wait_for(client.create(pod, "b", cpu_request=100, cpu_limit=2000), HANG_S)
        release.set()
        await asyncio.wait_for(creating, HANG_S)
        assert not cpus_of(runtime, victim) & cpus_of(runtime, await creating)
