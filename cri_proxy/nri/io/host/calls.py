"""Calls during which plugins are told or asked: around the engine's own interception of the same call, if it has one.

An error in here that is no plugin's refusal is logged, and the call goes on without plugins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_api.waiting import wait_within
from cri_proxy.cri.messages import UnreadableRequest, parse
from cri_proxy.cri.visibility import SandboxKey, Visibility, sandbox_key
from cri_proxy.nri.io.host.cleanup import Cleanup
from cri_proxy.nri.io.host.dispatcher import EventDispatcher
from cri_proxy.nri.io.host.host import NriHost, PluginRefused
from cri_proxy.nri.io.host.intent_log import IntentLog
from cri_proxy.nri.io.host.pod_view import PodView
from cri_proxy.nri.io.host.upstream import REMOVAL_TIMEOUT_S, SANDBOX_TIMEOUT_S, Upstream
from cri_proxy.nri.lifecycle import Due, Lifecycle
from cri_proxy.nri.view import view_resources
from cri_proxy.relay.interception import (
    Answer,
    AnswerFailed,
    CallEnd,
    Forward,
    Interception,
    Outcome,
    Refuse,
)
from cri_proxy.relay.status import Code


class StepsUnderWay:
    """Counts calls that make a pod or container which a connecting plugin is neither asked about nor shown in a list yet.

    The list that a new plugin is shown waits for these calls. Between ``begun`` and ``over`` a call must not wait for
    plugins.
    """

    def __init__(self) -> None:
        self._calls: set[object] = set()
        self._ended = asyncio.Event()

    def begun(self, call: object) -> None:
        self._calls.add(call)

    def over(self, call: object) -> None:
        self._calls.discard(call)
        self._ended.set()

    @contextlib.contextmanager
    def during(self, call: object) -> Iterator[None]:
        self.begun(call)
        try:
            yield
        finally:
            self.over(call)

    async def settled(self, seconds: float) -> None:
        """Return when the calls under way now have ended, or ``seconds`` later."""
        deadline_s = asyncio.get_running_loop().time() + seconds
        waiting = set(self._calls)
        while waiting & self._calls:
            self._ended.clear()
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                await wait_within(max(left_s, 0.0), self._ended.wait())
            except asyncio.TimeoutError:
                return


@dataclass(frozen=True)
class HostContext:
    """The parts of a hosted call."""

    host: NriHost
    pod_view: PodView
    lifecycle: Lifecycle
    hidden: Visibility
    dispatcher: EventDispatcher
    upstream: Upstream
    intents: IntentLog
    cleanup: Cleanup
    under_way: StepsUnderWay
    log: Any


class HostedCall:
    """The engine's interception with nothing added; the kinds of calls add to it."""

    def __init__(self, context: HostContext, engine: Optional[Interception], full_method: str) -> None:
        self.context = context
        self.engine = engine
        self.full_method = full_method
        self.message = b""
        #: Whether the engine has been asked, and so must be told the end.
        self.is_asked = False
        #: Whether plugins have refused: then no placement is to blame.
        self.is_refused = False

    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]:
        return None if self.engine is None else self.engine.filter

    async def request(self, message: bytes) -> Outcome:
        self.message = message
        outcome = await self.ask_engine(message)
        if isinstance(outcome, Refuse):
            return outcome
        try:
            return await self.before(outcome)
        except PluginRefused as error:
            self.is_refused = True
            return Refuse(Code.UNKNOWN, f"cri-resmgr: {error}")
        except UnreadableRequest:  # the runtime has its own words for that
            return outcome
        except Exception:
            self.bug()
            return outcome

    async def ask_engine(self, message: bytes) -> Outcome:
        if self.engine is None:
            return Forward()
        self.is_asked = True
        return await self.engine.request(message)

    async def replied(self, message: bytes) -> None:
        if self.engine is not None:
            await self.engine.replied(message)

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        if self.engine is not None and self.is_asked:
            await self.engine.ended(CallEnd.UNKNOWN if self.is_refused else end, code, details)
        try:
            await self.after(end, code)
        except Exception:
            self.bug()

    def bug(self) -> None:
        self.context.log.error("plugins could not be told", method=self.full_method, exc_info=True)

    # What a kind of call adds.

    async def before(self, outcome: Outcome) -> Outcome:
        """Before the request is sent on."""
        return outcome

    async def after(self, end: CallEnd, code: int) -> None:
        """When the call is over. Replies of other calls wait for this: tell plugins by ``dispatcher.soon``."""


