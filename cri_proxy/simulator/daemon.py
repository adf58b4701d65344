"""What the daemon's shell does around the engine, done on a simulated node: one method for each kind of call.

The reader, the engine, the writer, resync and the records of the state file are the daemon's own; sockets,
files and the clock are values. As in the shell, nothing in here decides about a placement.

The observer and the planner are simulated by the same graph, fed by the steps of a scenario. Each stretch of time is one
sample: of ``traffic`` with what it names, of all else with nothing, so that traffic that has stopped fades as it does on a
node. The observer is a process of its own: it outlives the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.affinity.moves import describe, plan_of
from cri_proxy.affinity.problem import snapshot_of
from cri_proxy.affinity.settings import affinity_settings, graph_settings
from cri_proxy.config.config import Config, engine_options, placement_settings
from cri_proxy.cri.device_hints import counted, hints_by_address
from cri_proxy.cri.messages import (
    linux_delta,
    memory_limit_of,
    parse,
    read_create,
    read_fence,
    read_pod,
    read_update,
    sum_pod_size,
    write_create_delta,
    write_update_delta,
)
from cri_proxy.engine.build import Machine, make_engine, make_host, make_policy
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import unmet
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, Host, ListedContainer, Management
from cri_proxy.engine.resources import resources_told
from cri_proxy.engine.resync import Listing, Resync, resync, unknown_ids
from cri_proxy.engine.snapshot import read_records, write_record
from cri_proxy.engine.state import HISTORY, JournalKey
from cri_proxy.front_ends.placer import Creation, Placer, Resize
from cri_proxy.simulator.node import Process, SimulatedRuntime
from cri_proxy.simulator.scenario import ScenarioEdge
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.pull.owners import owner_of
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology, TopologyData
from policies.model import BudgetSpent, PlacementRefused, Pod

#: Moves that are explained one by one in a line of the output.
EXPLAINED = 10
#: What runc says of a cpuset the kernel does not take, and the exit code containerd gives such a container.
START_ERROR, START_ERROR_CODE = "failed to write cpuset.cpus: invalid argument", 128
REFUSED = "refused by the runtime"
IN_DOUBT = "in doubt: no answer came back, its place stays reserved"


@dataclass(frozen=True)
class _Flow:
    """What two containers have said to each other in a sample."""

    a: str
    b: str
    bytes_ab: int
    messages: int
    bytes_ba: int = 0
    kind: str = "tcp"


class SimulatedObserver:
    """The graph of a simulated node."""

    def __init__(self, config: Config) -> None:
        self._graph = Graph(graph_settings(config))
        self._is_blind = config["affinity.provider"] == "declared"

    def configure(self, config: Config) -> None:
        """Take over another configuration."""
        self._graph.settings = graph_settings(config)
        self._is_blind = config["affinity.provider"] == "declared"
        self._graph.refresh()

    def observe(
        self, seconds: float, edges: Iterable[ScenarioEdge], containers: Mapping[str, Process]
    ) -> None:
        """One sample: what was said in the last ``seconds``, among those that run."""
        alive = {process.id: _identity(process) for process in containers.values() if not process.exited}
        flows = [
            _Flow(edge.a, edge.b, round(edge.bytes_per_s * seconds), round(edge.msgs_per_s * seconds))
            for edge in edges
            if edge.a != edge.b and edge.a in alive and edge.b in alive and not self._is_blind
        ]
        self._graph.forget({*self._graph.endpoints} - alive.keys())
        self._graph.observe(seconds, flows, alive)

    def tell(self, engine: Engine) -> None:
        """Give the engine the picture as it is now."""
        engine.set_traffic(self._graph.traffic())


def _identity(process: Process) -> EndpointIdentity:
    pod, name = process.sandbox.config, process.request.config.metadata.name
    namespace = pod.metadata.namespace
    owner = owner_of(namespace, pod.metadata.name, dict(pod.labels), name)
    return EndpointIdentity(process.id, pod.metadata.uid, namespace, pod.metadata.name, name, owner)


def rebalance(engine: Engine, config: Config, now_s: float) -> str:
    """Plan and make the moves at once, whatever the token bucket says; returns what happened in words."""
    # The planner is a process of its own in the daemon; nothing of it is loaded until it is needed.
    from policies.affinity.planner.planner import plan

    question = snapshot_of(engine, affinity_settings(config), now_s)
    proposal = plan(question.problem)
    rows = {row["id"]: row for row in describe(question, proposal)}
    moves = plan_of(engine, question, proposal, len(proposal.moves), now_s)
    before = {move.id: engine.grants[move.id].placement.home for move in moves.moves}
    engine.apply(moves)
    made = [key for key, home in before.items() if engine.grants[key].placement.home != home]
    words = [f"{key} to {rows[key]['to']} {rows[key]['why']}" for key in made[:EXPLAINED]]
    dropped = len(before) - len(made)
    note = [f"{dropped} of these moves did not hold"] if dropped else []
    return "; ".join([proposal.why, *words, *note])


@dataclass(frozen=True)
class CallResult:
    """How a call went: the fields we added to the request, and why. ``error``: nothing has changed."""

    why: str = ""
    sent: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class SimulatedShell:
    """One node with a daemon. ``touched``: ids whose record or cpuset may have changed, until cleared."""

    def __init__(self, topology: TopologyData, config: Config, warnings: Sequence[str] = ()) -> None:
        self.config = config
        self.machine = Machine(Topology(topology), warnings=tuple(warnings))
        #: What an operator should look at, as the daemon warns of it.
        self.warnings: tuple[str, ...] = ()
        self.runtime = SimulatedRuntime()
        self.observer = SimulatedObserver(config)
        self.engine = make_engine(config, self._host())
        self.now_s = 0.0
        self.touched: set[str] = set()
        #: What containers were told since the last look began.
        self.told: list[CpusetUpdate] = []
        #: The state file: a text for every record.
        self._store: dict[JournalKey, str] = {}

    @property
    def mode(self) -> str:
        mode: str = self.config["relay.mode"]
        return mode

    @property
    def active(self) -> bool:
        """Whether the engine is told of what happens."""
        return self.mode != "off"

    @property
    def enforcing(self) -> bool:
        return self.mode == "enforce"

    @property
    def memory_bytes(self) -> int:
        """The memory of the machine; 0 = some of it is not known."""
        topology = self.machine.topology
        sizes = [topology.memory_bytes(node) for node in topology.memory_nodes]
        return 0 if None in sizes else sum(size or 0 for size in sizes)

    def grant(self, process: Process) -> Optional[ContainerRecord]:
        """The record of a container; while its create is in doubt, that of its ticket."""
        return self.engine.grants.get(process.id) or self.engine.grants.get(process.ticket)

    # ------------------------------------------------------------------ calls of kubelet

    def run_sandbox(self, pod_id: str, message: bytes) -> Pod:
        """RunPodSandbox."""
        request = parse(cri.RunPodSandboxRequest, message)
        self.runtime.run_sandbox(pod_id, request)
        pod = read_pod(request.config, pod_id, request.runtime_handler)
        if self.active:
            self.engine.add_pod(pod)
        return pod

    def create(self, container_id: str, message: bytes, result: str, is_kubelets: bool = False) -> CallResult:
        """CreateContainer, and StartContainer where it comes to that. ``result``: what the runtime does.

        ``is_kubelets``: the cpuset is the container's alone; kubelet has written that down before.
        """
        if not is_kubelets:
            return self._create(container_id, message, result)
        self.runtime.give_alone(message)
        self._reread()
        try:
            return self._create(container_id, message, result)
        finally:
            self.runtime.coming.clear()
            self._reread()

    def _create(self, container_id: str, message: bytes, result: str) -> CallResult:
        # 1. What we make of the request.
        try:
            creation, why = self._admit(message)
        except PlacementRefused as error:
            return CallResult(error=str(error))
        if creation is None:
            return self._create_untouched(container_id, message, result, why)
        delta = write_create_delta(creation.placement)
        sent = _fields(parse(cri.CreateContainerRequest, delta).config.linux.resources)
        self.tell()
        # 2. What the runtime makes of it.
        if result == "refused":
            creation.failed(self.now_s, REFUSED)
            self.tell()
            return CallResult(why, sent, REFUSED)
        process = self.runtime.create(container_id, message, delta, creation.admission.ticket)
        if result == "doubt":
            creation.unknown()
            self.tell()
            return CallResult(f"{why}; {IN_DOUBT}", sent)
        creation.created(container_id, self.now_s)
        self.tell()
        # 3. How it starts.
        if result == "start-fails":
            return CallResult(f"{why}; {self._fail_start(process)}", sent)
        process.state = "running"
        self.engine.started(container_id)
        return CallResult(why, sent)

    @property
    def _placer(self) -> Placer:
        return Placer(self.engine)

    def _admit(self, message: bytes) -> tuple[Optional[Creation], str]:
        if not self.active:
            return None, "mode off: requests pass as they are"
        read = read_create(message, self.engine.pods, self.memory_bytes)
        uses = counted(read.uses, read.container, placement_settings(self.config))
        hints = hints_by_address(uses, self.machine.topology.data.devices)
        container = replace(read.container, hints=hints)
        try:
            creation = self._placer.create(container, read.constraint, self.now_s, self.enforcing)
        except BudgetSpent as error:
            namespace = read.container.pod.namespace
            if any(fnmatchcase(namespace, glob) for glob in self.config["placement.fail_closed_namespaces"]):
                raise PlacementRefused(f"{error}, and {namespace} fails closed") from None
            return None, f"failed open: {error}"
        admission = creation.admission
        note = f"mode {self.mode}, nothing is sent: " if admission.stance is Management.OBSERVED else ""
        return creation, note + admission.decision.why

    def _create_untouched(self, container_id: str, message: bytes, result: str, why: str) -> CallResult:
        if result == "refused":
            return CallResult(why, error=REFUSED)
        process = self.runtime.create(container_id, message)
        if result == "start-fails":
            process.state, process.exit_code = "exited", START_ERROR_CODE
        elif result == "ok":
            process.state = "running"
        return CallResult(why)

    def _fail_start(self, process: Process) -> str:
        process.state, process.exit_code = "exited", START_ERROR_CODE
        distrusted = self.engine.start_failed(process.id, START_ERROR, self.now_s)
        self.engine.exited(process.id, START_ERROR_CODE, self.now_s)
        self.tell()
        note = ": its next attempts go through untouched for a while" if distrusted else ""
        return f"its start failed ({START_ERROR}){note}"

    def update(self, process: Process, message: bytes, result: str, is_kubelets: bool = False) -> CallResult:
        """UpdateContainerResources. ``is_kubelets``: as of ``create``."""
        if is_kubelets:
            process.given = (
                read_fence(parse(cri.UpdateContainerResourcesRequest, message).linux).cpus or NO_CPUS
            )
            self._reread()
        try:
            resize, why = self._resize(process, message)
        except PlacementRefused as error:
            return CallResult(error=str(error))
        if resize is None:
            if result == "refused":
                return CallResult(why, error=REFUSED)
            if result != "lost":
                process.ask(message, b"")
            return CallResult(why)
        delta = write_update_delta(resize.placement, resize.give_back)
        sent = _fields(parse(cri.UpdateContainerResourcesRequest, delta).linux)
        self.tell()
        if result == "refused":
            resize.failed(self.now_s, REFUSED)
            self.tell()
            return CallResult(why, sent, REFUSED)
        if result != "lost":
            process.ask(message, delta)
        if result != "ok":
            resize.unknown()
            self.tell()
            return CallResult(f"{why}; {IN_DOUBT}", sent)
        resize.done(self.now_s)
        self.tell()
        return CallResult(why, sent)

    def _resize(self, process: Process, message: bytes) -> tuple[Optional[Resize], str]:
        request = read_update(message)
        grant = self.engine.grants.get(request.container_id)
        if not self.active or (
            grant is not None and grant.stance is not Management.OBSERVED and not self.enforcing
        ):
            return None, f"mode {self.mode}: requests pass as they are"
        if grant is None:
            return None, "it has no record under this id: the request passes as it is"
        try:
            resize = self._placer.resize(
                request.container_id, request.linux, request.constraint, self.now_s, self.enforcing
            )
        except BudgetSpent as error:
            return None, f"failed open: {error}"
        return resize, "" if resize is None else resize.admission.decision.why

    def resize_pod(self, pod_id: str, message: bytes) -> None:
        """UpdatePodSandboxResources."""
        request = parse(cri.UpdatePodSandboxResourcesRequest, message)
        self.runtime.sandboxes[pod_id].config.linux.resources.CopyFrom(request.resources)
        if self.active:
            size, memory = (
                sum_pod_size(request.resources, request.overhead),
                memory_limit_of(request.resources),
            )
            self.engine.resize_pod(pod_id, size, memory, self.now_s, self.enforcing)
            self.tell()

    def exit(self, process: Process, code: int) -> None:
        """The container ended."""
        process.state, process.exit_code = "exited", code
        if self.active:
            self.engine.exited(process.id, code, self.now_s)
            self.tell()
        self._reread()

    def remove(self, process: Process) -> None:
        """RemoveContainer."""
        del self.runtime.containers[process.id]
        if self.active:
            self.engine.remove(process.id)
            self.tell()
        self._reread()

    def remove_sandbox(self, pod_id: str) -> list[str]:
        """StopPodSandbox and RemovePodSandbox; returns the ids of the containers that went with it."""
        gone = self.runtime.remove_sandbox(pod_id)
        if self.active:
            self.engine.end_pod(pod_id)
            self.tell()
        self._reread()
        return gone

    # ------------------------------------------------------------------ the daemon's own work

    def tell(self) -> None:
        """Give containers the cpusets that they lack."""
        while updates := self.engine.pending(gives_back=not self.enforcing):
            for update in updates:
                now = self.engine.begin_update(update.id, gives_back=not self.enforcing)
                process = self.runtime.containers.get(update.id)
                if now is not None and process is not None:
                    process.give(now)
                    self.touched.add(process.id)
                    self.told.append(now)
                self.engine.took(update.id)

    def look(self, mends: bool = True) -> Resync:
        """A resync with everything the runtime has. ``mends``: and what must not be is mended."""
        self.told.clear()
        if not self.active:
            return Resync()
        self._reread()
        seen = [self._seen(process) for process in self.runtime.containers.values()]
        wanted = unknown_ids(self.engine, seen)
        details = {key: self.runtime.containers[key].details(self.memory_bytes) for key in wanted}
        listing = Listing({s.id: s for s in seen}, self.now_s, details, enforce=self.enforcing)
        found = resync(self.engine, listing, self.now_s)
        self.tell()
        if self.enforcing and mends:
            self.engine.mend(self.now_s)
            self.engine.relieve(self.now_s)
            self.tell()
        return found

    def broken(self) -> list[str]:
        """What must not be, in sentences."""
        return unmet(self.engine)

    def _seen(self, process: Process) -> ListedContainer:
        """What a look at the list and at the container's cgroup shows."""
        seen, grant = process.seen(), self.engine.grants.get(process.id)
        if grant is None or process.exited:
            return seen
        return replace(
            seen, resources=resources_told(grant, process.linux), has_no_quota=process.linux.cpu_quota < 0
        )

    def pass_time(self, seconds: float, edges: Iterable[ScenarioEdge] = ()) -> Resync:
        """Let time pass, in which containers have talked, and look what has become of everything."""
        self.now_s += seconds
        found = self.look()
        if self.active:
            self.engine.tick(self.now_s)
            self.tell()
        self.observer.observe(seconds, edges, self.runtime.containers)
        self.observer.tell(self.engine)
        return found

    def rebalance(self) -> str:
        """Plan, and carry it out; returns what came of it in words."""
        if not self.enforcing:
            return f"mode {self.mode}: nothing is moved"
        why = rebalance(self.engine, self.config, self.now_s)
        self.tell()
        return why

    def rehost(self, config: Config, topology: Topology) -> None:
        """The configuration or the machine has changed."""
        self.config, self.machine = config, replace(self.machine, topology=topology)
        self.observer.configure(config)
        self.observer.tell(self.engine)
        host = self._host()
        self.engine.rehost(host, make_policy(config, host.topology), engine_options(config))
        self.tell()

    def _host(self) -> Host:
        machine = replace(self.machine, kubelet_exclusive=self.runtime.kubelet_exclusive())
        host, self.warnings = make_host(self.config, machine)
        return host

    def _reread(self) -> None:
        """Let the engine know what kubelet has written down about CPUs of its own, if that is news."""
        if self.active and self.runtime.kubelet_exclusive() != self.engine.host.kubelet_exclusive:
            self.engine.follow_kubelet(self.runtime.kubelet_exclusive())
            self.tell()

    # ------------------------------------------------------------------ the state file

    def save(self) -> None:
        """Write down what the engine has changed, one text a record."""
        for (kind, key), value in self.engine.drain().items():
            if kind == "grant":
                self.touched.add(key)
            if kind == "record":
                self._store.pop((kind, str(int(key) - HISTORY)), None)
            if value is None:
                self._store.pop((kind, key), None)
            else:
                self._store[kind, key] = write_record(value)

    def restart(self, state: str) -> tuple[str, Resync]:
        """End the daemon and start one with the state file as it was ``kept``, ``lost`` or ``corrupt``.

        Returns what became of the file, and what the first look found.
        """
        if state != "kept":
            self._store.clear()
        self.engine = make_engine(self.config, self._host())
        self.observer.tell(self.engine)
        told = "the state was set aside: it was corrupt" if state == "corrupt" else f"the state was {state}"
        self._restore(self.engine)
        self.tell()
        # The numbers of tickets begin anew.
        for process in self.runtime.containers.values():
            process.ticket = process.ticket if process.ticket in self.engine.tickets else ""
        return told, self.look(mends=False)

    def _restore(self, engine: Engine) -> None:
        """Put the records into an engine, in the daemon's order."""
        found = read_records((kind, key, text) for (kind, key), text in self._store.items()).records
        distrusted: dict[tuple[str, str], float] = {}
        for key, until_s in found.get("distrust", {}).items():
            uid, _, name = key.partition("\n")
            distrusted[uid, name] = until_s
        engine.restore(
            sorted(found.get("grant", {}).values(), key=lambda g: (g.since_s, g.key)),
            found.get("ticket", {}).values(),
            found.get("pod", {}).values(),
            sorted(found.get("record", {}).values(), key=lambda r: r.number),
            distrusted,
        )


def sent_with(update: CpusetUpdate) -> dict[str, Any]:
    """The fields of an update of ours, as JSON."""
    return _fields(linux_delta(update.placement, update.give_back))


def _fields(linux: cri.LinuxContainerResources) -> dict[str, Any]:
    return {descriptor.name: value for descriptor, value in linux.ListFields()}
