"""The option ``control.cpu``: classes of CPUs as Intel's cri-resource-manager (``cpu``) and nri-plugins have them.

A class is read from a mapping by names (``control.cpu.classes``) and from a list (``cpuClasses``); of a name that both have
the list's counts, as in nri-plugins. isolation/clocks.py has their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Optional

from cri_proxy.config.checks import write_list, write_text
from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.isolation.clocks import (
    PACKAGE,
    PREFERENCE_EXPECTED,
    TURBO_DOMAINS,
    CpuClass,
    CpuSection,
    Frequency,
    is_upside_down,
    read_frequency,
    read_preference,
)
from cri_proxy.text.sources import Remark, SourceEntry, Table, show_key

EMPTY = CpuSection()

#: Keys of the section that name a class, in lower case: ours, and the peers'.
_NAMES = {
    "idle": "idle",
    "idlecpuclass": "idle",
    "shared": "shared",
    "sharedpoolcpuclass": "shared",
    "reserved": "reserved",
    "reservedpoolcpuclass": "reserved",
    "exclusive": "exclusive",
    "defaultexclusivecpuclass": "exclusive",
}
_CLASSES, _TURBO_DOMAIN = ("classes", "cpuclasses"), "turbodomain"
_MOST_PRIORITY = 1_000_000
_UNCORE = "clocks outside of cores are Intel's alone, and stay as they are"
_SST = "Speed Select is Intel's alone, and stays as it is"


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> CpuSection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    return _Reading(errors, remark).section(parts)


@dataclass
class _Reading(SectionReading):
    MEANINGLESS: ClassVar[Mapping[str, str]] = {
        "uncoreminfreq": _UNCORE,
        "uncoremaxfreq": _UNCORE,
        "pctpriority": _SST,
        "pctminfreq": _SST,
        "pctmaxfreq": _SST,
        "sstclosid": _SST,
        "publishextendedresource": _SST,
    }

    def section(self, parts: Mapping[str, SourceEntry]) -> CpuSection:
        found: dict[str, Any] = {"turbo_domain": PACKAGE}
        classes: dict[str, CpuClass] = {}
        named: dict[str, tuple[SourceEntry, str]] = {}
        whole = parts.get("")
        entries = [] if whole is None else [
            (entry, f"{whole.written}.{entry.key}") for entry in self.below(whole, whole.written)
        ]  # fmt: skip
        entries += [
            (replace(entry, key=part), entry.written) for part, entry in sorted(parts.items()) if part
        ]
        for entry, path in entries:
            key = entry.key.lower()
            if key in _CLASSES:
                classes.update(self.classes(entry, path))
            elif key in _NAMES:
                named[_NAMES[key]] = entry, path
            elif key == _TURBO_DOMAIN:
                found["turbo_domain"] = self.one_of(entry, path, TURBO_DOMAINS) or PACKAGE
            else:
                self.unknown(entry, path)
        for name, (entry, path) in named.items():
            found[name] = self.name(entry, path, classes)
        section = CpuSection(classes, **found)
        return replace(section, written=write_section(section))

    def name(self, entry: SourceEntry, path: str, classes: Mapping[str, CpuClass]) -> str:
        """A class by its name, as far as there is one; "" = none."""
        if entry.raw in (None, ""):
            return ""
        if not isinstance(entry.raw, str):
            self.wrong(entry, path, "the name of a class")
            return ""
        name = entry.raw.strip()
        if name and name not in classes:
            there = ", ".join(classes) or "none"
            sentence = f"{entry.origin}: {show_key(path)} names the CPU class {show_key(name)}, and there are {there}"
            self.remark(Remark(f"{sentence}; it counts as not given"))
            return ""
        return name

    def classes(self, given: SourceEntry, path: str) -> dict[str, CpuClass]:
        if isinstance(given.raw, Table) or given.raw == ():
            listed = [self.named(place, fields) for place, fields in self.items(given, path)]
        else:
            listed = [
                (each.origin, each.key.strip(), self.below(each, f"{path}.{each.key}"))
                for each in self.below(given, path)
            ]
        found: dict[str, CpuClass] = {}
        for place, name, fields in listed:
            if not name:
                self.errors.append(f"{place}: {show_key(path)} has a class without a name, expected one")
                continue
            if name in found:
                self.errors.append(f"{place}: {show_key(path)} has {show_key(name)} twice, expected it once")
            found[name] = self.cpu_class(place, fields, f"{path}.{name}")
        return found

    def named(self, place: str, fields: tuple[SourceEntry, ...]) -> tuple[str, str, tuple[SourceEntry, ...]]:
        """A class of a list: its place, its name ("" = it has none), and what else it says."""
        names = [entry.raw for entry in fields if entry.key.lower() == "name"]
        name = names[-1] if names else None
        rest = tuple(entry for entry in fields if entry.key.lower() != "name")
        return place, name.strip() if isinstance(name, str) else "", rest

    def cpu_class(self, place: str, entries: tuple[SourceEntry, ...], path: str) -> CpuClass:
        found: dict[str, Any] = {}
        for entry in entries:
            key, where = entry.key.lower(), f"{path}.{entry.key}"
            if key in self.MEANINGLESS or key not in _FIELDS:
                self.unknown(entry, where)
            elif entry.raw not in (None, ""):
                name, read = _FIELDS[key]
                found[name] = read(self, entry, where)
        made = CpuClass(**found)
        if is_upside_down(made):
            self.errors.append(
                f"{place}: {show_key(path)} has minFreq {made.min_freq} above maxFreq {made.max_freq}, "
                "expected at most that"
            )
        return made

    def frequency(self, entry: SourceEntry, path: str) -> Optional[Frequency]:
        try:
            return read_frequency(_text(entry))
        except ValueError as error:
            self.wrong(entry, path, str(error))
            return None

    def preference(self, entry: SourceEntry, path: str) -> str:
        try:
            return read_preference(_text(entry))
        except ValueError:
            self.wrong(entry, path, PREFERENCE_EXPECTED)
            return ""

    def governor(self, entry: SourceEntry, path: str) -> str:
        word = _text(entry).strip().lower()
        if not word.isascii() or not word.replace("_", "").isalnum() or len(word) > 15:
            self.wrong(entry, path, "the name of a cpufreq governor, such as performance or schedutil")
        return word

    def states(self, entry: SourceEntry, path: str) -> tuple[str, ...]:
        """Names of idle states: a list, or a text with commas. Some have a blank in them ("haltpoll idle")."""
        listed = entry.raw.split(",") if isinstance(entry.raw, str) else self.texts(entry, path)
        found = tuple(name for text in listed if (name := text.strip()))
        if not all(name.isascii() and name.isprintable() and len(name) < 16 for name in found):
            self.wrong(entry, path, "names of idle states, such as [C6]")
        return found

    def boost(self, entry: SourceEntry, path: str) -> bool:
        return self.flag(entry, path)

    def priority(self, entry: SourceEntry, path: str) -> int:
        text = _text(entry).strip()
        if not text.isascii() or not text.isdecimal() or not len(text) < 8 or int(text) > _MOST_PRIORITY:
            self.wrong(entry, path, f"a number from 0 to {_MOST_PRIORITY}")
            return 0
        return int(text)

    def one_of(self, entry: SourceEntry, path: str, words: tuple[str, ...]) -> str:
        word = _text(entry).strip().lower()
        if word and word not in words:
            self.wrong(entry, path, " or ".join(words))
        return word


_FIELDS: Mapping[str, tuple[str, Callable[[_Reading, SourceEntry, str], Any]]] = {
    "minfreq": ("min_freq", _Reading.frequency),
    "maxfreq": ("max_freq", _Reading.frequency),
    "freqgovernor": ("governor", _Reading.governor),
    "energyperformancepreference": ("preference", _Reading.preference),
    "disabledcstates": ("disabled", _Reading.states),
    "boost": ("boost", _Reading.boost),
    "turbopriority": ("turbo_priority", _Reading.priority),
}


def _text(entry: SourceEntry) -> str:
    """A text, or one that nothing takes for right."""
    return entry.raw if isinstance(entry.raw, str) else "?"


def write_section(section: CpuSection) -> str:
    """The section as our key has it, in one line."""
    names = {name: getattr(section, name) for name in ("idle", "shared", "reserved", "exclusive")}
    shown = [f"{name}: {write_text(value)}" for name, value in names.items() if value]
    if section.turbo_domain != PACKAGE:
        shown.append(f"turboDomain: {section.turbo_domain}")
    if section.classes:
        classes = (f"{write_text(name)}: {_write_class(each)}" for name, each in section.classes.items())
        shown.insert(0, f"classes: {{{', '.join(classes)}}}")
    return f"{{{', '.join(shown)}}}"


def _write_class(each: CpuClass) -> str:
    shown = {
        "minFreq": each.min_freq and str(each.min_freq),
        "maxFreq": each.max_freq and str(each.max_freq),
        "freqGovernor": each.governor,
        "energyPerformancePreference": each.preference,
        "disabledCstates": each.disabled and write_list(each.disabled),
        "boost": "" if each.boost is None else str(each.boost).lower(),
        "turboPriority": each.turbo_priority and str(each.turbo_priority),
    }
    return "{" + ", ".join(f"{key}: {value}" for key, value in shown.items() if value) + "}"
