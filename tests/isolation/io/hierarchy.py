"""Real threads, real cgroups, and in the place of resctrl a hierarchy of cgroups of its own, which keeps the same rules.

As in resctrl a thread is in one group, moves alone when its number is written to ``tasks``, and forks into its own group
(cgroup v1 with no controller: ``mount -t cgroup -o none,name=NAME``).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import pytest

from cri_proxy.isolation.io.shims import read_process
from cri_proxy.isolation.io.thread_attributes import Kernel
from cri_proxy.isolation.model import PREFIX
from cri_proxy.isolation.scheduling import write_attributes
from cri_proxy.node.cgroups import Cgroups
from tests.e2e.cgroups import cgroup_mounts, remove_cgroup

END_S = 20.0  # against 0.05 s

#: Some threads, one line, until stdin ends.
THREADS = """
import sys, threading
for _ in range(int(sys.argv[1])):
    threading.Thread(target=lambda: sys.stdin.buffer.peek(), daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
#: Chains of processes: each forks the next one and ends, until stdin ends. One line once there are some.
STORM = """
import os, select, sys, time
sys.stdout.write("\\n")
sys.stdout.flush()
for chain in range(int(sys.argv[1])):
    if os.fork():
        continue
    while not select.select([0], [], [], 0.02)[0]:
        if os.fork():
            os._exit(0)
    os._exit(0)
sys.stdin.read()
"""


class Hierarchy:
    """Groups as resctrl's, in a hierarchy that is mounted at ``folder``. ``moves``: group and thread of each move made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.moves: list[tuple[str, int]] = []
        self.moved_at_s: dict[int, float] = {}

    def make(self, *groups: str) -> None:
        for group in groups:
            (self.folder / group).mkdir()

    def tasks(self, group: str) -> frozenset[int]:
        return frozenset(map(int, (self.folder / group / "tasks").read_text().split()))

    def move(self, group: str, thread: int) -> None:
        (self.folder / group / "tasks").write_text(str(thread))
        self.moves.append((group, thread))
        self.moved_at_s.setdefault(thread, time.clock_gettime(time.CLOCK_BOOTTIME))

    def others(self) -> list[str]:
        return [
            path.name for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(PREFIX)
        ]

    def where(self, thread: int) -> Optional[str]:
        try:
            return self.group_of(thread)
        except OSError:
            return None

    def group_of(self, thread: int) -> str:
        """The group of one thread, as the kernel has it; one that has ended is in none, as it is said in resctrl."""
        name = f":name={NAME}:/"
        text = Path(f"/proc/{thread}/cgroup").read_text()
        process = read_process(Path("/proc"), thread)
        if process is None or process.is_ending:  # v1 tells the root of what ends (proc_cgroup_show)
            raise ProcessLookupError(thread)
        return text.partition(name)[2].partition("\n")[0]


#: Of the tests of one process: another one of that name would be the same hierarchy.
NAME = f"crm-isolation-{os.getpid()}"
_MOUNT = pytest.StashKey[Optional[Path]]()


@contextlib.contextmanager
def mounted(config: pytest.Config) -> Iterator[Optional[Hierarchy]]:
    """A hierarchy without groups, and without any at the end; None: it cannot be mounted here.

    It is mounted once in a run of tests. One that was unmounted and has not ended is in the cgroups of each process of the
    machine, and containerd finds no figures of a container in a hierarchy without a mount.
    """
    folder = config.stash.get(_MOUNT, None) or _mount(config)
    if folder is None:
        yield None
        return
    try:
        yield Hierarchy(folder)
    finally:
        _empty(folder)


def end_left_behind() -> None:
    """End the hierarchies of runs that were killed, before anything is started: a runtime would make its groups in them."""
    for name, pid in re.findall(r"name=(crm-isolation-([0-9]+)):", Path("/proc/self/cgroup").read_text()):
        if not os.geteuid() and not Path(f"/proc/{pid}").exists():
            folder = Path(tempfile.mkdtemp(prefix="crm-isolation-"))
            subprocess.run(_command(name, folder), check=True, capture_output=True)
            _end(name, folder)
            folder.rmdir()


def _empty(folder: Path) -> None:
    for group in [path for path in folder.iterdir() if path.is_dir()]:
        # As resctrl does itself: what was in a removed group is in the root's.
        for below, _, _ in os.walk(group):
            for thread in Path(below, "tasks").read_text().split():
                with contextlib.suppress(OSError):
                    (folder / "tasks").write_text(thread)
        remove_cgroup(group, time.monotonic() + END_S)


def _mount(config: pytest.Config) -> Optional[Path]:
    folder = Path(tempfile.mkdtemp(prefix="crm-isolation-"))
    if os.geteuid() or subprocess.run(_command(NAME, folder), capture_output=True).returncode:
        folder.rmdir()
        return None
    config.stash[_MOUNT] = folder

    def end() -> None:
        _end(NAME, folder)
        folder.rmdir()

    config.add_cleanup(end)
    return folder


def _command(name: str, folder: Path) -> list[str]:
    return ["mount", "-t", "cgroup", "-o", f"none,name={name}", "none", str(folder)]


def _end(name: str, folder: Path) -> None:
    """Unmount a hierarchy until it is gone: one of which a group had not quite ended, or in which a runtime has made one
    since, lives on without a mount, until it is mounted and unmounted once more."""
    pause_s = 0.1
    while pause_s < END_S:
        _empty(folder)
        subprocess.run(["umount", "-l", str(folder)], check=True)
        again_s = time.monotonic() + pause_s
        while time.monotonic() < again_s:
            if f"name={name}:" not in Path("/proc/self/cgroup").read_text():
                return
            time.sleep(0.005)
        pause_s *= 2
        subprocess.run(_command(name, folder), check=True, capture_output=True)
    raise AssertionError(f"the hierarchy {name} is left behind at {folder}")


def cgroup_roots() -> dict[str, Path]:
    """By version, the root of cgroups that can be made here, as ``Cgroups`` takes it."""
    found: dict[str, Path] = {}
    if os.geteuid():
        return found
    for root, controllers in cgroup_mounts():
        if "cpuset" in controllers:
            found["v1"] = root.parent
        elif not controllers and (root / "cgroup.threads").exists() | (root / "cgroup.procs").exists():
            found["v2"] = root
    return found


class Node:
    """A node with one pod's cgroup. Containers are processes in cgroups below it, and end with the node."""

    def __init__(self, root: Path, hierarchy: Hierarchy, stack: contextlib.ExitStack) -> None:
        self.cgroups = Cgroups(root)
        self.hierarchy = hierarchy
        self._stack = stack
        self.pod = f"/crm-tasks-{os.getpid()}"
        self.folder = self._make(self.pod)
        stack.callback(lambda: remove_cgroup(self.folder, time.monotonic() + END_S))

    def _make(self, path: str) -> Path:
        folder = self.cgroups.base / path.strip("/")
        folder.mkdir()
        if self.cgroups.is_v1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((folder.parent / name).read_text())
        return folder

    def cgroup(self, key: str, *below: str) -> str:
        """A container's cgroup, or one below it; it is made."""
        path = "/".join([self.pod, f"cri-containerd-{key}.scope", *below])
        self._make(path)
        return path

    def run(self, path: str, program: str = THREADS, number: int = 1) -> subprocess.Popen[bytes]:
        """A process in a cgroup, which runs until it is stopped."""
        procs = self.cgroups.base / path.strip("/") / "cgroup.procs"
        return self.start([sys.executable, "-S", "-c", program, str(number)], procs)

    def start(self, command: Sequence[str], procs: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: procs.write_text("0") and None,
        )
        self._stack.callback(self.stop, process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None and process.stdout is not None and not process.stdin.closed:
            process.stdin.close()
            process.wait(END_S)
            process.stdout.close()

    def groups_of(self, path: str) -> set[str]:
        """The groups that the threads of a cgroup are in, as the kernel has it."""
        found = (self.hierarchy.where(thread) for thread in self.cgroups.threads(path))
        return {group for group in found if group is not None}


@contextlib.contextmanager
def node(root: Path, hierarchy: Hierarchy) -> Iterator[Node]:
    with contextlib.ExitStack() as stack:
        yield Node(root, hierarchy, stack)


def seen_attributes(cgroups: Cgroups, path: str) -> list[str]:
    """How the threads of a cgroup are scheduled, each kind once."""
    kernel, found = Kernel(), set()
    for thread in cgroups.threads(path):
        with contextlib.suppress(ProcessLookupError):
            attributes = write_attributes(kernel.read(thread))
            process = read_process(cgroups.proc, thread)
            if process is not None and not process.is_ending:  # it has lost its I/O priority by then
                found.add(attributes)
    return sorted(found)
