"""The files of a machine that isolation writes beside resctrl, on disk: cgroups of pods, interrupts, clocks.

What is written goes by the kernel's rules as far as they are named here; a file is never made by a write.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Optional

from cri_proxy import effects
from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus

#: A device that is there from the first moment on.
DEVICE = "8:16"
#: Of a container's cgroup and its pod's, without limits: file -> what it says.
_CGROUP = {
    "cgroup.procs": "",
    "cgroup.threads": "",
    "cpu.idle": "0",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.stat": "nr_throttled 0\n",
    "cpu.weight": "1",
    "io.max": "",
    "io.weight": "default 100",
    "memory.current": "4096",
    "memory.high": "max",
    "memory.low": "0",
    "memory.max": "max",
    "memory.min": "0",
    "memory.swap.current": "0",
    "memory.swap.max": "max",
}
_CPUFREQ = {
    "cpuinfo_min_freq": "1500000",
    "cpuinfo_max_freq": "3300000",
    "scaling_min_freq": "1500000",
    "scaling_max_freq": "3300000",
    "scaling_governor": "schedutil",
    "scaling_available_governors": "performance powersave schedutil",
}
_LINES = ("io.max", "io.weight")
_NICE_0_WEIGHT = "100"


class MachineTree:
    """``folder`` stands for /. ``managed``: interrupts that refuse whatever is written."""

    def __init__(
        self, folder: Path, cpus: frozenset[int], interrupts: Iterable[int] = (24, 25, 26, 31)
    ) -> None:
        self.folder = folder
        self.sys = folder / "sys"
        self.cgroups = self.sys / "fs/cgroup"
        self.all_cpus = format_cpus(cpus)
        self.managed: set[int] = set()
        self._interrupts: set[int] = set()
        self._paths: dict[str, str] = {}
        self._pods = count(1000)
        self._make(
            self.cgroups,
            {"cgroup.controllers": "cpuset cpu io memory", "cgroup.subtree_control": "cpu io memory"},
        )
        self._make(folder / "proc/irq", {"default_smp_affinity": f"{sum(1 << cpu for cpu in cpus):x}"})
        for number in interrupts:
            self.plug(number)
        for cpu in sorted(cpus):
            policy = {**_CPUFREQ, "related_cpus": str(cpu), "affected_cpus": str(cpu)}
            self._make(self.sys / f"devices/system/cpu/cpufreq/policy{cpu}", policy)
        device = self.sys / "devices/pci/block/sdb"
        self._make(device, {"dev": DEVICE})
        self._make(device / "queue", {"scheduler": "[mq-deadline] bfq none"})
        (self.sys / "dev/block").mkdir(parents=True)
        (self.sys / "dev/block" / DEVICE).symlink_to(device)

    # ------------------------------------------------------------------ what happens there

    def start(self, key: str, qos: str, quota: str = "max 100000", memory: str = "max") -> None:
        """A container starts in a pod of its own."""
        above = "" if qos == "guaranteed" else f"{qos}/"
        path = f"/kubepods/{above}pod-{next(self._pods)}/{key}"
        self._paths[key] = path
        own = {**_CGROUP, "cpu.max": quota, "memory.max": memory}
        for name in ("/kubepods", f"/kubepods/{above}".rstrip("/"), path.rpartition("/")[0], path):
            if not (self.cgroups / name.lstrip("/")).exists():
                self._make(self.cgroups / name.lstrip("/"), own if "/pod-" in name else _CGROUP)

    def end(self, key: str) -> None:
        """Its cgroup goes, and its pod's."""
        path = self._paths.pop(key, None)
        if path is not None:
            shutil.rmtree(self.cgroups / path.lstrip("/").rpartition("/")[0])

    def cgroup_of(self, key: str) -> Optional[str]:
        return self._paths.get(key)

    def plug(self, number: int) -> None:
        """A device comes, with an interrupt of its own."""
        self._interrupts.add(number)
        self._make(self.folder / f"proc/irq/{number}", {"smp_affinity_list": self.all_cpus})
        self._list()

    def unplug(self, number: int) -> None:
        self._interrupts.discard(number)
        shutil.rmtree(self.folder / f"proc/irq/{number}")
        self._list()

    def _list(self) -> None:
        lines = [f"{number}: 0 PCI-MSI 1-edge device{number}" for number in sorted(self._interrupts)]
        (self.folder / "proc/interrupts").write_text("\n".join(["  CPU0", *lines, ""]))

    # ------------------------------------------------------------------ writes

    def write(self, path: str, text: str) -> None:
        """As ``originals.write_file``, by the kernel's rules."""
        effects.before(effects.SYSTEM, path)
        self.take(path, text)

    def take(self, path: str, text: str) -> None:
        """What the kernel does with a write, whoever's it is."""
        file = Path(path)
        if not file.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        value = text.strip()
        if file.name == "smp_affinity_list":
            self._route(file, value)
        elif file.name in ("scaling_min_freq", "scaling_max_freq"):
            self._clock(file, int(value))
        elif file.name == "cpu.max.burst":
            quota = (file.parent / "cpu.max").read_text().split()[0]
            _must((quota == "max" and value == "0") or (quota != "max" and int(value) <= int(quota)))
        elif file.name == "cpu.weight":
            _must((file.parent / "cpu.idle").read_text().strip() == "0")
        elif file.name == "cpu.idle" and value != file.read_text().strip():
            (file.parent / "cpu.weight").write_text("0\n" if value == "1" else f"{_NICE_0_WEIGHT}\n")
        if file.name in _LINES:
            value = _merged(file.name, file.read_text(), value)
        file.write_text(f"{value}\n")

    def _route(self, file: Path, value: str) -> None:
        if int(file.parent.name) in self.managed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            _must(bool(parse_cpus(value)) and parse_cpus(value) <= parse_cpus(self.all_cpus))
        except BadCpuList:
            _must(False)

    def _clock(self, file: Path, value: int) -> None:
        is_low = file.name == "scaling_min_freq"
        other = int((file.parent / ("scaling_max_freq" if is_low else "scaling_min_freq")).read_text())
        _must(value <= other if is_low else value >= other)

    def picture(self) -> dict[str, str]:
        """What every file that may be written says."""
        return {str(path): path.read_text().strip() for path in self._files()}

    def _files(self) -> Iterable[Path]:
        names = {*_CGROUP, *_CPUFREQ, "smp_affinity_list", "default_smp_affinity"}
        for root, _, files in os.walk(self.folder):
            for name in names.intersection(files):
                yield Path(root) / name

    def _make(self, folder: Path, files: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")


def _must(is_so: bool) -> None:
    if not is_so:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _merged(name: str, text: str, line: str) -> str:
    """A file with a line a device after one device's line was written."""
    first, *words = line.split()
    lines = {each.split()[0]: each.split()[1:] for each in text.splitlines() if each.strip()}
    if name == "io.weight":
        if words == ["default"]:
            lines.pop(first, None)
        else:
            lines[first] = words
    else:
        has = {"rbps": "max", "wbps": "max", "riops": "max", "wiops": "max"}
        has |= dict(word.split("=") for word in lines.get(first, ()))
        has |= dict(word.split("=") for word in words)
        lines[first] = [f"{key}={value}" for key, value in has.items()]
        if set(has.values()) == {"max"}:
            del lines[first]
    return "\n".join(" ".join([each, *of]) for each, of in lines.items())
