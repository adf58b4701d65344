"""The kernel's rules of resctrl as a table: what is asked of it, one after the other, and what it answers.

The same table is gone through on the model (tests/isolation/test_kernel_rules.py, in CI) and on the kernel itself, by the
product's own access to it, in a virtual machine (isolation.py). So the model answers what the kernel does.

An answer is "ok" or the name of an error, a value, a number, or threads by the names that the table gives them. A domain
is named by its place in the order of ids: 0 is the first.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cri_proxy.isolation.io.resctrl import ResourceControl
from cri_proxy.isolation.model import ROOT

AMD, INTEL = "AMD", "Intel"
BATCH, OTHER_OF_OURS, THEIRS = "cri-resmgr.batch", "cri-resmgr.gold", "theirs"
_OK = "ok"


class Beside(Protocol):
    """What other programs do: groups of theirs, threads that start and end. A thread is a number."""

    def make_other(self, group: str) -> None: ...

    def remove_other(self, group: str) -> None: ...

    def start(self, parent: int = 0) -> int:
        """A new thread; without ``parent`` of none that the table knows."""

    def end(self, thread: int) -> None: ...


@dataclass(frozen=True)
class Rule:
    """One step. ``intel``: what Intel's processors answer, where that is another answer."""

    operation: str
    arguments: tuple[Any, ...]
    answer: str
    intel: str = ""

    def expected(self, vendor: str) -> str:
        return self.intel if self.intel and vendor == INTEL else self.answer


RULES = (
    # A group begins with all of everything.
    Rule("make", (BATCH,), _OK),
    Rule("make", (BATCH,), _OK),
    Rule("value", (BATCH, "L3", 0), "ffff"),
    Rule("value", (BATCH, "MB", 0), "2048", "100"),
    # Masks and bandwidth are a domain's; what a write does not name stays.
    Rule("write", (BATCH, "L3", {0: "3"}), _OK),
    Rule("value", (BATCH, "L3", 0), "3"),
    Rule("value", (BATCH, "L3", 1), "ffff"),
    Rule("value", (ROOT, "L3", 0), "ffff"),
    Rule("write", (BATCH, "L3", {0: "f0", 1: "1"}), _OK),
    Rule("value", (BATCH, "L3", 0), "f0"),
    Rule("value", (BATCH, "L3", 1), "1"),
    # Gaps, and bits that are not there.
    Rule("write", (BATCH, "L3", {0: "5"}), _OK, "EINVAL"),
    Rule("value", (BATCH, "L3", 0), "5", "f0"),
    Rule("write", (BATCH, "L3", {0: "1ffff"}), "EINVAL"),
    Rule("write", (BATCH, "L3", {99: "f"}), "EINVAL"),
    Rule("write", (BATCH, "L2", {0: "f"}), "EINVAL"),
    # A write is in force as a whole or not at all.
    Rule("write", (BATCH, "L3", {0: "ff", 1: "1ffff"}), "EINVAL"),
    Rule("value", (BATCH, "L3", 0), "5", "f0"),
    # Bandwidth: eighths of GB/s as they are, percentages rounded up to the step.
    Rule("write", (BATCH, "MB", {0: "33"}), _OK),
    Rule("value", (BATCH, "MB", 0), "33", "40"),
    Rule("value", (BATCH, "MB", 1), "2048", "100"),
    Rule("write", (BATCH, "MB", {0: "99999"}), "EINVAL"),
    # The root's values can be written as well.
    Rule("write", (ROOT, "L3", {0: "ff"}), _OK),
    Rule("value", (ROOT, "L3", 0), "ff"),
    Rule("value", (BATCH, "L3", 0), "5", "f0"),
    Rule("write", (ROOT, "L3", {0: "ffff"}), _OK),
    # Threads: a child begins where its parent is, those that are there stay.
    Rule("start", ("parent",), _OK),
    Rule("start", ("early", "parent"), _OK),
    Rule("move", (BATCH, "parent"), _OK),
    Rule("start", ("late", "parent"), _OK),
    Rule("tasks", (BATCH,), "late parent"),
    Rule("tasks", (ROOT,), "early"),
    Rule("move", (BATCH, "early"), _OK),
    Rule("move", (BATCH, "early"), _OK),
    Rule("tasks", (BATCH,), "early late parent"),
    Rule("end", ("early",), _OK),
    Rule("tasks", (BATCH,), "late parent"),
    Rule("move", (BATCH, "early"), "ESRCH"),
    # From one group to another, and back.
    Rule("make", (OTHER_OF_OURS,), _OK),
    Rule("move", (OTHER_OF_OURS, "late"), _OK),
    Rule("tasks", (OTHER_OF_OURS,), "late"),
    Rule("tasks", (BATCH,), "parent"),
    Rule("move", (ROOT, "late"), _OK),
    Rule("tasks", (OTHER_OF_OURS,), ""),
    # A removed group gives its threads to the root.
    Rule("remove", (BATCH,), _OK),
    Rule("remove", (BATCH,), _OK),
    Rule("tasks", (ROOT,), "late parent"),
    Rule("tasks", (BATCH,), ""),
    Rule("move", (BATCH, "parent"), "ENOENT"),
    Rule("write", (BATCH, "L3", {0: "3"}), "ENOENT"),
    # One that is made again begins anew.
    Rule("make", (BATCH,), _OK),
    Rule("value", (BATCH, "L3", 0), "ffff"),
    # Groups of others are seen and count for the classes of service.
    Rule("make_other", (THEIRS,), _OK),
    Rule("others", (), THEIRS),
    Rule("ours", (), f"{BATCH} {OTHER_OF_OURS}"),
    Rule("fill", (), "12 ENOSPC", "4 ENOSPC"),
    Rule("make", ("cri-resmgr.more",), "ENOSPC"),
    Rule("make", (BATCH,), _OK),
    Rule("remove_other", (THEIRS,), _OK),
    Rule("make", ("cri-resmgr.more",), _OK),
    Rule("clear", (), _OK),
    Rule("ours", (), ""),
    Rule("others", (), ""),
)


