"""CRI messages to the vocabulary of policies/model.py, and placements back to the bytes of a delta.

A request is only read here. What we change is written as a message that holds nothing but our fields; its
bytes are appended to the request, and protobuf merges the two: embedded messages field by field, scalars by
"the last one wins" (protobuf encoding guide, "Last One Wins"). So every byte of the request survives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from google.protobuf.message import DecodeError

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.annotations.read import understood
from cri_proxy.cri.claims import asked_claims
from cri_proxy.cri.device_hints import Use, read_uses
from cri_proxy.text.annotation_value import BadAnnotation, read_value
from cri_proxy.text.quantity import BadQuantity, parse_milli
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, BadCpuList, format_cpus, parse_cpus
from policies.model import (
    SANDBOX_RESOURCES,
    Constraint,
    Container,
    Placement,
    Pod,
    PodSize,
    Qos,
    Quota,
    Resources,
    kept_once,
)

# Kubernetes' cpu.shares: 1024 a CPU, at least 2, at most 262144 (kubelet, cm/helpers_linux.go MilliCPUToShares).
MIN_SHARES, MAX_SHARES, SHARES_PER_CPU = 2, 262144, 1024
DEFAULT_PERIOD_US = 100_000
GUARANTEED_OOM_SCORE, BESTEFFORT_OOM_SCORE = -997, 1000

#: Pod annotations with the exact requests and limits of all containers, by other projects' webhooks.
RESOURCE_ANNOTATIONS = ("intel.com/resources", "noderesource.dev/resources")


#: How the keys of annotations begin that Kubernetes itself writes.
KUBERNETES_OWN = ("io.kubernetes.", "kubernetes.io/", "kubectl.kubernetes.io/")
#: The labels or annotations of a record without any; never changed.
NO_TEXTS: Mapping[str, str] = {}


class UnreadableRequest(ValueError):
    """The bytes are not the message they should be, or lack what makes a container; they go through untouched."""


@frozen
class CreateRequest:
    """What a CreateContainerRequest says: the container, the caller's own cpuset and mems, devices and mounts."""

    container: Container
    constraint: Constraint
    uses: tuple[Use, ...] = ()


@frozen
class UpdateRequest:
    """What an UpdateContainerResourcesRequest says."""

    container_id: str
    linux: cri.LinuxContainerResources
    constraint: Constraint


# ---------------------------------------------------------------------- requests


def read_create(message: bytes, pods: Mapping[str, Pod], memory_capacity_bytes: int = 0) -> CreateRequest:
    """Read a CreateContainerRequest. ``pods``: the sandboxes known, by id, for what the request leaves out.

    :raises UnreadableRequest: not such a message, or without container and pod identity.
    """
    request = parse(cri.CreateContainerRequest, message)
    if not request.config.metadata.name or not request.pod_sandbox_id:
        raise UnreadableRequest("CreateContainerRequest without a sandbox id or a container name")
    known = pods.get(request.pod_sandbox_id)
    pod = read_pod(request.sandbox_config, request.pod_sandbox_id, "", known)
    return _read_container(pod, request.config, memory_capacity_bytes)


def _read_container(pod: Pod, config: cri.ContainerConfig, memory_capacity_bytes: int) -> CreateRequest:
    resources = config.linux.resources
    qos = read_qos(pod.cgroup_parent, resources)
    annotations, devices = kept_annotations(config.annotations), config.CDI_devices
    # Most containers have neither.
    named = bool(devices or annotations)
    container = Container(
        pod=pod,
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        qos=qos,
        resources=read_resources(resources, qos, memory_capacity_bytes),
        labels=kept_labels(config.labels),
        annotations=annotations,
        claims=asked_claims((device.name for device in devices), annotations) if named else (),
    )
    return CreateRequest(understood(container), read_fence(resources), read_uses(config))


def read_restore(message: bytes, reply: bytes, memory_capacity_bytes: int = 0) -> dict[str, CreateRequest]:
    """The containers that a RestorePod has made, by their ids: each as a create of its own would have asked for it.

    Those that the reply names and the request does not are left out.

    :raises UnreadableRequest: not such messages, or without pod identity.
    """
    request, made = parse(cri.RestorePodRequest, message), parse(cri.RestorePodResponse, reply)
    pod = read_pod(request.config, made.pod_sandbox_id, request.runtime_handler)
    configs = {config.metadata.name: config for config in request.container_configs}
    return {
        item.container_id: _read_container(pod, configs[item.name], memory_capacity_bytes)
        for item in made.restored_containers
        if item.container_id and item.name in configs
    }


