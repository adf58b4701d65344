"""Reads the node for the daemon: topology (sysfs or a file), kubelet's cgroup, kubelet's own assignments.

And tells when CPUs or memory nodes come or go: by kernel uevents, and a look now and then if these are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from cri_api.waiting import wait_within
from cri_proxy.bounded_files import read_bytes, read_number, read_text
from cri_proxy.cri.messages import kubepods_root
from cri_proxy.engine.build import Machine
from cri_proxy.engine.model import pod_cgroup
from cri_proxy.kubelet.io.cpu_manager import (
    Assignments,
    NotUnderstood,
    read_reserved,
    read_topology_manager,
)
from cri_proxy.node.cgroups import Cgroups, Cpusets
from cri_proxy.node.sysfs import SysfsError, read_free_memory, read_signature, read_sysfs
from policies.machine.borders import settled
from policies.machine.cpus import NO_CPUS, BadCpuList, format_cpus, parse_cpus
from policies.machine.topology import BadTopology, Cpu, Topology, TopologyData, remember
from policies.machine.topology_json import read_topology

Known = TypeVar("Known")

#: A machine of 8,192 CPUs takes less.
MOST_TOPOLOGY_BYTES = 16 << 20
#: NETLINK_KOBJECT_UEVENT (linux/netlink.h); group 1 are the kernel's own messages.
NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
#: Devices whose coming and going may change what a topology says.
DEVICES = (b"/devices/system/cpu/", b"/devices/system/node/", b"/devices/system/memory/")


class NoMachine(Exception):
    """The machine could not be read. The message names the place and what was expected."""


@dataclass
class MachineReader:
    """Where the parts of a node are read from. ``source``: a sysfs root directory, or JSON of a topology."""

    source: Path
    cgroups: Cgroups
    kubelet: Path
    proc: Path = Path("/proc")
    warnings: tuple[str, ...] = field(default=())
    #: The CPUs as the kernel shows them (``SysfsReading.shown``); none where a file describes the machine.
    shown: tuple[Cpu, ...] = ()
    #: What kubelet's topology manager is set to, as `read_topology_manager` has it: for reports, placements do not go by it.
    topology_manager: Optional[Mapping[str, Any]] = None
    assignments: Assignments = field(init=False, default_factory=Assignments)
    _kubepods: str = ""
    #: The newest pod's cgroup, and what was read last: by path, "" = kubelet's.
    _newest: str = ""
    _allowed: dict[str, Optional[Cpusets]] = field(default_factory=dict)

    def read(self, before: Optional[Topology] = None, pods: Iterable[str] = ()) -> Machine:
        """Read all of it. ``before``: the topology so far; CPUs that went offline keep their place in it.

        ``pods``: the ``cgroup_parent`` of every pod, for what their cgroups allow.

        :raises NoMachine: nothing usable at ``source``, or something on the way may not be looked at.
        """
        try:
            return self._read(before, pods)
        except OSError as error:
            raise NoMachine(f"{error.filename or self.source}: {error.strerror or error}") from None

    def _read(self, before: Optional[Topology], pods: Iterable[str]) -> Machine:
        data = self._data()
        try:
            topology = Topology(data if before is None else remember(before, data))
        except BadTopology as error:
            raise NoMachine(f"{self.source}: {error}") from None
        parent = self.cgroups.effective(self._kubepods or self.cgroups.kubepods())
        self.topology_manager = self._kubelets(read_topology_manager, None)
        self._allowed = {"": parent, **self._read_parents({*pods, self._newest} - {""})}
        return Machine(
            topology,
            None if parent is None else parent.cpus,
            None if parent is None else parent.mems,
            self._kubelets(self.assignments.read, None),
            self._kubelets(read_reserved, NO_CPUS),
            read_free_memory(self.source) if os.path.isdir(self.source) else {},
            {path: (s.cpus, s.mems) for path, s in self._allowed.items() if path and s is not None},
            self.warnings,
        )

    def _kubelets(self, read: Callable[[Path], Known], nothing: Known) -> Known:
        """What a file of kubelet's says; one that cannot be read is a warning."""
        try:
            return read(self.kubelet)
        except NotUnderstood as error:
            self.warnings = (*self.warnings, str(error))
            return nothing

    def _read_parents(self, cgroup_parents: Iterable[str]) -> dict[str, Optional[Cpusets]]:
        """What pods' cgroups allow, each by the highest of its ancestors with the same sets: most are there together."""
        seen: dict[str, Optional[Cpusets]] = {}
        found: dict[str, Optional[Cpusets]] = {}
        for path in sorted({pod_cgroup(parent) for parent in cgroup_parents}):
            sets = seen.setdefault(path, self.cgroups.effective(path))
            while above := path.rpartition("/")[0]:
                if above not in seen:
                    seen[above] = self.cgroups.effective(above)
                if seen[above] != sets:
                    break
                path = above
            found[path] = sets
        return found

    def note_cgroup(self, cgroup_parent: str) -> bool:
        """Learn kubelet's root cgroup from a pod's, and what that allows. True if it is news."""
        root, path = kubepods_root(cgroup_parent), pod_cgroup(cgroup_parent)
        is_news = root not in ("", self._kubepods)
        self._kubepods, self._newest = root or self._kubepods, cgroup_parent
        sets = self.cgroups.effective(path) if path else None
        while path and path not in self._allowed:
            path = path.rpartition("/")[0]
        return is_news or (sets is not None and sets != self._allowed.get(path))

    def signature(self) -> str:
        """Cheap to read; changes when CPUs or memory nodes come or go."""
        if os.path.isdir(self.source):
            return read_signature(self.source)
        try:
            status = self.source.stat()
        except OSError:
            return ""
        return f"{status.st_mtime_ns}:{status.st_size}"

    def _data(self) -> TopologyData:
        if os.path.isdir(self.source):
            try:
                reading = read_sysfs(self.source, self.proc)
            except SysfsError as error:
                raise NoMachine(str(error)) from None
            self._check_nodes()
            self.warnings, self.shown = reading.warnings, reading.shown
            return reading.data
        self.warnings, self.shown = (), ()
        try:
            described = read_topology(json.loads(read_bytes(self.source, MOST_TOPOLOGY_BYTES)))
            data, self.warnings = settled(described)
            return data
        except OSError as error:
            raise NoMachine(
                f"{self.source}: {error.strerror}; expected a sysfs directory or a JSON topology"
            ) from None
        except (ValueError, BadTopology, RecursionError) as error:
            raise NoMachine(f"{self.source}: {error}") from None

    def _check_nodes(self) -> None:
        """By a sysfs that hides the NUMA nodes all memory would be moved to one.

        :raises NoMachine: it does.
        """
        folder = self.source / "devices/system/node"
        if not any(folder.glob("node[0-9]*")):
            nodes = _memory_nodes(self.proc)
            if len(nodes) > 1:
                known = f"the kernel has memory in NUMA nodes {format_cpus(nodes)}"
                raise NoMachine(f"{folder} names no NUMA node, and {known}; expected node0, node1, ...")


