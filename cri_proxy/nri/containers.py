"""NRI messages to the vocabulary of policies/model.py, and placements back to adjustments and updates.

NRI's resources are written as the CRI message they came from, and read by ``cri/messages.py``: one place knows what
shares, quotas and scores mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri import messages as cri_reader
from cri_proxy.cri.annotations.read import understood
from cri_proxy.cri.claims import shown_claims
from cri_proxy.cri.device_hints import Use, read_uses
from cri_proxy.cri.messages import (
    CreateRequest,
    UnreadableRequest,
    kept_annotations,
    kept_labels,
    linux_delta,
    read_fence,
    read_qos,
    read_resources,
)
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, ListedContainer
from cri_proxy.engine.resync import UnannouncedContainer
from policies.machine.cpus import BadCpuList, parse_cpus
from policies.model import Constraint, Container, Placement, Pod, PodSize, Quota

#: Kubelet's count of restarts, which it also makes the attempt of the container (kuberuntime/labels.go).
RESTART_COUNT = "io.kubernetes.container.restartCount"
_MOST = (1 << 63) - 1


# ---------------------------------------------------------------------- pods and containers


def read_pod(pod: nri.PodSandbox, known: Optional[Pod] = None) -> Pod:
    """A pod; fields that only ``known`` (an earlier reading) has are kept.

    :raises UnreadableRequest: it has no id, or neither name nor uid.
    """
    if not pod.id:
        raise UnreadableRequest("a PodSandbox without an id")
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace),
        labels=pod.labels,
        annotations=pod.annotations,
    )
    config.linux.cgroup_parent = pod.linux.cgroup_parent
    config.linux.resources.CopyFrom(cri_resources(pod.linux.pod_resources))
    config.linux.overhead.CopyFrom(cri_resources(pod.linux.pod_overhead))
    return cri_reader.read_pod(config, pod.id, pod.runtime_handler, known)


def read_container(
    container: nri.Container, pod: Pod, attempt: int = 0, memory_capacity_bytes: int = 0
) -> CreateRequest:
    """A container of a pod, the cpuset it has already, its devices and mounts.

    ``attempt``: where its annotations do not tell.

    :raises UnreadableRequest: it has no id or no name.
    """
    if not container.id or not container.name:
        raise UnreadableRequest("a Container without an id or a name")
    resources = cri_resources(container.linux.resources, container.linux.oom_score_adj.value)
    qos = read_qos(pod.cgroup_parent, resources)
    told = read_attempt(container)
    found = Container(
        pod=pod,
        name=container.name,
        attempt=attempt if told is None else told,
        qos=qos,
        resources=read_resources(resources, qos, memory_capacity_bytes),
        labels=kept_labels(container.labels),
        annotations=kept_annotations(container.annotations),
        claims=_claims(container),
    )
    return CreateRequest(understood(found), read_fence(resources), _uses(container))


def _claims(container: nri.Container) -> tuple[str, ...]:
    # containerd 1.7 does not fill the field. It applies CDI before it asks plugins, so the variables are there.
    devices = (device.name for device in container.CDI_devices)
    return shown_claims(devices, container.annotations, container.env)


def read_attempt(container: nri.Container) -> Optional[int]:
    """The restart count in kubelet's annotation; None = there is none."""
    text = container.annotations.get(RESTART_COUNT, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def next_attempt(grants: Iterable[ContainerRecord], pod_uid: str, name: str) -> int:
    """The attempt of a new container without that annotation: one above the highest known for its name."""
    known = [
        g.container.attempt for g in grants if (g.container.pod.uid, g.container.name) == (pod_uid, name)
    ]
    return max(known, default=-1) + 1


def cri_resources(resources: nri.LinuxResources, oom_score_adj: int = 0) -> cri.LinuxContainerResources:
    """What CRI can say of resources, as kubelet would have sent it."""
    cpu = resources.cpu
    return cri.LinuxContainerResources(
        cpu_shares=min(cpu.shares.value, _MOST),
        cpu_quota=cpu.quota.value,
        cpu_period=min(cpu.period.value, _MOST),
        cpuset_cpus=cpu.cpus,
        cpuset_mems=cpu.mems,
        memory_limit_in_bytes=resources.memory.limit.value,
        oom_score_adj=oom_score_adj,
        hugepage_limits=[
            cri.HugepageLimit(page_size=entry.page_size, limit=entry.limit)
            for entry in resources.hugepage_limits
        ],
    )


def read_size(request: nri.UpdatePodSandboxRequest) -> tuple[Optional[PodSize], int]:
    """The pod's size after UpdatePodSandbox, and its memory limit in bytes; None and 0 = it does not say."""
    resources, overhead = (
        cri_resources(request.linux_resources),
        cri_resources(request.overhead_linux_resources),
    )
    return cri_reader.sum_pod_size(resources, overhead), cri_reader.memory_limit_of(resources)


def _uses(container: nri.Container) -> tuple[Use, ...]:
    # NRI leaves out a device's path on the host; it nearly always equals the one in the container. A privileged
    # container has all devices of the host, and has asked for none of them.
    asked = [] if _may_use_all(container.linux.resources.devices) else container.linux.devices
    devices = [cri.Device(host_path=device.path) for device in asked]
    mounts = [
        cri.Mount(container_path=m.destination, host_path=m.source, readonly="ro" in m.options)
        for m in container.mounts
        if m.source.startswith("/") and (m.type == "bind" or not {"bind", "rbind"}.isdisjoint(m.options))
    ]
    given = [cri.CDIDevice(name=device.name) for device in container.CDI_devices]
    return read_uses(cri.ContainerConfig(devices=devices, mounts=mounts, CDI_devices=given))


def _may_use_all(rules: Iterable[nri.LinuxDeviceCgroup]) -> bool:
    return any(
        rule.allow
        and rule.type in ("", "a")
        and not (rule.HasField("major") or rule.HasField("minor"))
        and set("rwm") <= set(rule.access)
        for rule in rules
    )


# ---------------------------------------------------------------------- what runs


def read_seen(
    containers: Iterable[nri.Container], pods: Mapping[str, Pod], grants: Mapping[str, ContainerRecord]
) -> dict[str, ListedContainer]:
    """A Synchronize as a resync reads a runtime's list.

    Ended containers are not in it: one of ``grants`` that it lacks has ended; the runtime is asked later how.
    """
    seen = {c.id: _seen(c, pods, grants.get(c.id)) for c in containers if c.id}
    for key, grant in grants.items():
        if key not in seen and grant.is_made:
            container = grant.container
            seen[key] = ListedContainer(
                key,
                container.pod.id,
                container.pod.uid,
                container.name,
                container.attempt,
                running=False,
                exited=True,
                exit_code=grant.exit_code,
            )
    return seen


def _seen(
    container: nri.Container, pods: Mapping[str, Pod], grant: Optional[ContainerRecord]
) -> ListedContainer:
    pod = pods.get(container.pod_sandbox_id)
    told = read_attempt(container)
    known = 0 if grant is None else grant.container.attempt
    cpu = container.linux.resources.cpu
    return ListedContainer(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        pod_uid=container.pod_sandbox_id if pod is None else pod.uid,
        name=container.name,
        attempt=known if told is None else told,
        running=container.state in (nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED),
        exited=container.state == nri.CONTAINER_STOPPED,
        exit_code=read_exit_code(container),
        cpus=_read_set(cpu.cpus),
        mems=_read_set(cpu.mems) or None,
        claims=_claims(container),
    )


def read_unannounced(
    container: nri.Container, read: CreateRequest, seen: ListedContainer
) -> UnannouncedContainer:
    """A container that no event has announced. Hosts before NRI 0.10 do not tell when it has started."""
    started_at_ns = container.started_at if seen.running else 0
    return UnannouncedContainer(
        container.id,
        read.container,
        read.constraint,
        read.uses,
        seen.cpus,
        seen.mems,
        started_at_ns,
        seen.running,
    )


def read_exit_code(container: nri.Container) -> Optional[int]:
    """The exit code; None = it runs, or the host is older than NRI 0.10 and tells none."""
    return container.exit_code if container.finished_at > 0 else None


def _read_set(text: str) -> Optional[frozenset[int]]:
    try:
        return parse_cpus(text)
    except BadCpuList:
        return None


# ---------------------------------------------------------------------- placements


def write_adjustment(placement: Placement, constraint: Constraint) -> Optional[nri.ContainerAdjustment]:
    """The adjustment of a new container; None = nothing changes.

    Values it has already (``constraint``) are not set again: a field set by one plugin is closed to all others.
    """
    cpu = _cpu(placement)
    if placement.cpus == constraint.cpus:
        cpu.cpus = ""
    if placement.mems == constraint.mems:
        cpu.mems = ""
    if not cpu.ByteSize():
        return None
    return nri.ContainerAdjustment(linux=nri.LinuxContainerAdjustment(resources=nri.LinuxResources(cpu=cpu)))


def with_scheduling(
    adjust: Optional[nri.ContainerAdjustment], words: str, container: nri.Container
) -> Optional[nri.ContainerAdjustment]:
    """An adjustment with how the container's threads are to be scheduled, as far as that is sure to work; None = nothing
    changes. ``words``: ``isolation.scheduling.write_class``, "" = nothing.

    What a plugin before ours has set stays: to set it too fails the create. Classes of caches and of block I/O are never in
    it: a runtime fails a create for a class that its own configuration has not, and a group that runc is told to use must be
    there when it looks (``linux.rdt.clos_id``), while ours come and go. Threads are moved before they run.
    """
    if not words:
        return adjust
    from cri_proxy.isolation.scheduling import (
        read_class,
    )  # isolation is off by default, and then not imported
    from cri_proxy.nri.scheduling import write_scheduling

    scheduler, io_priority = write_scheduling(read_class(words))
    linux = nri.LinuxContainerAdjustment()
    if scheduler is not None and not container.linux.HasField("scheduler"):
        linux.scheduler.CopyFrom(scheduler)
    if io_priority is not None and not container.linux.HasField("io_priority"):
        linux.io_priority.CopyFrom(io_priority)
    if linux.ByteSize():
        adjust = nri.ContainerAdjustment() if adjust is None else adjust
        adjust.linux.MergeFrom(linux)
    return adjust


def write_update(update: CpusetUpdate, may_fail: bool = True) -> Optional[nri.ContainerUpdate]:
    """An update of a container, another's or that of the request; None = nothing is changed.

    ``may_fail``: the request that it answers goes on without it. Memory is never in it: iSulad reads a limit
    out of any memory message.
    """
    return write_container_update(update.id, update.placement, update.give_back, may_fail)


def write_container_update(
    container_id: str, placement: Placement, give_back: Optional[Quota], may_fail: bool = True
) -> Optional[nri.ContainerUpdate]:
    """As ``write_update``, of a placement."""
    cpu = _cpu(placement, give_back)
    if not cpu.ByteSize():
        return None
    linux = nri.LinuxContainerUpdate(resources=nri.LinuxResources(cpu=cpu))
    return nri.ContainerUpdate(container_id=container_id, linux=linux, ignore_failure=may_fail)


def _cpu(placement: Placement, give_back: Optional[Quota] = None) -> nri.LinuxCPU:
    delta = linux_delta(placement, give_back)
    cpu = nri.LinuxCPU(cpus=delta.cpuset_cpus, mems=delta.cpuset_mems)
    if delta.cpu_quota:
        cpu.quota.value = delta.cpu_quota
    if delta.cpu_period:
        cpu.period.value = delta.cpu_period
    return cpu
