"""How long a start takes: ``python -m bench.start_time [--starts N]``.

From the daemon's exec to the first call that it relays, with 0 and with 220 containers running (a node of 110 pods),
the first time, when they are adopted, and with their state. Beside it what of that is Python and its imports; all
with compiled modules, as a package has them. ``--launch``: only until a plugin that a runtime launches is registered;
``--steps``: only the imports; ``--root`` names another checkout to hold either against.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time

from bench.figures import machine_line, percentile, print_row, process
from bench.raw import Client
from cri_proxy.nri.ttrpc_frames import FRAME_HEAD_BYTES
from tests.agent import ROOT, Agent
from tests.machines import HYGON_7285_2S, machine

STARTS = 10
RUNNING = (0, 220)
LOOK_S = 0.001
#: What runs before a line of ours does, and what is imported then.
STEPS = {
    "Python alone": "pass",
    "asyncio": "import asyncio",
    "CRI's messages": "import cri_api.runtime_v1_pb2",
    "all that a relay of frames needs": "import cri_proxy.relay.http2.relay, asyncio",
    "all that the command imports": (
        "from cri_proxy.light_imports import lightly\n"
        "with lightly(): import cri_proxy.cli.main, cri_proxy.daemon.daemon, cri_proxy.daemon.proxy"
    ),
}


def environment(folder: str) -> dict[str, str]:
    """With compiled modules in the folder."""
    return {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(ROOT)}


async def start(agent: Agent, cache: str) -> tuple[float, float]:
    """Milliseconds from the exec of a daemon to the first call through it, and to READY."""
    started_s = time.perf_counter()
    await agent.start(environment=environment(cache), ready=False)
    client = None
    while client is None:
        with contextlib.suppress(OSError):
            client = Client(agent.socket)
        time.sleep(LOOK_S)
    client.prepare("Version", 1)
    client.call(b"")
    served_s = time.perf_counter()
    client.close()
    await agent.wait_notified("READY=1")
    return (served_s - started_s) * 1000, (time.perf_counter() - started_s) * 1000


async def measure(running: int, starts: int, cache: str) -> None:
    """Rows for a node with so many containers."""
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        path = f"{folder}/r.sock"
        with process("bench.create_cost", "--serve", path, str(running)):
            found: dict[str, list[tuple[float, float]]] = {"first": [], "with state": []}
            for number in range(starts + 1):
                agent = Agent(path, machine(HYGON_7285_2S))
                for list_of_times in found.values():
                    times = await start(agent, cache)
                    if number:  # the first one compiles
                        list_of_times.append(times)
                    await agent.terminate()
                await agent.close()
    for which, list_of_times in found.items():
        served, ready = ([times[at] for times in list_of_times] for at in (0, 1))
        cells = [percentile(values, p) for values in (served, ready) for p in (0, 50, 99)]
        print_row(f"{running} containers, {which}", *(f"{cell:,.0f}" for cell in cells))


def measure_steps(root: str, starts: int, cache: str) -> None:
    """Rows of what is imported."""
    print_row("a process that does no more than this, ms", "least", "p50", "p99", "on a CPU: least", "p50")
    print_row(*["---"] * 6)
    variables = {**os.environ, **environment(cache), "PYTHONPATH": root}
    for name, code in STEPS.items():
        found_ms, cpu_ms = [], []
        for _ in range(starts + 1):
            started_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], env=variables, cwd=root, check=True)
            found_ms.append((time.perf_counter() - started_s) * 1000)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_ms.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000)
        cells = [percentile(found_ms[1:], p) for p in (0, 50, 99)] + [
            percentile(cpu_ms[1:], p) for p in (0, 50)
        ]
        print_row(name, *(f"{cell:,.0f}" for cell in cells))


def launch(root: str, cache: str, options: tuple[str, ...] = ()) -> tuple[float, float, int]:
    """As a runtime launches its plugin: milliseconds until it registers, of these on a CPU, and lines on stderr."""
    ours, given = socket.socketpair()
    with ours, tempfile.TemporaryDirectory(prefix="crb-") as folder, tempfile.TemporaryFile() as said:
        words = ("nri", "run", "--state-dir", f"{folder}/s", "--control-socket", f"{folder}/c.sock")
        variables = {"NRI_PLUGIN_SOCKET": str(given.fileno()), "PYTHONPATH": root}
        with given:
            started_s = time.perf_counter()
            plugin = subprocess.Popen(
                [sys.executable, *options, "-m", "cri_proxy", *words, "--runtime-socket", f"{folder}/r.sock"],
                env={**os.environ, **environment(cache), **variables},
                cwd=folder,
                pass_fds=[given.fileno()],
                stderr=said,
            )
        try:
            registered = len(ours.recv(1 << 16)) > FRAME_HEAD_BYTES
            took_ms = (time.perf_counter() - started_s) * 1000
            with open(f"/proc/{plugin.pid}/schedstat") as stat:
                cpu_ms = int(stat.read().split()[0]) / 1e6
            assert registered
            said.seek(0)
            return took_ms, cpu_ms, len(said.readlines())
        finally:
            plugin.kill()
            plugin.wait()


def measure_launch(root: str, starts: int, cache: str) -> None:
    """Rows for the way from exec to RegisterPlugin."""
    found = [launch(root, cache) for _ in range(starts + 1)][1:]
    for name, values in zip(("ms", "of these on a CPU"), zip(*found)):
        print_row(
            f"launched, to RegisterPlugin, {name}", *(f"{percentile(values, p):,.0f}" for p in (0, 50, 99))
        )
    imported = launch(root, cache, ("-X", "importtime"))[2]
    print_row("imported until then, modules", f"{imported:,}", "", "")


async def main(starts: int) -> None:
    print(machine_line(), end="\n\n")
    with tempfile.TemporaryDirectory(prefix="crb-") as cache:
        print_row("milliseconds", "to the first call: least", "p50", "p99", "to READY: least", "p50", "p99")
        print_row(*["---"] * 7)
        for running in RUNNING:
            await measure(running, starts, cache)
        print()
        measure_steps(str(ROOT), starts, cache)
        measure_launch(str(ROOT), starts, cache)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help="of each kind")
    parser.add_argument("--launch", action="store_true", help="only what a launched plugin takes to register")
    parser.add_argument("--steps", action="store_true", help="only what Python and its imports take")
    parser.add_argument(
        "--root", default=str(ROOT), help="the checkout whose plugin is launched, or modules imported"
    )
    arguments = parser.parse_args()
    if arguments.launch or arguments.steps:
        measure_one = measure_launch if arguments.launch else measure_steps
        with tempfile.TemporaryDirectory(prefix="crb-") as cache_folder:
            measure_one(arguments.root, arguments.starts, cache_folder)
    else:
        asyncio.run(main(arguments.starts))
