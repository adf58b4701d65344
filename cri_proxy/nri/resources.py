"""Resources that a plugin asks for, laid over what there is: the same for adjustments and for updates."""

from __future__ import annotations

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.owners import Claims

#: The fields that are set when they are present, also to 0, with the word that owns each.
MEMORY = (
    ("limit", nri.MemLimit),
    ("reservation", nri.MemReservation),
    ("swap", nri.MemSwapLimit),
    ("kernel", nri.MemKernelLimit),
    ("kernel_tcp", nri.MemTCPLimit),
    ("swappiness", nri.MemSwappiness),
    ("disable_oom_killer", nri.MemDisableOomKiller),
    ("use_hierarchy", nri.MemUseHierarchy),
)
CPU = (
    ("shares", nri.CPUShares),
    ("quota", nri.CPUQuota),
    ("period", nri.CPUPeriod),
    ("realtime_runtime", nri.CPURealtimeRuntime),
    ("realtime_period", nri.CPURealtimePeriod),
)
#: Those that are set when they are not empty: they cannot be emptied.
CPUSETS = (("cpus", nri.CPUSetCPUs), ("mems", nri.CPUSetMems))
WHOLE = (("blockio_class", nri.BlockioClass), ("rdt_class", nri.RdtClass), ("pids", nri.PidsLimit))


def overlay(asked: nri.LinuxResources, claims: Claims, *targets: nri.LinuxResources) -> None:
    """Lay what a plugin asks for over each target, claiming every field of it.

    :raises Conflict: a field is another plugin's; the targets are half done then.
    """
    for name, field in MEMORY:
        if asked.memory.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target.memory, name).CopyFrom(getattr(asked.memory, name))
    for name, field in CPU:
        if asked.cpu.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target.cpu, name).CopyFrom(getattr(asked.cpu, name))
    for name, field in CPUSETS:
        if getattr(asked.cpu, name):
            claims.claim(field)
            for target in targets:
                setattr(target.cpu, name, getattr(asked.cpu, name))
    for name, field in WHOLE:
        if asked.HasField(name):
            claims.claim(field)
            for target in targets:
                getattr(target, name).CopyFrom(getattr(asked, name))
    _overlay_lists(asked, claims, *targets)


def _overlay_lists(asked: nri.LinuxResources, claims: Claims, *targets: nri.LinuxResources) -> None:
    for limit in asked.hugepage_limits:
        claims.claim(nri.HugepageLimits, limit.page_size)
        for target in targets:
            others = [other for other in target.hugepage_limits if other.page_size != limit.page_size]
            del target.hugepage_limits[:]
            target.hugepage_limits.extend([*others, limit])
    for key, value in sorted(asked.unified.items()):
        claims.claim(nri.CgroupsUnified, key)
        for target in targets:
            target.unified[key] = value
    # Rules for the devices of a cgroup are nobody's: they add up.
    for target in targets if asked.devices else ():
        target.devices.extend(asked.devices)
