"""A plugin learns of all pods and containers, in parts where they are many; nothing is lost between that and its events."""

from __future__ import annotations

import asyncio
import re

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import mask_of
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.subscription import MASK_ALL
from cri_proxy.relay.interception import AnswerFailed
from tests.nri.io.host.hosting import CONTAINER, OTHER, POD, FakeWorld, hosting, shares
from tests.nri.io.host.plugins import HANG_S, eventually

REQUESTS = MASK_ALL & ~mask_of([nri.VALIDATE_CONTAINER_ADJUSTMENT])


def large_world(count: int, size: int) -> FakeWorld:
    """Containers of so many bytes each."""
    pod_view = FakeWorld()
    pod_view.containers = [
        Shown(nri.Container(id=f"c{number}", name=f"n{number}", annotations={"a": "x" * size}))
        for number in range(count)
    ]
    return pod_view


async def test_what_is_more_than_four_megabytes_comes_in_parts_and_its_updates_with_the_last(
    tmp_path,
) -> None:
    pod_view = large_world(30, 400_000)
    replies = [{}, {}, {"reply": {"update": [shares("c1", 9)]}}]
    script = {"actions": {"Synchronize": replies}}
    async with hosting(tmp_path, pod_view) as it, it.external("10-foo", script) as plugin:
        await it.has("10-foo")
        parts = [line for line in plugin.log.lines() if line["event"] == "Synchronize"]
        assert len(parts) == 3
        assert all(part["size"] < 4 << 20 for part in parts)
        assert [part["message"].get("more", False) for part in parts] == [True, True, False]
        await eventually(lambda: len(pod_view.applied) == 1, lambda: "one update")
        await it.host.create(POD, CONTAINER)
        assert plugin.log.events()[0] == "CreateContainer"


async def test_a_plugin_that_takes_no_parts_is_closed_and_hurts_nobody(tmp_path) -> None:
    async with hosting(tmp_path, large_world(12, 400_000)) as it:
        script = {"knows_more": False}
        async with it.external("10-old", script) as old, it.external("20-new"):
            await it.has("20-new")
            await old.log.line("closed")
            assert any("plugin does not handle split sync requests" in warning for warning in it.warnings())


async def test_what_fits_in_no_message_is_left_out_by_name(tmp_path) -> None:
    pod_view = large_world(1, 5_000_000)
    pod_view.containers.append(OTHER)
    async with hosting(tmp_path, pod_view) as it, it.external("10-foo") as plugin:
        await it.has("10-foo")
        told = (await plugin.log.line("Synchronize"))["message"]
        assert [one["id"] for one in told["containers"]] == [OTHER.id]
        assert [entry["ids"] for entry in it.log.entries if "ids" in entry] == [["c0"]]


async def test_a_container_created_during_it_reaches_the_plugin_as_an_event(tmp_path) -> None:
    go = tmp_path / "go"
    script = {"mask": REQUESTS, "actions": {"Synchronize": [{"until": str(go)}]}}
    async with hosting(tmp_path) as it, it.external("10-foo", script) as plugin:
        # The plugin is not listed yet, but calls must wait for it.
        assert it.titles() == [] and it.host.connected
        creating = asyncio.ensure_future(it.host.create(POD, CONTAINER))
        telling = asyncio.ensure_future(it.host.notify(nri.POST_START_CONTAINER, POD, OTHER))
        done, _ = await asyncio.wait((creating, telling), timeout=0.05)
        assert not done and plugin.log.events() == []
        go.touch()
        await asyncio.gather(creating, telling)
        assert sorted(plugin.log.events()) == ["CreateContainer", "PostStartContainer"]


