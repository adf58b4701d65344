"""The option ``control.rdt``: the section of Intel's cri-resource-manager (``rdt``) and of nri-plugins, read with places.

Fixed keys are read whatever their case, names of partitions and classes as they are written. isolation/rdt.py has their
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Optional, TypeVar

from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.isolation.model import L2, L3, MB
from cri_proxy.isolation.rdt import (
    ALL,
    CODE,
    DATA,
    KINDS,
    LEVELS,
    NO_LIMIT,
    ROOT_CLASS,
    UNIFIED,
    WHOLE,
    Allocations,
    BandwidthAllocation,
    BandwidthLimit,
    CacheAllocation,
    Partition,
    Portion,
    Portions,
    RdtSection,
    faults,
    key_of,
    read_ids,
    read_limit,
    read_portion,
)
from cri_proxy.text.sources import Remark, SourceEntry, Tree, quote, show_key

#: Intel's section, which has a mode in the place of a switch.
INTEL = "rdt"
_MODES = ("Full", "Discovery", "Disabled")
_ALLOCATIONS = {key_of(resource).lower(): resource for resource in (L2, L3, MB)}

#: What the option's default says.
EMPTY = RdtSection()

_Value = TypeVar("_Value")


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> RdtSection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    before, entry = len(errors), parts[""]
    section = _Reading(errors, remark).section(entry)
    if len(errors) == before:
        errors += [f"{entry.origin}: {entry.written}: {fault}" for fault in faults(section)]
    return section


@dataclass
class _Reading(SectionReading):
    MEANINGLESS: ClassVar[Mapping[str, str]] = {
        "force": "groups of others are never taken away",
        "kubernetes": "any pod may name any class",
        "monitoringdisabled": "isolation.monitoring switches the counters",
    }

    def section(self, given: SourceEntry) -> RdtSection:
        is_intel = given.via.lower() == INTEL
        partitions: Mapping[str, Partition] = {}
        optional: frozenset[str] = frozenset()
        flags: dict[str, bool] = {}
        mode = _MODES[0]
        for entry in self.below(given, given.written):
            key, path = entry.key.lower(), f"{given.written}.{entry.key}"
            if key in ("enable", "usepodqosasdefaultclass"):
                flags[key] = self.flag(entry, path)
            elif key == "options":
                optional, mode = self.options(entry, path)
            elif key == "partitions":
                partitions = {each.key: self.partition(each, path) for each in self.below(entry, path)}
            else:
                self.unknown(entry, path)
        written = self.flow(given.raw)
        if is_intel:  # the same under our own key
            written = f"{{enable: true, usePodQoSAsDefaultClass: true{', ' if len(written) > 2 else ''}{written[1:]}"
        is_on = flags.get("enable", is_intel) and mode == _MODES[0]
        if not is_on:
            if partitions and "enable" not in flags and not is_intel:
                sentence = f"{given.origin}: {given.written} has partitions and no enable"
                self.remark(Remark(f"{sentence}, expected enable: true; it counts as off"))
            elif partitions and mode == "Discovery":
                sentence = f'{given.origin}: {given.written} has the mode "Discovery"; it counts as off'
                self.remark(Remark(f"{sentence}, as groups of others are left alone", is_doubt=False))
            return RdtSection(written=written)
        # Intel's containers always have the class of their QoS class, where there is one.
        by_qos = flags.get("usepodqosasdefaultclass", is_intel)
        return RdtSection(partitions, optional, by_qos, written)

    def options(self, given: SourceEntry, path: str) -> tuple[frozenset[str], str]:
        """The resources that are optional, and the mode."""
        optional, mode = set(), _MODES[0]
        for entry in self.below(given, path):
            resource, place = entry.key.upper(), f"{path}.{entry.key}"
            if resource in (*LEVELS, MB):
                for each in self.below(entry, place):
                    if each.key.lower() != "optional":
                        self.unknown(each, f"{place}.{each.key}")
                    elif self.flag(each, f"{place}.{each.key}"):
                        optional.add(resource)
            elif entry.key.lower() == "mode":
                if entry.raw in _MODES:
                    mode = str(entry.raw)
                else:
                    self.wrong(entry, place, "Full, Discovery or Disabled")
            else:
                self.unknown(entry, place)
        return frozenset(optional), mode

    def partition(self, given: SourceEntry, path: str) -> Partition:
        path = f"{path}.{given.key}"
        classes: dict[str, Allocations] = {}
        own: list[SourceEntry] = []
        for entry in self.below(given, path):
            if entry.key.lower() != "classes":
                own.append(entry)
                continue
            place = f"{path}.{entry.key}"
            for each in self.below(entry, place):
                # An empty name is another spelling of the root's.
                name = each.key or ROOT_CLASS
                if name in classes:
                    self.errors.append(f"{each.origin}: {show_key(place)} has {name} twice, expected it once")
                classes[name] = self.allocations(
                    self.below(each, f"{place}.{each.key}"), f"{place}.{each.key}"
                )
        return Partition(self.allocations(tuple(own), path), classes)

    def allocations(self, entries: tuple[SourceEntry, ...], path: str) -> Allocations:
        caches: dict[str, CacheAllocation] = {}
        bandwidth = None
        for entry in entries:
            resource, place = _ALLOCATIONS.get(entry.key.lower()), f"{path}.{entry.key}"
            if resource is None:
                self.unknown(entry, place)
            elif entry.raw is None:
                continue
            elif resource == MB:
                bandwidth = self.bandwidth(entry, place)
            else:
                caches[resource] = self.cache(entry, place)
        return Allocations(caches, bandwidth)

    def cache(self, given: SourceEntry, path: str) -> CacheAllocation:
        if not isinstance(given.raw, Tree):
            return CacheAllocation(self.portions(given, path))
        rest, by_id = self.by_id(given, path, self.portions)
        return CacheAllocation(WHOLE if rest is None else rest, by_id)

    def portions(self, given: SourceEntry, path: str) -> Portions:
        if not isinstance(given.raw, Tree):
            return Portions(self.portion(given, path))
        found: dict[str, Portion] = {}
        for entry in self.below(given, path):
            if entry.key.lower() not in KINDS:
                self.unknown(entry, f"{path}.{entry.key}")
            elif entry.raw not in (None, ""):
                found[entry.key.lower()] = self.portion(entry, f"{path}.{entry.key}")
        if UNIFIED not in found or (CODE in found) != (DATA in found):
            there = " and ".join(found) or "nothing"
            self.errors.append(
                f"{given.origin}: {show_key(path)} has {there}, expected unified, or unified, code and data"
            )
        return Portions(found.get(UNIFIED, WHOLE.unified), found.get(CODE), found.get(DATA))

    def portion(self, given: SourceEntry, path: str) -> Portion:
        try:
            return read_portion(given.raw if isinstance(given.raw, str) else "")
        except ValueError as error:
            self.wrong(given, path, str(error))
            return WHOLE.unified

    def bandwidth(self, given: SourceEntry, path: str) -> BandwidthAllocation:
        if not isinstance(given.raw, Tree):
            return BandwidthAllocation(self.limit(given, path))
        rest, by_id = self.by_id(given, path, self.limit)
        return BandwidthAllocation(NO_LIMIT if rest is None else rest, by_id)

    def limit(self, given: SourceEntry, path: str) -> BandwidthLimit:
        texts = (given.raw,) if isinstance(given.raw, str) else given.raw
        try:
            limit, others = read_limit(texts if isinstance(texts, tuple) else ())
        except ValueError as error:
            self.wrong(given, path, str(error))
            return NO_LIMIT
        for text in others:
            sentence = f"{given.origin}: {show_key(path)} has {quote(text)}, expected a number with % or MBps"
            self.remark(Remark(f"{sentence}; it is passed over"))
        return limit

    def by_id(
        self, given: SourceEntry, path: str, read: Callable[[SourceEntry, str], _Value]
    ) -> tuple[Optional[_Value], dict[int, _Value]]:
        """The values by cache id, and of those that are not named."""
        rest: Optional[_Value] = None
        found: dict[int, _Value] = {}
        for entry in self.below(given, path):
            place = f"{path}.{entry.key}"
            if entry.key == ALL:
                rest = read(entry, place)
                continue
            try:
                ids = read_ids(entry.key)
            except ValueError as error:
                self.errors.append(
                    f"{entry.origin}: a key of {show_key(path)} is {quote(entry.key)}, expected {error}"
                )
                continue
            twice = [number for number in ids if number in found]
            if twice:
                sentence = f"{entry.origin}: {show_key(path)} has cache id {twice[0]} twice"
                self.errors.append(f"{sentence}, expected each once")
            value = read(entry, place)
            found.update(dict.fromkeys(ids, value))
        return rest, found
