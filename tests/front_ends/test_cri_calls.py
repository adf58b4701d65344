"""The calls that are intercepted, and what is done with each."""

from __future__ import annotations

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.front_ends.cri_calls import _KINDS
from cri_proxy.relay.interception import INTERCEPTED, CallEnd
from cri_proxy.relay.status import Code
from tests.front_ends.test_placer_properties import CriCalls, Pod, created, pod_resources


def test_each_intercepted_method_has_a_class() -> None:
    assert {*_KINDS, "RestorePod", "GetContainerEvents"} == INTERCEPTED


@pytest.mark.parametrize(("code", "charged"), [(Code.UNIMPLEMENTED, 16_000), (Code.INTERNAL, 8_000)])
async def test_a_pod_is_resized_also_where_the_runtime_does_not_know_the_call(
    code: int, charged: int
) -> None:
    """Kubelet goes on with the containers then (kuberuntime_container.go: updatePodSandboxResources)."""
    front_end, pod = CriCalls("hygon"), Pod("p")
    pod.config.linux.cgroup_parent = "/kubepods/podp"
    pod.config.linux.resources.CopyFrom(pod_resources(8000))
    await front_end.pod(pod)
    for key in ("p-a", "p-b"):
        await front_end.create(key, created(key, 8000), "create")
    call = front_end.interceptor.open("/runtime.v1.RuntimeService/UpdatePodSandboxResources")
    assert call is not None
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p", resources=pod_resources(16_000))
    await call.request(request.SerializeToString())
    await call.ended(CallEnd.REFUSED, code, "no")
    grants = front_end.engine.grants
    assert sum(grant.container.resources.milli_request for grant in grants.values()) == charged
