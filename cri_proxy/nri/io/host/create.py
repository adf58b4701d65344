"""CreateContainer while plugins are connected: create first, then ask.

NRI shows plugins a container's id and its whole OCI spec before it exists; a CRI client learns both afterwards. So:

1. The engine's placement goes out with the create, as one more participant. The container is hidden.
2. Plugins are shown the runtime's own status of it, and asked, once.
3. Nothing asked for: done. Resources only: the engine decides again with these as the request's (a plugin's
   cpuset is a constraint, design rule 10), and the container, which was not started, is updated.
4. Anything else takes another create: the container is removed, and made anew from the changed request. Plugins see
   none of this: the new one keeps its id for them (nri/pod_cache.py), and they are not asked again, as by no other
   host of NRI. So an answer may depend on the id, or differ each time.

A plugin's refusal, or an error of the runtime on the way, removes it. A bug of ours does not: the client
gets the container as the engine has placed it.
"""

from __future__ import annotations

from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import parse
from cri_proxy.cri.visibility import container_key
from cri_proxy.front_ends.cri_calls import CreateContainer
from cri_proxy.nri.apply import Applied
from cri_proxy.nri.io.host.calls import HostContext, HostedCall
from cri_proxy.nri.io.host.capabilities import Capabilities
from cri_proxy.nri.io.host.host import Merged, PluginRefused
from cri_proxy.nri.io.host.upstream import CREATE_TIMEOUT_S
from cri_proxy.nri.lifecycle import Due
from cri_proxy.nri.pod_cache import annotated
from cri_proxy.nri.view import view_container, view_resources
from cri_proxy.relay.interception import (
    Answer,
    AnswerFailed,
    Forward,
    Interception,
    Outcome,
    Refuse,
)
from cri_proxy.relay.status import Code


class Create(HostedCall):
    """``expression`` puts plugins' adjustments into CRI requests."""

    def __init__(
        self, context: HostContext, engine: Optional[Interception], full_method: str, expression: Capabilities
    ) -> None:
        super().__init__(context, engine, full_method)
        self._expression = expression
        self._made = UncommittedContainer(context, full_method)
        self._delta = b""
        self._asked = cri.CreateContainerRequest()

    async def before(self, outcome: Outcome) -> Outcome:
        self._asked = parse(cri.CreateContainerRequest, self.message)
        sandbox = self._asked.pod_sandbox_id
        if self.context.hidden.hides_sandbox(sandbox):
            return Refuse(Code.NOT_FOUND, f'failed to find sandbox id "{sandbox}": not found')
        if not isinstance(outcome, Forward):
            return outcome
        self._delta = outcome.delta
        return Answer(self._create)

    async def _create(self) -> bytes:
        """The reply, after everything. An unfinished container is marked on disk meanwhile.

        :raises AnswerFailed: the runtime's error, or plugins' refusal; nothing is left then.
        """
        key = container_key(self._asked)
        name, keys = f'container name "{key[1]}"', frozenset([key])
        async with self.context.cleanup.making(name, lambda: bool(self._made.id), containers=keys):
            return await self._make_and_ask()

    async def _make_and_ask(self) -> bytes:
        context, made = self.context, self._made
        await made.make(self.message, self._delta)
        updates: list[nri.ContainerUpdate] = []
        try:
            updates = await self._agree()
        except (PluginRefused, AnswerFailed) as error:
            await made.unmake()
            if isinstance(error, AnswerFailed):
                raise
            context.log.warning("plugins do not let a container be created", why=str(error))
            raise AnswerFailed(Code.UNKNOWN, f"cri-resmgr: {error}") from None
        except Exception:
            if not made.id:
                await made.unmake()
                raise
            self.bug()
        container_id, reply = made.id, made.reply
        await self.replied(reply)
        made.show()
        if pod_id := context.lifecycle.pod_of(container_id):
            context.dispatcher.soon([Due(nri.POST_CREATE_CONTAINER, pod_id, container_id)])
        await context.dispatcher.apply_others(updates)
        return reply

    # ------------------------------------------------------------------ adjustments

    async def _agree(self) -> list[nri.ContainerUpdate]:
        """Apply plugins' adjustments; returns their updates of other containers.

        :raises PluginRefused: a plugin refuses, or CRI cannot express an adjustment.
        :raises AnswerFailed: the runtime's error.
        """
        made = self._made
        merged, wanted = await self._ask()
        # A plugin that connects from now on is not asked: it is shown the finished container.
        with self.context.under_way.during(self):
            self.context.pod_view.accepted.add(made.id)
            if wanted.request != made.request:
                await self._change(wanted)
        return list(merged.updates)

    async def _ask(self) -> tuple[Merged, Applied]:
        context, made = self.context, self._made
        sandbox = self._asked.pod_sandbox_id
        pod = await context.pod_view.pod(sandbox)
        cgroup_parent = pod.message.linux.cgroup_parent
        seen = view_container(sandbox, await made.status(), self._asked.config, cgroup_parent)
        container = context.pod_view.pod_cache.remember(seen)
        context.lifecycle.created(made.id, sandbox)
        merged = await context.host.create(pod, container)
        is_isolated = isinstance(self.engine, CreateContainer) and self.engine.is_isolated
        applied = self._expression.express(merged, self.message, container.message, is_isolated)
        if isinstance(self.engine, CreateContainer):
            self.engine.asked = applied.heard
        return merged, applied

    async def _change(self, wanted: Applied) -> None:
        """Apply the adjustments: by an update, or by another create.

        :raises AnswerFailed: the runtime's error.
        """
        made = self._made
        if not wanted.recreate and await self._update(wanted.request, wanted.resources):
            return
        await made.discard()
        await self._decide_again(wanted.request)
        await made.make_anew(wanted.request, self._delta)
        self._tell("had it made anew", nri_id=made.first_id)

    async def _update(self, request: bytes, linux: cri.LinuxContainerResources) -> bool:
        """Give the unstarted container other resources. False: they take another create."""
        before = self._placed
        await self._decide_again(request)
        resources = cri.LinuxContainerResources()
        resources.CopyFrom(linux)
        resources.MergeFrom(self._placed)
        # An update cannot unset a value of the create.
        if any(not getattr(resources, field.name) for field, _ in before.ListFields()):
            return False
        try:
            await self.context.upstream.update(self._made.id, resources)
        except AnswerFailed as error:
            self.context.log.info("the container is made anew with its resources", error=error.message)
            return False
        self._made.request = request
        self.context.pod_view.pod_cache.note_resources(self._made.id, view_resources(resources))
        self._tell("changed its resources")
        return True

    @property
    def _placed(self) -> cri.LinuxContainerResources:
        """What the engine adds to the request."""
        placed: cri.LinuxContainerResources = parse(
            cri.CreateContainerRequest, self._delta
        ).config.linux.resources
        return placed

    def _tell(self, change: str, **more: str) -> None:
        """Put it into the log's one line about a create."""
        if isinstance(self.engine, CreateContainer):
            self.engine.fields.update(plugins=change, **more)

    async def _decide_again(self, request: bytes) -> None:
        """The engine's place for the changed request."""
        if not isinstance(self.engine, CreateContainer):
            return
        outcome = await self.engine.decide_again(request)
        if isinstance(outcome, Refuse):
            raise AnswerFailed(outcome.code, outcome.message)
        self._delta = outcome.delta if isinstance(outcome, Forward) else b""


