"""A container that plugins have had made anew is one container to them, with one id, from its create to its removal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.pod_cache import PLUGIN_ID
from tests.cri_client import CriClient
from tests.functional.conftest import until
from tests.functional.nri.support import (
    adjust,
    env,
    hosting,
    only,
    plugin,
    plugin_process,
    try_create,
    variables,
)
from tests.nri.io.host.plugins import NO_VALIDATOR

pytestmark = pytest.mark.asyncio(loop_scope="module")


def folder_by_id(folder: Path) -> dict[str, Any]:
    """As nri-plugins' policies do it: a folder named by the id is mounted, and goes with the container."""
    named = f"{folder}/{{id}}"
    mount = {"destination": "/data", "source": named, "type": "bind", "options": ["bind", "ro", "rslave"]}
    return {
        "CreateContainer": {"make": named, **adjust(mounts=[mount])},
        "RemoveContainer": {"remove": named},
    }


def shares(container_id: str, value: int) -> dict[str, Any]:
    return {"container_id": container_id, "linux": {"resources": {"cpu": {"shares": {"value": value}}}}}


async def test_a_folder_named_by_the_id_is_there_for_the_containers_whole_life(
    agent, client, runtime, pod, tmp_path
) -> None:
    async with plugin(agent, mask=NO_VALIDATOR, **folder_by_id(tmp_path)) as told:
        container = await client.create(pod, "c", cpu_limit=1000)
        await client.start(container)
        record = only(runtime)
        [mount] = record.config.mounts
        known = record.annotations[PLUGIN_ID]
        assert (record.id, mount.host_path) == (container, str(tmp_path / known))
        assert (tmp_path / known / "id").read_text() == known != container
        await client.update(container, cpu_shares=512)
        await client.stop(container)
        assert (tmp_path / known).is_dir()
        await client.remove(container)
        await told.become(
            "CreateContainer",
            "PostCreateContainer",
            "StartContainer",
            "PostStartContainer",
            "UpdateContainer",
            "PostUpdateContainer",
            "StopContainer",
            "RemoveContainer",
        )
        assert {shown["id"] for shown in told.containers()} == {known}
        await until(agent, lambda _: not list(tmp_path.glob("*/")))


async def test_containers_that_need_no_other_create_have_the_runtimes_id(agent, client, runtime, pod) -> None:
    asked = adjust(linux={"resources": {"cpu": {"shares": {"value": 512}}}})
    async with plugin(agent, mask=NO_VALIDATOR, CreateContainer=[asked, {}]) as told:
        for name in ("updated", "left-alone"):
            container = await client.create(pod, name)
            assert PLUGIN_ID not in runtime.containers[container].annotations
            assert (await told.line("PostCreateContainer"))["message"]
            assert container in [shown["id"] for shown in told.containers()]


async def test_plugins_update_by_the_id_they_know(agent, client, runtime, pod) -> None:
    """In the answer to an update of it, in that to another's create, and unasked."""
    script = {
        "CreateContainer/c": adjust(env=env(A="1")),
        "UpdateContainer/c": {"reply": {"update": [shares("{id}", 11)]}},
        "mask": NO_VALIDATOR,
    }
    async with plugin_process(agent, "10-test", **script) as running:
        await until(agent, lambda status: status["nri"]["plugins"])
        container = await client.create(pod, "c")
        record = only(runtime)
        known = record.annotations[PLUGIN_ID]
        await client.update(container, cpu_shares=512)
        assert record.resources.cpu_shares == 11
        assert len(runtime.calls_of("UpdateContainerResources")) == 1
        async with plugin(agent, "20-b", CreateContainer={"reply": {"update": [shares(known, 22)]}}):
            await client.create(pod, "other")
            assert record.resources.cpu_shares == 22
        for number, named in enumerate((known, container), 33):
            running.order("UpdateContainers", update=[shares(named, number)])
            answered = await running.log.line("UpdateContainers answered", number - 32)
            assert (answered["failed"], record.resources.cpu_shares) == ([], number)
        runtime.script("UpdateContainerResources", error=(2, "no"), times=1)
        running.order("UpdateContainers", update=[shares(known, 44)])
        assert (await running.log.line("UpdateContainers answered", 3))["failed"] == [known]


