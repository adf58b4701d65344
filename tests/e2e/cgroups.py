"""The machine's cgroups, v1, v2 or both, as the tests make and remove them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional


def cgroup_mounts() -> list[tuple[Path, list[str]]]:
    """Where the cgroup hierarchies are, with the controllers of each; v2 names none here."""
    mounts: list[tuple[Path, list[str]]] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            mounts.append((Path(place.split()[4]), []))
        elif kind.startswith("cgroup "):
            mounts.append((Path(place.split()[4]), kind.split()[2].split(",")))
    return mounts


def limit_cpus(path: str, cpus: str) -> None:
    """Make a cgroup that may use these CPUs, and memory of NUMA node 0, only."""
    # v1 if it has cpusets, as runc does; in v2 a controller must be passed down first.
    root, names = max(cgroup_mounts(), key=lambda mount: ("cpuset" in mount[1], mount[1] == []))
    cgroup = root / path.strip("/")
    cgroup.mkdir(parents=True, exist_ok=True)
    if not names:
        for folder in (root, *reversed([up for up in cgroup.parents if root in up.parents])):
            (folder / "cgroup.subtree_control").write_text("+cpuset")
    (cgroup / "cpuset.cpus").write_text(cpus)
    (cgroup / "cpuset.mems").write_text("0")


def remove_cgroup(cgroup: Path, deadline_s: float) -> None:
    """Remove a cgroup and what is below it; OSError if processes hold it longer than that."""
    for path, _, _ in os.walk(cgroup, topdown=False):
        while os.path.exists(path):
            try:
                os.rmdir(path)
            except OSError:  # killed processes hold it until they are gone
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)


def limit_cpu_time(path: str, quota_us: int, period_us: int) -> Path:
    """Make a cgroup with a CPU quota, as kubelet does for a pod; returns its folder."""
    root, names = max(cgroup_mounts(), key=lambda mount: ("cpu" in mount[1], mount[1] == []))
    cgroup = root / path.strip("/")
    cgroup.mkdir(parents=True, exist_ok=True)
    if names:
        (cgroup / "cpu.cfs_period_us").write_text(str(period_us))
        (cgroup / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        for folder in (root, *reversed([up for up in cgroup.parents if root in up.parents])):
            (folder / "cgroup.subtree_control").write_text("+cpu")
        (cgroup / "cpu.max").write_text(f"{quota_us} {period_us}")
    return cgroup


def cpu_quota(cgroup: Path) -> int:
    """Microseconds a period; -1: no limit."""
    v1 = cgroup / "cpu.cfs_quota_us"
    text = (v1 if v1.exists() else cgroup / "cpu.max").read_text().split()[0]
    return -1 if text == "max" else int(text)


def throttled(cgroup: Path) -> int:
    """How often a cgroup was made to wait for its quota."""
    fields = dict(line.split() for line in (cgroup / "cpu.stat").read_text().splitlines())
    return int(fields["nr_throttled"])


def make_memory_cgroup(name: str) -> Optional[Path]:
    """A cgroup that counts memory and swaps none of it; None: this machine has none for us."""
    for root, names in cgroup_mounts():
        controllers = names or (root / "cgroup.controllers").read_text().split()
        if "memory" not in controllers:
            continue
        cgroup = root / name
        try:
            if not names:
                (root / "cgroup.subtree_control").write_text("+memory")
            cgroup.mkdir()
            if (cgroup / "memory.swappiness").exists():
                (cgroup / "memory.swappiness").write_text("0")
            elif (cgroup / "memory.swap.max").exists():
                (cgroup / "memory.swap.max").write_text("0")
        except OSError:
            return None
        return cgroup
    return None


def leave_memory(cgroup: Path, spare_bytes: int) -> None:
    """Limit a cgroup to what it uses now and so much more."""
    v1 = cgroup / "memory.limit_in_bytes"
    used = cgroup / ("memory.usage_in_bytes" if v1.exists() else "memory.current")
    (v1 if v1.exists() else cgroup / "memory.max").write_text(str(int(used.read_text()) + spare_bytes))


def killed_for_memory(cgroup: Path) -> int:
    """How many processes of a cgroup were killed because it had no memory left."""
    v1 = cgroup / "memory.oom_control"
    lines = (v1 if v1.exists() else cgroup / "memory.events").read_text().splitlines()
    return int(dict(line.split() for line in lines)["oom_kill"])
