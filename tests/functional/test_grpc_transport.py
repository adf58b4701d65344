"""The transport that makes each call anew: where images have a runtime of their own, and by ``relay.transport``."""

from __future__ import annotations

from pathlib import Path

from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.activation import Units
from tests.functional.conftest import StartAgent

GRPC = {"transport": "grpc"}
LIST_IMAGES = "/runtime.v1.ImageService/ListImages"


async def test_containers_are_placed_and_other_calls_pass(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(relay=GRPC)
    async with CriClient(agent.socket) as client:
        made = await client.create(await client.run_pod("web"), "app", cpu_limit=1000)
        assert runtime.cpuset(made) != ""
        assert (await client.call_bytes(LIST_IMAGES, b"")).code == 0


async def test_images_of_another_runtime_are_asked_for_there(
    runtime: FakeRuntime, start_agent: StartAgent, folder: Path
) -> None:
    async with FakeRuntime(f"{folder}/images.sock") as images:
        agent = await start_agent(relay={"image_endpoint": images.socket})
        async with CriClient(agent.socket) as client:
            made = await client.create(await client.run_pod("web"), "app", cpu_limit=1000)
            assert (await client.call_bytes(LIST_IMAGES, b"")).code == 0
        assert runtime.cpuset(made) != ""
        assert (len(images.calls_of(LIST_IMAGES)), len(runtime.calls_of(LIST_IMAGES))) == (1, 0)
        assert images.calls_of("CreateContainer") == []


async def test_sockets_of_systemd_are_served_through_a_restart(runtime: FakeRuntime) -> None:
    async with Units(runtime, relay=GRPC) as units:
        await units.start()
        for path in units.paths:
            async with CriClient(path) as client:
                assert (await client.call_bytes("/runtime.v1.RuntimeService/Version", b"")).code == 0
        await units.restart()
        async with CriClient(units.paths[0]) as client:
            made = await client.create(await client.run_pod("web"), "app", cpu_limit=1000)
        assert runtime.cpuset(made) != ""
