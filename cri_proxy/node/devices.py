"""Which NUMA nodes devices and mounts are near, from sysfs and mountinfo.

It is on the way of a create: what was found is remembered by path until the machine changes. What was not,
is looked for in a thread, and not for long: a few files each, but sysfs asks drivers. No path of a mount is ever
touched itself: its file system may hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from cri_api.waiting import wait_within
from cri_proxy.bounded_files import read_text
from cri_proxy.cri.device_hints import Use, hints_by_address, pci_address
from cri_proxy.node.mounts import Mount, Mounts
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus
from policies.machine.topology import Topology
from policies.model import DEVICES, Hint

#: How long a create waits for its hints, seconds; then it goes on without them.
WAIT_S = 0.5
#: More paths than this are not remembered: those of volumes are new with every pod.
REMEMBERED = 4096
#: Disks made of disks made of disks; deeper is a loop.
DEPTH = 8

_VFIO = re.compile(r"/dev/vfio/(\d+)$")


class Devices:
    """The devices of one machine. ``sysfs`` None: there is only what the topology tells of PCI addresses."""

    def __init__(
        self,
        sysfs: Optional[Path] = Path("/sys"),
        proc: Path = Path("/proc"),
        wait_s: float = WAIT_S,
        remembered: int = REMEMBERED,
    ) -> None:
        self._sysfs = sysfs
        self._mounts = Mounts(proc / "self/mountinfo")
        self._wait_s = wait_s
        self._remembered = remembered
        self._topology: Optional[Topology] = None
        self._known: dict[Use, frozenset[int]] = {}
        #: The nodes of what is mounted, as long as it is: volumes have paths of their own and few mounts. And what these
        #: are of: the machine, and which reading of its mounts.
        self._of_mounts: tuple[Optional[tuple[Topology, int]], dict[Mount, frozenset[int]]] = (None, {})

    async def hints(self, uses: tuple[Use, ...], topology: Topology) -> tuple[Hint, ...]:
        """The hints of what a container uses; of what is not known in time, or is near all nodes, none."""
        if not uses:
            return ()
        if self._topology is not topology:
            self._topology, self._known = topology, {}
        told = {(hint.kind, hint.path): hint for hint in hints_by_address(uses, topology.data.devices)}
        unknown = [use for use in uses if use not in told and use not in self._known]
        if unknown and self._sysfs is not None:
            # A thread that hangs in a driver is left behind.
            with contextlib.suppress(asyncio.TimeoutError):
                found = self._look_at_known(unknown, topology)
                if found is None:
                    looking = asyncio.to_thread(self.look_up, unknown, topology)
                    found = await wait_within(self._wait_s, looking)
                if self._topology is topology:
                    self._remember(found)
        known = [told.get(use) or Hint(*use, self._known.get(use, NO_CPUS)) for use in uses]
        return tuple(hint for hint in known if hint.nodes)

    def _remember(self, found: dict[Use, frozenset[int]]) -> None:
        if len(self._known) + len(found) > self._remembered:
            self._known.clear()
        self._known.update(found)

    def look_up(self, uses: list[Use], topology: Topology) -> dict[Use, frozenset[int]]:
        """The NUMA nodes of each; an empty set = unknown, or all."""
        found = {}
        for use in uses:
            kind, path = use
            found[use] = (
                self._near(self._of_device(path), topology)
                if kind == DEVICES
                else self._mounted(path, topology)
            )
        return found

    def _mounted(self, path: str, topology: Topology) -> frozenset[int]:
        mount = self._mounts.of(path)
        of = (topology, self._mounts.read)
        known_of, known = self._of_mounts
        if known_of != of:  # a disk may have the number now that another one had
            is_same = known_of is not None and known_of[0] is topology
            known = {m: nodes for m, nodes in known.items() if is_same and self._mounts.has(m)}
        nodes = known[mount] if mount in known else self._near(self._of_mount(mount), topology)
        self._of_mounts = of, {**known, mount: nodes}
        return nodes

    def _look_at_known(self, uses: list[Use], topology: Topology) -> Optional[dict[Use, frozenset[int]]]:
        """What is known without a file: the nodes of mounts that are there and were asked about before."""
        if any(kind == DEVICES for kind, _ in uses):
            return None
        mounts = self._mounts.of_unchanged(path for _, path in uses)
        of, known = self._of_mounts
        if mounts is None or of != (topology, self._mounts.read) or not known.keys() >= set(mounts):
            return None
        return {use: known[mount] for use, mount in zip(uses, mounts)}

    def _near(self, folders: list[Path], topology: Topology) -> frozenset[int]:
        nodes = frozenset().union(*[self._nodes(folder, topology) for folder in folders])
        return NO_CPUS if nodes >= topology.nodes_of(topology.online) else nodes

    # ------------------------------------------------------------------ from a path to folders of sysfs

    def _of_device(self, path: str) -> list[Path]:
        assert self._sysfs is not None
        group = _VFIO.match(path)
        if group:
            return self._entries(self._sysfs / "kernel/iommu_groups" / group[1] / "devices")
        address = pci_address(path)
        if address is not None and (self._sysfs / "bus/pci/devices" / address).exists():
            return [self._sysfs / "bus/pci/devices" / address]
        if not path.startswith("/dev/"):
            return []
        try:
            status = os.stat(path)
        except OSError:
            return []
        kind = "block" if stat.S_ISBLK(status.st_mode) else "char" if stat.S_ISCHR(status.st_mode) else ""
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return self._disks(self._sysfs / "dev" / kind / number) if kind else []

    def _of_mount(self, mount: Mount) -> list[Path]:
        """The disks behind a mount."""
        assert self._sysfs is not None
        number, source = mount.number, mount.source
        if not number:
            return []
        # File systems that span disks (btrfs, zfs) have numbers of their own and a disk as their source.
        by_name = self._sysfs / "class/block" / os.path.basename(source)
        by_number = self._sysfs / "dev/block" / number
        if not number.startswith("0:"):
            return self._disks(by_number)
        return self._disks(by_name) if source.startswith("/dev/") else []

    def _disks(self, device: Path, depth: int = 0) -> list[Path]:
        """A device, or what it is made of: disks below device mapper and md, controllers of NVMe multipath."""
        folder = Path(os.path.realpath(device))
        if not folder.is_dir():
            return []
        if (folder / "partition").exists():
            folder = folder.parent
        parts = self._entries(folder / "slaves") if depth < DEPTH else []
        if parts:
            return [disk for part in parts for disk in self._disks(part, depth + 1)]
        if folder.parent.name.startswith("nvme-subsys"):
            return [e for e in self._entries(folder.parent) if e.is_symlink() and e.name.startswith("nvme")]
        return [folder]

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return [folder / name for name in sorted(os.listdir(folder))]
        except OSError:
            return []

    # ------------------------------------------------------------------ from a folder to nodes

    def _nodes(self, folder: Path, topology: Topology) -> frozenset[int]:
        """The node of a device or of the nearest device above it; -1 there = the kernel was not told."""
        for place in self._upwards(folder):
            node = _text(place / "numa_node")
            if not node:
                continue
            if node.isdigit():
                return frozenset([int(node)]) & frozenset(topology.node_ids)
            try:
                return topology.nodes_of(parse_cpus(_text(place / "local_cpulist")) & topology.online)
            except BadCpuList:
                return NO_CPUS
        return NO_CPUS

    def _upwards(self, folder: Path) -> Iterator[Path]:
        assert self._sysfs is not None
        top = Path(os.path.realpath(self._sysfs))
        place = Path(os.path.realpath(folder))
        while top in place.parents:
            yield place
            yield place / "device"
            place = place.parent


def _text(file: Path) -> str:
    try:
        return read_text(file).strip()
    except OSError:
        return ""
