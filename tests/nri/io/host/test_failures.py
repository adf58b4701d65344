"""A plugin that dies, is slow or lies is given up; requests go on without it, unless it is one that must be there."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import mask_of
from cri_proxy.nri.io.host.host import PluginRefused
from cri_proxy.nri.subscription import MASK_ALL
from cri_proxy.nri.validate import DefaultRules
from tests.nri.io.host.hosting import CONTAINER, POD, hosting
from tests.nri.io.host.plugins import HANG_S

REQUESTS = MASK_ALL & ~mask_of([nri.VALIDATE_CONTAINER_ADJUSTMENT])
#: After which a plugin is given up, where that is awaited; a good one has answered by then.
SILENCE_S = 1.0
#: How a plugin fails in the midst of a call, and what is said of it.
FATAL: dict[str, tuple[dict[str, Any], str]] = {
    "it does not answer": ({"hang": True}, "was not answered within 1 s"),
    "its process ends": ({"exit": 1}, "the other side has closed the connection|reset"),
    "it closes the connection": ({"close": True}, "the other side has closed the connection|reset"),
    "its answer cannot be read": ({"raw": "ffffff"}, "its [A-Za-z]+Response cannot be read"),
}


@pytest.mark.parametrize("how", FATAL)
async def test_a_create_goes_on_without_a_plugin_when(it, how) -> None:
    action, words = FATAL[how]
    wants = {"CreateContainer": [{"reply": {"adjust": {"annotations": {"k": "v"}}}}]}
    async with (
        it.external("10-bad", {"mask": REQUESTS, "actions": {"CreateContainer": [action]}}),
        it.external("20-good", {"mask": REQUESTS, "actions": wants}),
    ):
        await it.has("10-bad", "20-good")
        it.set(request_timeout_s=SILENCE_S if "hang" in action else HANG_S)
        merged = await it.host.create(POD, CONTAINER)
        assert merged.adjust.annotations == {"k": "v"}
        await it.has("20-good")
        (gone,) = (e for e in it.log.entries if e["event"] == "an NRI plugin is gone")
        assert gone["plugin"] == "10-bad"
        assert pytest.approx(1) == it.metrics.registry.get_sample_value(
            "cri_resmgr_nri_plugins_dropped_total", {"plugin": "10-bad"}
        )
        assert re.search(words, gone["reason"])


@pytest.mark.parametrize("how", FATAL)
async def test_no_event_of_a_pods_life_fails_with_a_plugin_when(it, how) -> None:
    action, _ = FATAL[how]
    nothing = nri.LinuxResources()
    calls = ("RunPodSandbox", "UpdatePodSandbox", "StartContainer", "UpdateContainer", "StopContainer")
    host = it.host
    asking = (
        lambda: host.run_pod(POD),
        lambda: host.update_pod(POD, nothing, nothing),
        lambda: host.start_container(POD, CONTAINER),
        lambda: host.update(POD, CONTAINER, nothing),
        lambda: host.stop(POD, CONTAINER),
    )
    for call, ask in zip(calls, asking):
        # Of these a plugin answers nothing that would have to be read.
        if "raw" in action and call in ("RunPodSandbox", "UpdatePodSandbox", "StartContainer"):
            continue
        async with it.external("10-bad", {"actions": {call: [action]}}):
            await it.has("10-bad")
            it.set(request_timeout_s=0.1 if "hang" in action else HANG_S)
            await ask()
            await it.has()
            it.set(request_timeout_s=HANG_S)


async def test_a_plugin_that_has_died_while_nothing_happened_is_not_missed(it) -> None:
    script = {"mask": REQUESTS}
    async with it.external("10-foo", script) as plugin:
        await it.has("10-foo")
        await plugin.kill()
        assert (await it.host.create(POD, CONTAINER)).adjust == nri.ContainerAdjustment()
        await it.has()
        assert not it.host.connected


@pytest.mark.parametrize("how", FATAL)
async def test_whose_answer_must_be_there_fails_the_request_with_it(tmp_path, how) -> None:
    action, words = FATAL[how]
    script = {"mask": REQUESTS, "actions": {"CreateContainer": [action]}}
    async with hosting(tmp_path, fail_closed=("b*",)) as it, it.external("10-bad", script):
        await it.has("10-bad")
        it.set(request_timeout_s=SILENCE_S if "hang" in action else HANG_S)
        with pytest.raises(
            PluginRefused, match=f'^plugin "10-bad" did not answer CreateContainer: .*({words})'
        ):
            await it.host.create(POD, CONTAINER)
        # It is gone all the same; the next create does not wait for it.
        await it.has()
        await it.host.create(POD, CONTAINER)


async def test_a_required_plugin_that_dies_in_a_request_fails_it_and_those_after_it(tmp_path) -> None:
    script = {"mask": REQUESTS, "actions": {"RunPodSandbox": [{"exit": 1}]}}
    async with (
        hosting(tmp_path, rules=DefaultRules(required_plugins=("10-bad",))) as it,
        it.external("10-bad", script),
    ):
        await it.has("10-bad")
        with pytest.raises(PluginRefused, match='plugin "10-bad" did not answer RunPodSandbox'):
            await it.host.run_pod(POD)
        with pytest.raises(PluginRefused, match='required plugin "10-bad" not present'):
            await it.host.run_pod(POD)


@pytest.mark.parametrize("how", FATAL)
async def test_a_validator_that_does_not_judge_fails_the_create_and_is_gone_when(it, how) -> None:
    action, words = FATAL[how]
    script = {"actions": {"ValidateContainerAdjustment": [action]}}
    async with it.external("50-x", script):
        await it.has("50-x")
        it.set(request_timeout_s=SILENCE_S if "hang" in action else HANG_S)
        with pytest.raises(PluginRefused, match=f"^validator plugin 50-x failed: .*({words})"):
            await it.host.create(POD, CONTAINER)
        await it.has()
        await it.host.create(POD, CONTAINER)


async def test_a_validator_that_dies_while_it_is_asked_for_adjustments_has_not_judged(it) -> None:
    script = {"actions": {"CreateContainer": [{"exit": 1}]}}
    async with it.external("50-x", script):
        await it.has("50-x")
        with pytest.raises(PluginRefused, match="^validator plugin 50-x failed: "):
            await it.host.create(POD, CONTAINER)
        await it.has()
        await it.host.create(POD, CONTAINER)


async def test_a_slow_plugin_has_one_call_at_a_time_and_others_are_not_kept_waiting(tmp_path) -> None:
    go = tmp_path / "go"
    slow = {
        "mask": mask_of([nri.POST_CREATE_CONTAINER]),
        "actions": {"PostCreateContainer": [{"until": str(go)}]},
    }
    quick = {"mask": mask_of([nri.RUN_POD_SANDBOX])}
    async with (
        hosting(tmp_path) as it,
        it.external("10-slow", slow) as slow_one,
        it.external("20-quick", quick) as quick_one,
    ):
        await it.has("10-slow", "20-quick")
        telling = [
            asyncio.ensure_future(it.host.notify(nri.POST_CREATE_CONTAINER, POD, CONTAINER)) for _ in range(2)
        ]
        await slow_one.log.line("PostCreateContainer")
        await it.host.run_pod(POD)
        await quick_one.log.line("RunPodSandbox")
        assert slow_one.log.events() == ["PostCreateContainer"]
        go.touch()
        await asyncio.gather(*telling)
        assert slow_one.log.events() == ["PostCreateContainer"] * 2


async def test_creates_are_asked_about_one_after_another(tmp_path) -> None:
    go = tmp_path / "go"
    waits = {"mask": REQUESTS, "actions": {"CreateContainer": [{"until": str(go)}, {}]}}
    async with (
        hosting(tmp_path) as it,
        it.external("10-first", {"mask": REQUESTS}) as first,
        it.external("20-waits", waits) as second,
    ):
        await it.has("10-first", "20-waits")
        creating = [asyncio.ensure_future(it.host.create(POD, CONTAINER)) for _ in range(2)]
        await second.log.line("CreateContainer")
        # The second create has not begun: what it brings could be about the same containers.
        assert first.log.events() == ["CreateContainer"]
        go.touch()
        await asyncio.gather(*creating)
        assert first.log.events() == second.log.events() == ["CreateContainer"] * 2


async def test_a_caller_that_gives_up_leaves_everything_as_it_was(tmp_path) -> None:
    go = tmp_path / "go"
    waits = {"mask": REQUESTS, "actions": {"CreateContainer": [{"until": str(go)}, {}]}}
    async with hosting(tmp_path) as it, it.external("10-foo", waits) as plugin:
        await it.has("10-foo")
        creating = asyncio.ensure_future(it.host.create(POD, CONTAINER))
        await plugin.log.line("CreateContainer")
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        go.touch()
        await it.host.create(POD, CONTAINER)
        assert it.titles() == ["10-foo"]
