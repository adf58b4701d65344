"""When nobody knows whether a container was created, its CPUs are neither lost nor given away twice."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient, Pod
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import (
    HANG_S,
    VERSION,
    ask,
    charged_milli,
    cpus_of,
    failures,
    resync,
    resyncs,
    rows,
    run_guaranteed,
    until,
)
from tests.functional.support import compared, cpusets, restart, run_pod_with, unlisted, updates

REQUEST = 500
SIZE: dict[str, Any] = {"cpu_request": REQUEST, "cpu_limit": 2000}
#: Codes with which the runtime says that it has done nothing.
REFUSALS = [code for code in grpc.StatusCode if code.value[0] not in (0, 1, 4, 14)]
OPEN_ENDS = [grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE]


async def settled(agent: Agent) -> Any:
    """The status once every create under way has ended: all that is still being created is in doubt."""

    def holds(status: Any) -> bool:
        placed = sum(status["containers"].values())
        return charged_milli(status) == placed * REQUEST

    while True:
        status = await until(agent, holds)
        creating = [row for row in await ask(agent, "placements") if row["state"] == "creating"]
        if len(creating) == status["in_doubt"]:
            return status


def books_agree(runtime: FakeRuntime, status: Any, placements: list[Any]) -> bool:
    """Each container of the runtime is charged once, where it runs; other records are creates in doubt."""
    assert status["invariants"] == []
    known = {row["id"]: row for row in placements if row["state"] != "creating"}
    doubtful = [row for row in placements if row["state"] == "creating"]
    assert set(known) == set(runtime.containers)
    assert all(row["cpus"] == runtime.cpuset(container_id) for container_id, row in known.items())
    assert len(doubtful) == status["in_doubt"]
    names = {record.name for record in runtime.containers.values()}
    assert not [row for row in doubtful if row["container"] in names]
    for domain in status["domains"]:
        cpus = parse_cpus(domain["cpus"])
        shares = [parse_cpus(row["cpus"]) for row in placements]
        expected = sum(REQUEST * len(cpus & share) / len(share) for share in shares)
        assert abs(domain["charged_milli"] - expected) <= len(placements)
    return True


async def hurried(client: CriClient, pod: Pod, name: str, milliseconds: int) -> int:
    try:
        await client.create(pod, name, timeout=milliseconds / 1000, **SIZE)
    except grpc.aio.AioRpcError as error:
        return int(error.code().value[0])
    return 0


async def test_creates_with_deadlines_of_milliseconds_lose_no_cpu(runtime, agent, client) -> None:
    pods = [await client.run_pod(f"web-{number}") for number in range(60)]
    runtime.script("CreateContainer", act_before_error=True, then_hang=True)
    # Few at a time: some deadlines then pass before the daemon, some in it, and some at the runtime.
    for n in range(0, 60, 2):
        batch = [hurried(client, pods[i], f"app-{i}", 1 + n // 2 % 4) for i in (n, n + 1)]
        assert set(await asyncio.gather(*batch)) <= {1, 4}
    await runtime.wait_until(lambda: all(call.finished for call in runtime.calls))
    await settled(agent)
    status = await resync(agent, runtime)
    assert books_agree(runtime, status, await ask(agent, "placements"))
    # Kubelet tries again. What exists is "reserved"; what does not is created now, on the CPUs it was given.
    runtime.scripts.clear()
    existing = {record.name for record in runtime.containers.values()}
    for number, pod in enumerate(pods):
        assert await hurried(client, pod, f"app-{number}", 60_000) == (
            2 if f"app-{number}" in existing else 0
        )
    status = await resync(agent, runtime)
    assert len(runtime.containers) == 60 and status["in_doubt"] == 0
    assert charged_milli(status) == 60 * REQUEST
    assert books_agree(runtime, status, await ask(agent, "placements"))


async def test_creates_whose_clients_go_away_lose_no_cpu(runtime, agent, client) -> None:
    pods = [await client.run_pod(f"web-{number}") for number in range(20)]
    runtime.script("CreateContainer", act_before_error=True, then_hang=True, times=10)
    runtime.script("CreateContainer", hold=asyncio.Event())
    creating = [asyncio.ensure_future(client.create(pod, f"app-{n}", **SIZE)) for n, pod in enumerate(pods)]
    await runtime.wait_for_call("CreateContainer", 20)
    await runtime.wait_until(lambda: len(runtime.containers) == 10)
    with unlisted(runtime):
        for task in creating:
            task.cancel()
        await runtime.wait_until(
            lambda: all(c.outcome == "cancelled" for c in runtime.calls_of("CreateContainer"))
        )
        assert len(runtime.containers) == 10
        # Until the runtime has been asked, each keeps its CPUs.
        assert charged_milli(await until(agent, lambda status: status["in_doubt"] == 20)) == 20 * REQUEST
    status = await resync(agent, runtime)
    assert status["in_doubt"] == 10
    assert books_agree(runtime, status, await ask(agent, "placements"))


async def test_a_client_that_goes_away_before_its_resize_was_sent_leaves_nothing(
    runtime, start_agent
) -> None:
    """A resize that adds CPUs of its own waits for others to leave them."""
    agent = await start_agent(
        policy={"Active": "topology-aware"}, constants={"placement_shrink_wait_s": 3600}
    )
    async with CriClient(agent.socket) as client:
        _, other = await run_pod_with(client, "wide", cpu_limit=120_000, cpu_request=1000)
        pod = await run_guaranteed(client, "owner")
        owner = await client.create(pod, "owner", cpu_limit=2000, memory_limit=1 << 30, qos="guaranteed")
        await client.start(owner)
        await until(agent, lambda status: status["updates_waiting"] == 0)
        before, release = cpusets(runtime), asyncio.Event()
        count = updates(runtime)
        runtime.script("UpdateContainerResources", hold=release)
        resizing = asyncio.ensure_future(
            client.update(owner, cpu_quota=400_000, cpu_period=100_000, cpu_shares=4096)
        )
        call = await runtime.wait_for_call("UpdateContainerResources", count + 1)
        assert call.message.container_id == other
        resizing.cancel()
        await asyncio.gather(resizing, return_exceptions=True)
        # What comes next by the same connection comes after the end of the call: the daemon knows that now.
        await client.call_bytes(VERSION, b"")
        release.set()
        await runtime.wait_until(lambda: updates(runtime) == count + 2 and cpusets(runtime) == before)
        status = await until(agent, lambda status: status["updates_waiting"] == 0)
        assert (status["in_doubt"], cpusets(runtime)) == (0, before)
        asked = [call.message.container_id for call in runtime.calls_of("UpdateContainerResources")[count:]]
        assert asked == [other, other]


async def test_a_create_in_doubt_is_looked_for_without_being_asked(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    runtime.script("CreateContainer", act_before_error=True, then_hang=True)
    creating = asyncio.ensure_future(client.create(pod, "app", **SIZE))
    # Not for the call: a client that goes away while its request is still read has asked for nothing.
    await runtime.wait_until(lambda: bool(runtime.containers))
    creating.cancel()
    found = await until(agent, lambda rows: [row["state"] for row in rows] == ["created"], "placements")
    assert [row["id"] for row in found] == list(runtime.containers)


async def test_a_create_that_the_runtime_has_not_begun_is_looked_for_again_until_it_has(
    runtime, agent, client
) -> None:
    pod, other = await client.run_pod("web"), CriClient(runtime.socket)
    runtime.script("CreateContainer", error=(grpc.StatusCode.DEADLINE_EXCEEDED, "slow"), times=1)
    assert await hurried(client, pod, "app", 60_000) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    # The first look comes too early; the list cannot be had at the next one.
    before = resyncs(await ask(agent, "status"))
    status = await until(agent, lambda status: resyncs(status) > before)
    assert status["in_doubt"] == 1
    runtime.script("ListContainers", error=(grpc.StatusCode.UNKNOWN, "busy"), times=1)
    async with other:
        created = await other.create(pod, "app", **SIZE)
    found = await until(agent, lambda rows: [row["id"] for row in rows] == [created], "placements")
    assert found[0]["state"] == "created"
    assert failures(await ask(agent, "status")) == 1


async def test_a_connection_that_breaks_during_creates_loses_no_cpu(runtime, agent, client) -> None:
    pods = [await client.run_pod(f"web-{number}") for number in range(10)]
    runtime.script("CreateContainer", act_before_error=True, then_hang=True, times=5)
    runtime.script("CreateContainer", hold=asyncio.Event(), times=5)
    creating = [asyncio.ensure_future(hurried(client, p, f"app-{n}", 60_000)) for n, p in enumerate(pods)]
    await runtime.wait_for_call("CreateContainer", 10)
    await runtime.wait_until(lambda: len(runtime.containers) == 5)
    before = resyncs(await ask(agent, "status"))
    await runtime.stop()
    assert set(await asyncio.wait_for(asyncio.gather(*creating), HANG_S)) <= {1, 14}
    status = await ask(agent, "status")
    assert (status["in_doubt"], charged_milli(status)) == (10, 10 * REQUEST)
    await runtime.start()
    # The runtime's return is reason enough to look.
    status = await until(agent, lambda status: resyncs(status) > before and status["in_doubt"] == 5)
    assert len(runtime.containers) == 5
    assert books_agree(runtime, status, await ask(agent, "placements"))


@pytest.mark.parametrize("acted", [False, True], ids=["not created", "created"])
@pytest.mark.parametrize("code", OPEN_ENDS, ids=lambda code: code.name)
async def test_codes_that_leave_it_open_keep_the_cpus_until_the_runtime_is_asked(
    runtime, agent, client, code, acted
) -> None:
    pod = await client.run_pod("web")
    runtime.script("CreateContainer", error=(code, "who knows"), act_before_error=acted, times=1)
    with unlisted(runtime):
        assert await hurried(client, pod, "app", 60_000) == code.value[0]
        status = await until(agent, lambda status: status["in_doubt"] == 1)
        assert charged_milli(status) == REQUEST
    status = await resync(agent, runtime)
    assert (status["in_doubt"], len(runtime.containers)) == ((0, 1) if acted else (1, 0))
    assert books_agree(runtime, status, await ask(agent, "placements"))


async def test_codes_that_say_no_free_the_cpus_at_once(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    for code in REFUSALS:
        runtime.script("CreateContainer", error=(code, "no"), times=1)
        assert await hurried(client, pod, "app", 60_000) == code.value[0]
        status = await ask(agent, "status")
        assert (code, status["in_doubt"], charged_milli(status)) == (code, 0, 0)
        assert await ask(agent, "placements") == []


async def test_a_resize_in_doubt_ends_as_the_runtime_has_it(runtime, agent, client) -> None:
    app = await client.create(await client.run_pod("web"), "app", **SIZE)
    runtime.script("UpdateContainerResources", act_before_error=True, then_hang=True, times=1)
    linux = cri.LinuxContainerResources(cpu_quota=1_200_000, cpu_period=100_000)
    request = cri.UpdateContainerResourcesRequest(container_id=app, linux=linux)
    updating = asyncio.ensure_future(client.call("UpdateContainerResources", request))
    await runtime.wait_for_call("UpdateContainerResources")
    with unlisted(runtime):
        updating.cancel()
        await until(agent, lambda status: status["in_doubt"] == 1)
    status = await resync(agent, runtime)
    assert (status["in_doubt"], status["invariants"]) == (0, [])
    row = (await rows(agent))["app"]
    assert (row["level"], parse_cpus(row["cpus"])) == ("numa", cpus_of(runtime, app))
    assert charged_milli(status) == REQUEST


async def test_a_daemon_killed_during_a_create_finds_the_container_after_its_start(
    runtime, agent, client
) -> None:
    pod = await client.run_pod("web")
    runtime.script("CreateContainer", act_before_error=True, then_hang=True, times=1)
    creating = asyncio.ensure_future(hurried(client, pod, "app", 60_000))
    await runtime.wait_until(lambda: bool(runtime.containers))
    await agent.kill()
    assert await creating == grpc.StatusCode.UNAVAILABLE.value[0]
    await agent.start()
    status = await until(agent, lambda status: resyncs(status) > 0)
    assert (status["in_doubt"], charged_milli(status)) == (0, REQUEST)
    assert books_agree(runtime, status, await ask(agent, "placements"))
    assert runtime.calls_of("UpdateContainerResources") == []


# ---------------------------------------------------------------------- kubelet tries again

BIG: dict[str, Any] = {"cpu_limit": 6000, "memory_limit": 1 << 30, "qos": "guaranteed"}
#: How a reply is lost, and whether the runtime has done it.
LOST = [
    ("kill", True),
    ("kill", False),
    ("a client that goes away", True),
    ("a client that goes away", False),
    ("a deadline", True),
    ("a lost connection", True),
]


async def lose_the_reply(runtime: FakeRuntime, agent: Agent, client: CriClient, pod: Pod, by: str) -> None:
    """A create is at the runtime, and its reply reaches no client."""
    script = next(script for script in runtime.scripts if script.method == "CreateContainer")
    if by == "a deadline":
        script.error, script.then_hang = (grpc.StatusCode.DEADLINE_EXCEEDED, "too late"), False
    creating = asyncio.ensure_future(hurried_big(client, pod))
    there = runtime.containers.values()
    await runtime.wait_until(
        lambda: script.used == 1 and (not script.act_before_error or any(c.name == "big" for c in there))
    )
    # What others are told by it they have been told.
    await until(agent, lambda status: status["updates_waiting"] == 0)
    if by == "kill":
        await agent.kill()
    elif by == "a client that goes away":
        creating.cancel()
    elif by == "a lost connection":
        await runtime.stop()
        await runtime.start()
    await asyncio.wait([creating], timeout=HANG_S)
    assert creating.done()


async def hurried_big(client: CriClient, pod: Pod) -> int:
    try:
        await client.create(pod, "big", **BIG)
    except grpc.aio.AioRpcError as error:
        return int(error.code().value[0])
    return 0


@pytest.mark.parametrize("looked_first", [True, False], ids=["the list comes first", "the retry comes first"])
@pytest.mark.parametrize(("by", "acted"), LOST)
async def test_kubelets_retry_gets_the_place_and_no_other_cpuset_changes(
    runtime, start_agent, by, acted, looked_first
) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"})
    async with CriClient(agent.socket) as client:
        for name in ("wide", "beside"):
            await run_pod_with(client, name, cpu_limit=120_000, cpu_request=1000)
        await run_pod_with(client, "owner", cpu_limit=4000, memory_limit=1 << 30, qos="guaranteed")
        pod = await run_guaranteed(client, "big")
        runtime.script("CreateContainer", act_before_error=acted, then_hang=True, times=1)
        await lose_the_reply(runtime, agent, client, pod, by)
    before, sent = cpusets(runtime), updates(runtime)
    listing = asyncio.Event()
    if not looked_first:
        runtime.script("ListContainers", hold=listing)
    if by == "kill":
        await agent.start()
    if looked_first:
        await compared(agent)
    # As kubelet does: what is there has had its attempt, and was not started.
    first = [record for record in runtime.containers.values() if record.name == "big"]
    async with CriClient(agent.socket) as client:
        big = await client.create(pod, "big", attempt=len(first), **BIG)
        await client.start(big)
    listing.set()
    assert len(cpus_of(runtime, big)) == 6
    for record in first:
        assert runtime.cpuset(record.id) == runtime.cpuset(big)
    status = await compared(agent)
    for _ in range(2):
        assert (status["invariants"], status["degraded"], status["in_doubt"]) == ([], {}, 0)
        assert (cpusets(runtime), updates(runtime)) == ({**before, big: runtime.cpuset(big)}, sent)
        row = (await rows(agent))["big"]
        assert (row["id"], row["cpus"]) == (big, runtime.cpuset(big))
        status = await restart(agent)
