"""Counts containers: counters of each cgroup on each of its CPUs, and what L3s as a whole say. Nothing is decided here.

Everything here blocks (opening a counter interrupts its CPU), so it runs in a thread. Where counters are:

- of cores: perf_event_open by cgroup; the directory is that of the hierarchy with the perf_event controller, v1's own
  mount or v2;
- of L3s: the PMU amd_l3 (/sys/bus/event_source/devices), which counts what its CPU's L3 does for all;
- of memory: resctrl's mon_data (Documentation/filesystems/resctrl.rst), bytes by L3, where the kernel has it mounted.
  Hygon's first generation has none. llc_occupancy is not read: of an L3 that is shared it says how full it is.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from cri_proxy.affinity.effect.comparison import Counts
from cri_proxy.affinity.effect.events import CpuModel, Event, EventSet, events_of
from cri_proxy.affinity.effect.io.perf_events import CounterGroup, open_group
from cri_proxy.affinity.effect.subjects import Subject, fitting
from cri_proxy.bounded_files import read_beginning, read_number, read_text
from policies.machine.cpus import BadCpuList, parse_cpus

_HIERARCHIES = ("perf_event", "", "unified")
#: More than the first paragraph of /proc/cpuinfo has.
_PARAGRAPH_BYTES = 1 << 14
_NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM})
_NOT_THERE = frozenset({errno.ENOENT, errno.EOPNOTSUPP, errno.ENOSYS})
NOT_PERMITTED = (
    "the kernel does not let the daemon count: it needs CAP_PERFMON (before Linux 5.8 CAP_SYS_ADMIN) and the system call "
    "perf_event_open"
)


@dataclass(frozen=True)
class Countable:
    """What this machine counts. ``why``: why it does not, else "". ``l3_type``: of amd_l3, 0 = there is none; it counts
    the L3 of each of ``l3_cpus``."""

    events: Optional[EventSet] = None
    why: str = ""
    l3_type: int = 0
    l3_cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class L3Counts:
    """Of all L3s that a plan touches, since they are counted: lookups and those that missed, bytes to and from memory,
    and those of them to the own node's. None = not counted here."""

    misses: Optional[float] = None
    lookups: Optional[float] = None
    memory_bytes: Optional[float] = None
    own_node_bytes: Optional[float] = None

    def since(self, earlier: L3Counts) -> L3Counts:
        """What came between two looks."""
        return L3Counts(
            _less(self.misses, earlier.misses),
            _less(self.lookups, earlier.lookups),
            _less(self.memory_bytes, earlier.memory_bytes),
            _less(self.own_node_bytes, earlier.own_node_bytes),
        )


def _less(now: Optional[float], then: Optional[float]) -> Optional[float]:
    return None if now is None or then is None else max(now - then, 0.0)


@dataclass(frozen=True)
class Look:
    """All counters at one time."""

    counts: Mapping[str, Counts]
    l3: L3Counts


# ---------------------------------------------------------------------- what there is


def read_countable(sys: Path, proc: Path) -> Countable:
    """What is counted on the machine whose /sys and /proc these are. Blocks."""
    cpu = _cpu_model(proc)
    events = events_of(cpu)
    if events is None:
        return Countable(why=f"no events are known of {cpu.text}")
    devices = sys / "bus" / "event_source" / "devices"
    if not (devices / "cpu").is_dir():
        return Countable(why="the kernel counts nothing of its cores here (a virtual machine without a PMU?)")
    l3 = devices / "amd_l3"
    l3_type = _number(l3 / "type") or 0
    return Countable(events, "", l3_type, tuple(sorted(_cpus(l3 / "cpumask"))) if l3_type else ())


def _cpu_model(proc: Path) -> CpuModel:
    found: dict[str, str] = {}
    try:
        text = read_beginning(proc / "cpuinfo", _PARAGRAPH_BYTES).decode(errors="replace")
    except OSError:
        return CpuModel()
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    try:
        family, model = int(found.get("cpu family", "")), int(found.get("model", ""))
    except ValueError:
        return CpuModel()
    return CpuModel(found.get("vendor_id", ""), family, model)


def _number(path: Path) -> Optional[int]:
    try:
        return read_number(read_text(path))
    except (OSError, ValueError):
        return None


def _cpus(path: Path) -> frozenset[int]:
    try:
        return parse_cpus(read_text(path))
    except (OSError, BadCpuList):
        return frozenset()


# ---------------------------------------------------------------------- counting


