"""The daemon is killed, or a reply is lost, at each step of a pod's start: kubelet's next attempt has its place.

No other container's cpuset changes for it, and what never ran has no CPUs of its own.
"""

from __future__ import annotations

import pytest

from policies.machine.cpus import parse_cpus
from tests.e2e.node import until
from tests.kubelet.real.gate import Gate
from tests.kubelet.real.node import KubeletNode, static_pod

pytestmark = pytest.mark.kubelet

#: The call that is held, whether with its reply, whether the daemon dies, and kubelet's attempt that runs in the end.
STEPS = {
    "killed before the create is forwarded": ("CreateContainer", False, True, 0),
    "killed before the reply to the create": ("CreateContainer", True, True, 1),
    "killed after the reply to the create": ("StartContainer", False, True, 1),
    "killed before the reply to the start": ("StartContainer", True, True, 0),
    "the reply to the create is lost": ("CreateContainer", True, False, 1),
}


@pytest.fixture
async def node(stopped_node: KubeletNode) -> KubeletNode:
    """A node on which Guaranteed containers have CPUs of their own."""
    stopped_node.agent.write_config({"policy": {"Active": "topology-aware"}})
    await stopped_node.agent.start()
    await stopped_node.start_kubelet()
    return stopped_node


async def exclusive(node: KubeletNode) -> dict[str, frozenset[int]]:
    """The CPUs of each container that has its own, by id."""
    rows = await node.daemon.ask("placements")
    return {row["id"]: parse_cpus(row["exclusive"]) for row in rows if row["exclusive"]}


@pytest.mark.parametrize("step", STEPS)
async def test_the_attempt_that_runs_has_the_place_and_no_other_changes(
    node: KubeletNode, gate: Gate, step: str
) -> None:
    method, replied, is_killed, attempt = STEPS[step]
    bystander = await node.run("bystander", limit="3")
    shared = await node.run("shared", cpu="500m", limit="100")
    others = (bystander, shared)
    await node.cpus(bystander)

    held = gate.hold(method, replied=replied)
    node.host.put(static_pod("big", limit="4"))
    await held.until_reached()
    rows = await node.daemon.ask("placements")
    [place] = [row["exclusive"] for row in rows if row["pod"] == node.full_name("big")]
    assert len(parse_cpus(place)) == 4
    # Others make room for it beside the call.
    await until(lambda: node.daemon.ask("status"), lambda status: not status["updates_waiting"])
    before = {container: node.told_so_far(container) for container in others}
    if is_killed:
        await node.agent.kill()
        await held.until_ended()
        await node.agent.start()
    else:
        held.is_lost = True
        held.released.set()

    big = await node.running("big", attempt=attempt)
    assert await node.cpus(big) == place
    for _ in range(3):
        await node.until_compared()
    own = await until(lambda: exclusive(node), lambda own: set(own) == {big, bystander})
    assert own[big] == parse_cpus(place)
    assert {container: node.told_so_far(container) for container in others} == before
    await node.all_is_well()
