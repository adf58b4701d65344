"""Reads cpusets and limits from cgroupfs: v1, v2 and hybrid. Every path hangs under a root parameter."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Optional, Union

from cri_proxy.bounded_files import read_beginning, read_number, read_text
from cri_proxy.engine.resources import CgroupReading
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus

#: Where kubelet puts all pods, by driver and nesting; tried in this order until a pod tells.
KUBEPODS = ("/kubepods", "/kubepods.slice", "/kubelet/kubepods", "/kubelet.slice/kubelet-kubepods.slice")

#: Of a container, in the name of its cgroup: as containerd and CRI-O make it. A monitor of CRI-O's, beside it, has it too.
_ID = re.compile(r"(?<!conmon-)[0-9a-f]{64}")
#: cgroup v1 tells a memory limit of which there is none as all pages that can be counted: 2^63 bytes, less a page.
NO_MEMORY_LIMIT = 1 << 62


@frozen
class Cpusets:
    """CPUs and memory nodes of one cgroup. An empty set = the file is empty: inherited on v2, and none on v1.

    ``inherited``: on v2 the CPUs that a cgroup without any of its own runs on.
    """

    cpus: frozenset[int]
    mems: frozenset[int]
    inherited: frozenset[int] = NO_CPUS


class Cgroups:
    """The cgroup mounts under ``root`` (/sys/fs/cgroup) and process tables under ``proc``."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self.proc = proc
        v1 = root / "cpuset"
        self.is_v1 = v1.is_dir()
        #: The hierarchy that holds cpusets.
        self.base = v1 if self.is_v1 else root
        #: Where the controllers of CPU time and of memory may be: v1 has a mount for each, most distributions join two.
        cpu_mounts = [root / name for name in ("cpu", "cpu,cpuacct") if (root / name).is_dir()]
        self._cpu_v1 = cpu_mounts[0] if cpu_mounts else None
        self._memory_v1 = root / "memory" if (root / "memory").is_dir() else None
        self._root = root
        # Of a hybrid machine the memory controller may be on v2, and its path is the same.
        is_hybrid = self.is_v1 and (root / "unified").is_dir()
        self._memory = self._memory_v1 or (root / "unified" if is_hybrid else root)
        self._cpu = self._cpu_v1 or (root / "unified" if is_hybrid else root)
        #: Our own cgroup from the mount; None: not looked for; "": not found.
        self._home: Optional[str] = None

    def effective(self, path: str) -> Optional[Cpusets]:
        """What a cgroup may really use, or else its nearest ancestor that exists. None without cpusets."""
        names: tuple[tuple[str, str], ...] = (
            ("cpuset.effective_cpus", "cpuset.effective_mems"),
            ("cpuset.cpus", "cpuset.mems"),
        )
        if not self.is_v1:
            names = (("cpuset.cpus.effective", "cpuset.mems.effective"),)
        below = path.strip("/")
        while True:
            folder = f"{self.base}/{below}" if below else str(self.base)
            for cpus_name, mems_name in names:
                cpus, mems = _read(f"{folder}/{cpus_name}"), _read(f"{folder}/{mems_name}")
                if cpus and mems:
                    return Cpusets(cpus, mems)
            if not below:
                return None
            below = below.rpartition("/")[0]

    def exact(self, path: str) -> Optional[Cpusets]:
        """What this very cgroup may use; None if there is none of that name, or it has no cpuset."""
        return self.effective(path) if (self.base / path.lstrip("/")).is_dir() else None

    def block_io(self) -> tuple[Optional[Path], bool]:
        """The root of the hierarchy that has block I/O, and whether it is v2; None: none has."""
        if (self._root / "blkio").is_dir():
            return self._root / "blkio", False
        # Of a hybrid machine the controller may be on v2.
        root = self._root / "unified" if self.is_v1 else self._root
        try:
            return (root if "io" in read_text(root / "cgroup.controllers").split() else None), True
        except OSError:
            return None, True

    def kubepods(self) -> str:
        """Kubelet's root cgroup, by looking for the usual names; "" if there is none (yet)."""
        return next((path for path in KUBEPODS if (self.base / path.lstrip("/")).is_dir()), "")

    def of_process(self, pid: int) -> Optional[str]:
        """The cgroup of a process in the hierarchy that holds cpusets, from its mount. None if it is gone."""
        try:
            lines = read_text(self.proc / str(pid) / "cgroup").splitlines()
        except OSError:
            return None
        for line in lines:
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if path and ("cpuset" in controllers.split(",")) if self.is_v1 else controllers == "":
                return self._from_mount(path) if path.startswith("/..") else path
        return None

    def _from_mount(self, path: str) -> Optional[str]:
        """A path that the kernel tells from the root of our cgroup namespace (cgroup_namespaces(7)), from the mount.

        In a pod on v2 the namespace is the pod's own, and the mount is the host's. None if our own cgroup is not found.
        """
        if self._home is None:
            own = str(os.getpid()).encode()
            found = (file for file in self.base.rglob("cgroup.procs") if own in _lines(file))
            home = next(found, None)
            self._home = "" if home is None else f"/{home.parent.relative_to(self.base)}"
        return os.path.normpath(f"{self._home}{path}") if self._home else None

    def of_container(self, pid: int, container_id: str) -> Optional[str]:
        """The cgroup that belongs to a container, from its first process. None if that is in none with its id.

        A container may move its processes into children of its cgroup, and their cpusets say nothing: the path ends
        with the component that has the id. crun before 1.11 writes under systemd to a child of that alone.
        """
        path = self.of_process(pid) or ""
        parts = path.split("/")
        end = next((i for i, part in enumerate(parts, 1) if container_id in part), 0)
        if not end:
            return None
        own, child = "/".join(parts[:end]), "/".join(parts[: end + 1])
        found, of_child = self.configured(own), self.configured(child)
        is_childs = found is not None and not found.cpus and of_child is not None and of_child.cpus
        return child if is_childs else own

    def own_cpusets(self, ids: Collection[str]) -> dict[str, frozenset[int]]:
        """The cpusets of containers' own cgroups, by the ids in their names, below kubelet's; those not found are left out.

        Reads directories and nothing of any process: some 20 us a container. Blocks.
        """
        found: dict[str, frozenset[int]] = {}
        kubepods = self.kubepods()
        for folder, names, _ in os.walk(f"{self.base}{kubepods}") if kubepods else ():
            for name in tuple(names):
                has_id = _ID.search(name)
                if has_id and has_id.group() in ids:
                    names.remove(name)  # what a container has below says nothing of it
                    if (cpus := _read(f"{folder}/{name}/cpuset.cpus")) is not None:
                        found[has_id.group()] = cpus
        return found

    def below(self, parent: str, container_id: str) -> str:
        """The cgroup of a container in its pod's, by the id in its name; "" if it is not there (yet)."""
        parent = f"/{parent.strip('/')}"
        try:
            names = os.listdir(f"{self.base}{parent}")
        except OSError:  # it is gone, or not made yet
            return ""
        found = (name for name in names if (has_id := _ID.search(name)) and has_id.group() == container_id)
        return next((f"{parent}/{name}" for name in found), "")

    def limited_below(self, parent: str, container_id: str) -> str:
        """As ``below``, by what ``of_container`` says, which may be a child of that; "" = none yet."""
        own = self.below(parent, container_id)
        first = min(self.threads(own), default=0) if own else 0
        return (self.of_container(first, container_id) if first else None) or own

    def threads(self, path: str) -> frozenset[int]:
        """All threads of a cgroup and of those below it; those outside our PID namespace are left out.

        v1 leaves some out while others are forked there: it counts them before it lists them (pidlist_array_load).
        """
        name, found = "tasks" if self.is_v1 else "cgroup.threads", set[int]()
        waiting = [f"{self.base}/{path.strip('/')}"]
        while waiting:
            folder = waiting.pop()
            with contextlib.suppress(OSError, ValueError):  # it is gone
                found.update(map(int, read_text(f"{folder}/{name}").split()))
                # The kernel counts the folders below in its links (kernfs_refresh_inode), and lists files ten times slower.
                if os.stat(folder).st_nlink != 2:
                    waiting += [
                        entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)
                    ]
        return frozenset(found - {0})

    def is_populated(self, path: str) -> bool:
        """Whether a process runs in a cgroup or in any below it.

        :raises PermissionError: that may not be looked at.
        """
        folder = self.base / path.lstrip("/")
        try:
            if not self.is_v1:
                return "populated 1" in read_text(folder / "cgroup.events").splitlines()
            return any(read_beginning(procs, 64).strip() for procs in folder.rglob("cgroup.procs"))
        except PermissionError:
            raise
        except OSError:  # it is gone, or what was below it
            return False

    def outside(self, pid: int, own: str) -> Optional[str]:
        """The cgroup of a container's first process if nothing runs in ``own``, the container's; "" if something does.

        A sandboxed runtime runs all containers of a pod in one process, and their own cgroups are empty or not there.
        None if nothing can be said: the process is gone, no cgroups of this pod are here, or they may not be looked at.
        """
        try:
            if self.is_populated(own):
                return ""
        except PermissionError:
            return None
        return self.of_process(pid) if (self.base / own.lstrip("/")).parent.is_dir() else None

    def configured(self, path: str) -> Optional[Cpusets]:
        """What was written to a cgroup's cpuset files. None if it is gone or has no cpuset controller."""
        folder = self.base / path.lstrip("/")
        cpus, mems = _read(folder / "cpuset.cpus"), _read(folder / "cpuset.mems")
        if cpus is None or mems is None:
            return None
        inherited = None if cpus or self.is_v1 else _read(folder / "cpuset.cpus.effective")
        return Cpusets(cpus, mems, inherited or NO_CPUS)

    def limits(self, path: str, container_id: str = "") -> CgroupReading:
        """What a cgroup's files say of CPU shares, quota and memory limit; 0 where there are none.

        ``container_id``: the path may go on behind the cgroup of that name, as ``of_container`` has it; one of the two
        has the limits.
        """
        own = path
        if container_id and container_id not in path.rpartition("/")[2]:
            own = path.rpartition("/")[0]
        found = self._limits(own)
        return found if own == path else found.completed_by(self._limits(path))

    def _limits(self, path: str) -> CgroupReading:
        relative = path.lstrip("/")
        folder = (self._cpu_v1 or self._root) / relative
        if self._cpu_v1 is not None:
            quota, period = _numbers(folder / "cpu.cfs_quota_us"), _numbers(folder / "cpu.cfs_period_us")
            cpu = CgroupReading(_numbers(folder / "cpu.shares")[0], 0, quota[0], period[0])
        else:
            quota = _numbers(folder / "cpu.max")
            cpu = CgroupReading(0, _numbers(folder / "cpu.weight")[0], quota[0], quota[-1])
        name = "memory.max" if self._memory_v1 is None else "memory.limit_in_bytes"
        memory_bytes = _numbers(self._memory / relative / name)[0]
        return replace(cpu, memory_limit_bytes=-1 if memory_bytes >= NO_MEMORY_LIMIT else memory_bytes)

    def cpu_folder(self, path: str) -> str:
        """Where the files of CPU time of a cgroup are."""
        return f"{self._cpu}/{path.strip('/')}"

    def memory_folder(self, path: str) -> str:
        """Where the files of memory of a cgroup are."""
        return f"{self._memory}/{path.strip('/')}"

    def quota_us(self, path: str) -> int:
        """The CPU quota of a cgroup a period, in microseconds; -1: none, or it is gone."""
        name = "cpu.max" if self._cpu_v1 is None else "cpu.cfs_quota_us"
        return _numbers(self._cpu / path.strip("/") / name)[0] or -1

    def held(self, path: str) -> Optional[tuple[tuple[int, int], ...]]:
        """What a cgroup and those below it hold and cannot give back, in bytes by NUMA node; None if it does not tell.

        Page cache is not counted. Of v1 this is anonymous and shared memory, and what is locked: kernel memory it does
        not tell by node.
        """
        try:
            text = read_text(self._memory / path.lstrip("/") / "memory.numa_stat")
            rows = {name: nodes for name, nodes in map(_numa_row, text.splitlines()) if nodes}
        except (OSError, ValueError):
            return None
        page_bytes, names = 1, HELD
        if (
            "total" in rows
        ):  # v1, in pages: what it counts as anonymous is all that has no file, tmpfs included
            page_bytes = os.sysconf("SC_PAGE_SIZE")
            names = HELD_V1 if "hierarchical_total" in rows else tuple(n.split("_")[1] for n in HELD_V1)
        held: dict[int, int] = {}
        for name in names:
            for node, count in rows.get(name, {}).items():
                held[node] = held.get(node, 0) + count * page_bytes
        return tuple(sorted((node, size) for node, size in held.items() if size)) if rows else None


