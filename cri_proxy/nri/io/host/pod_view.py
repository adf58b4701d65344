"""The node as NRI plugins see it: pods and containers by the runtime's statuses, kept in memory.

A verbose status costs a millisecond or two, a Synchronize needs all of them: so each is asked for once, in the
background while no call waits. Plugins' updates of running containers go to the runtime from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.visibility import Visibility
from cri_proxy.nri.io.host.capabilities import Capabilities
from cri_proxy.nri.io.host.upstream import UNDO_TIMEOUT_S, Upstream
from cri_proxy.nri.lifecycle import Due, Lifecycle, State
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.pod_cache import PodCache
from cri_proxy.nri.view import view_container, view_pod, view_resources
from cri_proxy.relay.interception import AnswerFailed, CallEnd, Forward, Interception, Refuse
from cri_proxy.relay.status import Code
from cri_proxy.runtime import RuntimeClient, gather_limited

AT_A_TIME = 8
#: The same while no call waits: runtime and event loop have other things to do.
AT_A_TIME_AHEAD = 2
#: How long a snapshot waits for calls that were passed on before a plugin was there.
SETTLE_S = 5.0
_STATES = {cri.CONTAINER_CREATED: State.CREATED, cri.CONTAINER_RUNNING: State.RUNNING}


class Listed(NamedTuple):
    """The runtime's lists without hidden ones; containers with pod and state."""

    pods: dict[str, State]
    containers: dict[str, tuple[str, State]]

    def live(self) -> dict[str, tuple[str, State]]:
        """The containers that have not ended."""
        return {key: found for key, found in self.containers.items() if found[1] is not State.STOPPED}


