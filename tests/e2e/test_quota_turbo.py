"""Quota turbo on a real runtime: a throttled container's quota rises while its L3 is idle, and falls when it is not.

How idle CPUs are is what a file in the place of /proc/stat says: this machine may be busy with other tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.cgroups import cpu_quota
from tests.e2e.node import Node, until
from tests.e2e.test_quota import MILLI, QUOTA_US, run_loop

pytestmark = pytest.mark.containerd


class Processors:
    """What a daemon takes for the times of the machine's CPUs. ``idle``: whether they have nothing to do."""

    def __init__(self, folder: Path) -> None:
        self.idle = True
        self._file = folder / "root" / "proc" / "stat"
        self._file.parent.mkdir(parents=True)
        self._ticks = [0, 0]
        self.step()

    def step(self) -> None:
        self._ticks[self.idle] += 10
        busy, idle = self._ticks
        rows = [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0" for cpu in range(64)]
        beside = self._file.with_name("stat.new")
        beside.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *rows]) + "\n")
        beside.replace(self._file)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def run() -> None:
            while True:
                self.step()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_throttled_containers_quota_rises_falls_and_outlives_no_daemon(stopped_node: Node) -> None:
    node = stopped_node
    processors = Processors(node.agent.folder)
    constants = {"reconcile_interval_s": 0.5, "reconcile_poll_s": 0.1}
    node.agent.write_config({"isolation": {"turbo_most": "200%"}, "constants": constants})
    await node.agent.start()
    await node.until_runtime_is_known()
    made, pod_cgroup = await run_loop(node, "p")

    async def quota() -> int:
        return node.runtime.quota_of(made.id)

    async def pod_quota() -> int:
        return cpu_quota(pod_cgroup)

    async with processors.running():
        # 1. It rises; its pod's is out of the way. On a busy machine it may come back by itself, and rise again.
        await until(quota, lambda us: QUOTA_US < us <= 2 * QUOTA_US, timeout_s=90)
        assert await pod_quota() == -1
        [row] = [each for each in await node.ask("placements") if each["id"] == made.id]
        assert row["cpu_limit_milli"] == MILLI
        # 2. The L3 is busy: it has its own, and then its pod.
        processors.idle = False
        await until(quota, lambda us: us == QUOTA_US, timeout_s=60)
        await until(pod_quota, lambda us: us == QUOTA_US, timeout_s=60)
        # 3. A daemon that is killed while it is raised: the next one gives it back, although turbo is off.
        processors.idle = True
        await until(quota, lambda us: us > QUOTA_US, timeout_s=90)
        await node.agent.kill()
        assert await pod_quota() == -1
        node.agent.write_config({"isolation": {"turbo_most": "off"}})
        await node.agent.start()
        await until(quota, lambda us: us == QUOTA_US, timeout_s=60)
        await until(pod_quota, lambda us: us == QUOTA_US, timeout_s=90)
