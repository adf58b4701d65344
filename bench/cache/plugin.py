"""The plugin's build, its arguments, and what it has counted."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
BUILD_TIMEOUT_S = 120
_CHECKED = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


@dataclass(frozen=True)
class Shape:
    """The machine whose caches are modelled; CPUs are numbered CCX by CCX, socket by socket."""

    cpus: int
    cpus_per_ccx: int
    ccxs_per_socket: int
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20


@dataclass(frozen=True)
class Counts:
    """The counters of ``model.h``, in lines of 64 bytes but for ``accesses``."""

    accesses: int
    l2_misses: int
    #: Of which: ``other_ccx`` (of the same socket), ``other_socket`` and ``memory``.
    l3_misses: int
    other_ccx: int
    other_socket: int
    memory: int
    #: Copies that a store took out of other CPUs' L2s and other CCXs' L3s.
    invalidated: int


def missing(*programs: tuple[str, str]) -> str:
    """The Debian packages of these programs (program, package) that are not installed, as a sentence; "" if none."""
    lacking = sorted({package for program, package in programs if shutil.which(program) is None})
    return f"Not installed for the cache model: {', '.join(lacking)}." if lacking else ""


def build_plugin(folder: Path) -> Path:
    """The shared object, for QEMU's ``-plugin``."""
    return _compile(folder / "cache.so", ["plugin.c", "model.c"], "-shared", "-fPIC")


def build_model(folder: Path) -> Path:
    """The model alone, as a shared object without QEMU."""
    return _compile(folder / "model.so", ["model.c"], "-shared", "-fPIC")


def build_program(name: str, folder: Path) -> Path:
    """A static program of this folder, by its source's name: "ring", "sweep", "load", "batches", "hold"."""
    return _compile(folder / name, [f"{name}.c"], "-static")


def _compile(made: Path, sources: list[str], *how: str) -> Path:
    command = ["gcc", *_CHECKED, *how, "-o", str(made), *(str(SOURCES / name) for name in sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gcc made no {made.name}: {done.stderr[-3000:]}")
    return made


def plugin_argument(
    plugin: Path, counted: Path, shape: Shape, *, asleep: bool = False, idle: bool = True
) -> str:
    """The word after QEMU's ``-plugin``; ``counted`` is the file that it writes.

    ``asleep``: accesses are looked at only from a program's ``wake()`` to its ``end()`` (mark.h). Without ``idle``: not what
    a CPU does between two halts without a task of a user, which is for whole machines.
    """
    sizes = f"l2={shape.l2_bytes},l3={shape.l3_bytes}"
    places = f"cpus={shape.cpus},ccx={shape.cpus_per_ccx},socket={shape.ccxs_per_socket}"
    return f"{plugin},out={counted},{places},{sizes},asleep={int(asleep)},idle={int(idle)}"


def read_counted(counted: Path) -> dict[str, Counts]:
    """By name: "mark 1" for what lay between the first pair of marks, and so on; "all" from start to end."""
    lines = [json.loads(line) for line in counted.read_text().splitlines()]
    return {line.pop("counted"): Counts(**line) for line in lines}
