"""How a plugin becomes one of ours: it registers, is configured, learns of all pods and containers, is asked.

External and launched plugins do the same once they are connected. Many may register at once; only the last step is
taken one at a time, while no pod or container event is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from google.protobuf.message import DecodeError

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.socket_paths import listen_at
from cri_api.waiting import wait_within
from cri_proxy.nri.dispatch import effective_mask, pause_s, registration_problem
from cri_proxy.nri.io.connection import CallFailed, NriConnection
from cri_proxy.nri.io.host.peer import EXTERNAL, ConnectedPlugins, PeerLost, PluginIdentity, RegisteredPlugin
from cri_proxy.nri.messages import Shown, sync_parts
from cri_proxy.nri.subscription import NRI_VERSION
from cri_proxy.relay.interception import AnswerFailed
from cri_proxy.relay.status import Code

#: The most plugins with a penalty.
_MOST_PENALTIES = 100
#: A plugin that has kept all calls waiting for longer, and then failed, has to wait itself.
LONG_S = 1.0
#: How long a plugin that is refused may take to read why.
FAREWELL_S = 1.0
#: Of root's processes alone; more of them is a mistake.
MOST_CONNECTIONS = 128


class PluginView(Protocol):
    """What plugins are told of, and may change."""

    #: How many pictures have been taken of it.
    pictures: int

    async def snapshot(self) -> tuple[list[Shown[nri.PodSandbox]], list[Shown[nri.Container]]]:
        """Take a picture: all pods, and the containers that have not ended. Every call of the host waits for it."""

    async def apply(self, plugin: str, updates: list[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Update containers; returns the failed ones."""


class NotAdmitted(Exception):
    """A plugin is not admitted; says why."""


@dataclass
class _Penalty:
    """A plugin that kept all calls waiting has to wait itself."""

    failures: int
    until_s: float


