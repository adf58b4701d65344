"""Hundreds of containers are told something by one create; daemon and runtime are killed meanwhile, and the runtime is slow.

What the runtime was asked is counted where it ends: by the runc that it calls.
"""

from __future__ import annotations

import asyncio
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.node import CPUS, GIB, ONE_NODE, REAL_CGROUPS, Node, until
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.e2e.test_restarts import answers

pytestmark = [pytest.mark.containerd, pytest.mark.long]

PODS, OF_A_POD = 8, 30
#: Updates that the runtime was asked before the kill, of some hundred that wait.
BEFORE = 20
LOADED_S = 300.0
RUNC = """\
#!/bin/sh
case " $* " in
*" update "*) for id; do :; done; echo "$id" >> "{log}"; [ -e "{slow}" ] && sleep 0.2;;
esac
exec {runc} "$@"
"""


class Updates:
    """The updates that a runtime's runc was called for."""

    def __init__(self, folder: Path) -> None:
        self.log, self.slow = folder / "updates", folder / "slow"
        self.programs = folder / "bin"
        self.programs.mkdir()
        runc = self.programs / "runc"
        runc.write_text(RUNC.format(log=self.log, slow=self.slow, runc=shutil.which("runc")))
        runc.chmod(runc.stat().st_mode | stat.S_IXUSR)
        self.log.touch()

    def asked(self) -> Counter[str]:
        return Counter(self.log.read_text().split())


@pytest.fixture
def updates(tmp_path: Path) -> Updates:
    return Updates(tmp_path)


@pytest.fixture
def runtime(make_runtime: MakeRuntime, tmp_path: Path, updates: Updates) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path / "c", cpus=CPUS, path=(updates.programs,)) as running:
        yield running


@pytest.mark.parametrize("killed", ["daemon", "runtime", "both"])
async def test_a_kill_while_hundreds_wait_costs_a_container_one_update_more_at_most(
    runtime: RealRuntime, direct: CriClient, updates: Updates, killed: str
) -> None:
    config = {**REAL_CGROUPS, "policy": {"Active": "topology-aware"}, "placement": {"besteffort": "machine"}}
    agent = Agent(runtime.socket, ONE_NODE, config)
    try:
        await agent.start()
        async with CriClient(agent.socket) as kubelet:
            node = Node(runtime, agent, direct, kubelet)
            shared = await fill(node)
            updates.slow.touch()
            updates.log.write_text("")
            pod = await node.pod("owner", qos="guaranteed")
            owner = await kubelet.create(
                pod, "owner", qos="guaranteed", cpu_request=1000, cpu_limit=1000, memory_limit=GIB // 8
            )
            starting = asyncio.ensure_future(kubelet.start(owner))
            await until(lambda: asked(updates), lambda number: number >= BEFORE, LOADED_S)
            if killed != "runtime":
                await agent.kill()
            if killed != "daemon":
                runtime.kill()
                await asyncio.to_thread(runtime.start)
            if killed != "runtime":
                await agent.start()
            await asyncio.gather(starting, return_exceptions=True)
            await until(lambda: answers(node))
            if (await node.row(owner))["state"] == "created":
                try:
                    await kubelet.start(owner)
                except grpc.aio.AioRpcError as error:  # the runtime has made it, and could not say so
                    assert "running state" in (error.details() or ""), error
            mine = (await node.row(owner))["exclusive"]
            await until(lambda: still_on(node, shared, mine), lambda others: others == [], LOADED_S)
            status = await until(
                lambda: node.ask("status"), lambda found: not found["updates_waiting"], LOADED_S
            )
        more = {key: count for key, count in updates.asked().items() if count > 2}
        assert more == {}
        assert [name for name in status["counters"] if "drift" in name] == []
        assert status["invariants"] == []
    finally:
        updates.slow.unlink(missing_ok=True)
        await agent.close()


async def fill(node: Node) -> list[str]:
    """Containers that share all CPUs."""

    async def fill_pod(number: int) -> list[str]:
        pod = await node.pod(f"p{number}", qos="besteffort")
        return [(await node.run(pod, f"c{each}", qos="besteffort")).id for each in range(OF_A_POD)]

    return [key for made in await asyncio.gather(*map(fill_pod, range(PODS))) for key in made]


async def asked(updates: Updates) -> int:
    return sum(updates.asked().values())


async def still_on(node: Node, containers: list[str], cpus: str) -> list[str]:
    """Those of them that may still run on some CPUs."""
    owned = parse_cpus(cpus)
    return [key for key in containers if not owned.isdisjoint(parse_cpus(node.runtime.allowed_of(key)[0]))]
