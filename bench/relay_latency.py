"""What a call costs on its way to the runtime: ``python -m bench.relay_latency [--calls N] [--no-daemon]``.

Client, relays, daemon and runtime are processes of their own. The same calls go every way in turns of 25, so that
whatever else the machine does meanwhile meets all of them:

- direct: past everything;
- grpc.aio: a bare ``Relay`` behind grpc.aio's server, which reads messages as bytes;
- frames: a bare ``FrameRelay``, with asyncio's own event loop; frames+uvloop: the same where uvloop is installed;
- daemon: the whole daemon with the ``hygon`` policy, which is asked about every create.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import grpc.aio

from bench.figures import machine_line, percentile
from cri_api import runtime_v1_pb2 as cri
from tests.agent import ROOT, Agent
from tests.cri_client import CHANNEL_OPTIONS, Pod, container_config, create_request, pod_config
from tests.machines import HYGON_7285_2S, machine

CONTAINERS = 500
TURN = 25
#: Calls each way, and how many clients make them at the same time.
CALLS = {
    "Version": (3000, 1),
    "ListContainers": (1000, 1),
    "CreateContainer": (500, 1),
    "Version x16": (6400, 16),
}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def requests(method: str) -> Iterator[bytes]:
    """The requests of one method, one after another; each create is of another pod."""
    for number in itertools.count(1):
        if method == "CreateContainer":
            uid = f"uid-{number:032}"
            pod = Pod(f"{number:064x}", uid, f"web-{number}", "default", pod_config(f"web-{number}", uid=uid))
            config = container_config("app", cpu_request=100, cpu_limit=2000, memory_limit=1 << 28)
            yield create_request(pod, config).SerializeToString()
        else:
            yield cri.VersionRequest(version="v1").SerializeToString() if method == "Version" else b""


class Way:
    """One way to the runtime: its name, a channel of each client, the process in between (0: none)."""

    def __init__(self, name: str, socket: str, pid: int = 0) -> None:
        self.name = name
        self.socket = socket
        self.pid = pid
        self.channels: list[Any] = []
        self.seconds: list[float] = []
        self.calls = 0
        self.elapsed_s = 0.0
        self.cpu_s = 0.0

    async def turn(self, method: str, messages: Iterator[bytes], count: int, clients: int) -> None:
        """``count`` calls, by ``clients`` clients at the same time."""
        path = f"/runtime.v1.RuntimeService/{method}"
        before_s, started = cpu_s(self.pid), time.perf_counter()
        await asyncio.gather(
            *(
                self._calls(channel.unary_unary(path), messages, count // clients)
                for channel in self.channels[:clients]
            )
        )
        self.elapsed_s += time.perf_counter() - started
        self.cpu_s += cpu_s(self.pid) - before_s
        self.calls += count // clients * clients

    async def _calls(self, call: Callable[[bytes], Any], messages: Iterator[bytes], count: int) -> None:
        for _ in range(count):
            message = next(messages)
            started = time.perf_counter()
            await call(message)
            self.seconds.append(time.perf_counter() - started)

    def forget(self) -> None:
        self.seconds, self.calls, self.elapsed_s, self.cpu_s = [], 0, 0.0, 0.0


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def measure(ways: list[Way], name: str, count: int, clients: int) -> None:
    """All calls of one kind, every way, in turns."""
    method = name.partition(" ")[0]
    messages = [requests(method) for _ in ways]
    turn = TURN * clients
    for way, own in zip(ways, messages):
        await way.turn(method, own, turn, clients)
        way.forget()
    for _ in range(max(1, count // turn)):
        for way, own in zip(ways, messages):
            await way.turn(method, own, turn, clients)


def report(name: str, ways: list[Way]) -> None:
    """One row a way: percentiles, what is added to direct, and what that is beside grpc.aio's addition."""
    direct = ways[0]
    by_name = {way.name: way for way in ways}
    p50, p99 = (percentile(direct.seconds, p) for p in (50, 99))
    for way in ways:
        own50, own99 = (percentile(way.seconds, p) for p in (50, 99))
        cells = f"{name:<18}{way.name:<16}{own50 * 1e6:9.0f}{own99 * 1e6:9.0f}"
        if way is not direct:
            other = by_name.get("grpc.aio", way)
            grpc_added = percentile(other.seconds, 50) - p50
            share = (own50 - p50) / grpc_added if grpc_added > 0 else float("nan")
            cells += f"{(own50 - p50) * 1e6:9.0f}{(own99 - p99) * 1e6:9.0f}{own50 / p50:8.2f}{share:9.2f}"
            cells += f"{way.calls / way.elapsed_s:9.0f}{way.cpu_s / way.calls * 1e5:9.1f}{resident_mb(way.pid):8.1f}"
        else:
            cells += " " * 35 + f"{way.calls / way.elapsed_s:9.0f}"
        print(cells, flush=True)
    for way in ways:
        way.forget()


