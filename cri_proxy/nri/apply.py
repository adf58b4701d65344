"""A merged adjustment applied to a CreateContainerRequest, as far as CRI can say it.

The request is never rebuilt: removed and replaced entries are cut out of its bytes, new ones appended, entries that are
as asked for already stay. The result depends on request and adjustment only: another container of the same request gets
the same bytes.

NRI resources become the CRI message that sets them (``translate``) here, for creates as for updates.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import ISOLATED, NodeCapabilities, Unsupported, is_rejected
from cri_proxy.cri.messages import UnreadableRequest, parse
from cri_proxy.nri.draft import (
    Draft,
    MergedAdjustment,
    write_annotations,
    write_cdi_devices,
    write_devices,
    write_mounts,
)
from cri_proxy.nri.merge import HOOKS, REMOVAL
from cri_proxy.text.protobuf_bytes import NotProtobuf

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
class Applied:
    """What to do for an adjustment.

    ``request`` is the whole request, changed; the same bytes if nothing changes. Where the container was created with the
    original request, ``resources`` is all that an update must set, unless ``recreate``: then plugins ask for something
    that only a create can carry. ``rejected`` not empty: the create must fail.
    """

    request: bytes
    recreate: bool
    resources: cri.LinuxContainerResources
    rejected: tuple[Unsupported, ...]
    warned: tuple[Unsupported, ...]
    #: To be written before the request is sent.
    seccomp: Optional[SeccompFile]
    #: What isolation does: the container's record has to have it before it starts (``ContainerRecord.asked``).
    heard: Mapping[str, str] = dataclasses.field(default_factory=dict)


def apply(request: bytes, asked: MergedAdjustment, site: NodeCapabilities) -> Applied:
    """Apply the merged adjustment to the request that the container was, or is to be, created with.

    :raises UnreadableRequest: the bytes are not a CreateContainerRequest.
    """
    draft = Draft(parse(cri.CreateContainerRequest, request).config, asked, site)
    # 1. What only a create can carry.
    write_annotations(draft)
    write_env(draft)
    write_args(draft)
    write_mounts(draft)
    write_devices(draft)
    write_cdi_devices(draft)
    write_oom_score(draft)
    seccomp = write_seccomp(draft)
    # 2. Resources, which an update can set as well, unless one is to be unset.
    resources = _resources(draft)
    recreate = draft.is_changed
    if resources.ByteSize():
        draft.added.linux.resources.MergeFrom(resources)
    for entry in resources.hugepage_limits:
        draft.cut_entries("linux.resources.hugepage_limits", _has_page_size(entry.page_size))
    # 3. What CRI lacks.
    report_unsupported(draft)
    try:
        changed = draft.write(request)
    except NotProtobuf as error:
        raise UnreadableRequest(f"{len(request)} bytes are not a CreateContainerRequest: {error}") from None
    found = tuple(draft.found)
    return Applied(
        request=changed,
        recreate=recreate,
        resources=resources,
        rejected=tuple(each for each in found if is_rejected(each, site)),
        warned=tuple(each for each in found if not is_rejected(each, site)),
        seccomp=seccomp,
        heard=draft.heard,
    )


def _resources(draft: Draft) -> cri.LinuxContainerResources:
    """The resources asked for that the request does not set already."""
    asked, had = draft.asked.adjust.linux.resources, draft.config.linux.resources
    expressed = translate(asked, draft.site, draft.report, draft.asked.container.linux.resources)
    linux = expressed.linux
    for name in expressed.emptied:
        if getattr(had, name):
            draft.cut_entries(f"linux.resources.{name}", _any)
    for field, value in linux.ListFields():
        if isinstance(value, (int, str)) and getattr(had, field.name) == value:
            linux.ClearField(field.name)
    # An update with a limit alone sets the swap limit to it as well (containerd, opts.WithResources).
    if linux.memory_limit_in_bytes and had.memory_swap_limit_in_bytes and not asked.memory.HasField("swap"):
        linux.memory_swap_limit_in_bytes = max(had.memory_swap_limit_in_bytes, linux.memory_limit_in_bytes)
    limits = [limit for limit in linux.hugepage_limits if limit not in had.hugepage_limits]
    del linux.hugepage_limits[:]
    linux.hugepage_limits.extend(limits)
    for key, value in dict(linux.unified).items():
        if key in had.unified and had.unified[key] == value:
            del linux.unified[key]
    return linux


def _any(_content: bytes) -> bool:
    return True


def _has_page_size(page_size: str) -> Any:
    return lambda content: cri.HugepageLimit.FromString(content).page_size == page_size


# ---------------------------------------------------------------------- the process: environment, arguments, seccomp


def write_env(draft: Draft) -> None:
    """Variables set and removed.

    A variable of the image cannot be removed, only set to nothing. Removing one of the request uncovers the image's
    value, which is not known here.
    """
    asked = draft.asked.adjust.env
    sets = {entry.key: entry.value for entry in asked if not entry.key.startswith(REMOVAL)}
    removed = [entry.key[len(REMOVAL) :] for entry in asked if entry.key.startswith(REMOVAL)]
    shown = {text.partition("=")[0] for text in draft.asked.container.env}
    for key in removed:
        if key in sets:
            continue
        found = [env for env in draft.config.envs if env.key == key]
        draft.cut_equal("envs", found)
        if not found and key in shown:
            draft.report("env_removal", nri.Env, key, "the image brings it; it is set to nothing instead")
            draft.added.envs.add(key=key, value=b"")
    for key, value in sets.items():
        draft.replace(
            "envs",
            cri.KeyValue(key=key, value=value.encode()),
            [env for env in draft.config.envs if env.key == key],
        )


def write_args(draft: Draft) -> None:
    """The whole command line: ``command`` takes the place of the image's entrypoint and of its arguments."""
    args = list(draft.asked.adjust.args)
    if args and (args != [*draft.config.command, *draft.config.args] or not draft.config.command):
        for field in ("command", "args"):
            if getattr(draft.config, field):
                draft.cut_entries(field, lambda _content: True)
        draft.added.command.extend(args)


