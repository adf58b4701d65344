"""What measured protection costs with 50 protected containers beside batch: ``python -m bench.protection_cost`` (root).

Real cgroups with a process each, and the kernel's counters of each on this machine's CPUs: two events of software, as a
virtual machine has none of hardware. Its loop's rounds come one after the other, and the clock is put on by ten seconds for
each. Reading a counter of hardware on another CPU interrupts that besides: two or three microseconds of it a counter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.figures import machine_line, percentile, print_row
from cri_api.supervisor import Supervisor
from cri_proxy.affinity.effect.io.counting import Countable
from cri_proxy.config.config import read_config
from cri_proxy.isolation.io.protector import Protector
from cri_proxy.isolation.model import (
    BATCH,
    PROTECTED,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    IsolatedContainer,
    ResctrlInfo,
)
from cri_proxy.isolation.protection import WINDOW_S
from cri_proxy.metrics import Metrics
from cri_proxy.text.sources import SettingsSource
from tests.affinity.effect.io.counted_cgroup import SOFTWARE, cgroup_in, counted_root
from tests.scenes import make_container, make_pod

CGROUPS = Path("/sys/fs/cgroup")
ON = {"caches": "enforce", "bandwidth": "enforce", "protection": "enforce"}
#: Sleeps most of the time, and works a little in each tenth of a second.
SOME_WORK = "import time\nwhile True:\n sum(range(2000)); time.sleep(0.1)"


@contextlib.contextmanager
def containers(count: int, root: Path) -> Iterator[list[str]]:
    """The paths of so many cgroups, each with a process."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(cgroup_in(root, f"cri-resmgr-protect-{os.getpid()}"))
        paths = []
        for number in range(count):
            made = stack.enter_context(cgroup_in(parent, f"c{number}"))
            process = subprocess.Popen([sys.executable, "-S", "-c", SOME_WORK])
            (made / "cgroup.procs").write_text(str(process.pid))
            stack.callback(process.wait)
            stack.callback(process.kill)
            paths.append(f"/{parent.name}/c{number}")
        yield paths


class Steering:
    """In the place of what carries steps out."""

    def __init__(self, paths: list[str], cpus: frozenset[int]) -> None:
        self.steps: dict[int, Any] = {}
        domains = (CacheDomain(0, cpus), CacheDomain(1, frozenset()))
        self.info = ResctrlInfo(
            {"L3": CacheInfo(0xFFFF)}, BandwidthInfo(1, 1, 2048), {"L3": domains, "MB": domains}
        )
        self._found = [IsolatedContainer(path, path, PROTECTED, "", cpus) for path in paths[1:]]
        self._found.append(IsolatedContainer(paths[0], paths[0], BATCH, "", cpus))

    def containers(self) -> list[IsolatedContainer]:
        return self._found

    def wake(self) -> None:
        pass


def services(paths: list[str]) -> Any:
    """As much of a daemon's services as the loop needs."""
    config = read_config([SettingsSource("bench", values={"isolation": ON})]).config
    grants = {
        path: SimpleNamespace(since_s=0.0, container=make_container(path, pod=make_pod(path)))
        for path in paths
    }
    node_state = SimpleNamespace(now_s=1000.0, enforcing=True, engine=SimpleNamespace(grants=grants))
    node_state.clock = lambda: node_state.now_s
    log = SimpleNamespace(info=lambda *_, **__: None)
    reconciler = SimpleNamespace(cgroup_of=lambda key: key)
    return SimpleNamespace(
        supervisor=Supervisor(),
        config=config,
        node_state=node_state,
        log=log,
        metrics=Metrics("bench"),
        reconciler=reconciler,
    )


async def measure(count: int, rounds: int, is_counted: bool) -> None:
    root, cpus = counted_root(), frozenset(os.sched_getaffinity(0))
    if root is None or os.getuid():
        raise SystemExit("this takes root, and a kernel that counts by cgroup")
    with containers(count + 1, root) as paths:
        of_daemon = services(paths)
        countable = Countable(SOFTWARE if is_counted else None, "" if is_counted else "not asked for")
        protector = Protector(of_daemon, CGROUPS, Steering(paths, cpus), countable=countable)
        await protector.round()
        took: list[float] = []
        for _ in range(rounds):
            of_daemon.node_state.now_s += WINDOW_S
            began = time.process_time()
            await protector.round()
            took.append(time.process_time() - began)
        status = protector.status()
        await protector.close()
    median = percentile(took, 50)
    how = f"{status['counted']} counted on {len(cpus)} CPUs" if is_counted else "pressure alone"
    print_row(
        f"{count} containers, {how}", f"{median * 1e3:.2f} ms a window", f"{median / WINDOW_S:.4%} of a core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print(machine_line())
    for is_counted in (True, False):
        asyncio.run(measure(options.containers, options.rounds, is_counted))


if __name__ == "__main__":
    main()
