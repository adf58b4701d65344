"""What all readers of sections need: mappings and lists with their places, and sentences about what is wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Optional

from cri_proxy.config.checks import FALSE_WORDS, TRUE_WORDS, write_list, write_text
from cri_proxy.text.sources import (
    Raw,
    Remark,
    SourceEntry,
    Table,
    Tree,
    branches,
    describe,
    meaningless,
    rows,
    show_key,
)

#: The options that are sections, and what reads each: few files have one, so it is imported with the first. A module has
#: ``read_section(parts, errors, remark)``, and ``EMPTY``, which the option's default stands for. Of ``parts`` the one
#: named "" is the section as a whole; others are keys that other programs have elsewhere, translated to "OPTION#PART".
READERS = {
    "control.cpu": "cri_proxy.config.sections.cpu",
    "control.interrupts": "cri_proxy.config.sections.interrupts",
    "control.memory": "cri_proxy.config.sections.memory",
    "control.rdt": "cri_proxy.config.sections.rdt",
    "control.scheduling": "cri_proxy.config.sections.scheduling",
    "control.blockio": "cri_proxy.config.sections.blockio",
}

#: What is between the key of a section's option and a part of it.
PART = "#"
#: More keys than a section of any machine has; aliases to mappings could be endless otherwise.
MAX_KEYS = 4096
MAX_DEPTH = 20


def read_parts(
    key: str, parts: Mapping[str, SourceEntry], errors: list[str], remark: Callable[[Remark], None]
) -> tuple[bool, Any]:
    """Whether the section is right, and the option's value: None for an empty one."""
    reader = import_module(READERS[key])
    before = len(errors)
    try:
        found = reader.read_section(parts, errors, remark)
    except TooLarge:
        first = next(iter(parts.values()))
        errors.append(f"{first.origin}: {first.written} is too large, expected at most {MAX_KEYS} keys")
    if len(errors) > before:
        return False, None
    return True, None if found == reader.EMPTY else found


class TooLarge(Exception):
    """Aliases have made more of a section than it may have."""


@dataclass
class SectionReading:
    """One reading of one section. ``MEANINGLESS``: keys of other programs that nothing here depends on, in lower
    case, and why.
    """

    MEANINGLESS: ClassVar[Mapping[str, str]] = {}

    errors: list[str]
    remark: Callable[[Remark], None]
    keys: int = 0

    def below(self, given: SourceEntry, path: str) -> tuple[SourceEntry, ...]:
        """The keys of a mapping; of one that is given twice the later value."""
        if given.raw is None or given.raw == "":
            return ()
        if not isinstance(given.raw, Tree):
            self.wrong(given, path, "a mapping")
            return ()
        found: dict[str, SourceEntry] = {}
        for entry in branches(given.raw):
            if entry.key in found:
                sentence = f"{entry.origin}: {show_key(f'{path}.{entry.key}')} is given twice"
                self.remark(Remark(f"{sentence}; the later value counts"))
            found[entry.key] = entry
        self._count(len(found))
        return tuple(found.values())

    def items(self, given: SourceEntry, path: str) -> tuple[tuple[str, tuple[SourceEntry, ...]], ...]:
        """The mappings of a list: the place of each, and its keys."""
        if given.raw in (None, "", ()):
            return ()
        if not isinstance(given.raw, Table):
            self.wrong(given, path, "a list of mappings")
            return ()
        found = []
        for place, fields, what in rows(given.raw):
            if fields is None:
                self.errors.append(f"{place}: {show_key(path)} has {what}, expected mappings")
                continue
            self._count(1 + len(fields))
            found.append((place, fields))
        return tuple(found)

    def texts(self, given: SourceEntry, path: str) -> tuple[str, ...]:
        """A list of texts; one text is a list of one."""
        found = (given.raw,) if isinstance(given.raw, str) else given.raw
        if found is None:
            return ()
        if not isinstance(found, tuple):
            self.wrong(given, path, "a list of texts")
            return ()
        self._count(len(found))
        return tuple(text.strip() for text in found)

    def flag(self, entry: SourceEntry, path: str) -> bool:
        word = entry.raw.strip().lower() if isinstance(entry.raw, str) else ""
        if word not in TRUE_WORDS + FALSE_WORDS:
            self.wrong(entry, path, "true or false")
        return word in TRUE_WORDS

    def wrong(self, entry: SourceEntry, path: str, expected: str) -> None:
        self.errors.append(f"{entry.origin}: {show_key(path)} is {describe(entry.raw)}, expected {expected}")

    def unknown(self, entry: SourceEntry, path: str) -> None:
        if entry.key.lower() in self.MEANINGLESS:
            self.remark(meaningless(entry.origin, show_key(path), self.MEANINGLESS[entry.key.lower()]))
        else:
            self.remark(Remark(f"{entry.origin}: unknown key {show_key(path)}"))

    def flow(self, raw: Raw, depth: int = 0) -> str:
        """What was written, in one line."""
        if depth > MAX_DEPTH:
            raise TooLarge
        if isinstance(raw, Tree):
            found = branches(raw)
            self._count(len(found))
            return self._flow_of(found, depth)
        if isinstance(raw, Table):
            items = list(rows(raw))
            self._count(len(items))
            return f"[{', '.join(self._flow_of(fields or (), depth) for _, fields, _ in items)}]"
        if isinstance(raw, tuple):
            return write_list(raw)
        return write_text(raw) if isinstance(raw, str) else "null"

    def _flow_of(self, entries: tuple[SourceEntry, ...], depth: int) -> str:
        return "{" + ", ".join(f"{write_text(e.key)}: {self.flow(e.raw, depth + 1)}" for e in entries) + "}"

    def _count(self, keys: int) -> None:
        self.keys += keys
        if self.keys > MAX_KEYS:
            raise TooLarge


def section_of(key: str) -> Optional[str]:
    """The option that a key is, or is a part of, where that is a section."""
    option = key.partition(PART)[0]
    return option if option in READERS else None
