"""The kernel's rules of resctrl, in this process: what ``ResourceControl`` has, and what other programs do beside it.

A mask must be in one piece on Intel's processors, bandwidth is rounded up to its step there; a group takes one class of
service; a removed group's threads go to the root group; a child begins in its parent's group.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Optional

from cri_proxy import effects
from cri_proxy.isolation.model import (
    CACHES,
    EIGHTHS,
    MB,
    PERCENT,
    PREFIX,
    ROOT,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    ResctrlInfo,
    SeenGroups,
)

AMD, INTEL = "AMD", "Intel"


class KernelModel:
    """One machine's resctrl. ``cpus``: of each L3, by its id. ``writes``: all that was changed through the interface."""

    def __init__(
        self,
        cpus: Mapping[int, frozenset[int]],
        vendor: str = AMD,
        closids: int = 16,
        mask: int = 0xFFFF,
        has_caches: bool = True,
        has_bandwidth: bool = True,
    ) -> None:
        domains = tuple(CacheDomain(number, of) for number, of in sorted(cpus.items()))
        bandwidth = (
            BandwidthInfo(1, 1, 2048, EIGHTHS, closids)
            if vendor == AMD
            else BandwidthInfo(10, 10, 100, PERCENT, closids)
        )
        resources = ["L3"] * has_caches + [MB] * has_bandwidth
        self.missing = ""
        self.offers = ResctrlInfo(
            {"L3": CacheInfo(mask, 1, closids, is_sparse=vendor == AMD)} if has_caches else {},
            bandwidth if has_bandwidth else None,
            dict.fromkeys([*resources, "L3_MON"], domains),
        )
        self.schemata: dict[str, dict[str, dict[int, str]]] = {ROOT: self._fresh()}
        self.monitors: dict[str, set[str]] = {ROOT: set()}
        self.group_of: dict[int, str] = {}
        self.writes: list[str] = []

    # ------------------------------------------------------------------ the interface

    def info(self) -> Optional[ResctrlInfo]:
        return None if self.missing else self.offers

    def seen(self) -> SeenGroups:
        self._must_be_there()
        ours = {name: _copy(of) for name, of in self.schemata.items() if not name or name.startswith(PREFIX)}
        other_monitors = sum(
            1 for name in ours for each in self.monitors[name] if not each.startswith(PREFIX)
        )
        return SeenGroups(ours, tuple(self.others()), other_monitors)

    def others(self) -> Collection[str]:
        return [name for name in self.schemata if name and not name.startswith(PREFIX)]

    def make(self, group: str) -> None:
        assert group.startswith(PREFIX)
        effects.before(effects.RESCTRL, f"mkdir {group}")
        self._must_be_there()
        if group not in self.schemata:
            self._make(group)
            self.writes.append(f"mkdir {group}")

    def remove(self, group: str) -> None:
        assert group.startswith(PREFIX)
        effects.before(effects.RESCTRL, f"rmdir {group}")
        if group in self.schemata:
            self.remove_other(group)
            self.writes.append(f"rmdir {group}")

    def write(self, group: str, resource: str, values: Mapping[int, str]) -> None:
        assert not group or group.startswith(PREFIX)
        effects.before(effects.RESCTRL, f"{group}/schemata")
        self._must_be_there(group)
        taken = {number: self._taken(resource, number, value) for number, value in values.items()}
        self.schemata[group][resource].update(taken)
        self.writes.append(f"{group}/{resource}:{';'.join(f'{n}={v}' for n, v in sorted(values.items()))}")

    def tasks(self, group: str) -> frozenset[int]:
        return frozenset(thread for thread, of in self.group_of.items() if of == group)

    def where(self, thread: int) -> Optional[str]:
        return self.group_of.get(thread)

    def move(self, group: str, thread: int) -> None:
        effects.before(effects.RESCTRL, f"{group}/tasks")
        self._must_be_there(group)
        if thread not in self.group_of:
            raise OSError(errno.ESRCH, "No such process")
        self.group_of[thread] = group
        self.writes.append(f"{group}/tasks:{thread}")

    # ------------------------------------------------------------------ what others do

    def start(self, thread: int, parent: int = 0) -> None:
        """A thread begins, in the group that its parent is in."""
        self.group_of[thread] = self.group_of.get(parent, ROOT)

    def end(self, thread: int) -> None:
        self.group_of.pop(thread, None)

    def make_other(self, group: str) -> None:
        """Another program makes a group."""
        self._make(group)

    def remove_other(self, group: str) -> None:
        """A group is removed, whoever's it is."""
        del self.schemata[group], self.monitors[group]
        for thread in self.tasks(group):
            self.group_of[thread] = ROOT

    def write_other(self, group: str, resource: str, number: int, value: str) -> None:
        """Another program writes a value."""
        self.schemata[group][resource][number] = self._taken(resource, number, value)

    def reboot(self) -> None:
        """The machine boots: all begins anew."""
        self.schemata, self.monitors, self.group_of = {ROOT: self._fresh()}, {ROOT: set()}, {}

    def picture(self) -> object:
        """All that there is, to be compared with."""
        return (
            {name: _copy(of) for name, of in self.schemata.items()},
            {name: set(of) for name, of in self.monitors.items()},
        )

    # ------------------------------------------------------------------ the rules

    def _make(self, group: str) -> None:
        if len(self.schemata) >= self.offers.closids:
            raise OSError(errno.ENOSPC, "No space left on device: Out of CLOSIDs")
        self.schemata[group], self.monitors[group] = self._fresh(), set()

    def _fresh(self) -> dict[str, dict[int, str]]:
        found = {}
        for name, cache in self.offers.caches.items():
            found[name] = {domain.id: f"{cache.full_mask:x}" for domain in self.offers.domains[name]}
        if self.offers.bandwidth is not None:
            found[MB] = {domain.id: str(self.offers.bandwidth.no_limit) for domain in self.offers.domains[MB]}
        return found

    def _taken(self, resource: str, number: int, value: str) -> str:
        if resource not in self.schemata[ROOT] or number not in self.schemata[ROOT][resource]:
            raise OSError(errno.EINVAL, f"Invalid argument: Unknown resource or domain {resource}:{number}")
        if resource in CACHES:
            return self._mask(self.offers.caches[resource], value)
        assert self.offers.bandwidth is not None
        wanted, limits = int(value), self.offers.bandwidth
        if not limits.minimum <= wanted <= limits.no_limit:
            raise OSError(errno.EINVAL, f"Invalid argument: MB value {wanted} out of range")
        return str(-(-wanted // limits.step) * limits.step)

    def _mask(self, cache: CacheInfo, value: str) -> str:
        mask = int(value, 16)
        lowest = mask & -mask
        if not mask or mask & ~cache.full_mask or mask.bit_count() < cache.min_bits:
            raise OSError(errno.EINVAL, f"Invalid argument: Mask {value} out of range")
        if not cache.is_sparse and (mask + lowest) & mask:
            raise OSError(errno.EINVAL, f"Invalid argument: The mask {value} has non-consecutive 1-bits")
        return f"{mask:x}"

    def _must_be_there(self, group: str = ROOT) -> None:
        if self.missing or group not in self.schemata:
            raise OSError(errno.ENOENT, "No such file or directory")

    def limit_closids(self, closids: int) -> None:
        """From now on the kernel tells of so many classes of service and has them."""
        caches = {name: replace(cache, closids=closids) for name, cache in self.offers.caches.items()}
        self.offers = replace(self.offers, caches=caches)


def _copy(schemata: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    return {resource: dict(values) for resource, values in schemata.items()}