def _memory_nodes(proc: Path) -> frozenset[int]:
    """The NUMA nodes whose memory we may use ourselves; none if the kernel does not tell (proc(5))."""
    with contextlib.suppress(OSError, BadCpuList):
        for line in read_text(proc / "self/status").splitlines():
            if line.startswith("Mems_allowed_list:"):
                return parse_cpus(line.split(":", 1)[1].strip())
    return NO_CPUS


def read_memory_bytes(meminfo: Path) -> int:
    """MemTotal, which kubelet's oom scores are relative to; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read_text(meminfo).splitlines():
            if line.startswith("MemTotal:"):
                return read_number(line.split()[1]) * 1024
    return 0


class TopologyWatch:
    """Calls ``changed`` (in the event loop) when ``signature`` differs from the one before."""

    def __init__(
        self, signature: Callable[[], str], changed: Callable[[], object], interval_s: float
    ) -> None:
        self._signature = signature
        self._changed = changed
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._seen: Optional[str] = None

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            uevents = _open_uevents()
            if uevents is not None:
                stack.enter_context(contextlib.closing(uevents))
                loop.add_reader(uevents.fileno(), self._uevent, uevents)
                stack.callback(loop.remove_reader, uevents.fileno())
            # Begun again after a failure it compares with what it has seen before.
            if self._seen is None:
                self._seen = await asyncio.to_thread(self._signature)
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_within(self._interval_s, self._wake.wait())
                self._wake.clear()
                now = await asyncio.to_thread(self._signature)
                if now != self._seen:
                    self._seen = now
                    self._changed()

    def _uevent(self, source: socket.socket) -> None:
        try:
            message = source.recv(65536)
        except OSError:
            return
        if any(device in message for device in DEVICES):
            self._wake.set()


def _open_uevents() -> Optional[socket.socket]:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    try:
        source = socket.socket(socket.AF_NETLINK, kind, NETLINK_KOBJECT_UEVENT)
    except OSError:
        return None
    try:
        source.bind((0, KERNEL_GROUP))
    except OSError:
        source.close()
        return None
    return source
