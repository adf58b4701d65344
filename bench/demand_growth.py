"""How soon a real set is larger: ``python -m bench.demand_growth [TIMES]`` (root, containerd).

A real containerd and a whole daemon, which takes this machine's two CPUs for two L3s. A container in a shrunk set of one CPU
begins to use two; the time from that until the runtime has written both into its cgroup. The container's own start of its
loops is in it. Where triggers of 500 ms may not be had, shrunk sets are looked at twice a second.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import machine_line
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd
from tests.e2e.node import CPUS, TWO_NODES, Node, remove_all_pods
from tests.e2e.test_demand import ASKS, SIZED, idle, load, until_cpus

TIMES = 10


async def measure(containerd: Containerd, times: int) -> tuple[list[float], str]:
    """Milliseconds of each growth, and how waiting was seen."""
    agent = Agent(containerd.socket, TWO_NODES, SIZED)
    taken: list[float] = []
    try:
        await agent.start()
        async with CriClient(str(containerd.socket)) as direct, CriClient(agent.socket) as kubelet:
            node = Node(containerd, agent, direct, kubelet)
            await node.until_runtime_is_known()
            container = await node.run("grows", **ASKS)
            for _ in range(times):
                await until_cpus(node, container, 1)
                await load(node, container)
                began = time.monotonic()
                await until_cpus(node, container, 2)
                taken.append((time.monotonic() - began) * 1000)
                await idle(node, container)
            watched = (await node.ask("status"))["demand"]["watched"]
            await remove_all_pods(direct)
    finally:
        await agent.close()
    return sorted(taken), watched


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        images.mkdir()
        with Containerd(Path(folder) / "c", images=images, cpus=CPUS) as containerd:
            taken, watched = asyncio.run(measure(containerd, times))
    print(
        f"{times} growths, watched {watched}: p50 {taken[len(taken) // 2]:.0f} ms, longest {taken[-1]:.0f} ms"
    )


if __name__ == "__main__":
    main()
