"""How late standalone is: ``python -m bench.standalone_latency`` (root, for the part with a real containerd).

From the start of a container, as the runtime dates it, to its cpuset: in the container's cgroup on a containerd
that is polled, and at the runtime's door on one whose events can be read. And what polling costs while nothing happens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.figures import cpu_s, machine_line, percentile
from cri_proxy.front_ends.standalone import POLL_S
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, Node, remove_all_pods
from tests.fake_runtime import FakeRuntime
from tests.functional.support import run_pod_with, run_without_us, start
from tests.machines import HYGON_7285_2S, machine

CONTAINERS = 30
IDLE_S = 20.0
RUNNING = (0, 100)
SIZE: dict[str, Any] = {"cpu_request": 100, "cpu_limit": 1000}


async def real() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="crb-") as folder,
        Containerd(Path(folder) / "c", images=Path(folder), cpus=CPUS) as containerd,
    ):
        agent = Agent(containerd.socket, TWO_NODES, REAL_CGROUPS)
        async with CriClient(str(containerd.socket)) as direct:
            try:
                await start(agent, "--standalone")
                node = Node(containerd, agent, direct, direct)
                show("polled, in the cgroup", [await in_cgroup(node, i) for i in range(CONTAINERS)])
            finally:
                await agent.close()
                await remove_all_pods(direct)


async def in_cgroup(node: Node, number: int) -> float:
    """Seconds from the start of a container until its cgroup has one CPU."""
    made = await node.run(f"p{number}", by=node.direct, **SIZE)
    while node.containerd.cpuset_of(made.id)[0] not in ("0", "1"):
        await asyncio.sleep(0.001)
    seen_ns = time.time_ns()
    started_ns = (await node.direct.status(made.id)).status.started_at
    await node.direct.stop_pod(made.pod.id)
    await asyncio.sleep(pause_s(number))
    return (seen_ns - started_ns) / 1e9


async def by(version: str) -> None:
    """A runtime in this process; its clock is ours."""
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        async with FakeRuntime(f"{folder}/r.sock", runtime_version=version) as runtime:
            agent = Agent(runtime.socket, machine(HYGON_7285_2S))
            try:
                await start(agent, "--standalone")
                reads_events = version >= "2"
                if reads_events:
                    await runtime.wait_until(lambda: runtime.subscribers == 1)
                async with CriClient(runtime.socket) as direct:
                    found = [await at_door(runtime, direct, i) for i in range(CONTAINERS)]
                show("by events, at the door" if reads_events else "polled, at the door", found)
            finally:
                await agent.close()


async def at_door(runtime: FakeRuntime, direct: CriClient, number: int) -> float:
    _, container_id = await run_pod_with(direct, f"p{number}", **SIZE)
    await runtime.wait_until(lambda: runtime.cpuset(container_id) != "")
    found_s = (time.time_ns() - runtime.containers[container_id].started_at) / 1e9
    await asyncio.sleep(pause_s(number))
    return found_s


async def idle(containers: int) -> None:
    """The CPU time that two lists a second take the daemon."""
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            for number in range(containers):
                run_without_us(runtime, f"p{number}", **SIZE)
            agent = Agent(runtime.socket, machine(HYGON_7285_2S))
            try:
                await start(agent, "--standalone")
                assert agent.process is not None
                before_s = cpu_s(agent.process.pid)
                await asyncio.sleep(IDLE_S)
                share = (cpu_s(agent.process.pid) - before_s) / IDLE_S
                print(
                    f"polling {containers:4} containers that stay: {share * 100:5.2f} % of a CPU", flush=True
                )
            finally:
                await agent.close()


def pause_s(number: int) -> float:
    """Before the next start: at every moment between two polls alike (the golden ratio's multiples)."""
    return POLL_S * (number * 0.618034 % 1)


def show(what: str, found_s: list[float]) -> None:
    cells = "  ".join(
        f"{name} {percentile(found_s, p) * 1000:4.0f}" for name, p in (("p50", 50), ("p90", 90), ("max", 100))
    )
    print(f"{what:<24} {len(found_s)} starts, milliseconds: {cells}", flush=True)


async def main() -> None:
    print(machine_line())
    if sentence := missing():
        print(sentence)
    else:
        await real()
    for version in ("1.7.0", "2.1.0"):
        await by(version)
    for containers in RUNNING:
        await idle(containers)


if __name__ == "__main__":
    asyncio.run(main())
