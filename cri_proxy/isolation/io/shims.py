"""The shim of a pod: containerd's process that forks everything that runs in the pod's containers.

A container of containerd has no process before its start, so nothing of it can be moved before it runs. But what the shim
forks begins in the shim's group: the first process of a container, and the processes of each exec.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from cri_proxy.bounded_files import read_bytes
from cri_proxy.node.cgroups import Cgroups
from policies.frozen import frozen

#: As the kernel has the name of containerd-shim-runc-v2: 15 characters (TASK_COMM_LEN).
SHIM = "containerd-shim"

#: A flag of a thread that ends (include/linux/sched.h).
_PF_EXITING = 0x4
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@frozen
class Process:
    """A process or thread. ``started_s``: boot time; with its number it is no other one. ``is_ending``: it runs no more."""

    pid: int
    name: str
    is_ending: bool
    parent: int
    started_s: float


def read_process(proc: Path, pid: int) -> Optional[Process]:
    """A process, or a thread by its number; None: it has ended (proc_pid_stat(5))."""
    try:
        before, _, after = read_bytes(proc / str(pid) / "stat", 4096).decode(errors="replace").rpartition(")")
        fields = after.split()
        started_s = int(fields[19]) / _TICKS_PER_S
        is_ending = fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)
        return Process(pid, before.partition("(")[2], is_ending, int(fields[1]), started_s)
    except (OSError, ValueError, LookupError):
        return None


def threads_of(proc: Path, pid: int) -> frozenset[int]:
    """The threads of a process; none if it has ended."""
    try:
        return frozenset(map(int, os.listdir(proc / str(pid) / "task")))
    except (OSError, ValueError):
        return frozenset()


def shim_of(cgroups: Cgroups, pod: str, sandbox_id: str) -> Optional[Process]:
    """The shim of a pod, by its sandbox's first process, whose parent it is. ``pod``: the pod's cgroup.

    None: the pod has none; another runtime has made it, or one that does not run its containers here.
    """
    own = cgroups.below(pod, sandbox_id)
    for pid in sorted(cgroups.threads(own))[:1] if own else ():
        first = read_process(cgroups.proc, pid)
        parent = None if first is None else read_process(cgroups.proc, first.parent)
        if parent is not None and parent.name == SHIM:
            return parent
    return None
