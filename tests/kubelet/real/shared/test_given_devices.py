"""Containers and balloons are near the devices that kubelet has given to them: CDI's, which nothing else tells of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from policies.machine.cpus import parse_cpus
from tests.e2e.node import until
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.device_plugin import RESOURCE, device_plugin
from tests.kubelet.real.shared.node import SHARED, SharedNode
from tests.machines import machine

pytestmark = SHARED

#: The NUMA node of each; none is where a balloon begins by itself.
DEVICES = {"first": 2, "second": 5}
GIVEN = {RESOURCE: "1"}
KIND = {
    "Name": "near",
    "Namespaces": ["default"],
    "PreferNewBalloons": True,
    "PreferCloseToDevices": [f"podresourceapi:{RESOURCE.partition('/')[0]}/*"],
}


@contextlib.asynccontextmanager
async def balloons(node: SharedNode) -> AsyncIterator[None]:
    """The daemon with such balloons, and afterwards as it was."""

    async def policy() -> Any:
        return (await node.daemon.ask("report"))["policy"]

    before = await policy()
    node.agent.write_config({"policy": {"Active": "balloons", "balloons": {"BalloonTypes": [KIND]}}})
    node.agent.reload()
    await until(policy, lambda found: found == "balloons", TIMEOUT_S)
    try:
        yield
    finally:
        await node.until_nothing_is_left()
        node.agent.write_config({"policy": {"Active": before, "balloons": {"BalloonTypes": []}}})
        node.agent.reload()
        await until(policy, lambda found: found == before, TIMEOUT_S)


async def nodes_of(node: SharedNode, name: str) -> set[int]:
    """The NUMA nodes of the container of a new pod that is given a device."""
    cpus = parse_cpus(node.told(await node.alone(name, cpu="1", limit="4", limits=GIVEN)))
    return {cpu.numa for cpu in machine(MACHINE).cpus if cpu.cpu in cpus}


async def test_any_container_is_near_its_cdi_device(node: SharedNode) -> None:
    async with device_plugin(node, DEVICES) as plugin:
        near = [await nodes_of(node, name) for name in ("one", "two")]
        assert near == [{DEVICES[given]} for given in plugin.allocated]
        await node.all_agree()


async def test_balloons_are_near_the_devices_that_kubelet_gave(node: SharedNode) -> None:
    async with balloons(node), device_plugin(node, DEVICES) as plugin:
        near = [await nodes_of(node, name) for name in ("one", "two")]
        assert near == [{DEVICES[given]} for given in plugin.allocated]
        assert sorted(plugin.allocated) == sorted(DEVICES)
        # A container without a device is of the same type, and anywhere.
        assert parse_cpus(node.told(await node.alone("none", cpu="1", limit="4")))
