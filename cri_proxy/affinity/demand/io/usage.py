"""Reads what containers have used of CPUs, on cgroup v2, v1 and hybrid hosts. Nothing is decided here.

Of a container at its limit's rung one file is read, of one in a shrunk set those, too, that tell waiting and throttling:

               used                          throttled                        waited
    v2         cpu.stat: usage_usec          cpu.stat: throttled_usec         cpu.pressure: some, total
    v1         cpuacct.usage, nanoseconds    cpu.stat: throttled_time, ns     nowhere, or cpuacct's cpu.pressure (openEuler)
    hybrid     as v1                         as v1                            below ``unified``

Times that are throttled are added up over CPUs by the kernel, so they can be more than the time that has passed. A file
that was read once stays open: a look is one call then, and the file of a container that is gone says so. A file that could
not be opened is tried again with each look.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Callable, Optional

from cri_proxy.affinity.demand.estimate import DemandSample

#: More than any of these files has.
_BYTES = 8192
_CPUACCT = ("cpuacct", "cpu,cpuacct")
_CPU = ("cpu", "cpu,cpuacct")
#: Where a v1 or hybrid host may have pressure by cgroup.
_PRESSURE_V1 = ("unified", "cpuacct", "cpu,cpuacct")


class UsageReader:
    """Reads below one cgroup root (/sys/fs/cgroup). ``clock``: of the samples' times, seconds. Blocks: files are read."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_v1 = (root / "cpuset").is_dir()
        self._cpuacct = _mounts(root, _CPUACCT) if self._is_v1 else [root]
        self._cpu = _mounts(root, _CPU) if self._is_v1 else [root]
        self._pressure = _mounts(root, _PRESSURE_V1) if self._is_v1 else [root]
        #: The files that are open, by container and kind. One that cannot be had now may be there with the next look.
        self._files: dict[tuple[str, str], int] = {}

    def look(self, paths: Mapping[str, str], shrunk: Collection[str]) -> dict[str, DemandSample]:
        """A sample of each container of ``paths`` (cgroup path by id) that can be read; waiting only of those in
        ``shrunk``."""
        found = {}
        for key, path in paths.items():
            sample = self._read(key, path, key in shrunk)
            if sample is not None:
                found[key] = sample
        return found

    def _read(self, key: str, path: str, is_shrunk: bool) -> Optional[DemandSample]:
        time_ns = int(self._clock() * 1e9)
        if not self._is_v1:
            stat = self._text(key, "cpu.stat", self._cpu, path)
            used_us = _field(stat, b"usage_usec ")
            if used_us is None:
                return None
            throttled_ns, used_ns = (_field(stat, b"throttled_usec ") or 0) * 1000, used_us * 1000
        else:
            used = _number(self._text(key, "cpuacct.usage", self._cpuacct, path))
            if used is None:
                return None
            stat = self._text(key, "cpu.stat", self._cpu, path) if is_shrunk else b""
            throttled_ns, used_ns = _field(stat, b"throttled_time ") or 0, used
        waited_us = self._waited_us(key, path) if is_shrunk else None
        return DemandSample(time_ns, used_ns, throttled_ns, None if waited_us is None else waited_us * 1000)

    def _waited_us(self, key: str, path: str) -> Optional[int]:
        # "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", the first line of two
        line = self._text(key, "cpu.pressure", self._pressure, path).partition(b"\n")[0]
        return _number(line.rpartition(b"total=")[2]) if line.startswith(b"some ") else None

    def _text(self, key: str, name: str, mounts: Collection[Path], path: str) -> bytes:
        at = key, name
        descriptor = self._files.get(at)
        if descriptor is None:
            descriptor = _open(mounts, path.lstrip("/"), name)
            if descriptor is None:
                return b""
            self._files[at] = descriptor
        try:
            return os.pread(descriptor, _BYTES, 0)
        except OSError:  # the cgroup is gone (ENODEV), or this kernel keeps no PSI (EOPNOTSUPP)
            # There may be another cgroup at its path by the next look.
            del self._files[at]
            os.close(descriptor)
            return b""

    def keep(self, keys: Collection[str]) -> None:
        """Forget the containers that are none of these."""
        for at in [at for at in self._files if at[0] not in keys]:
            os.close(self._files.pop(at))

    def close(self) -> None:
        self.keep(())


def _mounts(root: Path, names: Collection[str]) -> list[Path]:
    return [root / name for name in names if (root / name).is_dir()]


def _open(mounts: Collection[Path], path: str, name: str) -> Optional[int]:
    for mount in mounts:
        try:
            # O_NONBLOCK: the root can be anything that the configuration names.
            return os.open(mount / path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def _field(text: bytes, name: bytes) -> Optional[int]:
    """The number behind a name at the beginning of a line."""
    start = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if not start and not text.startswith(name):
        return None
    return _number(text[start + len(name) :].partition(b"\n")[0])


def _number(text: bytes) -> Optional[int]:
    digits = text.strip()
    return int(digits) if digits.isdigit() and len(digits) <= 20 else None