#: Rows of memory.numa_stat, v2: what is anonymous, what is in tmpfs, and kernel memory that nothing can reclaim.
HELD: tuple[str, ...] = (
    "anon",
    "shmem",
    "kernel_stack",
    "pagetables",
    "sec_pagetables",
    "slab_unreclaimable",
)
#: Of v1, where pages are counted by the list they are on.
HELD_V1 = ("hierarchical_anon", "hierarchical_unevictable")


def _numa_row(line: str) -> tuple[str, dict[int, int]]:
    """``anon N0=4096 N1=0`` of v2, ``anon=1 N0=1 N1=0`` of v1: the name and the numbers by node.

    :raises ValueError: it is neither.
    """
    name, *nodes = line.split()
    numbers = dict(part[1:].split("=", 1) for part in nodes if part.startswith("N"))
    return name.split("=")[0], {read_number(node): read_number(count) for node, count in numbers.items()}


def is_own(key: str, path: str) -> bool:
    """Whether a cgroup is a container's own: its name, or that of one above it, has the container's id."""
    return bool(key) and ".." not in path.split("/") and any(key in part for part in path.split("/"))


def pod_of(key: str, path: str) -> str:
    """The cgroup above the one that has a container's id."""
    parts = path.strip("/").split("/")
    return "/" + "/".join(parts[: next(i for i, part in enumerate(parts) if key in part)])


def own_cgroup(path: str, container_id: str) -> str:
    """A container's own cgroup: ``path`` may go on behind it (``Cgroups.of_container``)."""
    head, found, _ = path.rpartition(container_id)
    return f"{head}{found}{path[len(head) + len(found) :].partition('/')[0]}" if found else path


def _read(path: Union[str, Path]) -> Optional[frozenset[int]]:
    try:
        return parse_cpus(read_text(path))
    except (OSError, BadCpuList):
        return None


def _numbers(path: Path) -> list[int]:
    """The numbers in a file; -1 for "max", and one 0 if there are none to be read."""
    try:
        words = read_text(path).split()
        return [-1 if word == "max" else read_number(word) for word in words] or [0]
    except (OSError, ValueError):
        return [0]


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split()
    except OSError:  # it is gone, or of a threaded cgroup
        return []
