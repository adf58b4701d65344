"""A node that registers with a real API server, its kubelet behind our daemon."""

from __future__ import annotations

import pytest

from policies.machine.cpus import parse_cpus
from tests.cluster.real.node import RegisteredNode
from tests.kubelet.real.test_placement import SIZES

pytestmark = pytest.mark.cluster


async def test_pods_of_the_api_server_have_the_rung_of_their_size(registered: RegisteredNode) -> None:
    node = await registered.until_registered()
    assert node["status"]["capacity"]["cpu"] == "128"
    found = {}
    for name, (pod, _, _) in SIZES.items():
        container = await registered.run(name, **pod)
        cpus = parse_cpus(await registered.cpus(container))
        found[name] = ((await registered.row(container))["level"], len(cpus))
    assert found == {name: (level, count) for name, (_, level, count) in SIZES.items()}
    await registered.all_is_well()
