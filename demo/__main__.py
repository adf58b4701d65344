"""Pods of growing size through the proxy on a 2-socket Hygon machine, and where they end up.

The proxy is the real daemon. The runtime is a CRI server made for demonstrations (the one the tests use), or,
with ``--runtime containerd``, a private real containerd; the machine is described by a file, so the demo runs
anywhere. Everything is removed afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Callable

from cri_proxy.cli.topology_drawing import draw_topology
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

SIZES = (1, 8, 12, 16, 20, 24, 32, 40, 64)
#: The ladder of the Hygon manual for a node of 16 CPUs in two CCXs of 8, sockets of 64.
RUNGS = (
    (8, "one CCX"),
    (16, "one NUMA node"),
    (24, "node + CCX of the nearest"),
    (32, "two NUMA nodes"),
    (64, "the socket"),
)


def rung(cpus: int) -> str:
    """What the ladder promises for so many CPUs."""
    return next((name for most, name in RUNGS if cpus <= most), "the machine")


async def ladder(client: CriClient, cpuset: Callable[[str], str], agent: Agent, parent: str = "") -> bool:
    """Create the pods, print the table and the picture. True if every pod is where the ladder says."""
    containers: dict[str, str] = {}
    pods: list[Pod] = []
    print(f"{'limit':>5}  {'the ladder says':<26} {'level':<9} {'cpuset in the runtime':<22} why")
    for size in SIZES:
        uid = f"demo-{size}"
        pod = await client.run_pod(
            f"p{size}", uid=uid, cgroup_parent=parent + cgroup_parent("burstable", uid)
        )
        pods.append(pod)
        # A quarter of the limit as request: all nine fit the machine at once, as on a real node.
        container = await client.create(
            pod, "app", cpu_request=size * 250, cpu_limit=size * 1000, memory_limit=1 << 30
        )
        containers[container] = pod.name
        row = (await agent.ask("explain", container))["containers"][0]
        print(f"{size:>5}  {rung(size):<26} {row['level']:<9} {cpuset(container):<22} {row['why']}")
    topology = Topology(machine(HYGON_7285_2S))
    labels = {
        index: [name for container, name in containers.items() if leaf.cpus & parse_cpus(cpuset(container))]
        for index, leaf in enumerate(topology.leaves)
    }
    print()
    print(
        draw_topology(
            topology, labels={i: [" ".join(names)] for i, names in labels.items() if names}, width=120
        )
    )
    levels = {row["pod"]: row["level"] for row in await agent.ask("placements")}
    expected = ("ccx", "ccx", "numa", "numa", "numa+ccx", "numa+ccx", "2numa", "socket", "socket")
    for pod in pods:
        await client.stop_pod(pod.id)
        await client.remove_pod(pod.id)
    return tuple(levels[pod.name] for pod in pods) == expected


@contextlib.asynccontextmanager
async def demo_runtime(folder: Path) -> AsyncIterator[tuple[str, Callable[[str], str], str]]:
    """The built-in runtime: socket, a look at a container's cpuset, cgroup prefix."""
    async with FakeRuntime(str(folder / "r.sock")) as runtime:
        yield str(folder / "r.sock"), runtime.cpuset, ""


@contextlib.asynccontextmanager
async def real_runtime(folder: Path) -> AsyncIterator[tuple[str, Callable[[str], str], str]]:
    """A private containerd. Its containers are created, not started: this machine does not have the demo's CPUs."""
    from tests.e2e.containerd import Containerd, missing

    lacking = missing()
    if lacking:
        sys.exit(f"make demo RUNTIME=containerd cannot run here: {lacking}")
    containerd = Containerd(folder / "cd", images=folder / "images")
    await asyncio.to_thread(containerd.start)
    try:
        yield (
            str(containerd.socket),
            lambda container: _spec_cpuset(containerd, container),
            str(containerd.cgroup_parent),
        )
    finally:
        await asyncio.to_thread(containerd.close)


def _spec_cpuset(containerd: object, container: str) -> str:
    """The cpuset in the OCI spec that containerd will give to runc."""
    import json

    info = json.loads(containerd.ctr("containers", "info", container))  # type: ignore[attr-defined]
    return str(info["Spec"]["linux"]["resources"]["cpu"]["cpus"])


async def on_this_machine(client: CriClient, agent: Agent, containerd_parent: str) -> None:
    """Real pods, started, on the real topology: what the kernel says inside them."""
    print("\nStarted on this machine's own CPUs:")
    for size in (1, 1, 2):
        uid = f"here-{size}-{os.urandom(2).hex()}"
        pod = await client.run_pod(
            uid, uid=uid, cgroup_parent=containerd_parent + cgroup_parent("burstable", uid)
        )
        container = await client.create(pod, "app", cpu_request=size * 500, cpu_limit=size * 1000)
        await client.start(container)
        out, _, _ = await client.exec(container, "grep", "_allowed_list", "/proc/self/status")
        row = (await agent.ask("explain", container))["containers"][0]
        print(f"  {size} CPU: {' '.join(out.split())}  ({row['level']}: {row['why']})")


async def main(kind: str) -> int:
    runtime = {"demo": demo_runtime, "containerd": real_runtime}[kind]
    folder = Path(tempfile.mkdtemp(prefix="crd-"))
    try:
        async with runtime(folder) as (socket, cpuset, parent):
            print(
                f"cri-resmgr between a client and {'a private containerd' if kind == 'containerd' else 'the demo runtime'},"
            )
            print(
                "on a described machine: 2 sockets x 4 NUMA nodes x 2 CCX x 4 cores x 2 threads = 128 CPUs\n"
            )
            async with (
                Agent(socket, topology=machine(HYGON_7285_2S)) as agent,
                CriClient(agent.socket) as client,
            ):
                good = await ladder(client, cpuset, agent, parent)
            if kind == "containerd":
                async with Agent(socket) as agent, CriClient(agent.socket) as client:
                    await on_this_machine(client, agent, parent)
        print(
            "\nEvery pod is where the ladder says." if good else "\nNOT every pod is where the ladder says."
        )
        return 0 if good else 1
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--runtime", choices=("demo", "containerd"), default="demo")
    sys.exit(asyncio.run(main(parser.parse_args().runtime)))
