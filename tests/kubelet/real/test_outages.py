"""Runtime, kubelet and daemon end and start again while pods come and go: those that stay do not notice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Callable

import pytest

from tests.e2e.node import until
from tests.kubelet.real.node import TIMEOUT_S, KubeletNode

pytestmark = pytest.mark.kubelet

WORKERS = 2


class Load:
    """Static pods that come and go."""

    def __init__(self, node: KubeletNode) -> None:
        self._node = node
        self._made = 0
        self.workers = [asyncio.ensure_future(self._work(number)) for number in range(WORKERS)]

    async def _work(self, worker: int) -> None:
        for count in itertools.count():
            await self._node.run(f"load-{worker}-{count}", cpu="500m", limit="4")
            self._made += 1
            await self._node.remove(f"load-{worker}-{count}")

    async def goes_on(self, more: int = WORKERS) -> None:
        """Until so many more pods ran."""
        wanted = self._made + more

        async def made() -> int:
            for worker in self.workers:
                if worker.done():
                    worker.result()
            return self._made

        await until(made, lambda number: number >= wanted, 2 * TIMEOUT_S)


@asynccontextmanager
async def load_on(node: KubeletNode) -> AsyncIterator[Load]:
    load = Load(node)
    try:
        yield load
    finally:
        for worker in load.workers:
            worker.cancel()
        await asyncio.gather(*load.workers, return_exceptions=True)


async def restart_runtime(node: KubeletNode) -> None:
    node.runtime.kill()
    await asyncio.to_thread(node.runtime.start)


async def restart_daemon(node: KubeletNode) -> None:
    await node.agent.terminate()
    await node.agent.start()


async def crash_daemon(node: KubeletNode) -> None:
    await node.agent.kill()
    await node.agent.start()


async def restart_kubelet(node: KubeletNode) -> None:
    await node.start_kubelet()


@pytest.mark.parametrize("outage", [restart_runtime, restart_daemon, crash_daemon, restart_kubelet])
async def test_what_stays_does_not_notice(
    node: KubeletNode, outage: Callable[[KubeletNode], Awaitable[Any]]
) -> None:
    sizes = {"own": {"limit": "6"}, "shared": {"cpu": "1", "limit": "12"}}
    lasting = {name: await node.run(name, **size) for name, size in sizes.items()}
    places = {name: await node.cpus(container) for name, container in lasting.items()}
    told = {name: node.told_so_far(container) for name, container in lasting.items()}
    async with load_on(node) as load:
        await load.goes_on()
        await outage(node)
        await load.goes_on()
    for name, container in lasting.items():
        assert await node.running(name, attempt=0) == container
        assert await node.cpus(container) == places[name]
        assert node.told_so_far(container) == told[name]
    await node.all_is_well()
