"""The others on a simulated node: kubelet, as the requests it makes, and a runtime, as what it remembers.

The requests are those of kubelet's cm/helpers_linux.go (shares and quota), qos/policy.go (oom scores) and
kuberuntime (labels, the sandbox config that goes with every create). Nothing in here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.annotations.read import understood
from cri_proxy.cri.claims import asked_claims
from cri_proxy.cri.messages import (
    BESTEFFORT_OOM_SCORE,
    DEFAULT_PERIOD_US,
    GUARANTEED_OOM_SCORE,
    MAX_SHARES,
    MIN_SHARES,
    SHARES_PER_CPU,
    kubepods_root,
    parse,
    read_fence,
    read_pod,
    read_qos,
    read_resources,
    write_update_delta,
)
from cri_proxy.engine.model import CpusetUpdate, ListedContainer
from cri_proxy.simulator.scenario import ScenarioStep
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.model import NO_CONSTRAINT, Constraint, Container, Qos

#: Kubelet asks for a millisecond a period at least (MilliCPUToQuota).
MIN_QUOTA_US = 1000
MAX_BURSTABLE_OOM_SCORE, MIN_BURSTABLE_OOM_SCORE = 999, 3

#: The name of a pod's first container that is given none: the next one, too, once that has ended.
DEFAULT_NAME = "app"


# ---------------------------------------------------------------------- kubelet


def sandbox_request(step: ScenarioStep) -> bytes:
    """The RunPodSandboxRequest of a ``pod`` step; or of a ``create``, which says no more than a namespace."""
    known = step.values if step.op == "pod" else {}
    pod_id: str = step["id"] if step.op == "pod" else step["pod"]
    namespace = step["namespace"] or "default"
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=pod_id, uid=pod_id, namespace=namespace),
        labels={
            "io.kubernetes.pod.name": pod_id,
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.uid": pod_id,
            **known.get("labels", {}),
        },
        annotations=known.get("annotations", {}),
    )
    config.linux.cgroup_parent = known.get("cgroup_parent", "")
    limit, memory_limit = known.get("cpu_limit"), known.get("memory_limit")
    request = limit if known.get("cpu_request") is None else known["cpu_request"]
    if request or limit or memory_limit:
        config.linux.resources.CopyFrom(_resources(request, limit, memory_limit))
    message = cri.RunPodSandboxRequest(config=config, runtime_handler=known.get("runtime_handler", ""))
    return bytes(message.SerializeToString())


def create_request(
    step: ScenarioStep,
    sandbox: cri.PodSandboxConfig,
    memory_capacity_bytes: int,
    default_name: str = DEFAULT_NAME,
) -> bytes:
    """The CreateContainerRequest of a ``create`` step; the machine's memory is 0 where it is not known."""
    # 1. As the API server completes a pod: a request that is not given is the limit.
    limit, memory_limit = step["cpu_limit"], step["memory_limit"]
    request = limit if step["cpu_request"] is None else step["cpu_request"]
    memory_request = memory_limit if step["memory_request"] is None else step["memory_request"]
    full = bool(limit and memory_limit) and request == limit and memory_request == memory_limit
    asks = bool(request or limit or memory_request or memory_limit)
    # 2. The QoS class: as given, else the pod's, else that of these resources.
    config = cri.PodSandboxConfig()
    config.CopyFrom(sandbox)
    parent = config.linux.cgroup_parent
    own = Qos.GUARANTEED if full else Qos.BURSTABLE if asks else Qos.BESTEFFORT
    if step["qos"]:
        qos = Qos(step["qos"])
    elif kubepods_root(parent):
        qos = read_qos(parent, cri.LinuxContainerResources(oom_score_adj=GUARANTEED_OOM_SCORE))
    else:
        qos = own
    # 3. The container's resources, and a cgroup that says the same.
    linux = _resources(request, limit, memory_limit)
    linux.oom_score_adj = _oom_score(qos, memory_request or 0, memory_capacity_bytes)
    linux.hugepage_limits.extend(cri.HugepageLimit(page_size=size, limit=1) for size in step["hugepages"])
    linux.cpuset_cpus, linux.cpuset_mems = format_cpus(step["cpuset"]), format_cpus(step["mems"])
    if not parent or read_qos(parent, linux) is not qos:
        config.linux.cgroup_parent = _default_parent(qos, config.metadata.uid)
    name = step["name"] or default_name
    container = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=step["attempt"]),
        labels={**_pod_labels(config), "io.kubernetes.container.name": name, **step["labels"]},
        annotations=step["annotations"],
        devices=[cri.Device(host_path=path, container_path=path) for path in step["devices"]],
        linux=cri.LinuxContainerConfig(resources=linux),
    )
    message = cri.CreateContainerRequest(pod_sandbox_id=step["pod"], config=container, sandbox_config=config)
    return bytes(message.SerializeToString())


