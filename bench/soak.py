"""A node that is used for an hour while it is flooded: ``python -m bench.soak [SECONDS]`` (root: a real containerd).

PODS pods of a real containerd are replaced one by one through the daemon by WORKERS workers, each of which then makes and
removes a pod past the daemon, which is what its calls are held against, and asks both ways what kubelet asks every so
often. Three NRI plugins are connected, an observer sees the traffic of some of the pods, and every minute another
connection floods the daemon. A gate before the runtime tells the runtime's own share of each call, and a watch over the
daemon's event loop which of its steps were long, and what they did.

Exit code 1: it could not run, a call failed, the daemon ended, or the books are wrong afterwards. Times and memory are
reported only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from bench.figures import cpu_s, machine_line, print_row, process, resident_mb
from bench.floods import FLOODS
from bench.loop_watch import read_steps, step_lines
from bench.soak_figures import (
    Call,
    Flooded,
    by_method,
    counter_lines,
    error_lines,
    flood_lines,
    memory_line,
    own_shares,
    rows,
    slow_calls,
    slow_lines,
)
from bench.soak_gate import TAG
from bench.soak_plugin import ASK
from cri_api import runtime_v1_pb2 as cri
from cri_proxy import control
from tests.agent import ROOT, Agent
from tests.cri_client import CriClient, Pod, cgroup_parent, container_config, create_request, pod_config
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES, remove_all_pods, until
from tests.e2e.observer import Observer

PODS = 60
#: Two CPUs are not to be merely overloaded: a worker begins a turn every TURN_S, which takes it about half of that.
WORKERS, TURN_S = 2, 2.0
#: Every MINUTE_S one of the floods, in turns, for so long.
MINUTE_S, FLOOD_S = 60.0, 5.0
MEMORY_S = 10.0
CALL_TIMEOUT_S = 60.0
#: Where the logs and the calls of the last run are kept.
KEPT = ROOT / ".cache" / "soak"
#: One pod in so many asks a plugin for a variable; of so many, one serves and the next one reads from it.
ASKING = TALKING = 10
#: As by default; ``Agent`` has them off, since tests want nothing to happen unasked.
AS_BY_DEFAULT = {
    **REAL_CGROUPS,
    "constants": {"topology_interval_s": 10, "reconcile_interval_s": 30, "reconcile_poll_s": 5},
    "nri": {"host": "on"},
}
OBSERVER = {
    "interval_s": 10.0,
    "half_life_s": 66.0,
    "least_weight": 1000.0,
    "least_share": 0.01,
    "message_lines": 30.0,
}
_SERVES = ("httpd", "-f", "-p", "8080", "-h", "/bin")


@dataclass
class Way:
    """A client of the daemon, or of the runtime past it, and its calls."""

    name: str
    client: CriClient
    calls: list[Call] = field(default_factory=list)
    #: Of its pods, and of its calls.
    numbers: Iterator[int] = field(default_factory=itertools.count)
    tags: Iterator[int] = field(default_factory=itertools.count)
    pods: set[str] = field(default_factory=set)

    async def call(self, method: str, request: Any, about: str = "") -> Any:
        """The reply; None when it failed, which is noted. ``about``: a pod's name or an id, by which the gate knows it."""
        tag = f"call-{next(self.tags)}"
        begun_s, code, reply = time.monotonic(), "OK", None
        try:
            reply = await self.client.call(method, request, timeout=CALL_TIMEOUT_S, metadata=((TAG, tag),))
        except grpc.aio.AioRpcError as error:
            code = f"{error.code().name}: {error.details()}"
        self.calls.append(Call(method, tag, begun_s, time.monotonic(), code, about))
        return reply


@dataclass(frozen=True)
class Made:
    """A pod with its container; "" where a call failed."""

    pod: str
    container: str


