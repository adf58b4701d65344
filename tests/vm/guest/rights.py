"""What the units' sandboxes leave open: each place that isolation writes, and nothing beside it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.vm.guest.installation import SERVICE, run
from tests.vm.guest.node import Node

UNITS = (SERVICE, "cri-resmgr-nri.service")
_UNIT, _PROGRAM, _TOLD = (
    Path("/run/systemd/system/rights.service"),
    Path("/run/rights.py"),
    Path("/run/rights.json"),
)
#: Settings that say what is started and how it is kept, and not what it may do.
_LEFT_OUT = (
    "Type=",
    "NotifyAccess=",
    "Exec",
    "Restart",
    "WatchdogSec=",
    "EnvironmentFile=",
    "RuntimeDirectory",
    "State",
)
#: Tries to write each place, and to treat a thread that is not root's; says the error's number, 0 = done.
_TRY = """\
import ctypes, json, os, sys
def tried(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
def opened(path):
    os.close(os.open(path, os.O_WRONLY))
def called(number, *arguments):
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments):
        raise OSError(ctypes.get_errno(), "")
thread, paths = int(sys.argv[1]), sys.argv[2:]
numbers = (314, 251) if os.uname().machine == "x86_64" else (274, 30)
def fifo():
    attributes = (ctypes.c_uint32 * 12)(48, 1, 0, 0, 0, 1)
    called(numbers[0], thread, attributes, 0)
told = {path: tried(lambda: opened(path)) for path in paths}
told["nice"] = tried(lambda: os.setpriority(os.PRIO_PROCESS, thread, -5))
told["ioprio"] = tried(lambda: called(numbers[1], 1, thread, 2 << 13 | 1))
told["fifo"] = tried(fifo)
json.dump(told, open("/run/rights.json", "w"))
"""
_NOBODY = 65534


async def each_unit_may_write_what_isolation_writes_and_nothing_else(node: Node) -> None:
    cgroup = (
        next(path for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")) if path.is_dir())
        / "rights"
    )
    cgroup.mkdir()
    sleeper = subprocess.Popen(["sleep", "900"], user=_NOBODY)
    open_ = [
        str(next(cgroup.glob("cpu.shares"), cgroup / "cgroup.procs")),
        "/proc/irq/default_smp_affinity",
        "/sys/devices/system/cpu/cpu1/online",
    ]
    closed = [
        "/proc/sys/kernel/panic",
        "/sys/kernel/mm/ksm/run",
        "/sys/module/printk/parameters/time",
        "/proc/sysrq-trigger",
    ]
    try:
        for name in UNITS:
            told = _told(name, sleeper.pid, [*open_, *closed])
            print(name, told)
            assert {what: told.pop(what) for what in closed} == dict.fromkeys(closed, 30), name
            assert set(told.values()) == {0}, (name, told)
            assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == -5
    finally:
        sleeper.kill()
        sleeper.wait()
        cgroup.rmdir()
        _UNIT.unlink(missing_ok=True)
        run("systemctl", "daemon-reload")


def _told(name: str, thread: int, paths: list[str]) -> dict[str, int]:
    """What a program is told that runs with all that a unit says of rights."""
    unit = run("systemctl", "show", "--value", "--property=FragmentPath", name).stdout.strip()
    lines = Path(unit).read_text().partition("[Install]")[0].splitlines()
    section = lines[lines.index("[Service]") + 1 :]
    rights = [line for line in section if not line.startswith(_LEFT_OUT)]
    start = f"/usr/bin/python3 {_PROGRAM} {thread} {' '.join(paths)}"
    _PROGRAM.write_text(_TRY)
    _TOLD.unlink(missing_ok=True)
    _UNIT.parent.mkdir(parents=True, exist_ok=True)
    _UNIT.write_text("\n".join(["[Service]", "Type=oneshot", f"ExecStart={start}", *rights, ""]))
    run("systemctl", "daemon-reload")
    run("systemctl", "start", _UNIT.name)
    found: dict[str, int] = json.loads(_TOLD.read_text())
    return found
