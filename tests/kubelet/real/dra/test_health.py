"""What kubelet says in a pod's status of the devices that the pod's claims have."""

from __future__ import annotations

from typing import Any

from tests.cluster.real.node import PODS, found
from tests.e2e.node import until
from tests.kubelet.real.dra.node import ClaimNode, pod_of, user, whole_l3
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SHARED
from tests.machines import machine, take_offline

pytestmark = SHARED


async def health(node: ClaimNode, name: str) -> list[dict[str, Any]]:
    """Of each device of a pod's only container."""
    [container] = (await found(node.api, f"{PODS}/{name}"))["status"]["containerStatuses"]
    return [each for row in container.get("allocatedResourcesStatus", ()) for each in row["resources"]]


async def test_a_pod_says_that_cpus_of_its_claim_are_offline(node: ClaimNode) -> None:
    await node.claim("whole", whole_l3(l3=2))
    await node.start(pod_of("web", user("main", "whole"), claims=["whole"]))

    async def words() -> list[str]:
        return [each["health"] for each in await health(node, "web")]

    await until(words, lambda said: said == ["Healthy"], TIMEOUT_S)
    try:
        node.agent.write_topology(take_offline(machine(MACHINE), {max(await node.claimed("whole"))}))
        await until(words, lambda said: said == ["Unhealthy"], TIMEOUT_S)
    finally:
        node.agent.write_topology(machine(MACHINE))
    await until(words, lambda said: said == ["Healthy"], TIMEOUT_S)