class Soak:
    """What goes on beside each other, and what comes of it."""

    def __init__(self, seconds: float, containerd: Containerd, agent: Agent, ours: Way, direct: Way) -> None:
        self.seconds = seconds
        self.containerd = containerd
        self.agent = agent
        self.ours, self.direct = ours, direct
        self.pods: deque[Made] = deque()
        self.floods: list[Flooded] = []
        self.memory: dict[str, list[tuple[float, float]]] = {}
        self.wrong: list[str] = []
        self._server = ""  # the address of the last pod that serves

    # --- pods

    async def make(self, way: Way) -> Made:
        """A pod, as kubelet makes it."""
        number = next(way.numbers)
        uid = str(uuid.uuid4())
        config = pod_config(
            f"{way.name}-{number}",
            uid=uid,
            cgroup_parent=self.containerd.cgroup_parent + cgroup_parent("burstable", uid),
            annotations={ASK: "yes"} if number % ASKING == 5 else {},
        )
        reply = await way.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config), config.metadata.name)
        if reply is None:
            return Made("", "")
        way.pods.add(reply.pod_sandbox_id)
        pod = Pod(reply.pod_sandbox_id, uid, config.metadata.name, config.metadata.namespace, config)
        container = container_config(
            "main", command=self._command(number), cpu_request=10, cpu_limit=1000, memory_limit=16 << 20
        )
        created = await way.call("CreateContainer", create_request(pod, container), pod.name)
        if created is None:
            return Made(pod.id, "")
        await way.call(
            "StartContainer",
            cri.StartContainerRequest(container_id=created.container_id),
            created.container_id,
        )
        status = await way.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id))
        if status is not None and number % TALKING == 0 and way is self.ours:
            self._server = status.status.network.ip
        return Made(pod.id, created.container_id)

    def _command(self, number: int) -> tuple[str, ...]:
        if number % TALKING == 0:
            return _SERVES
        if number % TALKING == 1 and self._server:
            reads = f"wget -q -O /dev/null http://{self._server}:8080/busybox"
            return ("sh", "-c", f"while :; do {reads}; sleep 1; done")
        return ("sleep", "1000000")

    async def remove(self, way: Way, made: Made) -> None:
        """A pod that ends, as kubelet ends it."""
        if made.container:
            stop = cri.StopContainerRequest(container_id=made.container, timeout=0)
            await way.call("StopContainer", stop, made.container)
            await way.call(
                "RemoveContainer", cri.RemoveContainerRequest(container_id=made.container), made.container
            )
        if made.pod:
            await way.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=made.pod), made.pod)
            await way.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=made.pod), made.pod)

    async def ask(self, way: Way, made: Made) -> None:
        """What kubelet asks again and again, and a change."""
        await way.call("Version", cri.VersionRequest())
        await way.call("ListPodSandbox", cri.ListPodSandboxRequest())
        await way.call("ListContainers", cri.ListContainersRequest())
        if made.container:
            await way.call("ContainerStatus", cri.ContainerStatusRequest(container_id=made.container))
            linux = cri.LinuxContainerResources(cpu_shares=random.randrange(2, 1024))
            request = cri.UpdateContainerResourcesRequest(container_id=made.container, linux=linux)
            await way.call("UpdateContainerResources", request)

    # --- beside each other

    async def fill(self) -> None:
        """All pods; these calls are not measured."""
        for _ in range(PODS):
            self.pods.append(await self.make(self.ours))
        self.wrong += error_lines("filling", self.ours.calls)
        self.ours.calls.clear()

    async def work(self, until_s: float) -> None:
        """One worker: a pod replaced through the daemon, then one made and removed past it."""
        while (begun_s := time.monotonic()) < until_s:
            await self.remove(self.ours, self.pods.popleft())
            made = await self.make(self.ours)
            self.pods.append(made)
            await self.ask(self.ours, made)
            past = await self.make(self.direct)
            await self.ask(self.direct, past)
            await self.remove(self.direct, past)
            await asyncio.sleep(begun_s + TURN_S - time.monotonic())

    async def flood(self, until_s: float, every_s: float, names: Iterable[str]) -> None:
        """The floods in turns, each a process of its own."""
        for name in itertools.cycle(names):
            await asyncio.sleep(every_s - FLOOD_S)
            if time.monotonic() > until_s - FLOOD_S:
                return
            begun_s = time.monotonic()
            flood = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.floods", "--flood", name, self.agent.socket),
                stdout=asyncio.subprocess.DEVNULL,
                cwd=ROOT,
            )
            await asyncio.sleep(FLOOD_S)
            if flood.returncode is None:
                flood.kill()
            elif flood.returncode:
                self.wrong.append(f"the flood {name!r} has ended with exit code {flood.returncode}")
            await flood.wait()
            self.floods.append(Flooded(name, begun_s, time.monotonic()))

    async def watch(self, until_s: float, pids: dict[str, int]) -> None:
        """Resident memory of processes, every MEMORY_S or a thirtieth of the time."""
        while (now_s := time.monotonic()) < until_s:
            for name, pid in pids.items():
                with contextlib.suppress(OSError):
                    self.memory.setdefault(name, []).append((now_s, resident_mb(pid)))
            await asyncio.sleep(min(MEMORY_S, self.seconds / 30))

    async def empty(self) -> None:
        """Every pod removed through the daemon."""
        for made in self.pods:
            await self.remove(self.ours, made)
        self.pods.clear()

    # --- the books

    async def status(self) -> Any:
        return await asyncio.to_thread(control.ask, self.agent.control, "status")

    async def check_books(self, plugins: dict[str, asyncio.subprocess.Process]) -> list[str]:
        """What the daemon and its plugins think is there, when nothing is; lines for the report."""

        async def left() -> tuple[Any, dict[str, Any]]:
            rows = await asyncio.to_thread(control.ask, self.agent.control, "placements")
            return rows, {name: await account_of(plugin) for name, plugin in plugins.items()}

        with contextlib.suppress(AssertionError):
            await until(left, lambda all_: not all_[0] and not any(a["pods"] for a in all_[1].values()))
        placements, accounts = await left()
        status = await self.status()
        self.expect(not placements, f"placements of what is gone: {placements}")
        self.expect(not status["degraded"], f"degraded: {status['degraded']}")
        self.expect(not status["invariants"], f"invariants: {status['invariants']}")
        self.expect(not status["in_doubt"], f"creates of unknown outcome: {status['in_doubt']}")
        connected = [plugin["name"] for plugin in status["nri"]["plugins"]]
        self.expect(len(connected) == 3, f"only these plugins are connected: {connected}")
        lines = []
        for name, account in accounts.items():
            ghosts, rest = account["ghosts"], account["pods"] + account["containers"]
            of_ours = [ghost["what"] for ghost in ghosts if ghost["pod"] not in self.direct.pods]
            self.expect(not of_ours, f"{name}: {len(of_ours)} ghosts: {of_ours[:5]}")
            self.expect(not rest, f"{name}: {len(rest)} never told to be removed: {rest[:5]}")
            lines.append(
                f"plugin {name}: {account['calls']} calls, {len(of_ours)} ghosts ({len(ghosts) - len(of_ours)} more of pods "
                f"made past the daemon), {len(rest)} left"
            )
        return lines + counter_lines(status["counters"])

    def expect(self, is_right: Any, sentence: str) -> None:
        if not is_right:
            self.wrong.append(sentence)