@contextlib.asynccontextmanager
async def process(*words: str) -> AsyncIterator[int]:
    """A program of ours that says "ready"; its pid."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert started.stdout is not None
        assert await started.stdout.readline() == b"ready\n"
        yield started.pid
    finally:
        started.terminate()
        await started.wait()


# ---------------------------------------------------------------------- the relays by themselves


async def serve(kind: str, runtime: str, socket: str) -> None:
    """A bare relay, until it is ended."""
    from cri_proxy.shell.frame_relay import FrameRelay
    from cri_proxy.shell.relay import Relay, open_channel
    from cri_proxy.shell.serving import Serving

    class Nobody:
        """Intercepts nothing."""

        def open(self, full_method: str) -> None:
            return None

    if kind == "grpc.aio":
        serving: Any = Serving(Relay(open_channel(runtime), None, Nobody()))
    else:
        serving = FrameRelay(runtime, Nobody())
    await serving.open([Path(socket)], [], Path(f"{socket}.inner"))
    await serving.start_behind(asyncio.sleep(0))
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


def run_relay(kind: str, runtime: str, socket: str) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        if kind.endswith("uvloop"):
            import uvloop

            uvloop.run(serve(kind, runtime, socket))
        else:
            asyncio.run(serve(kind, runtime, socket))


# ---------------------------------------------------------------------- all of it


async def main(calls: Optional[int], with_daemon: bool) -> None:
    kinds = ["grpc.aio", "frames"] + ["frames+uvloop"] * bool(importlib.util.find_spec("uvloop"))
    print(machine_line())
    print(
        f"{'microseconds':<34}{'':9}{'':9}{'added':>9}{'added':>9}{'ratio':>8}{'of grpc':>9}{'':9}{'CPU s/':>9}{'RSS':>8}"
    )
    print(
        f"{'':<34}{'p50':>9}{'p99':>9}{'p50':>9}{'p99':>9}{'p50':>8}{'p50':>9}{'calls/s':>9}{'100,000':>9}{'MB':>8}"
    )
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-"))
        socket = f"{folder}/r.sock"
        await stack.enter_async_context(process("bench.runtime", socket, str(CONTAINERS)))
        ways = [Way("direct", socket)]
        for number, kind in enumerate(kinds):
            own = f"{folder}/{number}.sock"
            serving = process("bench.relay_latency", "--serve", kind, socket, own)
            ways.append(Way(kind, own, await stack.enter_async_context(serving)))
        if with_daemon:
            agent = await stack.enter_async_context(Agent(socket, topology=machine(HYGON_7285_2S)))
            assert agent.process is not None
            ways.append(Way("daemon", agent.socket, agent.process.pid))
        for way in ways:
            for _ in range(max(clients for _, clients in CALLS.values())):
                way.channels.append(await stack.enter_async_context(channel(way.socket)))
        for name, (count, clients) in CALLS.items():
            await measure(ways, name, calls or count, clients)
            report(f"{name} ({CONTAINERS})" if name == "ListContainers" else name, ways)


def channel(socket: str) -> Any:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, help="of each kind, each way")
    parser.add_argument("--no-daemon", action="store_true", help="only the relays by themselves")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "RUNTIME", "SOCKET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_relay(*options.serve)
    else:
        asyncio.run(main(options.calls, not options.no_daemon))
