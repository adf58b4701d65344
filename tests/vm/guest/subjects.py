"""All subjects of isolation at once, on a real kernel: what is seen is what is wanted, and then as it was before.

Of cgroup v2: under v1 memory has no values.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cri_proxy.isolation.io.cpu_time import CpuTime
from cri_proxy.isolation.io.disks import Disks
from cri_proxy.isolation.io.interrupts import Interrupts
from cri_proxy.isolation.io.memory import Memory
from cri_proxy.isolation.io.originals import read_place
from cri_proxy.isolation.io.thread_attributes import Kernel
from cri_proxy.isolation.model import FILE
from cri_proxy.isolation.places import file_place
from tests.vm.guest.installation import CONFIG, SERVICE, SLOW_CONFIG, STATE, run, unit
from tests.vm.guest.kubelet import switch_over
from tests.vm.guest.node import TASKS, Node, Running, until, until_served

SUBJECTS = ("cpu", "scheduling", "interrupts", "disks", "memory")
_ON = f"""\
isolation: {{{", ".join(f"{name}: enforce" for name in SUBJECTS)}}}
control:
  blockio:
    classes:
      batch: [{{Devices: [/dev/vda], ThrottleReadBps: 50M, ThrottleWriteBps: 50M}}]
  memory:
    classes:
    - {{name: batch, high: 64Mi}}
    - {{name: protected, low: 50%}}
  scheduling:
    schedulingClasses:
    - {{name: batch, policy: batch, nice: 15, ioClass: idle}}
    - {{name: protected, policy: other, nice: -5}}
"""
#: What subjects write, in cgroups and beside them.
_WRITTEN = (
    *("cpu.idle", "cpu.weight", "cpu.max.burst"),
    *("io.max", "io.weight", "memory.high", "memory.low", "memory.min", "memory.swap.max"),
)
_SAME = {each.name: each for each in (CpuTime, Disks, Interrupts, Memory)}
_BATCH = ("batch", 15)


async def all_subjects_at_once_are_as_wanted_after_kill_minus_nine_and_off_again(node: Node) -> None:
    containers = await _started(node)
    before = _picture(containers)
    await _switched_on(node)
    await _as_wanted(node, containers)
    now = _picture(containers)
    changed = {name for name, value in now.items() if before.get(name) != value}
    print("\n".join(f"{name}: {before.get(name)!r} -> {now[name]!r}" for name in sorted(changed)))
    # While there is no daemon another program writes over it.
    pid = int(unit(SERVICE)["MainPID"])
    os.kill(pid, signal.SIGKILL)
    for place in [name for name in changed if name.startswith("/proc/irq/")][:1]:
        Path(place).write_text(before[place])
    await until_served(node.kubelet)
    await _as_wanted(node, containers)
    assert int(unit(SERVICE)["MainPID"]) not in (0, pid)
    CONFIG.write_text(SLOW_CONFIG)
    run("systemctl", "reload", SERVICE)
    await _until_put_back(containers, before)


async def kubelet_disable_puts_every_file_and_thread_back(node: Node) -> None:
    containers = await _started(node)
    before = _picture(containers)
    await _switched_on(node)
    await _as_wanted(node, containers)
    switch_over()
    run("cri-resmgr", "kubelet", "disable", "--restart")
    await _until_put_back(containers, before)
    run("systemctl", "restart", SERVICE)
    CONFIG.write_text(SLOW_CONFIG)
    await until_served(node.kubelet)


async def _started(node: Node) -> dict[str, Running]:
    """A protected container that owns CPUs, and a batch container, with isolation off."""
    CONFIG.write_text(SLOW_CONFIG)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)
    own = {"cri-resmgr.io/class": "protected", "cri-resmgr.io/cpus": "exclusive"}
    made = {
        "protected": await node.run(
            "protected", qos="guaranteed", annotations=own, cpu_limit=2000, memory_limit=64 << 20
        ),
        "batch": await node.run("batch", qos="besteffort"),
    }
    assert node.row(made["protected"])["exclusive"] != ""
    return made


async def _switched_on(node: Node) -> None:
    CONFIG.write_text(SLOW_CONFIG + _ON)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)


async def _as_wanted(node: Node, containers: dict[str, Running]) -> None:
    """Each value is there, each thread is of its class, and nothing was refused but by managed interrupts."""
    await until(lambda: node.ask("isolation"), lambda told: all(_is_at_work(told, name) for name in SUBJECTS))
    batch = _pid(containers["batch"])
    await until(lambda: _attributes(batch), lambda seen: (seen.cpu.policy, seen.cpu.nice) == _BATCH)
    assert _attributes(_pid(containers["protected"])).cpu.nice == -5
    await until(lambda: _wrong(node), [].__eq__)
    told = node.ask("isolation")
    assert [row for row in told["refusals"] if not row["final"]] == []
    print(run("cri-resmgr", "isolation").stdout)


def _is_at_work(told: dict[str, Any], name: str) -> bool:
    return told["subjects"][name]["mode"] == "enforce" and bool(told.get("values", {}).get(name))


def _wrong(node: Node) -> list[str]:
    """The places of files that say something else."""
    told = node.ask("isolation")
    refused = {row["place"] for row in told["refusals"]}
    found = []
    for row in told["files"]:
        place, value = str(row["place"]), str(row["value"])
        if place.startswith(FILE) and place not in refused:
            seen = read_place(file_place(place))
            subject = object.__new__(_SAME[row["subject"]])
            if seen != value and not subject.is_same(place, seen, value):
                found.append(f"{place} is {seen}, wanted {value}")
    return found


async def _until_put_back(containers: dict[str, Running], before: dict[str, str]) -> None:
    await until(lambda: _differences(before, _picture(containers)), {}.__eq__)
    await until(lambda: (STATE / "isolation.json").exists(), lambda there: not there)


def _differences(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str, str]]:
    names = before.keys() | now.keys()
    return {
        name: (before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)
    }


def _picture(containers: dict[str, Running]) -> dict[str, str]:
    """What all the files say that may be written, for the containers, the pods, and all above; and threads."""
    found = {}
    for container in containers.values():
        for folder in _cgroups(_pid(container)):
            for name in _WRITTEN:
                file = folder / name
                if file.exists():
                    found[str(file)] = file.read_text().strip()
        found[f"threads of {container.pod.name}"] = str(_attributes(_pid(container)))
    for file in sorted(Path("/proc/irq").rglob("smp_affinity_list")):
        found[str(file)] = file.read_text().strip()
    found["default"] = Path("/proc/irq/default_smp_affinity").read_text().strip()
    return found


def _cgroups(pid: int) -> Iterator[Path]:
    """The folders of a process in all hierarchies, with those above them, up to kubepods."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mount = Path("/sys/fs/cgroup") / controllers if controllers else Path("/sys/fs/cgroup")
        if not mount.is_dir() or controllers.startswith("name="):
            continue
        folder = mount / path.lstrip("/")
        while folder != mount:
            yield folder
            folder = folder.parent


def _pid(container: Running) -> int:
    return int((TASKS / container.id / "init.pid").read_text())


def _attributes(pid: int) -> Any:
    return Kernel().read(pid)
