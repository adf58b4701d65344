"""Reads how long containers have waited for CPUs: PSI where cgroups have it, else throttling. Nothing is decided here.

PSI (``cpu.pressure``, line ``some``, ``total=`` in microseconds; Documentation/accounting/psi.rst) is what we want:
the time in which a task could have run and did not. It is a file of the v2 hierarchy, also of the one that hybrid
hosts mount at ``unified``; openEuler's kernels have it in v1's ``cpuacct`` as well (booted with ``psi=1 psi_v1=1``).
Elsewhere on v1 only throttling is told (``cpu.stat``: ``throttled_time`` in nanoseconds; v2 says
``throttled_usec``), which a container without a CPU limit never suffers: then there is less to guard by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from cri_proxy.affinity.pressure_guard import PressureReading
from cri_proxy.bounded_files import read_number, read_text
from cri_proxy.frozen import frozen

PSI, THROTTLING, NOTHING = "pressure (PSI)", "throttling", "nothing"
_PRESSURE = ("", "unified", "cpu,cpuacct", "cpuacct")
_CPU = ("", "cpu", "cpu,cpuacct")


@frozen
class PressureSample:
    """One look at many containers: what could be read, and on what."""

    readings: Mapping[str, PressureReading]
    source: str


class PressureReader:
    """Reads below one cgroup root (/sys/fs/cgroup)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def look(self, paths: Mapping[str, str], now_s: float) -> PressureSample:
        """Read all containers of ``paths`` (cgroup path by id), each in the best way it has. Blocks: files are read."""
        readings: dict[str, PressureReading] = {}
        sources = set()
        for key, path in paths.items():
            for source, read in ((PSI, self._stalled_us), (THROTTLING, self._throttled_us)):
                waited_us = read(path)
                if waited_us is not None:
                    readings[key] = PressureReading(now_s, waited_us)
                    sources.add(source)
                    break
        return PressureSample(readings, " and ".join(sorted(sources)) or NOTHING)

    def _stalled_us(self, path: str) -> Optional[int]:
        for mount in _PRESSURE:
            text = self._read(mount, path, "cpu.pressure")
            for line in text.splitlines():
                if line.startswith("some "):
                    return _number(line.rpartition("total=")[2])
        return None

    def _throttled_us(self, path: str) -> Optional[int]:
        for mount in _CPU:
            for line in self._read(mount, path, "cpu.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == "throttled_usec":
                    return _number(value)
                if name == "throttled_time":
                    nanoseconds = _number(value)
                    return None if nanoseconds is None else nanoseconds // 1000
        return None

    def _read(self, mount: str, path: str, name: str) -> str:
        try:
            return read_text(self._root / mount / path.lstrip("/") / name)
        except OSError:  # reading cpu.pressure of a kernel booted with psi=0: EOPNOTSUPP
            return ""


def _number(text: str) -> Optional[int]:
    try:
        return read_number(text)
    except ValueError:
        return None
