"""A plugin that connects is told of nothing that was over before: no stop and no removal of what it never saw."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent import Agent
from tests.cri_client import CriClient, Pod
from tests.functional.conftest import until
from tests.functional.nri.support import plugin
from tests.nri.io.host.plugins import A_WHOLE_LIFE, NO_VALIDATOR, Log

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def until_not_asking(agent: Agent) -> None:
    await until(agent, lambda status: not status["nri"]["is_asking"])


def told_about(log: Log, pod_id: str) -> list[str]:
    """The events of one pod and its containers."""
    return [
        line["event"] for line in log.lines() if line.get("message", {}).get("pod", {}).get("id") == pod_id
    ]


async def a_whole_life(client: CriClient, name: str) -> Pod:
    pod = await client.run_pod(name)
    await client.start(await client.create(pod, "c"))
    await client.remove_pod(pod.id)
    return pod


async def test_pods_that_go_between_a_plugin_that_dies_and_the_next_are_told_to_neither(
    agent, client, runtime
) -> None:
    for number in range(30):
        gone = await client.run_pod(f"gone-{number}")
        await client.start(await client.create(gone, "c"))
        async with plugin(agent, wait=False, Synchronize={"close": True}) as died:
            await died.line("closed")
        await until_not_asking(agent)
        await client.remove_pod(gone.id)
        async with plugin(agent, mask=NO_VALIDATOR) as told:
            new = await a_whole_life(client, f"new-{number}")
            await told.become(*A_WHOLE_LIFE)
            assert told_about(told, new.id) == A_WHOLE_LIFE
        await until_not_asking(agent)


async def test_what_is_still_to_be_told_to_an_earlier_plugin_is_no_business_of_a_later_one(
    agent, client, runtime, pod, go_on
) -> None:
    await client.start(await client.create(pod, "c"))
    waits = {"until": str(go_on)}
    async with plugin(agent, "10-slow", mask=NO_VALIDATOR, RemoveContainer=waits) as slow:
        removing = asyncio.ensure_future(client.remove_pod(pod.id))
        await slow.line("RemoveContainer")
        assert runtime.pods == {}
        async with plugin(agent, "20-late", mask=NO_VALIDATOR, wait=False) as late:
            await late.line("Configure")
            go_on.touch()
            assert (await late.line("Synchronize"))["message"] == {}
            await removing
            await slow.become("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")
            await a_whole_life(client, "new")
            await late.become(*A_WHOLE_LIFE)


async def test_a_pod_that_is_being_stopped_when_a_plugin_comes_is_shown_and_told_to_its_end(
    agent, client, runtime, pod, go_on
) -> None:
    container = await client.create(pod, "c")
    await client.start(container)
    waits = {"until": str(go_on)}
    async with plugin(agent, "10-slow", mask=NO_VALIDATOR, StopContainer=waits) as slow:
        removing = asyncio.ensure_future(client.remove_pod(pod.id))
        await slow.line("StopContainer")
        async with plugin(agent, "20-late", mask=NO_VALIDATOR, wait=False) as late:
            await late.line("Configure")
            go_on.touch()
            shown = (await late.line("Synchronize"))["message"]
            await removing
            if "pods" in shown:  # it is at the gate before the stop is over
                assert "containers" not in shown
                await late.become("StopPodSandbox", "RemoveContainer", "RemovePodSandbox")


async def test_a_pod_made_past_us_ends_for_the_plugins_that_were_shown_it_only(
    agent, client, runtime
) -> None:
    async with CriClient(runtime.socket) as direct, plugin(agent, "10-before", mask=NO_VALIDATOR) as before:
        past = await direct.run_pod("past")
        await direct.start(await direct.create(past, "c"))
        async with plugin(agent, "20-after", mask=NO_VALIDATOR) as after:
            await direct.remove_pod(past.id)
            async with plugin(agent, "30-last", mask=NO_VALIDATOR):
                ends = A_WHOLE_LIFE[-4:]
                await after.become("StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox")
                assert sorted(told_about(after, past.id)) == sorted(ends)
        await a_whole_life(client, "new")
        await before.become(*A_WHOLE_LIFE)
        assert told_about(before, past.id) == []
