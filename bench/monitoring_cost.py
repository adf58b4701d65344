"""What monitoring takes of a core with 500 containers: ``python -m bench.monitoring_cost``.

The files are those of a described machine in memory (two Hygon 7285: 16 L3s), as most machines have no resctrl. So the
interrupts are not in it that the kernel sends for each value to a CPU of its L3: 10 to 50 us each. What they take is bounded
by the rounds themselves: a round whose reads took more reads less the next time (``reads_allowed``), which the last lines
show with 25 us of work for each value in the place of the interrupt.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import machine_line
from cri_proxy.affinity.demand.io.sizer import UsageReader
from cri_proxy.engine.engine import Engine
from cri_proxy.isolation.io.monitor import usage_of
from cri_proxy.isolation.io.monitoring_groups import MonitoringGroups
from cri_proxy.isolation.io.monitoring_rounds import MonitoringRounds, Question
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import (
    BATCH,
    PROTECTED,
    STANDARD,
    CacheDomain,
    CacheInfo,
    IsolatedContainer,
    ResctrlInfo,
)
from cri_proxy.isolation.monitoring import INTERVAL_S, VALUES, Source
from cri_proxy.node.cgroups import Cgroups
from tests.machines import HYGON_7285_2S
from tests.view.nodes import busy_engine

CONTAINERS, THREADS, RMIDS, CLOSIDS = 500, 20, 256, 16
ROUNDS = 60
INTERRUPT_S = 25e-6
CPU_STAT = "usage_usec {used}\nuser_usec 5\nsystem_usec 4\nnr_periods 10\nnr_throttled 4\nthrottled_usec 8\n"


@dataclass
class Described:
    """What resctrl offers."""

    offers: ResctrlInfo
    missing: str = ""

    def info(self) -> ResctrlInfo:
        return self.offers


class DescribedGroups(MonitoringGroups):
    """Monitoring groups whose folders have the kernel's files. ``work_s``: what the kernel does for each value."""

    def __init__(self, mount: Path, l3s: tuple[CacheDomain, ...], work_s: float = 0.0) -> None:
        super().__init__(mount)
        self._l3s, self._work_s = l3s, work_s
        self.fill(mount)
        (mount / "mon_groups").mkdir()

    def fill(self, folder: Path) -> None:
        (folder / "tasks").write_text("")
        for l3 in self._l3s:
            values = folder / "mon_data" / f"mon_L3_{l3.id:02d}"
            values.mkdir(parents=True)
            for value in VALUES:
                (values / value).write_text("123456789\n")

    def make_monitor(self, group: str, name: str) -> None:
        super().make_monitor(group, name)
        self.fill(Path(self._folder(group, name)))

    def remove_monitor(self, group: str, name: str) -> None:
        shutil.rmtree(self._folder(group, name))

    def read(self, source: Source, value: str) -> bytes:
        until_s = time.thread_time() + self._work_s
        while time.thread_time() < until_s:
            pass
        return super().read(source, value)


def main() -> None:
    print(machine_line())
    engine = busy_engine(HYGON_7285_2S, CONTAINERS)
    print(f"{CONTAINERS} containers, {RMIDS} RMIDs, a round each {INTERVAL_S:.0f} s, {ROUNDS} rounds")
    report(engine, "each in its L3s", lambda cpus: cpus)
    everywhere = engine.host.usable
    report(engine, "each in all 16 L3s", lambda cpus: everywhere)
    report(engine, "each in its L3s, 25 us a value", lambda cpus: cpus, INTERRUPT_S)
    report(engine, "each in all 16 L3s, 25 us a value", lambda cpus: everywhere, INTERRUPT_S)


def report(
    engine: Engine, name: str, cpus_of: Callable[[frozenset[int]], frozenset[int]], work_s: float = 0.0
) -> None:
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="crb-", dir=folder) as root:
        first_s, rounds_s, reads = measure(engine, Path(root), cpus_of, work_s)
    mean_s = statistics.fmean(rounds_s)
    print(
        f"{name}: {mean_s * 1e3:.1f} ms a round, {mean_s / INTERVAL_S:.3%} of a core; {reads} values a round; "
        f"the first round {first_s * 1e3:.0f} ms"
    )


def measure(
    engine: Engine, root: Path, cpus_of: Callable[[frozenset[int]], frozenset[int]], work_s: float
) -> tuple[float, list[float], int]:
    """CPU seconds of the first round and of each further one; the values that the last one has read."""
    l3s = tuple(CacheDomain(n, domain.cpus) for n, domain in enumerate(engine.host.topology.at("l3")))
    mount, cgroup_root = root / "resctrl", root / "cgroup"
    mount.mkdir()
    cgroups = describe_cgroups(engine, cgroup_root)
    kernel = DescribedGroups(mount, l3s, work_s)
    info = ResctrlInfo({"L3": CacheInfo(0xFFFF, closids=CLOSIDS)}, None, {"L3_MON": l3s}, VALUES, RMIDS)
    watcher = Watcher(kernel, Cgroups(cgroup_root).threads)
    now_s = 0.0
    usage = usage_of(UsageReader(cgroup_root, lambda: now_s))
    rounds = MonitoringRounds(kernel, watcher, Described(info), usage, root, root)
    containers = [
        IsolatedContainer(
            key[::-1], grant.container.path, (PROTECTED, STANDARD, BATCH)[n % 3], "", cpus_of(grant.cpus)
        )
        for n, (key, grant) in enumerate(engine.grants.items())
    ]
    took_s, reads = [], 0
    for number in range(ROUNDS + 1):
        now_s = number * INTERVAL_S
        began_s = time.process_time()
        answer = rounds.round(Question(containers, cgroups, dict.fromkeys(cgroups, ""), now_s))
        took_s.append(time.process_time() - began_s)
        reads = answer.seen.reads
        if answer.why:
            sys.exit(answer.why)
    rounds.close()
    return took_s[0], took_s[1:], reads


def describe_cgroups(engine: Engine, root: Path) -> dict[str, str]:
    found = {}
    # Ids of a runtime differ at their beginning.
    for number, key in enumerate(each[::-1] for each in engine.grants):
        found[key] = f"/kubepods/pod{number}/{key}"
        folder = root / found[key].lstrip("/")
        folder.mkdir(parents=True)
        (folder / "cpu.stat").write_text(CPU_STAT.format(used=number * 1_000_000))
        threads = range(number * THREADS + 1, (number + 1) * THREADS + 1)
        (folder / "cgroup.threads").write_text("".join(f"{thread}\n" for thread in threads))
    return found


if __name__ == "__main__":
    main()
