"""What calls take while other clients flood an endpoint of the daemon: ``python -m bench.endpoints [FLOOD ...]``.

Fifty clients ask as fast as they are answered, or faster, while one client calls ``Version`` and ``ContainerStatus`` in
turns. Client, floods, daemon and runtime are processes of their own. Each flood follows a turn without one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Union

from bench.figures import machine_line, percentile, print_row, process, resident_mb
from bench.raw import Client
from cri_api import runtime_v1_pb2 as cri
from cri_api.control import write_request
from tests.agent import Agent
from tests.cri_client import CriClient, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

CLIENTS = 50
PODS = 60
SECONDS = 10.0
#: How long what a flood has left is given back, seconds.
REST_S = 5.0
Address = Union[str, tuple[str, int]]


class Flood(NamedTuple):
    """What each client says, and to which endpoint; ``pipelines``: without waiting for an answer."""

    endpoint: str
    said: bytes
    closes: bool = False
    pipelines: bool = False


_GET = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
FLOODS = {
    "metrics, a connection each": Flood("metrics", _GET, closes=True),
    "view, report": Flood("view", write_request("report", {})),
    "view, connect and close": Flood("view", b"", closes=True),
    "control, status": Flood("control", write_request("status", {})),
    "control, pipelined": Flood("control", write_request("status", {}) * 200, pipelines=True),
    "control, deep JSON": Flood("control", b"[" * ((1 << 18) - 2) + b"\n"),
}


def flood_on(address: Address, flood: Flood) -> None:
    """Flood until ended."""
    print("ready", flush=True)
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    waiting = selectors.DefaultSelector()
    left: dict[socket.socket, memoryview] = {}

    def add() -> None:
        client = socket.socket(kind)
        client.setblocking(False)
        try:
            client.connect(address)
        except BlockingIOError:
            if kind == socket.AF_UNIX:  # its backlog is full
                client.close()
                return
        except OSError:
            client.close()
            return
        left[client] = memoryview(flood.said)
        # A client that does not wait for its answers does not read them.
        reads = 0 if flood.pipelines else selectors.EVENT_READ
        waiting.register(client, selectors.EVENT_WRITE | reads)

    def drop(client: socket.socket) -> None:
        waiting.unregister(client)
        del left[client]
        client.close()

    while True:
        for _ in range(CLIENTS - len(left)):
            add()
        if not left:
            time.sleep(0.001)
        for key, events in waiting.select(0.01):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    left[client] = left[client][client.send(left[client]) :] if left[client] else left[client]
                    if not left[client]:
                        if flood.pipelines:
                            left[client] = memoryview(flood.said)
                        elif not flood.said:
                            drop(client)
                            continue
                        else:
                            waiting.modify(client, selectors.EVENT_READ)
                if events & selectors.EVENT_READ and not flood.pipelines:
                    received = client.recv(1 << 18)
                    if not received or flood.closes:
                        drop(client)
                    elif received.endswith(b"\n"):
                        left[client] = memoryview(flood.said)
                        waiting.modify(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
            except BlockingIOError:
                pass
            except OSError:
                drop(client)


def calls(path: str, container_id: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, by method, made in turns for so long."""
    messages = {
        "Version": cri.VersionRequest(version="v1").SerializeToString(),
        "ContainerStatus": cri.ContainerStatusRequest(container_id=container_id).SerializeToString(),
    }
    found: dict[str, list[float]] = {method: [] for method in messages}
    client = Client(path)
    try:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for method, message in messages.items():
                client.prepare(method, 1)
                began_s = time.perf_counter()
                client.call(message)
                found[method].append((time.perf_counter() - began_s) * 1000)
    finally:
        client.close()
    return found


def p99s(found: dict[str, list[float]]) -> list[float]:
    return [percentile(values, 99) for values in found.values()]


async def serve_runtime(path: str) -> None:
    """A runtime until ended."""
    async with FakeRuntime(path):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def fill(path: str) -> str:
    """Pods with a container each; the id of the last."""
    async with CriClient(path) as client:
        for number in range(PODS):
            pod = await client.run_pod(f"pod-{number}")
            request = create_request(pod, container_config("app", cpu_limit=500))
            created = await client.call("CreateContainer", request)
            await client.call("StartContainer", cri.StartContainerRequest(container_id=created.container_id))
        return str(created.container_id)


async def main(names: Sequence[str], seconds: float) -> None:
    print(machine_line(), end="\n\n")
    print_row(
        f"{CLIENTS} clients flood", "Version p99, ms: without", "with", "times",
        "ContainerStatus p99, ms: without", "with", "times", "MB before", "with", "after",
    )  # fmt: skip
    print_row(*["---"] * 10)
    with tempfile.TemporaryDirectory(prefix="cre-") as folder:
        runtime = f"{folder}/r.sock"
        with process("bench.endpoints", "--runtime", runtime):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            agent = Agent(Path(runtime), machine(HYGON_7285_2S), {"metrics": {"listen": f"127.0.0.1:{port}"}})
            try:
                await agent.start()
                assert agent.process is not None
                pid = agent.process.pid
                view = agent.control.parent / "view" / "view.sock"
                where: dict[str, Address] = {
                    "metrics": ("127.0.0.1", port), "view": str(view), "control": str(agent.control)
                }  # fmt: skip
                container_id = await fill(agent.socket)
                for name in names:
                    flood = FLOODS[name]
                    calls(agent.socket, container_id, 1.0)
                    before_mb = resident_mb(pid)
                    without = p99s(calls(agent.socket, container_id, seconds))
                    told = json.dumps([where[flood.endpoint], name])
                    with process("bench.endpoints", "--flood", told):
                        time.sleep(0.5)
                        under = p99s(calls(agent.socket, container_id, seconds))
                        with_mb = resident_mb(pid)
                    time.sleep(REST_S)
                    cells = []
                    for calm, flooded in zip(without, under):
                        cells += [f"{calm:.2f}", f"{flooded:.2f}", f"{flooded / calm:.2f}"]
                    print_row(name, *cells, *(f"{mb:.0f}" for mb in (before_mb, with_mb, resident_mb(pid))))
            finally:
                await agent.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--runtime", help=argparse.SUPPRESS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of calls, with and without each flood"
    )
    parser.add_argument("floods", nargs="*", metavar="FLOOD", help="all, if none is named")
    options = parser.parse_args()
    if options.flood:
        address, name = json.loads(options.flood)
        with contextlib.suppress(KeyboardInterrupt):
            flood_on(tuple(address) if isinstance(address, list) else address, FLOODS[name])
    elif options.runtime:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve_runtime(options.runtime))
    else:
        unknown = [name for name in options.floods if name not in FLOODS]
        if unknown:
            sys.exit(f"there is no flood {unknown[0]!r}: {', '.join(FLOODS)}")
        asyncio.run(main(options.floods or list(FLOODS), options.seconds))
