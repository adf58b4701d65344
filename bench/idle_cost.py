"""What the daemon takes while nothing happens: ``python -m bench.idle_cost`` (root: a real containerd and runc).

Running pods that stay, a full comparison of them with the runtime and the cgroups every 30 seconds as by default,
and exits looked for every 5; then with the comparison every second, which tells what one of them costs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.figures import cpu_s, machine_line, resident_mb
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, Node, remove_all_pods

PODS = 60
SIZE: dict[str, Any] = {"cpu_request": 10, "cpu_limit": 1000, "memory_limit": 16 << 20}
#: Six comparisons; the figure is CPU time, which does not hang on what else the machine does.
IDLE_S = 180.0
OFTEN_S = 30.0
AT_A_TIME = 8


async def main() -> None:
    print(machine_line())
    if sentence := missing():
        sys.exit(sentence)
    with (
        tempfile.TemporaryDirectory(prefix="crb-") as folder,
        Containerd(Path(folder) / "c", images=Path(folder), cpus=CPUS) as containerd,
    ):
        agent = Agent(containerd.socket, TWO_NODES, REAL_CGROUPS)
        async with CriClient(str(containerd.socket)) as direct, CriClient(agent.socket) as kubelet:
            try:
                await agent.start()
                node = Node(containerd, agent, direct, kubelet)
                for first in range(0, PODS, AT_A_TIME):
                    pods = range(first, min(PODS, first + AT_A_TIME))
                    await asyncio.gather(*(node.run(f"p{number}", **SIZE) for number in pods))
                rare = await share(agent, 30, 5, IDLE_S)
                often = await share(agent, 1, 1, OFTEN_S)
                print(f"{PODS} pods, compared every 30 s, polled every 5 s: {rare * 100:.2f} % of a CPU")
                print(f"{PODS} pods, compared every second: {often * 1000:.1f} ms a comparison")
                assert agent.process is not None
                print(f"resident {resident_mb(agent.process.pid):.0f} MB")
            finally:
                await agent.close()
                await remove_all_pods(direct)


async def share(agent: Agent, interval_s: int, poll_s: int, for_s: float) -> float:
    """CPU seconds a second, while the daemon compares and polls this often."""
    constants = {"reconcile_interval_s": interval_s, "reconcile_poll_s": poll_s, "topology_interval_s": 10}
    agent.write_config({"constants": constants})
    await agent.terminate()
    await agent.start()
    await asyncio.sleep(2 * AT_A_TIME)  # what the start itself does is over by then
    assert agent.process is not None
    before_s = cpu_s(agent.process.pid)
    await asyncio.sleep(for_s)
    return (cpu_s(agent.process.pid) - before_s) / for_s


if __name__ == "__main__":
    asyncio.run(main())
