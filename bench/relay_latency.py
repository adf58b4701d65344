"""What a call costs on its way to the runtime: ``python -m bench.relay_latency [--calls N]``.

Client, relays and runtime are processes of their own. The same calls go every way in turns of 25, so that whatever
else the machine does meanwhile meets all of them:

- direct: past everything;
- grpc.aio: ``bench.grpc_relay``, behind grpc.aio's server, which reads messages as bytes;
- frames: a bare ``FrameRelay``, with asyncio's own event loop; frames, uvloop: the same where uvloop is installed.

Clients and runtime are ``bench.raw``, where nothing else is said. What a create costs in the whole daemon is
measured by ``bench.create_cost``, the start by ``bench.start_time``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol

import grpc

from bench import ratios
from bench.figures import cpu_s, machine_line, percentile, print_row, process, resident_mb
from bench.raw import SERVICE, Client, calls_by
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import parse
from cri_proxy.relay.interception import CallEnd, Forward
from tests.cri_client import CHANNEL_OPTIONS

CONTAINERS = 500
TURN = 25
#: How often each kind of call is made each way, unless ``--calls`` says otherwise.
CALLS = 4000
CLIENTS = 16
EVENTS, PAUSED_EVENTS, PAUSE_US = 20_000, 1_000, 1_000
#: What kubelet calls in an hour on a node with 110 pods: lists of pods and containers each second (its PLEG), of
#: containers each 10 s (log rotation) and each minute (garbage), lists and stats each 10 s (eviction), the runtime's
#: status each 5 s, 20 exec probes each 10 s, and a start of a pod, a dozen calls, each minute.
LISTS_PER_HOUR = 2 * 3600 + 360 + 120 + 3 * 360
OTHERS_PER_HOUR = 720 + 360 + 20 * 360 + 12 * 60
VERSION = cri.VersionRequest(version="v1").SerializeToString()


class Caller(Protocol):
    """A client that makes one call at a time."""

    def prepare(self, method: str, count: int) -> None: ...
    def call(self, message: bytes) -> bytes: ...


class GrpcClient:
    """The same of grpc's, for what a real client has of it all."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS)

    def prepare(self, method: str, count: int) -> None:
        self._call = self._channel.unary_unary(SERVICE + method)

    def call(self, message: bytes) -> bytes:
        return bytes(self._call(message))

    def close(self) -> None:
        self._channel.close()


class Way:
    """One way to the runtime; ``pid``: the process in between (0: none)."""

    def __init__(self, name: str, path: str, pid: int = 0) -> None:
        self.name = name
        self.path = path
        self.pid = pid
        self.clients = [Client(path) for _ in range(CLIENTS)]
        self.grpc_client = GrpcClient(path)
        self.forget()

    def forget(self) -> None:
        self.seconds: list[float] = []
        self.elapsed_s = self.cpu_s = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """A turn: elapsed time, and CPU time of the process in between."""
        cpu_before_s, started_s = cpu_s(self.pid), time.perf_counter()
        yield
        self.elapsed_s += time.perf_counter() - started_s
        self.cpu_s += cpu_s(self.pid) - cpu_before_s

    def turn(self, caller: Caller, method: str, message: bytes) -> None:
        """Some calls, one after the other."""
        caller.prepare(method, TURN)
        with self.timed():
            for _ in range(TURN):
                started_s = time.perf_counter()
                caller.call(message)
                self.seconds.append(time.perf_counter() - started_s)

    def turn_of_many(self, method: str, message: bytes) -> None:
        """The same by all clients at the same time."""
        for client in self.clients:
            client.prepare(method, TURN)
        with self.timed():
            self.seconds += calls_by(self.clients, message, TURN)

    def close(self) -> None:
        self.grpc_client.close()
        for client in self.clients:
            client.close()


# ---------------------------------------------------------------------- measuring


