"""Reads the node for the daemon: topology (sysfs or a file), kubelet's cgroup, kubelet's own assignments."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from cri_proxy.core.assemble import Machine
from cri_proxy.core.cri import kubepods_root
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.kubelet import read_exclusive, read_reserved
from cri_proxy.shell.sysfs import SysfsError, read_signature, read_sysfs
from policies.topology import BadTopology, Topology, TopologyData, remember
from policies.topology_json import read_topology


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
    _kubepods: str = ""

    def read(self, before: Optional[Topology] = None) -> Machine:
        """Read all of it. ``before``: the topology so far; CPUs that went offline keep their place in it.

        :raises NoMachine: nothing usable at ``source``.
        """
        data = self._data()
        try:
            topology = Topology(data if before is None else remember(before, data))
        except BadTopology as error:
            raise NoMachine(f"{self.source}: {error}") from None
        parent = self.cgroups.effective(self._kubepods or self.cgroups.kubepods())
        return Machine(
            topology,
            None if parent is None else parent.cpus,
            None if parent is None else parent.mems,
            read_exclusive(self.kubelet),
            read_reserved(self.kubelet),
        )

    def note_cgroup(self, cgroup_parent: str) -> bool:
        """Learn kubelet's root cgroup from a pod's. True if it is news."""
        found = kubepods_root(cgroup_parent)
        if not found or found == self._kubepods:
            return False
        self._kubepods = found
        return True

    def signature(self) -> str:
        """Cheap to read; changes when CPUs or memory nodes come or go."""
        if self.source.is_dir():
            return read_signature(self.source)
        try:
            status = self.source.stat()
        except OSError:
            return ""
        return f"{status.st_mtime_ns}:{status.st_size}"

    def _data(self) -> TopologyData:
        if self.source.is_dir():
            try:
                reading = read_sysfs(self.source, self.proc)
            except SysfsError as error:
                raise NoMachine(str(error)) from None
            self.warnings = reading.warnings
            return reading.data
        self.warnings = ()
        try:
            return read_topology(json.loads(self.source.read_text()))
        except OSError as error:
            raise NoMachine(
                f"{self.source}: {error.strerror}; expected a sysfs directory or a JSON topology"
            ) from None
        except (ValueError, BadTopology) as error:
            raise NoMachine(f"{self.source}: {error}") from None


def read_memory_bytes(meminfo: Path) -> int:
    """MemTotal, which kubelet's oom scores are relative to; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return 0
