"""The subject ``memory``: reads what the kernel has of memory in the cgroups of containers and above them. It blocks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Callable, Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io.readings import Readings
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.memory_classes import (
    HIGH,
    SUBJECT,
    UNIFIED,
    MemoryCgroup,
    MemoryParent,
    MemorySection,
    memory_settings,
    memory_wishes,
)
from cri_proxy.isolation.model import FILE, IsolatedContainer, Setting
from cri_proxy.isolation.notes import some
from cri_proxy.node.cgroups import Cgroups, is_own, own_cgroup
from policies.machine.topology import Topology

#: The part of a node's memory that may be kept for containers where no memory is reserved by configuration; the rest is for
#: the kernel and the host's programs.
PROMISED = 0.9
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Memory:
    name = SUBJECT

    def __init__(self, cgroups: Cgroups, clock: Callable[[], float] = time.monotonic) -> None:
        self._cgroups = cgroups
        self._readings = Readings[MemoryCgroup](clock)
        self._notes: tuple[str, ...] = ()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        """What should be there; see the pure module."""
        section: MemorySection = sight.config["control.memory"] or MemorySection()
        notes: list[str] = []
        wishes = memory_wishes(sight.containers, section, notes)
        containers = [
            (
                each,
                wishes[each.key],
                self._cgroup(each, own_cgroup(sight.cgroups[each.key], each.key), sight.before),
            )
            for each in sight.containers
            if each.key in wishes and is_own(each.key, sight.cgroups.get(each.key, ""))
        ]
        parents = {parent for _, _, cgroup in containers for parent in _above(cgroup.path)}
        found = memory_settings(
            containers,
            [self._parent(path, sight.before) for path in sorted(parents)],
            promised_bytes(sight.topology, sight.config["policy.ReservedResources.Memory"]),
            notes,
        )
        self._readings.keep({cgroup.path for _, _, cgroup in containers} | parents)
        self._notes = some(notes)
        return found

    def is_same(self, place: str, seen: str, value: str) -> bool:
        """The kernel counts pages."""
        if not (seen.isdecimal() and value.isdecimal()):
            return seen == value
        return 0 <= int(value) - int(seen) < _PAGE_BYTES

    def notes(self) -> Sequence[str]:
        return self._notes

    def _cgroup(self, each: IsolatedContainer, path: str, before: Mapping[str, str]) -> MemoryCgroup:
        read = self._readings.of(path, each, self._read)
        return replace(read, before=_before(read, before))

    def _parent(self, path: str, before: Mapping[str, str]) -> MemoryParent:
        read = self._readings.of(path, None, self._read)
        return MemoryParent(path, read.files, _before(read, before))

    def _read(self, path: str) -> MemoryCgroup:
        """The files that are there, and what they have."""
        folder, files, now = self._cgroups.memory_folder(path), {}, {}
        for name in UNIFIED:
            with contextlib.suppress(OSError):
                now[name] = read_text(f"{folder}/{name}").strip()
                files[name] = f"{folder}/{name}"
        used_bytes = self._used_bytes(path) if HIGH in files else 0
        return MemoryCgroup(path, files, {}, now, used_bytes, bool(files) or os.path.isdir(folder))

    def _used_bytes(self, path: str) -> int:
        """As kubelet has it: without the file cache that was not used lately, which costs little to reclaim."""
        folder = self._cgroups.memory_folder(path)
        try:
            used = int(read_text(f"{folder}/memory.current"))
            rows = dict(line.split() for line in read_text(f"{folder}/memory.stat").splitlines())
            return max(used - int(rows.get("inactive_file", "0")), 0)
        except (OSError, ValueError):
            return 0


def promised_bytes(topology: Topology, reserved_bytes: int = 0) -> Optional[int]:
    """What containers may keep together; None: the node's memory is not known. ``reserved_bytes``: 0 = not configured."""
    sizes = [topology.memory_bytes(node) for node in topology.memory_nodes]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    return max(sum(known) - reserved_bytes, 0) if reserved_bytes else int(sum(known) * PROMISED)


def _before(read: MemoryCgroup, before: Mapping[str, str]) -> dict[str, str]:
    return {name: before.get(f"{FILE}{file}", read.now[name]) for name, file in read.files.items()}


def _above(path: str) -> Iterable[str]:
    parts = path.strip("/").split("/")
    return ("/" + "/".join(parts[:end]) for end in range(1, len(parts)))
