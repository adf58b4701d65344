"""The option ``control.interrupts``: which interrupts may be controlled, and the CPUs that gather them.

nri-plugins' ``controllableInterrupts`` is its part ``controllable``. isolation/interrupts.py has its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

from cri_proxy.config.checks import write_list, write_text
from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.isolation.interrupts import InterruptSection, pattern_fault
from cri_proxy.text.sources import Remark, SourceEntry, quote, show_key
from policies.machine.cpus import NO_CPUS, BadCpuList, format_cpus, parse_cpus

#: What the option's default says.
EMPTY = InterruptSection()
CONTROLLABLE, SINK = "controllable", "sink"


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> InterruptSection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    return _Reading(errors, remark).section(parts)


@dataclass
class _Reading(SectionReading):
    def section(self, parts: Mapping[str, SourceEntry]) -> InterruptSection:
        controllable: Optional[tuple[str, ...]] = None
        sink = NO_CPUS
        own = parts.get("")
        below = () if own is None else self.below(own, own.written)
        found = [
            (entry.key.lower(), entry, f"{own.written}.{entry.key}") for entry in below if own is not None
        ]
        theirs = parts.get(CONTROLLABLE)
        if theirs is not None:
            found.append((CONTROLLABLE, theirs, theirs.written))
        for key, entry, path in found:
            if key in (CONTROLLABLE, "controllableinterrupts"):
                controllable = self.patterns(entry, path)
            elif key == SINK:
                sink = self.cpus(entry, path)
            else:
                self.unknown(entry, path)
        written = [f"{CONTROLLABLE}: {write_list(controllable)}"] if controllable is not None else []
        written += [f"{SINK}: {write_text(format_cpus(sink))}"] if sink else []
        return InterruptSection(controllable, sink, f"{{{', '.join(written)}}}")

    def patterns(self, entry: SourceEntry, path: str) -> Optional[tuple[str, ...]]:
        """Patterns of names; none at all is no restriction, as in nri-plugins."""
        found = self.texts(entry, path)
        for pattern in found:
            fault = "it is empty" if not pattern else pattern_fault(pattern)
            if fault:
                sentence = f"{entry.origin}: {show_key(path)} has {quote(pattern)}"
                self.errors.append(f"{sentence}, expected a pattern such as '*nvme*': {fault}")
        return found or None

    def cpus(self, entry: SourceEntry, path: str) -> frozenset[int]:
        try:
            return parse_cpus(entry.raw if isinstance(entry.raw, str) else "?")
        except BadCpuList:
            self.wrong(entry, path, 'CPUs such as "0-3,8"')
            return NO_CPUS
