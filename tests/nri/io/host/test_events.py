"""Each plugin gets exactly the events it has asked for, in index order; older plugins get them as StateChange."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import event_name, mask_of
from cri_proxy.nri.io.host.host import NriHost, PluginRefused
from cri_proxy.nri.subscription import MASK_ALL
from tests.nri.io.host.hosting import CONTAINER, POD

POD_EVENTS = (
    nri.RUN_POD_SANDBOX,
    nri.UPDATE_POD_SANDBOX,
    nri.POST_UPDATE_POD_SANDBOX,
    nri.STOP_POD_SANDBOX,
    nri.REMOVE_POD_SANDBOX,
)
CONTAINER_REQUESTS = (nri.CREATE_CONTAINER, nri.UPDATE_CONTAINER, nri.STOP_CONTAINER)
CONTAINER_EVENTS = (
    nri.POST_CREATE_CONTAINER,
    nri.START_CONTAINER,
    nri.POST_START_CONTAINER,
    nri.POST_UPDATE_CONTAINER,
    nri.REMOVE_CONTAINER,
)
#: In the order in which ``everything`` makes them happen.
ALL = (
    "RunPodSandbox",
    "UpdatePodSandbox",
    "PostUpdatePodSandbox",
    "CreateContainer",
    "ValidateContainerAdjustment",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
)


async def everything(host: NriHost) -> None:
    """The life of a pod with one container."""
    nothing = nri.LinuxResources()
    await host.run_pod(POD)
    await host.update_pod(POD, nothing, nothing)
    await host.notify(nri.POST_UPDATE_POD_SANDBOX, POD)
    await host.create(POD, CONTAINER)
    await host.notify(nri.POST_CREATE_CONTAINER, POD, CONTAINER)
    await host.start_container(POD, CONTAINER)
    await host.notify(nri.POST_START_CONTAINER, POD, CONTAINER)
    await host.update(POD, CONTAINER, nothing)
    await host.notify(nri.POST_UPDATE_CONTAINER, POD, CONTAINER)
    await host.stop(POD, CONTAINER)
    await host.notify(nri.REMOVE_CONTAINER, POD, CONTAINER)
    await host.notify(nri.STOP_POD_SANDBOX, POD)
    await host.notify(nri.REMOVE_POD_SANDBOX, POD)


async def test_with_no_plugins_every_request_succeeds(it) -> None:
    await everything(it.host)


SUBSCRIPTIONS: dict[str, tuple[int, ...]] = {
    **{event_name(event): (event,) for event in range(1, nri.LAST)},
    "all pod events": POD_EVENTS,
    "all container requests": CONTAINER_REQUESTS,
    "all container requests and events": (*CONTAINER_REQUESTS, *CONTAINER_EVENTS),
    "everything": tuple(range(1, nri.LAST)),
}


async def test_each_of_many_plugins_gets_exactly_what_it_has_subscribed_to(it) -> None:
    async with contextlib.AsyncExitStack() as stack:
        starts = []
        for number, events in enumerate(SUBSCRIPTIONS.values()):
            starts.append(it.external(f"{number:02}-p", {"mask": mask_of(events)}, wait=False))
        plugins = await asyncio.gather(*(stack.enter_async_context(start) for start in starts))
        await it.has(*(f"{number:02}-p" for number in range(len(SUBSCRIPTIONS))))
        await everything(it.host)
        for plugin, (name, events) in zip(plugins, SUBSCRIPTIONS.items()):
            wanted = {event_name(event) for event in events}
            assert plugin.log.events() == [event for event in ALL if event in wanted], name


async def test_plugins_are_asked_in_the_order_of_their_indices(it, tmp_path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        # The order in which they connect says nothing.
        for title in ("20-p", "99-p", "00-p"):
            script = {
                "actions": {
                    "CreateContainer": [{"reply": {"adjust": {"annotations": {f"by {title}": title}}}}]
                }
            }
            await stack.enter_async_context(it.external(title, script))
        await it.has("00-p", "20-p", "99-p")
        await everything(it.host)
        logs = {path.name[:4]: path for path in tmp_path.glob("*-p.*.jsonl")}
        # What a plugin sees of the container names the plugins that were asked before it.
        seen = {title: _created(path) for title, path in logs.items()}
        assert seen == {
            "00-p": {},
            "20-p": {"by 00-p": "00-p"},
            "99-p": {"by 00-p": "00-p", "by 20-p": "20-p"},
        }


def _created(path: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (created,) = (line for line in lines if line["event"] == "CreateContainer")
    return dict(created["message"]["container"].get("annotations", {}))


async def test_the_same_index_goes_by_name_and_then_by_who_came_first(it) -> None:
    async with contextlib.AsyncExitStack() as stack:
        pids = []
        for title in ("10-b", "10-a", "10-a"):
            plugin = await stack.enter_async_context(it.external(title))
            pids.append(plugin.pid)
        await it.has("10-a", "10-a", "10-b")
        assert [shown["pid"] for shown in it.host.plugins()] == [pids[1], pids[2], pids[0]]


BY_STATE_CHANGE = (
    "RunPodSandbox",
    "PostUpdatePodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "PostUpdateContainer",
    "RemoveContainer",
)


async def test_a_plugin_that_does_not_know_the_calls_gets_state_changes_and_is_asked_once_only(it) -> None:
    script = {"unknown": BY_STATE_CHANGE, "mask": MASK_ALL}
    async with it.external("10-old", script) as old:
        await it.has("10-old")
        await everything(it.host)
        calls = it.host.plugins()[0]["calls"]
        await everything(it.host)
        changes = [line["message"] for line in old.log.lines() if line["event"] == "StateChange"]
        told = ["".join(part.capitalize() for part in change["event"].split("_")) for change in changes]
        assert told == [event for event in ALL if event in BY_STATE_CHANGE] * 2
        assert all(change["pod"]["id"] == POD.id for change in changes)
        with_container = {change["event"] for change in changes if change.get("container")}
        assert with_container == {
            event for event in map(_enum, BY_STATE_CHANGE) if event.endswith("_CONTAINER")
        }
        (shown,) = it.host.plugins()
        assert sorted(shown["by_state_change"]) == sorted(BY_STATE_CHANGE)
        # That is no failure of the plugin's; and each call was tried once.
        assert (shown["failures"], shown["last_error"]) == ({}, "")
        assert shown["calls"] == 2 * calls - len(("Configure", "Synchronize"))
        assert old.log.events().count("CreateContainer") == 2


def _enum(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in name).lstrip("_").upper()


async def test_a_state_change_may_refuse_what_the_call_may_refuse(it) -> None:
    script = {
        "unknown": ["RunPodSandbox", "PostStartContainer"],
        "actions": {"StateChange": [{"error": "no"}]},
    }
    async with it.external("10-old", script):
        await it.has("10-old")
        with pytest.raises(PluginRefused, match='plugin "10-old" failed RunPodSandbox: no'):
            await it.host.run_pod(POD)
        await it.host.notify(nri.POST_START_CONTAINER, POD, CONTAINER)


@pytest.mark.parametrize("call", ["CreateContainer", "UpdateContainer", "UpdatePodSandbox"])
async def test_a_call_that_every_plugin_has_known_is_not_told_otherwise(it, call) -> None:
    async with it.external("10-odd", {"unknown": [call]}) as odd:
        await it.has("10-odd")
        with pytest.raises(PluginRefused, match=f'plugin "10-odd" failed {call}: method {call}'):
            await everything(it.host)
        assert "StateChange" not in odd.log.events()
        assert it.titles() == ["10-odd"]


REFUSES = ("RunPodSandbox", "UpdatePodSandbox", "CreateContainer", "StartContainer", "UpdateContainer")


async def test_an_error_fails_what_can_still_be_failed_and_is_only_logged_otherwise(it) -> None:
    for_all = {call: [{"error": f"not {call}"}] for call in ALL if call != "ValidateContainerAdjustment"}
    script = {"mask": MASK_ALL & ~mask_of([nri.VALIDATE_CONTAINER_ADJUSTMENT]), "actions": for_all}
    nothing = nri.LinuxResources()
    async with it.external("10-no", script), it.external("20-p") as later:
        await it.has("10-no", "20-p")
        host = it.host
        refused = (
            host.run_pod(POD),
            host.update_pod(POD, nothing, nothing),
            host.create(POD, CONTAINER),
            host.start_container(POD, CONTAINER),
            host.update(POD, CONTAINER, nothing),
        )
        for call, asking in zip(REFUSES, refused):
            with pytest.raises(PluginRefused, match=f'^plugin "10-no" failed {call}: not {call}$'):
                await asking
        # A plugin behind the one that fails a call is not asked; and no plugin is disconnected for it.
        assert later.log.events() == []
        for event in (*CONTAINER_EVENTS, nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX):
            if event != nri.START_CONTAINER:
                await host.notify(event, POD, None if "POD" in nri.Event.Name(event) else CONTAINER)
        assert await host.stop(POD, CONTAINER) == []
        # What has happened has happened, for the next plugin too.
        assert len(later.log.events()) == 7
        assert it.titles() == ["10-no", "20-p"]