def resize_pod_request(step: ScenarioStep, sandbox: cri.PodSandboxConfig) -> bytes:
    """The UpdatePodSandboxResourcesRequest of a ``resize-pod`` step: kubelet says all the pod has now
    (kuberuntime_manager.go: doPodResizeAction)."""
    linux = cri.LinuxContainerResources()
    linux.CopyFrom(sandbox.linux.resources)
    asked = _resources(step["cpu_request"], step["cpu_limit"], step["memory_limit"])
    if step["cpu_request"] is not None:
        linux.cpu_shares = asked.cpu_shares
    if step["cpu_limit"] is not None:
        linux.cpu_quota, linux.cpu_period = asked.cpu_quota or -1, asked.cpu_period
    linux.memory_limit_in_bytes = asked.memory_limit_in_bytes or linux.memory_limit_in_bytes
    message = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=step["id"], overhead=sandbox.linux.overhead, resources=linux
    )
    return bytes(message.SerializeToString())


def update_request(step: ScenarioStep) -> bytes:
    """The UpdateContainerResourcesRequest of a ``resize`` or ``update`` step: what is not given stays."""
    linux = cri.LinuxContainerResources()
    if step.op == "update":
        linux.cpuset_cpus = format_cpus(step["cpuset"])
    else:
        linux = _resources(step["cpu_request"], step["cpu_limit"], step["memory_limit"])
        if step["cpu_request"] is None:
            linux.cpu_shares = 0
        if step["cpu_limit"] == 0:  # no limit any more
            linux.cpu_quota = -1
    message = cri.UpdateContainerResourcesRequest(container_id=step["id"], linux=linux)
    return bytes(message.SerializeToString())


