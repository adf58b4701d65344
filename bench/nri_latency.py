"""What hosted NRI plugins cost: ``python -m bench.nri_latency``.

Four daemons in front of one fake runtime, which is fast, so that what is seen is ours: one that hosts no plugins, and
three with 0, 1 and 3 plugins that do nothing. Plugins, daemons and the client are processes of their own. A container
is created and started through each in turn, so that whatever else the machine does meets all alike.
Then how long a plugin takes from its connection until it has been told of 200 containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.figures import machine_line, percentile
from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.shell.nri.connection import NriConnection
from tests.agent import Agent
from tests.cri_client import CriClient, container_config, create_request, pod_config
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine
from tests.nri.plugins import external

#: How many no-op plugins each daemon has; None: it hosts none at all.
WAYS = (None, 0, 1, 3)
ROUNDS = 60
CONTAINERS, SYNCHRONIZATIONS = 200, 30
#: What a real containerd says of a real container.
CAPTURED = Path(__file__).parents[1] / "tests" / "data" / "nri" / "containerd-1.6.20.json"


@contextlib.asynccontextmanager
async def hosting(runtime: FakeRuntime, plugins: Any) -> AsyncIterator[Agent]:
    """A daemon with so many plugins."""
    host = {"nri": {"host": "off" if plugins is None else "on"}}
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(runtime.socket, machine(HYGON_7285_2S), host))
        for number in range(plugins or 0):
            where = Path(agent.config["nri"]["socket"])
            await stack.enter_async_context(external(agent.folder, where, f"{number + 10}-idle"))
        yield agent


def cpu_ms(agent: Agent) -> float:
    """Milliseconds of CPU time a daemon has had: what a busy machine does not change much."""
    assert agent.process is not None
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def one(client: CriClient, number: int) -> tuple[float, float]:
    """Milliseconds of a create and of a start."""
    pod = await client.run_pod(f"pod-{number}")
    request = create_request(pod, container_config("app", cpu_limit=1000, memory_limit=1 << 28))
    begun = time.perf_counter()
    reply = await client.call("CreateContainer", request)
    created = time.perf_counter()
    await client.start(reply.container_id)
    started = time.perf_counter()
    await client.stop_pod(pod.id)
    await client.remove_pod(pod.id)
    return (created - begun) * 1000, (started - created) * 1000


async def measure_starts(runtime: FakeRuntime) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients, agents = [], []
        for plugins in WAYS:
            agent = await stack.enter_async_context(hosting(runtime, plugins))
            agents.append(agent)
            clients.append(await stack.enter_async_context(CriClient(agent.socket)))
        found: list[list[tuple[float, float]]] = [[] for _ in WAYS]
        before_ms = [cpu_ms(agent) for agent in agents]
        for number in range(ROUNDS + 5):
            for index, client in enumerate(clients):
                figures = await one(client, number)
                if number >= 5:  # the first ones warm things up
                    found[index].append(figures)
        own_ms = [(cpu_ms(a) - b) / (ROUNDS + 5) for a, b in zip(agents, before_ms)]
    print(f"{'milliseconds':<16}{'create':>16}{'start':>16}{'both':>16}{'added, p50':>12}{'CPU a pod':>12}")
    print(f"{'':<16}" + 3 * f"{'p50':>8}{'p99':>8}")
    base = percentile([c + s for c, s in found[0]], 50)
    for plugins, figures, own in zip(WAYS, found, own_ms):
        name = "no host" if plugins is None else f"{plugins} plugins"
        both = [c + s for c, s in figures]
        cells = ""
        for column in ([c for c, _ in figures], [s for _, s in figures], both):
            cells += "".join(f"{percentile(column, p):8.2f}" for p in (50, 99))
        print(f"{name:<16}{cells}{percentile(both, 50) - base:12.2f}{own:12.1f}")


async def learn(where: str) -> tuple[float, int, int]:
    """Milliseconds from the connection to the last container, how many there were, and bytes of messages."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    begun = time.perf_counter()
    end.connect(where)
    done: asyncio.Future[tuple[float, int, int]] = asyncio.get_running_loop().create_future()
    learnt = [0, 0]

    async def configure(message: bytes, timeout_s: float) -> bytes:
        return nri.ConfigureResponse(events=0x7FF).SerializeToString()

    async def synchronize(message: bytes, timeout_s: float) -> bytes:
        request = nri.SynchronizeRequest.FromString(message)
        learnt[0] += len(request.containers)
        learnt[1] += len(message)
        if not request.more:
            done.set_result(((time.perf_counter() - begun) * 1000, *learnt))
        return nri.SynchronizeResponse(more=request.more).SerializeToString()

    reader, writer = await asyncio.open_connection(sock=end)
    handlers = {"Configure": configure, "Synchronize": synchronize}
    connection = NriConnection(reader, writer, "plugin", handlers)
    running = asyncio.ensure_future(connection.run())
    request = nri.RegisterPluginRequest(plugin_name="learns", plugin_idx="10")
    await connection.call("RegisterPlugin", request.SerializeToString(), 5)
    figures = await done
    connection.close("that was all")
    await running
    return figures


async def measure_synchronize(runtime: FakeRuntime) -> None:
    captured = json.loads(CAPTURED.read_text())["running"]["info"]["info"]
    spec = json.loads(captured)["runtimeSpec"]
    for number in range(CONTAINERS // 2):
        pod = runtime.add_pod(pod_config(f"pod-{number}", uid=f"uid-{number}"))
        for name in ("app", "sidecar"):
            runtime.add_container(pod, container_config(name, cpu_limit=500))
    plain = runtime.runtime.container_status

    def with_spec(request: Any, call: Any) -> Any:
        reply = plain(request, call)
        info = json.loads(reply.info["info"]) if reply.info else {}
        info["runtimeSpec"] = spec
        return cri.ContainerStatusResponse(status=reply.status, info={"info": json.dumps(info)})

    runtime._actions["RuntimeService/ContainerStatus"] = with_spec
    async with hosting(runtime, 0) as agent:
        where = agent.config["nri"]["socket"]
        first, containers, size = await learn(where)
        before_ms = cpu_ms(agent)
        later = [(await learn(where))[0] for _ in range(SYNCHRONIZATIONS)]
        own_ms = (cpu_ms(agent) - before_ms) / SYNCHRONIZATIONS
    print(
        f"\nSynchronize of {containers} containers ({size / 1024:.0f} KiB), milliseconds from connect to learnt:"
    )
    print(f"first {first:.1f}, then p50 {percentile(later, 50):.1f}, p99 {percentile(later, 99):.1f}")
    print(f"of which the daemon's own CPU time is {own_ms:.1f}")


async def main() -> None:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            await measure_starts(runtime)
        async with FakeRuntime(f"{folder}/s.sock") as runtime:
            await measure_synchronize(runtime)


if __name__ == "__main__":
    asyncio.run(main())
