"""Hosts NRI plugins: tells them of pods and containers in index order, and makes their answers into one.

An error that a plugin returns fails the request, where it can still fail. A plugin that is silent, gone or unreadable
is dropped and the request goes on without it, unless ``nri.fail_closed_plugins`` names it; a validator's silence fails
a create. Requests whose answers may touch other containers are made one after another; a plugin has one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within
from cri_proxy.metrics import Metrics, NriMetrics
from cri_proxy.nri import validate as nri_validate
from cri_proxy.nri.dispatch import is_meant, rpc_of
from cri_proxy.nri.io.connection import CallFailed
from cri_proxy.nri.io.host.peer import NOW, ConnectedPlugins, PeerLost, RegisteredPlugin
from cri_proxy.nri.io.host.registration import PluginView, Registrar
from cri_proxy.nri.io.host.supervisor import PluginSupervisor
from cri_proxy.nri.merge import AdjustmentConflict, Merge, MergedUpdates
from cri_proxy.nri.messages import EventMessage, Shown
from cri_proxy.nri.validate import NriSettings
from cri_proxy.nri.view import view_unmade

#: How long plugins may take to say goodbye.
SHUTDOWN_S = 1.0


class PluginRefused(Exception):
    """A plugin, or a rule about plugins, refuses a request. The message is for kubelet's user."""


@dataclass(frozen=True)
class Merged:
    """All plugins' adjustments of a new container, and updates of others."""

    adjust: nri.ContainerAdjustment = field(default_factory=nri.ContainerAdjustment)
    updates: list[nri.ContainerUpdate] = field(default_factory=list)
    owners: nri.OwningPlugins = field(default_factory=nri.OwningPlugins)


def _unknown() -> tuple[str, str]:
    return "", ""