async def test_a_restart_of_the_daemon_and_a_plugins_return_keep_the_id(
    start_agent, runtime, tmp_path
) -> None:
    agent = await start_agent(nri=hosting())
    script = {"mask": NO_VALIDATOR, **folder_by_id(tmp_path)}
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("p")
        async with plugin(agent, **script):
            running = await client.create(pod, "running")
            waiting = await client.create(pod, "waiting")
            exited = await client.create(pod, "exited")
            await client.start(running)
            await client.start(exited)
            runtime.exit_container(exited, 1)
        made = (running, waiting, exited)
        known = {key: runtime.containers[key].annotations[PLUGIN_ID] for key in made}
        live = {known[running], known[waiting]}
        # It returns,
        async with plugin(agent, **script) as told:
            listed = (await told.line("Synchronize"))["message"]["containers"]
            assert {shown["id"] for shown in listed} == live
    # and returns to another daemon.
    await agent.kill()
    await agent.start()
    async with CriClient(agent.socket) as client, plugin(agent, **script) as told:
        listed = (await told.line("Synchronize"))["message"]["containers"]
        assert {shown["id"] for shown in listed} == live
        await client.remove(exited)
        await told.line("RemoveContainer")
        await client.start(waiting)
        runtime.exit_container(waiting, 3)
        await client.stop(waiting)
        await client.remove(waiting)
        await client.remove_pod(pod.id)
        await told.become(
            "RemoveContainer",
            "StartContainer",
            "PostStartContainer",
            "StopContainer",
            "RemoveContainer",
            "StopContainer",
            "StopPodSandbox",
            "RemoveContainer",
            "RemovePodSandbox",
        )
        told_of = [shown["id"] for shown in told.containers()]
        assert told_of == [known[exited], *[known[waiting]] * 4, *[known[running]] * 2]
        await until(agent, lambda _: not list(tmp_path.glob("*/")))


async def test_a_container_that_cannot_be_made_anew_is_told_as_gone_once(
    agent, client, runtime, pod, tmp_path
) -> None:
    async with plugin(agent, mask=NO_VALIDATOR, **folder_by_id(tmp_path)) as told:
        runtime.script("CreateContainer", error=(2, "no such mount"), when=lambda sent: b"/data" in sent)
        got = await try_create(client, pod, "c")
        assert (got.code, got.details) == (2, "no such mount")
        assert runtime.containers == {}
        await told.become("CreateContainer", "StopContainer", "RemoveContainer")
        assert len({shown["id"] for shown in told.containers()}) == 1
        assert not list(tmp_path.glob("*/"))
        runtime.scripts.clear()
        container = await client.create(pod, "c")
        await told.become(
            *("CreateContainer", "StopContainer", "RemoveContainer", "CreateContainer", "PostCreateContainer")
        )
        assert only(runtime).id == container


async def test_while_one_is_made_anew_no_list_of_the_runtimes_says_that_it_has_gone(
    agent, client, runtime, pod
) -> None:
    gate = asyncio.Event()
    async with plugin(agent, mask=NO_VALIDATOR, CreateContainer=adjust(annotations={"a": "1"})) as told:
        runtime.script("CreateContainer", hold=gate, when=lambda sent: PLUGIN_ID.encode() in sent)
        creating = asyncio.ensure_future(client.create(pod, "c"))
        await runtime.wait_for_call("CreateContainer", 2)
        lists = len(runtime.calls_of("ListContainers"))
        await runtime.wait_for_call("ListContainers", lists + 2)
        # A plugin that comes in the middle of it is not asked any more: it waits to be shown what is made.
        async with plugin(agent, "20-late", mask=NO_VALIDATOR, wait=False) as late:
            await late.line("Configure")
            gate.set()
            container = await creating
            [shown] = (await late.line("Synchronize"))["message"]["containers"]
            assert shown["id"] == only(runtime).annotations[PLUGIN_ID] != container
            assert shown["annotations"]["a"] == "1"
            await client.start(container)
            await late.line("PostStartContainer")
            # It may have come before PostCreateContainer was told, or after.
            assert late.events()[-2:] == ["StartContainer", "PostStartContainer"]
            assert not {"CreateContainer", "StopContainer", "RemoveContainer"} & set(late.events())
        assert told.events()[:3] == ["CreateContainer", "PostCreateContainer", "StartContainer"]