async def test_what_was_due_before_the_picture_is_told_only_of_what_is_in_it(it) -> None:
    async with it.external("10-early") as early:
        await it.has("10-early")
        before = it.pod_view.pictures
        async with it.external("20-late") as late:
            await it.has("10-early", "20-late")
            await it.host.stop(POD, CONTAINER, before)
            await it.host.stop(POD, OTHER, before)
            await it.host.notify(nri.REMOVE_CONTAINER, POD, CONTAINER, before)
            await it.host.notify(nri.STOP_POD_SANDBOX, POD, picture=before)
            await it.host.notify(nri.REMOVE_CONTAINER, POD, CONTAINER, it.pod_view.pictures)
            assert early.log.events() == [
                *("StopContainer", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemoveContainer")
            ]
            assert late.log.events() == ["StopContainer", "StopPodSandbox", "RemoveContainer"]


async def test_events_under_way_end_before_the_picture_is_taken(tmp_path) -> None:
    go = tmp_path / "go"
    slow = {"mask": REQUESTS, "actions": {"CreateContainer": [{"until": str(go)}]}}
    taken: list[bool] = []
    pod_view = FakeWorld()

    async def note() -> None:
        taken.append(go.exists())

    async with hosting(tmp_path, pod_view) as it, it.external("10-slow", slow) as plugin:
        await it.has("10-slow")
        pod_view.before_snapshot = note
        creating = asyncio.ensure_future(it.host.create(POD, CONTAINER))
        await plugin.log.line("CreateContainer")
        async with it.external("20-late", wait=False) as late:
            await late.log.line("Configure")
            go.touch()
            await it.has("10-slow", "20-late")
        assert taken == [True]
        await creating


async def test_it_may_take_longer_than_a_request_but_not_for_ever_and_who_did_must_wait(tmp_path) -> None:
    script = {"actions": {"Synchronize": [{"hang": True}]}}
    async with hosting(tmp_path, request_timeout_s=1.0, sync_timeout_s=1.5) as it:
        async with it.external("10-slow", script) as slow:
            assert (await slow.log.line("Synchronize"))["timeout_s"] > 1.0
            await it.host.run_pod(POD)  # it waits, and goes on without the plugin
            await slow.log.line("closed")
            assert any("Synchronize was not answered within 1.5 s" in warning for warning in it.warnings())
        async with it.external("10-slow", script, wait=False) as again:
            refused = await again.log.line("RegisterPlugin answered")
            assert "plugin 10-slow took too long to be synchronized; it may come again in" in refused["error"]
        it.set(request_timeout_s=HANG_S, sync_timeout_s=HANG_S)
        async with it.external("20-other"):
            await it.has("20-other")


async def test_a_runtime_that_cannot_be_asked_keeps_the_plugin_out(tmp_path) -> None:
    pod_view = FakeWorld()
    pod_view.problem = AnswerFailed(14, "containerd is not there")
    async with hosting(tmp_path, pod_view) as it, it.external("10-foo", wait=False) as plugin:
        await plugin.log.line("closed")
        assert any("containerd is not there" in warning for warning in it.warnings())
        pod_view.problem = None
        async with it.external("10-foo"):
            await it.has("10-foo")


async def test_an_empty_node_is_an_empty_message(tmp_path) -> None:
    pod_view = FakeWorld()
    pod_view.pods, pod_view.containers = [], []
    async with hosting(tmp_path, pod_view) as it, it.external("10-foo") as plugin:
        await it.has("10-foo")
        assert (await plugin.log.line("Synchronize"))["size"] == 0


FAILS = {
    "says no": ({"error": "not now"}, "Synchronize: not now"),
    "dies": ({"exit": 1}, "Synchronize: the other side has closed the connection|reset"),
    "answers nonsense": ({"raw": "ff"}, "its SynchronizeResponse cannot be read"),
}


@pytest.mark.parametrize("how", FAILS)
@pytest.mark.parametrize("parts", [1, 3])
async def test_only_the_plugin_is_out_that(tmp_path, how, parts) -> None:
    action, words = FAILS[how]
    pod_view = large_world(1 if parts == 1 else 30, 400_000)
    async with hosting(tmp_path, pod_view) as it, it.external("20-good"):
        script = {"actions": {"Synchronize": [*[{}] * (parts - 1), action]}}
        async with it.external("10-bad", script, wait=False) as bad:
            await bad.log.line("Synchronize", parts)
            await eventually(lambda: "was not admitted" in str(it.warnings()), lambda: "a warning")
        assert re.search(words, str(it.warnings()))
        assert it.titles() == ["20-good"]
        await it.host.create(POD, CONTAINER)
