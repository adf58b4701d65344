"""Pods and containers as CRI shows them, for NRI plugins.

All of a container is in the OCI spec of a verbose status (containerd, CRI-O). Without one (iSulad) the request's config
is used: it lacks what the image and the runtime add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from google.protobuf.json_format import ParseDict, ParseError

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri import spec as nri_spec
from cri_proxy.nri.spec import UINT32, as_number, as_object, as_text, parse_object

_STATES = {
    cri.CONTAINER_CREATED: nri.CONTAINER_CREATED,
    cri.CONTAINER_RUNNING: nri.CONTAINER_RUNNING,
    cri.CONTAINER_EXITED: nri.CONTAINER_STOPPED,
    cri.CONTAINER_UNKNOWN: nri.CONTAINER_UNKNOWN,
}
_PROPAGATION = {
    cri.PROPAGATION_PRIVATE: "rprivate",
    cri.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    cri.PROPAGATION_BIDIRECTIONAL: "rshared",
}
#: containerd writes a kind into the spec, and labels its own metadata with it: CRI shows neither.
_CONTAINERD_KIND, _KIND_LABEL = "io.kubernetes.cri.container-type", "io.cri-containerd.kind"
#: CRI-O's note of a sandbox's cgroup parent in its spec.
_CRIO_CGROUP_PARENT = "io.kubernetes.cri-o.CgroupParent"


@dataclass(frozen=True)
class Info:
    """The additions in a verbose status: the pid, the OCI spec ({} = not told), the request's config."""

    pid: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    runtime_handler: str = ""


def read_info(info: Mapping[str, str]) -> Info:
    """The ``info`` of a ContainerStatus or PodSandboxStatus response; unreadable parts are left out."""
    shown = parse_object(info.get("info", ""))
    return Info(
        pid=as_number(shown.get("pid"), UINT32) or 0,
        spec=as_object(shown.get("runtimeSpec")),
        config=as_object(shown.get("config")),
        runtime_handler=as_text(shown.get("runtimeHandler")),
    )


# ---------------------------------------------------------------------- pods


def view_pod(
    sandbox_id: str,
    config: Optional[cri.PodSandboxConfig] = None,
    status: Optional[cri.PodSandboxStatusResponse] = None,
    runtime_handler: str = "",
) -> nri.PodSandbox:
    """A sandbox. ``config``: its request's, else the one the runtime notes; ``status``: verbose."""
    response = cri.PodSandboxStatusResponse() if status is None else status
    info = read_info(response.info)
    if config is None:
        config = _read_config({"linux": info.config.get("linux")}, cri.PodSandboxConfig)
    shown = response.status
    meta = config.metadata if config.HasField("metadata") else shown.metadata
    noted = _annotations(info)
    crio_parent = noted.get(_CRIO_CGROUP_PARENT)
    if crio_parent is not None:
        noted = {}  # they are CRI-O's own notes and what CRI shows, too: its NRI shows none of the former
    pod = nri.PodSandbox(
        id=sandbox_id,
        name=meta.name,
        uid=meta.uid,
        namespace=meta.namespace,
        labels={**_own_labels(noted), **shown.labels, **config.labels},
        annotations={**noted, **shown.annotations, **config.annotations},
        runtime_handler=runtime_handler or shown.runtime_handler or info.runtime_handler,
        pid=info.pid,
        ips=[ip for ip in (shown.network.ip, *(more.ip for more in shown.network.additional_ips)) if ip],
    )
    pod.linux.CopyFrom(nri_spec.read_pod(info.spec))
    pod.linux.cgroup_parent = config.linux.cgroup_parent or crio_parent or ""
    if config.linux.HasField("overhead"):
        pod.linux.pod_overhead.CopyFrom(view_resources(config.linux.overhead))
    if config.linux.HasField("resources"):
        pod.linux.pod_resources.CopyFrom(view_resources(config.linux.resources))
    return pod


def _annotations(info: Info) -> dict[str, str]:
    return nri_spec.read_annotations(info.spec)


def _own_labels(annotations: Mapping[str, str]) -> dict[str, str]:
    """The label that containerd adds by such annotations."""
    kind = annotations.get(_CONTAINERD_KIND, "")
    return {_KIND_LABEL: kind} if kind else {}


def _read_config(shown: dict[str, Any], kind: Any) -> Any:
    """The parts of a config that a status lacks; containerd prints it as CRI's JSON."""
    try:
        return ParseDict(shown, kind(), ignore_unknown_fields=True)
    except (ParseError, RecursionError):
        return kind()


