"""Kubelet's own static CPU manager beside us, and a device plugin whose devices have a NUMA node."""

from __future__ import annotations

import json

from policies.machine.cpus import parse_cpus
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.shared.device_plugin import NODE, RESOURCE, VARIABLE, device_plugin
from tests.kubelet.real.shared.node import CPU_STATE, EXCLUSIVE, SHARED, SharedNode
from tests.machines import machine

pytestmark = SHARED

STATIC = {
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "1s",
    "topologyManagerPolicy": "single-numa-node",
    "reservedSystemCPUs": "0,64",
}
#: The NUMA node of each.
DEVICES = {"first": 2, "second": 5}
GIVEN = {RESOURCE: "1"}


async def test_a_device_is_given_by_its_cdi_name(node: SharedNode) -> None:
    async with device_plugin(node, DEVICES) as plugin:
        main = await node.alone("web", cpu="1", limit="4", limits=GIVEN)
        [given] = plugin.allocated
        assert f"{VARIABLE}={given}" in (await node.inside(main, "env")).split()
        await node.inside(main, "test", "-c", NODE)
        assert await node.level(main) == ("ccx", 8)
        await node.all_agree()


async def test_kubelets_own_cpus_are_near_the_device_and_no_others(node: SharedNode) -> None:
    async with node.kubelet_with(**STATIC), device_plugin(node, DEVICES) as plugin:
        shared = await node.alone("shared", cpu="500m", limit="100")
        theirs = await node.alone("theirs", limit="4", limits=GIVEN)
        ours = await node.alone("ours", cpu="3", limit="4", annotations=EXCLUSIVE)
        # 1. Kubelet has chosen, near the device that it gave, and that is what the runtime was told.
        cpus = parse_cpus(node.told(theirs))
        near = {cpu.cpu for cpu in machine(MACHINE).cpus if cpu.numa == DEVICES[plugin.allocated[0]]}
        assert (len(cpus), cpus <= near) == (4, True)
        assert (await node.row(theirs))["stance"] == "kubelet-exclusive"
        # 2. Those of others are outside of them, and inside of what kubelet has left for all.
        assert len(await node.own(ours)) == 3
        await node.until_told(shared, lambda others: not others & cpus)
        state = json.loads((node.kubelet_folder / CPU_STATE).read_text())
        assert parse_cpus(node.told(shared)) | parse_cpus(node.told(ours)) <= parse_cpus(
            state["defaultCpuSet"]
        )
        # 3. So it stays when kubelet tells them their CPUs again, as it does all the time.
        for _ in range(2):
            await node.until_compared()
        assert set(node.told_so_far(theirs)) == {node.told(theirs)}
        assert parse_cpus(node.told(theirs)) == cpus
        await node.all_agree(but=[theirs])
        # 4. What is free again is for all.
        await node.remove("theirs")
        await node.until_told(shared, lambda others: others >= cpus)
        await node.all_agree()
