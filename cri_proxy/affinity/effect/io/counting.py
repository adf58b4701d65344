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
import platform
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from cri_proxy.affinity.effect.comparison import Counts, Subject, fitting
from cri_proxy.affinity.effect.events import CpuModel, Event, EventSet, events_of
from cri_proxy.bounded_files import read_beginning, read_number, read_text
from policies.frozen import frozen
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


@frozen
class Countable:
    """This machine's counters. ``why``: why there are none, else "". ``l3_type``: of amd_l3, 0 = there is none; it counts
    the L3 of each of ``l3_cpus``."""

    events: Optional[EventSet] = None
    why: str = ""
    l3_type: int = 0
    l3_cpus: tuple[int, ...] = ()


@frozen
class L3Counts:
    """Of all L3s that a plan touches, since they are counted: lookups and misses, bytes to and from memory,
    and those of them to the own node's. None = not counted here."""

    misses: Optional[float] = None
    lookups: Optional[float] = None
    memory_bytes: Optional[float] = None
    own_node_bytes: Optional[float] = None

    def since(self, earlier: L3Counts) -> L3Counts:
        """The counts between two looks."""
        return L3Counts(
            _less(self.misses, earlier.misses),
            _less(self.lookups, earlier.lookups),
            _less(self.memory_bytes, earlier.memory_bytes),
            _less(self.own_node_bytes, earlier.own_node_bytes),
        )


def _less(now: Optional[float], then: Optional[float]) -> Optional[float]:
    return None if now is None or then is None else max(now - then, 0.0)


@frozen
class Look:
    """All counters at one time."""

    counts: Mapping[str, Counts]
    l3: L3Counts


# ---------------------------------------------------------------------- what there is


def read_countable(
    sys: Path, proc: Path, chosen: Callable[[CpuModel], Optional[EventSet]] = events_of
) -> Countable:
    """The counters of the machine with this /sys and /proc. ``chosen``: its events; None: none are known. Blocks."""
    cpu = _cpu_model(proc)
    events = chosen(cpu)
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
        """Read all counters. Blocks."""
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
        """Give all descriptors back; the opening thread gives back its own."""
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


# ---------------------------------------------------------------------- perf events

# perf_event_open(2): groups of counters of one cgroup (or of everything) on one CPU.
# A group is scheduled onto the hardware together, so that its counts belong to the same time; where counters are short the
# kernel takes turns, and says for how long the group was counted (``time_running`` of ``time_enabled``).
# The flags and structures are those of include/uapi/linux/perf_event.h.

#: Of the system calls' tables; a machine that is not here counts nothing.
_NUMBERS = {"x86_64": 298, "aarch64": 241}
_PID_CGROUP, _CLOEXEC = 1 << 2, 1 << 3
_ENABLED, _RUNNING, _GROUP = 1, 2, 8
#: perf_event_attr as it was first (PERF_ATTR_SIZE_VER0): type, size, config, period, sample_type, read_format, flags ...
_ATTRIBUTES = struct.Struct("IIQQQQQIIQ")
_HEAD = struct.Struct("QQQ")


@dataclass
class CounterGroup:
    """Counters that are open: ``descriptors`` of one CPU, the leader first."""

    descriptors: tuple[int, ...]

    def read(self) -> tuple[float, ...]:
        """The count of each since it was opened, scaled to the whole time where the kernel has taken turns.

        :raises OSError: it is closed.
        """
        data = os.read(self.descriptors[0], _HEAD.size + 8 * len(self.descriptors))
        if len(data) < _HEAD.size + 8 * len(self.descriptors):
            return (0.0,) * len(self.descriptors)  # a group that never got counters reads as nothing
        _, enabled, running = _HEAD.unpack_from(data)
        scale = enabled / running if running else 0.0
        counts = struct.unpack_from(f"{len(self.descriptors)}Q", data, _HEAD.size)
        return tuple(count * scale for count in counts)

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in reversed(self.descriptors):
            os.close(descriptor)
        self.descriptors = ()


def open_group(events: Sequence[Event], cpu: int, cgroup: int = -1) -> CounterGroup:
    """Count events on one CPU: of the cgroup whose directory is open as ``cgroup``, -1 = of all that runs there.

    :raises OSError: the kernel does not; ENOENT: it has no such event, EACCES or EPERM: it may not be asked, EBADF: the
        directory is none of the hierarchy that it counts by, ENODEV: the CPU is off.
    """
    opened: list[int] = []
    try:
        for event in events:
            opened.append(_open(event, cpu, cgroup, opened[0] if opened else -1))
    except OSError:
        for descriptor in reversed(opened):
            os.close(descriptor)
        raise
    return CounterGroup(tuple(opened))


def _open(event: Event, cpu: int, cgroup: int, leader: int) -> int:
    import ctypes  # few hosts have counters

    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(
            event.type, _ATTRIBUTES.size, event.config, 0, 0, _ENABLED | _RUNNING | _GROUP, 0, 0, 0, 0
        ),
        _ATTRIBUTES.size,
    )
    flags = _CLOEXEC | (_PID_CGROUP if cgroup >= 0 else 0)
    arguments = [ctypes.c_long(value) for value in (cgroup, cpu, leader, flags)]
    descriptor = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), attributes, *arguments))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor
