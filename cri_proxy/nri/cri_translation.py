"""NRI resources as the CRI message that sets them: for creates as for updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import NodeCapabilities

#: Reports a value that CRI cannot express: the setting's name, the field and key that own it, and why.
Report = Callable[[str, nri.Field.ValueType, str, str], None]

_MOST = (1 << 63) - 1
#: Fields of both: their place in NRI, and CRI's name.
_NUMBERS = (
    ("cpu", "shares", "cpu_shares"),
    ("cpu", "quota", "cpu_quota"),
    ("cpu", "period", "cpu_period"),
    ("memory", "limit", "memory_limit_in_bytes"),
    ("memory", "swap", "memory_swap_limit_in_bytes"),
)
#: Fields of NRI alone: their place, the reaction's setting, and the field that owns them.
_UNKNOWN_TO_CRI: tuple[tuple[str, str, str, nri.Field.ValueType], ...] = (
    ("cpu", "realtime_runtime", "cpu_realtime", nri.CPURealtimeRuntime),
    ("cpu", "realtime_period", "cpu_realtime", nri.CPURealtimePeriod),
    ("memory", "kernel", "memory_kernel", nri.MemKernelLimit),
    ("memory", "kernel_tcp", "memory_kernel", nri.MemTCPLimit),
    ("memory", "swappiness", "memory_swappiness", nri.MemSwappiness),
    ("memory", "disable_oom_killer", "memory_oom_killer", nri.MemDisableOomKiller),
    ("memory", "use_hierarchy", "memory_hierarchy", nri.MemUseHierarchy),
)
_ON_V1 = "this host has cgroup v1, on which CRI has no word for it"


@dataclass(frozen=True)
class CriTranslation:
    """``linux`` sets every value asked for; ``emptied``: CRI's names of numbers asked to be 0, which means unset."""

    linux: cri.LinuxContainerResources
    emptied: frozenset[str]


def translate(
    asked: nri.LinuxResources,
    site: NodeCapabilities,
    report: Report,
    current: Optional[nri.LinuxResources] = None,
) -> CriTranslation:
    """Resources in CRI's words. Classes and rules for devices are not among them: see ``apply.py``.

    ``current``: resources in the container's spec; a value it has already is not reported.
    """
    linux = cri.LinuxContainerResources(cpuset_cpus=asked.cpu.cpus, cpuset_mems=asked.cpu.mems)
    emptied = set()
    for part, name, cri_name in _NUMBERS:
        of = getattr(asked, part)
        if of.HasField(name):
            value = min(getattr(of, name).value, _MOST)
            setattr(linux, cri_name, value)
            if not value:
                emptied.add(cri_name)
    for part, name, setting, field in _UNKNOWN_TO_CRI:
        of = getattr(asked, part)
        if of.HasField(name) and not _has_already(current, part, name, of):
            report(setting, field, "", f"CRI has no {part} {name}")
    _express_hugepages(asked, linux, site, report)
    _express_unified(asked, linux, site, report)
    return CriTranslation(linux, frozenset(emptied))


def resources_of(
    update: nri.ContainerUpdate, site: NodeCapabilities, report: Report
) -> cri.LinuxContainerResources:
    """What an UpdateContainerResources must set for an update; numbers of 0 change nothing.

    Lay it over the container's resources, or append it to the caller's own request.
    """
    resources = update.linux.resources
    for name, field in (("blockio_class", nri.BlockioClass), ("rdt_class", nri.RdtClass)):
        if resources.HasField(name):
            report(name, field, "", "CRI can set a class only when a container is created")
    if resources.devices:
        report("device_rules", nri.Devices, "", "CRI cannot change the rules for devices")
    return translate(resources, site, report).linux


def _has_already(current: Optional[nri.LinuxResources], part: str, name: str, asked: Any) -> bool:
    if current is None:
        return False
    of = getattr(current, part)
    return bool(of.HasField(name) and getattr(of, name) == getattr(asked, name))


def _express_hugepages(
    asked: nri.LinuxResources, linux: cri.LinuxContainerResources, site: NodeCapabilities, report: Report
) -> None:
    for limit in asked.hugepage_limits:
        if site.hugetlb:
            linux.hugepage_limits.add(page_size=limit.page_size, limit=limit.limit)
        else:
            report(
                "hugepage_limits", nri.HugepageLimits, limit.page_size, "this host has no hugetlb controller"
            )


def _express_unified(
    asked: nri.LinuxResources, linux: cri.LinuxContainerResources, site: NodeCapabilities, report: Report
) -> None:
    """Values that cgroup v2 names by their file; an entry of ``unified`` wins."""
    if not site.cgroup_v2:
        for key in sorted(asked.unified):
            report(
                "unified", nri.CgroupsUnified, key, "this host has cgroup v1, which has no unified resources"
            )
        if asked.memory.HasField("reservation"):
            report("memory_reservation", nri.MemReservation, "", _ON_V1)
        if asked.HasField("pids"):
            report("pids_limit", nri.PidsLimit, "", _ON_V1)
        return
    if asked.memory.HasField("reservation"):
        linux.unified["memory.low"] = str(max(0, asked.memory.reservation.value))
    if asked.HasField("pids"):
        linux.unified["pids.max"] = str(asked.pids.limit) if asked.pids.limit > 0 else "max"
    for key, value in asked.unified.items():
        linux.unified[key] = value
