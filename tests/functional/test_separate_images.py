"""A separate image service: the daemon relays to one runtime, so image calls are refused and the daemon says why."""

from __future__ import annotations

import os

from tests.cri_client import CriClient
from tests.functional.conftest import ask

LIST_IMAGES = "/runtime.v1.ImageService/ListImages"


async def test_image_calls_are_refused_by_name_and_all_else_is_as_ever(runtime, start_agent, folder) -> None:
    images = f"{folder}/images.sock"
    agent = await start_agent(relay={"image_endpoint": f"unix://{images}"})
    status = await ask(agent, "status")
    sentence = status["degraded"]["images"]
    assert status["degraded"].keys() == {"images"}
    assert f"relay.image_endpoint is {images}" in sentence
    assert f"imageServiceEndpoint: unix://{images}" in sentence
    assert (status["image_endpoint"], status["mode"]) == (images, "enforce")
    async with CriClient(agent.socket) as client:
        made = await client.create(await client.run_pod("web"), "app", cpu_limit=1000)
        for api in ("v1", "v1alpha2"):
            method = f"runtime.{api}.ImageService/ListImages"
            got = await client.call_bytes(f"/{method}", b"")
            assert (got.code, got.details) == (9, f"{method} is not relayed: {sentence}")
    assert runtime.cpuset(made) != ""
    assert runtime.calls_of("ListImages") == []


async def test_an_image_service_that_is_the_runtime_by_another_name_is_ignored(
    runtime, start_agent, folder
) -> None:
    os.symlink(runtime.socket, f"{folder}/linked.sock")
    agent = await start_agent(relay={"image_endpoint": f"{folder}/linked.sock"})
    status = await ask(agent, "status")
    assert (status["degraded"], status["image_endpoint"]) == ({}, "")
    async with CriClient(agent.socket) as client:
        assert (await client.call_bytes(LIST_IMAGES, b"")).code == 0
    assert len(runtime.calls_of("ListImages")) == 1