class NriHost:
    """``start`` and ``close`` it. Its methods wait while a plugin is being synchronized."""

    def __init__(
        self,
        settings: NriSettings,
        pod_view: PluginView,
        log: Any,
        metrics: Metrics,
        runtime: Callable[[], tuple[str, str]] = _unknown,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        """``runtime``: the runtime's name and version, as plugins are told them."""
        self._log = log
        self._connected_plugins = ConnectedPlugins(settings, log, NriMetrics(metrics.registry))
        self._supervisor = PluginSupervisor(
            self._connected_plugins, Registrar(self._connected_plugins, pod_view, runtime), supervisor
        )
        #: Create, update and stop: their answers may be about the same containers.
        self._merging = asyncio.Lock()

    # ------------------------------------------------------------------ life and state

    async def start(self) -> None:
        """Launch the plugins there are, wait until each is connected or has failed, then let others connect."""
        await self._supervisor.start()

    async def close(self) -> None:
        """Tell all plugins that the host ends; launched ones end, too."""
        self._supervisor.stop_listening()
        goodbyes = [self._say_goodbye(peer) for peer in self._connected_plugins.peers]
        await asyncio.gather(*goodbyes)
        await self._supervisor.close()

    async def _say_goodbye(self, peer: RegisteredPlugin) -> None:
        try:
            await wait_within(SHUTDOWN_S, peer.call("Shutdown", b"", SHUTDOWN_S))
        except (CallFailed, PeerLost, asyncio.TimeoutError):
            pass  # it goes anyway
        self._connected_plugins.drop(peer, "the host stops")

    @property
    def settings(self) -> NriSettings:
        """May be replaced while it runs; sockets and paths are read at the start only."""
        return self._connected_plugins.settings

    @settings.setter
    def settings(self, settings: NriSettings) -> None:
        self._connected_plugins.settings = settings

    @property
    def on_change(self) -> Optional[Callable[[], None]]:
        """Called after a plugin has come or gone."""
        return self._connected_plugins.on_change

    @on_change.setter
    def on_change(self, called: Optional[Callable[[], None]]) -> None:
        self._connected_plugins.on_change = called

    @property
    def connected(self) -> bool:
        """Whether requests must come here: a plugin is connected or connecting, or there is a rule."""
        connected_plugins = self._connected_plugins
        return bool(
            connected_plugins.peers
            or connected_plugins.joining
            or connected_plugins.missing()
            or connected_plugins.settings.is_validating
        )

    def plugins(self) -> list[dict[str, Any]]:
        """For ``nri status``: connected plugins, launched ones that are not, missing ones."""
        rows = [peer.document() for peer in self._connected_plugins.peers]
        rows += self._supervisor.absent()
        for wanted in self._connected_plugins.missing():
            rows.append({"name": wanted, "index": "", "origin": "required", "state": "missing"})
        return rows

    @property
    def problems(self) -> list[str]:
        """Why plugins stay out, in sentences: a socket that failed, executables that were passed over."""
        return self._supervisor.problems

    # ------------------------------------------------------------------ requests

    async def run_pod(self, pod: Shown[nri.PodSandbox]) -> None:
        """:raises PluginRefused: the pod must not run."""
        async with self._connected_plugins.gate.shared():
            self._check_required(pod.message, "")
            await self._ask_all(EventMessage(nri.RUN_POD_SANDBOX, pod.data))

    async def start_container(self, pod: Shown[nri.PodSandbox], container: Shown[nri.Container]) -> None:
        """:raises PluginRefused: it must not be started."""
        message = EventMessage(nri.START_CONTAINER, pod.data, container.data)
        async with self._connected_plugins.gate.shared():
            await self._ask_all(message)

    async def update_pod(
        self, pod: Shown[nri.PodSandbox], overhead: nri.LinuxResources, resources: nri.LinuxResources
    ) -> None:
        """:raises PluginRefused: it must not be updated."""
        rest = nri.UpdatePodSandboxRequest(overhead_linux_resources=overhead, linux_resources=resources)
        message = EventMessage(nri.UPDATE_POD_SANDBOX, pod.data, rest=rest.SerializeToString())
        async with self._connected_plugins.gate.shared():
            await self._ask_all(message)

    async def create(self, pod: Shown[nri.PodSandbox], container: Shown[nri.Container]) -> Merged:
        """Plugins' adjustments of a container being created.

        :raises PluginRefused: two plugins are in conflict, a validator refuses, or a plugin fails the request.
        """
        container = Shown(view_unmade(container.message))
        async with self._connected_plugins.gate.shared(), self._merging:
            # All plugins connected now, also ones that end during this.
            validators = self._connected_plugins.takers(nri.VALIDATE_CONTAINER_ADJUSTMENT)
            present = self._present()
            merge = Merge(container.message)
            updates = MergedUpdates(merge.owners, created=container.id)
            seen = container
            for peer in self._connected_plugins.takers(nri.CREATE_CONTAINER):
                if merge.container is not seen.message:
                    seen = Shown(merge.container)
                message = EventMessage(nri.CREATE_CONTAINER, pod.data, seen.data)
                asked = await self._ask(peer, message, nri.CreateContainerResponse)
                if asked is None:
                    continue
                peer.asked_for(asked.adjust, len(asked.update), len(asked.evict))
                try:
                    merge.add(peer.title, asked.adjust)
                    self._log_left_out(updates.add(peer.title, asked.update))
                except AdjustmentConflict as conflict:
                    raise PluginRefused(str(conflict)) from None
            merged = Merged(merge.adjust, updates.result, merge.owners)
            # Our own rules first, which cost nothing.
            self._check_rules(
                nri_validate.ValidationInput(pod.message, container.message, merged.owners, present)
            )
            if validators:
                rest = nri.ValidateContainerAdjustmentRequest(
                    adjust=merged.adjust, update=merged.updates, owners=merged.owners, plugins=present
                ).SerializeToString()
                event = nri.VALIDATE_CONTAINER_ADJUSTMENT
                await self._judge_all(validators, EventMessage(event, pod.data, container.data, rest))
            return merged

    async def update(
        self, pod: Shown[nri.PodSandbox], container: Shown[nri.Container], resources: nri.LinuxResources
    ) -> list[nri.ContainerUpdate]:
        """Plugins' updates of other containers, and last of the one that the request updates.

        That one is not in the list if no plugin changes its new resources.

        :raises PluginRefused: it must not be updated.
        """
        rest = nri.UpdateContainerRequest(linux_resources=resources).SerializeToString()
        message = EventMessage(nri.UPDATE_CONTAINER, pod.data, container.data, rest)
        async with self._connected_plugins.gate.shared(), self._merging:
            updates = MergedUpdates(updated=container.id, resources=resources)
            for peer in self._connected_plugins.takers(nri.UPDATE_CONTAINER):
                asked = await self._ask(peer, message, nri.UpdateContainerResponse)
                if asked is None:
                    continue
                peer.asked_for(None, len(asked.update), len(asked.evict))
                try:
                    self._log_left_out(updates.add(peer.title, asked.update))
                except AdjustmentConflict as conflict:
                    raise PluginRefused(str(conflict)) from None
            return updates.result

    # ------------------------------------------------------------------ events

    async def stop(
        self, pod: Shown[nri.PodSandbox], container: Shown[nri.Container], picture: int = NOW
    ) -> list[nri.ContainerUpdate]:
        """A container has ended: plugins' updates of others. Conflicting ones are left out.

        ``picture``: the newest one when it ended.
        """
        message = EventMessage(nri.STOP_CONTAINER, pod.data, container.data)
        async with self._connected_plugins.gate.shared(), self._merging:
            updates = MergedUpdates()
            for peer in self._meant(nri.STOP_CONTAINER, container.id, picture):
                asked = await self._told(self._ask(peer, message, nri.StopContainerResponse))
                if asked is None:
                    continue
                peer.asked_for(None, len(asked.update), 0)
                for update in asked.update:
                    try:
                        self._log_left_out(updates.add(peer.title, [update]))
                    except AdjustmentConflict as conflict:
                        self._log.warning("an update is left out", plugin=peer.title, reason=str(conflict))
            return updates.result

    async def notify(
        self,
        event: int,
        pod: Shown[nri.PodSandbox],
        container: Optional[Shown[nri.Container]] = None,
        picture: int = NOW,
    ) -> None:
        """Tell an event. A plugin that fails does not keep the next one from being told.

        ``picture``: the newest one at the event.
        """
        # Events of pods have no container.
        message = EventMessage(event, pod.data, None if container is None else container.data)
        async with self._connected_plugins.gate.shared():
            for peer in self._meant(event, pod.id if container is None else container.id, picture):
                await self._told(self._ask(peer, message, None))

    def _meant(self, event: int, some_id: str, picture: int) -> list[RegisteredPlugin]:
        """The plugins to tell an event of a pod or container: not ones that came after it."""
        return [peer for peer in self._connected_plugins.takers(event) if peer.is_meant(some_id, picture)]

    def is_told(self, event: int) -> bool:
        """Whether a plugin takes an event, or one may in a moment."""
        return bool(self._connected_plugins.joining or self._connected_plugins.takers(event))

    async def _told(self, asking: Awaitable[Any]) -> Any:
        try:
            return await asking
        except PluginRefused as error:
            self._log.warning("an NRI plugin failed an event", reason=str(error))
            return None

    # ------------------------------------------------------------------ one plugin

    async def _ask_all(self, message: EventMessage) -> None:
        for peer in self._connected_plugins.takers(message.event):
            await self._ask(peer, message, None)

    async def _ask(
        self, peer: RegisteredPlugin, message: EventMessage, kind: Optional[type[Any]]
    ) -> Optional[Any]:
        """A plugin's reply, as a message of a kind if one is given; None: go on without it.

        :raises PluginRefused: the plugin refuses; or is silent, and must not be passed over.
        """
        try:
            reply = await peer.tell(message, self.settings.request_timeout_s)
            return peer.read(kind, reply) if kind is not None else None
        except CallFailed as error:
            raise PluginRefused(
                f'plugin "{peer.title}" failed {rpc_of(message.event).method}: {error}'
            ) from None
        except PeerLost as lost:
            self._connected_plugins.drop(peer, str(lost))
            if self._is_fatal(peer):
                sentence = f'plugin "{peer.title}" did not answer {rpc_of(message.event).method}: {lost}'
                raise PluginRefused(sentence) from None
            return None

    def _is_fatal(self, peer: RegisteredPlugin) -> bool:
        settings = self.settings
        patterns = (*settings.fail_closed, *settings.rules.required_plugins)
        return is_meant(patterns, peer.identity.index, peer.identity.name)

    def _log_left_out(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._log.warning("an update is left out", reason=sentence)

    # ------------------------------------------------------------------ rules

    def _present(self) -> list[nri.PluginInstance]:
        return [
            nri.PluginInstance(name=p.identity.name, index=p.identity.index)
            for p in self._connected_plugins.peers
        ]

    def _check_required(self, pod: nri.PodSandbox, container_name: str) -> None:
        try:
            nri_validate.check_required(self.settings.rules, pod, container_name, self._present())
        except nri_validate.Rejected as reason:
            raise PluginRefused(str(reason)) from None

    def _check_rules(self, question: nri_validate.ValidationInput) -> None:
        try:
            nri_validate.validate(self.settings.rules, question)
        except nri_validate.Rejected as reason:
            raise PluginRefused(
                nri_validate.refused_by(nri_validate.DEFAULT_VALIDATOR, str(reason))
            ) from None

    async def _judge_all(self, validators: tuple[RegisteredPlugin, ...], message: EventMessage) -> None:
        """All at once: any of them may refuse."""
        answers = await asyncio.gather(
            *(self._judge(peer, message) for peer in validators), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _judge(self, peer: RegisteredPlugin, message: EventMessage) -> None:
        try:
            reply = await peer.tell(message, self.settings.request_timeout_s)
            answer = peer.read(nri.ValidateContainerAdjustmentResponse, reply)
        except CallFailed as error:
            raise PluginRefused(nri_validate.failed_in(peer.title, str(error))) from None
        except PeerLost as lost:
            # As by NRI's own host: its answer is unknown. It is dropped and asked about no other create; that none
            # passes without it is said by ``nri.required_plugins``.
            self._connected_plugins.drop(peer, str(lost))
            raise PluginRefused(nri_validate.failed_in(peer.title, str(lost))) from None
        if answer.reject:
            raise PluginRefused(nri_validate.refused_by(peer.title, answer.reason))
