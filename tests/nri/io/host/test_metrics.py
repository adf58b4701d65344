"""Of every operation: how often, with what result, in what time, and what was asked for."""

from __future__ import annotations

from typing import Optional

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.instruments import Registry
from cri_proxy.metrics import MOST_LABELS, OTHERS, NriMetrics
from cri_proxy.nri.dispatch import event_name
from cri_proxy.nri.io.host.host import PluginRefused
from tests.nri.io.host.hosting import CONTAINER, POD, Hosting, shares
from tests.nri.io.host.test_events import everything

OPERATIONS = ("Configure", "Synchronize", *(event_name(event) for event in range(1, nri.LAST)))


def value(it: Hosting, name: str, **labels: str) -> Optional[float]:
    return it.metrics.registry.get_sample_value(f"cri_resmgr_nri_{name}", {"plugin": "10-foo", **labels})


async def test_every_operation_is_counted_by_result_and_timed(it) -> None:
    async with it.external("10-foo"):
        await it.has("10-foo")
        await everything(it.host)
        for operation in OPERATIONS:
            assert value(it, "calls_total", event=operation, result="ok") == 1, operation
            assert value(it, "call_seconds_count", event=operation) == 1, operation


async def test_errors_and_silence_are_counted_apart_and_only_answers_are_timed(it) -> None:
    script = {"actions": {"RunPodSandbox": [{"error": "no"}, {"hang": True}]}}
    async with it.external("10-foo", script):
        await it.has("10-foo")
        with pytest.raises(PluginRefused):
            await it.host.run_pod(POD)
        it.set(request_timeout_s=0.1)
        await it.host.run_pod(POD)
        assert value(it, "calls_total", event="RunPodSandbox", result="error") == 1
        assert value(it, "calls_total", event="RunPodSandbox", result="timeout") == 1
        assert value(it, "call_seconds_count", event="RunPodSandbox") == 1
        assert value(it, "plugins_dropped_total") == 1


async def test_what_is_asked_for_is_counted_by_kind(it) -> None:
    update = {"reply": {"update": [shares("c2", 1)]}}
    adjust = {"adjust": {"annotations": {"k": "v"}}, "update": [shares("c2", 1)]}
    evict = {"evict": [{"container_id": "c2", "reason": "no"}]}
    script = {
        "actions": {
            "Synchronize": [update],
            "CreateContainer": [{"reply": {**adjust, **evict}}],
            "UpdateContainer": [update],
            "StopContainer": [update],
        }
    }
    async with it.external("10-foo", script):
        await it.has("10-foo")
        await it.host.create(POD, CONTAINER)
        await it.host.update(POD, CONTAINER, nri.LinuxResources())
        await it.host.stop(POD, CONTAINER)
        kinds = {kind: value(it, "adjustments_total", kind=kind) for kind in ("adjust", "update", "evict")}
        assert kinds == {"adjust": 1, "update": 4, "evict": 1}


def test_plugins_that_make_up_names_share_a_label() -> None:
    metrics = NriMetrics(Registry())
    assert metrics.label("10-foo") == "10-foo"
    labels = {metrics.label(f"10-p{number}") for number in range(2 * MOST_LABELS)}
    assert len(labels) == MOST_LABELS and OTHERS in labels
    assert metrics.label("10-foo") == "10-foo"