class Start(HostedCall):
    container_id = ""

    async def before(self, outcome: Outcome) -> Outcome:
        self.container_id = parse(cri.StartContainerRequest, self.message).container_id
        pod_view, lifecycle = self.context.pod_view, self.context.lifecycle
        container = await pod_view.container(self.container_id)
        if container is not None:
            await self.context.dispatcher.told(lifecycle.pod_of(self.container_id))
            pod = await pod_view.pod(lifecycle.pod_of(self.container_id))
            await self.context.host.start_container(pod, container)
        return outcome

    async def after(self, end: CallEnd, code: int) -> None:
        lifecycle, dispatcher = self.context.lifecycle, self.context.dispatcher
        if self.is_refused or end is CallEnd.REFUSED:
            dispatcher.soon(lifecycle.stopped(self.container_id))
        elif end is CallEnd.OK:
            lifecycle.started(self.container_id)
            if lifecycle.pod_of(self.container_id):
                dispatcher.soon([_post(nri.POST_START_CONTAINER, lifecycle, self.container_id)])


class Stop(HostedCall):
    async def after(self, end: CallEnd, code: int) -> None:
        if end is CallEnd.OK:
            container_id = parse(cri.StopContainerRequest, self.message).container_id
            self.context.dispatcher.soon(self.context.lifecycle.stopped(container_id))


class Removal(HostedCall):
    """Of a container or a pod: plugins that take its event are told before the client gets the reply.

    Then we answer: a reply that waited for them on its connection would keep others waiting.
    """

    #: The event to tell at its end.
    events: tuple[nri.Event.ValueType, ...] = ()

    def gone(self) -> tuple[Due, ...]:
        """The events of its end."""
        raise NotImplementedError

    async def before(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Forward) and any(map(self.context.host.is_told, self.events)):
            return Answer(partial(self._remove, self.message + outcome.delta))
        return outcome

    async def _remove(self, message: bytes) -> bytes:
        """:raises AnswerFailed: the runtime's error."""
        context = self.context
        reply = await context.upstream.forward(self.full_method, message, REMOVAL_TIMEOUT_S)
        await context.dispatcher.tell(self.gone())
        await self.replied(reply)
        return reply

    async def after(self, end: CallEnd, code: int) -> None:
        if end is CallEnd.OK or code == Code.NOT_FOUND:
            self.context.dispatcher.soon(self.gone())


class Remove(Removal):
    events = (nri.STOP_CONTAINER, nri.REMOVE_CONTAINER)

    def gone(self) -> tuple[Due, ...]:
        return self.context.lifecycle.removed(parse(cri.RemoveContainerRequest, self.message).container_id)


