"""Containers that start while the daemon is away, where kubelet's calls do not pass through it."""

from __future__ import annotations

import os
import time

import pytest

from cri_proxy.front_ends.late_placement import LONGEST_PAUSE_S, LOOKED
from tests.e2e.node import until
from tests.kubelet.real.dra.node import ClaimNode, pod_of, share, user
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SHARED, container, pod
from tests.kubelet.real.shared.test_pods import ALL

pytestmark = SHARED

FRONT_ENDS = ("nri", pytest.param("standalone", marks=pytest.mark.long))


@pytest.mark.parametrize(
    "pause_s",
    [
        pytest.param(0.0, id="a while"),
        pytest.param(2 * LONGEST_PAUSE_S, id="too long", marks=pytest.mark.long),
    ],
)
async def test_what_started_meanwhile_has_its_claims_cpus_or_leaves_them_once_the_daemon_is_back(
    node: ClaimNode, pause_s: float
) -> None:
    async def has_looked() -> bool:
        return (node.agent.state / LOOKED).exists()

    await node.claim("both", share(2))
    first = await node.start(pod_of("first", user("main", "both"), claims=["both"]))
    own = await node.claimed("both")
    await node.until_told(first["main"], lambda cpus: cpus == own)
    # A daemon that ended before it had looked once tells nothing of what has come since from what ran before.
    await until(has_looked, bool, TIMEOUT_S)
    await node.agent.kill()
    # Kubelet knows the claim as prepared, and asks no driver for another pod of it.
    second = await node.start(pod_of("second", user("main", "both"), claims=["both"]))
    other = await node.start(pod("other", container(cpu="500m", limit="100")))
    assert {node.told(each) for each in (second["main"], other["main"])} == {ALL}
    assert node.told(first["main"]) == node.told_so_far(first["main"])[-1]
    if pause_s:
        # So long ago that what has come since is not told from what ran before: it is adopted.
        then = time.time() - pause_s
        os.utime(node.agent.state / LOOKED, (then, then))
    await node.agent.start()
    await node.until_told(second["main"], lambda cpus: cpus == own)
    await node.until_told(other["main"], lambda cpus: bool(cpus) and not cpus & own)
    if pause_s:
        await node.remove("other")
    await node.claims_agree()
