"""What plugins may ask for that CRI has no word for at all."""

from __future__ import annotations

from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.draft import Draft
from cri_proxy.nri.merge import HOOKS, REMOVAL

#: Whole messages below ``linux``: where, the owner's word, and why not.
_SINGLE = (
    ("io_priority", nri.IoPriority, "CRI has no IO priority"),
    ("scheduler", nri.LinuxSched, "CRI has no scheduler"),
    ("memory_policy", nri.MemoryPolicy, "CRI has no memory policy"),
)
_RDT = (
    ("clos_id", nri.RdtClosID),
    ("schemata", nri.RdtSchemata),
    ("enable_monitoring", nri.RdtEnableMonitoring),
)


def report_unsaid(draft: Draft) -> None:
    """Report all of it that the container does not have as asked for."""
    adjust, container = draft.asked.adjust, draft.asked.container
    if any(len(getattr(adjust.hooks, name)) for name in HOOKS):
        draft.report("hooks", nri.OciHooks, "", "CRI has no OCI hooks")
    for limit in adjust.rlimits:
        if limit not in container.rlimits:
            draft.report("rlimits", nri.Rlimits, limit.type, "CRI has no resource limits of processes")
    _report_namespaces(draft)
    _report_map(draft, "sysctl", nri.Sysctl, "CRI has sysctls of pods only")
    _report_map(draft, "net_devices", nri.LinuxNetDevices, "CRI has no network devices")
    if adjust.linux.cgroups_path and adjust.linux.cgroups_path != container.linux.cgroups_path:
        draft.report("cgroups_path", nri.CgroupsPath, "", "CRI has the cgroup of a pod only")
    for name, field, why in _SINGLE:
        if adjust.linux.HasField(name) and not _has_already(container.linux, name, adjust.linux):
            draft.report(name, field, "", why)
    _report_rdt(draft)


def _report_namespaces(draft: Draft) -> None:
    had = draft.asked.container.linux.namespaces
    kinds = {namespace.type for namespace in had}
    sets = {n.type for n in draft.asked.adjust.linux.namespaces if not n.type.startswith(REMOVAL)}
    for namespace in draft.asked.adjust.linux.namespaces:
        is_removal = namespace.type.startswith(REMOVAL)
        kind = namespace.type[len(REMOVAL) :] if is_removal else namespace.type
        is_so = (kind not in kinds or kind in sets) if is_removal else namespace in had
        if not is_so:
            draft.report("namespaces", nri.Namespace, kind, "CRI has no namespaces of containers to choose")


def _report_map(draft: Draft, name: str, field: nri.Field.ValueType, why: str) -> None:
    asked, had = getattr(draft.asked.adjust.linux, name), getattr(draft.asked.container.linux, name)
    for marked in sorted(asked):
        is_removal = marked.startswith(REMOVAL)
        key = marked[len(REMOVAL) :] if is_removal else marked
        is_so = (key not in had or key in asked) if is_removal else (key in had and had[key] == asked[key])
        if not is_so:
            draft.report(name, field, key, why)


def _report_rdt(draft: Draft) -> None:
    asked, had = draft.asked.adjust.linux.rdt, draft.asked.container.linux.rdt
    why = "CRI has RDT classes only"
    if asked.remove and had.ByteSize():
        draft.report("rdt", nri.RdtClosID, "", why)
    for name, field in _RDT:
        if asked.HasField(name) and not _has_already(had, name, asked):
            draft.report("rdt", field, "", why)


def _has_already(had: Any, name: str, asked: Any) -> bool:
    # Containers do not show a memory policy.
    is_shown = name in had.DESCRIPTOR.fields_by_name
    return bool(is_shown and had.HasField(name) and getattr(had, name) == getattr(asked, name))
