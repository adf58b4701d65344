"""The option ``control.memory``: the configuration of nri-plugins' memory-qos, with more keys in a class, read with places.

Keys are read whatever their case. isolation/memory_classes.py has their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.isolation.memory_classes import (
    UNIFIED,
    Amount,
    MemoryClass,
    MemorySection,
    read_amount,
)
from cri_proxy.text.sources import Remark, SourceEntry, quote, show_key

#: What the option's default says.
EMPTY = MemorySection()
#: The keys of a class that are amounts, and its fields.
_AMOUNTS = {"high": "high", "low": "low", "min": "min", "swapmax": "swap_max"}
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_EXPECTED = "mappings with name and what the class has"


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> MemorySection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    return _Reading(errors, remark).section(parts[""])


@dataclass
class _Reading(SectionReading):
    def section(self, given: SourceEntry) -> MemorySection:
        classes: tuple[MemoryClass, ...] = ()
        unified: tuple[str, ...] = ()
        for entry in self.below(given, given.written):
            key, path = entry.key.lower(), f"{given.written}.{entry.key}"
            if key == "classes":
                classes = self.classes(entry, path)
            elif key == "unifiedannotations":
                unified = self.unified(entry, path)
            else:
                self.unknown(entry, path)
        return MemorySection(classes, unified, self.flow(given.raw) if classes or unified else "{}")

    def unified(self, given: SourceEntry, path: str) -> tuple[str, ...]:
        found = []
        for name in self.texts(given, path):
            if name in UNIFIED:
                found.append(name)
            else:
                sentence = (
                    f"{given.origin}: {show_key(path)} has {quote(name)}, expected of {', '.join(UNIFIED)}"
                )
                self.remark(Remark(f"{sentence}; pods may not set it"))
        return tuple(found)

    def classes(self, given: SourceEntry, path: str) -> tuple[MemoryClass, ...]:
        found: dict[str, MemoryClass] = {}
        for place, fields in self.items(given, path):
            one = self.one(fields, path)
            if not one.name:
                self.errors.append(f"{place}: a class of {show_key(path)} has no name, expected {_EXPECTED}")
            elif one.name in found:
                self.errors.append(f"{place}: {show_key(path)} has {quote(one.name)} twice, expected it once")
            found[one.name] = one
        return tuple(found.values())

    def one(self, fields: tuple[SourceEntry, ...], path: str) -> MemoryClass:
        name, ratio = "", 0.0
        amounts: dict[str, Amount] = {}
        for entry in fields:
            key, place = entry.key.lower(), f"{path}.{entry.key}"
            if key == "name":
                name = entry.raw.strip() if isinstance(entry.raw, str) else ""
            elif key == "swaplimitratio":
                ratio = self.ratio(entry, place)
            elif key == "swap":
                # memory.swap.max of all, or of nothing.
                amounts.setdefault("swap_max", Amount() if self.on(entry, place) else Amount(size_bytes=0))
            elif key in _AMOUNTS:
                amount = self.amount(entry, place)
                if amount is not None:
                    amounts[_AMOUNTS[key]] = amount
            else:
                self.unknown(entry, place)
        if ratio:
            # As memory-qos has it: what is slowed may swap as much as it needs.
            amounts.setdefault("high", Amount(part=1.0 - ratio))
            amounts.setdefault("swap_max", Amount())
        return MemoryClass(name, **amounts)

    def amount(self, entry: SourceEntry, path: str) -> Optional[Amount]:
        if entry.raw in (None, ""):
            return None
        try:
            return read_amount(entry.raw if isinstance(entry.raw, str) else "")
        except ValueError as error:
            self.wrong(entry, path, str(error))
            return None

    def ratio(self, entry: SourceEntry, path: str) -> float:
        text = entry.raw.strip() if isinstance(entry.raw, str) else ""
        if not _NUMBER.fullmatch(text) or not 0 <= float(text) <= 1:
            self.wrong(entry, path, "a number from 0 to 1")
            return 0.0
        return float(text)

    def on(self, entry: SourceEntry, path: str) -> bool:
        """``on`` and ``off``, which YAML may have read as true and false."""
        return self.flag(entry, path)
