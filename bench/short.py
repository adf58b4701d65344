"""Ratios that are steady within one run: ``python -m bench.short [GROUP...] [--write]``. Two minutes.

Held against the table that is kept (``ratios.json``); exit code 1: something is worse than its tolerance allows, twice.
Nothing here is elapsed time. CPU time of a process that relays or decides is set beside that of the same calls made
directly (client and runtime), or of a loop of plain Python, in turns, and the median of the turns counts; memory beside
that of a Python that has imported asyncio; and counts are the same in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import decision_time, demand, ratios
from bench.container_memory import FIRST, compared, start_container
from bench.figures import cpu_s, machine_line, memory_mb, process, steady
from bench.raw import Client
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.control import ask
from tests.agent import ROOT, Agent
from tests.cri_client import Pod, container_config, create_request, pod_config
from tests.machines import HYGON_7285_2S, machine
from tests.scenes import topology

ROUNDS = 9
#: Calls, or pods, in one turn.
CALLS, PODS = 150, 10
LISTED, RUNNING = 500, 300
#: Admits and loops of plain Python in one turn.
ADMITS = 20
STARTS = 5
CONTAINERS = 300
#: What the launcher imports, as it does.
IMPORTS = """
from cri_proxy.light_imports import lightly
with lightly():
    import cri_proxy.cli.main, cri_proxy.daemon.daemon, cri_proxy.daemon.proxy
"""
#: Prints its own resident memory, kB.
BARE = "import asyncio; print(*(line for line in open('/proc/self/status') if line.startswith('VmRSS')))"
VERSION = cri.VersionRequest(version="v1").SerializeToString()


def writes_of(pid: int) -> int:
    """How many times a process has called write(2) and its like on files."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("syscw:"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/io has no syscw")


# ---------------------------------------------------------------------- calls


class Turns:
    """Two ways to one runtime, in turns: what the process between takes beside what a direct call takes in all."""

    def __init__(self, runtime: int, between: int) -> None:
        self._runtime, self._between = runtime, between
        self.found: list[float] = []

    def turn(self, direct: Callable[[], object], through: Callable[[], object]) -> None:
        before_s = time.process_time() + cpu_s(self._runtime)
        direct()
        direct_s = time.process_time() + cpu_s(self._runtime) - before_s
        before_s = cpu_s(self._between)
        through()
        self.found.append((cpu_s(self._between) - before_s) / direct_s)

    def result(self) -> float:
        """The first turn is for getting warm."""
        return statistics.median(self.found[1:])


def call(client: Client, method: str, message: bytes, count: int = 1) -> bytes:
    client.prepare(method, count)
    for _ in range(count - 1):
        client.call(message)
    return client.call(message)


