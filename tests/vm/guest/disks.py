"""Block I/O of real containers on virtio disks: limits that bound, weights, iocost, disks that go and come, the way back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vm.guest.installation import CONFIG, SERVICE, SLOW_CONFIG, STATE, run, unit
from tests.vm.guest.kubelet import switch_over
from tests.vm.guest.node import TASKS, Node, Running, until, until_served

MIB = 1 << 20
RATE = MIB
#: What a group may have at once beyond its rate: some slices of a tenth of a second (blk-throttle.c).
SLACK = RATE // 2
ROOT = Path("/sys/fs/cgroup")
IS_V2 = (ROOT / "cgroup.controllers").exists()
DISK = "vdb"
DRIVER = Path("/sys/bus/virtio/drivers/virtio_blk")
_READER = """
import mmap, os, sys, time
device, procs, size = sys.argv[1:]
# Before it is in the container's cgroup, which may not open it.
block, file = mmap.mmap(-1, 4096), os.open(device, os.O_RDONLY | os.O_DIRECT)
with open(procs, "w") as joined:
    joined.write("0")
begun = time.monotonic()
for at in range(0, int(size), 4096):
    os.preadv(file, [block], at)
print(time.monotonic() - begun)
"""
_ON = """
isolation: {disks: enforce}
control:
  blockio:
    annotations: [volcano.sh/blkio-limit]
    classes:
      batch:
      - {weight: 50}
      - {devices: ["/dev/vd[b-z]"], throttleReadBps: 1Mi, throttleWriteIOPS: 10}
"""
_COSTS = """\
    costs:
    - {dev: vdb, model: linear, param: {rbps: 100M, rseqiops: 1k, rrandiops: 1k, wbps: 100M, wseqiops: 1k, wrandiops: 1k}}
"""


async def a_batch_container_reads_no_more_than_its_class_lets_it(node: Node) -> None:
    await _configured(node, _ON)
    batch, other = await node.run("batch", qos="besteffort"), await node.run("other")
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    assert _limits(other) == {}
    number, before = _number(), _read_bytes(batch)
    seconds = _read(batch, MIB)
    print(f"1 MiB limited to 1 MiB/s in {seconds:.2f} s, free in {_read(other, MIB):.2f} s")
    assert _read_bytes(batch) - before == MIB
    # However slow the machine is: more than its rate in that time no container has.
    assert RATE * seconds + SLACK >= MIB
    print({path.name: path.read_text() for path in _folder(batch).glob("*weight*")}, number)
    told = node.ask("isolation")
    assert told["refusals"] == [] and told["notes"] == []
    limited = '{"device_read_bps": [{"device": "/dev/vdb", "value": "4096"}]}'
    pod = await node.run("limited", annotations={"volcano.sh/blkio-limit": limited})
    await until(lambda: _limits(pod), {"rbps": "4096"}.__eq__)


async def a_disk_that_goes_leaves_nothing_and_one_that_comes_is_limited(node: Node) -> None:
    await _configured(node, _ON)
    batch = await node.run("batch", qos="besteffort")
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    device, number = Path(f"/sys/block/{DISK}/device").resolve().name, _number()
    (DRIVER / "unbind").write_text(device)
    try:
        await until(lambda: _originals(f"#{number}"), [].__eq__)
        told = node.ask("isolation")
        assert told["refusals"] == [] and told["drift"] == {}, told
    finally:
        (DRIVER / "bind").write_text(device)
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    assert node.ask("isolation")["refusals"] == []


async def block_io_is_as_before_after_kill_minus_nine_and_off(node: Node) -> None:
    await _configured(node, _ON)
    batch = await node.run("batch", qos="besteffort")
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    os.kill(int(unit(SERVICE)["MainPID"]), signal.SIGKILL)
    _write(batch, 4096)  # while there is no daemon
    await until_served(node.kubelet)
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    CONFIG.write_text(SLOW_CONFIG)
    run("systemctl", "reload", SERVICE)
    await until(lambda: (_limits(batch), _originals("io")), ({}, []).__eq__)
    await _configured(node, _ON)
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    switch_over()
    run("cri-resmgr", "kubelet", "disable", "--restart")
    await until(lambda: (_limits(batch), _originals("io")), ({}, []).__eq__)
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)


async def iocost_has_the_costs_of_a_disk_and_weights_count(node: Node) -> None:
    """On cgroup v2; and where nothing is configured any more, iocost is off again."""
    await _configured(
        node,
        f"{_ON}{_COSTS}".replace(
            "      - {weight: 50}", '      - {weight: 50}\n      - {devices: ["/dev/vdb"], weight: 20}'
        ),
    )
    batch = await node.run("batch", qos="besteffort")
    await until(lambda: _limits(batch), {"rbps": str(RATE), "wiops": "10"}.__eq__)
    number = _number()
    await until(
        lambda: _lines(ROOT / "io.cost.qos").get(number, ""), lambda line: "enable=1 ctrl=user" in line
    )
    print(_lines(ROOT / "io.cost.model"), _lines(ROOT / "io.cost.qos"))
    assert "ctrl=user model=linear rbps=100000000 rseqiops=1000" in _lines(ROOT / "io.cost.model")[number]
    # The device's weight is set once iocost is on, which the next look sees.
    await until(lambda: _lines(_folder(batch) / "io.weight"), {"default": "405", number: "102"}.__eq__)
    told = node.ask("isolation")
    assert told["refusals"] == [] and told["notes"] == [], told
    assert _read(batch, MIB // 4) > 0
    CONFIG.write_text(SLOW_CONFIG)
    run("systemctl", "reload", SERVICE)
    await until(lambda: _originals("io"), [].__eq__)
    assert "enable=0 ctrl=auto" in _lines(ROOT / "io.cost.qos")[number]
    assert _lines(_folder(batch) / "io.weight") == {"default": "100"}


async def bfq_weighs_by_class(node: Node) -> None:
    scheduler = Path(f"/sys/block/{DISK}/queue/scheduler")
    scheduler.write_text("bfq")
    try:
        await _configured(node, _ON.replace("throttleReadBps", "weight: 20, throttleReadBps"))
        batch = await node.run("batch", qos="besteffort")
        name = "io.bfq.weight" if IS_V2 else "blkio.bfq.weight_device"
        await until(lambda: _lines(_folder(batch) / name), {"default": "50", _number(): "20"}.__eq__)
        told = node.ask("isolation")
        assert told["refusals"] == [] and told["notes"] == [], told
        CONFIG.write_text(SLOW_CONFIG)
        run("systemctl", "reload", SERVICE)
        await until(lambda: _lines(_folder(batch) / name), {"default": "100"}.__eq__)
    finally:
        scheduler.write_text("none")


async def _configured(node: Node, text: str) -> None:
    """The daemon has read this."""
    CONFIG.write_text(SLOW_CONFIG + text)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)


def _number() -> str:
    return Path(f"/sys/block/{DISK}/dev").read_text().strip()


def _cgroup(container: Running) -> str:
    """Where its first process is, in the hierarchy that has block I/O."""
    pid = (TASKS / container.id / "init.pid").read_text()
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    wanted = "" if IS_V2 else "blkio"
    path = next(path for _, names, path in lines if wanted in names.split(","))
    return f"{ROOT}{'' if IS_V2 else '/blkio'}{path}"


def _folder(container: Running) -> Path:
    """The container's own cgroup: crun has its processes in a child of that."""
    head, found, rest = _cgroup(container).partition(container.id)
    return Path(f"{head}{found}{rest.partition('/')[0]}")


