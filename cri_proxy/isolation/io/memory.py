"""The subject ``memory``: reads what the kernel has of memory in the cgroups of containers and above them. It blocks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.tasks import is_own
from cri_proxy.isolation.memory_classes import (
    LOW,
    MIN,
    SUBJECT,
    UNIFIED,
    MemoryCgroup,
    MemoryParent,
    MemorySection,
    memory_settings,
)
from cri_proxy.isolation.model import FILE, Setting
from cri_proxy.node.cgroups import Cgroups
from policies.machine.topology import Topology

#: The part of a node's memory that may be kept for containers; the rest is for the kernel and the host's programs.
PROMISED = 0.9
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Memory:
    name = SUBJECT

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._notes: tuple[str, ...] = ()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        """What should be there; see the pure module."""
        section: MemorySection = sight.config["control.memory"] or MemorySection()
        containers = [
            (each, self._cgroup(sight.cgroups[each.key], sight.before))
            for each in sight.containers
            if is_own(each.key, sight.cgroups.get(each.key, ""))
        ]
        parents = {parent for _, cgroup in containers for parent in _above(cgroup.path)}
        found, notes = memory_settings(
            containers,
            [self._parent(path, sight.before) for path in sorted(parents)],
            section,
            promised_bytes(sight.topology),
        )
        self._notes = tuple(notes)
        return found

    def is_same(self, place: str, seen: str, value: str) -> bool:
        """The kernel counts pages."""
        if not (seen.isdecimal() and value.isdecimal()):
            return seen == value
        return 0 <= int(value) - int(seen) < _PAGE_BYTES

    def notes(self) -> Sequence[str]:
        return self._notes

    def _cgroup(self, path: str, before: Mapping[str, str]) -> MemoryCgroup:
        files, now = self._read(path, UNIFIED)
        is_there = os.path.isdir(self._cgroups.memory_folder(path))
        return MemoryCgroup(path, files, _before(files, now, before), now, self._used_bytes(path), is_there)

    def _parent(self, path: str, before: Mapping[str, str]) -> MemoryParent:
        files, now = self._read(path, (MIN, LOW))
        return MemoryParent(path, files, _before(files, now, before))

    def _read(self, path: str, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The files that are there, and what they have."""
        folder, files, now = self._cgroups.memory_folder(path), {}, {}
        for name in names:
            with contextlib.suppress(OSError):
                now[name] = read_text(f"{folder}/{name}").strip()
                files[name] = f"{folder}/{name}"
        return files, now

    def _used_bytes(self, path: str) -> int:
        """As kubelet has it: without the file cache that was not used lately, which costs little to reclaim."""
        folder = self._cgroups.memory_folder(path)
        try:
            used = int(read_text(f"{folder}/memory.current"))
            rows = dict(line.split() for line in read_text(f"{folder}/memory.stat").splitlines())
            return max(used - int(rows.get("inactive_file", "0")), 0)
        except (OSError, ValueError):
            return 0


def promised_bytes(topology: Topology, part: float = PROMISED) -> Optional[int]:
    """What containers may keep together; None: the node's memory is not known."""
    sizes = [topology.memory_bytes(node) for node in topology.memory_nodes]
    known = [size for size in sizes if size is not None]
    return int(sum(known) * part) if known and len(known) == len(sizes) else None


def _before(files: Mapping[str, str], now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    return {name: before.get(f"{FILE}{file}", now[name]) for name, file in files.items()}


def _above(path: str) -> Iterable[str]:
    parts = path.strip("/").split("/")
    return ("/" + "/".join(parts[:end]) for end in range(1, len(parts)))
