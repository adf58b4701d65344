"""The longest steps of the daemon's event loop with 1,000 containers: ``python -m bench.loop_steps [CONTAINERS]``.

A fake runtime, the two-socket Hygon, policy ``topology-aware``. What a node does at its worst follows one another, with a
comparison every few seconds: containers that own CPUs come and go, some are left alone on CPUs that others own, cpusets are
changed past the daemon, half of all containers go while it is dead (kill -9), the other half is adopted by ``reset-policy``,
and it is asked for all that it can tell. CPU time of the loop's thread (``loop_watch``): what else the machine does does not
count, nor does a disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.figures import machine_line
from bench.loop_watch import read_steps, step_lines
from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import resyncs, until
from tests.machines import HYGON_7285_2S, machine

CONTAINERS = 1000
#: So many of them own a CPU; so many are left alone on CPUs that others own.
OWNERS, CROWDED = 60, 40
AT_A_TIME = 8
COMPARED_EVERY_S = 4
CONFIG: dict[str, Any] = {
    "policy": {"Active": "topology-aware"},
    "constants": {"reconcile_interval_s": COMPARED_EVERY_S, "reconcile_poll_s": 1, "topology_interval_s": 10},
}
QUESTIONS = ("status", "placements", "topology", "metrics", "affinity")


class Load:
    """What goes on."""

    def __init__(self, runtime: FakeRuntime, agent: Agent, folder: Path) -> None:
        self.runtime, self.agent = runtime, agent
        self.file = folder / "steps"

    async def start(self) -> None:
        await self.agent.start(command=(sys.executable, "-m", "bench.loop_watch", str(self.file)))

    async def create(self, client: CriClient, number: int, annotations: Any = None, **size: Any) -> str:
        uid = f"uid-{number}"
        parent = cgroup_parent(size.get("qos", "burstable"), uid)
        pod = await client.run_pod(
            f"pod-{number}", uid=uid, cgroup_parent=parent, annotations=annotations or {}
        )
        created = await client.create(pod, "app", **size)
        await client.start(created)
        return created

    async def compared(self) -> None:
        """Two comparisons more have ended: one may have begun before."""
        before = resyncs(await self.agent.ask("status"))
        await until(self.agent, lambda status: resyncs(status) >= before + 2)


async def together(work: list[Callable[[], Awaitable[object]]]) -> None:
    for first in range(0, len(work), AT_A_TIME):
        await asyncio.gather(*(each() for each in work[first : first + AT_A_TIME]))


def size_of(number: int) -> dict[str, Any]:
    if number < OWNERS:
        return {"qos": "guaranteed", "cpu_request": 1000, "cpu_limit": 1000, "memory_limit": 64 << 20}
    return {"cpu_request": 20, "cpu_limit": (1 + number % 12) * 1000}


async def go_on(load: Load, client: CriClient, direct: CriClient, count: int) -> None:
    agent, runtime = load.agent, load.runtime
    # 1. All of them; then owners of many CPUs that come and go.
    await together([lambda n=n: load.create(client, n, **size_of(n)) for n in range(count)])  # type: ignore[misc]
    for number in range(count, count + 6):
        large = {"qos": "guaranteed", "cpu_request": 12_000, "cpu_limit": 12_000, "memory_limit": 64 << 20}
        await client.remove(await load.create(client, number, **large))
    # 2. Containers that are not ours on CPUs that others own.
    rows = await agent.ask("placements")
    owned = sorted(row["cpus"] for row in rows if row["exclusive"])[:CROWDED]
    assert owned
    alone = {"cri-resmgr.io/manage": "false"}
    for number, cpus in enumerate(owned):
        await load.create(client, count + 100 + number, alone, cpu_limit=1000, cpuset=cpus)
    await load.compared()
    # 3. Cpusets that are changed past us; and all questions.
    for row in [row for row in rows if not row["exclusive"]][:200]:
        await direct.update(row["id"], cpuset_cpus="1-2")
    await load.compared()
    for question in QUESTIONS:
        await agent.cli(question)
    # 4. Half of all go while the daemon is dead.
    await agent.kill()
    await together([lambda i=i: direct.remove(i) for i in list(runtime.containers)[::2]])  # type: ignore[misc]
    await load.start()
    await load.compared()
    # 5. The others are adopted.
    await agent.cli("reset-policy")
    await load.compared()


async def main(count: int) -> None:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="crb-") as name:
        folder = Path(name)
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            agent = Agent(runtime.socket, machine(HYGON_7285_2S), CONFIG)
            load = Load(runtime, agent, folder)
            try:
                await load.start()
                async with CriClient(agent.socket) as client, CriClient(runtime.socket) as direct:
                    await go_on(load, client, direct, count)
                await agent.terminate()
            finally:
                await agent.close()
        print(f"{count} containers")
        print("\n".join(step_lines(read_steps(load.file), most=12)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else CONTAINERS))