async def test_a_daemon_that_is_killed_in_the_middle_leaves_none_of_the_two(start_agent, runtime) -> None:
    agent = await start_agent(nri=hosting())
    gate = asyncio.Event()
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("p")
        async with plugin(agent, CreateContainer=adjust(env=env(A="1"))):
            runtime.script(
                "CreateContainer",
                hold=gate,
                when=lambda sent: PLUGIN_ID.encode() in sent,
                act_before_error=True,
                error=(2, "never heard"),
                times=1,
            )
            creating = asyncio.ensure_future(try_create(client, pod, "c"))
            await runtime.wait_for_call("CreateContainer", 2)
            await agent.kill()
            gate.set()
            assert (await creating).code == 14
    await agent.start()
    async with CriClient(agent.socket) as client, plugin(agent, mask=NO_VALIDATOR) as told:
        again = await client.create(pod, "c")
        assert (only(runtime).id, variables(only(runtime))) == (again, {})
        assert [shown["id"] for shown in told.containers()].count(again) == len(told.containers())


async def test_stop_and_removal_of_the_pod_in_the_middle_are_told_once(agent, client, runtime, pod) -> None:
    gate = asyncio.Event()
    async with plugin(agent, mask=NO_VALIDATOR, CreateContainer=adjust(env=env(A="1"))) as told:
        runtime.script("CreateContainer", hold=gate, when=lambda sent: PLUGIN_ID.encode() in sent)
        creating = asyncio.ensure_future(try_create(client, pod, "c"))
        await runtime.wait_for_call("CreateContainer", 2)
        await client.stop_pod(pod.id)
        gate.set()
        got = await creating
        assert (got.code, "no running task" in got.details) == (2, True)
        await client.remove_pod(pod.id)
        await told.become(
            "CreateContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"
        )


async def test_an_annotation_that_names_another_container_misleads_no_update(
    agent, client, runtime, pod
) -> None:
    real = await client.create(pod, "real")
    false = await client.create(pod, "false", annotations={PLUGIN_ID: real})
    async with plugin_process(agent, "10-test", mask=NO_VALIDATOR) as running:
        await until(agent, lambda status: status["nri"]["plugins"])
        running.order("UpdateContainers", update=[shares(real, 55)])
        assert (await running.log.line("UpdateContainers answered"))["failed"] == []
        assert runtime.containers[real].resources.cpu_shares == 55
        assert runtime.containers[false].resources.cpu_shares != 55
        status = cri.ContainerStatusRequest(container_id=false).SerializeToString()
        assert (await client.call_bytes("/runtime.v1.RuntimeService/ContainerStatus", status)).code == 0


async def test_a_plugin_does_not_wait_for_ever_for_what_is_made_anew(agent, client, runtime, pod) -> None:
    gate = asyncio.Event()
    async with plugin(agent, mask=NO_VALIDATOR, CreateContainer=adjust(annotations={"a": "1"})) as told:
        runtime.script("CreateContainer", hold=gate, when=lambda sent: PLUGIN_ID.encode() in sent)
        creating = asyncio.ensure_future(client.create(pod, "c"))
        await runtime.wait_for_call("CreateContainer", 2)
        async with plugin(agent, "20-late", mask=NO_VALIDATOR) as late:
            [shown] = (await late.line("Synchronize"))["message"]["containers"]
            assert [about["id"] for about in told.containers()] == [shown["id"]]
            gate.set()
            await creating
            after = (await late.line("PostCreateContainer"))["message"]["container"]
            assert (after["id"], after["annotations"]["a"]) == (shown["id"], "1")
