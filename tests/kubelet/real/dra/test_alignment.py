"""CPUs beside a device of another driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.node import until
from tests.kubelet.real.dra.node import DRIVER, ClaimNode, pod_of, share, user
from tests.kubelet.real.dra.second_driver import NEAR, NUMA_NODE, OTHER, second_driver
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SHARED
from tests.machines import machine

pytestmark = SHARED


@pytest.mark.parametrize("wanted", [0, 2], ids=lambda wanted: f"numa-node-{NEAR[wanted]}")
async def test_cpus_are_beside_a_device_of_another_driver(
    node: ClaimNode, credentials: Path, wanted: int
) -> None:
    async with second_driver(node, credentials):
        numa = NEAR[wanted]
        only = f'device.attributes["resource.kubernetes.io"].numaNode == {numa}'
        gpu = {"deviceClassName": OTHER, "selectors": [{"cel": {"expression": only}}]}
        requests = share(4), {"name": "gpu", "exactly": gpu}
        await node.claim("near", *requests, constraints=[{"matchAttribute": NUMA_NODE}])
        ids = await node.start(pod_of("web", user("main", "near"), claims=["near"]))
        given = {each["driver"]: each["device"] for each in await node.allocation("near")}
        assert given.keys() == {DRIVER, OTHER}
        assert given[OTHER] == f"gpu-{wanted}"
        own = await node.claimed("near")
        assert len(own) == 4
        assert {cpu.numa for cpu in machine(MACHINE).cpus if cpu.cpu in own} == {numa}
        await node.until_told(ids["main"], lambda cpus: cpus == own)
        # What the other driver has its devices bring is there as well.
        assert f"GPU_DEVICE_{wanted}" in await node.inside(ids["main"], "env")
        await node.claims_agree()
        await node.remove("web")
        await until(node.held, lambda held: not held.books | held.kubelet, TIMEOUT_S)
