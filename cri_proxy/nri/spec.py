"""The OCI runtime spec that runtimes show in a verbose status, as the NRI messages for plugins.

Names are those of the OCI runtime spec (config.md, config-linux.md), as containerd 1.6, 1.7 and CRI-O print it.
"""

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
    as_numbers,
    as_object,
    as_objects,
    as_text,
    as_text_map,
    as_texts,
)
from cri_proxy.nri.spec_linux import read_device, read_resources, read_scheduler, read_seccomp

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


def read_container(spec: Object) -> nri.Container:
    """All of a container that its spec tells."""
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
    """The Linux part of a sandbox that its spec tells."""
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