def write_oom_score(draft: Draft) -> None:
    linux = draft.asked.adjust.linux
    if not linux.HasField("oom_score_adj"):
        return
    score = linux.oom_score_adj.value
    if score != draft.config.linux.resources.oom_score_adj:
        if score:
            draft.added.linux.resources.oom_score_adj = score
        else:
            draft.cut_entries("linux.resources.oom_score_adj", lambda _content: True)


def write_seccomp(draft: Draft) -> Optional[SeccompFile]:
    """The container's own profile, and the file that it must be in."""
    linux, context = draft.asked.adjust.linux, draft.config.linux.security_context
    if (
        not linux.HasField("seccomp_policy")
        or linux.seccomp_policy == draft.asked.container.linux.seccomp_policy
    ):
        return None
    if context.privileged:
        why = "the container is privileged, and runtimes give such ones no seccomp profile"
        draft.report("seccomp_policy", nri.SeccompPolicy, "", why)
        return None
    file = seccomp_file(linux.seccomp_policy, draft.site.seccomp_folder)
    profile = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=file.path)
    if context.seccomp != profile:
        draft.added.linux.security_context.seccomp.CopyFrom(profile)
    return file


# ---------------------------------------------------------------------- what CRI has no word for at all


#: Whole messages below ``linux``: where, the owner's word, and why not.
_SINGLE = (("memory_policy", nri.MemoryPolicy, "CRI has no memory policy"),)
#: Those that isolation does, where it is on.
_SCHEDULING = (
    ("io_priority", nri.IoPriority, "CRI has no IO priority"),
    ("scheduler", nri.LinuxSched, "CRI has no scheduler"),
)
_RDT = (
    ("clos_id", nri.RdtClosID),
    ("schemata", nri.RdtSchemata),
    ("enable_monitoring", nri.RdtEnableMonitoring),
)


def report_unsupported(draft: Draft) -> None:
    """Report each such setting that the container lacks."""
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
    _hear_scheduling(draft)
    _report_rdt(draft)


