"""The option ``control.scheduling``: nri-plugins' ``schedulingClasses``, and which namespaces and QoS classes have them.

In their files the three keys stand beside each other in a policy's section; under our own key they are one mapping. Fixed
keys are read whatever their case. isolation/scheduling.py has their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from cri_proxy.config.sections.reading import SectionReading
from cri_proxy.isolation.scheduling import (
    DEADLINE,
    FLAGS,
    IO_CLASSES,
    KEEP_PARAMS,
    KEEP_POLICY,
    NICE,
    POLICIES,
    REALTIME,
    RESET_ON_FORK,
    SchedulingClass,
    SchedulingSection,
)
from cri_proxy.text.sources import Remark, SourceEntry, quote, show_key

#: What the option's default says.
EMPTY = SchedulingSection()

#: Our option's keys, which are theirs, in lower case; each may also come as a part of that name.
CLASSES, NAMESPACES, QOS = "schedulingclasses", "namespaceschedulingclasses", "podqosschedulingclasses"
_SPELLED = {
    CLASSES: "schedulingClasses",
    NAMESPACES: "namespaceSchedulingClasses",
    QOS: "podQoSSchedulingClasses",
}
_QOS_CLASSES = ("guaranteed", "burstable", "besteffort")
#: Of a class: the field of each number, and what it may be.
_NUMBERS = {
    "nice": (-20, 19),
    "priority": (0, 99),
    "runtime": (0, 1 << 40),
    "deadline": (0, 1 << 40),
    "period": (0, 1 << 40),
    "iopriority": (0, 7),
}
_NOTHING = ("", "none")
_KEPT = (KEEP_POLICY, KEEP_PARAMS)
_CLAMPS = ("util-clamp-min", "util-clamp-max")


def read_section(
    parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> SchedulingSection:
    """The section, which is right where there was no error. Every error and remark names file and line."""
    reading = _Reading(errors, remark)
    given: dict[str, tuple[SourceEntry, str]] = {}
    if "" in parts:
        for entry in reading.below(parts[""], parts[""].written):
            path = f"{parts[''].written}.{entry.key}"
            if entry.key.lower() in _SPELLED:
                given[entry.key.lower()] = entry, path
            else:
                reading.unknown(entry, path)
    for name, entry in parts.items():
        if name:
            given[name.lower()] = entry, entry.written
    return reading.section(given)


@dataclass
class _Reading(SectionReading):
    def section(self, given: Mapping[str, tuple[SourceEntry, str]]) -> SchedulingSection:
        classes: dict[str, SchedulingClass] = {}
        if CLASSES in given:
            entry, path = given[CLASSES]
            for place, fields in self.items(entry, path):
                self.cls(place, fields, path, classes)
        namespaces = self.names(given.get(NAMESPACES), classes)
        qos = {}
        for name, cls in self.names(given.get(QOS), classes).items():
            if name.lower() not in _QOS_CLASSES:
                entry, path = given[QOS]
                self.errors.append(
                    f"{entry.origin}: a key of {show_key(path)} is {quote(name)}, expected Guaranteed, Burstable or"
                    " BestEffort"
                )
            qos[name.lower()] = cls
        written = ", ".join(
            f"{_SPELLED[name]}: {self.flow(given[name][0].raw)}" for name in _SPELLED if name in given
        )
        return SchedulingSection(classes, namespaces, qos, f"{{{written}}}" if written else "")

    def names(
        self, given: Optional[tuple[SourceEntry, str]], classes: Mapping[str, SchedulingClass]
    ) -> dict[str, str]:
        """A mapping to names of classes that there are."""
        found: dict[str, str] = {}
        for entry in () if given is None else self.below(*given):
            path = f"{given[1]}.{entry.key}" if given else ""
            if not isinstance(entry.raw, str) or entry.raw not in classes:
                self.wrong(entry, path, "the name of one of the schedulingClasses")
            else:
                found[entry.key] = entry.raw
        return found

    def cls(
        self,
        place: str,
        fields: tuple[SourceEntry, ...],
        path: str,
        classes: dict[str, SchedulingClass],
    ) -> None:
        """One class, added to the others."""
        before, name, found = len(self.errors), "", SchedulingClass()
        for entry in fields:
            key, where = entry.key.lower(), f"{path}.{entry.key}"
            if entry.raw is None:
                continue
            if key == "name":
                name = entry.raw.strip() if isinstance(entry.raw, str) else ""
            elif key == "policy":
                found = replace(found, policy=self.word(entry, where, (*_NOTHING, *POLICIES)) or None)
            elif key == "ioclass":
                found = replace(found, io_class=self.io_class(entry, where))
            elif key == "flags":
                found = replace(found, flags=self.flags(entry, where))
            elif key in _NUMBERS:
                field = "io_priority" if key == "iopriority" else key
                found = replace(found, **{field: self.number(entry, where, *_NUMBERS[key])})  # type: ignore[arg-type]
            else:
                self.unknown(entry, where)
        if not name or not name.isprintable():
            self.errors.append(f"{place}: {show_key(path)} has a class without a name, expected one")
        elif name in classes:
            self.errors.append(f"{place}: {show_key(path)} has {quote(name)} twice, expected it once")
        elif len(self.errors) == before:
            self.check(place, f"{show_key(path)} {quote(name)}", found)
        classes[name] = found

    def check(self, place: str, what: str, found: SchedulingClass) -> None:
        """What of a class does not go together."""
        policy, faults = found.policy, []
        keeps = bool(found.flags & {KEEP_POLICY, KEEP_PARAMS})
        if policy in REALTIME and not found.priority and not keeps:
            faults.append(f"has the policy {policy} and no priority, expected one from 1 to 99")
        if found.priority and policy is not None and policy not in REALTIME:
            faults.append(f"has a priority with the policy {policy}, expected fifo or rr")
        if policy == DEADLINE and not keeps:
            deadline = found.deadline or found.period or 0
            if not found.runtime or not found.runtime <= deadline <= (found.period or deadline):
                faults.append(
                    "has the policy deadline, expected runtime, deadline and period in microseconds, none above the next"
                )
        elif policy != DEADLINE and (found.runtime or found.deadline or found.period):
            faults.append(f"has times with the policy {policy or 'none'}, expected deadline")
        self.errors += [f"{place}: {what} {fault}" for fault in faults]
        if policy == DEADLINE and RESET_ON_FORK not in found.flags:
            self.remark(
                Remark(
                    f"{place}: {what} has the policy deadline without the flag reset-on-fork; what has it cannot fork"
                )
            )
        if policy is not None and policy not in NICE and found.nice is not None:
            self.remark(
                Remark(
                    f"{place}: {what} has a nice value, and the policy {policy} has none; it is passed over"
                )
            )

    def word(self, entry: SourceEntry, path: str, words: tuple[str, ...]) -> str:
        found = entry.raw.strip().lower() if isinstance(entry.raw, str) else None
        if found is None or found not in words:
            self.wrong(entry, path, f"{', '.join(word for word in words if word)}")
            return ""
        return "" if found in _NOTHING else found

    def io_class(self, entry: SourceEntry, path: str) -> Optional[str]:
        found = entry.raw.strip().lower() if isinstance(entry.raw, str) else None
        if found == "":
            return None
        if found not in IO_CLASSES:
            self.wrong(entry, path, ", ".join(IO_CLASSES))
            return None
        return found

    def flags(self, entry: SourceEntry, path: str) -> frozenset[str]:
        found = set()
        for text in self.texts(entry, path):
            flag = {"reclaimable": "reclaim"}.get(text.lower(), text.lower())
            if flag in _CLAMPS:
                # A class has no value for it, and the kernel would take 0.
                self.remark(
                    Remark(
                        f"{entry.origin}: {show_key(path)} has {flag}, and no value for it; it is passed over"
                    )
                )
            elif flag in (*FLAGS, *_KEPT):
                found.add(flag)
            elif flag:
                self.wrong(entry, path, f"a list of {', '.join((*FLAGS, *_KEPT, *_CLAMPS))}")
        return frozenset(found)

    def number(self, entry: SourceEntry, path: str, least: int, most: int) -> Optional[int]:
        text = entry.raw.strip() if isinstance(entry.raw, str) else ""
        digits = text[1:] if text.startswith("-") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and least <= int(text) <= most):
            self.wrong(entry, path, f"a whole number from {least} to {most}")
            return None
        return int(text)