class Registrar:
    """Admits plugins to a roster. ``runtime``: the name and version of the runtime, as plugins are told."""

    def __init__(
        self,
        connected_plugins: ConnectedPlugins,
        pod_view: PluginView,
        runtime: Callable[[], tuple[str, str]],
    ) -> None:
        self._connected_plugins = connected_plugins
        self._pod_view = pod_view
        self._runtime = runtime
        self._log = connected_plugins.log
        self._order = 0
        self._penalties: dict[str, _Penalty] = {}

    async def serve(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        origin: PluginIdentity,
        config: str = "",
        admitted: Optional[Callable[[], None]] = None,
    ) -> str:
        """Serve a connection to its end; returns why it has ended.

        ``origin``: a launched plugin's name, else only where it comes from. ``admitted`` is called once it is
        admitted.
        """
        visit = _Visit(self._pod_view, self._log, origin, self._waits_s)
        connection = NriConnection(*streams, "host", visit.handlers, self._log)
        running = asyncio.ensure_future(connection.run())
        try:
            try:
                peer, updates = await self._admit(visit, connection, config)
            except (NotAdmitted, PeerLost) as problem:
                self._log.warning("an NRI plugin was not admitted", plugin=visit.title, reason=str(problem))
                if visit.is_refused:
                    # The refusal goes out first.
                    await asyncio.wait([running], timeout=FAREWELL_S)
                connection.close(str(problem))
                await asyncio.wait([running])
                return str(problem)
            try:
                if admitted is not None:
                    admitted()
                await self._apply(peer, updates)
                await asyncio.wait([running])
                return connection.reason
            finally:
                self._connected_plugins.drop(peer, connection.reason or "the host stops")
        finally:
            connection.close("the host stops")
            await asyncio.wait([running])

    async def _apply(self, peer: RegisteredPlugin, updates: list[nri.ContainerUpdate]) -> None:
        if not updates:
            return
        try:
            await self._pod_view.apply(peer.title, updates)
        except Exception:
            # A bug of ours, or a runtime that is gone, is not the plugin's fault.
            self._log.exception("what an NRI plugin wants was not applied", plugin=peer.title)

    async def _admit(
        self, visit: _Visit, connection: NriConnection, config: str
    ) -> tuple[RegisteredPlugin, list[nri.ContainerUpdate]]:
        settings = self._connected_plugins.settings
        # 1. It says its name.
        identity = await visit.registered(connection, settings.registration_timeout_s)
        self._order += 1
        peer = RegisteredPlugin(identity, connection, self._connected_plugins.metrics, self._order)
        # 2. It is configured, and names the events that it takes.
        name, version = self._runtime()
        request = nri.ConfigureRequest(
            config=config,
            runtime_name=name,
            runtime_version=version,
            registration_timeout=round(settings.registration_timeout_s * 1000),
            request_timeout=round(settings.request_timeout_s * 1000),
            NRI_version=NRI_VERSION,
        )
        try:
            reply = await peer.call("Configure", request.SerializeToString(), settings.request_timeout_s)
        except CallFailed as error:
            raise NotAdmitted(f"Configure: {error}") from None
        peer.mask, unknown = effective_mask(peer.read(nri.ConfigureResponse, reply).events)
        if unknown:
            self._log.warning("an NRI plugin asks for unknown events", plugin=peer.title, bits=hex(unknown))
        # 3. It learns of everything, and is asked from then on.
        updates = await self._synchronize(peer)
        visit.is_admitted = True
        self._log.info(
            "an NRI plugin is connected", plugin=peer.title, origin=identity.origin, pid=identity.pid
        )
        return peer, updates

    async def _synchronize(self, peer: RegisteredPlugin) -> list[nri.ContainerUpdate]:
        """Add a plugin such that no event is lost between its list and the first one told."""
        with self._connected_plugins.join():
            async with self._connected_plugins.gate.alone():
                updates = await self._exchange(peer, self._connected_plugins.settings.sync_timeout_s)
                if peer.connection.closed.is_set():
                    raise NotAdmitted(peer.connection.reason)
                self._penalties.pop(peer.title, None)
                self._connected_plugins.add(peer)
        return updates

    async def _exchange(self, peer: RegisteredPlugin, timeout_s: float) -> list[nri.ContainerUpdate]:
        try:
            pods, containers = await wait_within(timeout_s, self._pod_view.snapshot())
        except asyncio.TimeoutError:
            raise NotAdmitted("the runtime does not tell of its pods and containers") from None
        except AnswerFailed as error:
            raise NotAdmitted(f"the runtime's pods and containers are not known: {error}") from None
        except Exception as error:
            # A bug of ours keeps this plugin out, and hurts no other.
            self._log.exception("pods and containers cannot be shown", plugin=peer.title)
            raise NotAdmitted(f"{type(error).__name__}: {error}") from None
        peer.picture = self._pod_view.pictures
        peer.shown = frozenset([*(pod.id for pod in pods), *(container.id for container in containers)])
        parts, left_out = sync_parts(pods, containers)
        if left_out:
            self._log.warning("too large for an NRI plugin to be told of", plugin=peer.title, ids=left_out)
        started_s = time.monotonic()
        try:
            for part in parts:
                left_s = max(0.001, started_s + timeout_s - time.monotonic())
                reply = peer.read(
                    nri.SynchronizeResponse, await peer.call("Synchronize", part.message, left_s)
                )
                if part.more and (not reply.more or reply.update):
                    raise NotAdmitted("plugin does not handle split sync requests")
        except (NotAdmitted, PeerLost, CallFailed) as problem:
            if time.monotonic() - started_s > LONG_S:
                self._penalize(peer.title)
            raise NotAdmitted(f"Synchronize: {problem}") from None
        peer.asked_for(None, len(reply.update), 0)
        return [update for update in reply.update if update.container_id]

    def _waits_s(self, title: str) -> float:
        penalty = self._penalties.get(title)
        return max(0.0, penalty.until_s - time.monotonic()) if penalty is not None else 0.0

    def _penalize(self, title: str) -> None:
        penalty = self._penalties.pop(title, _Penalty(0, 0.0))
        failures = penalty.failures + 1
        wait_s = self._connected_plugins.settings.sync_timeout_s * pause_s(failures)
        self._penalties[title] = _Penalty(failures, time.monotonic() + wait_s)
        while len(self._penalties) > _MOST_PENALTIES:
            del self._penalties[next(iter(self._penalties))]


