"""The kernel's tree of resctrl: what it offers, the groups that are there, and what is written to them.

Every method blocks: a write waits for other CPUs. A group is named by its folder, "" is the root's. Only groups with our
prefix are ever made, written to or removed, and the root's.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Callable, Optional, Protocol

from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.model import (
    CACHES,
    EIGHTHS,
    MB,
    MBPS,
    NO_GROUPS,
    PERCENT,
    ROOT,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    ResctrlInfo,
    Schemata,
    SeenGroups,
    is_ours,
    read_schemata,
)
from cri_proxy.machine_root import below, machine_root
from policies.machine.cpus import NO_CPUS, parse_cpus

MOUNT = Path("/sys/fs/resctrl")
#: Where monitors of the L3 are in ``ResctrlInfo.domains``.
L3_MONITORS = "L3_MON"
#: "No limit" of a kernel that takes MB/s, and of AMD's processors, where nothing says another.
_MOST_MBPS, _MOST_EIGHTHS, _LEAST_MOST_EIGHTHS = (1 << 32) - 1, 2048, 1024
#: Processors whose masks may have gaps, for kernels that do not tell.
_SPARSE_VENDORS = ("AuthenticAMD", "HygonGenuine")
#: A folder's mode is changed and put back by one thread at a time.
_CHANGES = threading.Lock()


class ResourceControl(Protocol):
    """What the reconciler and tasks need of resctrl. All of it blocks."""

    #: Why ``info`` returned None, a sentence.
    missing: str

    def info(self) -> Optional[ResctrlInfo]:
        """What this kernel offers. None: resctrl is not there, ``missing`` says why."""

    def seen(self) -> SeenGroups:
        """The groups that are there.

        :raises OSError: the tree cannot be read.
        """

    def make(self, group: str) -> None:
        """Make a group of ours; one that is there stays.

        :raises OSError: ENOSPC: all classes of service are taken; ``strerror`` has what the kernel says.
        """

    def remove(self, group: str) -> None:
        """Remove a group of ours; its tasks go to the root group. One that is gone is no error.

        :raises OSError: the kernel refuses.
        """

    def write(self, group: str, resource: str, values: Mapping[int, str]) -> None:
        """Write the values of some domains of one resource.

        :raises OSError: the kernel refuses, ``strerror`` has why; none of the values is in force then.
        """

    def tasks(self, group: str) -> frozenset[int]:
        """The threads in a group; empty where it is gone."""

    def where(self, thread: int) -> Optional[str]:
        """The group of one thread. None: it has ended, or this kernel does not tell."""

    def move(self, group: str, thread: int) -> None:
        """Move one thread into a group.

        :raises OSError: ESRCH: the thread has ended; ENOENT: the group is gone; or the kernel refuses.
        """

    def others(self) -> Collection[str]:
        """The groups that are not ours."""


class Resctrl:
    """The tree below one mount; ``sys`` and ``proc`` tell which CPUs share a cache, and why there is no tree."""

    def __init__(self, mount: Path = MOUNT, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self.missing = ""
        self._mount = mount
        self._sys = sys
        self._proc = proc

    # ------------------------------------------------------------------ what is there

    def info(self) -> Optional[ResctrlInfo]:
        self.missing = self._why_missing()
        if self.missing:
            return None
        try:
            schemata = self._schemata(ROOT)
            return self._info(schemata)
        except (OSError, ValueError) as error:
            self.missing = f"{self._mount} cannot be read: {error}"
            return None

    def _why_missing(self) -> str:
        if (self._mount / "schemata").exists():
            return ""
        if "resctrl" not in self._text(self._proc / "filesystems").split():
            return "this kernel offers no resctrl: the processor has none, or it is switched off (rdt= on the command line)"
        return f"resctrl is not mounted: mount -t resctrl resctrl {self._mount}"

    def _info(self, schemata: Schemata) -> ResctrlInfo:
        info = self._mount / "info"
        caches = {name: self._cache(info / name) for name in schemata if name in CACHES}
        monitors = info / "L3_MON"
        of_l2, of_l3 = self._cpus_of_caches()
        domains = {
            name: _domains(values, of_l2 if name.startswith("L2") else of_l3)
            for name, values in schemata.items()
        }
        domains[L3_MONITORS] = tuple(CacheDomain(number, of_l3[number]) for number in sorted(of_l3))
        return ResctrlInfo(
            caches,
            self._bandwidth(info / "MB", schemata[MB]) if MB in schemata else None,
            domains,
            tuple(self._text(monitors / "mon_features").split()),
            _number(self._text(monitors / "num_rmids"), 0),
        )

    def _cache(self, folder: Path) -> CacheInfo:
        sparse = self._text(folder / "sparse_masks").strip()
        return CacheInfo(
            full_mask=int(read_text(folder / "cbm_mask"), 16),
            # Kernels before 6.7 say 0 on AMD's processors, and take the mask 0, which they must not.
            min_bits=max(1, _number(self._text(folder / "min_cbm_bits"), 1)),
            closids=_number(self._text(folder / "num_closids"), 1),
            shareable=int(self._text(folder / "shareable_bits").strip() or "0", 16),
            is_sparse=sparse == "1" if sparse else self._vendor() in _SPARSE_VENDORS,
        )

    def _bandwidth(self, folder: Path, root: Mapping[int, str]) -> BandwidthInfo:
        least = _number(self._text(folder / "min_bandwidth"), 0)
        step = _number(self._text(folder / "bandwidth_gran"), 1)
        closids = _number(self._text(folder / "num_closids"), 1)
        if self._is_in_mbps():
            return BandwidthInfo(least, step, _MOST_MBPS, MBPS, closids)
        if least:
            return BandwidthInfo(least, step, 100, PERCENT, closids)
        # AMD's processors have no least. What the root group has is "no limit", unless it was limited.
        most = max(map(int, root.values()), default=0)
        return BandwidthInfo(
            1, step, most if most >= _LEAST_MOST_EIGHTHS else _MOST_EIGHTHS, EIGHTHS, closids
        )

    def _is_in_mbps(self) -> bool:
        for line in self._text(self._proc / "self" / "mounts").splitlines():
            words = line.split()
            if words[1:3] == [str(self._mount), "resctrl"]:
                return "mba_MBps" in words[3].split(",")
        return False

    def _vendor(self) -> str:
        for line in self._text(self._proc / "cpuinfo").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "vendor_id":
                return value.strip()
        return ""

    def _cpus_of_caches(self) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
        """The CPUs of each L2 and of each L3 that holds data, by its id; large machines have thousands of these files."""
        found: dict[str, dict[int, frozenset[int]]] = {"2": {}, "3": {}}
        for folder in (self._sys / "devices" / "system" / "cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
            caches = found.get(self._text(folder / "level").strip())
            if caches is None or self._text(folder / "type").strip() not in ("Unified", "Data"):
                continue
            number = _number(self._text(folder / "id"), -1)
            if number >= 0 and number not in caches:
                caches[number] = parse_cpus(self._text(folder / "shared_cpu_list").strip())
        return found["2"], found["3"]

    def seen(self) -> SeenGroups:
        names = self._groups()
        ours = [ROOT, *(name for name in names if is_ours(name))]
        monitors = [name for group in ours for name in self._names(self._folder(group) / "mon_groups")]
        return SeenGroups(
            {name: self._schemata(name) for name in ours},
            tuple(name for name in names if not is_ours(name)),
            sum(1 for name in monitors if not is_ours(name)),
        )

    def others(self) -> Collection[str]:
        return [name for name in self._groups() if not is_ours(name)]

    def tasks(self, group: str) -> frozenset[int]:
        try:
            return frozenset(map(int, read_text(self._folder(group) / "tasks").split()))
        except FileNotFoundError:
            return frozenset()

    def where(self, thread: int) -> Optional[str]:
        # "res:GROUP" and "mon:GROUP", of the root's "res:/" (Linux 5.6, proc_resctrl_show).
        line = self._text(self._proc / str(thread) / "cpu_resctrl_groups").partition("\n")[0]
        return line[4:].strip("/") if line.startswith("res:") and len(line) > 4 else None

    def _groups(self) -> list[str]:
        return [name for name in self._names(self._mount) if name not in NO_GROUPS]

    def _names(self, folder: Path) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def _schemata(self, group: str) -> Schemata:
        return read_schemata(read_text(self._folder(group) / "schemata"))

    # ------------------------------------------------------------------ writes

    def make(self, group: str) -> None:
        effects.before(effects.RESCTRL, f"mkdir {group}")
        try:
            change_in(self._mount, lambda: os.mkdir(self._ours(group)))
        except FileExistsError:
            pass
        except OSError as error:
            raise self._refusal(error) from None

    def remove(self, group: str) -> None:
        effects.before(effects.RESCTRL, f"rmdir {group}")
        try:
            change_in(self._mount, lambda: os.rmdir(self._ours(group)))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._refusal(error) from None

    def write(self, group: str, resource: str, values: Mapping[int, str]) -> None:
        line = f"{resource}:" + ";".join(f"{number}={value}" for number, value in sorted(values.items()))
        self._write(group, "schemata", f"{line}\n")

    def move(self, group: str, thread: int) -> None:
        self._write(group, "tasks", f"{thread}\n")

    def _write(self, group: str, name: str, text: str) -> None:
        file = (self._ours(group) if group else self._mount) / name
        effects.before(effects.RESCTRL, f"{group}/{name}")
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> OSError:
        """The same error with what the kernel says about its last command."""
        said = self._text(self._mount / "info" / "last_cmd_status").strip()
        reason = f"{error.strerror}: {said}" if said and said != "ok" else error.strerror
        return OSError(error.errno, reason, error.filename)

    def _ours(self, group: str) -> Path:
        if not is_ours(group) or "/" in group:
            raise ValueError(f"{group!r} is no group of ours")
        return self._mount / group

    def _folder(self, group: str) -> Path:
        return self._mount / group if group else self._mount

    def _text(self, path: Path) -> str:
        """A file that need not be there."""
        try:
            return read_text(path)
        except OSError:
            return ""


def _domains(values: Mapping[int, str], cpus: Mapping[int, frozenset[int]]) -> tuple[CacheDomain, ...]:
    return tuple(CacheDomain(number, cpus.get(number, NO_CPUS)) for number in sorted(values))


def machine_resctrl() -> Resctrl:
    """That of this machine; a daemon of a test has none."""
    return Resctrl(machine_mount())


def machine_mount() -> Path:
    """Where that is."""
    return below(machine_root(), MOUNT)


def change_in(folder: Path, change: Callable[[], None]) -> None:
    """Make or remove something in a folder of the kernel's.

    The kernel makes the root group's folders 0555, so that root needs CAP_DAC_OVERRIDE to make a group, which the unit does
    not give. As their owner it gives itself the right to write there for that moment.
    """
    with _CHANGES:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        is_closed = not mode & stat.S_IWUSR
        try:
            change()
        except PermissionError:
            if not is_closed:
                raise
        else:
            return
        os.chmod(folder, mode | stat.S_IWUSR)
        try:
            change()
        finally:
            os.chmod(folder, mode)


def _number(text: str, default: int) -> int:
    digits = text.strip()
    return int(digits) if digits.isdigit() and len(digits) <= 20 else default
