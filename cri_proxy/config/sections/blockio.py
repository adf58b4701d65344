"""The option ``control.blockio``: Intel's section (``blockio``), what nri-plugins have of it, and our additions.

Fixed keys are read whatever their case, names of classes as they are written. isolation/disks.py has their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.cri.annotations.keys import BLKIO_LIMIT
from cri_proxy.isolation.disks import (
    EMPTY as EMPTY,
)
from cri_proxy.isolation.disks import (
    LEAST_WEIGHT,
    MODEL,
    MOST_WEIGHT,
    QOS,
    RBPS,
    RIOPS,
    WBPS,
    WIOPS,
    BlockIoSection,
    DiskCost,
    DiskShare,
    is_device,
)
from cri_proxy.text.quantity import BadQuantity, parse_bytes
from cri_proxy.text.sources import Remark, SourceEntry, show_key

_LIMITS = {
    "throttlereadbps": RBPS,
    "throttlewritebps": WBPS,
    "throttlereadiops": RIOPS,
    "throttlewriteiops": WIOPS,
}


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> BlockIoSection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    return _Reading(errors, remark).section(parts[""])


@dataclass
class _Reading(SectionReading):
    def section(self, given: SourceEntry) -> BlockIoSection:
        classes: dict[str, tuple[DiskShare, ...]] = {}
        annotations: tuple[str, ...] = ()
        costs: tuple[DiskCost, ...] = ()
        flags = {"enable": True, "usepodqosasdefaultclass": True}
        for entry in self.below(given, given.written):
            key, path = entry.key.lower(), f"{given.written}.{entry.key}"
            if key in flags:
                flags[key] = self.flag(entry, path)
            elif key == "classes":
                classes = {
                    each.key: self.shares(each, f"{path}.{each.key}") for each in self.below(entry, path)
                }
            elif key == "annotations":
                annotations = self.annotations(entry, path)
            elif key == "costs":
                costs = tuple(self.cost(*item, path) for item in self.items(entry, path))
            else:
                self.unknown(entry, path)
        written = self.flow(given.raw) if given.raw else EMPTY.written
        if not flags["enable"]:
            return BlockIoSection(written=written)
        return BlockIoSection(
            classes, frozenset(annotations), costs, flags["usepodqosasdefaultclass"], written
        )

    def annotations(self, given: SourceEntry, path: str) -> tuple[str, ...]:
        found = self.texts(given, path)
        if any(name != BLKIO_LIMIT for name in found):
            self.wrong(given, path, f"a list with {BLKIO_LIMIT}, or nothing in it")
        return found

    def shares(self, given: SourceEntry, path: str) -> tuple[DiskShare, ...]:
        return tuple(self.share(*item, path) for item in self.items(given, path))

    def share(self, place: str, entries: tuple[SourceEntry, ...], path: str) -> DiskShare:
        devices: Optional[tuple[str, ...]] = None
        weight: Optional[int] = None
        limits: dict[str, int] = {}
        for entry in entries:
            key, name = entry.key.lower(), f"{path}.{entry.key}"
            if key == "devices":
                devices = self.devices(entry, name)
            elif entry.raw in (None, ""):
                continue
            elif key == "weight":
                weight = self.number(entry, name, LEAST_WEIGHT, MOST_WEIGHT)
            elif key in _LIMITS:
                limits[_LIMITS[key]] = self.number(entry, name)
            else:
                self.unknown(entry, name)
        if limits and devices is None:
            self.errors.append(f"{place}: {show_key(path)} has limits and no Devices, expected both")
        return DiskShare(devices, weight, limits)

    def devices(self, given: SourceEntry, path: str) -> Optional[tuple[str, ...]]:
        if given.raw is None:
            return None
        found = self.texts(given, path)
        if not all(map(is_device, found)):
            self.wrong(given, path, "paths or globs below /dev, or numbers such as 8:0")
        return found

    def number(self, entry: SourceEntry, path: str, least: int = 0, most: int = 0) -> int:
        """A Kubernetes quantity; ``most`` 0: as many as there are."""
        try:
            found = parse_bytes(entry.raw if isinstance(entry.raw, str) else "")
        except BadQuantity:
            found = -1
        if found < least or 0 < most < found:
            self.wrong(
                entry, path, f"a number from {least} to {most}" if most else "a number such as 10M or 1Gi"
            )
        return found

    def cost(self, place: str, entries: tuple[SourceEntry, ...], path: str) -> DiskCost:
        devices: tuple[str, ...] = ()
        model: dict[str, int] = {}
        qos: dict[str, str] = {}
        for entry in entries:
            key, name = entry.key.lower(), f"{path}.{entry.key}"
            if key == "devices":
                devices += self.devices(entry, name) or ()
            elif key == "dev":
                devices += self.devices(_below_dev(entry), name) or ()
            elif key == "model":
                if entry.raw != "linear":
                    self.wrong(entry, name, "linear, which is the only model")
            elif key == "param":
                model = self.model(entry, name)
            elif key == "qos":
                qos = self.qos(entry, name)
            else:
                self.unknown(entry, name)
        if not devices:
            self.errors.append(f"{place}: {show_key(path)} has no dev or devices, expected one of them")
        return DiskCost(devices, model, qos) if qos else DiskCost(devices, model)

    def model(self, given: SourceEntry, path: str) -> dict[str, int]:
        found = {}
        for entry in self.below(given, path):
            key, name = entry.key.lower(), f"{path}.{entry.key}"
            if key in MODEL:
                found[key] = self.number(entry, name, 1)
            else:
                self.unknown(entry, name)
        if found and len(found) < len(MODEL):
            expected = f"all of {', '.join(MODEL)}"
            self.errors.append(
                f"{given.origin}: {show_key(path)} has {', '.join(found)}, expected {expected}"
            )
        return {name: found[name] for name in MODEL if name in found}

    def qos(self, given: SourceEntry, path: str) -> dict[str, str]:
        found = {}
        for entry in self.below(given, path):
            key, name = entry.key.lower(), f"{path}.{entry.key}"
            if key not in QOS:
                self.unknown(entry, name)
                continue
            try:
                number = float(entry.raw if isinstance(entry.raw, str) else "")
            except ValueError:
                number = -1.0
            most = 4e9 if key in ("rlat", "wlat") else 10000.0 if key in ("min", "max") else 100.0
            if not 0 <= number <= most:
                self.wrong(entry, name, f"a number from 0 to {most:.0f}")
            found[key] = f"{number:.0f}" if key in ("rlat", "wlat") else f"{number:.2f}"
        return found


def _below_dev(entry: SourceEntry) -> SourceEntry:
    """rubik's name of a device, such as "sda", as a path."""
    if not isinstance(entry.raw, str) or entry.raw.startswith("/") or ":" in entry.raw:
        return entry
    return SourceEntry(entry.key, f"/dev/{entry.raw}", entry.origin, entry.via)