def _hear_scheduling(draft: Draft) -> None:
    """Both settings of scheduling are heard together, or what cannot be had of them is reported."""
    adjust, had = draft.asked.adjust.linux, draft.asked.container.linux
    asked = [
        (name, field, why)
        for name, field, why in _SCHEDULING
        if adjust.HasField(name) and not _has_already(had, name, adjust)
    ]
    heard: dict[str, Any] = {name: getattr(adjust, name) for name, _, _ in asked if draft.site.hears(name)}
    words = fault = ""
    if heard:
        from cri_proxy.nri.scheduling import words_of  # isolation is off by default, and then not imported

        words, fault = words_of(heard.get("scheduler"), heard.get("io_priority"))
    for name, field, why in asked:
        if name not in heard:
            draft.report(name, field, "", f"{why}; {ISOLATED[name]}")
        elif fault:
            draft.report(name, field, "", fault)
    if words:
        draft.heard["scheduling"] = words


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


@dataclass(frozen=True)
class SeccompFile:
    """A profile in the form of the OCI runtime spec, as CRI takes it by path. The same policy has the same name."""

    path: str
    content: str


def seccomp_file(policy: nri.LinuxSeccomp, folder: str) -> SeccompFile:
    """The file of a policy, in a folder of ours."""
    content = json.dumps(_profile(policy), indent=1, sort_keys=True) + "\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return SeccompFile(f"{folder.rstrip('/')}/nri-{digest[:32]}.json", content)


def _profile(policy: nri.LinuxSeccomp) -> dict[str, Any]:
    """With the names of the OCI runtime spec (config-linux.md, seccomp); what is empty is left out."""
    profile: dict[str, Any] = {
        "defaultAction": policy.default_action,
        "architectures": list(policy.architectures),
        "flags": list(policy.flags),
        "listenerPath": policy.listener_path,
        "listenerMetadata": policy.listener_metadata,
        "syscalls": [_syscall(syscall) for syscall in policy.syscalls],
    }
    if policy.HasField("default_errno"):
        profile["defaultErrnoRet"] = policy.default_errno.value
    return {key: value for key, value in profile.items() if value not in ("", [])}


def _syscall(syscall: nri.LinuxSyscall) -> dict[str, Any]:
    written: dict[str, Any] = {"names": list(syscall.names), "action": syscall.action}
    if syscall.HasField("errno_ret"):
        written["errnoRet"] = syscall.errno_ret.value
    if syscall.args:
        written["args"] = [
            {"index": arg.index, "value": arg.value, "valueTwo": arg.value_two, "op": arg.op}
            for arg in syscall.args
        ]
    return written


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
        if of.HasField(name) and not _has_setting(current, part, name, of):
            report(setting, field, "", f"CRI has no {part} {name}")
    _express_hugepages(asked, linux, site, report)
    _express_unified(asked, linux, site, report)
    return CriTranslation(linux, frozenset(emptied))


def resources_of(
    update: nri.ContainerUpdate,
    site: NodeCapabilities,
    report: Report,
    current: Optional[nri.LinuxResources] = None,
    heard: Optional[dict[str, str]] = None,
) -> cri.LinuxContainerResources:
    """What an UpdateContainerResources must set for an update; numbers of 0 change nothing.

    Lay it over the container's resources, or append it to the caller's own request. ``current``: as for ``translate``.
    ``heard``: gets what isolation does of it (``ContainerRecord.asked``).
    """
    asked, had = update.linux.resources, nri.LinuxResources() if current is None else current
    for name, field in (("blockio_class", nri.BlockioClass), ("rdt_class", nri.RdtClass)):
        if not asked.HasField(name) or getattr(asked, name) == getattr(had, name):
            continue
        if heard is not None and site.hears(name, getattr(asked, name).value):
            heard[name] = getattr(asked, name).value
        else:
            why = f"CRI can set a class only when a container is created; {ISOLATED[name]}"
            report(name, field, "", why)
    if any(rule not in had.devices for rule in asked.devices):
        report("device_rules", nri.Devices, "", "CRI cannot change the rules for devices")
    return translate(asked, site, report, current).linux


def _has_setting(current: Optional[nri.LinuxResources], part: str, name: str, asked: Any) -> bool:
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