# ---------------------------------------------------------------------- the container that is not committed


class UncommittedContainer:
    """The container that clients do not see yet; and the ways to make it anew, and to remove it.

    ``id`` is "" while there is none; ``first_id`` is the one that plugins know. ``request``: the one it was made from,
    without the engine's addition.
    """

    def __init__(self, context: HostContext, full_method: str) -> None:
        self._context = context
        self._full_method = full_method
        self.id = ""
        self.first_id = ""
        self.request = b""
        self.reply = b""

    async def make(self, request: bytes, delta: bytes) -> None:
        """Have the runtime make it.

        :raises AnswerFailed: the runtime's error.
        """
        context = self._context
        reply = await context.upstream.forward(self._full_method, request + delta, CREATE_TIMEOUT_S)
        self.id = parse(cri.CreateContainerResponse, reply).container_id
        self.first_id = self.first_id or self.id
        self.request, self.reply = request, reply
        context.hidden.containers.add(self.id)

    async def status(self) -> cri.ContainerStatusResponse:
        """What the runtime says of it, in full.

        :raises AnswerFailed: the runtime's error.
        """
        request = cri.ContainerStatusRequest(container_id=self.id, verbose=True)
        status: cri.ContainerStatusResponse = await self._context.upstream.call(
            "ContainerStatus", request, cri.ContainerStatusResponse
        )
        return status

    async def discard(self) -> None:
        """Remove it before it is made anew: plugins are told nothing, for them it exists.

        :raises AnswerFailed: the runtime would not.
        """
        self._context.lifecycle.hold(self.id)
        await self._remove()

    async def make_anew(self, request: bytes, delta: bytes) -> None:
        """After ``discard``: have it made from another request. Plugins see it by the id they know.

        :raises AnswerFailed: the runtime's error.
        """
        pod_view, lifecycle, first_id = self._context.pod_view, self._context.lifecycle, self.first_id
        await self.make(request, delta + annotated(first_id))
        pod_id = lifecycle.pod_of(first_id)
        pod_view.pod_cache.made_anew(first_id, self.id)
        lifecycle.made_anew(first_id, self.id)
        pod_view.accepted.discard(first_id)
        pod_view.accepted.add(self.id)
        # Its cgroup, and its adjustments as the runtime has made them.
        if pod_id:
            await pod_view.look_up(self.id, pod_id, anew=True)

    async def unmake(self) -> None:
        """Remove it, if it is there, and tell plugins that it is gone. ``id`` is "" afterwards.

        :raises AnswerFailed: the runtime would not; plugins are told all the same.
        """
        context, known_id = self._context, self.id or self.first_id
        context.pod_view.accepted.discard(known_id)
        due = context.lifecycle.removed(known_id)
        try:
            if self.id:
                await self._remove()
        finally:
            await context.dispatcher.tell(due)

    async def _remove(self) -> None:
        context, container_id = self._context, self.id
        try:
            await context.upstream.remove_container(container_id)
        except AnswerFailed as error:
            context.log.error(
                "a container that no client gets cannot be removed", id=container_id, error=error.message
            )
            raise
        self.id = ""
        context.hidden.removed(container_id)

    def show(self) -> None:
        """From now on clients see it."""
        self._context.hidden.containers.discard(self.id)
        self._context.pod_view.accepted.discard(self.id)
        self.id = ""
