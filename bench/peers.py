"""What other relays add to a call, beside us: ``python -m bench.peers [--rounds N] [--containers N] [--fifo]``.

The same calls of a client with grpc-go go to runtimes with grpc-go (``tests/peers/grpc-go``), every way in turns:

- direct: past everything;
- grpc-go: a plain relay with that library, which reads nothing (``tests/peers/grpc-go/passthrough``);
- Intel's: cri-resource-manager with its default policy, which is none, and with topology-aware, without its agent;
- ours: the daemon with its default policy, and with topology-aware.

Each way has a runtime of its own, so that each knows the containers of its runtime and no others. Client and runtimes
have one CPU, all that is in between has another. A round is one turn of each way with each kind of call, each time
another way first. ``--fifo``: all run before what else the machine does (SCHED_FIFO; root), which busy machines need for
times to say anything.

Intel's writes /run/intel-cri-resmgr.pid whatever its flags say: it has an empty /run of its own (root).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import yaml

from bench.figures import cpu_s, machine_line, percentile, print_row
from bench.turns import DIRECT, Turns, added_99_s, added_s, of_each, rotated, spread
from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import (
    Pod,
    cgroup_parent,
    container_config,
    container_resources,
    create_request,
    pod_config,
)
from tests.machines import HYGON_7285_2S, machine, write_sysfs
from tests.peers.programs import Unavailable, find

SERVICE = "/runtime.v1.RuntimeService/"
VERSION = cri.VersionRequest(version="v1").SerializeToString()
#: Calls of a turn; of those that make and change pods, which take longer, fewer.
TURN, POD_TURN = 25, 10
ROUNDS = 30
CONTAINERS = 500
ENDS_CPU, BETWEEN_CPU = 0, 1
READY_S = 60.0
GRPC_GO, OURS, OURS_AWARE = "grpc-go", "ours", "ours, topology-aware"
INTELS, INTELS_AWARE = "Intel's, none", "Intel's, topology-aware"
#: By Intel's way, and by ours: the configuration. Both reserve the same for the system.
AWARE = {"policy": {"Active": "topology-aware", "ReservedResources": {"CPU": "750m"}}}
CONFIGURATIONS: Mapping[str, Mapping[str, object]] = {
    INTELS: {"policy": {"Active": "none"}},
    INTELS_AWARE: AWARE,
    OURS: {},
    OURS_AWARE: AWARE,
}
#: What is set beside what.
PAIRS = (
    (OURS, INTELS),
    (OURS_AWARE, INTELS_AWARE),
    (OURS, GRPC_GO),
    (OURS_AWARE, GRPC_GO),
    (INTELS, GRPC_GO),
    (INTELS_AWARE, GRPC_GO),
)
#: Intel's, in a mount namespace.
IN_A_RUN_OF_ITS_OWN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs run /run && exec "$@"', "sh")


@dataclass
class Way:
    """One way to a runtime; ``pid``: the process in between (0: none)."""

    name: str
    socket: str
    pid: int = 0
    #: Pods of the turn that runs, with the container of each.
    pods: list[Pod] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)
    made: int = 0


class Caller:
    """The client's process, which makes the calls of a turn and times each."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def calls(
        self, way: Way, method: str, requests: Sequence[bytes], wants_replies: bool = False
    ) -> tuple[Sequence[float], list[bytes]]:
        """How long each call took, and the replies where they are wanted.

        :raises RuntimeError: a call has failed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {
            "socket": way.socket,
            "method": SERVICE + method,
            "requests": [base64.b64encode(request).decode() for request in requests],
            "replies": wants_replies,
        }
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        if done["error"]:
            raise RuntimeError(f"{method}, {way.name}: {done['error']}")
        return done["seconds"], [base64.b64decode(reply) for reply in done["replies"] or ()]

    def close(self) -> None:
        self._process.communicate()


# ---------------------------------------------------------------------- turns


def version(caller: Caller, way: Way) -> Sequence[float]:
    return caller.calls(way, "Version", [VERSION] * TURN)[0]


def lists(caller: Caller, way: Way) -> Sequence[float]:
    return caller.calls(way, "ListContainers", [b""] * TURN)[0]


def run_pods(caller: Caller, way: Way, count: int = POD_TURN) -> Sequence[float]:
    """Pods of burstable containers."""
    names = [f"pod-{way.made + number}" for number in range(count)]
    way.made += count
    configs = [
        pod_config(name, uid=f"uid-{name}", cgroup_parent=cgroup_parent("burstable", f"uid-{name}"))
        for name in names
    ]
    requests = [cri.RunPodSandboxRequest(config=config).SerializeToString() for config in configs]
    seconds, replies = caller.calls(way, "RunPodSandbox", requests, wants_replies=True)
    ids = [cri.RunPodSandboxResponse.FromString(reply).pod_sandbox_id for reply in replies]
    way.pods = [
        Pod(pod, config.metadata.uid, name, "default", config)
        for pod, name, config in zip(ids, names, configs)
    ]
    return seconds


def create(caller: Caller, way: Way) -> Sequence[float]:
    config = container_config("app", cpu_request=100, cpu_limit=2000, memory_limit=1 << 28)
    requests = [create_request(pod, config).SerializeToString() for pod in way.pods]
    seconds, replies = caller.calls(way, "CreateContainer", requests, wants_replies=True)
    way.containers = [cri.CreateContainerResponse.FromString(reply).container_id for reply in replies]
    return seconds


def start(caller: Caller, way: Way) -> Sequence[float]:
    requests = [cri.StartContainerRequest(container_id=each).SerializeToString() for each in way.containers]
    return caller.calls(way, "StartContainer", requests)[0]


def update(caller: Caller, way: Way) -> Sequence[float]:
    """A larger request and limit, as when a pod is resized in place."""
    linux = container_resources(cpu_request=200, cpu_limit=3000, memory_limit=1 << 28)
    requests = [
        cri.UpdateContainerResourcesRequest(container_id=each, linux=linux).SerializeToString()
        for each in way.containers
    ]
    return caller.calls(way, "UpdateContainerResources", requests)[0]


def remove(caller: Caller, way: Way) -> Sequence[float]:
    """Stop and remove all; the time of both is that of one call of this kind."""
    seconds = [0.0] * len(way.pods)
    containers, pods = way.containers, [pod.id for pod in way.pods]
    for method, messages in (
        ("StopContainer", [cri.StopContainerRequest(container_id=each) for each in containers]),
        ("RemoveContainer", [cri.RemoveContainerRequest(container_id=each) for each in containers]),
        ("StopPodSandbox", [cri.StopPodSandboxRequest(pod_sandbox_id=each) for each in pods]),
        ("RemovePodSandbox", [cri.RemovePodSandboxRequest(pod_sandbox_id=each) for each in pods]),
    ):
        took, _ = caller.calls(way, method, [message.SerializeToString() for message in messages])
        seconds = [sum(each) for each in zip(seconds, took)]
    return seconds


#: The kinds of calls of a round, in this order: pods are made before they are removed.
KINDS: Mapping[str, Callable[[Caller, Way], Sequence[float]]] = {
    "Version": version,
    "ListContainers": lists,
    "RunPodSandbox": run_pods,
    "CreateContainer": create,
    "StartContainer": start,
    "UpdateContainerResources": update,
    "the four that stop and remove": remove,
}


def populate(caller: Caller, way: Way, count: int) -> None:
    """So many running containers, made through the way itself."""
    run_pods(caller, way, count)
    create(caller, way)
    start(caller, way)


def measure(caller: Caller, ways: Sequence[Way], rounds: int) -> dict[str, dict[str, Turns]]:
    """All kinds of calls, every way, in turns; by kind and way. The first round only gets all warm."""
    found = {kind: {way.name: Turns() for way in ways} for kind in KINDS}
    for number in range(-1, rounds):
        for kind, turn in KINDS.items():
            # What a process does after its replies is its calls', too: its CPU time is that of the whole round.
            before_s = {way.name: cpu_s(way.pid) for way in ways}
            seconds = {way.name: turn(caller, way) for way in rotated(ways, number)}
            for way in ways:
                if number >= 0:
                    spent_s = cpu_s(way.pid) - before_s[way.name]
                    turns = found[kind][way.name]
                    turns.seconds.append(seconds[way.name])
                    turns.cpu_s.append(spent_s / len(seconds[way.name]))
    return found


# ---------------------------------------------------------------------- what is said


def rows(found: Mapping[str, Mapping[str, Turns]]) -> Iterator[tuple[str, ...]]:
    """A row for each kind of call and way, in microseconds."""
    yield ("µs", "", "p50", "added p50 (quartiles)", "added p99", "CPU a call (quartiles)")
    yield ("---",) * 6
    for kind, by_way in found.items():
        for way, turns in by_way.items():
            p50 = f"{percentile(turns.all_s(), 50) * 1e6:,.0f}"
            if way == DIRECT:
                yield (kind, way, p50, "", f"p99 {percentile(turns.all_s(), 99) * 1e6:,.0f}", "")
                continue
            added = spread([each * 1e6 for each in added_s(by_way, way)])
            cpu = spread([each * 1e6 for each in turns.cpu_s])
            yield (kind, way, p50, f"{added:,.0f}", f"{added_99_s(by_way, way) * 1e6:,.0f}", f"{cpu:,.0f}")


def ratio_rows(found: Mapping[str, Mapping[str, Turns]]) -> Iterator[tuple[str, ...]]:
    """A row for each kind of call and pair: how many times the other's."""
    yield ("times the other's", "", "added p50 (quartiles)", "added p99", "CPU a call (quartiles)")
    yield ("---",) * 5
    for kind, by_way in found.items():
        for one, other in PAIRS:
            added = of_each(added_s(by_way, one), added_s(by_way, other))
            cpu = of_each(by_way[one].cpu_s, by_way[other].cpu_s)
            own_99_s, other_99_s = added_99_s(by_way, one), added_99_s(by_way, other)
            p99 = f"{own_99_s / other_99_s:.3f}" if min(own_99_s, other_99_s) > 0 else "none"
            yield (kind, f"{one} / {other}", f"{added:.3f}", p99, f"{cpu:.3f}")


