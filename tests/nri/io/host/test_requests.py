"""What several plugins ask for is made into one answer, or into a refusal that names the plugins in conflict."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import mask_of
from cri_proxy.nri.io.host.host import PluginRefused
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.subscription import MASK_ALL
from cri_proxy.nri.validate import DefaultRules
from tests.nri.io.host.hosting import CONTAINER, OTHER, POD, FakeWorld, Hosting, hosting, shares
from tests.nri.io.host.plugins import Plugin, eventually, external

#: All but validation.
REQUESTS = MASK_ALL & ~mask_of([nri.VALIDATE_CONTAINER_ADJUSTMENT])
VALIDATES = mask_of([nri.VALIDATE_CONTAINER_ADJUSTMENT])


@contextlib.asynccontextmanager
async def plugins(
    folder: Path, of: dict[str, dict[str, Any]], **how: Any
) -> AsyncIterator[tuple[Hosting, list[Plugin]]]:
    """A host, and plugins by title: the masks and the actions of their calls."""
    async with hosting(folder, **how) as it, contextlib.AsyncExitStack() as stack:
        scripts = [{"mask": actions.pop("mask", REQUESTS), "actions": actions} for actions in of.values()]
        starts = [external(folder, it.socket, title, script) for title, script in zip(of, scripts)]
        started = await asyncio.gather(*(stack.enter_async_context(start) for start in starts))
        await it.has(*sorted(of))
        yield it, list(started)


def creates(*, update: Any = (), **adjust: Any) -> dict[str, Any]:
    """The actions of a plugin that answers CreateContainer so."""
    return {"CreateContainer": [{"reply": {"adjust": adjust, "update": list(update)}}]}


async def test_what_two_plugins_want_of_a_new_container_is_one_answer_with_owners(tmp_path) -> None:
    wants = {
        "10-foo": creates(env=[{"key": "B", "value": "2"}], annotations={"a": "1"}),
        "00-bar": creates(linux={"resources": {"cpu": {"cpus": "2-3"}}}, args=["/other"]),
    }
    async with plugins(tmp_path, wants) as (it, (foo, _)):
        merged = await it.host.create(POD, CONTAINER)
        assert merged.adjust.annotations == {"a": "1"}
        assert [(env.key, env.value) for env in merged.adjust.env] == [("B", "2")]
        assert merged.adjust.linux.resources.cpu.cpus == "2-3"
        owners = merged.owners.owners["c1"]
        assert owners.simple[nri.CPUSetCPUs] == owners.simple[nri.Args] == "00-bar"
        assert owners.compound[nri.Env].owners == {"B": "10-foo"}
        # The one that comes later sees what the earlier one has changed.
        seen = (await foo.log.line("CreateContainer"))["message"]["container"]
        assert (seen["args"], seen["linux"]["resources"]["cpu"]["cpus"]) == (["/other"], "2-3")


async def test_two_plugins_that_set_the_same_fail_the_create_by_name_until_one_removes_first(
    tmp_path,
) -> None:
    wants = {
        "00-bar": creates(annotations={"k": "bar"}),
        "10-foo": {
            "CreateContainer": [
                {"reply": {"adjust": {"annotations": {"k": "foo"}}}},
                {"reply": {"adjust": {"annotations": {"-k": "", "k": "foo"}}}},
            ]
        },
        "20-late": {},
    }
    async with plugins(tmp_path, wants) as (it, (_, _, late)):
        words = '^plugins "10-foo" and "00-bar" both tried to set Annotations k$'
        with pytest.raises(PluginRefused, match=words):
            await it.host.create(POD, CONTAINER)
        assert late.log.events() == []
        merged = await it.host.create(POD, CONTAINER)
        assert merged.adjust.annotations == {"-k": "", "k": "foo"}


async def test_a_removal_alone_takes_out_what_an_earlier_plugin_has_set(tmp_path) -> None:
    wants = {"00-bar": creates(annotations={"k": "bar"}), "10-foo": creates(annotations={"-k": ""})}
    async with plugins(tmp_path, wants) as (it, _):
        assert (await it.host.create(POD, CONTAINER)).adjust.annotations == {"-k": ""}


async def test_updates_of_others_during_a_create_come_with_it_and_conflicts_fail_it(tmp_path) -> None:
    same = {
        "CreateContainer": [
            {"reply": {"update": [shares("c2", 20)]}},
            {"reply": {"update": [shares("c3", 30)]}},
            {"reply": {"update": [shares("c2", 20, ignore_failure=True)]}},
            {"reply": {"update": [shares("c1", 1, ignore_failure=True)]}},
        ]
    }
    wants = {"00-bar": creates(update=[shares("c2", 10)]), "10-foo": same}
    async with plugins(tmp_path, wants) as (it, _):
        words = '^plugins "10-foo" and "00-bar" both tried to set CPUShares ?$'
        with pytest.raises(PluginRefused, match=words):
            await it.host.create(POD, CONTAINER)
        both = (await it.host.create(POD, CONTAINER)).updates
        assert [(u.container_id, u.linux.resources.cpu.shares.value) for u in both] == [
            ("c2", 10),
            ("c3", 30),
        ]
        ignored = (await it.host.create(POD, CONTAINER)).updates
        assert [(u.container_id, u.linux.resources.cpu.shares.value) for u in ignored] == [("c2", 10)]
        # Not even if it may fail.
        with pytest.raises(PluginRefused, match='^plugin "10-foo" asked update of "c1" during creation$'):
            await it.host.create(POD, CONTAINER)


async def test_an_update_lies_over_the_requests_own_and_comes_last(tmp_path) -> None:
    asked = {"UpdateContainer": [{"reply": {"update": [shares("c1", 7), shares("c2", 8)]}}]}
    resources = nri.LinuxResources()
    resources.cpu.shares.value = 1
    resources.cpu.quota.value = 500
    async with plugins(tmp_path, {"10-foo": asked, "20-quiet": {}}) as (it, _):
        updates = await it.host.update(POD, CONTAINER, resources)
        assert [update.container_id for update in updates] == ["c2", "c1"]
        own = updates[-1].linux.resources.cpu
        assert (own.shares.value, own.quota.value) == (7, 500)


async def test_an_update_that_nobody_wants_otherwise_is_as_it_was_asked_for(tmp_path) -> None:
    async with plugins(tmp_path, {"20-quiet": {}}) as (it, _):
        assert await it.host.update(POD, CONTAINER, nri.LinuxResources()) == []


async def test_a_stop_brings_updates_of_others_and_leaves_conflicts_out(tmp_path) -> None:
    wants = {
        "00-bar": {"StopContainer": [{"reply": {"update": [shares("c2", 1)]}}]},
        "10-foo": {"StopContainer": [{"reply": {"update": [shares("c2", 2), shares("c3", 3)]}}]},
    }
    async with plugins(tmp_path, wants) as (it, _):
        updates = await it.host.stop(POD, CONTAINER)
        assert [(u.container_id, u.linux.resources.cpu.shares.value) for u in updates] == [
            ("c2", 1),
            ("c3", 3),
        ]
        assert any("both tried to set CPUShares" in warning for warning in it.warnings())


async def test_updates_of_no_container_and_evictions_are_passed_over(tmp_path) -> None:
    reply = {"update": [shares("", 1), shares("c2", 2)], "evict": [{"container_id": "c2", "reason": "bad"}]}
    async with plugins(tmp_path, {"10-foo": {"CreateContainer": [{"reply": reply}]}}) as (it, _):
        merged = await it.host.create(POD, CONTAINER)
        assert [update.container_id for update in merged.updates] == ["c2"]
        assert any("container_id is empty" in warning for warning in it.warnings())
        assert 'cri_resmgr_nri_adjustments_total{kind="evict",plugin="10-foo"} 1.0' in it.metrics.text()


async def test_what_synchronize_asks_for_is_applied(tmp_path) -> None:
    pod_view = FakeWorld()
    asks = {"Synchronize": [{"reply": {"update": [shares("c2", 5), shares("", 6)]}}]}
    async with plugins(tmp_path, {"10-foo": asks}, pod_view=pod_view) as (_, __):
        await eventually(lambda: len(pod_view.applied) == 1, lambda: str(pod_view.applied))
        ((who, updates),) = pod_view.applied
        assert (who, [update.container_id for update in updates]) == ("10-foo", ["c2"])


# ---------------------------------------------------------------------- validation


async def test_a_validator_sees_the_whole_and_its_word_counts(tmp_path) -> None:
    judges = {
        "mask": VALIDATES,
        "ValidateContainerAdjustment": [
            {},
            {"reply": {"reject": True, "reason": "not here"}},
            {"error": "broken"},
        ],
    }
    wants = {"10-foo": creates(annotations={"k": "v"}, update=[shares("c2", 9)]), "50-x": judges}
    async with plugins(tmp_path, wants) as (it, (_, judge)):
        await it.host.create(POD, CONTAINER)
        asked = (await judge.log.line("ValidateContainerAdjustment"))["message"]
        assert asked["container"]["id"] == "c1" and "annotations" not in asked["container"]
        assert asked["adjust"]["annotations"] == {"k": "v"}
        assert asked["update"][0]["container_id"] == "c2"
        assert asked["plugins"] == [{"name": "foo", "index": "10"}, {"name": "x", "index": "50"}]
        owners = asked["owners"]["owners"]["c1"]["compound"][str(nri.Annotations)]["owners"]
        assert owners == {"k": "10-foo"}
        for words in (
            '^validator "50-x" rejected container adjustment, reason: not here$',
            "^validator plugin 50-x failed: broken$",
        ):
            with pytest.raises(PluginRefused, match=words):
                await it.host.create(POD, CONTAINER)


async def test_validators_are_asked_all_at_once(tmp_path) -> None:
    go = tmp_path / "go"
    waits = {"ValidateContainerAdjustment": [{"until": str(go)}]}
    wants = {"50-x": {"mask": VALIDATES, **waits}, "60-y": {"mask": VALIDATES, **waits}}
    async with plugins(tmp_path, wants) as (it, judges):
        creating = asyncio.ensure_future(it.host.create(POD, CONTAINER))
        for judge in judges:
            await judge.log.line("ValidateContainerAdjustment")
        go.touch()
        await creating


async def test_the_built_in_validator_rejects_what_it_is_told_to(tmp_path) -> None:
    hooks = creates(hooks={"prestart": [{"path": "/bin/hook"}]})
    rules = DefaultRules(reject_oci_hook_adjustment=True)
    async with plugins(tmp_path, {"10-foo": hooks}, rules=rules, is_validating=True) as (it, _):
        words = (
            'validator "00-default-validator" rejected container adjustment, reason: '
            'validation error: plugin "10-foo" attempted restricted OCI hook injection'
        )
        with pytest.raises(PluginRefused, match=words):
            await it.host.create(POD, CONTAINER)


REQUIRED = 'required plugin "foo" not present'


async def test_without_a_required_plugin_no_pod_and_no_container_starts_until_it_is_back(tmp_path) -> None:
    rules = DefaultRules(required_plugins=("foo",), tolerate_missing_plugins_annotation="may-miss")
    tolerant = Shown(nri.PodSandbox(id="p2", name="plugins", annotations={"may-miss": "true"}))
    async with hosting(tmp_path, rules=rules) as it:

        async def is_refused() -> None:
            assert it.host.connected
            assert [shown["state"] for shown in it.host.plugins()] == ["missing"]
            with pytest.raises(PluginRefused, match=REQUIRED):
                await it.host.run_pod(POD)
            with pytest.raises(PluginRefused, match=REQUIRED):
                await it.host.create(POD, CONTAINER)
            await it.host.run_pod(tolerant)
            await it.host.create(tolerant, OTHER)

        await is_refused()
        async with it.external("10-foo") as plugin:
            await it.has("10-foo")
            await it.host.run_pod(POD)
            await it.host.create(POD, CONTAINER)
            await plugin.kill()
            await it.has()
        await is_refused()


async def test_a_pod_may_require_plugins_by_itself(tmp_path) -> None:
    annotations = {"required-plugins.noderesource.dev/container.app": "[bar]"}
    pod = Shown(nri.PodSandbox(id="p1", name="web", annotations=annotations))
    async with plugins(tmp_path, {"10-foo": {}}) as (it, _):
        with pytest.raises(PluginRefused, match='required plugin "bar" not present'):
            await it.host.create(pod, CONTAINER)
        await it.host.create(pod, OTHER)
        async with it.external("20-bar"):
            await it.has("10-foo", "20-bar")
            await it.host.create(pod, CONTAINER)


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize("size", [3000, 4096, 9000, 1_000_000])
async def test_requests_and_answers_of_any_size_come_whole(tmp_path, size) -> None:
    text = "x" * size
    container = Shown(nri.Container(id="c1", name="app", annotations={"in": text}))
    async with plugins(tmp_path, {"10-foo": creates(annotations={"out": text})}) as (it, (foo,)):
        merged = await it.host.create(POD, container)
        assert merged.adjust.annotations["out"] == text
        assert (await foo.log.line("CreateContainer"))["size"] > size