async def account_of(plugin: asyncio.subprocess.Process) -> Any:
    """What a soak_plugin knows."""
    assert plugin.stdin is not None and plugin.stdout is not None
    plugin.stdin.write(b"\n")
    line = await plugin.stdout.readline()
    gone = {"calls": 0, "ghosts": [], "pods": ["the plugin is gone"], "containers": []}
    return json.loads(line) if line else gone


@contextlib.asynccontextmanager
async def plugins_of(agent: Agent) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """One plugin that reads nothing, and two that keep account, of which the last asks for something; these two."""
    where = str(agent.config["nri"]["socket"])
    pipe = asyncio.subprocess.PIPE
    running = {}
    try:
        for module, title in (
            ("nri_plugin", "10-idle"),
            ("soak_plugin", "20-counts"),
            ("soak_plugin", "30-asks"),
        ):
            running[title] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"bench.{module}", where, title),
                stdin=pipe,
                stdout=pipe,
                cwd=ROOT,
                limit=1 << 24,
            )
            if module == "soak_plugin":
                stdout = running[title].stdout
                assert stdout is not None and await stdout.readline() == b"ready\n"
        yield {title: plugin for title, plugin in running.items() if title != "10-idle"}
    finally:
        for plugin in running.values():
            with contextlib.suppress(ProcessLookupError):
                plugin.kill()
            await plugin.wait()


# ---------------------------------------------------------------------- the whole


