"""A container is placed near the device that kubelet says it has given to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import until
from tests.machines import HYGON_7285_2S, machine
from tests.pod_resources import PodResourcesServer

GPU = "nvidia.com/gpu"
KIND = {
    "Name": "gpu",
    "Namespaces": ["default"],
    "PreferNewBalloons": True,
    "PreferCloseToDevices": ["podresourceapi:*/gpu"],
}


def config(kubelet: Path) -> dict[str, Any]:
    return {
        "policy": {"Active": "balloons", "balloons": {"BalloonTypes": [KIND]}},
        "kubelet": {"directory": str(kubelet)},
    }


async def placed(agent: Agent, runtime: FakeRuntime, *pods: str, **uses: Any) -> list[frozenset[int]]:
    """The NUMA nodes of a container in each of these pods."""
    await until(agent, lambda status: "cri_resmgr_resyncs_total{result=ok}" in status["counters"])
    found = []
    async with CriClient(agent.socket) as client:
        for name in pods:
            made = await client.create(await client.run_pod(name), "app", cpu_request=2000, **uses)
            cpus = parse_cpus(runtime.containers[made].resources.cpuset_cpus)
            found.append(frozenset(cpu.numa for cpu in machine(HYGON_7285_2S).cpus if cpu.cpu in cpus))
    return found


async def test_containers_are_near_what_kubelet_gave_them(runtime: FakeRuntime, tmp_path: Path) -> None:
    kubelet = PodResourcesServer({f"default/a/app/{GPU}": (5,), f"default/b/app/{GPU}": (3,)})
    await kubelet.start(tmp_path / "pod-resources/kubelet.sock")
    async with Agent(runtime.socket, machine(HYGON_7285_2S), config(tmp_path)) as agent:
        assert (await placed(agent, runtime, "a", "b", "none"))[:2] == [{5}, {3}]
    await kubelet.stop()


@pytest.mark.parametrize(
    ("uses", "is_asked"),
    [
        pytest.param({"cdi": ("nvidia.com/gpu=0",)}, True, id="a CDI device"),
        pytest.param({"devices": ("/dev/null",)}, True, id="a device without a place"),
        pytest.param({}, False, id="none"),
        pytest.param(
            {"cdi": ("x",), "annotations": {"cri-resmgr.io/hints": "mounts"}}, False, id="none that counts"
        ),
    ],
)
async def test_kubelet_is_asked_for_devices_that_the_system_does_not_know(
    runtime: FakeRuntime, tmp_path: Path, uses: dict[str, Any], is_asked: bool
) -> None:
    kubelet = PodResourcesServer({f"default/a/app/{GPU}": (5,)})
    await kubelet.start(tmp_path / "pod-resources/kubelet.sock")
    settings = {"kubelet": {"directory": str(tmp_path)}}
    async with Agent(runtime.socket, machine(HYGON_7285_2S), settings) as agent:
        assert await placed(agent, runtime, "a", **uses) == [{5 if is_asked else 0}]
    assert bool(kubelet.asked) is is_asked
    await kubelet.stop()


@pytest.mark.parametrize("hangs", [False, True], ids=["is not there", "hangs"])
async def test_a_kubelet_that_does_not_answer_holds_no_create_up(
    runtime: FakeRuntime, tmp_path: Path, hangs: bool
) -> None:
    kubelet = PodResourcesServer({}, hangs=True)
    if hangs:
        await kubelet.start(tmp_path / "pod-resources/kubelet.sock")
    async with Agent(runtime.socket, machine(HYGON_7285_2S), config(tmp_path)) as agent:
        # Had it waited for an answer this would not end.
        assert await asyncio.wait_for(placed(agent, runtime, "a", "b"), 60) == [{0}, {0}]
    assert bool(kubelet.asked) is hangs
    await kubelet.stop()