class PodView:
    """``open_engine`` opens the engine's own interception of an UpdateContainerResources; None: it has none."""

    def __init__(
        self,
        runtime: RuntimeClient,
        upstream: Upstream,
        hidden: Visibility,
        lifecycle: Lifecycle,
        open_engine: Callable[[str], Optional[Interception]],
        expression: Capabilities,
        log: Any,
    ) -> None:
        self._runtime = runtime
        self._upstream = upstream
        self._hidden = hidden
        self._lifecycle = lifecycle
        self._open_engine = open_engine
        self.expression = expression
        self._log = log
        self.pod_cache = PodCache()
        #: Ids that plugins have agreed to and clients do not see yet.
        self.accepted: set[str] = set()
        #: How many pictures were taken: a plugin is not told events due before its own.
        self.pictures = 0
        #: Whether the lifecycle map is kept in step: some plugin takes events.
        self.is_following = False
        #: Called with the events a list shows due.
        self.on_due: Callable[[Iterable[Due]], object] = lambda due: None
        #: Waits for calls whose containers are in no list yet, and which no plugin is asked about.
        self.settled: Optional[Callable[[float], Any]] = None

    # ------------------------------------------------------------------ pods and containers

    async def pod(self, pod_id: str) -> Shown[nri.PodSandbox]:
        """A sandbox; if the runtime no longer knows it, as last known, if only its id."""
        known = self.pod_cache.pods.get(pod_id)
        if known is not None:
            return known
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
        try:
            status = await self._upstream.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        except AnswerFailed:
            return Shown(nri.PodSandbox(id=pod_id))
        return self.pod_cache.remember_pod(view_pod(pod_id, status=status))

    async def container(self, container_id: str) -> Optional[Shown[nri.Container]]:
        """A container that plugins know of, in its present state; None: plugins hear nothing of it."""
        state = self._lifecycle.state(container_id)
        if state is None or self._is_unfinished(container_id):
            return None
        if self.pod_cache.lacks(container_id, state):
            await self.look_up(container_id)
        return self.pod_cache.in_state(container_id, state)

    async def ended(self, container_id: str, pod_id: str) -> Shown[nri.Container]:
        """A container that has just ended: with its exit code, where the runtime still tells it."""
        if self.pod_cache.lacks(container_id, State.STOPPED):
            await self.look_up(container_id, pod_id)
        else:
            await self._ask(container_id, verbose=False)
        return self.last_known(container_id, pod_id)

    def last_known(self, container_id: str, pod_id: str) -> Shown[nri.Container]:
        """A container that is gone, as last seen, if only its id."""
        shown = self.pod_cache.in_state(container_id, State.STOPPED)
        if shown is None:
            shown_id, state = self.pod_cache.ids.shown(container_id), nri.CONTAINER_STOPPED
            shown = Shown(nri.Container(id=shown_id, pod_sandbox_id=pod_id, state=state))
        return shown

    async def look_up(self, container_id: str, pod_id: str = "", anew: bool = False) -> None:
        """Look a container up at the runtime, if it is there. ``anew``: also if it is known already."""
        status = await self._ask(container_id)
        if status is None or (container_id in self.pod_cache.containers and not anew):
            return
        pod_id = pod_id or self._lifecycle.pod_of(container_id)
        pod = self.pod_cache.pods.get(pod_id)
        cgroup_parent = "" if pod is None else pod.message.linux.cgroup_parent
        self.pod_cache.remember(view_container(pod_id, status, cgroup_parent=cgroup_parent))

    async def _ask(self, container_id: str, verbose: bool = True) -> Optional[cri.ContainerStatusResponse]:
        """Its status, noted if the container is known; None: there is none."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        try:
            status: cri.ContainerStatusResponse = await self._upstream.call(
                "ContainerStatus", request, cri.ContainerStatusResponse
            )
        except AnswerFailed:
            return None
        self.pod_cache.refresh(container_id, status)
        return status

    # ------------------------------------------------------------------ lists

    async def snapshot(self) -> tuple[list[Shown[nri.PodSandbox]], list[Shown[nri.Container]]]:
        """Take a picture: all pods and unended containers, but those that plugins have not agreed to.

        It replaces the lifecycle map where no plugin was connected; else the ends that it shows are due before it.

        :raises AnswerFailed: the runtime does not answer.
        """
        if self.settled is not None:
            await self.settled(SETTLE_S)
        listed = await self._follow_lists()
        self.pictures += 1
        # Events told while the list was on its way are newer than it.
        pods = [key for key in listed.pods if self._lifecycle.pod_state(key) is not None]
        live = {key: found for key, found in listed.live().items() if self._lifecycle.is_live(key)}
        if self._hidden:
            pods = [key for key in pods if not self._is_unfinished_pod(key)]
            live = {key: found for key, found in live.items() if not self._is_unfinished(key)}
        # A runtime that takes long to make one anew.
        live.update(self._lifecycle.held())
        await self._fill(pods, live, AT_A_TIME)
        cache = self.pod_cache
        shown = [cache.in_state(key, state) for key, (_, state) in live.items()]
        return [cache.pods[key] for key in pods if key in cache.pods], [
            one for one in shown if one is not None
        ]

    async def look(self) -> None:
        """Compare with the runtime's lists; events that no call told us of go to ``on_due``.

        :raises AnswerFailed: the runtime does not answer.
        """
        await self._follow_lists()

    async def warm(self) -> None:
        """Look up what a snapshot would look up.

        :raises AnswerFailed: the runtime does not answer.
        """
        listed = await self._lists()
        live = listed.live()
        if not self.is_following:
            self.pod_cache.keep(listed.pods, live)
        await self._fill(listed.pods, live, AT_A_TIME_AHEAD)

    async def _lists(self) -> Listed:
        """The lists without hidden ones; ids in the lifecycle map are not hidden."""
        ask, lifecycle = self._upstream.call, self._lifecycle
        containers, pods = await asyncio.gather(
            ask("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse),
            ask("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse),
        )
        listed = Listed({}, {})
        is_hiding = bool(self._hidden)
        for item in containers.containers:
            key = item.id
            if not is_hiding or lifecycle.state(key) is not None or not self._is_hidden(item):
                listed.containers[key] = (item.pod_sandbox_id, _STATES.get(item.state, State.STOPPED))
                self.pod_cache.ids.note(key, item.annotations)
        for item in pods.items:
            key = item.id
            if not is_hiding or lifecycle.pod_state(key) is not None or not self._is_hidden_pod(item):
                listed.pods[key] = State.RUNNING if item.state == cri.SANDBOX_READY else State.STOPPED
        return listed

    def _is_hidden(self, item: cri.Container) -> bool:
        key = (item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)
        return item.id in self._hidden.containers or key in self._hidden.making

    def _is_hidden_pod(self, item: cri.PodSandbox) -> bool:
        meta = item.metadata
        key = (meta.name, meta.namespace, meta.uid, meta.attempt)
        return item.id in self._hidden.sandboxes or key in self._hidden.making_sandboxes

    def _is_unfinished(self, container_id: str) -> bool:
        return self._hidden.hides_container(container_id) and container_id not in self.accepted

    def _is_unfinished_pod(self, pod_id: str) -> bool:
        return self._hidden.hides_sandbox(pod_id) and pod_id not in self.accepted

    async def _follow_lists(self) -> Listed:
        """The lists; the lifecycle map follows them, but for containers being made: their calls tell of these."""
        lifecycle = self._lifecycle
        asked_at = lifecycle.now
        listed = await self._lists()
        # A list may be older than a removal, and has brought the removed one back.
        self.pod_cache.ids.keep(lambda key: key in listed.containers or lifecycle.state(key) is not None)
        if self.is_following:
            self.on_due(lifecycle.compare(listed.pods, listed.containers, asked_at))
        else:
            lifecycle.rebuild(listed.pods, listed.containers)
            self.is_following = True
            if lifecycle.now != asked_at:  # of what was not known then it is only known that it has changed
                return await self._follow_lists()
        return listed

    async def _fill(
        self, pods: Iterable[str], containers: Mapping[str, tuple[str, State]], at_a_time: int
    ) -> None:
        """Look up unknown ones; and ones started since, for their first process."""
        missing = [key for key in pods if key not in self.pod_cache.pods]
        await gather_limited(at_a_time, [self.pod(key) for key in missing])
        lacking = [
            (key, pod_id, state)
            for key, (pod_id, state) in containers.items()
            if self.pod_cache.lacks(key, state)
        ]
        await gather_limited(at_a_time, [self._look_up_lacking(*one) for one in lacking])

    async def _look_up_lacking(self, container_id: str, pod_id: str, state: State) -> None:
        # A wait for a snapshot may have overtaken the look ahead, or the other way round.
        if self.pod_cache.lacks(container_id, state):
            await self.look_up(container_id, pod_id)

    # ------------------------------------------------------------------ plugins' updates

    async def apply(self, plugin: str, updates: list[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Apply plugins' updates of containers; returns failed ones that may not be ignored.

        Unknown ids, and ids of unfinished containers, are passed over. Ids are the plugins'; the runtime's own do, too.
        """
        known = []
        for update in updates:
            container_id = self._real(update.container_id)
            state = self._lifecycle.state(container_id)
            if state in (None, State.STOPPED) or self._is_unfinished(container_id):
                self._log.info("no such container to update", plugin=plugin, id=update.container_id)
                continue
            known.append((container_id, update))
        done = await gather_limited(AT_A_TIME, [self._update(plugin, *each) for each in known])
        failed = []
        for (container_id, update), problem in zip(known, done):
            if isinstance(problem, Exception):
                failed += [] if update.ignore_failure else [update]
                self._log.warning("an update failed", plugin=plugin, id=container_id, error=str(problem))
        return failed

    def _real(self, told_id: str) -> str:
        # The runtime's own id comes first, whatever an annotation says.
        return told_id if self._lifecycle.state(told_id) is not None else self.pod_cache.ids.real(told_id)

    async def _update(self, plugin: str, container_id: str, update: nri.ContainerUpdate) -> None:
        """As a client's UpdateContainerResources: its cpuset is a constraint for the engine.

        :raises PluginRefused: CRI cannot express it.
        :raises AnswerFailed: the runtime's error, or the engine's refusal; the runtime is asked for nothing then.
        """
        known = self.pod_cache.containers.get(container_id)
        linux = self.expression.resources(
            update, None if known is None else known.message, plugin, container_id
        )
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        message = request.SerializeToString()
        if not self._runtime.api:
            await self._runtime.identify()
        full_method = f"/{self._runtime.api}.RuntimeService/UpdateContainerResources"
        engine = self._open_engine(full_method)
        outcome = Forward() if engine is None else await engine.request(message)
        end, code, details = CallEnd.UNKNOWN, int(Code.CANCELLED), "cancelled"
        sent = message + (outcome.delta if isinstance(outcome, Forward) else b"")
        try:
            if isinstance(outcome, Refuse):
                raise AnswerFailed(outcome.code, outcome.message)
            await self._upstream.forward(full_method, sent, UNDO_TIMEOUT_S)
            end, code, details = CallEnd.OK, int(Code.OK), ""
        except AnswerFailed as error:
            end, code, details = error.end, error.code, error.message
            raise
        finally:
            if engine is not None:
                await engine.ended(end, code, details)
        linux = cri.UpdateContainerResourcesRequest.FromString(sent).linux
        self.pod_cache.note_resources(container_id, view_resources(linux))
