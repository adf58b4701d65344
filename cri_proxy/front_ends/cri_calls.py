"""Carries out what the engine decides about the calls we intercept, one small class for each kind of call.

Rule: nothing that goes wrong in here reaches the client. A bug, an unreadable message, a spent budget: the
original bytes go through, with one log line and a counter (unless the namespace is configured to fail closed).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import (
    UnreadableRequest,
    UpdateRequest,
    memory_limit_of,
    parse,
    read_create,
    read_pod,
    read_restore,
    read_update,
    sum_pod_size,
    write_create_delta,
    write_update_delta,
)
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import LEFT_ALONE, Management
from cri_proxy.engine.report import path_of
from cri_proxy.engine.state import MESSAGE_CHARS
from cri_proxy.front_ends.events import EventStream
from cri_proxy.front_ends.late_placement import Restores, look_up
from cri_proxy.front_ends.placer import Creation, Placer, Resize
from cri_proxy.relay.interception import (
    CallEnd,
    Forward,
    Interception,
    Outcome,
    Refuse,
    end_of,
    intercepted,
)
from cri_proxy.relay.status import Code
from cri_proxy.services.books import CALL_WAIT_S
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.services import EventCount
from policies.machine.cpus import format_cpus
from policies.model import BudgetSpent, PlacementRefused
from policies.wanted import requires_place


class CriInterceptor:
    """Opens an ``Interception`` for every intercepted method while the engine is to be asked."""

    def __init__(self, node_state: NodeState, events: EventCount, restores: Restores) -> None:
        self._node_state = node_state
        self._events = events
        self._restores = restores

    def open(self, full_method: str) -> Optional[Interception]:
        method = intercepted(full_method)
        if not method:
            return None
        engine = self._node_state.active()
        if engine is None and method != "GetContainerEvents":
            return None
        if method == "GetContainerEvents":
            return EventStream(self._node_state, self._events)
        assert engine is not None
        if method == "RestorePod":
            return RestorePod(self._node_state, engine, self._restores)
        return _KINDS[method](self._node_state, engine)


class InterceptedCall:
    """What all intercepted calls share: guarded steps, and one log line at the end."""

    filter: Optional[Callable[[bytes], bytes]] = None
    method = ""

    def __init__(self, node_state: NodeState, engine: Engine) -> None:
        self.node_state = node_state
        self.engine = engine
        self.placer = Placer(engine)
        self.outcome = "passed"
        self.fields: dict[str, Any] = {}
        self.namespace = ""
        self.decision_us = 0.0

    # The three steps a transport calls; each guarded, none raises.

    async def request(self, message: bytes) -> Outcome:
        started = time.perf_counter()
        try:
            outcome = await self.decide(message)
        except PlacementRefused as error:
            self.outcome = "refused"
            self.fields["why"] = str(error)
            outcome = Refuse(Code.FAILED_PRECONDITION, f"cri-resmgr: {error}")
        except Exception as error:
            self._fail_open(error)
            self._unsent()
            outcome = self._undecided()
        self.decision_us = (time.perf_counter() - started) * 1e6
        return outcome

    async def replied(self, message: bytes) -> None:
        try:
            await self.done(message)
        except Exception as error:
            self._fail_open(error)

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        try:
            await self.close(end, code, details)
        except Exception as error:
            self._fail_open(error)
        self.node_state.metrics.requests.labels(self.method, self.outcome).inc()
        self.fields.update(outcome=self.outcome, us=round(self.decision_us))
        if code:
            self.fields.update(code=int(code), details=details[:MESSAGE_CHARS])
        self.node_state.log.info(self.method, **self.fields)

    def _fail_open(self, error: Exception) -> None:
        reason = _reason(error)
        self.outcome = f"failed open: {reason}"
        self.node_state.failed_open(self.method, reason, error)

    def _unsent(self) -> None:
        """A request passes as it came, or is refused, after it was decided: no container has what was decided."""
        try:
            if self.give_back("it could not be carried out"):
                self.node_state.save()
                self.node_state.on_doubt()
        except Exception as error:
            self._fail_open(error)

    def _undecided(self) -> Outcome:
        if not self.node_state.fails_closed(self.namespace):
            return Forward()
        reason = self.outcome.rpartition(" ")[2]
        self.outcome = "refused"
        return Refuse(
            Code.INTERNAL,
            f"cri-resmgr: {self.method} could not be decided ({reason}) and {self.namespace} fails closed",
        )

    async def may_decide(self, seconds: float = CALL_WAIT_S) -> bool:
        """Wait until it is known which CPUs are owned, at most so long; whether there is an engine to ask then.

        It may be another one than before: ``reset-policy`` has come between.
        """
        node_state = self.node_state
        if node_state.enforcing:
            await node_state.books.known(self.method, seconds)
        engine = node_state.active()
        if engine is not None and engine is not self.engine:
            self.engine, self.placer = engine, Placer(engine)
        return engine is not None

    def note_company(self, others: tuple[str, ...]) -> list[str]:
        """Have it known that a container is not alone on CPUs which it owns; the others in words."""
        paths = [path_of(self.engine, key) for key in others]
        if paths:
            self.fields["not_alone"] = paths
            self.node_state.metrics.not_alone.labels(self.method).inc()
        return paths

    # What a kind of call does; the defaults pass.

    def give_back(self, why: str) -> bool:
        """What was decided is not sent; whether anything was."""
        return False

    async def decide(self, message: bytes) -> Outcome:
        return Forward()

    async def done(self, message: bytes) -> None:
        pass

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        pass


def _reason(error: Exception) -> str:
    if isinstance(error, UnreadableRequest):
        return "unreadable"
    return "budget" if isinstance(error, BudgetSpent) else "bug"


class CreateContainer(InterceptedCall):
    method = "CreateContainer"
    creation: Optional[Creation] = None
    #: What NRI plugins have asked for that isolation does (``ContainerRecord.asked``).
    asked: Mapping[str, str] = {}

    @property
    def is_isolated(self) -> bool:
        """Whether isolation treats the container."""
        return self.creation is not None and self.creation.admission.stance not in LEFT_ALONE

    async def decide(self, message: bytes) -> Outcome:
        node_state, books = self.node_state, self.node_state.books
        while True:
            if not await self.may_decide():
                return Forward()
            engine, question = self.engine, books.question
            request = read_create(message, engine.pods, node_state.memory_bytes)
            container = request.container
            self.namespace = container.pod.namespace
            self.fields.update(container=container.path, attempt=container.attempt)
            container = await look_up(node_state, engine, container, request.constraint, request.uses)
            if node_state.active() is engine and question == books.question:
                break  # else it was replaced meanwhile, or is in question
        started = time.perf_counter()
        creation = self.placer.create(
            container,
            request.constraint,
            node_state.clock(),
            node_state.enforcing,
            node_state.meanwhile(engine),
        )
        node_state.metrics.decision_seconds.observe(time.perf_counter() - started)
        self.creation, self.outcome = creation, creation.outcome
        self.fields["describe"] = creation.describe
        node_state.save()
        delta = write_create_delta(creation.placement)  # while the thread that writes wakes up
        await node_state.store.settled()
        return Forward(delta)

    async def decide_again(self, message: bytes) -> Outcome:
        """Give the place back and decide anew: plugins have changed the request that was decided about."""
        self.give_back("plugins have changed the request")
        return await self.request(message)

    def give_back(self, why: str) -> bool:
        creation, self.creation = self.creation, None
        if creation is not None:
            creation.failed(self.node_state.clock(), why)
        return creation is not None

    async def done(self, message: bytes) -> None:
        if self.creation is None:
            return
        container_id = parse(cri.CreateContainerResponse, message).container_id
        if not container_id:
            return
        self.creation.created(container_id, self.node_state.clock())
        if self.asked:
            self.engine.heard(container_id, self.asked)
        self.fields["id"] = container_id
        if self.creation.admission.stance is Management.WAITING or self.engine is not self.node_state.engine:
            self.node_state.on_doubt()  # a look places it, or finds it for an engine that has come meanwhile
        # Its place is durable; by that and the runtime's list it is found should this be lost.
        self.node_state.save_together()
        await self.node_state.limits_lifted()

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if self.creation is None or self.creation.has_ended:
            return
        if end is CallEnd.REFUSED:
            self.outcome = "cancelled"
            now_s = self.node_state.clock()
            if self.creation.engine.create_failed(self.creation.admission.ticket, details, now_s):
                self.node_state.metrics.start_failures.labels("untouched").inc()
                self.fields["next_create_untouched"] = True
            why = f"not created: {details[:MESSAGE_CHARS]}"
            self.creation.failed(now_s, why)
        else:
            self.outcome = "in doubt"
            self.creation.unknown()
            self.node_state.on_doubt()
        await self.node_state.saved()


class UpdateContainerResources(InterceptedCall):
    method = "UpdateContainerResources"
    resize: Optional[Resize] = None

    async def decide(self, message: bytes) -> Outcome:
        request = read_update(message)
        self.fields["id"] = request.container_id
        outcome = await self._decide(request)
        await self.node_state.before_quota(request.container_id, request.linux.cpu_quota)
        return outcome

    async def _decide(self, request: UpdateRequest) -> Outcome:
        node_state = self.node_state
        if not await self.may_decide():
            return Forward()
        if node_state.enforcing and not node_state.books.are_true:
            self.outcome = "untouched: waiting"  # a comparison places it by what it has then
            node_state.on_doubt()
            return Forward()
        if grant := self.engine.grants.get(request.container_id):
            self.namespace = grant.container.pod.namespace
            self.fields["container"] = grant.container.path
        await node_state.know_whose(request.constraint)
        if node_state.active() is not self.engine:  # it was replaced meanwhile
            return Forward()
        resize = self.placer.resize(
            request.container_id, request.linux, request.constraint, node_state.clock(), node_state.enforcing
        )
        if resize is None:
            return Forward()
        self.resize, self.outcome = resize, resize.outcome
        self.fields["describe"] = resize.describe
        await node_state.saved()
        # No start comes after it to wait for others to leave.
        self.note_company(await node_state.updates.alone(resize.admission.ticket, node_state.shrink_wait_s))
        return Forward(write_update_delta(resize.placement, resize.give_back))

    def give_back(self, why: str) -> bool:
        resize, self.resize = self.resize, None
        if resize is not None:
            resize.failed(self.node_state.clock(), why, was_sent=False)
        return resize is not None

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if self.resize is None:
            return
        if end is CallEnd.OK:
            self.resize.done(self.node_state.clock())
        elif end is CallEnd.REFUSED:
            self.outcome = "cancelled"
            # No answer of a runtime's own has a code by which it would not be known what it has done.
            was_sent = end_of(code, sent=True) is CallEnd.REFUSED
            self.resize.failed(self.node_state.clock(), was_sent=was_sent)
        else:
            self.outcome = "in doubt"
            self.resize.unknown()
            self.node_state.on_doubt()
        await self.node_state.saved()


class RunPodSandbox(InterceptedCall):
    method = "RunPodSandbox"
    request_message = b""

    async def decide(self, message: bytes) -> Outcome:
        self.request_message = message
        return Forward()

    async def done(self, message: bytes) -> None:
        request = parse(cri.RunPodSandboxRequest, self.request_message)
        sandbox_id = parse(cri.RunPodSandboxResponse, message).pod_sandbox_id
        pod = read_pod(request.config, sandbox_id, request.runtime_handler)
        self.engine.add_pod(pod)
        await self.node_state.saved()
        self.fields.update(pod=f"{pod.namespace}/{pod.name}", id=sandbox_id)
        await self.node_state.on_pod(pod)


class RestorePod(InterceptedCall):
    """Its containers are placed between the reply and their start; whatever goes wrong, the reply passes."""

    method = "RestorePod"
    message = b""
    pod_uid = ""
    is_placed = False

    def __init__(self, node_state: NodeState, engine: Engine, restores: Restores) -> None:
        super().__init__(node_state, engine)
        self._restores = restores

    async def decide(self, message: bytes) -> Outcome:
        self.message = message
        pod = parse(cri.RestorePodRequest, message).config.metadata
        self.pod_uid = pod.uid
        self.fields.update(pod=f"{pod.namespace}/{pod.name}")
        self._restores.begun(pod.uid)
        return Forward()

    async def done(self, message: bytes) -> None:
        made = read_restore(self.message, message, self.node_state.memory_bytes)
        self.fields.update(containers=len(made))
        if await self.may_decide() and self.node_state.books.are_true:
            await self._restores.place(self.engine, made)
        # Those that the reply names and the request does not are the next comparison's.
        named = len(parse(cri.RestorePodResponse, message).restored_containers)
        self.is_placed = len(made) == named and all(key in self.engine.grants for key in made)
        self.outcome = "placed" if self.is_placed else "in doubt"

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        is_known = self.is_placed or end is CallEnd.REFUSED
        self._restores.ended(self.pod_uid, is_known)
        if not is_known:
            self.node_state.on_doubt()


class UpdatePodSandboxResources(InterceptedCall):
    method = "UpdatePodSandboxResources"
    message = b""

    async def decide(self, message: bytes) -> Outcome:
        self.message = message
        request = parse(cri.UpdatePodSandboxResourcesRequest, message)
        # Kubelet writes the pod's cgroup once the runtime has answered (doPodResizeAction).
        await self.node_state.before_quota(request.pod_sandbox_id, request.resources.cpu_quota)
        return Forward()

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        # Where the runtime does not know the call, kubelet goes on with the resize (updatePodSandboxResources).
        if end is CallEnd.OK or code == Code.UNIMPLEMENTED:
            request = parse(cri.UpdatePodSandboxResourcesRequest, self.message)
            self.fields["id"] = request.pod_sandbox_id
            size, memory = (
                sum_pod_size(request.resources, request.overhead),
                memory_limit_of(request.resources),
            )
            now_s, gives_cpus = self.node_state.clock(), self.node_state.gives_cpus
            self.engine.resize_pod(request.pod_sandbox_id, size, memory, now_s, gives_cpus)
            await self.node_state.saved()


class _AboutContainer(InterceptedCall):
    """A call whose request names a container in field 1: StartContainer, StopContainer, RemoveContainer."""

    container_id = ""

    async def decide(self, message: bytes) -> Outcome:
        # The three requests share field 1; reading one as another leaves what it does not know alone.
        self.container_id = parse(cri.RemoveContainerRequest, message).container_id
        self.fields["id"] = self.container_id
        grant = self.engine.grants.get(self.container_id)
        if grant is not None:
            self.fields["container"] = grant.container.path
        return Forward()


class StartContainer(_AboutContainer):
    """A container that owns CPUs starts once others have left them, or after some time; that is no failure of its start."""

    method = "StartContainer"
    is_ours = False

    async def decide(self, message: bytes) -> Outcome:
        outcome = await self._once_alone(await super().decide(message))
        on_start = self.node_state.on_start
        if on_start is not None and isinstance(outcome, Forward):
            await on_start(self.container_id)
        return outcome

    async def _once_alone(self, outcome: Outcome) -> Outcome:
        """Wait until others have left the CPUs that the container owns; a refusal if they must have, and have not."""
        node_state, grant = self.node_state, self.engine.grants.get(self.container_id)
        if not node_state.enforcing or (grant is not None and not grant.own):
            return outcome
        ends_at_s = node_state.clock() + node_state.shrink_wait_s
        await self.may_decide(node_state.shrink_wait_s)
        grant = self.engine.grants.get(self.container_id)
        if grant is None or not grant.own:
            return outcome
        self.namespace = grant.container.pod.namespace
        left_s = max(ends_at_s - node_state.clock(), 0)
        others = self.note_company(await node_state.updates.alone(self.container_id, left_s))
        if others and requires_place(grant.container):
            self.is_ours, self.outcome = True, "refused"
            return Refuse(Code.FAILED_PRECONDITION, f"cri-resmgr: CPUs {format_cpus(grant.own)} are its own by "
                          f"{requires_place(grant.container)}, and {', '.join(others)} may still run there")  # fmt: skip
        return outcome

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if self.is_ours:
            return
        if end is CallEnd.OK:
            self.engine.started(self.container_id)
            self.node_state.save_together()
            return
        if (
            end is CallEnd.REFUSED and code != Code.UNAVAILABLE
        ):  # of a runtime that is away the place is not to blame
            distrusted = self.engine.start_failed(self.container_id, details, self.node_state.clock())
            self.node_state.metrics.start_failures.labels("untouched" if distrusted else "placed").inc()
            self.fields["next_create_untouched"] = distrusted
        await self.node_state.saved()


class StopContainer(_AboutContainer):
    method = "StopContainer"

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if end is CallEnd.OK:
            self.engine.exited(self.container_id, None, self.node_state.clock())
            self.node_state.save_together()


class RemoveContainer(_AboutContainer):
    method = "RemoveContainer"

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if end is CallEnd.OK or code == Code.NOT_FOUND:
            self.engine.remove(self.container_id)
            self.node_state.save_together()


class EndPodSandbox(InterceptedCall):
    """StopPodSandbox and RemovePodSandbox."""

    sandbox_id = ""

    async def decide(self, message: bytes) -> Outcome:
        self.sandbox_id = parse(cri.RemovePodSandboxRequest, message).pod_sandbox_id
        self.fields["id"] = self.sandbox_id
        return Forward()

    async def close(self, end: CallEnd, code: int, details: str) -> None:
        if end is CallEnd.OK or code == Code.NOT_FOUND:
            self.engine.end_pod(self.sandbox_id)
            self.node_state.save_together()


class StopPodSandbox(EndPodSandbox):
    method = "StopPodSandbox"


class RemovePodSandbox(EndPodSandbox):
    method = "RemovePodSandbox"


_KINDS: dict[str, type[InterceptedCall]] = {
    kind.method: kind
    for kind in (
        RunPodSandbox,
        StopPodSandbox,
        RemovePodSandbox,
        UpdatePodSandboxResources,
        CreateContainer,
        StartContainer,
        StopContainer,
        RemoveContainer,
        UpdateContainerResources,
    )
}