# ---------------------------------------------------------------------- the processes


@contextlib.contextmanager
def on_cpu(cpu: int, is_first: bool) -> Iterator[None]:
    """What is started meanwhile has this CPU alone; ``is_first``: before all that does not, too."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    if is_first:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        if is_first:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def program(*words: object) -> Iterator[int]:
    """A program that says "ready"; its pid."""
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == b"ready\n"
            yield started.pid
        finally:
            started.terminate()


def intels_command(found: Path, folder: Path, runtime: str) -> tuple[str, ...]:
    """Intel's, with all paths that it can be told in a folder, the machine's among them; no agent, no page."""
    flags = {
        "host-root": folder / "root",
        "runtime-socket": runtime,
        "relay-socket": folder / "k.sock",
        "relay-dir": folder / "state",
        "agent-socket": folder / "agent.sock",
        "config-socket": folder / "config.sock",
        "force-config": folder / "config.yaml",
    }
    return (str(found), *(f"--{name}={value}" for name, value in flags.items()), "--disable-ui")


@contextlib.contextmanager
def intels(found: Path, folder: Path, runtime: str, configuration: Mapping[str, object]) -> Iterator[int]:
    """Intel's daemon, serving; its pid."""
    folder.mkdir()
    write_sysfs(HYGON_7285_2S, folder / "root")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(configuration)))
    command = (*IN_A_RUN_OF_ITS_OWN, *intels_command(found, folder, runtime))
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as started:
        try:
            until_s = time.monotonic() + READY_S
            while b"up and running" not in (folder / "log").read_bytes():
                if started.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError(f"Intel's does not serve: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield started.pid
        finally:
            started.kill()


async def all_ways(
    stack: contextlib.AsyncExitStack, programs: Mapping[str, Path], folder: Path, is_first: bool
) -> list[Way]:
    """Everything started, each way before a runtime of its own."""

    def runtime(number: int) -> str:
        with on_cpu(ENDS_CPU, is_first):
            path = f"{folder}/r{number}.sock"
            stack.enter_context(program(programs["cri-runtime"], path))
        return path

    ways = [Way(DIRECT, runtime(0)), Way(GRPC_GO, f"{folder}/g.sock")]
    behind = runtime(1)
    with on_cpu(BETWEEN_CPU, is_first):
        ways[1].pid = stack.enter_context(program(programs["grpc-passthrough"], behind, ways[1].socket))
    for number, (name, configuration) in enumerate(CONFIGURATIONS.items(), start=2):
        behind = runtime(number)
        if name in (INTELS, INTELS_AWARE):
            own = folder / f"i{number}"
            with on_cpu(BETWEEN_CPU, is_first):
                pid = stack.enter_context(intels(programs["intel-cri-resmgr"], own, behind, configuration))
            ways.append(Way(name, str(own / "k.sock"), pid))
        else:
            agent = Agent(behind, machine(HYGON_7285_2S), configuration)
            agent.constants.clear()  # its periodic work is done, as on a node
            stack.push_async_callback(agent.close)
            with on_cpu(BETWEEN_CPU, is_first):
                await agent.start()
            assert agent.process is not None
            ways.append(Way(name, agent.socket, agent.process.pid))
    return ways


async def main(rounds: int, containers: int, is_first: bool) -> int:
    try:
        programs = find("cri-caller", "cri-runtime", "grpc-passthrough", "intel-cri-resmgr")
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    print(machine_line())
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-")))
        ways = await all_ways(stack, programs, folder, is_first)
        with on_cpu(ENDS_CPU, is_first):
            caller = Caller(programs["cri-caller"])
        stack.callback(caller.close)
        # Intel's takes a quarter of a second for a create beside 500 containers: fewer rounds.
        for others, count in ((0, rounds), (containers, max(rounds // 3, 1))):
            for way in ways:
                if others:
                    populate(caller, way, others)
            load = " ".join(f"{each:.0f}" for each in os.getloadavg())
            print(f"\n{others} other containers; {count} rounds; load {load}\n", flush=True)
            found = measure(caller, ways, count)
            for row in rows(found):
                print_row(*row)
            print()
            for row in ratio_rows(found):
                print_row(*row)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of turns of each way; a third of them in the second half"
    )
    parser.add_argument(
        "--containers", type=int, default=CONTAINERS, help="in the second half; none in the first"
    )
    parser.add_argument("--fifo", action="store_true", help="before what else the machine does")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.rounds, options.containers, options.fifo)))