@dataclass
class Counting:
    """Counters that are open. ``open`` once, ``look`` as often as wanted, ``close`` at any time, also while one of the
    others runs in its thread: no descriptor is left then."""

    countable: Countable
    cgroup_root: Path
    sys: Path
    #: Why a container could not be counted, of the last that could not.
    problem: str = ""
    _groups: dict[str, list[CounterGroup]] = field(default_factory=dict)
    _l3_groups: list[CounterGroup] = field(default_factory=list)
    _l3_ids: frozenset[int] = frozenset()
    _is_closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def keys(self) -> frozenset[str]:
        """The containers that are counted."""
        return frozenset(self._groups)

    def open(self, subjects: Iterable[Subject], cpus: frozenset[int], descriptors: int) -> None:
        """Count the first of ``subjects`` that ``descriptors`` are enough for, and the L3s of ``cpus``. Blocks."""
        events = self.countable.events
        assert events is not None
        self._open_l3s(events, cpus, descriptors)
        left = descriptors - sum(len(group.descriptors) for group in self._l3_groups)
        for subject in fitting(subjects, len(events.all), left):
            try:
                self._open(subject, events)
            except OSError as error:
                self.problem = _sentence(error)
                if error.errno in _NOT_PERMITTED | _NOT_THERE:
                    return  # nor would it be of the next one

    def _open(self, subject: Subject, events: EventSet) -> None:
        directory = self._directory(subject.path)
        groups: list[CounterGroup] = []
        try:
            for cpu in sorted(subject.cpus):
                with self._lock:
                    if self._is_closed:
                        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                    groups.append(open_group(events.all, cpu, directory))
                    self._groups[subject.key] = groups
        except OSError:
            with self._lock:
                self._groups.pop(subject.key, None)
                for group in groups:
                    group.close()
            raise
        finally:
            os.close(directory)

    def _directory(self, path: str) -> int:
        """The cgroup's directory in the hierarchy that the kernel counts by, open."""
        for hierarchy in _HIERARCHIES:
            found = self.cgroup_root / hierarchy / path.lstrip("/")
            if (found / "cgroup.procs").exists():
                return os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        raise OSError(errno.ESRCH, f"{path}: no such cgroup")

    def look(self) -> Look:
        """What all counters say now. Blocks."""
        with self._lock:
            if self._is_closed:
                return Look({}, L3Counts())
            counts = {key: _sum([group.read() for group in groups]) for key, groups in self._groups.items()}
            l3 = [group.read() for group in self._l3_groups]
        memory, own = self._memory()
        if not l3:
            return Look(counts, L3Counts(None, None, memory, own))
        lookups, misses = sum(values[0] for values in l3), sum(values[1] for values in l3)
        return Look(counts, L3Counts(misses, lookups, memory, own))

    def close(self) -> None:
        """Give all descriptors back; what is being opened is given back by its thread."""
        with self._lock:
            self._is_closed = True
            for group in [*self._l3_groups, *(each for groups in self._groups.values() for each in groups)]:
                group.close()
            self._groups, self._l3_groups = {}, []

    # ------------------------------------------------------------------ L3s as a whole

    def _open_l3s(self, events: EventSet, cpus: frozenset[int], descriptors: int) -> None:
        touched = {cpu: shared for cpu in self._l3_leaders() if (shared := self._l3_of(cpu)) & cpus}
        self._l3_ids = self._ids(cpus)
        pair = (
            Event("l3_lookups", "lookups", events.l3_lookups, "", self.countable.l3_type),
            Event("l3_misses", "misses", events.l3_misses, "", self.countable.l3_type),
        )
        # Never more than a quarter of the descriptors: they say less than those of the containers.
        for cpu in sorted(touched)[: descriptors // 4 // len(pair)]:
            with self._lock:
                if self._is_closed:
                    return
                try:
                    self._l3_groups.append(open_group(pair, cpu))
                except OSError:
                    return  # its counters are taken, or it knows no such event

    def _l3_leaders(self) -> tuple[int, ...]:
        return self.countable.l3_cpus if self.countable.l3_type else ()

    def _l3_of(self, cpu: int) -> frozenset[int]:
        return _cpus(self._cache(cpu) / "shared_cpu_list")

    def _cache(self, cpu: int) -> Path:
        return self.sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "cache" / "index3"

    def _ids(self, cpus: frozenset[int]) -> frozenset[int]:
        """The kernel's ids of the L3s of these CPUs, if there is what to look up by them."""
        if not (self._resctrl / "mon_data").is_dir():
            return frozenset()
        ids = {_number(self._cache(cpu) / "id") for cpu in cpus}
        return frozenset(each for each in ids if each is not None)

    @property
    def _resctrl(self) -> Path:
        return self.sys / "fs" / "resctrl"

    def _memory(self) -> tuple[Optional[float], Optional[float]]:
        """Bytes in all, and of the own node, of all control groups: each has those of its own tasks."""
        if not self._l3_ids:
            return None, None
        groups = [self._resctrl, *(self._resctrl / name for name in _names(self._resctrl))]
        total = own = 0
        for group in groups:
            for l3 in sorted(self._l3_ids):
                folder = group / "mon_data" / f"mon_L3_{l3:02d}"
                bytes_in_all, bytes_of_node = (
                    _number(folder / f"mbm_{kind}_bytes") for kind in ("total", "local")
                )
                if bytes_in_all is not None and bytes_of_node is not None:
                    total, own = total + bytes_in_all, own + bytes_of_node
                elif group == self._resctrl:
                    return None, None  # no bandwidth is counted here, or it says "Unavailable"
        return float(total), float(own)


def _names(folder: Path) -> list[str]:
    """The control groups: directories with monitoring data of their own."""
    try:
        return [name for name in sorted(os.listdir(folder)) if (folder / name / "mon_data").is_dir()]
    except OSError:
        return []


def _sum(readings: list[tuple[float, ...]]) -> Counts:
    totals = [sum(values) for values in zip(*readings)]
    return Counts(totals[0], tuple(totals[1:]))


def _sentence(error: OSError) -> str:
    if error.errno in _NOT_PERMITTED:
        return NOT_PERMITTED
    if error.errno in _NOT_THERE:
        return f"the kernel has no such counters: {error.strerror}"
    return f"a container could not be counted: {error.strerror}"
