"""The agent ends when it is told to, at whatever point of a round that is."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from cluster.agent.io.commander import Commander, MemoryFile
from cluster.agent.io.daemon import DaemonClient
from cluster.agent.io.reporter import Reporter, Reporting
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from tests.cluster.agent.io.node import NAME, policy
from tests.functional.support import run_pod_with

SEEDS = 50
#: Steps of the event loop: some rounds of both halves.
MOST_STEPS = 600
#: Long after anything here has ended; what systemd and kubelet give is 30 s.
GRACE_S = 25.0


async def test_both_halves_end_at_any_point_of_a_round(node, client, tmp_path) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    node.create(policy=policy(), freeze=True)
    # No pause between rounds, and no pace: every moment is one of work.
    clock = Clock(time.monotonic, time.time, lambda seconds: asyncio.sleep(0), lambda: 0.0)
    for seed in range(SEEDS):
        api = Client(Access.kubeconfig(node.kubeconfig), user_agent="test")
        reporter = Reporter(
            DaemonClient(node.view), api, Reporting(NAME, 0.0, 0.0, commands_elsewhere=False), clock
        )
        file = MemoryFile(tmp_path / f"state-{seed}")
        commander = Commander(DaemonClient(node.daemon.control), api, NAME, file, clock, 0.0)
        halves = [asyncio.ensure_future(half) for half in (reporter.run(), commander.run())]
        for _ in range(random.Random(seed).randrange(MOST_STEPS)):
            await asyncio.sleep(0)
        for half in halves:
            half.cancel()
        ended, pending = await asyncio.wait(halves, timeout=GRACE_S)
        assert not pending and all(half.cancelled() for half in ended), f"seed {seed}"
        await api.close()


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
async def test_the_process_ends_well_while_it_is_at_work(node, client, calls) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    node.create(policy=policy(), freeze=True)
    await node.start("--poll=0.01", "--period=0.01")
    await node.api.until(lambda: "event=started" in node.log and len(node.api.calls) >= calls)
    assert await asyncio.wait_for(node.stop(), GRACE_S) == 0
