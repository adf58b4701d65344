"""What sizing 500 containers by demand costs: ``python -m bench.demand_cost [CONTAINERS]`` (root).

Real cgroups, as many as containers, on this machine's mounts, of which one in ten has a task that works a little and waits.
CPU time of this process, so that what else the machine does does not count:

- a look at all of them, at their limits' rungs (one file each) and in shrunk sets (waiting and throttling as well); beside
  it the same with each file opened anew;
- what the controller and the engine do with the samples;
- having a trigger on each, and what the kernel's threads for them (psimon) take, where triggers of 500 ms may be had; else
  triggers of two seconds, which have no threads of their own.

The parts of a core are for samples each 5 s of all, and twice a second of those in shrunk sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from bench.decision_time import topology
from bench.figures import machine_line
from cri_proxy.affinity.demand.controller import FAST_S, ContainerSet, DemandController
from cri_proxy.affinity.demand.estimate import TRIGGER_S, DemandSample, DemandSettings
from cri_proxy.affinity.demand.io.triggers import PressureTriggers
from cri_proxy.affinity.demand.io.usage import UsageReader
from cri_proxy.config.engine_options import EngineOptions
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.host import Host
from policies.hygon import Hygon
from policies.settings import PlacementSettings
from tests.scenes import make_container, run

CONTAINERS = 500
ROUNDS = 40
PARENT = f"cri-resmgr-bench-{os.getpid()}"
#: Of a container in ten: a millisecond of work in fifty.
WORKS = "import time\nwhile True:\n t = time.monotonic() + .001\n while time.monotonic() < t: pass\n time.sleep(.05)"
WATCHED_S = 10.0


def mounts() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    if not (root / "cpuset").is_dir():
        return [root]
    return [root / name for name in ("cpu", "cpuacct", "unified") if (root / name).is_dir()]


@contextmanager
def cgroups(count: int) -> Iterator[dict[str, str]]:
    """So many cgroups, by key, with tasks in some."""
    paths = {f"c{number}": f"/{PARENT}/c{number}" for number in range(count)}
    tasks: list[subprocess.Popen[bytes]] = []
    try:
        for mount in mounts():
            for path in ("/" + PARENT, *paths.values()):
                (mount / path.lstrip("/")).mkdir()
        for path in list(paths.values())[::10]:
            tasks.append(subprocess.Popen([sys.executable, "-S", "-c", WORKS]))
            for mount in mounts():
                (mount / path.lstrip("/") / "cgroup.procs").write_text(str(tasks[-1].pid))
        yield paths
    finally:
        for task in tasks:
            task.kill()
            task.wait()
        for mount in mounts():
            for path in (*paths.values(), "/" + PARENT):
                (mount / path.lstrip("/")).rmdir()


def cpu_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of one time: the median of some."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return sorted(times)[len(times) // 2]


def psimon_s() -> tuple[int, float]:
    """The kernel's threads for triggers, and the CPU seconds that they have taken."""
    count, ticks = 0, 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == "psimon":
            count += 1
            ticks += sum(map(int, fields.split()[11:13]))
    return count, ticks / os.sysconf("SC_CLK_TCK")


def looks(paths: dict[str, str]) -> tuple[float, float, float]:
    """A look at all: at their limits' rungs, in shrunk sets, and those with files that are opened each time."""
    reader = UsageReader(Path("/sys/fs/cgroup"), time.monotonic)

    def anew() -> None:
        reader.look(paths, paths.keys())
        reader.keep(())

    try:
        by_limit = cpu_s(lambda: reader.look(paths, ()))
        shrunk = cpu_s(lambda: reader.look(paths, paths.keys()))
        return by_limit, shrunk, cpu_s(anew)
    finally:
        reader.close()


def decisions(keys: list[str]) -> tuple[float, float]:
    """A round of the controller with a sample of each; and of the engine: which sets there are."""
    controller = DemandController(DemandSettings())
    steps = (8_000, 16_000, 24_000, 32_000, 64_000)
    controller.follow({key: ContainerSet(steps, 8_000, 1_000, 64_000) for key in keys})
    now_s = 0.0

    def a_round() -> None:
        nonlocal now_s
        now_s += FAST_S
        for number, key in enumerate(controller.due(now_s)):
            used = int(now_s * 1e9 * (1 + number % 5))
            controller.sample(key, DemandSample(int(now_s * 1e9), used, 0, 0))
        controller.decide(now_s)
        controller.next_due_s(now_s)

    tree = topology()
    host = Host(tree, tree.online, tree.memory_nodes, tree.online)
    engine = Engine(host, Hygon(tree, PlacementSettings(size="demand")), EngineOptions())
    for number, key in enumerate(keys):
        run(engine, make_container(f"app-{number}", limit=32, request=0.5, memory=1), key)
    return cpu_s(a_round, ROUNDS * 10), cpu_s(engine.sized_sets)


def growth(count: int, milli: int) -> float:
    """A set that grows, on a node with so many containers in shrunk sets that use so much."""
    tree = topology()
    host = Host(tree, tree.online, tree.memory_nodes, tree.online)
    engine = Engine(host, Hygon(tree, PlacementSettings(size="demand")), EngineOptions())
    keys = [f"c{number}" for number in range(count)]
    for number, key in enumerate(keys):
        run(engine, make_container(f"app-{number}", limit=32, request=0.5, memory=1), key)
        engine.size(key, milli, "by demand", 1.0)
    growing = iter(keys)
    return cpu_s(lambda: engine.size(next(growing), 16_001, "by demand", 1.0))


def triggers(paths: dict[str, str]) -> str:
    """A sentence on what triggers cost."""
    for window_s in (TRIGGER_S, 2.0):
        watched = PressureTriggers(Path("/sys/fs/cgroup"), window_s)
        try:
            began = time.monotonic()
            watched.keep(paths, 0.1)
            took_s = time.monotonic() - began
            if watched.problem:
                print(f"no triggers of {window_s:g} s: {watched.problem}")
                continue
            threads, before_s = psimon_s()
            time.sleep(WATCHED_S)
            part = (psimon_s()[1] - before_s) / WATCHED_S
            fired = len(watched.fired())
            return (
                f"{len(watched.keys)} triggers of {window_s:g} s: {took_s * 1000:.0f} ms to have them, {threads} threads of "
                f"the kernel, which take {part:.2%} of a core; {fired} have fired in {WATCHED_S:g} s"
            )
        finally:
            watched.close()
    return "no triggers at all"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CONTAINERS
    print(machine_line())
    with cgroups(count) as paths:
        by_limit, shrunk, anew = looks(paths)
        told = triggers(paths)
    a_round, sets = decisions(list(paths))
    settings = DemandSettings()
    print(f"{count} containers, CPU time:")
    print(
        f"  a look at all by their limits   {by_limit * 1000:7.2f} ms, {by_limit / settings.interval_s:.2%} of a core"
    )
    print(
        f"  a look at all in shrunk sets    {shrunk * 1000:7.2f} ms, {shrunk / FAST_S:.2%} of a core twice a second"
    )
    print(f"    with files opened each time   {anew * 1000:7.2f} ms")
    print(
        f"  what follows from the samples   {a_round * 1000:7.2f} ms, {a_round / FAST_S:.2%} of a core twice a second"
    )
    print(f"  which sets there are            {sets * 1000:7.2f} ms, once after each change of a place")
    for milli, words in ((100, "with room"), (2_000, "in the way")):
        grows = growth(count, milli) * 1000
        print(f"  a set that grows, {words:<10}    {grows:7.2f} ms")
    print(f"  {told}")


if __name__ == "__main__":
    main()
