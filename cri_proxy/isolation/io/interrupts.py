"""Interrupts of devices: what is in /proc/interrupts and /proc/irq now, and which CPUs should handle each. Blocks.

Read anew each round: interrupts come and go with devices. Those that the kernel manages (queues of block devices and
network cards with a vector a CPU) refuse with EIO: they are left alone, and doctor lists them.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.config.config import Config, balloon_settings
from cri_proxy.isolation.interrupts import (
    Claims,
    Interrupt,
    InterruptSection,
    Routing,
    claims_of,
    is_controllable,
    new_interrupts,
    read_interrupts,
    route,
    same_mask,
    write_mask,
)
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.model import FILE, Setting
from policies.balloons.types import all_types
from policies.frozen import frozen
from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus, parse_mask

NAME = "interrupts"
#: Levels of a machine from which CPUs come instead of isolated ones, the nearest first.
_NEAR = ("l3", "numa", "socket")
#: With these a kernel refuses an interrupt for good: it manages it, or its controller cannot.
MANAGED = (errno.EIO, errno.EPERM)
_SYS, _PROC = "sys", "proc"


@frozen
class _Line:
    """One interrupt as it is now, and its file."""

    interrupt: Interrupt
    place: str


class Interrupts:
    """The subject ``interrupts``. ``proc`` None: beside the option ``topology.source``, where that is a folder ``sys``."""

    name = NAME

    def __init__(self, proc: Optional[Path] = None) -> None:
        self._proc = proc
        self._notes: tuple[str, ...] = ()

    def settings(self, sight: Sight) -> Iterator[Setting]:
        """Of each interrupt that has isolated CPUs to leave, is claimed, or has a sink to go to; and the default."""
        self._notes = ()
        proc = self._proc_of(sight.config)
        if proc is None:
            self._notes = ("topology.source is no folder /sys: interrupts are left alone",)
            return
        section: InterruptSection = sight.config["control.interrupts"] or InterruptSection()
        claims = claims_of(sight.containers, all_types(balloon_settings(sight.config)), section)
        if not (claims.claims or claims.sink or claims.isolated):
            return
        online = sight.topology.online
        near = [[domain.cpus for domain in sight.topology.at(level)] for level in _NEAR]
        for line in self._lines(proc, section, sight):
            found = route(line.interrupt, claims, online, near)
            if found is not None:
                yield _setting(line.place, format_cpus(found.cpus), found)
        yield from self._default(proc, section, claims, sight)

    def is_same(self, place: str, seen: str, value: str) -> bool:
        """Whether two lists, or masks, are the same CPUs."""
        with contextlib.suppress(BadCpuList):
            if place.endswith("_list"):
                return parse_cpus(seen) == parse_cpus(value)
            return same_mask(seen, value)
        return False

    def notes(self) -> Sequence[str]:
        return self._notes

    def _proc_of(self, config: Config) -> Optional[Path]:
        source = Path(config["topology.source"])
        if self._proc is not None or source.name != _SYS:
            return self._proc
        return source.with_name(_PROC)

    def _lines(self, proc: Path, section: InterruptSection, sight: Sight) -> Iterator[_Line]:
        try:
            names = read_interrupts(read_text(proc / "interrupts"))
        except OSError as error:
            self._notes = (f"interrupts cannot be read: {error.strerror or error}",)
            return
        for number, name in sorted(names.items()):
            if not is_controllable(name, section):
                continue
            file = proc / "irq" / str(number) / "smp_affinity_list"
            place = f"{FILE}{file}"
            # One that has gone meanwhile, or says what is no list, is left alone.
            with contextlib.suppress(OSError, BadCpuList):
                if stat.S_IMODE(file.stat().st_mode) & 0o222:
                    text = sight.before.get(place) or read_text(file)
                    yield _Line(Interrupt(number, name, parse_cpus(text)), place)

    def _default(
        self, proc: Path, section: InterruptSection, claims: Claims, sight: Sight
    ) -> Iterator[Setting]:
        """New interrupts begin right. Where only some may be controlled the others begin as before."""
        place = f"{FILE}{proc / 'irq' / 'default_smp_affinity'}"
        if section.controllable is not None and "*" not in section.controllable:
            return
        with contextlib.suppress(OSError, BadCpuList):
            text = sight.before.get(place) or read_text(place[len(FILE) :])
            found = new_interrupts(parse_mask(text), claims, sight.topology.online)
            if found is not None:
                yield _setting(place, write_mask(found.cpus), found)


def _setting(place: str, value: str, found: Routing) -> Setting:
    return Setting(NAME, place, value, found.why, found.keys, final=MANAGED)