def _resources(
    milli_request: Optional[int], milli_limit: Optional[int], memory_limit: Optional[int]
) -> cri.LinuxContainerResources:
    linux = cri.LinuxContainerResources(
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, (milli_request or 0) * SHARES_PER_CPU // 1000)),
        cpu_period=DEFAULT_PERIOD_US,
        memory_limit_in_bytes=memory_limit or 0,
    )
    if milli_limit:
        linux.cpu_quota = max(MIN_QUOTA_US, milli_limit * DEFAULT_PERIOD_US // 1000)
    return linux


def _name(request: cri.CreateContainerRequest) -> tuple[str, str]:
    return request.sandbox_config.metadata.uid, request.config.metadata.name


def _oom_score(qos: Qos, memory_request: int, capacity_bytes: int) -> int:
    if qos is not Qos.BURSTABLE:
        return GUARANTEED_OOM_SCORE if qos is Qos.GUARANTEED else BESTEFFORT_OOM_SCORE
    score = 1000 - (1000 * memory_request // capacity_bytes if capacity_bytes else 0)
    return min(MAX_BURSTABLE_OOM_SCORE, max(MIN_BURSTABLE_OOM_SCORE, score))


def _default_parent(qos: Qos, uid: str) -> str:
    # A dash would begin a new part of the name, as in systemd's slices: a pod may be called "x-burstable".
    folder = "" if qos is Qos.GUARANTEED else f"{qos.value}/"
    return f"/kubepods/{folder}pod{uid.replace('-', '_').replace('/', '_')}"


def _pod_labels(config: cri.PodSandboxConfig) -> dict[str, str]:
    return {key: value for key, value in config.labels.items() if key.startswith("io.kubernetes.pod.")}


# ---------------------------------------------------------------------- the runtime


@dataclass
class Sandbox:
    """One pod as the runtime knows it."""

    id: str
    config: cri.PodSandboxConfig
    handler: str = ""


@dataclass
class Process:
    """One container as the runtime knows it, ``number`` counting up; ``ticket``: our ticket of its create."""

    id: str
    number: int
    sandbox: Sandbox
    request: cri.CreateContainerRequest
    ticket: str = ""
    state: str = "created"  # created, running, exited
    exit_code: Optional[int] = None
    linux: cri.LinuxContainerResources = field(init=False)
    #: The cpuset and mems kubelet asked for, not what we made of it.
    asked: Constraint = NO_CONSTRAINT
    #: The CPUs that kubelet has given it alone.
    given: frozenset[int] = NO_CPUS

    def __post_init__(self) -> None:
        self.linux = self.request.config.linux.resources

    @property
    def exited(self) -> bool:
        return self.state == "exited"

    @property
    def constraint(self) -> Constraint:
        """The cpuset and mems it has; None = not set."""
        return read_fence(self.linux)

    def update(self, message: bytes) -> None:
        """UpdateContainerResources: fields that are not set stay as they are."""
        self.linux.MergeFrom(parse(cri.UpdateContainerResourcesRequest, message).linux)

    def ask(self, message: bytes, delta: bytes) -> None:
        """An update by kubelet, and what we have added to it."""
        constraint = read_fence(parse(cri.UpdateContainerResourcesRequest, message).linux)
        self.asked = Constraint(constraint.cpus or self.asked.cpus, constraint.mems or self.asked.mems)
        self.update(message + delta)

    def give(self, update: CpusetUpdate) -> None:
        """An update of ours."""
        request = cri.UpdateContainerResourcesRequest(container_id=self.id)
        self.update(request.SerializeToString() + write_update_delta(update.placement, update.give_back))

    def seen(self) -> ListedContainer:
        """What a look at the list and at the container's cgroup shows."""
        config = self.request.config
        seen = ListedContainer(
            id=self.id,
            sandbox_id=self.sandbox.id,
            pod_uid=self.request.sandbox_config.metadata.uid,
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            running=self.state == "running",
            exited=self.exited,
            exit_code=self.exit_code,
        )
        return (
            seen
            if self.exited
            else replace(seen, cpus=self.constraint.cpus or NO_CPUS, mems=self.constraint.mems)
        )

    def details(self, memory_capacity_bytes: int) -> Container:
        """What a runtime tells of a container we have no record of; of its pod what that was made and resized with."""
        sandbox = cri.PodSandboxConfig()
        sandbox.CopyFrom(self.request.sandbox_config)
        sandbox.linux.resources.CopyFrom(self.sandbox.config.linux.resources)
        parent = sandbox.linux.cgroup_parent
        config = self.request.config
        qos = read_qos(parent, self.linux)
        container = Container(
            pod=read_pod(sandbox, self.sandbox.id, self.sandbox.handler),
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            qos=qos,
            resources=read_resources(self.linux, qos, memory_capacity_bytes),
            labels=dict(config.labels),
            annotations=dict(config.annotations),
            claims=asked_claims((device.name for device in config.CDI_devices), config.annotations),
        )
        return understood(container)


@dataclass
class SimulatedRuntime:
    """A container runtime: sandboxes and containers by id, the latter in the order they were created."""

    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    containers: dict[str, Process] = field(default_factory=dict)
    created: int = 0
    #: What kubelet has given alone to containers that it has not asked for yet, by pod uid and name.
    coming: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)

    def run_sandbox(self, sandbox_id: str, request: cri.RunPodSandboxRequest) -> None:
        """RunPodSandbox."""
        self.sandboxes[sandbox_id] = Sandbox(sandbox_id, request.config, request.runtime_handler)

    def default_name(self, sandbox_id: str, container_id: str) -> str:
        """What a container is called that is given no name: the id, where another of its pod has the usual one."""
        names = {
            c.request.config.metadata.name
            for c in self.containers.values()
            if c.sandbox.id == sandbox_id and not c.exited
        }
        return container_id if DEFAULT_NAME in names else DEFAULT_NAME

    def create(self, container_id: str, message: bytes, delta: bytes = b"", ticket: str = "") -> Process:
        """CreateContainer. An id may be used again once its container has ended: it is gone then."""
        request = parse(cri.CreateContainerRequest, message + delta)
        asked = read_fence(parse(cri.CreateContainerRequest, message).config.linux.resources)
        sandbox = self.sandboxes[request.pod_sandbox_id]
        self.created += 1
        self.containers.pop(container_id, None)
        given = self.coming.get(_name(request), NO_CPUS)
        process = Process(container_id, self.created, sandbox, request, ticket, asked=asked, given=given)
        self.containers[container_id] = process
        return process

    def give_alone(self, message: bytes) -> None:
        """Kubelet writes down that the cpuset of a create to come is the container's alone."""
        request = parse(cri.CreateContainerRequest, message)
        self.coming[_name(request)] = read_fence(request.config.linux.resources).cpus or NO_CPUS

    def kubelet_exclusive(self) -> dict[tuple[str, str], frozenset[int]]:
        """Kubelet's own assignments, as its cpu_manager_state has them: by pod uid and container name."""
        running = {_name(p.request): p.given for p in self.containers.values() if p.given and not p.exited}
        return {**running, **self.coming}

    def remove_sandbox(self, sandbox_id: str) -> list[str]:
        """RemovePodSandbox. Returns the ids of its containers, which go with it."""
        del self.sandboxes[sandbox_id]
        gone = [key for key, process in self.containers.items() if process.sandbox.id == sandbox_id]
        for key in gone:
            del self.containers[key]
        return gone