async def run(seconds: float, floods: list[str], minute_s: float) -> int:
    """Build the node, let it go on for so long, report; the exit code."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-")))
        containerd = Containerd(folder / "c", images=folder, cpus=CPUS)
        await asyncio.to_thread(containerd.start)
        stack.push_async_callback(asyncio.to_thread, containerd.close)
        gate, notes = folder / "gate.sock", folder / "gate.jsonl"
        stack.enter_context(process("bench.soak_gate", str(gate), str(containerd.socket), str(notes)))
        observer = Observer(containerd.socket, **OBSERVER)
        stack.push_async_callback(observer.close)
        agent = Agent(gate, TWO_NODES, {**AS_BY_DEFAULT, "affinity": {"socket": str(observer.socket)}})
        stack.push_async_callback(agent.close)
        steps = folder / "steps.jsonl"
        stack.callback(keep, daemon=agent.log_file, observer=observer.log_file, gate=notes, steps=steps)
        direct = Way("direct", await stack.enter_async_context(CriClient(str(containerd.socket))))
        stack.push_async_callback(remove_all_pods, direct.client)
        ours = Way("ours", await stack.enter_async_context(CriClient(agent.socket)))
        await observer.start()
        await agent.start(command=(sys.executable, "-m", "bench.loop_watch", str(steps)))
        plugins = await stack.enter_async_context(plugins_of(agent))
        assert agent.process is not None and observer.process is not None
        pids = {"daemon": agent.process.pid, "observer": observer.process.pid}
        soak = Soak(seconds, containerd, agent, ours, direct)
        await soak.fill()
        before_s, begun_s = cpu_s(agent.process.pid), time.monotonic()
        until_s = begun_s + seconds
        await asyncio.gather(
            *(soak.work(until_s) for _ in range(WORKERS)),
            soak.flood(until_s, minute_s, floods),
            soak.watch(until_s, pids),
        )
        soak.expect(agent.process.returncode is None, "the daemon has ended")
        if agent.process.returncode is not None:
            return report(soak, notes, ["no books: the daemon has ended"])
        share = (cpu_s(agent.process.pid) - before_s) / (time.monotonic() - begun_s)
        graph = await observer.graph()
        lines = [
            f"the daemon took {share * 100:.0f} % of a CPU, the observer ({graph.status.provider}) saw "
            f"{len(graph.edges)} edges among {len(graph.endpoints)} endpoints",
            f"status before the end: {brief(await soak.status())}",
        ]
        await soak.empty()
        lines += await soak.check_books(plugins)
        lines += step_lines(read_steps(steps))
        return report(soak, notes, lines)


def brief(status: Any) -> str:
    """What of a status is to be seen."""
    plugins = [f"{plugin['index']}-{plugin['name']}" for plugin in status["nri"]["plugins"]]
    return (
        f"containers {status['containers']}, degraded {status['degraded'] or 'no'}, invariants "
        f"{status['invariants'] or 'hold'}, plugins {plugins}"
    )


def keep(**files: Path) -> None:
    """The files of the last run stay where they can be read."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(file, KEPT / name)


def runtimes_shares(notes: Path) -> dict[tuple[str, str], float]:
    """Seconds of the runtime's own answers to a call, by method and tag: of a create that is made twice, both."""
    found: dict[tuple[str, str], float] = {}
    for line in notes.read_text().splitlines():
        method, tag, begun_s, ended_s = json.loads(line)
        found[method, tag] = found.get((method, tag), 0.0) + ended_s - begun_s
    return found


def log_lines(log: Path) -> list[str]:
    """How much a log has become, and what it complains of."""
    text = log.read_text(errors="replace")
    worst = Counter(" ".join(line.split()[1:5]) for line in text.splitlines() if "error" in line[:60])
    lines = [
        f"the daemon's log: {len(text) / 1e6:.2f} MB, {text.count(chr(10))} lines, {text.count('Traceback')} tracebacks"
    ]
    return lines + [f"  {count} x {words}" for words, count in worst.most_common(10)]


def report(soak: Soak, notes: Path, lines: list[str]) -> int:
    """Everything, as text; the exit code."""
    direct, runtime = by_method(soak.direct.calls), runtimes_shares(notes)
    print(machine_line())
    print(
        f"{soak.seconds:.0f} s, {PODS} pods, {len(soak.ours.calls)} calls through the daemon, "
        f"{len(soak.direct.calls)} past it\n"
    )
    print_row(
        "ms", "calls", "ours p50", "p99", "most", "direct p50", "p99", "most", "beside the runtime p50", "p99"
    )
    print_row(*["---"] * 10)
    for row in rows(by_method(soak.ours.calls), direct, own_shares(soak.ours.calls, runtime)):
        print_row(*row)
    print()
    lines = [
        *slow_lines(slow_calls(soak.ours.calls, direct, runtime, soak.floods)),
        *flood_lines(soak.floods, soak.memory["daemon"]),
        *(memory_line(f"resident, {name}", samples) for name, samples in soak.memory.items()),
        *lines,
        *log_lines(soak.agent.log_file),
    ]
    soak.wrong += [*error_lines("ours", soak.ours.calls), *error_lines("direct", soak.direct.calls)]
    print("\n".join([*lines, *(f"WRONG: {sentence}" for sentence in soak.wrong)]), flush=True)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=3600.0)
    parser.add_argument("--minute", type=float, default=MINUTE_S, help="seconds from one flood to the next")
    parser.add_argument("--floods", nargs="*", default=[name for name in FLOODS if name != "nothing"])
    options = parser.parse_args()
    if sentence := missing():
        sys.exit(sentence)
    sys.exit(asyncio.run(run(options.seconds, options.floods, options.minute)))
