"""What our NRI plugin does with each event: asks the engine, and writes the answer.

A create is bound to its container when PostCreateContainer names the id, and cancelled when the runtime takes it
back (StopContainer or RemoveContainer without it). Nothing in here waits for a call to the runtime that causes an
NRI event: the host handles one event at a time.

What is decided and not answered, as it is late or fails, is taken back at once: the runtime is told nothing.

Updates of containers outside an answer go by NRI where that is safe, else by CRI (``NriSender``). An update by CRI comes
back to us as an NRI event: updates under way are kept, to tell it from a client's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Optional, Protocol, TypeVar

from google.protobuf.message import Message

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import linux_delta, read_fence
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate, Management
from cri_proxy.front_ends.late_placement import look_up
from cri_proxy.front_ends.placer import Creation, Decided, Placer, Resize
from cri_proxy.nri import containers as reader
from cri_proxy.nri.containers import write_update
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import CALL_TIMEOUT_S, RuntimeClient
from cri_proxy.services.books import EVENT_WAIT_S
from cri_proxy.services.node_state import NodeState
from policies.model import Constraint, Container, Pod, PodSize

#: After these the runtime may still make an update.
UNANSWERED = (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.CANCELLED)
#: An update's values: cpuset and mems; quota, period, shares, memory.
_Said = tuple[Constraint, tuple[int, int, int, int]]
#: How long a create or an update may take at the runtime before its outcome is asked for, seconds.
LATE_S = 30.0
#: How long a new pod may keep its first container waiting, of the two seconds there are for an event.
POD_WAIT_S = 1.0


class HostCaller(Protocol):
    """A connection on which the host can be called."""

    async def call(self, method: str, message: bytes, timeout_s: float) -> bytes: ...


class NriSender:
    """Delivers updates, one at a time each. ``caller``: set while the host takes unasked updates."""

    def __init__(self, runtime: RuntimeClient, log: Any) -> None:
        self.caller: Optional[HostCaller] = None
        self._runtime = runtime
        self._log = log
        #: Updates by CRI that are under way, or were not answered: the runtime may yet make them. By container.
        self._flying: dict[str, list[_Said]] = {}

    async def deliver(self, update: CpusetUpdate) -> None:
        """Have the runtime give a container its place.

        :raises RpcError: it does not.
        """
        if self.caller is not None and await self._by_nri(self.caller, update):
            return
        sent = _said(linux_delta(update.placement, update.give_back))
        flying = self._flying.setdefault(update.id, [])
        if sent not in flying:
            flying.append(sent)
        try:
            await self._runtime.update(update)
        except RpcError as error:
            if error.code in UNANSWERED:
                raise
            self._over(update.id, sent)
            raise
        self._over(update.id, sent)

    def _over(self, container_id: str, sent: _Said) -> None:
        flying = self._flying.get(container_id, [])
        if sent in flying:
            flying.remove(sent)
        if not flying:
            self.forget(container_id)

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        self._flying.pop(container_id, None)

    def is_ours(self, container_id: str, asked: cri.LinuxContainerResources) -> bool:
        """Whether this update is one of ours, on its way or late."""
        return _said(asked) in self._flying.get(container_id, ())

    async def _by_nri(self, caller: HostCaller, update: CpusetUpdate) -> bool:
        """Whether the host has done it; False where it did not answer: CRI may then do it a second time."""
        written = write_update(update, may_fail=False)
        if written is None:
            return True
        request = nri.UpdateContainersRequest(update=[written])
        try:
            reply = await caller.call("UpdateContainers", request.SerializeToString(), CALL_TIMEOUT_S)
        except (CallTimedOut, ConnectionClosed) as error:
            self._log.warning("the host did not take an update", id=update.id, error=str(error))
            return False
        except CallFailed as error:
            raise _refused(error.message) from None
        if nri.UpdateContainersResponse.FromString(reply).failed:
            raise _refused("the host could not update the container")
        return True


def _said(linux: cri.LinuxContainerResources) -> _Said:
    """All values of kubelet's updates: one with any others is not ours."""
    numbers = (linux.cpu_quota, linux.cpu_period, linux.cpu_shares, linux.memory_limit_in_bytes)
    return read_fence(linux), numbers


