"""What the observer costs those it observes, and itself: ``python -m bench.observer_cost [ROUNDS]`` (root).

nginx and wrk on this machine, in two cgroups that look like containers'. Compared with and without the observer:
throughput, and the CPU time that a request costs both ends, with all that the kernel does for them. In rounds of four
runs, without - with - with - without: what else the machine does, and how it drifts, meets both. Then the kernel's own
clock (``kernel.bpf_stats_enabled``) for a run of each program, and the observer's CPU time and memory while 10,000
connections are open. Takes less than three minutes.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.figures import machine_line
from bench.observer_load import Connections, Load
from bpf.kernel.syscalls import ProgramInfo, program_by_id, program_info
from tests.e2e.observer import Observer, kernel_objects_of, missing_for_ebpf

ROUNDS = 6
RUN_S = 2
CONNECTIONS = 10_000
EVERY_S = 5.0
WATCH_S = 20.0
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
MODES = (("keep-alive", True), ("Connection: close", False))


def new_observer() -> Observer:
    """One with the usual options; no runtime that it could ask for names."""
    return Observer(Path("/nonexistent"), provider="ebpf", interval_s=10.0, half_life_s=66.0, least_weight=1000.0,
                    least_share=0.01, message_lines=30.0)  # fmt: skip


async def ratios(load: Load, is_keep_alive: bool, rounds: int) -> list[tuple[float, float]]:
    """With the observer, as a part of without: requests a second, and CPU time a request; a pair for each round."""
    found = []
    load.wrk(1, is_keep_alive)
    for _ in range(rounds):
        without = [load.wrk(RUN_S, is_keep_alive)]
        observer = new_observer()
        try:
            await observer.start()
            observed = [load.wrk(RUN_S, is_keep_alive), load.wrk(RUN_S, is_keep_alive)]
            await observer.terminate()
        finally:
            await observer.close()
        without.append(load.wrk(RUN_S, is_keep_alive))
        rate = sum(run.rate for run in observed) / sum(run.rate for run in without)
        cpu = sum(run.cpu_s for run in observed) / sum(run.cpu_s for run in without)
        found.append((rate, cpu))
    return found


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.3f} ± {error:.3f}"


def programs_of(pid: int) -> dict[str, ProgramInfo]:
    """The programs that a process holds, or holds by a link; by their names."""
    found = {}
    for number in (number for kind, number in kernel_objects_of(pid) if kind == "prog"):
        fd = program_by_id(number)
        try:
            info = program_info(fd)
        finally:
            os.close(fd)
        found[info.name] = info
    return dict(sorted(found.items()))


def difference(before: dict[str, ProgramInfo], after: dict[str, ProgramInfo]) -> dict[str, ProgramInfo]:
    """What ran in between."""
    return {
        name: replace(
            program, run_ns=program.run_ns - before[name].run_ns, runs=program.runs - before[name].runs
        )
        for name, program in after.items()
    }


@contextmanager
def kernel_statistics() -> Iterator[None]:
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


async def per_run(load: Load, is_keep_alive: bool) -> tuple[int, dict[str, ProgramInfo]]:
    """Requests of a run of wrk, and what the programs did meanwhile."""
    observer = new_observer()
    try:
        await observer.start()
        assert observer.process is not None
        with kernel_statistics():
            before = programs_of(observer.process.pid)
            requests = load.wrk(RUN_S, is_keep_alive).requests
            after = programs_of(observer.process.pid)
        await observer.terminate()
    finally:
        await observer.close()
    return requests, difference(before, after)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(kib) / 1024 for name, kib in re.findall(r"(VmHWM|VmRSS|RssAnon):\s*(\d+)", text)}


async def at_rest(load: Load) -> None:
    """CPU and memory of the observer while many connections are open, each of which speaks now and then."""
    observer = new_observer()
    connections = Connections(load, CONNECTIONS, EVERY_S)
    try:
        await observer.start()
        assert observer.process is not None
        pid = observer.process.pid
        await observer.until_sampled()
        with kernel_statistics():
            programs, spent_s, started_s = programs_of(pid), cpu_seconds(pid), time.monotonic()
            await asyncio.sleep(WATCH_S)
            lasted_s = time.monotonic() - started_s
            used = (cpu_seconds(pid) - spent_s) / lasted_s
            in_kernel = (
                sum(program.run_ns for program in difference(programs, programs_of(pid)).values())
                / 1e9
                / lasted_s
            )
        memory = memory_mib(pid)
        await observer.terminate()
    finally:
        connections.close()
        await observer.close()
    print(f"\n| {CONNECTIONS:,} connections open, each speaks every {EVERY_S:g} s | |\n|---|---|")
    print(f"| the observer's process, part of one CPU | {used:.2%} |")
    print(f"| its programs in the kernel, part of one CPU | {in_kernel:.2%} |")
    print(f"| resident (VmRSS) | {memory['VmRSS']:.1f} MiB |")
    print(f"| of that its own (RssAnon) | {memory['RssAnon']:.1f} MiB |")


async def main(rounds: int) -> None:
    print(machine_line())
    with Load() as load:
        print(
            f"\n| with / without, {rounds} rounds | requests a second | CPU time a request |\n|---|---|---|"
        )
        for name, is_keep_alive in MODES:
            rates, cpu = zip(*await ratios(load, is_keep_alive, rounds))
            print(f"| {name} | {spread(rates)} | {spread(cpu)} |", flush=True)
        print("\n| program | | ns a run | runs a request | ns a request |\n|---|---|---|---|---|")
        for name, is_keep_alive in MODES:
            requests, programs = await per_run(load, is_keep_alive)
            for program in programs.values():
                a_run = program.run_ns / max(program.runs, 1)
                print(f"| {program.name} | {name} | {a_run:.0f} | {program.runs / requests:.2f} "
                      f"| {program.run_ns / requests:.0f} |", flush=True)  # fmt: skip
            total = sum(program.run_ns for program in programs.values()) / requests
            print(f"| all | {name} | | | {total:.0f} |", flush=True)
        await at_rest(load)


def missing() -> str:
    """What this machine lacks, as a sentence; "" if nothing."""
    if os.geteuid() != 0:
        return "The observer needs root."
    lacking = [program for program in ("nginx", "wrk") if shutil.which(program) is None]
    return f"Not installed: {', '.join(lacking)}." if lacking else missing_for_ebpf()


if __name__ == "__main__":
    if sentence := missing():
        sys.exit(f"bench-observer: {sentence}")
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