def measure(ways: Sequence[Way], what: str, count: int) -> dict[str, float]:
    """Calls of one kind, every way, in turns; a row for each way. What frames add as a part of what grpc.aio adds."""
    by_many, by_grpc = f"x{CLIENTS}" in what, "grpc" in what
    method = what.split()[0].strip("`,")
    message = VERSION if method == "Version" else b""

    def turn(way: Way) -> None:
        if by_many:
            way.turn_of_many(method, message)
        else:
            way.turn(way.grpc_client if by_grpc else way.clients[0], method, message)

    for way in ways:
        turn(way)
        way.forget()
    for _ in range(max(1, count // TURN // (CLIENTS if by_many else 1))):
        for way in ways:
            turn(way)
    return report(what, ways)


def report(what: str, ways: Sequence[Way]) -> dict[str, float]:
    """One row a way: percentiles, what is added to direct's, and that as a part of grpc.aio's addition."""
    found = {}
    direct50, direct99 = (percentile(ways[0].seconds, p) for p in (50, 99))
    grpc50 = percentile(ways[1].seconds, 50)
    for way in ways:
        p50, p99, calls = percentile(way.seconds, 50), percentile(way.seconds, 99), len(way.seconds)
        cells = [what, way.name, f"{p50 * 1e6:,.0f}", f"{p99 * 1e6:,.0f}"]
        if way is ways[0]:
            cells += ["", "", "", "", f"{calls / way.elapsed_s:,.0f}", ""]
        else:
            cells += [
                f"{(p50 - direct50) * 1e6:,.0f}",
                f"{(p99 - direct99) * 1e6:,.0f}",
                f"{p50 / direct50:.2f}",
            ]
            of_grpc = (p50 - direct50) / (grpc50 - direct50)
            cells += [f"{of_grpc:.2f}", f"{calls / way.elapsed_s:,.0f}"]
            cells += [f"{way.cpu_s / calls * 1e5:.1f}"]
            if way.name == "frames":
                found[f"relay latency, {what}: added beside what grpc.aio adds"] = of_grpc
        print_row(*cells)
        way.forget()
    return found


def measure_events(ways: Sequence[Way]) -> None:
    """A stream of events every way: how late each is, and how many come in a second."""
    print_row(
        "`GetContainerEvents`",
        "on its way p50, µs",
        "p99",
        "added p50",
        "added p99",
        "events/s without a pause",
    )
    print_row(*["---"] * 6)
    direct: list[float] = []
    for way in ways:
        delays_s = way.clients[0].events(PAUSED_EVENTS, PAUSE_US)
        direct = direct or delays_s
        cells = [percentile(delays_s, p) for p in (50, 99)]
        cells += [percentile(delays_s, p) - percentile(direct, p) for p in (50, 99)]
        started_s = time.perf_counter()
        came = len(way.clients[0].events(EVENTS, 0))
        per_s = came / (time.perf_counter() - started_s)
        print_row(way.name, *(f"{cell * 1e6:,.0f}" for cell in cells), f"{per_s:,.0f}")


def measure_memory(ways: Sequence[Way]) -> None:
    """What is resident before and after an hour of kubelet's calls, and what CPU time those take."""
    print_row(
        f"an hour of kubelet: {LISTS_PER_HOUR + OTHERS_PER_HOUR:,} calls", "MB before", "MB after", "CPU s"
    )
    print_row(*["---"] * 4)
    for way in ways[2:]:
        before_mb, client = resident_mb(way.pid), way.clients[0]
        with way.timed():
            for number in range(OTHERS_PER_HOUR):
                client.prepare("Version", 1)
                client.call(VERSION)
                if number % 100 < 100 * LISTS_PER_HOUR // OTHERS_PER_HOUR:
                    client.prepare("ListContainers", 1)
                    client.call(b"")
        print_row(way.name, f"{before_mb:.1f}", f"{resident_mb(way.pid):.1f}", f"{way.cpu_s:.1f}")
        way.forget()


# ---------------------------------------------------------------------- the relays by themselves


class Nobody:
    """Intercepts nothing."""

    def open(self, full_method: str) -> None:
        return None


class EventReader:
    """Reads container events along, as the daemon does, and keeps nothing."""

    filter = None

    def open(self, full_method: str) -> Optional[EventReader]:
        return self if full_method.endswith("/GetContainerEvents") else None

    async def request(self, message: bytes) -> Forward:
        return Forward()

    async def replied(self, message: bytes) -> None:
        parse(cri.ContainerEventResponse, message)

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        pass


async def serve(kind: str, runtime: str, path: str) -> None:
    """A bare relay, until it is ended."""
    if kind == "grpc.aio":
        from bench.grpc_relay import GrpcRelay

        serving: Any = await GrpcRelay(runtime).serve(path)
    else:
        from cri_proxy.relay.io.server import FrameRelay

        serving = FrameRelay(runtime, EventReader() if "events" in kind else Nobody())
        await serving.open([Path(path)], [])
        await serving.start_behind(asyncio.sleep(0))
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


def run_relay(kind: str, runtime: str, path: str) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        if "uvloop" in kind:
            import uvloop  # type: ignore[import-not-found,unused-ignore]

            uvloop.run(serve(kind, runtime, path))
        else:
            asyncio.run(serve(kind, runtime, path))


# ---------------------------------------------------------------------- all of it


def main(count: int) -> int:
    kinds = ["grpc.aio", "frames"] + ["frames, uvloop"] * bool(importlib.util.find_spec("uvloop"))
    print(machine_line(), end="\n\n")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="crb-"))
        runtime = f"{folder}/r.sock"
        stack.enter_context(process("bench.raw", runtime, str(CONTAINERS)))
        ways = [Way("direct", runtime)]
        for number, kind in enumerate(kinds):
            path = f"{folder}/{number}.sock"
            pid = stack.enter_context(process("bench.relay_latency", "--serve", kind, runtime, path))
            ways.append(Way(kind, path, pid))
        print_row(
            "µs",
            "",
            "p50",
            "p99",
            "added p50",
            "added p99",
            "of direct",
            "of grpc.aio's",
            "calls/s",
            "CPU s/100,000",
        )
        print_row(*["---"] * 10)
        lists = f"`ListContainers`, {CONTAINERS}"
        found = measure(ways, "`Version`", count)
        measure(ways, "`Version`, grpc's client", count)
        found.update(measure(ways, f"`Version` x{CLIENTS}", count))
        found.update(measure(ways, lists, count // 4))
        measure(ways, f"{lists}, grpc's client", count // 4)
        print()
        measure_events(ways)
        print()
        measure_memory(ways)
        for way in ways:
            way.close()
    return ratios.tell(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help="of each kind, each way")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "RUNTIME", "SOCKET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_relay(*options.serve)
    else:
        sys.exit(main(options.calls))
