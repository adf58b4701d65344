"""What a create costs in the daemon: ``python -m bench.create_cost [--creates N]``.

Whole daemons with the ``hygon`` policy, in front of fake runtimes with 0, 100 and 400 running containers, each a
process of its own. The same creates go to each runtime directly and through its daemon, in turns of 10; what is
between the two is the daemon's own: reading, deciding, making it durable twice, answering. Each container is removed
again, so that their number stays. ``--log``: what its log lines take instead, without a thread and with one.
``--policies``: the same for every policy, an ordinary container and one that owns 3 CPUs, beside adopted containers that
must be told by it; and how many of those were told a pod. ``--isolation``: with all its subjects off and enforced, each
container one of batch beside a protected one; the kernel's resctrl is the model of the tests, in the daemon's process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from pathlib import Path

from bench import ratios
from bench.container_memory import compared
from bench.figures import cpu_s, machine_line, percentile, print_row, process, resident_mb
from bench.raw import Client
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.control import ask
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, cgroup_parent, container_config, create_request, pod_config
from tests.fake_runtime import FakeRuntime
from tests.functional.support import run_pod_with, run_without_us
from tests.machines import HYGON_7285_2S, machine

RUNNING = (0, 100, 400)
#: For ``--policies``: adopted containers, and the policies' settings.
BESIDE = (0, 400, 2000)
POLICIES: dict[str, dict[str, object]] = {
    "hygon": {"Active": "hygon"},
    "topology-aware": {"Active": "topology-aware"},
    "balloons": {"Active": "balloons"},
    "balloons, typed": {
        "Active": "balloons",
        "balloons": {"BalloonTypes": [{"Name": "all", "Namespaces": ["*"], "MinCPUs": 2}]},
    },
}
CREATES = 200
TURN = 10
#: For ``--isolation``: protected containers, and as many of batch.
PROTECTED = 16
#: Beside the state on disk: the same in memory, which shows what the disk has to do with it.
MEMORY = Path("/dev/shm")
#: The daemon that writes its lines in the event loop, as it did before.
IN_THE_LOOP = """
import sys
from cri_proxy import cli, daemon
class Direct:
    def __init__(self, stream):
        self.write, self.flush, self.isatty, self.fileno = stream.write, stream.flush, stream.isatty, stream.fileno
        self.end = lambda: True
