"""The subject ``disks``: looks for devices, at containers' cgroups, and at what iocost knows. Blocks.

Devices come and go: what globs name is looked up each round.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.disks import (
    CONTROLLED,
    EMPTY,
    FILES,
    SUBJECT,
    Device,
    SeenDisks,
    Treatment,
    cost_settings,
    costed,
    globs,
    is_same,
    settings_of,
    treatments,
)
from cri_proxy.isolation.model import Setting
from cri_proxy.machine_root import below, machine_root
from cri_proxy.node.cgroups import own_cgroup

if TYPE_CHECKING:  # doctor uses some of this, and none of that
    from cri_proxy.isolation.io.subjects import Sight
    from cri_proxy.services.services import Services

_SCHEDULER = re.compile(r"\[([a-z0-9-]+)\]")


class Disks:
    """``root``: the folder that stands for / of the machine's devices."""

    name = SUBJECT

    def __init__(self, services: Services, root: Optional[Path] = None) -> None:
        self._cgroups = services.cgroups
        self._root = machine_root() if root is None else root
        self._notes: tuple[str, ...] = ()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        section = sight.config["control.blockio"] or EMPTY
        unlike: list[str] = []
        wanted = treatments(section, sight.containers, unlike)
        notes: set[str] = set()
        found: list[Setting] = []
        if wanted or section.costs:
            seen = self._seen(globs(section, wanted.values()))
            found += cost_settings(section, seen, notes)
            found += self._of_containers(wanted, sight.cgroups, seen, notes)
        self._notes = (*unlike, *sorted(notes))
        return found

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return is_same(seen, value)

    def notes(self) -> Sequence[str]:
        return self._notes

    def _of_containers(
        self, wanted: Mapping[str, Treatment], cgroups: Mapping[str, str], seen: SeenDisks, notes: set[str]
    ) -> Iterable[Setting]:
        without: list[str] = []
        names = [name for name in FILES if name.startswith("io." if seen.is_v2 else "blkio.")]
        for key, treatment in wanted.items():
            if key not in cgroups:
                continue  # it has not started, or its cgroup is not known yet
            # v1 limits those that are in a cgroup, and none below it.
            path = own_cgroup(cgroups[key], key) if seen.is_v2 else cgroups[key]
            folder = f"{seen.root}/{path.strip('/')}"
            files = [name for name in names if os.path.exists(f"{folder}/{name}")] if seen.root else []
            if any(name in files for name in CONTROLLED):
                yield from settings_of(treatment, folder, files, seen, notes)
            elif not seen.root or os.path.isdir(folder):
                without.append(treatment.path)
        if without:
            more = f" (and {len(without) - 1} more)" if len(without) > 1 else ""
            notes.add(
                f"{min(without)}{more} has no block I/O to limit: its cgroup has not the controller "
                f"{'io' if seen.is_v2 else 'blkio'} (cri-resmgr doctor)"
            )

    # ------------------------------------------------------------------ what is there

    def _seen(self, names: Collection[str]) -> SeenDisks:
        root, is_v2 = self._cgroups.block_io()
        qos = "" if root is None else f"{root}/{'io' if is_v2 else 'blkio'}.cost.qos"
        has_cost, on = False, frozenset[str]()
        try:
            on, has_cost = costed(read_text(qos)), True
        except OSError:
            pass
        known: dict[str, Optional[Device]] = {}
        devices = {name: self._devices(name, known) for name in names}
        return SeenDisks("" if root is None else str(root), is_v2, devices, on, has_cost)

    def _devices(self, name: str, known: dict[str, Optional[Device]]) -> tuple[Device, ...]:
        """What a glob below /dev, or a number, names now. ``known``: devices that were looked at, by number."""
        if not name.startswith("/"):
            numbers = [name]
        else:
            # As Go's filepath.Glob reads it.
            pattern = re.sub(r"\\(.)", r"[\1]", name.replace("[^", "[!"))
            paths = glob.glob(str(below(self._root, pattern)))
            numbers = [number for number in map(_number, sorted(paths)) if number]
        for number in numbers:
            if number not in known:
                known[number] = self._device(number)
        found = (known[number] for number in dict.fromkeys(numbers))
        return tuple(device for device in found if device is not None)

    def _device(self, number: str) -> Optional[Device]:
        link = below(self._root, f"/sys/dev/block/{number}")
        folder = os.path.realpath(link)
        if not os.path.isdir(folder):
            return None
        path = _path(folder)
        if not os.path.exists(f"{folder}/partition"):
            return Device(path, number, scheduler=read_scheduler(folder))
        disk = os.path.dirname(folder)
        try:
            return Device(path, read_text(f"{disk}/dev").strip(), _path(disk), read_scheduler(disk))
        except OSError:
            return None  # both have just gone


def _path(folder: str) -> str:
    # In sysfs a slash of the name is "!".
    return f"/dev/{os.path.basename(folder).replace('!', '/')}"


def _number(path: str) -> str:
    """The number of a block device; "" for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISBLK(found.st_mode) else ""


def read_scheduler(folder: str) -> str:
    """The I/O scheduler of a disk, by its folder in sysfs; "" = none."""
    try:
        found = _SCHEDULER.search(read_text(f"{folder}/queue/scheduler"))
    except OSError:
        return ""
    return "" if found is None or found[1] == "none" else found[1]
