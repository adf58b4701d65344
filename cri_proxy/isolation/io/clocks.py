"""The subject ``clocks``: what cpufreq and cpuidle have here, and the class of each CPU (``isolation/clocks.py``).

What of a CPU does not change while it is online is read once. A CPU that goes offline takes its files along: its idle
states go, and a cpufreq policy without a CPU answers EBUSY.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation import clocks
from cri_proxy.isolation.clocks import ClockInfo, ClockPolicy, CpuSection, IdleState, Planning, Usage
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.model import Setting
from policies.machine.cpus import BadCpuList, parse_cpus

#: The class of balloons and of idle CPUs that nothing names, as nri-plugins' balloons have it.
DEFAULT = "default"
#: Where boost is switched for the machine: cpufreq's core, and Intel's driver, which says the opposite.
_BOOST, _NO_TURBO = "cpufreq/boost", "intel_pstate/no_turbo"
#: The switch of one policy: since 6.11, and acpi-cpufreq's of AMD before.
_OWN_BOOST = ("boost", "cpb")
_MHZ = 1000


class Clocks:
    """``settings`` says what CPUs should have; it reads a few files of each policy with a class, and blocks."""

    name = clocks.SUBJECT

    def __init__(self) -> None:
        self._notes: tuple[str, ...] = ()
        #: What was read of the machine as it was: its root, the CPUs online, boost.
        self._machine: Optional[tuple[Path, frozenset[int], str]] = None
        self._info = ClockInfo()

    def settings(self, sight: Sight) -> Iterable[Setting]:
        section: Optional[CpuSection] = sight.config["control.cpu"]
        self._notes = ()
        if section is None or not section.classes:
            self._notes = ("clocks: control.cpu has no classes: all CPUs stay as they are",)
            return ()
        root = Path(sight.config["topology.source"])
        if not root.is_dir():
            self._notes = (f"clocks: {root} is no sysfs: this machine's cpufreq and cpuidle are not known",)
            return ()
        info = self._look(root / "devices/system/cpu", sight.topology.online)
        if not info.policies and not info.states:
            self._notes = (
                "clocks: this kernel has neither cpufreq nor cpuidle, as in most virtual machines",
            )
            return ()
        planning = Planning(info, section, usage_of(sight, section), sight.topology, sight.before)
        found = planning.settings()
        self._notes = tuple(f"clocks: {note}" for note in planning.notes)
        if not info.policies and any(map(_has_frequencies, section.classes.values())):
            self._notes += ("clocks: this kernel has no cpufreq driver: frequencies stay as they are",)
        return found

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return clocks.is_same(place, seen, value)

    def notes(self) -> Sequence[str]:
        return self._notes

    def _look(self, root: Path, online: frozenset[int]) -> ClockInfo:
        boost = "".join(_read(root / name) for name in (_BOOST, _NO_TURBO))
        if self._machine != (root, online, boost):
            self._machine, self._info = (root, online, boost), read_clocks(root, online)
            return self._info
        policies = (with_limits(policy) for policy in self._info.policies)
        return ClockInfo(
            tuple(policy for policy in policies if policy is not None),
            self._info.states,
            self._info.boost,
            self._info.is_inverse,
        )


def usage_of(sight: Sight, section: CpuSection) -> Usage:
    """What containers are on which CPUs."""
    config = sight.config
    types: Mapping[str, str] = {
        spec.type.name: spec.type.cpu_class for spec in config["policy.balloons.BalloonTypes"] or ()
    }
    is_default = config["policy.Active"] == "balloons" and DEFAULT in section.classes
    return Usage(
        sight.containers,
        sight.usable & sight.topology.online,
        sight.reserved & sight.topology.online,
        sight.others & sight.topology.online,
        types,
        DEFAULT if is_default else "",
    )


def _has_frequencies(each: clocks.CpuClass) -> bool:
    wanted: tuple[Any, ...] = (each.min_freq, each.max_freq, each.boost)
    return bool(each.governor or each.preference) or any(value is not None for value in wanted)


# ---------------------------------------------------------------------- what the kernel has


def read_clocks(root: Path, online: frozenset[int]) -> ClockInfo:
    """All that there is below ``/sys/devices/system/cpu``. What cannot be read is not there."""
    found = [
        policy
        for path in sorted((root / "cpufreq").glob("policy*"), key=lambda path: _number(path.name[6:]))
        if (policy := _read_policy(root, path)) is not None
    ]
    states = {cpu: each for cpu in sorted(online) if (each := _read_states(root / f"cpu{cpu}" / "cpuidle"))}
    boosts = [(root / name, name is _NO_TURBO) for name in (_BOOST, _NO_TURBO) if (root / name).exists()]
    path, is_inverse = boosts[0] if boosts else ("", False)
    return ClockInfo(tuple(found), states, str(path), is_inverse)


def with_limits(policy: ClockPolicy) -> Optional[ClockPolicy]:
    """A policy as it is now; None: it has no CPU any more."""
    path = Path(policy.path)
    limits = tuple(_number(_read(path / name)) for name in ("scaling_min_freq", "scaling_max_freq"))
    governor = _read(path / "scaling_governor")
    if not limits[0] and not governor:
        return None
    # Its own boost may be another one by now, and with it what is the highest.
    most = _number(_read(path / "cpuinfo_max_freq")) if policy.boost else policy.most
    return replace(policy, limits=(limits[0], limits[1]), governor=governor, most=most)


def _read_policy(root: Path, path: Path) -> Optional[ClockPolicy]:
    try:
        cpus = parse_cpus(",".join(read_text(path / "affected_cpus").split()))
        related = " ".join(_read(path / name) for name in ("related_cpus", "freqdomain_cpus"))
        shared = parse_cpus(",".join(related.split()))
    except (OSError, BadCpuList):
        return None  # all of its CPUs are offline
    if not cpus:
        return None
    most = _number(_read(path / "cpuinfo_max_freq"))
    own = next((name for name in _OWN_BOOST if (path / name).exists()), "")
    table = tuple(sorted(map(_number, _read(path / "scaling_available_frequencies").split())))
    boosted = tuple(map(_number, _read(path / "scaling_boost_frequencies").split()))
    # Of acpi-cpufreq's table boost is above, and not in it.
    has_boost = bool(boosted or own or (root / _BOOST).exists())
    policy = ClockPolicy(
        str(path),
        cpus,
        shared,
        _number(_read(path / "cpuinfo_min_freq")),
        most,
        _base(root, path, cpus, table, has_boost),
        table=tuple(sorted({*table, *boosted})),
        governors=tuple(_read(path / "scaling_available_governors").split()),
        preferences=_preferences(path),
        boost=own,
    )
    return with_limits(policy) if most else None


def _preferences(path: Path) -> tuple[str, ...]:
    listed = tuple(_read(path / "energy_performance_available_preferences").split())
    there = _read(path / "energy_performance_preference")
    return listed or ((there,) if there else ())


def _base(root: Path, path: Path, cpus: frozenset[int], table: tuple[int, ...], has_boost: bool) -> int:
    """The highest frequency without boost, kHz; 0 = not known.

    Intel's driver says it; else the firmware does (CPPC, in MHz); else it is the highest of a table that boost is above of.
    """
    base = _number(_read(path / "base_frequency"))
    nominal = _number(_read(root / f"cpu{min(cpus)}" / "acpi_cppc" / "nominal_freq")) * _MHZ
    return base or nominal or (max(table) if has_boost and table else 0)


def _read_states(path: Path) -> tuple[IdleState, ...]:
    found = sorted(path.glob("state*"), key=lambda state: _number(state.name[5:]))
    return tuple(
        IdleState(name, str(state / "disable")) for state in found if (name := _read(state / "name"))
    )


def _read(path: Path) -> str:
    """What a file says; "" = it is not there, or cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