daemon.LogLines = Direct
cli.cli()
"""
#: A daemon on a machine with resctrl.
WITH_RESCTRL = """
from cri_proxy.isolation.io import resctrl
from tests.isolation.kernel import KernelModel
from tests.isolation.node import l3s
resctrl.machine_resctrl = lambda: KernelModel(l3s())
from cri_proxy.launcher import main
main()
"""
#: What is made in turns is batch.
ISOLATION = {"batch": ["qos/Burstable", "qos/BestEffort"], "protected": ["qos/Guaranteed"]}


class Way:
    """A client of a runtime, or of the daemon in front of it."""

    def __init__(self, path: str, name: str, owns: bool = False) -> None:
        self.milliseconds: list[float] = []
        self._owns = owns
        self._client = Client(path)
        self._names = (f"{name}-{number}" for number in itertools.count())

    def create(self) -> None:
        """A pod with a container, which is timed; both are removed."""
        name = next(self._names)
        qos = "guaranteed" if self._owns else "burstable"
        config = pod_config(name, uid=f"uid-{name}", cgroup_parent=cgroup_parent(qos, f"uid-{name}"))
        reply = self._call("RunPodSandbox", cri.RunPodSandboxRequest(config=config).SerializeToString())
        pod = Pod(cri.RunPodSandboxResponse.FromString(reply).pod_sandbox_id, "", name, "default", config)
        size = {"cpu_limit": 3000, "qos": qos} if self._owns else {"cpu_request": 100, "cpu_limit": 2000}
        container = container_config("app", memory_limit=1 << 28, **size)
        request = create_request(pod, container).SerializeToString()
        self._client.prepare("CreateContainer", 1)
        started_s = time.perf_counter()
        reply = self._client.call(request)
        self.milliseconds.append((time.perf_counter() - started_s) * 1000)
        created = cri.CreateContainerResponse.FromString(reply).container_id
        assert created, "the create has failed"
        self._call("RemoveContainer", cri.RemoveContainerRequest(container_id=created).SerializeToString())
        self._call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id).SerializeToString())

    def _call(self, method: str, message: bytes) -> bytes:
        self._client.prepare(method, 1)
        return self._client.call(message)

    def close(self) -> None:
        self._client.close()


async def serve(path: str, running: int) -> None:
    """A fake runtime with so many running containers, until it is ended."""
    async with FakeRuntime(path) as runtime:
        for number in range(running):
            run_without_us(runtime, f"p{number}", cpu_request=100, cpu_limit=1000, memory_limit=1 << 28)
        print("ready", flush=True)
        await asyncio.get_running_loop().create_future()


async def measure(running: int, creates: int) -> float:
    """Rows for a node with so many containers; what the daemon with its state on disk adds beside a direct create."""
    added = []
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-"))
        path = f"{folder}/r.sock"
        stack.enter_context(process("bench.create_cost", "--serve", path, str(running)))
        agents = [Agent(path, machine(HYGON_7285_2S))]
        if MEMORY.is_dir():
            in_memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-", dir=MEMORY))
            agents.append(Agent(path, machine(HYGON_7285_2S), {"state": {"directory": in_memory}}))
        for state, agent in zip(("on disk", "in memory"), agents):
            async with agent:
                added.append(await measure_daemon(running, state, agent, path, creates))
    return added[0]


async def measure_daemon(running: int, state: str, agent: Agent, runtime: str, creates: int) -> float:
    # It knows all containers: what it asks the runtime about them at first is no create's cost.
    pid = await compared(agent)
    direct, through = Way(runtime, f"direct-{state[3:]}"), Way(agent.socket, f"through-{state[3:]}")
    for way in (direct, through):
        for _ in range(TURN):
            way.create()
        way.milliseconds.clear()
    before_s = cpu_s(pid)
    for _ in range(creates // TURN):
        for way in (direct, through):
            for _ in range(TURN):
                way.create()
    own_cpu_ms = (cpu_s(pid) - before_s) * 1000 / len(through.milliseconds)
    direct50, direct99 = (percentile(direct.milliseconds, p) for p in (50, 99))
    own50, own99 = (percentile(through.milliseconds, p) for p in (50, 99))
    figures = [direct50, direct99, own50, own99, own50 - direct50, own99 - direct99, own_cpu_ms]
    print_row(str(running), state, *(f"{figure:.2f}" for figure in figures), f"{resident_mb(pid):.1f}")
    direct.close()
    through.close()
    return (own50 - direct50) / direct50


async def measure_policies(creates: int) -> None:
    """Rows for each policy beside adopted containers: the create's own time, and what others cost that are told."""
    for policy, settings in POLICIES.items():
        for owns in (False, True):
            for running in BESIDE:
                with tempfile.TemporaryDirectory(prefix="crb-") as folder:
                    path = f"{folder}/r.sock"
                    with process("bench.create_cost", "--serve", path, str(running)):
                        config = {"policy": settings, "log": {"level": "error"}}
                        async with Agent(path, machine(HYGON_7285_2S), config) as agent:
                            await measure_beside(policy, owns, running, agent, path, creates)


async def measure_beside(
    policy: str, owns: bool, running: int, agent: Agent, runtime: str, creates: int
) -> None:
    pid = await compared(agent)
    direct, through = Way(runtime, "direct", owns), Way(agent.socket, "through", owns)
    for way in (direct, through):
        way.create()
        way.milliseconds.clear()
    told_before, before_s = await told(agent), cpu_s(pid)
    for _ in range(creates):
        direct.create()
        through.create()
        await told(agent)  # all that is to be told: the next create is beside nothing else
    own_cpu_ms = (cpu_s(pid) - before_s) * 1000 / creates
    count = (await told(agent) - told_before) / creates
    own = percentile(through.milliseconds, 50) - percentile(direct.milliseconds, 50)
    kind = "3 CPUs of its own" if owns else "shared"
    print_row(policy, kind, str(running), f"{own:.2f}", f"{count:.0f}", f"{own_cpu_ms:.2f}")
    direct.close()
    through.close()


async def told(agent: Agent) -> float:
    """How many updates the runtime has taken, once it has them all."""
    while (status := await asyncio.to_thread(ask, agent.control, "status"))["updates_waiting"]:
        await asyncio.sleep(0.01)
    return float(status["counters"].get("cri_resmgr_updates_total{result=sent}", 0))


def pid_of(agent: Agent) -> int:
    assert agent.process is not None
    return agent.process.pid