def _refused(details: str) -> RpcError:
    """As a runtime's refusal by CRI looks."""
    return RpcError(Code.UNKNOWN, details)


@dataclass
class Told:
    """The log's line of one event."""

    method: str
    outcome: str = "passed"
    namespace: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


_Request = TypeVar("_Request", bound=Decided)


@dataclass(frozen=True)
class _Flying(Generic[_Request]):
    """An answered create or update that the runtime has not made yet. ``carries``: the containers that its answer tells."""

    request: _Request
    since_s: float
    carries: set[str] = field(default_factory=set)


class NriPlacing:
    """The events of one node. Public coroutines are events by their RPCs' names in snake case; each returns the reply."""

    def __init__(self, node_state: NodeState, sender: NriSender) -> None:
        self._node_state = node_state
        self._sender = sender
        self._creating: dict[str, _Flying[Creation]] = {}
        self._updating: dict[str, _Flying[Resize]] = {}
        #: Containers of which an update was not answered: it is made as it was asked for.
        self._unanswered: set[str] = set()
        #: Containers that were created and have not started yet, by id: pod uid and name.
        self._unstarted: dict[str, tuple[str, str]] = {}
        #: Whether the host tells of starts at all.
        self._starts_told = False
        self._sizes: dict[str, tuple[Optional[PodSize], int]] = {}
        self._looks: set[asyncio.Task[None]] = set()
        #: The containers that the answer to the last stop tells, and their engine.
        self._told_by_stop: tuple[Optional[Engine], set[str]] = (None, set())
        #: Called where a container is created past the engine, as that is not to be asked.
        self.on_unasked: Callable[[], None] = lambda: None
        #: While a snapshot is followed: the containers that have ended since.
        self.ended: Optional[set[str]] = None

    # ------------------------------------------------------------------ pods

    async def run_pod_sandbox(self, request: Any, told: Told) -> None:
        engine = self._node_state.active()
        if engine is None:
            return
        pod = self._pod(engine, request.pod)
        told.fields.update(pod=f"{pod.namespace}/{pod.name}", id=pod.id)
        self._node_state.save()
        # Its cgroup may be new; reading the machine goes on if it takes longer than the event may.
        look = asyncio.get_running_loop().create_task(self._look_at(pod))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)
        await asyncio.wait([look], timeout=POD_WAIT_S)

    async def _look_at(self, pod: Pod) -> None:
        try:
            await self._node_state.on_pod(pod)
        except Exception:
            self._node_state.log.error("a pod's cgroup could not be looked at", exc_info=True)

    async def close(self) -> None:
        """End tasks that outlast events."""
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def update_pod_sandbox(self, request: Any, told: Told) -> None:
        told.fields["id"] = request.pod.id
        self._sizes[request.pod.id] = reader.read_size(request)
        quota_us = reader.cri_resources(request.linux_resources).cpu_quota
        await self._node_state.before_quota(request.pod.id, quota_us)

    async def post_update_pod_sandbox(self, request: Any, told: Told) -> None:
        told.fields["id"] = request.pod.id
        engine, told_sizes = self._node_state.active(), self._sizes.pop(request.pod.id, None)
        if engine is not None and told_sizes is not None:
            now_s, gives_cpus = self._node_state.clock(), self._node_state.gives_cpus
            engine.resize_pod(request.pod.id, *told_sizes, now_s, gives_cpus)
            self._node_state.save()

    async def stop_pod_sandbox(self, request: Any, told: Told) -> None:
        told.fields["id"] = request.pod.id
        self._sizes.pop(request.pod.id, None)
        engine = self._node_state.active()
        if engine is not None:
            self._doubt_creates(engine, lambda container: container.pod.id == request.pod.id)
            engine.end_pod(request.pod.id)
            self._node_state.save()

    remove_pod_sandbox = stop_pod_sandbox

    def _pod(self, engine: Engine, message: nri.PodSandbox) -> Pod:
        known = engine.pods.get(message.id)
        pod = reader.read_pod(message, known)
        if pod != known:
            engine.add_pod(pod)
        return pod

    # ------------------------------------------------------------------ a create

    async def create_container(self, request: Any, told: Told) -> Optional[Message]:
        node_state = self._node_state
        told.fields["id"], told.namespace = request.container.id, request.pod.namespace
        engine = await self._asked(told)
        if engine is None:
            self.on_unasked()
            return None
        # 1. The container, hints of its devices, its pod's cgroup.
        pod = self._pod(engine, request.pod)
        self._note_failed_starts(engine, (pod.uid, request.container.name))
        attempt = reader.next_attempt(engine.grants.values(), pod.uid, request.container.name)
        read = reader.read_container(request.container, pod, attempt, node_state.memory_bytes)
        told.fields.update(container=read.container.path, attempt=read.container.attempt)
        container = await look_up(node_state, engine, read.container, read.constraint, read.uses)
        if node_state.active() is not engine:  # it was replaced meanwhile
            return None
        # 2. Its place.
        with node_state.updates.held():
            # A runtime makes one container of a name at a time.
            mine = (pod.uid, container.name)
            self._doubt_creates(engine, lambda other: (other.pod.uid, other.name) == mine)
            now_s = node_state.clock()
            creation = Placer(engine).create(
                container, read.constraint, now_s, node_state.enforcing, node_state.meanwhile(engine)
            )
            node_state.metrics.decision_seconds.observe(node_state.clock() - now_s)
            # 3. The answer, with updates of containers that make room, before it is made.
            with self._answering(self._creating, request.container.id, creation) as flying:
                _tell(told, creation)
                await self._written(engine)
                adjust = reader.write_adjustment(creation.placement, read.constraint)
                if node_state.on_create is not None and creation.ticket is not None:
                    words = node_state.on_create(engine.grants[creation.ticket.key])
                    adjust = reader.with_scheduling(adjust, words, request.container)
                reply: Message = nri.CreateContainerResponse(
                    adjust=adjust, update=self._in_answer(flying.carries, only_shrinks=True)
                )
                return reply

    def _doubt_creates(self, engine: Engine, has_ended: Callable[[Container], bool]) -> None:
        """The creates of these containers have ended, and no event has told how: the next of a name takes over its CPUs.

        CRI-O does not tell of one that another plugin has refused.
        """
        for flying in list(self._creating.values()):
            ticket = flying.request.ticket
            if ticket is None or ticket.in_doubt or flying.request.engine is not engine:
                continue
            if has_ended(engine.grants[ticket.key].container):
                self._doubt(flying)

    async def _asked(self, told: Told) -> Optional[Engine]:
        """The engine, once it is known which CPUs are owned, or that takes too long; None: there is none to ask."""
        if self._node_state.enforcing and self._node_state.active() is not None:
            await self._node_state.books.known(told.method, EVENT_WAIT_S)
        return self._node_state.active()

    def _note_failed_starts(self, engine: Engine, container: tuple[str, str]) -> None:
        """Kubelet makes the next attempt of a container that never started: its start has failed.

        NRI does not tell why, as CRI does: so the place is blamed after two in a row.
        """
        for key in [key for key, name in self._unstarted.items() if name == container]:
            del self._unstarted[key]
            if not self._starts_told:
                continue
            distrusted = engine.start_failed(key, "", self._node_state.clock())
            self._node_state.metrics.start_failures.labels("untouched" if distrusted else "placed").inc()

    async def post_create_container(self, request: Any, told: Told) -> None:
        told.fields["id"] = request.container.id
        self.bind(request.container.id)

    def bind(self, container_id: str) -> None:
        """The runtime has made a container."""
        node_state, flying = self._node_state, self._creating.pop(container_id, None)
        if flying is None:
            return
        flying.request.created(container_id, node_state.clock())
        if flying.request.admission.stance is Management.WAITING:
            node_state.on_doubt()
        self._carried(flying, is_taken=True)
        grant = flying.request.engine.grants.get(container_id)
        if grant is not None:
            self._unstarted[container_id] = (grant.container.pod.uid, grant.container.name)
        node_state.save()

    async def start_container(self, request: Any, told: Told) -> None:
        """The container's first process is there, and does not run."""
        key = told.fields["id"] = request.container.id
        self.bind(key)
        if self._node_state.on_start is not None:
            await self._node_state.on_start(key)

    async def post_start_container(self, request: Any, told: Told) -> None:
        key = told.fields["id"] = request.container.id
        self.bind(key)
        self._unstarted.pop(key, None)
        self._starts_told = True
        engine = self._node_state.active()
        if engine is not None:
            engine.started(key)
            self._node_state.save()
            self._node_state.on_started(key)

    # ------------------------------------------------------------------ an update

    async def update_container(self, request: Any, told: Told) -> Optional[Message]:
        node_state = self._node_state
        key = told.fields["id"] = request.container.id
        linux = reader.cri_resources(request.linux_resources)
        if self._sender.is_ours(key, linux):
            told.outcome = "ours"
            return None
        await node_state.before_quota(key, linux.cpu_quota)
        engine = await self._asked(told)
        if engine is None:
            return None
        if node_state.enforcing and not node_state.books.are_true:
            told.outcome = "untouched: waiting"  # a comparison places it by what it has then
            node_state.on_doubt()
            return None
        if grant := engine.grants.get(key):
            told.namespace = grant.container.pod.namespace
            told.fields["container"] = grant.container.path
        await node_state.know_whose(constraint := read_fence(linux))
        if node_state.active() is not engine:  # it was replaced meanwhile
            return None
        with node_state.updates.held():
            resize = Placer(engine).resize(key, linux, constraint, node_state.clock(), node_state.enforcing)
            if resize is None:
                return None
            before = self._updating.get(key)
            if before is not None:  # no event has told how that ended
                self._doubt(before)
            with self._answering(self._updating, key, resize) as flying:
                _tell(told, resize)
                await self._written(engine)
                own = reader.write_container_update(key, resize.placement, resize.give_back)
                others = self._in_answer(flying.carries, only_shrinks=True)
                reply: Message = nri.UpdateContainerResponse(
                    update=[*others, *([own] if own is not None else [])]
                )
                return reply

    async def post_update_container(self, request: Any, told: Told) -> None:
        key = told.fields["id"] = request.container.id
        node_state, flying = self._node_state, self._updating.pop(key, None)
        if key in self._unanswered:
            self._unanswered.discard(key)
            node_state.on_doubt()
        if flying is None:
            return
        flying.request.done(node_state.clock())
        self._carried(flying, is_taken=True)
        node_state.save()

    # ------------------------------------------------------------------ the end

    async def stop_container(self, request: Any, told: Told) -> Optional[Message]:
        key = told.fields["id"] = request.container.id
        if self._cancelled(key, told):
            return None
        engine = self._node_state.active()
        if engine is None:
            return None
        grant = engine.grants.get(key)
        if grant is not None:
            told.fields["container"] = grant.container.path
        with self._node_state.updates.held():
            engine.exited(key, reader.read_exit_code(request.container), self._node_state.clock())
            await self._written(engine)
            # Others' updates are in the answer.
            self._told_by_stop = engine, set()
            try:
                reply: Message = nri.StopContainerResponse(update=self._in_answer(self._told_by_stop[1]))
            except BaseException:
                self._end_stop(is_taken=False)
                raise
            return reply

    async def remove_container(self, request: Any, told: Told) -> None:
        key = told.fields["id"] = request.container.id
        if self._cancelled(key, told):
            return
        self._unstarted.pop(key, None)
        self._updating.pop(key, None)
        self._unanswered.discard(key)
        self._sender.forget(key)
        engine = self._node_state.active()
        if engine is not None:
            engine.remove(key)
            self._node_state.save()

    def _cancelled(self, key: str, told: Told) -> bool:
        """Whether the runtime takes back a failed create by this event of a container's end."""
        if self.ended is not None:
            self.ended.add(key)
        flying = self._creating.pop(key, None)
        if flying is None:
            return False
        if flying.request.ticket is None:  # a comparison has found it made before any event has
            self._carried(flying, is_taken=False)
            return False
        told.outcome = "cancelled"
        self._take_back(flying, "not created: the runtime has taken it back")
        return True

    # ------------------------------------------------------------------ what no message tells

    def lost(self) -> None:
        """No events come until the next connection."""
        self._unstarted.clear()
        self._unanswered.clear()
        self._sizes.clear()
        self._end_stop(is_taken=False)
        self.doubt()

    def doubt(self, late_s: float = 0.0) -> None:
        """The outcome of requests older than this is unknown: resync finds it. A late event still binds one."""
        node_state, now_s = self._node_state, self._node_state.clock()
        doubted = False
        both: list[dict[str, _Flying[Any]]] = [self._creating, self._updating]
        for flights in both:
            for key, flying in list(flights.items()):
                ticket = flying.request.ticket
                if ticket is None:  # a resync has resolved it
                    self._carried(flights.pop(key), is_taken=False)
                elif not ticket.in_doubt and now_s - flying.since_s >= late_s:
                    self._doubt(flying)
                    doubted = True
        if doubted:
            node_state.save()

    def _doubt(self, flying: _Flying[Any]) -> None:
        flying.request.unknown()
        self._carried(flying, is_taken=False)
        self._node_state.on_doubt()

    # ------------------------------------------------------------------ answers

    @contextlib.contextmanager
    def _answering(
        self, flights: dict[str, _Flying[_Request]], key: str, request: _Request
    ) -> Iterator[_Flying[_Request]]:
        """While a decided request is answered; one that gets no answer is taken back, and what has it is looked at."""
        flying = flights[key] = _Flying(request, self._node_state.clock())
        try:
            yield flying
        except BaseException:
            if flights.get(key) is flying:
                del flights[key]
            self._take_back(flying, "the host was not answered")
            if isinstance(request, Resize):
                self._unanswered.add(key)
            self._node_state.on_doubt()
            raise

    def _take_back(self, flying: _Flying[Any], why: str) -> None:
        """The runtime has not made what it was answered, or was not answered at all."""
        flying.request.failed(self._node_state.clock(), why)
        self._carried(flying, is_taken=False)
        self._node_state.save()

    async def _written(self, engine: Engine) -> None:
        """Wait until all that an answer follows from is written; no other event comes meanwhile, but a comparison may."""
        version = -1
        while version != engine.version:
            version = engine.version
            await self._node_state.saved()

    def _in_answer(self, carried: set[str], only_shrinks: bool = False) -> list[nri.ContainerUpdate]:
        """What containers lack, as part of an answer; their ids are added to ``carried``."""
        updates, engine = self._node_state.updates, self._node_state.engine
        ready = [] if engine is None else engine.pending(updates.gives_back)
        written = []
        for each in ready:
            update = updates.begin(each.id) if each.shrink or not only_shrinks else None
            message = None if update is None else reader.write_update(update)
            if message is not None:
                written.append(message)
                carried.add(each.id)
            elif update is not None and engine is not None:
                updates.end(engine, each.id, is_taken=True)  # there is nothing in it that NRI can tell
        return written

    def _carried(self, flying: _Flying[Any], is_taken: bool) -> None:
        """An answer is carried out; or whether that is so is not known."""
        while flying.carries:
            self._node_state.updates.end(flying.request.engine, flying.carries.pop(), is_taken)

    def begin_event(self) -> None:
        """The host has another event: it has carried out its answer to a stop, which no event tells of."""
        self._end_stop(is_taken=True)

    def _end_stop(self, is_taken: bool) -> None:
        engine, carried = self._told_by_stop
        while engine is not None and carried:
            self._node_state.updates.end(engine, carried.pop(), is_taken)


def _tell(told: Told, decided: Decided) -> None:
    told.outcome, told.fields["describe"] = decided.outcome, decided.describe