def _untold(config: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a container's config that neither status nor spec have."""
    context = as_object(as_object(config.get("linux")).get("security_context"))
    profile = {"security_context": {"seccomp": context.get("seccomp")}}
    image = {"image": as_text(as_object(config.get("image")).get("image"))}
    return {"CDI_devices": config.get("CDI_devices"), "image": image, "linux": profile}


# ---------------------------------------------------------------------- containers


def view_container(
    sandbox_id: str,
    status: cri.ContainerStatusResponse,
    config: Optional[cri.ContainerConfig] = None,
    cgroup_parent: str = "",
) -> nri.Container:
    """A container. ``status``: verbose; ``config``: its request's, if known.

    Without config and spec only the listed fields are there. ``cgroup_parent``: the pod's, for runtimes that do not tell
    the container's own path.
    """
    info = read_info(status.info)
    if config is None:
        config = _read_config(_untold(info.config), cri.ContainerConfig)
        config.mounts.extend(status.status.mounts)
        config.linux.resources.CopyFrom(status.status.resources.linux)
    shown = status.status
    container = nri_spec.read_container(info.spec) if info.spec else _made_up(config)
    container.id = shown.id
    container.pod_sandbox_id = sandbox_id
    container.name = (config.metadata if config.HasField("metadata") else shown.metadata).name
    container.pid = info.pid
    container.labels.update(_own_labels(container.annotations))
    for of in (shown, config):
        container.labels.update(of.labels)
        container.annotations.update(of.annotations)
    container.CDI_devices.extend(nri.CDIDevice(name=device.name) for device in config.CDI_devices)
    context = config.linux.security_context
    if context.HasField("seccomp"):
        profile = container.linux.seccomp_profile
        # CRI and NRI number the kinds of profiles alike.
        profile.profile_type = context.seccomp.profile_type
        profile.localhost_ref = context.seccomp.localhost_ref
    if not container.linux.cgroups_path:
        container.linux.cgroups_path = _cgroups_path(cgroup_parent, shown.id)
    _view_life(container, shown)
    _view_image(container, shown, config.image.image)
    return container


def view_unmade(container: nri.Container) -> nri.Container:
    """A container as shown to plugins that are asked about its create: without state, creation time and process.

    CRI-O's has a process before its start.
    """
    unmade = nri.Container()
    unmade.CopyFrom(container)
    for field_name in ("state", "created_at", "pid"):
        unmade.ClearField(field_name)
    return unmade


def view_again(container: nri.Container, status: cri.ContainerStatusResponse) -> None:
    """Update the parts of a container that change by themselves: state, process, times and end.

    A status that is not verbose tells no process; an ended container has none.
    """
    _view_life(container, status.status)
    if container.state == nri.CONTAINER_STOPPED:
        container.pid = 0
    elif status.info:
        container.pid = read_info(status.info).pid


def _view_life(container: nri.Container, shown: cri.ContainerStatus) -> None:
    container.state = _STATES.get(shown.state, nri.CONTAINER_UNKNOWN)
    container.created_at = shown.created_at
    container.started_at = shown.started_at
    container.finished_at = shown.finished_at
    container.exit_code = shown.exit_code
    container.status_reason = shown.reason
    container.status_message = shown.message


def _view_image(container: nri.Container, shown: cri.ContainerStatus, asked: str) -> None:
    """The manifest's digest and the image's id, where the runtime tells them apart.

    ``asked``: the client's name for the image; kubelet's is the id.
    """
    name, _, digest = shown.image_ref.rpartition("@")
    container.image.name = shown.image.user_specified_image or shown.image.image
    container.image.digest = digest if name else ""
    asked_id = asked if asked.startswith("sha256:") else ""
    container.image.config_digest = shown.image_id or (asked_id if name else digest)


def _cgroups_path(cgroup_parent: str, container_id: str) -> str:
    # With systemd the path has the runtime's name in it, unknown here.
    if not cgroup_parent or cgroup_parent.endswith(".slice"):
        return ""
    return f"{cgroup_parent.rstrip('/')}/{container_id}"


def _made_up(config: cri.ContainerConfig) -> nri.Container:
    """A container by its config: its own arguments, variables, mounts and devices."""
    context = config.linux.security_context
    container = nri.Container(
        args=[*config.command, *config.args],
        env=[f"{env.key}={env.value.decode('utf-8', 'replace')}" for env in config.envs],
        mounts=[_mount(mount) for mount in config.mounts],
        linux=nri.LinuxContainer(
            # Only the host's folder tells the device's kind.
            devices=[nri.LinuxDevice(path=device.container_path) for device in config.devices],
            resources=view_resources(config.linux.resources),
        ),
    )
    container.linux.oom_score_adj.value = config.linux.resources.oom_score_adj
    container.user.uid = max(0, context.run_as_user.value) & UINT32[1]
    container.user.gid = max(0, context.run_as_group.value) & UINT32[1]
    container.user.additional_gids.extend(max(0, gid) & UINT32[1] for gid in context.supplemental_groups)
    return container


def _mount(mount: cri.Mount) -> nri.Mount:
    options = ["rbind", _PROPAGATION.get(mount.propagation, "rprivate"), "ro" if mount.readonly else "rw"]
    return nri.Mount(destination=mount.container_path, type="bind", source=mount.host_path, options=options)


# ---------------------------------------------------------------------- resources


def view_resources(linux: cri.LinuxContainerResources) -> nri.LinuxResources:
    """CRI's resources; as containerd shows them: shares, quota, period and limit are set also when 0."""
    resources = nri.LinuxResources(
        cpu=nri.LinuxCPU(cpus=linux.cpuset_cpus, mems=linux.cpuset_mems),
        hugepage_limits=[
            nri.HugepageLimit(page_size=limit.page_size, limit=limit.limit) for limit in linux.hugepage_limits
        ],
        unified=linux.unified,
    )
    resources.cpu.shares.value = max(0, linux.cpu_shares)
    resources.cpu.quota.value = linux.cpu_quota
    resources.cpu.period.value = max(0, linux.cpu_period)
    resources.memory.limit.value = linux.memory_limit_in_bytes
    if linux.memory_swap_limit_in_bytes:
        resources.memory.swap.value = linux.memory_swap_limit_in_bytes
    return resources
