"""What a call costs on its way through the daemon: ``python -m bench.relay_latency``.

Client, daemon and runtime are processes of their own. The same calls go past the daemon and through it, in
turns of 25, so that whatever else the machine does meanwhile meets both.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Callable

import grpc.aio

from bench.figures import machine_line, percentile
from cri_api import runtime_v1_pb2 as cri
from tests.agent import ROOT, Agent
from tests.cri_client import CHANNEL_OPTIONS, Pod, container_config, create_request, pod_config
from tests.machines import HYGON_7285_2S, machine

CONTAINERS = 500
TURN = 25
#: Calls each way.
CALLS = {"Version": 3000, "ListContainers": 1500, "CreateContainer": 500}


def requests(method: str) -> Iterator[bytes]:
    """The requests of one method, one after another; each create is of another pod."""
    number = 0
    while True:
        number += 1
        if method == "CreateContainer":
            uid = f"uid-{number:032}"
            pod = Pod(f"{number:064x}", uid, f"web-{number}", "default", pod_config(f"web-{number}", uid=uid))
            config = container_config("app", cpu_request=100, cpu_limit=2000, memory_limit=1 << 28)
            yield create_request(pod, config).SerializeToString()
        else:
            yield cri.VersionRequest(version="v1").SerializeToString() if method == "Version" else b""


async def turn(call: Callable[[bytes], Any], messages: Iterator[bytes], count: int) -> list[float]:
    """Seconds of ``count`` calls, one after another."""
    found = []
    for _ in range(count):
        message = next(messages)
        started = time.perf_counter()
        await call(message)
        found.append(time.perf_counter() - started)
    return found


async def measure(method: str, direct: Any, relayed: Any) -> tuple[list[float], list[float]]:
    """Seconds of all calls past the daemon, and of all calls through it."""
    path = f"/runtime.v1.RuntimeService/{method}"
    ways = [(channel.unary_unary(path), requests(method), []) for channel in (direct, relayed)]
    for call, messages, _ in ways:
        await turn(call, messages, TURN)
    for _ in range(CALLS[method] // TURN):
        for call, messages, found in ways:
            found += await turn(call, messages, TURN)
    return ways[0][2], ways[1][2]


@contextlib.asynccontextmanager
async def runtime(socket: str) -> AsyncIterator[None]:
    """``bench.runtime`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.runtime",
        socket,
        str(CONTAINERS),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.terminate()
        await process.wait()


async def compare(past: str, through: str) -> None:
    async with channel(past) as direct, channel(through) as relayed:
        for method in CALLS:
            print(row(method, *await measure(method, direct, relayed)), flush=True)


async def main() -> None:
    print(machine_line())
    print(f"{'milliseconds':<22}{'direct':>16}{'through':>16}{'added':>16}{'ratio':>14}")
    print(f"{'':<22}" + 3 * f"{'p50':>8}{'p99':>8}" + f"{'p50':>7}{'p99':>7}")
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        socket = f"{folder}/r.sock"
        async with runtime(socket), Agent(socket, topology=machine(HYGON_7285_2S)) as agent:
            await compare(socket, agent.socket)


def channel(socket: str) -> Any:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)


def row(method: str, direct: list[float], relayed: list[float]) -> str:
    name = f"{method} ({CONTAINERS})" if method == "ListContainers" else method
    cells = f"{name:<22}"
    pairs = [(percentile(direct, p) * 1000, percentile(relayed, p) * 1000) for p in (50, 99)]
    for values in ([d for d, _ in pairs], [r for _, r in pairs], [r - d for d, r in pairs]):
        cells += "".join(f"{value:8.2f}" for value in values)
    return cells + "".join(f"{r / d:7.2f}" for d, r in pairs)


if __name__ == "__main__":
    asyncio.run(main())
