"""What it costs to make a create durable: ``python -m bench.state_write [--folder ON_DISK] [--creates N]``.

One engine (``hygon``, 128 CPUs) creates containers; what it journals at each create's admission and binding is
written to several state files in turn, so that whatever else the machine does meanwhile meets all of them:

- by the thread that measures, as far as the disk and the log go;
- thread: handed over to the thread that writes and waited for in the event loop, as a create does it;
- both on the disk and in a tmpfs.

Wall-clock time, as a create waits for it, and CPU time of the event loop's thread; and what it takes to have the file
take in the log of all these creates. System calls are counted by strace in runs of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.decision_time import request
from bench.figures import machine_line, percentile
from cri_proxy.cri.messages import read_create
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.state import JournalKey, JournalValue
from cri_proxy.metrics import Metrics
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

CONTAINERS = (0, 100, 400, 1000)
TMPFS = Path("/dev/shm")
CALLS = ("write", "pwrite64", "newfstatat", "fsync", "fdatasync")

Journal = dict[JournalKey, JournalValue]


class Way(Store):
    """One state file."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(folder)
        self.name = name
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    async def timed(self, journal: Journal) -> tuple[float, float]:
        """Seconds of wall-clock and of CPU time for one write."""
        cpu, wall = time.thread_time(), time.perf_counter()
        assert self.write(journal), self.problem
        return time.perf_counter() - wall, time.thread_time() - cpu


class Handed(Way):
    """The same by the thread that writes."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(f"{name} thread", folder)
        self.writer = StateWriter(self, Metrics("bench"), logging.getLogger())

    async def timed(self, journal: Journal) -> tuple[float, float]:
        cpu, wall = time.thread_time(), time.perf_counter()
        self.writer.write(journal)
        await self.writer.settled()
        return time.perf_counter() - wall, time.thread_time() - cpu


class Node:
    """Creates containers one after another; what is to be written for each is yielded, admission before binding."""

    def __init__(self) -> None:
        self.engine: Engine = engine_on(HYGON_7285_2S)
        self.count = 0

    def create(self) -> Iterator[Journal]:
        self.count += 1
        read = read_create(request(self.count, "BestEffort"), self.engine.pods)
        admission = self.engine.admit(read.container, read.constraint, float(self.count))
        yield self.engine.drain()
        self.engine.bind(admission.ticket, f"{self.count * 2654435761 % 2**32:08x}{self.count:056x}", 0.0)
        yield self.engine.drain()


async def measure(node: Node, ways: list[Way], creates: int) -> None:
    """Seconds of each create, both writes together, on every way."""
    for way in ways:
        way.wall_s, way.cpu_s = [], []
    random = Random(1)
    for _ in range(creates):
        spent = dict.fromkeys(ways, (0.0, 0.0))
        # What comes after one that has waited finds the caches cold.
        turn = random.sample(ways, len(ways))
        for journal in node.create():
            for way in turn:
                # As it is in the daemon, where a call has come by a socket just before.
                await asyncio.sleep(0)
                wall, cpu = await way.timed(journal)
                spent[way] = spent[way][0] + wall, spent[way][1] + cpu
        for way in ways:
            way.wall_s.append(spent[way][0])
            way.cpu_s.append(spent[way][1])


async def table(ways: list[Way], creates: int) -> None:
    node = Node()
    print("| microseconds a create (two writes) | containers | p50 | p99 | CPU p50 | checkpoint |")
    print("|---|---|---|---|---|---|")
    for containers in CONTAINERS:
        filling: Journal = {}
        while node.count < containers:
            for journal in node.create():
                filling.update(journal)
        for way in ways:
            way.write(filling)
            way.checkpoint()
        await measure(node, ways, creates)
        for way in ways:
            figures = [percentile(way.wall_s, 50), percentile(way.wall_s, 99), percentile(way.cpu_s, 50)]
            started = time.perf_counter()
            way.checkpoint()
            figures.append(time.perf_counter() - started)
            cells = " | ".join(f"{figure * 1e6:.0f}" for figure in figures)
            print(f"| {way.name} | {containers} | {cells} |", flush=True)


def calls_of_a_create(folder: Path) -> dict[str, float]:
    """System calls of one create, by the difference of a run with more and one with fewer."""
    few, many = 50, 150
    counts = []
    for creates in (few, many):
        report = folder / f"strace-{creates}"
        words = ["strace", "-f", "-c", "-e", f"trace={','.join(CALLS)}", "-o", str(report)]
        own = ["-m", "bench.state_write", "--only", str(folder / str(creates)), str(creates)]
        subprocess.run([*words, sys.executable, *own], check=True, capture_output=True)
        # % time, seconds, microseconds a call, calls, errors if any, name
        rows = [line.split() for line in report.read_text().splitlines()]
        counts.append({row[-1]: int(row[3]) for row in rows if row and row[-1] in CALLS})
    return {name: (counts[1].get(name, 0) - counts[0].get(name, 0)) / (many - few) for name in CALLS}


def only(folder: Path, creates: int) -> None:
    """So many creates and no more, for strace."""
    way, node = Way("", folder), Node()
    way.load()
    for _ in range(creates):
        for journal in node.create():
            assert way.write(journal)
    way.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the disk is; default: where temporary files go")
    parser.add_argument("--creates", type=int, default=100, help="measured for each number of containers")
    parser.add_argument("--only", nargs=2, metavar=("FOLDER", "CREATES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        only(Path(options.only[0]), int(options.only[1]))
        return
    print(machine_line())
    with contextlib.ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="state-write-", dir=where)))
            for where in (options.folder, TMPFS)
        )
        ways = [Way("disk", disk / "own"), Way("tmpfs", memory / "own")]
        ways += [Handed("disk", disk / "thread"), Handed("tmpfs", memory / "thread")]
        for way in ways:
            way.load()
            stack.callback(way.close)
        asyncio.run(table(ways, options.creates))
        if shutil.which("strace"):
            calls = calls_of_a_create(disk)
            print(", ".join(f"{number:.1f} {name}" for name, number in calls.items()) + " a create")


if __name__ == "__main__":
    main()