async def measure_log(creates: int) -> None:
    """Rows of three daemons, in turns: lines written by a thread, in the loop, and none."""
    kinds = {
        "by a thread": ("info", (sys.executable, "-m", "cri_proxy")),
        "in the loop": ("info", (sys.executable, "-c", IN_THE_LOOP)),
        "no lines": ("error", (sys.executable, "-m", "cri_proxy")),
    }
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        path = f"{folder}/r.sock"
        with process("bench.create_cost", "--serve", path, "0"):
            agents = {
                kind: Agent(path, machine(HYGON_7285_2S), {"log": {"level": level}})
                for kind, (level, _) in kinds.items()
            }
            try:
                for kind, agent in agents.items():
                    await agent.start(command=kinds[kind][1])
                ways = {kind: Way(agent.socket, kind.replace(" ", "")) for kind, agent in agents.items()}
                before_s: dict[str, float] = {}
                for turn in range(creates // TURN + 1):
                    for kind, way in ways.items():
                        if turn == 1:  # the first is for getting warm
                            way.milliseconds.clear()
                            before_s[kind] = pid_cpu_s(agents[kind])
                        for _ in range(TURN):
                            way.create()
                for kind, way in ways.items():
                    cpu_ms = (pid_cpu_s(agents[kind]) - before_s[kind]) * 1000 / len(way.milliseconds)
                    cells = [percentile(way.milliseconds, p) for p in (50, 99)]
                    print_row(kind, *(f"{cell:.3f}" for cell in (*cells, cpu_ms)))
                    way.close()
            finally:
                for agent in agents.values():
                    await agent.close()


async def measure_isolation(running: int, creates: int) -> None:
    """Rows of two daemons, in turns: isolation off, and all of it enforced."""
    subjects = dict.fromkeys(("caches", "bandwidth", "protection"), "enforce")
    kinds: dict[str, dict[str, object]] = {"off": {}, "enforced": {**subjects, **ISOLATION}}
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        path = f"{folder}/r.sock"
        with process("bench.create_cost", "--serve", path, str(running)):
            agents = {
                kind: Agent(path, machine(HYGON_7285_2S), {"isolation": section, "log": {"level": "error"}})
                for kind, section in kinds.items()
            }
            try:
                for agent in agents.values():
                    await agent.start(command=(sys.executable, "-c", WITH_RESCTRL))
                    await compared(agent)
                # The same for both: what is made then is one more of batch, beside one that is protected.
                for kind, agent in agents.items():
                    async with CriClient(agent.socket) as client:
                        for number in range(PROTECTED):
                            name = f"{kind}{number}"
                            for qos, size in (("guaranteed", {"cpu_limit": 2000}), ("besteffort", {})):
                                parent = cgroup_parent(qos, f"{qos}-{name}")
                                await run_pod_with(
                                    client, f"{qos}-{name}", qos=qos, pod_cgroup_parent=parent, **size
                                )
                ways = {kind: Way(agent.socket, kind) for kind, agent in agents.items()}
                before_s: dict[str, float] = {}
                for turn in range(creates // TURN + 1):
                    for kind, way in ways.items():
                        if turn == 1:
                            way.milliseconds.clear()
                            before_s[kind] = pid_cpu_s(agents[kind])
                        for _ in range(TURN):
                            await asyncio.to_thread(way.create)
                for kind, way in ways.items():
                    cpu_ms = (pid_cpu_s(agents[kind]) - before_s[kind]) * 1000 / len(way.milliseconds)
                    cells = [percentile(way.milliseconds, p) for p in (50, 99)]
                    print_row(str(running), kind, *(f"{cell:.3f}" for cell in (*cells, cpu_ms)))
                    way.close()
                said = await asyncio.to_thread(ask, agents["enforced"].control, "isolation")
                assert said["meetings"] and said["groups"][0]["state"] == "enforced", said
            finally:
                for agent in agents.values():
                    await agent.close()


def pid_cpu_s(agent: Agent) -> float:
    return cpu_s(pid_of(agent))


async def main(creates: int) -> int:
    print(machine_line(), end="\n\n")
    print_row(
        "running",
        "state",
        "direct p50, ms",
        "p99",
        "through p50",
        "p99",
        "own p50",
        "own p99",
        "CPU ms a pod",
        "MB",
    )
    print_row(*["---"] * 10)
    found = {
        f"create, {running} running: p50 added beside a direct one": await measure(running, creates)
        for running in RUNNING
    }
    return ratios.tell(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--creates", type=int, default=CREATES, help="each way, with each number of containers"
    )
    parser.add_argument("--log", action="store_true", help="what log lines take; ms p50, p99, CPU ms a pod")
    parser.add_argument("--policies", action="store_true", help="all policies, beside adopted containers")
    parser.add_argument(
        "--isolation", action="store_true", help="isolation off and enforced; ms p50, p99, CPU ms a pod"
    )
    parser.add_argument("--serve", nargs=2, metavar=("SOCKET", "RUNNING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(options.serve[0], int(options.serve[1])))
    elif options.policies:
        print_row("policy", "container", "adopted", "own p50, ms", "told a pod", "CPU ms a pod")
        print_row(*["---"] * 6)
        asyncio.run(measure_policies(max(options.creates // 20, 3)))
    elif options.isolation:
        for beside in RUNNING:
            asyncio.run(measure_isolation(beside, options.creates))
    elif options.log:
        asyncio.run(measure_log(options.creates))
    else:
        sys.exit(asyncio.run(main(options.creates)))