class _Visit:
    """Calls of one connected plugin: its registration, and unasked updates of containers."""

    def __init__(
        self, pod_view: PluginView, log: Any, origin: PluginIdentity, waits_s: Callable[[str], float]
    ) -> None:
        self.is_admitted = False
        self.is_refused = False
        self.title = origin.title if origin.name else ""
        self._pod_view = pod_view
        self._log = log
        self._origin = origin
        self._waits_s = waits_s
        self._registration: asyncio.Future[PluginIdentity] = asyncio.get_running_loop().create_future()
        self.handlers = {"RegisterPlugin": self._register, "UpdateContainers": self._update}

    async def registered(self, connection: NriConnection, timeout_s: float) -> PluginIdentity:
        """Its name, once it has said it.

        :raises NotAdmitted: none comes, or a bad one.
        """
        closing = asyncio.ensure_future(connection.closed.wait())
        try:
            await asyncio.wait(
                (self._registration, closing), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            closing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await closing
        if self._registration.done():
            return self._registration.result()
        self._registration.cancel()
        if connection.closed.is_set():
            raise NotAdmitted(connection.reason)
        raise NotAdmitted(f"it has not registered within {timeout_s:g} s")

    async def _register(self, message: bytes, timeout_s: float) -> bytes:
        request = _read(nri.RegisterPluginRequest, message)
        if self._registration.done():
            raise CallFailed(Code.UNKNOWN, "the plugin is registered already")
        told = replace(self._origin, told=request.NRI_version)
        if not self._origin.name:
            problem = registration_problem(request.plugin_name, request.plugin_idx)
            told = replace(told, index=request.plugin_idx, name=request.plugin_name)
            self.title = told.title
            waits_s = 0.0 if problem else self._waits_s(told.title)
            if waits_s:
                problem = f"plugin {told.title} took too long to be synchronized; it may come again in {waits_s:.0f} s"
            if problem:
                self.is_refused = True
                self._registration.set_exception(NotAdmitted(problem))
                raise CallFailed(Code.UNKNOWN, problem, is_last=True)
        self._registration.set_result(told)
        return b""

    async def _update(self, message: bytes, timeout_s: float) -> bytes:
        request = _read(nri.UpdateContainersRequest, message)
        if not self.is_admitted:
            raise CallFailed(Code.UNKNOWN, "the plugin has not been started yet: it is not synchronized")
        if request.evict:
            self._log.info("an NRI plugin asks for evictions, which are not done", plugin=self.title)
        updates = [update for update in request.update if update.container_id]
        failed = await self._pod_view.apply(self._registration.result().title, updates)
        reply: bytes = nri.UpdateContainersResponse(failed=failed).SerializeToString()
        return reply


def _read(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise CallFailed(Code.INVALID_ARGUMENT, f"the {kind.__name__} cannot be read") from None


def listening_socket(path: Path) -> socket.socket:
    """A socket of mode 0600 in a folder of 0700.

    :raises SocketTaken: a process serves it, or it cannot be made.
    """
    return listen_at(path, other="a runtime with an NRI of its own?", folder_mode=0o700)


def peer_pid(connection: Any) -> int:
    """The process at the other end of a unix socket, when it connected."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


class PluginListener:
    """The socket for plugins that connect by themselves: root's only. Each is served until its connection ends."""

    def __init__(self, path: Path, registrar: Registrar, log: Any) -> None:
        self._path = path
        self._registrar = registrar
        self._log = log
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: set[asyncio.Task[str]] = set()

    async def open(self) -> None:
        """:raises SocketTaken: the socket cannot be had."""
        self._server = await asyncio.start_unix_server(self._connected, sock=listening_socket(self._path))

    def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Close all connections."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            self._log.warning("too many NRI connections", most=MOST_CONNECTIONS)
            writer.transport.abort()
            return
        origin = PluginIdentity("", "", EXTERNAL, peer_pid(writer.get_extra_info("socket")))
        task = asyncio.ensure_future(self._registrar.serve((reader, writer), origin))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("an NRI connection failed", exc_info=task.exception())