def differences(control: ResourceControl, beside: Beside, vendor: str) -> list[str]:
    """The rules that are answered otherwise than the table says, each in a line; all of them are asked."""
    info = control.info()
    assert info is not None, control.missing
    asked = _Asked(control, beside, [domain.id for domain in info.domains["L3"]])
    found = []
    for number, rule in enumerate(RULES):
        answer, expected = asked.answer(rule), rule.expected(vendor)
        if answer != expected:
            words = " ".join(str(word) for word in (rule.operation, *rule.arguments))
            found.append(f"rule {number}, {words}: {answer!r}, expected {expected!r}")
    asked.end_all()
    return found


class _Asked:
    """Goes through the table; knows the threads by their names."""

    def __init__(self, control: ResourceControl, beside: Beside, domains: list[int]) -> None:
        self._control, self._beside, self._domains = control, beside, domains
        self._threads: dict[str, int] = {}
        self._ended: set[str] = set()
        self._operations: Mapping[str, Callable[..., object]] = {
            "make": control.make,
            "remove": control.remove,
            "write": self._write,
            "value": self._value,
            "start": self._start,
            "end": self._end,
            "move": lambda group, name: control.move(group, self._threads[name]),
            "tasks": self._tasks,
            "make_other": beside.make_other,
            "remove_other": beside.remove_other,
            "others": lambda: " ".join(sorted(control.others())),
            "ours": lambda: " ".join(self._ours()),
            "fill": self._fill,
            "clear": lambda: [control.remove(group) for group in self._ours()] and None,
        }

    def answer(self, rule: Rule) -> str:
        try:
            said = self._operations[rule.operation](*rule.arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return _OK if said is None else str(said)

    def end_all(self) -> None:
        for name in self._threads.keys() - self._ended:
            self._beside.end(self._threads[name])

    def _write(self, group: str, resource: str, values: Mapping[int, str]) -> None:
        known = dict(enumerate(self._domains))
        self._control.write(
            group, resource, {known.get(number, number): value for number, value in values.items()}
        )

    def _value(self, group: str, resource: str, domain: int) -> str:
        return self._control.seen().schemata[group][resource][self._domains[domain]]

    def _start(self, name: str, parent: str = "") -> None:
        self._threads[name] = self._beside.start(self._threads[parent]) if parent else self._beside.start()

    def _end(self, name: str) -> None:
        self._beside.end(self._threads[name])
        self._ended.add(name)

    def _tasks(self, group: str) -> str:
        there = self._control.tasks(group)
        return " ".join(sorted(name for name, thread in self._threads.items() if thread in there))

    def _ours(self) -> list[str]:
        return sorted(group for group in self._control.seen().schemata if group)

    def _fill(self) -> str:
        made = 0
        while True:
            try:
                self._control.make(f"cri-resmgr.fill-{made}")
            except OSError as error:
                return f"{made} {errno.errorcode[error.errno or 0]}"
            made += 1
