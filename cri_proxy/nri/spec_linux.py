"""The parts of an OCI runtime spec that are Linux's: resources, devices, scheduler, seccomp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.json import (
    INT32,
    INT64,
    UINT32,
    UINT64,
    as_number,
    as_object,
    as_objects,
    as_text,
    as_text_map,
    as_texts,
)

Object = Mapping[str, Any]

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
    """``linux.resources`` of a spec. Classes are not in it: runtimes resolve them before."""
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
    """``process.scheduler``; flags and policies that NRI has no number for are left out."""
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
