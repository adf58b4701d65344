"""Lines between caches a request, by placement, on a virtual Hygon machine: QEMU with the plugin, the package, containerd.

.venv/bin/python -m bench.cache.virtual [--runs 9] [--boots 1] [--cpusets | --neighbour | --long]

Where processes of no manager come to run is one draw of a boot: that row is told of several boots, or of none.

Needs root and what builds virtual machines. What was counted is kept in a file with ``--keep FILE``, so that runs can be
added to it and be shown again (``--keep FILE --boots 0``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from bench.cache import guest, neighbour
from bench.cache.disk import with_package
from bench.cache.guest import CONSTANTS, DAEMON_CONFIG, LONG, PATIENCE_S, SHORT
from bench.cache.plugin import Counts, Shape, build_plugin, build_program, plugin_argument, read_counted
from bench.cache.table import (
    COLUMNS,
    Measurement,
    agreement,
    background_share,
    beside_alone,
    markdown,
    read_runs_of_boot,
    rows,
)
from cri_proxy.config.options.table import OPTIONS
from tests.e2e.images import make_images
from tests.e2e.traffic_images import libraries, make_traffic_image, missing_for_traffic
from tests.vm.image import BOOKWORM, Image, image, missing
from tests.vm.machine import CCX_PLACES, CORE_PLACES, SHAPES, THREAD_PLACES
from tests.vm.packages import grpc_client, package
from tests.vm.qemu import build as qemu
from tests.vm.run import VirtualMachine

ROOT = Path(__file__).parents[2]
SIZES_BY_DEMAND = any(option.key == "placement.size" for option in OPTIONS)
#: All CPUs take turns in one thread of the host: what one does between two of another's accesses is not the host's load's to
#: say, and runs agree three times as well.
ACCELERATOR = "tcg,thread=single"
#: A boot takes four minutes on two CPUs of its own, and many times that where others want them.
SILENCE_S = 7200
#: QEMU numbers a CPU by its place, with or without CPUs in the places before.
PLACES = Shape(2 * CCX_PLACES * CORE_PLACES * THREAD_PLACES, CORE_PLACES * THREAD_PLACES, CCX_PLACES)


def prepare(folder: Path, chosen: argparse.Namespace) -> tuple[Image, Path]:
    """Into an empty folder: a disk with the package on it, and what all boots are given as their job."""
    loads = LONG if chosen.long else SHORT
    (folder / "deb").mkdir()
    (folder / "disk").mkdir()
    disk = with_package(
        image(BOOKWORM, ROOT / ".cache" / "vm"), package("3.11", folder / "deb"), folder / "disk"
    )
    job = folder / "job"
    unwanted = shutil.ignore_patterns("__pycache__", "test_*")
    shutil.copytree(ROOT / "tests" / "vm", job / "tests" / "vm", ignore=unwanted)
    shutil.copytree(ROOT / "bench" / "cache", job / "bench" / "cache", ignore=unwanted)
    for name in ("tests/__init__.py", "tests/cri_client.py", "bench/__init__.py"):
        shutil.copy(ROOT / name, job / name)
    make_images(job)
    make_traffic_image(job)
    shutil.copytree(grpc_client("3.11", "amd64", ROOT / ".cache" / "vm"), job / "grpc")
    (job / "files").mkdir()
    for name in ("load", "batches", "hold", "sweep"):
        build_program(name, job / "files")
    if any(load.server == "redis" for load in loads):
        copy_redis(job / "files" / "redis")
    names = [load.name for load in loads]
    table = _table(chosen)
    ((name, run),) = table.RUNS.items()
    described = {
        "run": name,
        "table": table.__name__,
        "checks": [check.__name__ for check in run.checks],
        "loads": names,
        "config": DAEMON_CONFIG.format(provider=chosen.provider),
        "constants": CONSTANTS,
        "demand": SIZES_BY_DEMAND and not chosen.cpusets and not chosen.without_demand,
        "observer": not chosen.cpusets,
        "batch_cache": chosen.batch_cache,
        "repeats": chosen.runs,
        "patience_s": PATIENCE_S,
    }
    (job / "job.json").write_text(json.dumps(described))
    return disk, job


def _table(chosen: argparse.Namespace) -> ModuleType:
    """Whose ``RUNS`` has the one run that is made."""
    return neighbour if chosen.neighbour else guest


def copy_redis(folder: Path) -> None:
    """This machine's redis-server with its libraries and their loader, into a new folder.

    Debian's redis-tools has it by another name; the package redis-server would start one here.
    """
    program = Path(shutil.which("redis-check-rdb") or "redis-check-rdb").resolve()
    folder.mkdir()
    shutil.copy(program, folder / "redis-server")
    for library in libraries(program):
        shutil.copy(library, folder / ("loader" if "/ld-" in library else Path(library).name))


class TellingMachine(VirtualMachine):
    """Shows each measurement as soon as it is made."""

    def _take(self, line: str) -> None:
        super()._take(line)
        if line.startswith('{"placement"'):
            print(line, file=sys.stderr, flush=True)


def boot(
    number: int, folder: Path, disk: Image, job: Path, chosen: argparse.Namespace
) -> list[list[Measurement]]:
    """The runs of one boot.

    :raises RuntimeError: a check in the guest failed; with what it said.
    """
    own = folder / f"boot-{number}"
    own.mkdir()
    counted = own / "counted"
    more = ("-plugin", plugin_argument(build_plugin(own), counted, PLACES, asleep=True, idle=False))
    (run,) = _table(chosen).RUNS.values()
    begun_s = time.monotonic()
    with TellingMachine(
        *(SHAPES[run.shape], disk, job, run.words),
        silence_s=SILENCE_S,
        accelerator=chosen.accelerator,
        more=more,
    ) as machine:
        said = []
        for check in run.names[1:]:
            verdict = machine.verdict(check)
            spent = f"{time.monotonic() - begun_s:.0f} s"
            print(f"boot {number}: {check}: {spent}\n{verdict.said}", file=sys.stderr, flush=True)
            if not verdict.passed:
                raise RuntimeError(
                    f"boot {number}: {check} failed; counted until then:\n{counted.read_text()}"
                )
            said.append(verdict.said)
        machine.finish()
    return read_runs_of_boot(said, read_counted(counted))


def show(runs: Sequence[Sequence[Measurement]]) -> str:
    """The tables, and what is to be known of them."""
    made = rows(runs)
    text = [markdown(made), ""]
    for counter, title in COLUMNS:
        apart = agreement(made, counter)
        if apart is not None:
            text.append(f"Half of the runs lie within {100 * apart:.0f} % of their median: {title}.")
    for (load, placement), times in beside_alone(made, "l3_misses").items():
        from_memory = beside_alone(made, "memory").get((load, placement))
        of_memory = "" if from_memory is None else f", {from_memory:.2f} times its lines from memory"
        text.append(f"{load}, {placement}: {times:.2f} times its L3 misses alone{of_memory}.")
    share = max(background_share(run, "l3_misses") for run in runs)
    text.append(f"What the idle machine misses was taken off: at most {100 * share:.1f} % of the L3 misses.")
    return "\n".join(text)


def write_runs(runs: Sequence[Sequence[Measurement]], file: Path) -> None:
    """For ``read_runs``."""
    file.write_text(json.dumps([[asdict(one) for one in run] for run in runs], indent=1))


def read_runs(file: Path) -> list[list[Measurement]]:
    """None if there is no such file yet."""
    if not file.exists():
        return []
    return [
        [Measurement(**{**one, "cpus": tuple(one["cpus"]), "counts": Counts(**one["counts"])}) for one in run]
        for run in json.loads(file.read_text())
    ]


def measure(chosen: argparse.Namespace, runs: list[list[Measurement]]) -> None:
    """Add as many runs as were chosen; each is kept as soon as it is there."""
    folder = Path(tempfile.mkdtemp(prefix="crcache-"))
    try:
        disk, job = prepare(folder, chosen)
        with ThreadPoolExecutor(chosen.together) as pool:
            numbers = range(1, chosen.boots + 1)
            booted = [pool.submit(boot, number, folder, disk, job, chosen) for number in numbers]
            for ended in as_completed(booted):
                runs += ended.result()
                if chosen.keep:
                    write_runs(runs, chosen.keep)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Lines between caches a request, on a virtual Hygon machine."
    )
    parser.add_argument("--runs", type=int, default=9, help="of each load under each placement, in a boot")
    parser.add_argument("--boots", type=int, default=1)
    parser.add_argument("--together", type=int, default=1, help="boots at a time")
    parser.add_argument("--long", action="store_true", help="the loads that the short one leaves out")
    parser.add_argument(
        "--provider", help="of the observer; sock_diag sees no unix sockets and no shared memory"
    )
    parser.add_argument("--without-demand", action="store_true")
    parser.add_argument(
        "--cpusets", action="store_true", help="no manager, and one L3 by the runtime: boots are short"
    )
    parser.add_argument(
        "--neighbour",
        action="store_true",
        help="beside a stream through four L3s, with and without isolation; needs the QEMU with resctrl",
    )
    parser.add_argument(
        "--batch-cache",
        nargs="+",
        default=["30%"],
        metavar="SHARE",
        help="what isolation leaves the stream: isolation.batch_cache",
    )
    parser.add_argument("--accelerator", default=ACCELERATOR)
    parser.add_argument("--keep", type=Path, help="a file of earlier runs, to be added to")
    chosen = parser.parse_args()
    chosen.provider = chosen.provider or ("auto" if chosen.long else "sock_diag")
    runs = read_runs(chosen.keep) if chosen.keep else []
    if chosen.boots:
        if os.geteuid() != 0:
            sys.exit("make bench-cache needs root: it builds the disk of a virtual machine.")
        lacking = missing() or missing_for_traffic() or (qemu.missing() if chosen.neighbour else "")
        if lacking:
            sys.exit(lacking)
        measure(chosen, runs)
    if not runs:
        sys.exit("There is no run to show.")
    print(show(runs))


if __name__ == "__main__":
    main()
