"""The product on the kernel's own resctrl: what it reads and writes, and what the daemon does where containers meet."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cri_proxy.isolation.io.monitoring_groups import MonitoringGroups, remove_ours
from cri_proxy.isolation.io.resctrl import Resctrl
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import EIGHTHS, PERCENT
from cri_proxy.isolation.monitoring import Plan, Seen, Watch, group_name
from policies.machine.cpus import format_cpus
from tests.vm.guest import resctrl
from tests.vm.guest.node import Node, until
from tests.vm.guest.rules import AMD, INTEL, differences

#: Starts a child for each line, says its number, and leaves none of those that end to be waited for.
_PARENT = """\
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        time.sleep(900)
        os._exit(0)
    print(child, flush=True)
"""
#: Until a process that was killed is gone.
GONE_S = 30.0


async def what_the_product_reads_is_this_machine(node: Node) -> None:
    resctrl.mount()
    is_intel = node.shape.model == resctrl.INTEL
    info = Resctrl().info()
    assert info is not None
    print(info)
    cache, bandwidth = info.caches["L3"], info.bandwidth
    assert bandwidth is not None
    assert (cache.full_mask, cache.min_bits, cache.is_sparse) == (0xFFFF, 1, not is_intel)
    assert bandwidth.unit == (PERCENT if is_intel else EIGHTHS)
    assert info.closids == resctrl.GROUPS[node.shape.model] + 1
    assert info.rmids == resctrl.RMIDS
    assert {"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"} <= set(info.monitors)
    assert {format_cpus(domain.cpus) for domain in info.domains["L3"]} == set(node.shape.ccxs)


async def the_kernel_keeps_the_rules_that_the_model_has(node: Node) -> None:
    vendor = INTEL if node.shape.model == resctrl.INTEL else AMD
    told = await asyncio.to_thread(differences, Resctrl(), _Processes(), vendor)
    assert told == [], "\n".join(told)


async def monitoring_tells_what_fills_an_l3_and_leaves_the_groups_of_others(node: Node) -> None:
    resctrl.mount()
    info = Resctrl().info()
    assert info is not None
    own, key = resctrl.domain_of(node.shape.ccxs[0]), "a" * 64
    name, kernel = group_name(key), MonitoringGroups(resctrl.MOUNT)
    with resctrl.group("cri-resmgr.checked"), resctrl.process("sh", "-c", "while :; do :; done") as busy:
        os.sched_setaffinity(busy.pid, {0})
        watcher = Watcher(kernel, lambda cgroup: {busy.pid})

        def look(group: str) -> Seen:
            return watcher.round(Plan((Watch(key, group, "/a", (own,)),), info.domains["L3_MON"]))

        # 1. In the root's group.
        seen = await until(lambda: look(""), lambda seen: (seen.meters[key, own].occupancy or 0) > 1 << 20)
        print(
            seen.meters[key, own], seen.groups["", own], f"{seen.reads} values in {seen.spent_s * 1e3:.2f} ms"
        )
        assert kernel.monitored("", name) == {busy.pid}
        # 2. In another control group: there is a group anew, once its thread is there.
        assert resctrl.refusal(resctrl.MOUNT / "cri-resmgr.checked" / "tasks", f"{busy.pid}\n") == 0
        assert look("cri-resmgr.checked").watched == {key}
        assert kernel.monitors("") == () and kernel.monitored("cri-resmgr.checked", name) == {busy.pid}
        # 3. Another program watches it.
        theirs = resctrl.MOUNT / "cri-resmgr.checked" / "mon_groups" / "theirs"
        theirs.mkdir()
        assert resctrl.refusal(theirs / "tasks", f"{busy.pid}\n") == 0
        look("cri-resmgr.checked")
        assert look("cri-resmgr.checked").watched == frozenset()
        assert kernel.monitors("cri-resmgr.checked") == ("theirs",)
        assert resctrl.tasks(theirs) == {busy.pid}
        theirs.rmdir()
        # 4. The way back.
        look("cri-resmgr.checked")
        assert look("cri-resmgr.checked").watched == {key}
        watcher.close()
        assert remove_ours(kernel) == 1 and kernel.monitors("cri-resmgr.checked") == ()
        assert busy.pid in resctrl.tasks(resctrl.MOUNT / "cri-resmgr.checked")


class _Processes:
    """Other programs, on the kernel: each thread of the table is a process."""

    def __init__(self) -> None:
        self._parents: dict[int, subprocess.Popen[str]] = {}

    def make_other(self, group: str) -> None:
        (resctrl.MOUNT / group).mkdir()

    def remove_other(self, group: str) -> None:
        (resctrl.MOUNT / group).rmdir()

    def start(self, parent: int = 0) -> int:
        if not parent:
            made = subprocess.Popen(
                [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._parents[made.pid] = made
            return made.pid
        of = self._parents[parent]
        assert of.stdin is not None and of.stdout is not None
        of.stdin.write("\n")
        of.stdin.flush()
        return int(of.stdout.readline())

    def end(self, thread: int) -> None:
        os.kill(thread, signal.SIGKILL)
        if thread in self._parents:
            self._parents.pop(thread).wait()
        deadline_s = time.monotonic() + GONE_S
        while Path(f"/proc/{thread}").exists():
            assert time.monotonic() < deadline_s, f"process {thread} is still there"
            time.sleep(0.05)
