"""Programs whose lines are known, under QEMU's user mode: what the model counts of them, beside what it should.

.venv/bin/python -m bench.cache.user_mode
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.cache.plugin import (
    Counts,
    Shape,
    build_plugin,
    build_program,
    missing,
    plugin_argument,
    read_counted,
)

QEMU = f"qemu-{platform.machine()}"
NEEDED = (("gcc", "gcc libc6-dev"), (QEMU, "qemu-user"))
RUN_TIMEOUT_S = 300
#: Two sockets of two CCXs of four CPUs.
SMALL = Shape(cpus=16, cpus_per_ccx=4, ccxs_per_socket=2)
#: CPU 0 is the thread that starts the others.
PRODUCER, SAME_CCX, OTHER_CCX, OTHER_SOCKET = 1, 2, 5, 9
L3_LINES = SMALL.l3_bytes // 64


@dataclass(frozen=True)
class Programs:
    """What is built once, in a folder that outlives it."""

    folder: Path
    plugin: Path
    ring: Path
    sweep: Path


def build_programs(folder: Path) -> Programs:
    return Programs(
        folder, build_plugin(folder), build_program("ring", folder), build_program("sweep", folder)
    )


def pass_ring(programs: Programs, batches: int, lines: int, producer: int, consumer: int) -> Counts:
    """So many batches of lines written by one CPU and read by another; the caches are warm."""
    return _run(programs, programs.ring, batches, lines, producer, consumer)


def sweep(programs: Programs, lines: int, rounds: int) -> Counts:
    """Lines read in a row, so many times; before that all were written once."""
    return _run(programs, programs.sweep, lines, rounds)


def _run(programs: Programs, program: Path, *words: int) -> Counts:
    counted = programs.folder / "counted"
    plugin = plugin_argument(programs.plugin, counted, SMALL)
    command = [QEMU, "-plugin", plugin, str(program), *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr[-3000:]}")
    return read_counted(counted)["mark 1"]


def main() -> None:
    if sentence := missing(*NEEDED):
        sys.exit(sentence)
    with tempfile.TemporaryDirectory(prefix="crcache-") as folder:
        programs = build_programs(Path(folder))
        batches, lines = 50, 4000
        print(f"A ring of {lines} lines, {batches} batches; lines a batch:\n")
        print(
            "| producer and consumer in | other CCX | other socket | memory | invalidated |\n|---|---|---|---|---|"
        )
        for where, consumer in (
            ("one CCX", SAME_CCX),
            ("two CCXs", OTHER_CCX),
            ("two sockets", OTHER_SOCKET),
        ):
            found = pass_ring(programs, batches, lines, PRODUCER, consumer)
            a_batch = (found.other_ccx, found.other_socket, found.memory, found.invalidated)
            print(f"| {where} | {' | '.join(f'{count / batches:,.1f}' for count in a_batch)} |")
        print("\nLines read in a row, four times:\n\n| MiB | L3 misses a line |\n|---|---|")
        for sixteenths in (8, 12, 15, 16, 17, 20, 32):
            lines = L3_LINES * sixteenths // 16
            found = sweep(programs, lines, 4)
            print(f"| {lines * 64 / (1 << 20):g} | {found.l3_misses / lines / 4:.2f} |")


if __name__ == "__main__":
    main()