def _lines(file: Path) -> dict[str, str]:
    return {line.split()[0]: line.partition(" ")[2] for line in file.read_text().splitlines()}


_V1 = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}


def _limits(container: Running) -> dict[str, str]:
    """What is limited on the disk."""
    folder, number = _folder(container), _number()
    if IS_V2:
        words = _lines(folder / "io.max").get(number, "").split()
        return {word.partition("=")[0]: word.partition("=")[2] for word in words if not word.endswith("=max")}
    found = {word: _lines(folder / name).get(number, "") for word, name in _V1.items()}
    return {word: value for word, value in found.items() if value}


def _write(container: Running, rate: int) -> None:
    name, word = ("io.max", "rbps=") if IS_V2 else (_V1["rbps"], "")
    (_folder(container) / name).write_text(f"{_number()} {word}{rate}\n")


def _read(container: Running, size: int) -> float:
    """Read so much of the disk in the container's cgroup; how many seconds that took."""
    procs = f"{_cgroup(container)}/cgroup.procs"
    done = subprocess.run(
        [sys.executable, "-S", "-c", _READER, f"/dev/{DISK}", procs, str(size)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def _read_bytes(container: Running) -> int:
    """What the kernel has counted."""
    if IS_V2:
        words = _lines(_folder(container) / "io.stat").get(_number(), "").split()
        return sum(int(word[7:]) for word in words if word.startswith("rbytes="))
    text = (_folder(container) / "blkio.throttle.io_service_bytes").read_text()
    return sum(int(line.split()[2]) for line in text.splitlines() if line.startswith(f"{_number()} Read"))


def _originals(part: str) -> list[str]:
    """The places that are to be put back and have this in them."""
    kept = STATE / "isolation.json"
    values: dict[str, Any] = json.loads(kept.read_text())["values"] if kept.exists() else {}
    return sorted(place for place in values if part in place)