def read_update(message: bytes) -> UpdateRequest:
    """Read an UpdateContainerResourcesRequest.

    :raises UnreadableRequest: not such a message.
    """
    request = parse(cri.UpdateContainerResourcesRequest, message)
    return UpdateRequest(request.container_id, request.linux, read_fence(request.linux))


def parse(kind: Any, message: bytes) -> Any:
    """Parse a protobuf message of class ``kind``.

    :raises UnreadableRequest: the bytes are not one.
    """
    try:
        return kind.FromString(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRequest(f"{len(message)} bytes are not a {kind.DESCRIPTOR.name}: {error}") from None


def read_pod(
    config: cri.PodSandboxConfig, sandbox_id: str, runtime_handler: str, known: Optional[Pod] = None
) -> Pod:
    """A pod from its sandbox config; what ``known`` (an earlier reading) has and the config lacks is kept."""
    meta = config.metadata
    if not meta.uid and known is not None:
        return known
    if not meta.uid and not meta.name:
        raise UnreadableRequest("a sandbox config without metadata")
    pod = Pod(
        id=sandbox_id,
        # crictl's own pods may have no uid; the sandbox is then the pod.
        uid=meta.uid or sandbox_id,
        name=meta.name,
        namespace=kept_once(meta.namespace),
        cgroup_parent=config.linux.cgroup_parent,
        runtime_handler=kept_once(runtime_handler),
        labels=kept_labels(config.labels),
        annotations=kept_annotations(config.annotations),
        size=read_pod_size(config),
        memory_limit_bytes=memory_limit_of(config.linux.resources),
    )
    if known is None:
        return pod
    # The sandbox's size may have been changed since by UpdatePodSandboxResources; the runtime handler is told once.
    pod = replace(
        pod,
        runtime_handler=known.runtime_handler or runtime_handler,
        size=known.size or pod.size,
        memory_limit_bytes=known.memory_limit_bytes or pod.memory_limit_bytes,
    )
    return known if pod == known else pod  # one object in memory for all its containers


def kept_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Labels to keep in a record: a string that many containers have is in memory once."""
    return {kept_once(key): kept_once(value) for key, value in labels.items()} or NO_TEXTS


def kept_annotations(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """The annotations to keep, likewise. Those of Kubernetes' own ask for no place: kubelet puts seven on every container,
    and kubectl may put the whole manifest on a pod."""
    kept = {key: text for key, text in annotations.items() if not key.startswith(KUBERNETES_OWN)}
    return kept_labels(kept)


def read_pod_size(config: cri.PodSandboxConfig) -> Optional[PodSize]:
    """The whole pod's CPUs, from the first source that has them; None = unknown."""
    size = sum_pod_size(config.linux.resources, config.linux.overhead)
    if size is not None:
        return size
    for key in RESOURCE_ANNOTATIONS:
        if key in config.annotations:
            size = _annotated_size(config.annotations[key], key)
            if size is not None:
                return size
    return None


def sum_pod_size(
    resources: cri.LinuxContainerResources, overhead: cri.LinuxContainerResources
) -> Optional[PodSize]:
    """Size by RunPodSandbox or UpdatePodSandboxResources: resources and overhead together."""
    request, limit = _milli_request(resources), _milli_limit(resources)
    if not request and limit is None:
        return None
    extra, extra_limit = _milli_request(overhead), _milli_limit(overhead)
    # Overhead is guaranteed: its limit is its request (kubelet's convertOverheadToLinuxResources).
    extra = extra if extra_limit is None else extra_limit
    return PodSize(request + extra, None if limit is None else limit + extra, SANDBOX_RESOURCES, extra)


def _annotated_size(text: str, key: str) -> Optional[PodSize]:
    """Apps run together, init containers one after another: the apps' sum, but at least the largest init container."""
    try:
        document: Any = read_value(text)
        apps = [_annotated_container(c) for c in (document.get("containers") or {}).values()]
        inits = [_annotated_container(c) for c in (document.get("initContainers") or {}).values()]
    except (BadAnnotation, BadQuantity, AttributeError):
        return None
    if not apps:
        return None
    request = max([sum(request for request, _ in apps), *[request for request, _ in inits]])
    limits = [limit for _, limit in apps]
    limit = (
        None
        if None in limits
        else max([sum(limit or 0 for limit in limits), *[limit or 0 for _, limit in inits]])
    )
    return PodSize(request, limit, f"annotation {key}")


def _annotated_container(resources: Any) -> tuple[int, Optional[int]]:
    limit = (resources.get("limits") or {}).get("cpu") or None
    request = (resources.get("requests") or {}).get("cpu", limit)
    return parse_milli(request or 0), None if limit is None else parse_milli(limit)


def read_fence(resources: cri.LinuxContainerResources) -> Constraint:
    """The cpuset and mems the caller set; a list that cannot be read counts as none and is the runtime's to refuse."""
    return kept_once(Constraint(_optional_set(resources.cpuset_cpus), _optional_set(resources.cpuset_mems)))


def _optional_set(text: str) -> Optional[frozenset[int]]:
    try:
        return parse_cpus(text) or None
    except BadCpuList:
        return None


# ---------------------------------------------------------------------- resources


def read_resources(linux: cri.LinuxContainerResources, qos: Qos, memory_capacity_bytes: int = 0) -> Resources:
    """CPU and memory of a container as CRI shows them.

    Requests are rounded up to the milli-CPU that gives these shares. A Guaranteed container without quota
    (kubelet with cpuCFSQuota off) has its request as limit. The memory request of a Burstable container is
    read back from ``oom_score_adj`` where the machine's memory is known. Kubelet names every size of huge pages that
    the machine has, those that may not be had with a limit of 0.
    """
    request, limit = _milli_request(linux), _milli_limit(linux)
    if linux.cpu_shares >= MAX_SHARES and limit is not None:
        request = max(request, limit)
    if qos is Qos.GUARANTEED and limit is None:
        limit = request or None
    memory_limit = memory_limit_of(linux)
    memory_request = memory_limit if qos is Qos.GUARANTEED else 0
    if qos is Qos.BURSTABLE and 3 < linux.oom_score_adj < 999:
        memory_request = (1000 - linux.oom_score_adj) * memory_capacity_bytes // 1000
    # A limit that no quota says is none to give back; a quota of -1 was taken away from what kubelet had set.
    period_us = (linux.cpu_period or DEFAULT_PERIOD_US) if linux.cpu_quota or limit is None else 0
    pages = {parse_page_size(entry.page_size) for entry in linux.hugepage_limits if entry.limit}
    sizes = frozenset(pages - {0}) or NO_CPUS  # an empty set of its own takes 200 bytes
    return kept_once(Resources(request, limit, memory_request, memory_limit, period_us, sizes))


def memory_limit_of(linux: cri.LinuxContainerResources) -> int:
    """The memory limit of a container or pod in bytes; 0 = none."""
    return int(max(0, linux.memory_limit_in_bytes))


def parse_page_size(text: str) -> int:
    """The size of a huge page in bytes, as cgroups name it: ``2MB``, ``1GB``, ``64KB``; 0 = it is none."""
    number, unit = text[:-2], text[-2:].upper()
    known = _PAGE_UNITS.get(unit) if number.isascii() and number.isdigit() and len(number) < 6 else None
    return 0 if known is None else int(number) * known


_PAGE_UNITS = {"KB": 1024, "MB": 1024**2, "GB": 1024**3}


def _milli_request(linux: cri.LinuxContainerResources) -> int:
    if linux.cpu_shares <= MIN_SHARES:
        return 0
    return int(-(-linux.cpu_shares * 1000 // SHARES_PER_CPU))


def _milli_limit(linux: cri.LinuxContainerResources) -> Optional[int]:
    if linux.cpu_quota <= 0:
        return None
    return int(-(-linux.cpu_quota * 1000 // (linux.cpu_period or DEFAULT_PERIOD_US)))


def update_resources(old: Resources, linux: cri.LinuxContainerResources, qos: Qos) -> Resources:
    """A container's resources after an update: fields of 0 change nothing, a negative quota or memory limit lifts it."""
    new = read_resources(linux, qos)
    limit = old.milli_limit
    if linux.cpu_quota:
        limit = new.milli_limit
    elif qos is Qos.GUARANTEED and new.milli_request and limit == old.milli_request:
        limit = new.milli_request
    request = new.milli_request if linux.cpu_shares else old.milli_request
    if linux.cpu_shares >= MAX_SHARES and limit is not None:
        request = max(request, limit)
    return Resources(
        milli_request=request,
        milli_limit=limit,
        memory_request_bytes=new.memory_request_bytes or old.memory_request_bytes,
        memory_limit_bytes=new.memory_limit_bytes if linux.memory_limit_in_bytes else old.memory_limit_bytes,
        quota_period_us=new.quota_period_us if linux.cpu_quota else old.quota_period_us,
        hugepage_sizes=new.hugepage_sizes or old.hugepage_sizes,
    )


_CGROUP_CLASS = re.compile(r"kubepods[-/](?:[^/]*/)*?(?:[^/]*-)?(burstable|besteffort)\b")
_CGROUP_ROOT = re.compile(r"^(.*?)((?:[^/]*-)?kubepods)(\.slice)?(?=[/-]|$)")


def read_qos(cgroup_parent: str, linux: cri.LinuxContainerResources) -> Qos:
    """The pod's QoS class, from its cgroup at any nesting and for both drivers, cross-checked with the resources.

    ``/kubepods/burstable/podU``, ``kubepods-burstable-podU.slice`` and kind's
    ``/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/...`` are all Burstable. A path that
    says Guaranteed for a container that has none of the marks of it (memory limit, oom score) is not believed.
    """
    match = _CGROUP_CLASS.search(cgroup_parent)
    if match:
        return Qos(match[1])
    asks_nothing = (
        linux.cpu_shares <= MIN_SHARES and linux.cpu_quota <= 0 and linux.memory_limit_in_bytes <= 0
    )
    if linux.oom_score_adj == GUARANTEED_OOM_SCORE:
        return Qos.GUARANTEED
    if linux.oom_score_adj == BESTEFFORT_OOM_SCORE or asks_nothing:
        return Qos.BESTEFFORT
    if _CGROUP_ROOT.match(cgroup_parent) and linux.memory_limit_in_bytes > 0:
        return Qos.GUARANTEED
    full = linux.memory_limit_in_bytes > 0 and _milli_limit(linux) == _milli_request(linux) != 0
    return Qos.GUARANTEED if full else Qos.BURSTABLE


def kubepods_root(cgroup_parent: str) -> str:
    """The cgroup kubelet puts all pods in, as a path from the cgroup mount; "" if the pod is not under one.

    ``kubepods-burstable-podU.slice`` (systemd driver) is a unit name: its path has one slice for every dash.
    """
    match = _CGROUP_ROOT.match(cgroup_parent)
    if match is None:
        return ""
    before, name, slice_suffix = match[1], match[2], match[3]
    if slice_suffix or "/" in cgroup_parent:
        return f"{before}{name}{slice_suffix or ''}"
    parts = name.split("-")
    return "".join("/" + "-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))


# ---------------------------------------------------------------------- annotations


def scoped_annotation(annotations: Mapping[str, str], key: str, container: str) -> Optional[str]:
    """An annotation by Intel's scoping: ``KEY/container.NAME``, else ``KEY/pod``, else ``KEY``."""
    for scoped in (f"{key}/container.{container}", f"{key}/pod", key):
        if scoped in annotations:
            return annotations[scoped]
    return None


# ---------------------------------------------------------------------- deltas


def linux_delta(placement: Placement, give_back: Optional[Quota] = None) -> cri.LinuxContainerResources:
    """The fields of a placement that are sent; empty ones are left out and so stay as the caller set them.

    ``give_back``: the CPU quota that had been taken away. Its period goes with it: runc's default is another one.
    """
    linux = cri.LinuxContainerResources(
        cpuset_cpus=format_cpus(placement.cpus), cpuset_mems=format_cpus(placement.mems)
    )
    if placement.lift_quota:
        linux.cpu_quota = -1
    elif give_back is not None:
        linux.cpu_quota, linux.cpu_period = give_back.quota_us, give_back.period_us
    return linux


def write_create_delta(placement: Placement) -> bytes:
    """Bytes to append to a CreateContainerRequest."""
    linux = linux_delta(placement)
    if not linux.ByteSize():
        return b""
    config = cri.ContainerConfig(linux=cri.LinuxContainerConfig(resources=linux))
    return bytes(cri.CreateContainerRequest(config=config).SerializeToString())


def write_update_delta(placement: Placement, give_back: Optional[Quota] = None) -> bytes:
    """Bytes to append to an UpdateContainerResourcesRequest."""
    linux = linux_delta(placement, give_back)
    return (
        bytes(cri.UpdateContainerResourcesRequest(linux=linux).SerializeToString())
        if linux.ByteSize()
        else b""
    )
