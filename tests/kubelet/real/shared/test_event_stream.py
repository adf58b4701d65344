"""Kubelet with the runtime's event stream in place of its lists, as the gate EventedPLEG has it."""

from __future__ import annotations

from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S, UNTIL_TOLD
from tests.kubelet.real.shared.node import SHARED, SharedNode, container, pod

pytestmark = SHARED

CONNECTED, ERRORS = "evented_pleg_connection_success_count", "evented_pleg_connection_error_count"


async def test_kubelet_hears_of_a_containers_end_by_the_stream_through_us(node: SharedNode) -> None:
    assert await node.metric(f"kubelet_{CONNECTED}") == 0
    async with node.kubelet_with(featureGates={"EventedPLEG": True}):
        await until(lambda: node.metric(f"kubelet_{CONNECTED}"), timeout_s=TIMEOUT_S)
        main = container(cpu="1", limit="4", command=["sh", "-c", UNTIL_TOLD])
        first = (await node.start(pod("web", main)))["main"]
        place = await node.cpus(first)
        await node.end(first)
        second = (await node.ids("web", "main", but=[first]))["main"]
        assert await node.cpus(second) == place
        # A daemon that is killed ends the stream; kubelet takes it up again from the next.
        assert await node.metric(f"kubelet_{ERRORS}") == 0
        await node.agent.kill()
        await node.agent.start()
        await until(lambda: node.metric(f"kubelet_{ERRORS}"), timeout_s=TIMEOUT_S)
        await node.end(second)
        third = (await node.ids("web", "main", but=[first, second]))["main"]
        assert await node.cpus(third) == place
        await node.all_agree()