class UpdateContainer(HostedCall):
    """UpdateContainerResources: plugins' additions go behind the request, the engine's behind these."""

    container_id = ""
    #: The runtime's request.
    sent = b""

    async def request(self, message: bytes) -> Outcome:
        self.message = message
        added = b""
        try:
            added = await self._ask(parse(cri.UpdateContainerResourcesRequest, message))
        except PluginRefused as error:
            return Refuse(Code.UNKNOWN, f"cri-resmgr: {error}")
        except UnreadableRequest:
            pass
        except Exception:
            self.bug()
        outcome = await self.ask_engine(message + added)
        if not isinstance(outcome, Forward):
            return outcome
        delta = added + outcome.delta
        self.sent = message + delta
        return Forward(delta)

    async def _ask(self, request: Any) -> bytes:
        pod_view = self.context.pod_view
        container = await pod_view.container(request.container_id)
        if container is None:
            return b""
        self.container_id = request.container_id
        await self.context.dispatcher.told(self.context.lifecycle.pod_of(self.container_id))
        pod = await pod_view.pod(self.context.lifecycle.pod_of(self.container_id))
        updates = await self.context.host.update(pod, container, view_resources(request.linux))
        own = [update for update in updates if update.container_id == container.id]
        others = [update for update in updates if update.container_id != container.id]
        await self.context.dispatcher.apply_others(others)
        if not own:
            return b""
        linux = pod_view.expression.resources(own[-1], container.message, container_id=self.container_id)
        return bytes(cri.UpdateContainerResourcesRequest(linux=linux).SerializeToString())

    async def after(self, end: CallEnd, code: int) -> None:
        if end is CallEnd.OK and self.container_id:
            linux = parse(cri.UpdateContainerResourcesRequest, self.sent).linux
            self.context.pod_view.pod_cache.note_resources(self.container_id, view_resources(linux))
            due = _post(nri.POST_UPDATE_CONTAINER, self.context.lifecycle, self.container_id)
            self.context.dispatcher.soon([due])


class UpdatePod(HostedCall):
    pod_id = ""

    async def before(self, outcome: Outcome) -> Outcome:
        request = parse(cri.UpdatePodSandboxResourcesRequest, self.message)
        if self.context.lifecycle.pod_state(request.pod_sandbox_id) is not None:
            self.pod_id = request.pod_sandbox_id
            pod = await self.context.pod_view.pod(self.pod_id)
            overhead, resources = view_resources(request.overhead), view_resources(request.resources)
            await self.context.host.update_pod(pod, overhead, resources)
        return outcome

    async def after(self, end: CallEnd, code: int) -> None:
        if end is CallEnd.OK and self.pod_id:
            request = parse(cri.UpdatePodSandboxResourcesRequest, self.message)
            self.context.pod_view.pod_cache.note_pod_size(
                self.pod_id, view_resources(request.overhead), view_resources(request.resources)
            )
            self.context.dispatcher.soon([Due(nri.POST_UPDATE_POD_SANDBOX, self.pod_id)])


class StopPod(HostedCall):
    """Containers first, then the plugins' hooks while the sandbox still has its network, then the sandbox."""

    async def before(self, outcome: Outcome) -> Outcome:
        pod_id = parse(cri.StopPodSandboxRequest, self.message).pod_sandbox_id
        await end_pod(self.context, pod_id)
        return outcome


class RemovePod(Removal):
    events = (nri.REMOVE_CONTAINER, nri.REMOVE_POD_SANDBOX)

    def gone(self) -> tuple[Due, ...]:
        return self.context.lifecycle.pod_removed(
            parse(cri.RemovePodSandboxRequest, self.message).pod_sandbox_id
        )

    async def before(self, outcome: Outcome) -> Outcome:
        await end_pod(self.context, parse(cri.RemovePodSandboxRequest, self.message).pod_sandbox_id)
        return await super().before(outcome)


async def end_pod(context: HostContext, pod_id: str) -> None:
    """Stop what runs in a pod, and tell plugins of these ends and the pod's own."""
    lifecycle = context.lifecycle
    running = [key for key in lifecycle.containers_of(pod_id) if key in lifecycle.running()]
    for container_id in running:
        try:
            await context.upstream.stop_container(container_id)
        except Exception as error:  # the runtime stops them with the sandbox, or says why not
            context.log.warning("a container did not stop", id=container_id, error=str(error))
    await context.dispatcher.tell(lifecycle.pod_stopped(pod_id))


