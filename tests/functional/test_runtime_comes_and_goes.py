"""A runtime that is not there is said to be not there; when it is back, so is everything else."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient, container_config, pod_config
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import (
    CREATE,
    HANG_S,
    UPDATE,
    VERSION,
    ask,
    charged_milli,
    resyncs,
    rows,
    start_in_front_of,
    until,
)
from tests.machines import HYGON_7285_2S, machine

METHODS = [
    VERSION,
    CREATE,
    UPDATE,
    "/runtime.v1.RuntimeService/ListContainers",
    "/runtime.v1.RuntimeService/GetContainerEvents",
    "/runtime.v1.ImageService/PullImage",
    "/runtime.v1.RuntimeService/Levitate",
]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
SIZE: dict[str, Any] = {"cpu_request": 500, "cpu_limit": 2000}


async def again(client: CriClient) -> None:
    """Call as kubelet does, until it works."""

    async def call() -> None:
        while (await client.call_bytes(VERSION, b"")).code == UNAVAILABLE:
            pass

    await asyncio.wait_for(call(), HANG_S)


async def test_without_the_runtime_every_call_is_unavailable_at_once(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    await runtime.stop()
    for method in METHODS:
        reply = await asyncio.wait_for(client.call_bytes(method, b""), HANG_S)
        assert (method, reply.code) == (method, UNAVAILABLE)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(client.create(pod, "app", **SIZE), HANG_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    # Nothing was sent, so nothing is in doubt and nothing is kept.
    status = await ask(agent, "status")
    assert (status["in_doubt"], charged_milli(status), status["runtime"]["connected"]) == (0, 0, False)
    assert await ask(agent, "placements") == []


async def test_calls_under_way_end_when_the_runtime_does(runtime, agent, client) -> None:
    runtime.script("Version", then_hang=True)
    events = client.events()
    await runtime.wait_until(lambda: runtime.subscribers == 1)
    await until(agent, lambda status: status["exits"] == "a client's event stream")
    hanging = asyncio.ensure_future(client.call_bytes(VERSION, b""))
    await runtime.wait_for_call("Version", 2)
    await runtime.stop()
    assert (await asyncio.wait_for(hanging, HANG_S)).code == UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError):
        await events.next()
    await until(agent, lambda status: status["exits"] == "polling")


async def test_it_works_again_when_the_runtime_is_back(runtime, agent, client) -> None:
    pod = await client.run_pod("web")
    for attempt in range(3):
        await runtime.stop()
        assert (await client.call_bytes(VERSION, b"")).code == UNAVAILABLE
        await runtime.start()
        await again(client)
        assert runtime.cpuset(await client.create(pod, "app", attempt=attempt, **SIZE))


async def test_the_daemon_starts_without_the_runtime_and_finds_it_later(runtime) -> None:
    pod = runtime.add_pod(pod_config("web"))
    running = runtime.add_container(pod, container_config("app", cpuset="0-3", **SIZE))
    await runtime.stop()
    async with (
        Agent(runtime.socket, topology=machine(HYGON_7285_2S)) as agent,
        CriClient(agent.socket) as client,
    ):
        assert (await asyncio.wait_for(client.call_bytes(VERSION, b""), HANG_S)).code == UNAVAILABLE
        await runtime.start()
        await again(client)
        await until(agent, lambda status: resyncs(status) > 0)
        assert (await rows(agent))["app"]["id"] == running
        assert runtime.calls_of("UpdateContainerResources") == []


async def test_what_was_removed_meanwhile_is_released_and_what_was_added_is_adopted(
    runtime, agent, client
) -> None:
    pod = await client.run_pod("web")
    gone, stays = [await client.create(pod, name, **SIZE) for name in ("gone", "stays")]
    await client.start(stays)
    before = resyncs(await ask(agent, "status"))
    await runtime.stop()
    del runtime.containers[gone]
    new = runtime.add_container(pod.id, container_config("new", cpuset="40-43", **SIZE))
    await runtime.start()
    status = await until(agent, lambda status: resyncs(status) > before)
    found = await rows(agent)
    assert {name: row["id"] for name, row in found.items()} == {"stays": stays, "new": new}
    assert (found["new"]["stance"], found["new"]["cpus"]) == ("adopted", "40-43")
    assert charged_milli(status) == 2 * 500
    assert runtime.calls_of("UpdateContainerResources") == []


async def test_a_runtime_of_the_older_cri_is_spoken_to_in_its_version(folder) -> None:
    async with FakeRuntime(f"{folder}/r.sock", api_versions=("runtime.v1alpha2",)) as runtime:
        pod = runtime.add_pod(pod_config("web"))
        runtime.add_container(pod, container_config("app", cpuset="0-3", **SIZE))
        agent = await start_in_front_of(runtime, machine(HYGON_7285_2S), {})
        try:
            assert (await ask(agent, "status"))["runtime"]["api"] == "runtime.v1alpha2"
            assert (await rows(agent))["app"]["stance"] == "adopted"
        finally:
            await agent.close()


# ---------------------------------------------------------------------- exits


async def init_then_app(runtime: FakeRuntime, agent: Agent, client: CriClient, exit_code: int) -> int:
    """An init container ends by itself, its end is noticed, the next one comes; what is charged then."""
    pod = await client.run_pod("web")
    init = await client.create(pod, "init", **SIZE)
    await client.start(init)
    assert (await rows(agent))["init"]["state"] == "running"
    runtime.exit_container(init, exit_code)
    await until(agent, lambda found: found[0]["state"] == "held", "placements")
    await client.create(pod, "app", **SIZE)
    return charged_milli(await ask(agent, "status"))


@pytest.mark.parametrize(("exit_code", "charged"), [(0, 500), (3, 1000)], ids=["finished", "failed"])
async def test_an_exit_and_its_code_are_noticed_by_polling(runtime, start_agent, exit_code, charged) -> None:
    agent = await start_agent(constants={"reconcile_poll_s": 0.1})
    async with CriClient(agent.socket) as client:
        # A finished init container makes room for the next; a failed one comes back, its place is held.
        assert await init_then_app(runtime, agent, client, exit_code) == charged
    assert runtime.calls_of("GetContainerEvents") == []


@pytest.mark.parametrize("subscribers", [1, 2], ids=["told once", "told twice"])
@pytest.mark.parametrize(("exit_code", "charged"), [(0, 500), (3, 1000)], ids=["finished", "failed"])
async def test_an_exit_and_its_code_are_read_along_on_the_clients_event_stream(
    runtime, agent, client, exit_code, charged, subscribers
) -> None:
    events = [client.events() for _ in range(subscribers)]
    await runtime.wait_until(lambda: runtime.subscribers == subscribers)
    # No list can tell.
    runtime.script("ListContainers", error=(13, "not now"))
    assert await init_then_app(runtime, agent, client, exit_code) == charged
    for stream in events:
        stream.cancel()


async def test_an_exit_is_noticed_on_a_stream_of_our_own_where_that_takes_nothing_from_others(folder) -> None:
    async with FakeRuntime(f"{folder}/r.sock", runtime_version="2.1.0") as runtime:
        agent = await start_in_front_of(runtime, machine(HYGON_7285_2S), {})
        try:
            await runtime.wait_until(lambda: runtime.subscribers == 1)
            async with CriClient(agent.socket) as client:
                assert await init_then_app(runtime, agent, client, 0) == 500
            assert (await ask(agent, "status"))["exits"] == "own event stream"
        finally:
            await agent.close()


async def test_a_removal_past_the_daemon_is_read_along_on_the_event_stream(
    runtime, agent, client, direct
) -> None:
    app = await client.create(await client.run_pod("web"), "app", **SIZE)
    events = client.events()
    await runtime.wait_until(lambda: runtime.subscribers == 1)
    runtime.script("ListContainers", error=(13, "not now"))
    await direct.call("RemoveContainer", cri.RemoveContainerRequest(container_id=app))
    await until(agent, lambda found: found == [], "placements")
    events.cancel()


async def test_a_list_that_could_not_be_had_is_asked_for_again_soon_without_a_cause(
    runtime, agent, client, direct
) -> None:
    app = await client.create(await client.run_pod("web"), "app", **SIZE)
    stuck = runtime.script("ListContainers", error=(13, "not now"), times=2)
    await direct.call("RemoveContainer", cri.RemoveContainerRequest(container_id=app))
    # One round, whose list cannot be had; and the next one's neither.
    await ask(agent, "mode", mode="enforce")
    await until(agent, lambda found: found == [], "placements")
    assert stuck.used == 2
