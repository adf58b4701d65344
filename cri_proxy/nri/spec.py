"""The OCI runtime spec that runtimes show in a verbose status, as the NRI messages for plugins.

Names are those of the OCI runtime spec (config.md, config-linux.md), as containerd 1.6, 1.7 and CRI-O print it.
It is JSON without a schema: a value of the wrong type counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

from cri_api import nri_v1alpha1_pb2 as nri

#: The ranges of protobuf's numbers.
INT32, UINT32 = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
INT64, UINT64 = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)


def parse_object(text: str) -> Mapping[str, Any]:
    """A JSON object; {} if the text is none."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    # JSON can escape text that is no UTF-8.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def as_texts(value: Any) -> list[str]:
    texts = [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
    # A seccomp profile has 400 names: one look at all is cheaper.
    return texts if "".join(texts).isascii() else [as_text(text) for text in texts]


def as_text_map(value: Any) -> dict[str, str]:
    return {as_text(key): as_text(entry) for key, entry in as_object(value).items() if isinstance(entry, str)}


def as_number(value: Any, limits: tuple[int, int] = INT64) -> Optional[int]:
    """A whole number within limits; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or not limits[0] <= value <= limits[1]:
        return None
    return value


def as_numbers(value: Any, limits: tuple[int, int] = INT64) -> list[int]:
    numbers = [as_number(entry, limits) for entry in value] if isinstance(value, list) else []
    return [number for number in numbers if number is not None]


Object = Mapping[str, Any]

#: The OCI spec's names of NRI's lists of hooks.
_HOOKS = (
    ("prestart", "prestart"),
    ("create_runtime", "createRuntime"),
    ("create_container", "createContainer"),
    ("start_container", "startContainer"),
    ("poststart", "poststart"),
    ("poststop", "poststop"),
)

_IO_CLASSES = dict(nri.IOPrioClass.items())


# ---------------------------------------------------------------------- containers and pods


def read_container(spec: Object) -> nri.Container:
    """A container, as far as its spec tells."""
    process = as_object(spec.get("process"))
    container = nri.Container(
        args=as_texts(process.get("args")),
        env=as_texts(process.get("env")),
        annotations=read_annotations(spec),
        mounts=[_mount(mount) for mount in as_objects(spec.get("mounts"))],
        rlimits=[_rlimit(limit) for limit in as_objects(process.get("rlimits"))],
        linux=_linux(as_object(spec.get("linux"))),
    )
    hooks = as_object(spec.get("hooks"))
    for name, oci_name in _HOOKS:
        found = [_hook(hook) for hook in as_objects(hooks.get(oci_name))]
        if found:
            getattr(container.hooks, name).extend(found)
    user = as_object(process.get("user"))
    if user:
        container.user.uid = as_number(user.get("uid"), UINT32) or 0
        container.user.gid = as_number(user.get("gid"), UINT32) or 0
        container.user.additional_gids.extend(as_numbers(user.get("additionalGids"), UINT32))
    score = as_number(process.get("oomScoreAdj"))
    if score is not None:
        container.linux.oom_score_adj.value = score
    priority = as_object(process.get("ioPriority"))
    if priority:
        container.linux.io_priority.CopyFrom(_io_priority(priority))
    scheduler = as_object(process.get("scheduler"))
    if scheduler:
        container.linux.scheduler.CopyFrom(read_scheduler(scheduler))
    return container


def read_annotations(spec: Object) -> dict[str, str]:
    """The annotations of a spec, the runtime's own among them."""
    return as_text_map(spec.get("annotations"))


def read_pod(spec: Object) -> nri.LinuxPodSandbox:
    """A sandbox's Linux part, as its spec tells it."""
    linux = as_object(spec.get("linux"))
    return nri.LinuxPodSandbox(
        cgroups_path=as_text(linux.get("cgroupsPath")),
        namespaces=[_namespace(namespace) for namespace in as_objects(linux.get("namespaces"))],
        resources=read_resources(as_object(linux.get("resources"))),
    )


def _linux(linux: Object) -> nri.LinuxContainer:
    read = nri.LinuxContainer(
        namespaces=[_namespace(namespace) for namespace in as_objects(linux.get("namespaces"))],
        devices=[read_device(device) for device in as_objects(linux.get("devices"))],
        resources=read_resources(as_object(linux.get("resources"))),
        cgroups_path=as_text(linux.get("cgroupsPath")),
        sysctl=as_text_map(linux.get("sysctl")),
    )
    seccomp = as_object(linux.get("seccomp"))
    if seccomp:
        read.seccomp_policy.CopyFrom(read_seccomp(seccomp))
    for name, device in as_object(linux.get("netDevices")).items():
        read.net_devices[as_text(name)].name = as_text(as_object(device).get("name"))
    rdt = as_object(linux.get("intelRdt"))
    if "closID" in rdt:
        read.rdt.clos_id.value = as_text(rdt["closID"])
    if "schemata" in rdt:
        read.rdt.schemata.value.extend(as_texts(rdt["schemata"]))
    if "enableMonitoring" in rdt:
        read.rdt.enable_monitoring.value = rdt["enableMonitoring"] is True
    return read


def _namespace(namespace: Object) -> nri.LinuxNamespace:
    return nri.LinuxNamespace(type=as_text(namespace.get("type")), path=as_text(namespace.get("path")))


def _mount(mount: Object) -> nri.Mount:
    return nri.Mount(
        destination=as_text(mount.get("destination")),
        type=as_text(mount.get("type")),
        source=as_text(mount.get("source")),
        options=as_texts(mount.get("options")),
    )


def _rlimit(limit: Object) -> nri.POSIXRlimit:
    return nri.POSIXRlimit(
        type=as_text(limit.get("type")),
        hard=as_number(limit.get("hard"), UINT64) or 0,
        soft=as_number(limit.get("soft"), UINT64) or 0,
    )


def _hook(hook: Object) -> nri.Hook:
    read = nri.Hook(
        path=as_text(hook.get("path")), args=as_texts(hook.get("args")), env=as_texts(hook.get("env"))
    )
    timeout_s = as_number(hook.get("timeout"), INT64)
    if timeout_s is not None:
        read.timeout.value = timeout_s
    return read


def _io_priority(priority: Object) -> nri.LinuxIOPriority:
    # "class" is a word of Python's own.
    name = as_text(priority.get("class"))
    known = _IO_CLASSES.get(name, nri.IOPRIO_CLASS_NONE)
    return nri.LinuxIOPriority(
        **{"class": known, "priority": as_number(priority.get("priority"), INT32) or 0}
    )


# ---------------------------------------------------------------------- Linux: resources, devices, scheduler, seccomp


#: NRI's name, the spec's, and the range of the number.
_MEMORY = (
    ("limit", "limit", INT64),
    ("reservation", "reservation", INT64),
    ("swap", "swap", INT64),
    ("kernel", "kernel", INT64),
    ("kernel_tcp", "kernelTCP", INT64),
    ("swappiness", "swappiness", UINT64),
)
_CPU = (
    ("shares", "shares", UINT64),
    ("quota", "quota", INT64),
    ("period", "period", UINT64),
    ("realtime_runtime", "realtimeRuntime", INT64),
    ("realtime_period", "realtimePeriod", UINT64),
)

_POLICIES = dict(nri.LinuxSchedulerPolicy.items())
_FLAGS = dict(nri.LinuxSchedulerFlag.items())


def read_resources(spec: Object) -> nri.LinuxResources:
    """``linux.resources`` of a spec. Without classes: runtimes resolve them before."""
    read = nri.LinuxResources(unified=as_text_map(spec.get("unified")))
    memory, cpu = as_object(spec.get("memory")), as_object(spec.get("cpu"))
    for name, oci_name, limits in _MEMORY:
        number = as_number(memory.get(oci_name), limits)
        if number is not None:
            getattr(read.memory, name).value = number
    for name, oci_name in (("disable_oom_killer", "disableOOMKiller"), ("use_hierarchy", "useHierarchy")):
        if isinstance(memory.get(oci_name), bool):
            getattr(read.memory, name).value = memory[oci_name]
    for name, oci_name, limits in _CPU:
        number = as_number(cpu.get(oci_name), limits)
        if number is not None:
            getattr(read.cpu, name).value = number
    if cpu.get("cpus"):
        read.cpu.cpus = as_text(cpu["cpus"])
    if cpu.get("mems"):
        read.cpu.mems = as_text(cpu["mems"])
    for limit in as_objects(spec.get("hugepageLimits")):
        size = as_text(limit.get("pageSize"))
        read.hugepage_limits.add(page_size=size, limit=as_number(limit.get("limit"), UINT64) or 0)
    for rule in as_objects(spec.get("devices")):
        read.devices.append(_device_rule(rule))
    pids = as_number(as_object(spec.get("pids")).get("limit"))
    if pids is not None:
        read.pids.limit = pids
    return read


def _device_rule(rule: Object) -> nri.LinuxDeviceCgroup:
    read = nri.LinuxDeviceCgroup(
        allow=rule.get("allow") is True, type=as_text(rule.get("type")), access=as_text(rule.get("access"))
    )
    for name in ("major", "minor"):
        number = as_number(rule.get(name))
        if number is not None:
            getattr(read, name).value = number
    return read


def read_device(device: Object) -> nri.LinuxDevice:
    """An entry of ``linux.devices``."""
    read = nri.LinuxDevice(
        path=as_text(device.get("path")),
        type=as_text(device.get("type")),
        major=as_number(device.get("major")) or 0,
        minor=as_number(device.get("minor")) or 0,
    )
    for name, oci_name in (("file_mode", "fileMode"), ("uid", "uid"), ("gid", "gid")):
        number = as_number(device.get(oci_name), UINT32)
        if number is not None:
            getattr(read, name).value = number
    return read


def read_scheduler(scheduler: Object) -> nri.LinuxScheduler:
    """``process.scheduler``; flags and policies without a number in NRI are left out."""
    flags = [flag for flag in as_texts(scheduler.get("flags")) if flag in _FLAGS]
    return nri.LinuxScheduler(
        policy=_POLICIES.get(as_text(scheduler.get("policy")), nri.SCHED_NONE),
        nice=as_number(scheduler.get("nice"), INT32) or 0,
        priority=as_number(scheduler.get("priority"), INT32) or 0,
        flags=[_FLAGS[flag] for flag in flags],
        runtime=as_number(scheduler.get("runtime"), UINT64) or 0,
        deadline=as_number(scheduler.get("deadline"), UINT64) or 0,
        period=as_number(scheduler.get("period"), UINT64) or 0,
    )


def read_seccomp(seccomp: Object) -> nri.LinuxSeccomp:
    """``linux.seccomp``."""
    read = nri.LinuxSeccomp(
        default_action=as_text(seccomp.get("defaultAction")),
        architectures=as_texts(seccomp.get("architectures")),
        flags=as_texts(seccomp.get("flags")),
        listener_path=as_text(seccomp.get("listenerPath")),
        listener_metadata=as_text(seccomp.get("listenerMetadata")),
        syscalls=[_syscall(syscall) for syscall in as_objects(seccomp.get("syscalls"))],
    )
    errno = as_number(seccomp.get("defaultErrnoRet"), UINT32)
    if errno is not None:
        read.default_errno.value = errno
    return read


def _syscall(syscall: Object) -> nri.LinuxSyscall:
    read = nri.LinuxSyscall(names=as_texts(syscall.get("names")), action=as_text(syscall.get("action")))
    errno = as_number(syscall.get("errnoRet"), UINT32)
    if errno is not None:
        read.errno_ret.value = errno
    for arg in as_objects(syscall.get("args")):
        read.args.add(
            index=as_number(arg.get("index"), UINT32) or 0,
            value=as_number(arg.get("value"), UINT64) or 0,
            value_two=as_number(arg.get("valueTwo"), UINT64) or 0,
            op=as_text(arg.get("op")),
        )
    return read