class Run(HostedCall):
    """RunPodSandbox: no other call sees the sandbox, or makes a container in it, until plugins agree.

    A refusal stops and removes the sandbox, and tells plugins so; the same request may come again at once.
    """

    sandbox_id = ""

    async def before(self, outcome: Outcome) -> Outcome:
        key = sandbox_key(parse(cri.RunPodSandboxRequest, self.message))
        return Answer(partial(self._run, key)) if isinstance(outcome, Forward) else outcome

    async def _run(self, key: SandboxKey) -> bytes:
        """:raises AnswerFailed: the runtime's error, or plugins' refusal."""
        name, keys = f'sandbox name "{key[0]}"', frozenset([key])
        async with self.context.cleanup.making(name, lambda: bool(self.sandbox_id), sandboxes=keys):
            reply = await self._make_and_ask()
        await self.replied(reply)
        return reply

    async def _make_and_ask(self) -> bytes:
        context = self.context
        reply = await context.upstream.forward(self.full_method, self.message, SANDBOX_TIMEOUT_S)
        self.sandbox_id = parse(cri.RunPodSandboxResponse, reply).pod_sandbox_id
        context.hidden.sandboxes.add(self.sandbox_id)
        try:
            pod = await context.pod_view.pod(self.sandbox_id)
            context.lifecycle.pod_created(self.sandbox_id)
            await context.host.run_pod(pod)
            context.pod_view.accepted.add(self.sandbox_id)
        except PluginRefused as error:
            context.log.warning("plugins do not let a pod run", pod=self.sandbox_id, why=str(error))
            await self._unmake()
            raise AnswerFailed(Code.UNKNOWN, f"cri-resmgr: {error}") from None
        except Exception:
            self.bug()
        context.lifecycle.pod_running(self.sandbox_id)
        context.hidden.sandboxes.discard(self.sandbox_id)
        context.pod_view.accepted.discard(self.sandbox_id)
        return reply

    async def _unmake(self) -> None:
        context, sandbox_id = self.context, self.sandbox_id
        await context.dispatcher.tell(context.lifecycle.pod_stopped(sandbox_id))
        try:
            await context.upstream.remove_sandbox(sandbox_id)
        except AnswerFailed as error:
            context.log.error(
                "an unfinished sandbox could not be removed", id=sandbox_id, error=error.message
            )
        else:
            self.sandbox_id = ""
            context.hidden.removed(sandbox_id)
        await context.dispatcher.tell(context.lifecycle.pod_removed(sandbox_id))


def _post(event: int, lifecycle: Lifecycle, container_id: str) -> Due:
    return Due(event, lifecycle.pod_of(container_id), container_id)


# ---------------------------------------------------------------------- what is seen meanwhile


class Showing:
    """Lists, statuses and statistics, without what is hidden."""

    def __init__(self, hidden: Visibility, method: str) -> None:
        self._hidden = hidden
        self._method = method

    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]:
        return self._hidden.filter_of(self._method)

    async def request(self, message: bytes) -> Outcome:
        try:
            return self._refuse_hidden(message) or Forward()
        except UnreadableRequest:  # the runtime has its own words for that
            return Forward()

    def _refuse_hidden(self, message: bytes) -> Optional[Refuse]:
        # These requests have the id in field 1; error texts as containerd's.
        if self._method in ("ContainerStatus", "ContainerStats"):
            wanted = parse(cri.ContainerStatusRequest, message).container_id
            if self._hidden.hides_container(wanted):
                text = f'an error occurred when try to find container "{wanted}": not found'
                return Refuse(Code.NOT_FOUND, text)
        elif self._method in ("PodSandboxStatus", "PodSandboxStats"):
            wanted = parse(cri.PodSandboxStatusRequest, message).pod_sandbox_id
            if self._hidden.hides_sandbox(wanted):
                return Refuse(
                    Code.NOT_FOUND, f'an error occurred when try to find sandbox "{wanted}": not found'
                )
        return None

    async def replied(self, message: bytes) -> None:
        pass

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        pass


class ContainerEvents(HostedCall):
    """A client's GetContainerEvents, without hidden containers; exits are noticed."""

    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]:
        return self.context.hidden.filter_of("GetContainerEvents")

    async def replied(self, message: bytes) -> None:
        await super().replied(message)
        if not self.context.host.connected:
            return
        try:
            event = parse(cri.ContainerEventResponse, message)
        except ValueError:
            return
        if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
            self.context.dispatcher.soon(self.context.lifecycle.stopped(event.container_id))
