"""What hosted NRI plugins cost: ``python -m bench.nri_latency``.

Four daemons in front of one fake runtime, which is fast, so that what is seen is ours: one that hosts no plugins, and
three with 0, 1 and 3 plugins that take every event and do nothing. Plugins and daemons are processes of their own.
A container is created and started through each in turn, so that whatever else the machine does meets all alike.
Then how long a plugin takes from its connection until it has been told of 200 containers: right after the daemon's
start, when they are known, and what the daemon computes for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.figures import cpu_s, machine_line, percentile
from cri_api import runtime_v1_pb2 as cri
from tests.agent import ROOT, Agent
from tests.cri_client import CriClient, container_config, create_request, pod_config
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

#: How many no-op plugins each daemon has; None: it hosts none at all.
WAYS = (None, 0, 1, 3)
ROUNDS = 60
CONTAINERS, SYNCHRONIZATIONS = 200, 60
#: How long nothing may happen until all is taken to be over.
QUIET_S = 1.0
#: What a real containerd says of a real container.
CAPTURED = Path(__file__).parents[1] / "tests" / "data" / "nri" / "containerd-1.6.20.json"


async def plugin(agent: Agent, title: str, *more: str) -> asyncio.subprocess.Process:
    """A plugin that reads nothing, as a process."""
    where = str(agent.config["nri"]["socket"])
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.nri_plugin", where, title, *more),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


@contextlib.asynccontextmanager
async def hosting(runtime: FakeRuntime, plugins: Any) -> AsyncIterator[Agent]:
    """A daemon with so many plugins."""
    host = {"nri": {"host": "off" if plugins is None else "on"}}
    async with Agent(runtime.socket, machine(HYGON_7285_2S), host) as agent:
        running = [await plugin(agent, f"{number + 10}-idle") for number in range(plugins or 0)]
        while running and len((await agent.ask("nri", "status"))["plugins"]) < len(running):
            await asyncio.sleep(0.1)
        try:
            yield agent
        finally:
            for process in running:
                process.kill()
                await process.wait()


def cpu_ms(agent: Agent) -> float:
    """Milliseconds of CPU time a daemon has had: what a busy machine does not change much."""
    assert agent.process is not None
    return cpu_s(agent.process.pid) * 1000


async def quiet(runtime: FakeRuntime) -> None:
    """Return when the runtime has not been asked for anything but its lists for a while: those are looked at for ever."""

    def asked() -> int:
        return sum(not call.method.startswith("List") for call in runtime.calls)

    count = -1
    while count != asked():
        count = asked()
        await asyncio.sleep(QUIET_S)


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
        asked = [await calls_of_one(runtime, client) for client in clients]
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
    print("\nthe runtime's calls for one pod with one container, beyond those without a host:")
    for plugins, calls in zip(WAYS[1:], asked[1:]):
        more = {method: count - asked[0][method] for method, count in calls.items()}
        print(f"{plugins} plugins: {({method: count for method, count in more.items() if count}) or 'none'}")


async def calls_of_one(runtime: FakeRuntime, client: CriClient) -> Counter[str]:
    """What the runtime is asked for one pod; lists are left out, they are looked at every so often."""
    await quiet(runtime)
    runtime.calls.clear()
    await one(client, 1000)
    await quiet(runtime)
    return Counter(call.method for call in runtime.calls if not call.method.startswith("List"))


def many_containers(runtime: FakeRuntime) -> None:
    """Pods and containers whose statuses are as a real runtime's; its lists cost it nothing."""
    captured = json.loads(CAPTURED.read_text())["running"]["info"]["info"]
    spec = json.loads(captured)["runtimeSpec"]
    for number in range(CONTAINERS // 2):
        pod = runtime.add_pod(pod_config(f"pod-{number}", uid=f"uid-{number}"))
        for name in ("app", "sidecar"):
            runtime.add_container(pod, container_config(name, cpu_limit=500))
    actions = runtime._actions
    plain = actions["RuntimeService/ContainerStatus"]

    def with_spec(request: Any, call: Any) -> Any:
        reply = plain(request, call)
        info = json.loads(reply.info["info"]) if reply.info else {}
        info["runtimeSpec"] = spec
        return cri.ContainerStatusResponse(status=reply.status, info={"info": json.dumps(info)})

    actions["RuntimeService/ContainerStatus"] = with_spec
    for method, request in (
        ("ListContainers", cri.ListContainersRequest()),
        ("ListPodSandbox", cri.ListPodSandboxRequest()),
    ):
        reply = actions[f"RuntimeService/{method}"](request, None)
        actions[f"RuntimeService/{method}"] = lambda request, call, reply=reply: reply


async def learn(agent: Agent, count: int) -> list[dict[str, float]]:
    """What a plugin takes, one time after the other."""
    process = await plugin(agent, "10-learns", str(count))
    out, _ = await process.communicate()
    return [json.loads(line) for line in out.splitlines()]


async def measure_synchronize(runtime: FakeRuntime) -> None:
    many_containers(runtime)
    async with hosting(runtime, 0) as agent:
        [cold] = await learn(agent, 1)
    async with hosting(runtime, 0) as agent:
        await quiet(runtime)
        [first] = await learn(agent, 1)
        before_ms = cpu_ms(agent)
        later = await learn(agent, SYNCHRONIZATIONS)
        own_ms = (cpu_ms(agent) - before_ms) / SYNCHRONIZATIONS
    learnt, sent = ([each[key] for each in later] for key in ("learnt_ms", "sent_ms"))
    print(f"\nSynchronize of {CONTAINERS} containers ({cold['bytes'] / 1024:.0f} KiB), milliseconds")
    print(f"from connect to learnt, at once after the daemon's start:     {cold['learnt_ms']:.1f}")
    print(f"... the first one when the daemon has looked at all of them:  {first['learnt_ms']:.1f}")
    print(f"... then: p50 {percentile(learnt, 50):.1f}, p99 {percentile(learnt, 99):.1f}")
    print(f"of these, from the first byte to the last: p50 {percentile(sent, 50):.1f}")
    print(f"the daemon's own CPU time: {own_ms:.1f}")


async def main() -> None:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            await measure_starts(runtime)
        async with FakeRuntime(f"{folder}/s.sock") as runtime:
            await measure_synchronize(runtime)


if __name__ == "__main__":
    asyncio.run(main())