def measure_relay() -> dict[str, float]:
    """A bare frame relay; it, the client and the runtime share a CPU, so that every run has as many reads a message."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="crb-") as folder, contextlib.ExitStack() as stack:
        stack.enter_context(steady())
        runtime, path = f"{folder}/r.sock", f"{folder}/k.sock"
        served = stack.enter_context(process("bench.raw", runtime, str(LISTED)))
        relay = stack.enter_context(process("bench.relay_latency", "--serve", "frames", runtime, path))
        direct, through = (stack.enter_context(contextlib.closing(Client(to))) for to in (runtime, path))
        for method, message, count in (("Version", VERSION, CALLS), ("ListContainers", b"", CALLS // 3)):
            turns = Turns(served, relay)
            for _ in range(ROUNDS + 1):
                turns.turn(
                    functools.partial(call, direct, method, message, count),
                    functools.partial(call, through, method, message, count),
                )
            found[f"relay {method}: CPU beside a direct call's"] = turns.result()
    return found


class Kubelet:
    """Makes pods of one container and removes them: seven calls."""

    def __init__(self, path: str, name: str, volumes: int = 0, cdi: tuple[str, ...] = ()) -> None:
        self.client = Client(path)
        self._cdi = cdi
        self._names = (f"{name}-{number}" for number in itertools.count())
        self._volumes = volumes

    def pod(self) -> None:
        name, client = next(self._names), self.client
        config = pod_config(name, uid=f"uid-{name}")
        run = cri.RunPodSandboxRequest(config=config)
        sandbox = cri.RunPodSandboxResponse.FromString(
            call(client, "RunPodSandbox", run.SerializeToString())
        ).pod_sandbox_id
        container = container_config(
            "app", cdi=self._cdi, cpu_request=100, cpu_limit=2000, memory_limit=1 << 28
        )
        for number in range(self._volumes):
            container.mounts.add(
                container_path=f"/v{number}", host_path=f"/var/lib/kubelet/pods/{name}/v{number}"
            )
        create = create_request(Pod(sandbox, "", name, "default", config), container)
        reply = call(client, "CreateContainer", create.SerializeToString())
        id_ = cri.CreateContainerResponse.FromString(reply).container_id
        assert id_, "the create has failed"
        call(client, "StartContainer", cri.StartContainerRequest(container_id=id_).SerializeToString())
        call(client, "StopContainer", cri.StopContainerRequest(container_id=id_).SerializeToString())
        call(client, "RemoveContainer", cri.RemoveContainerRequest(container_id=id_).SerializeToString())
        call(client, "StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox).SerializeToString())
        call(
            client,
            "RemovePodSandbox",
            cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox).SerializeToString(),
        )

    def pods(self) -> None:
        for _ in range(PODS):
            self.pod()


async def measure_pods() -> dict[str, float]:
    """Whole daemons: nothing runs, so many containers run, and pods with volumes."""
    found: dict[str, float] = {}
    for running in (0, RUNNING):
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(steady())
            path = f"{stack.enter_context(tempfile.TemporaryDirectory(prefix='crb-'))}/r.sock"
            served = stack.enter_context(process("bench.create_cost", "--serve", path, str(running)))
            agent = await stack.enter_async_context(Agent(path, machine(HYGON_7285_2S)))
            pid = await compared(agent)
            for volumes in (0, 8)[: 1 if running else 2]:
                turns = Turns(served, pid)
                direct = Kubelet(path, f"direct-{volumes}", volumes)
                through = Kubelet(agent.socket, f"through-{volumes}", volumes)
                for _ in range(ROUNDS + 1):
                    turns.turn(direct.pods, through.pods)
                what = f"{running} running" + f", {volumes} volumes" * bool(volumes)
                found[f"pod, {what}: CPU beside its seven direct calls'"] = turns.result()
                if not running and not volumes:
                    before = writes_of(pid)
                    through.pods()
                    found["pod: writes to files"] = (writes_of(pid) - before) / PODS
                direct.client.close()
                through.client.close()
    return found


# ---------------------------------------------------------------------- decisions


def plain_python() -> None:
    """A loop of dictionaries, sets and small objects, which decisions are set beside: about a millisecond."""
    table: dict[int, frozenset[int]] = {}
    for number in range(1500):
        table[number % 97] = frozenset((number, number + 1)) | table.get(number % 89, frozenset((0,)))
        if len(table[number % 97]) > 8:
            table[number % 97] = frozenset((number,))
    sorted(table.items(), key=lambda item: (len(item[1]), item[0]))


def measure_decisions() -> dict[str, float]:
    """Admitting one of 2 CPUs on 512 CPUs with 1,000 containers."""
    found = {}
    for policy in ("hygon", "topology-aware", "balloons"):
        engine = decision_time.filled(policy)
        message = decision_time.request(decision_time.CONTAINERS, "2 CPUs")
        rounds = []
        for _ in range(ROUNDS + 1):
            started_s = time.thread_time()
            for _ in range(ADMITS):
                plain_python()
            plain_s = time.thread_time() - started_s
            _, admits, _ = decision_time.measure(engine, message, ADMITS)
            rounds.append(sum(admits) / plain_s)
        found[f"{policy}: admitting beside a loop of plain Python"] = statistics.median(rounds[1:])
    return found


def measure_demand() -> dict[str, float]:
    """One case of sizes by demand: the same in every run."""
    return {"sizes by demand: L3s beside those by limit": demand.l3s_beside_limits(topology(HYGON_7285_2S))}


# ---------------------------------------------------------------------- start and memory


def measure_imports() -> dict[str, float]:
    """What the daemon imports beside asyncio alone, compiled."""

    def took_s(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    with tempfile.TemporaryDirectory(prefix="crb-") as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        took_s(IMPORTS)
        times = [took_s(IMPORTS) / took_s("import asyncio") for _ in range(STARTS)]
        counted = subprocess.run(
            [sys.executable, "-c", f"{IMPORTS}\nimport sys; print(len(sys.modules))"],
            env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE,
        )  # fmt: skip
    return {
        "imports: CPU beside asyncio's": statistics.median(times),
        "imports: modules": float(counted.stdout),
    }


async def measure_memory() -> dict[str, float]:
    """A daemon with a few containers, and what more take of it, beside the bytes of such a container's messages."""
    bare = subprocess.run([sys.executable, "-c", BARE], check=True, stdout=subprocess.PIPE)
    async with contextlib.AsyncExitStack() as stack:
        path = f"{stack.enter_context(tempfile.TemporaryDirectory(prefix='crb-'))}/r.sock"
        stack.enter_context(process("bench.create_cost", "--serve", path, "0"))
        agent = await stack.enter_async_context(Agent(path, machine(HYGON_7285_2S)))
        pid = await compared(agent)
        client = stack.enter_context(contextlib.closing(Client(agent.socket)))
        megabytes = []
        for first, last in ((0, FIRST), (FIRST, FIRST + CONTAINERS)):
            for number in range(first, last):
                start_container(client, number)
            await asyncio.to_thread(ask, agent.control, "status")
            megabytes.append(memory_mb(pid)[0])
    return {
        "memory: resident beside asyncio alone": megabytes[0] * 1024 / int(bare.stdout.split()[1]),
        "memory: kB a container": (megabytes[1] - megabytes[0]) * 1024 / CONTAINERS,
    }


GROUPS: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "relay": measure_relay,
    "pods": lambda: asyncio.run(measure_pods()),
    "decisions": measure_decisions,
    "demand": measure_demand,
    "imports": measure_imports,
    "memory": lambda: asyncio.run(measure_memory()),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all of them by default"
    )
    parser.add_argument("--write", action="store_true", help="enter what is measured into the table")
    options = parser.parse_args()
    unknown = [group for group in options.groups if group not in GROUPS]
    if unknown:
        parser.error(f"{unknown[0]!r} is no group of ratios; there are {', '.join(GROUPS)}")
    kept = ratios.read()
    print(machine_line(), "", *ratios.HEAD, sep="\n", flush=True)
    found: dict[str, float] = {}
    for group in options.groups or GROUPS:
        measure = GROUPS[group]
        of_group = dict(measure()) if options.write else ratios.hold(measure, kept)
        print(*ratios.judge(of_group, kept), sep="\n", flush=True)
        found.update(of_group)
    if options.write:
        ratios.write(found)
        return 0
    names = ratios.worse(found, kept)
    if names:
        print(f"\nworse than {ratios.TABLE.name} allows, twice: {'; '.join(names)}", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
