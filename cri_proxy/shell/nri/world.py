"""The node as NRI plugins see it: their pods and containers, shown from what the runtime says, and kept in memory.

A verbose status costs a millisecond or two, a Synchronize needs it of everybody: so each is asked for once, in
the background while nobody waits. What plugins want of containers that run goes to the runtime from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.core.hiding import Hidden
from cri_proxy.core.interception import AnswerFailed, Forward, Interception, end_of
from cri_proxy.core.nri.life import Due, Life, State
from cri_proxy.core.nri.view import view_container, view_pod
from cri_proxy.shell.nri.expression import Expression
from cri_proxy.shell.nri.upstream import UNDO_TIMEOUT_S, Upstream
from cri_proxy.shell.runtime import Runtime, gather_limited

AT_A_TIME = 8
#: How long a snapshot waits for calls that were passed on before a plugin was there.
SETTLE_S = 5.0
_STATES = {
    cri.CONTAINER_CREATED: State.CREATED,
    cri.CONTAINER_RUNNING: State.RUNNING,
    cri.CONTAINER_EXITED: State.STOPPED,
}
_SHOWN = {
    State.CREATED: nri.CONTAINER_CREATED,
    State.RUNNING: nri.CONTAINER_RUNNING,
    State.STOPPED: nri.CONTAINER_STOPPED,
}


@dataclass(frozen=True)
class Encoded:
    """A pod or container as its bytes, which are made once: most do not change from one snapshot to the next."""

    id: str
    data: bytes

    def SerializeToString(self) -> bytes:
        """As the message itself has it: that is all that is wanted of it."""
        return self.data


def _live(containers: dict[str, cri.Container]) -> list[tuple[str, cri.Container]]:
    return [(key, item) for key, item in containers.items() if item.state != cri.CONTAINER_EXITED]


class World:
    """``open_engine`` opens the engine's own interception of an UpdateContainerResources; None: it has none."""

    def __init__(
        self,
        runtime: Runtime,
        upstream: Upstream,
        hidden: Hidden,
        life: Life,
        open_engine: Callable[[str], Optional[Interception]],
        expression: Expression,
        log: Any,
    ) -> None:
        self._runtime = runtime
        self._upstream = upstream
        self._hidden = hidden
        self._life = life
        self._open_engine = open_engine
        self.expression = expression
        self._log = log
        self._pods: dict[str, nri.PodSandbox] = {}
        #: By id, with the state they show: dropped with every other change.
        self._bytes: dict[str, tuple[int, Encoded]] = {}
        self._containers: dict[str, nri.Container] = {}
        #: Those looked up since they were started: before, they had no process.
        self._seen_running: set[str] = set()
        #: What plugins have agreed to while clients do not see it yet.
        self.accepted: set[str] = set()
        #: Whether the map of lives is kept in step: some plugin is told of events.
        self.is_following = False
        #: Called with what a list has shown to be due.
        self.on_due: Callable[[Iterable[Due]], object] = lambda due: None
        #: Waits until calls have ended that were passed on without plugins being asked.
        self.settled: Optional[Callable[[float], Any]] = None

    # ------------------------------------------------------------------ pods and containers

    async def pod(self, pod_id: str) -> nri.PodSandbox:
        """A sandbox; of one that the runtime does not know any more, what is known, if only its id."""
        if pod_id not in self._pods:
            request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
            try:
                status = await self._upstream.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
            except AnswerFailed:
                return nri.PodSandbox(id=pod_id)
            self._pods[pod_id] = view_pod(pod_id, status=status)
        return self._pods[pod_id]

    async def look_up(self, container_id: str, pod_id: str = "") -> Optional[nri.Container]:
        """A container as the runtime shows it now; None: it does not."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            status = await self._upstream.call("ContainerStatus", request, cri.ContainerStatusResponse)
        except AnswerFailed:
            return None
        pod_id = pod_id or self._life.pod_of(container_id)
        pod = self._pods.get(pod_id)
        cgroup_parent = "" if pod is None else pod.linux.cgroup_parent
        container = view_container(pod_id, status, cgroup_parent=cgroup_parent)
        self.remember(container)
        return container

    async def container(self, container_id: str) -> Optional[nri.Container]:
        """A container that plugins know of, in its present state; None: it is nobody's business."""
        state = self._life.state(container_id)
        if state is None or self._is_unfinished(container_id):
            return None
        found = self._containers.get(container_id) or await self.look_up(container_id)
        if found is not None:
            found.state = _SHOWN[state]
        return found

    async def last_known(self, container_id: str, pod_id: str) -> nri.Container:
        """For events about what has ended: how the runtime shows it, else how it was last seen."""
        found = await self.look_up(container_id, pod_id) or self._containers.get(container_id)
        if found is None:
            found = nri.Container(id=container_id, pod_sandbox_id=pod_id)
        return found

    def remember(self, container: nri.Container) -> None:
        self._containers[container.id] = container
        self._bytes.pop(container.id, None)

    def forget(self, container_id: str) -> None:
        self._containers.pop(container_id, None)
        self._bytes.pop(container_id, None)

    def forget_pod(self, pod_id: str) -> None:
        self._pods.pop(pod_id, None)
        self._bytes.pop(pod_id, None)

    def note_pod_size(self, pod_id: str, overhead: nri.LinuxResources, resources: nri.LinuxResources) -> None:
        """A sandbox has got another size."""
        known = self._pods.get(pod_id)
        if known is not None:
            known.linux.pod_overhead.CopyFrom(overhead)
            known.linux.pod_resources.CopyFrom(resources)
            self._bytes.pop(pod_id, None)

    # ------------------------------------------------------------------ lists

    async def snapshot(self) -> tuple[list[nri.PodSandbox], list[nri.Container]]:
        """All pods, and the containers that have not ended; what plugins have not agreed to is left out.

        :raises AnswerFailed: the runtime does not answer.
        """
        if self.settled is not None:
            await self.settled(SETTLE_S)
        pods, containers = await self._follow_lists()
        shown = {
            key: pod for key, pod in pods.items() if key in self.accepted or not self._is_hidden_pod(pod)
        }
        live = {key: c for key, c in _live(containers) if key in self.accepted or not self._is_hidden(c)}
        await self._fill(shown, live)
        for key, item in live.items():
            if key in self._containers:
                self._containers[key].state = _SHOWN[_STATES.get(item.state, State.STOPPED)]
        return (
            [self._encoded(self._pods[key]) for key in shown if key in self._pods],
            [self._encoded(self._containers[key]) for key in live if key in self._containers],
        )

    def _encoded(self, message: Any) -> Any:
        """The message as bytes; made anew if it was changed. Of what changes by itself, that is its state."""
        state = getattr(message, "state", 0)
        known = self._bytes.get(message.id)
        if known is None or known[0] != state:
            known = self._bytes[message.id] = (state, Encoded(message.id, message.SerializeToString()))
        return known[1]

    async def look(self) -> None:
        """Compare with what the runtime lists; what has happened past us is told by ``on_due``.

        :raises AnswerFailed: the runtime does not answer.
        """
        await self._follow_lists()

    async def warm(self) -> None:
        """Ask for what a snapshot would have to ask for.

        :raises AnswerFailed: the runtime does not answer.
        """
        pods, containers = await self._lists()
        live = {key: c for key, c in _live(containers) if not self._is_hidden(c)}
        if not self.is_following:
            self._pods = {key: pod for key, pod in self._pods.items() if key in pods}
            self._containers = {key: c for key, c in self._containers.items() if key in live}
            self._bytes = {key: b for key, b in self._bytes.items() if key in pods or key in live}
        await self._fill({key: pod for key, pod in pods.items() if not self._is_hidden_pod(pod)}, live)

    async def _lists(self) -> tuple[dict[str, cri.PodSandbox], dict[str, cri.Container]]:
        ask = self._upstream.call
        listed, pods = await asyncio.gather(
            ask("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse),
            ask("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse),
        )
        return {item.id: item for item in pods.items}, {item.id: item for item in listed.containers}

    def _is_unfinished(self, container_id: str) -> bool:
        return self._hidden.hides_container(container_id) and container_id not in self.accepted

    def _is_hidden(self, item: cri.Container) -> bool:
        key = (item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)
        return item.id in self._hidden.containers or key in self._hidden.making

    def _is_hidden_pod(self, item: cri.PodSandbox) -> bool:
        meta = item.metadata
        key = (meta.name, meta.namespace, meta.uid, meta.attempt)
        return item.id in self._hidden.sandboxes or key in self._hidden.making_sandboxes

    async def _follow_lists(self) -> tuple[dict[str, cri.PodSandbox], dict[str, cri.Container]]:
        """All that is listed; the map of lives is in step with it, but for what those who make it say of it."""
        life = self._life
        asked_at = life.now
        pods, containers = await self._lists()
        lives = {
            key: (item.pod_sandbox_id, _STATES.get(item.state, State.STOPPED))
            for key, item in containers.items()
            if life.state(key) is not None or not self._is_hidden(item)
        }
        ready = {
            key: State.RUNNING if item.state == cri.SANDBOX_READY else State.STOPPED
            for key, item in pods.items()
            if life.pod_state(key) is not None or not self._is_hidden_pod(item)
        }
        if self.is_following:
            self.on_due(life.compare(ready, lives, asked_at))
        else:
            life.rebuild(ready, lives)
            self.is_following = True
        return pods, containers

    async def _fill(self, pods: dict[str, cri.PodSandbox], containers: dict[str, cri.Container]) -> None:
        """Look up what is not known; and what has been started since, for its first process."""
        missing = [key for key in pods if key not in self._pods]
        await gather_limited(AT_A_TIME, [self.pod(key) for key in missing])
        lacking = [
            key
            for key, item in containers.items()
            if key not in self._containers
            or (item.state == cri.CONTAINER_RUNNING and key not in self._seen_running)
        ]
        self._seen_running &= set(containers)
        self._seen_running |= {k for k, item in containers.items() if item.state == cri.CONTAINER_RUNNING}
        looking = [self.look_up(key, containers[key].pod_sandbox_id) for key in lacking]
        await gather_limited(AT_A_TIME, looking)

    # ------------------------------------------------------------------ what plugins want of others

    async def apply(self, plugin: str, updates: list[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Give containers what plugins want for them; returns those that failed and were not to be ignored.

        Ids that are not known, or that are of something unfinished, are passed over.
        """
        known = []
        for update in updates:
            state = self._life.state(update.container_id)
            if state in (None, State.STOPPED) or self._is_unfinished(update.container_id):
                self._log.info("no such container to update", plugin=plugin, id=update.container_id)
                continue
            known.append(update)
        done = await gather_limited(AT_A_TIME, [self._update(update) for update in known])
        failed = []
        for update, problem in zip(known, done):
            if isinstance(problem, Exception):
                failed += [] if update.ignore_failure else [update]
                self._log.warning(
                    "an update failed", plugin=plugin, id=update.container_id, error=str(problem)
                )
        return failed

    async def _update(self, update: nri.ContainerUpdate) -> None:
        """As a client's UpdateContainerResources: a cpuset is a fence for the engine, not its last word.

        :raises AnswerFailed: the runtime's error.
        """
        request = cri.UpdateContainerResourcesRequest(
            container_id=update.container_id, linux=self.expression.resources(update)
        )
        message = request.SerializeToString()
        if not self._runtime.api:
            await self._runtime.identify()
        full_method = f"/{self._runtime.api}.RuntimeService/UpdateContainerResources"
        engine = self._open_engine(full_method)
        outcome = Forward() if engine is None else await engine.request(message)
        if not isinstance(outcome, Forward):
            outcome = Forward()
        code, details = 1, "cancelled"
        try:
            await self._upstream.forward(full_method, message + outcome.delta, UNDO_TIMEOUT_S)
            code, details = 0, ""
        except AnswerFailed as error:
            code, details = error.code, error.message
            raise
        finally:
            if engine is not None:
                await engine.ended(end_of(code, True), code, details)
        self.note_resources(update.container_id, update.linux.resources)

    def note_resources(self, container_id: str, resources: nri.LinuxResources) -> None:
        """A container has got these; what is not set is as it was."""
        known = self._containers.get(container_id)
        if known is not None:
            if resources.hugepage_limits:
                del known.linux.resources.hugepage_limits[:]
            known.linux.resources.MergeFrom(resources)
            self._bytes.pop(container_id, None)
