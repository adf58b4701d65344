"""The product on the kernel's own resctrl: what it reads and writes, and what the daemon does where containers meet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cri_proxy.isolation.io.monitoring_groups import MonitoringGroups, remove_ours
from cri_proxy.isolation.io.originals import BOOT_ID
from cri_proxy.isolation.io.resctrl import Resctrl
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import EIGHTHS, PERCENT
from cri_proxy.isolation.monitoring import Plan, Seen, Watch, group_name
from policies.machine.cpus import format_cpus, parse_cpus
from tests.vm.guest import resctrl
from tests.vm.guest.installation import (
    CONFIG,
    PACKAGE,
    SERVICE,
    SLOW_CONFIG,
    SLOW_UNIT,
    SOCKET_UNIT,
    STATE,
    run,
    unit,
)
from tests.vm.guest.kubelet import switch_over
from tests.vm.guest.node import RUNTIME, TASKS, Node, Running, connect, until, until_served
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
_ON = "isolation:\n  caches: enforce\n  bandwidth: enforce\n"
BATCH, THEIRS = "cri-resmgr.batch", "theirs"
ANOTHER_BOOT = "01234567-89ab-4cde-8f01-23456789abcd"
#: 30 % of 16 ways, rounded up to whole ones.
PART = "1f"
FORKS = 20
#: Processes that start processes from the first moment on.
_STORM = ("sh", "-c", f"for i in $(seq {FORKS}); do (sleep 9000 & exec sleep 9000) & done; wait")
STORM_PROCESSES = 2 * FORKS + 1
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


# --- the daemon, on containers that meet


async def batch_beside_protected_has_part_of_that_l3_with_all_it_started(node: Node) -> None:
    """And groups of others stay as they are, here and in all that follows."""
    with _others_group():
        await _configured(node, _ON)
        protected, batch = await _met(node)
        shared = _shared(node, batch)
        there = resctrl.schemata(resctrl.MOUNT / BATCH)
        print(there, shared)
        assert {domain for domain, mask in there["L3"].items() if mask.lstrip("0") == PART} == shared
        assert {mask for domain, mask in there["L3"].items() if domain not in shared} <= {"ffff"}
        assert {domain for domain, limit in there["MB"].items() if limit != "2048"} == shared
        await _until_members(protected, batch)
        told = node.ask("isolation")
        print(told["tasks"])
        assert [group["state"] for group in told["groups"]] == ["enforced"]
        assert told["other_groups"] == [THEIRS]
        assert told["refusals"] == []


async def what_is_seen_is_what_is_wanted_after_kill_minus_nine(node: Node) -> None:
    with _others_group():
        await _configured(node, _ON)
        protected, batch = await _met(node)
        before = _picture()
        pid = int(unit(SERVICE)["MainPID"])
        os.kill(pid, signal.SIGKILL)
        # While there is no daemon, another writes into its group.
        first = min(_shared(node, batch))
        resctrl.refusal(resctrl.MOUNT / BATCH / "schemata", f"L3:{first}=ffff\n")
        await until_served(node.kubelet)
        await until(_picture, lambda now: now == before)
        await _until_members(protected, batch)
        assert int(unit(SERVICE)["MainPID"]) not in (0, pid)


async def who_meets_nobody_any_more_has_all_again(node: Node) -> None:
    with _others_group():
        await _configured(node, _ON)
        protected, batch = await _met(node)
        threads = _threads(batch)
        await node.remove(protected.pod)
        await until(lambda: not (resctrl.MOUNT / BATCH).exists())
        assert threads <= resctrl.tasks(resctrl.MOUNT)


async def off_puts_everything_back(node: Node) -> None:
    with _others_group():
        await _configured(node, _ON)
        protected, batch = await _met(node)
        CONFIG.write_text(SLOW_CONFIG)
        run("systemctl", "reload", SERVICE)
        await _until_put_back(batch)


async def a_new_boot_begins_with_the_kernels_own_values(node: Node) -> None:
    """What a boot does, without one: resctrl is mounted anew, and the boot has another id."""
    resctrl.mount()
    await _configured(node, _ON)
    protected, batch = await _met(node)
    before = _picture()
    run("systemctl", "stop", SOCKET_UNIT, SERVICE)
    run("umount", str(resctrl.MOUNT))
    resctrl.mount()
    assert not (resctrl.MOUNT / BATCH).exists()
    with _another_boot():
        run("systemctl", "start", SOCKET_UNIT, SERVICE)
        await until(_picture, lambda now: now == before)
        await _until_members(protected, batch)
        assert json.loads((STATE / "isolation.json").read_text())["boot_id"] == ANOTHER_BOOT
        # With the daemon down.
        run("systemctl", "stop", SOCKET_UNIT, SERVICE)
        run("cri-resmgr", "release", "--all")
        await _until_put_back(batch)
    await until_served(node.kubelet)


async def kubelet_disable_puts_everything_back(node: Node) -> None:
    with _others_group():
        await _configured(node, _ON)
        protected, batch = await _met(node)
        switch_over()
        run("cri-resmgr", "kubelet", "disable", "--restart")
        await _until_put_back(batch)


async def removal_of_the_package_puts_everything_back(node: Node) -> None:
    with _others_group():
        run("systemctl", "restart", SERVICE)
        await _configured(node, _ON)
        protected, batch = await _met(node)
        run("dpkg", "--remove", PACKAGE)
        await _until_put_back(batch)
    async with connect(node.api, RUNTIME) as node.kubelet:
        node.forget()
        await node.remove()


async def _configured(node: Node, text: str) -> None:
    """The daemon has read this."""
    CONFIG.write_text(SLOW_CONFIG + text)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)


async def _met(node: Node) -> tuple[Running, Running]:
    """A protected container that may run everywhere, and then a batch container; the group of batch is there with it."""
    everywhere = {"cpu_request": 100, "cpu_limit": node.shape.cpus * 1000}
    protected = await node.run("protected", annotations={"cri-resmgr.io/class": "protected"}, **everywhere)
    batch = await node.run("batch", qos="besteffort", command=_STORM)
    await until(lambda: [group["state"] for group in node.ask("isolation")["groups"]], ["enforced"].__eq__)
    await _until_members(protected, batch)
    return protected, batch


def _shared(node: Node, batch: Running) -> set[int]:
    """The domains that a batch container may run in, as the protected one may in all."""
    cpus = parse_cpus(node.cpus(batch))
    return {resctrl.domain_of(ccx) for ccx in node.shape.ccxs if not cpus.isdisjoint(parse_cpus(ccx))}


def _threads(container: Running) -> set[int]:
    """All that a container has, below its cgroup too."""
    pid = (TASKS / container.id / "init.pid").read_text()
    cgroup = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::")[2]
    found: set[int] = set()
    for path in Path(f"/sys/fs/cgroup{cgroup}").rglob("cgroup.threads"):
        found |= {int(line) for line in path.read_text().split()}
    return found


async def _until_members(protected: Running, batch: Running) -> None:
    """The batch container has started all that it starts, all of it is in its group, and nothing of the protected one."""
    await until(lambda: len(_threads(batch)), STORM_PROCESSES.__eq__)
    await until(lambda: _threads(batch) - resctrl.tasks(resctrl.MOUNT / BATCH), set().__eq__)
    assert _threads(protected).isdisjoint(resctrl.tasks(resctrl.MOUNT / BATCH))


async def _until_put_back(batch: Running) -> None:
    """As the kernel was before us: no group and no monitoring group of ours, the root with all, nothing left to put back."""
    await until(lambda: sorted(path.name for path in resctrl.MOUNT.glob("**/cri-resmgr.*")), [].__eq__)
    root = resctrl.schemata(resctrl.MOUNT)
    assert set(root["L3"].values()) == {"ffff"}
    assert set(root["MB"].values()) == {"2048"}
    assert _threads(batch) <= resctrl.tasks(resctrl.MOUNT)
    kept = STATE / "isolation.json"
    await until(
        lambda: json.loads(kept.read_text()) if kept.exists() else {"values": {}, "groups": False},
        lambda document: not document["values"] and not document["groups"],
    )


def _picture() -> dict[str, Any]:
    """The groups that there are, with their values."""
    folders = [path.parent for path in resctrl.MOUNT.glob("*/schemata")]
    return {folder.name: resctrl.schemata(folder) for folder in (resctrl.MOUNT, *folders)}


@contextmanager
def _others_group() -> Iterator[None]:
    """A group of another program with a process and a monitoring group of its own, which must be the same afterwards."""
    resctrl.mount()
    with resctrl.group(THEIRS) as folder, resctrl.process("sleep", "9000") as sleeper:
        (folder / "mon_groups" / "theirs").mkdir()
        domain = resctrl.domain_of("0-1")
        assert resctrl.refusal(folder / "schemata", f"L3:{domain}=3\n") == 0
        assert resctrl.refusal(folder / "tasks", f"{sleeper.pid}\n") == 0
        before = resctrl.schemata(folder)
        yield
        assert resctrl.schemata(folder) == before
        assert resctrl.tasks(folder) == {sleeper.pid}
        assert (folder / "mon_groups" / "theirs").exists()


@contextmanager
def _another_boot() -> Iterator[None]:
    """This boot has another id, for what is run here and for the daemon, which must be down; it is started afterwards."""
    file, drop_in = Path("/run/boot_id"), SLOW_UNIT.with_name("boot.conf")
    file.write_text(f"{ANOTHER_BOOT}\n")
    # systemd gives the unit a /proc of its own, without what is mounted in this one.
    drop_in.write_text(f"[Service]\nBindReadOnlyPaths={file}:{BOOT_ID}\n")
    run("systemctl", "daemon-reload")
    run("mount", "--bind", str(file), str(BOOT_ID))
    try:
        yield
    finally:
        run("systemctl", "stop", SOCKET_UNIT, SERVICE)
        run("umount", str(BOOT_ID))
        drop_in.unlink()
        run("systemctl", "daemon-reload")
        run("systemctl", "start", SOCKET_UNIT, SERVICE)


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
