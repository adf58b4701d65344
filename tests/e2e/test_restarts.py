"""The runtime or our daemon dies while pods come and go: nobody loses CPUs, later pods get the right ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Callable

import grpc
import grpc.aio
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.e2e.node import CPUS, Node, Running, problem_of, until
from tests.e2e.runtime import MakeRuntime, RealRuntime

pytestmark = pytest.mark.containerd

WORKERS = 3
SMALL = {"cpu_request": 50, "cpu_limit": 1000}


@pytest.fixture
def runtime(make_runtime: MakeRuntime, tmp_path: Path) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path / "c", cpus=CPUS) as running:
        yield running


class Load:
    """Pods that come and go through our socket; ``kept`` are containers that stay."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.made = 0
        self.kept: list[Running] = []

    async def work(self, worker: int) -> None:
        count = 0
        while True:
            count += 1
            try:
                made = await self._node.run(f"load-{worker}-{count}", **SMALL)
                self.made += 1
                if count % 4 == 1:
                    self.kept.append(made)
                    continue
                await self._node.kubelet.stop(made.id)
                await self._node.kubelet.remove(made.id)
                await self._node.kubelet.stop_pod(made.pod.id)
                await self._node.kubelet.remove_pod(made.pod.id)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)  # somebody is away; as kubelet, try again with another pod

    async def goes_on(self, more: int = 3) -> None:
        """Until so many more pods were made."""
        wanted = self.made + more

        async def made() -> int:
            return self.made

        await until(made, lambda number: number >= wanted)


@asynccontextmanager
async def load_on(node: Node) -> AsyncIterator[Load]:
    load = Load(node)
    workers = [asyncio.ensure_future(load.work(number)) for number in range(WORKERS)]
    try:
        yield load
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def test_the_runtime_may_die(node: Node) -> None:
    lasting = [await node.run(f"p{i}", cpu_request=200, cpu_limit=1000) for i in range(4)]
    places = {container.id: await node.place(container) for container in lasting}
    async with load_on(node) as load:
        for _ in range(2):
            await load.goes_on()
            node.runtime.kill()
            assert {container: node.runtime.allowed_of(container) for container in places} == places
            await asyncio.to_thread(node.runtime.start)
            await load.goes_on()
    assert {container.id: await node.place(container) for container in lasting} == places
    await all_are_where_the_daemon_says(node)


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_the_daemon_may_end(node: Node, end: str) -> None:
    lasting = [await node.run(f"p{i}", cpu_request=200, cpu_limit=1000) for i in range(4)]
    places = {container.id: await node.place(container) for container in lasting}
    async with load_on(node) as load:
        for _ in range(2):
            await load.goes_on()
            end_it: Callable[[], Any] = getattr(node.agent, end)
            assert await end_it() in (None, 0)
            known = {made.id: node.runtime.allowed_of(made.id) for made in load.kept}
            await node.agent.start()
            await load.goes_on()
            # Whose creation was answered is known, and where it was.
            assert {made: node.runtime.allowed_of(made) for made in known} == known
            assert {made: (await node.row(made))["stance"] for made in known} == dict.fromkeys(
                known, "placed"
            )
    assert {container.id: await node.place(container) for container in lasting} == places
    await all_are_where_the_daemon_says(node)


async def test_starts_that_reach_nobody_are_not_held_against_the_place(node: Node) -> None:
    pod = await node.pod("p")
    made = await node.kubelet.create(pod, "main", cpu_limit=1000)
    node.runtime.kill()
    for _ in range(2):
        code, _ = await problem_of(node.kubelet.start(made))
        assert code is grpc.StatusCode.UNAVAILABLE
    await asyncio.to_thread(node.runtime.start)
    await until(lambda: answers(node))
    assert await node.cpus(await node.run(pod, attempt=1, cpu_limit=1000)) == "0"


async def answers(node: Node) -> bool:
    """Whether a call through our socket reaches the runtime."""
    try:
        await node.kubelet.call("Version", cri.VersionRequest())
    except grpc.aio.AioRpcError:
        return False
    return True


async def all_are_where_the_daemon_says(node: Node) -> None:
    """Every container the runtime runs is placed, on the CPUs that the daemon says, and nothing is broken."""

    async def wrong() -> dict[str, Any]:
        listed = await node.direct.list_containers(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))
        rows = {row["id"]: row for row in await node.ask("placements")}
        found = {}
        for container in listed:
            row = rows.get(container.id, {})
            really = node.runtime.allowed_of(container.id)[0]
            if (row.get("stance"), row.get("cpus")) != ("placed", really):
                found[container.id] = (really, row)
        return found

    await until(wrong, lambda found: found == {})
    status = await until(lambda: node.ask("status"), lambda status: status["degraded"] == {})
    assert status["invariants"] == []
    assert not [name for name in status["counters"] if "failed_open" in name]
