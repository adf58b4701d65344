"""What ``cri-resmgr top`` takes, and the daemon for it: ``python -m bench.top_cost``.

A real daemon before a runtime of the tests, on a described two-socket Hygon of 128 CPUs, with 500 containers and 600
edges that an observer plays; ``top`` on a terminal (a pty) of three sizes and in each pane, one look a second. CPU
time is the processes' own; bytes are what goes to the terminal, as over ssh.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import cpu_s, machine_line, print_row, resident_mb
from tests.agent import ROOT, Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import until
from tests.functional.support import run_pod_with, start
from tests.functional.test_affinity import MANUAL, flow
from tests.machines import HYGON_7285_2S, machine
from tests.observer import ObserverProcess

CONTAINERS, EDGES, AT_A_TIME = 500, 600, 20
#: Width, height and the key of a pane.
SCREENS = ((80, 24, "1"), (80, 24, "2"), (80, 24, "3"), (120, 50, "1"), (200, 60, "2"))
#: Until what the start takes is over, and as long as is measured.
SETTLE_S, FOR_S = 4.0, 10.0


class Screen:
    """A terminal with the program in it; what it writes is counted."""

    def __init__(self, control: Path, width: int, height: int) -> None:
        self.written = 0
        self.pid, self.fd = pty.fork()
        if not self.pid:
            environment = {
                **os.environ,
                "TERM": "xterm-256color",
                "LC_ALL": "C.UTF-8",
                "PYTHONPATH": str(ROOT),
            }
            words = [sys.executable, "-m", "cri_proxy", "--control-socket", str(control), "top"]
            os.execve(sys.executable, words, environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        asyncio.get_running_loop().add_reader(self.fd, self._read)

    def _read(self) -> None:
        self.written += len(os.read(self.fd, 1 << 16))

    def end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextmanager
def screen(control: Path, width: int, height: int) -> Iterator[Screen]:
    opened = Screen(control, width, height)
    try:
        yield opened
    finally:
        opened.end()


async def main() -> None:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        runtime = FakeRuntime(f"{folder}/r.sock")
        await runtime.start()
        agent = Agent(runtime.socket, machine(HYGON_7285_2S), {"affinity": MANUAL})
        try:
            await start(agent)
            async with CriClient(agent.socket) as client:
                for first in range(0, CONTAINERS, AT_A_TIME):
                    names = (f"pod-{n}" for n in range(first, min(CONTAINERS, first + AT_A_TIME)))
                    await asyncio.gather(*(run_pod_with(client, name, cpu_limit=200) for name in names))
            flows = [_named(number) for number in range(EDGES)]
            async with ObserverProcess(agent, flows):
                await until(agent, lambda d: len(d["edges"]) >= EDGES * 9 // 10, "affinity")
                await measure(agent)
        finally:
            await agent.close()
            await runtime.stop()


def _named(number: int) -> dict[str, object]:
    a, b = (f"pod-{n % CONTAINERS}" for n in (number, number * 7 + 1 + number // CONTAINERS))
    return {**flow(a, b), "a": f"default/{a}/{a}", "b": f"default/{b}/{b}", "bytes_ab": 5e7 / (number + 1)}


async def measure(agent: Agent) -> None:
    assert agent.process is not None
    daemon = agent.process.pid
    alone_s = cpu_s(daemon)
    await asyncio.sleep(FOR_S)
    alone = (cpu_s(daemon) - alone_s) / FOR_S
    print_row("screen", "top, % of a CPU", "daemon for it, %", "resident MB", "bytes a second")
    for width, height, pane in SCREENS:
        with screen(agent.control, width, height) as opened:
            await asyncio.sleep(SETTLE_S)
            os.write(opened.fd, pane.encode())
            await asyncio.sleep(1)
            before = cpu_s(opened.pid), cpu_s(daemon), opened.written
            await asyncio.sleep(FOR_S)
            after = cpu_s(opened.pid), cpu_s(daemon), opened.written
            top, served, written = ((now - was) / FOR_S for was, now in zip(before, after))
            print_row(
                f"{width} x {height}, pane {pane}",
                f"{top * 100:.2f}",
                f"{(served - alone) * 100:.2f}",
                f"{resident_mb(opened.pid):.0f}",
                f"{written:.0f}",
            )


if __name__ == "__main__":
    asyncio.run(main())
