"""One connection of our plugin to a host of NRI: it registers, is configured and synchronized, and answers events.

Rule: nothing that goes wrong in here fails a pod. A bug, an unreadable message, an answer that would be late: the
answer is then an empty one, with a line and a counter (unless the namespace is configured to fail closed).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from google.protobuf.message import DecodeError, Message

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.core.cri import UnreadableRequest
from cri_proxy.core.interception import FAILED_PRECONDITION, INTERNAL
from cri_proxy.core.nri.events import event_name, may_update_unasked, subscription
from cri_proxy.shell.keeper import Keeper
from cri_proxy.shell.nri.connection import CallFailed, CallTimedOut, ConnectionClosed, Handler, NriConnection
from cri_proxy.shell.nri.placing import NriPlacing, Told
from cri_proxy.shell.nri.sync import Snapshot
from policies.model import BudgetSpent, PlacementRefused

#: The NRI that cri_api/nri_v1alpha1.proto is of; hosts before 0.12 are not told by it, and do not mind.
NRI_VERSION = "v0.12.2"
#: What the library for plugins waits for the answer to RegisterPlugin (pkg/stub), seconds.
REGISTER_S = 5.0
#: How long a host may take from there until it synchronizes: it does so with one plugin after the other.
SYNCHRONIZE_S = 60.0
#: How long one that has launched us may take: before NRI 0.7 it does not synchronize those, events just come.
LAUNCHED_S = 2.0
#: What hosts allow an event where they do not say (pkg/adaptation, DefaultPluginRequestTimeout), seconds.
EVENT_S = 2.0
#: The part of it after which the answer is an empty one: late, it would cost the connection.
PATIENCE = 0.75

Work = Callable[[Any, Told], Awaitable[Optional[Message]]]


@dataclass(frozen=True)
class Identity:
    """What the plugin is called, and where it stands among others: two digits."""

    name: str
    index: str


@dataclass(frozen=True)
class Host:
    """What Configure says of the host. ``nri_version``: "" before NRI 0.12."""

    runtime: str = ""
    version: str = ""
    nri_version: str = ""
    config: str = ""
    event_s: float = EVENT_S


@dataclass(frozen=True)
class Hooks:
    """What a session tells.

    ``synchronized``: events come from now on; with what runs, where the host has told. ``shut_down``: the host says
    that it ends, or that we are not wanted any more.
    """

    configured: Callable[[Host], Awaitable[None]]
    synchronized: Callable[[Optional[Snapshot]], None]
    shut_down: Callable[[], None]


class NriSession:
    """``run`` once. ``refused``: whether a host has refused our larger subscription. ``launched``: it has launched us."""

    def __init__(
        self,
        keeper: Keeper,
        placing: NriPlacing,
        hooks: Hooks,
        refused: Callable[[Host], bool],
        launched: bool = False,
    ) -> None:
        self._keeper = keeper
        self._hooks = hooks
        self._refused = refused
        self._launched = launched
        self._snapshot = Snapshot()
        self._connection: Optional[NriConnection] = None
        self._works = works_of(placing)
        self.host = Host()
        self.mask = 0
        self.events = 0
        #: How long the host has waited for the answer to Synchronize, all of its messages together, seconds.
        self.synchronize_s = 0.0
        self.synchronized = asyncio.Event()

    @property
    def caller(self) -> Optional[NriConnection]:
        """The connection, where the host may be asked for updates at any time."""
        return self._connection if may_update_unasked(self.host.nri_version) else None

    async def run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: Identity
    ) -> str:
        """Until the connection ends; returns why it has."""
        connection = NriConnection(reader, writer, "plugin", self._handlers(), self._keeper.log)
        self._connection = connection
        running = asyncio.ensure_future(connection.run())
        try:
            await self._register(connection, identity)
            return await running
        finally:
            connection.close("stopped")
            await asyncio.gather(running, return_exceptions=True)

    async def _register(self, connection: NriConnection, identity: Identity) -> None:
        request = nri.RegisterPluginRequest(
            plugin_name=identity.name, plugin_idx=identity.index, NRI_version=NRI_VERSION
        )
        wait_s = LAUNCHED_S if self._launched else SYNCHRONIZE_S
        try:
            await connection.call("RegisterPlugin", request.SerializeToString(), REGISTER_S)
            await asyncio.wait_for(self._synchronized_or_closed(connection), wait_s)
        except CallFailed as error:
            connection.close(f"RegisterPlugin was refused: {error.message}")
        except CallTimedOut as error:
            connection.close(str(error))
        except ConnectionClosed:
            pass
        except asyncio.TimeoutError:
            if self._launched and self.mask:
                self._begin(None)
            else:
                connection.close(f"the host has not synchronized within {wait_s:g} s")

    async def _synchronized_or_closed(self, connection: NriConnection) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self.synchronized, connection.closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # ------------------------------------------------------------------ the handshake

    def _handlers(self) -> Mapping[str, Handler]:
        events = {method: self._handler(method) for method in self._works}
        return {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": self._shut_down,
            "StateChange": self._state_change,
            **events,
        }

    async def _configure(self, message: bytes, timeout_s: float) -> bytes:
        told = nri.ConfigureRequest.FromString(message)
        event_s = told.request_timeout / 1000 or timeout_s or EVENT_S
        self.host = Host(told.runtime_name, told.runtime_version, told.NRI_version, told.config, event_s)
        self.mask = subscription(
            told.runtime_name, told.runtime_version, told.NRI_version, self._refused(self.host)
        )
        await self._hooks.configured(self.host)
        return bytes(nri.ConfigureResponse(events=self.mask).SerializeToString())

    async def _synchronize(self, message: bytes, timeout_s: float) -> bytes:
        started = time.perf_counter()
        is_last = self._snapshot.add(nri.SynchronizeRequest.FromString(message), self._keeper.clock())
        self.synchronize_s += time.perf_counter() - started
        if not is_last:
            return bytes(nri.SynchronizeResponse(more=True).SerializeToString())
        snapshot, self._snapshot = self._snapshot, Snapshot()
        self._begin(snapshot)
        return b""

    def _begin(self, snapshot: Optional[Snapshot]) -> None:
        self._hooks.synchronized(snapshot)
        self.synchronized.set()

    async def _shut_down(self, message: bytes, timeout_s: float) -> bytes:
        self._hooks.shut_down()
        return b""

    # ------------------------------------------------------------------ events

    def _handler(self, method: str) -> Handler:
        kind, work = getattr(nri, f"{method}Request"), self._works[method]

        async def handle(message: bytes, timeout_s: float) -> bytes:
            return await self._event(method, work, kind, message, timeout_s)

        return handle

    async def _state_change(self, message: bytes, timeout_s: float) -> bytes:
        """How hosts before NRI 0.12 tell the events that expect no answer."""
        method = event_name(nri.StateChangeEvent.FromString(message).event)
        work = self._works.get(method)
        if work is None:
            return b""
        await self._event(method, work, nri.StateChangeEvent, message, timeout_s)
        return b""

    async def _event(self, method: str, work: Work, kind: Any, message: bytes, timeout_s: float) -> bytes:
        told, started = Told(method), time.perf_counter()
        self.events += 1
        if not self.synchronized.is_set():
            self._begin(None)
        reply: Optional[Message] = None
        failure: Optional[CallFailed] = None
        try:
            budget_s = (timeout_s or self.host.event_s) * PATIENCE
            reply = await asyncio.wait_for(work(kind.FromString(message), told), budget_s)
        except PlacementRefused as error:
            told.outcome, told.fields["why"] = "refused", str(error)
            failure = CallFailed(FAILED_PRECONDITION, f"cri-resmgr: {error}")
        except Exception as error:
            failure = self._fail_open(told, error)
        self._note(told, started)
        if failure is not None:
            raise failure
        return b"" if reply is None else reply.SerializeToString()

    def _fail_open(self, told: Told, error: Exception) -> Optional[CallFailed]:
        """What to answer instead: nothing, or where the namespace fails closed an error."""
        keeper, reason = self._keeper, _reason(error)
        keeper.failed_open(told.method, reason, error)
        if told.method not in ("CreateContainer", "UpdateContainer") or not keeper.fails_closed(
            told.namespace
        ):
            told.outcome = f"failed open: {reason}"
            return None
        told.outcome = "refused"
        sentence = f"{told.method} could not be decided ({reason}) and {told.namespace} fails closed"
        return CallFailed(INTERNAL, f"cri-resmgr: {sentence}")

    def _note(self, told: Told, started: float) -> None:
        microseconds = round((time.perf_counter() - started) * 1e6)
        self._keeper.metrics.requests.labels(told.method, told.outcome).inc()
        self._keeper.log.info(told.method, **told.fields, outcome=told.outcome, us=microseconds)


def works_of(placing: NriPlacing) -> dict[str, Work]:
    """What is done with each event, by the name of its RPC."""
    return {
        "RunPodSandbox": placing.run_pod_sandbox,
        "UpdatePodSandbox": placing.update_pod_sandbox,
        "PostUpdatePodSandbox": placing.post_update_pod_sandbox,
        "StopPodSandbox": placing.stop_pod_sandbox,
        "RemovePodSandbox": placing.remove_pod_sandbox,
        "CreateContainer": placing.create_container,
        "PostCreateContainer": placing.post_create_container,
        "PostStartContainer": placing.post_start_container,
        "UpdateContainer": placing.update_container,
        "PostUpdateContainer": placing.post_update_container,
        "StopContainer": placing.stop_container,
        "RemoveContainer": placing.remove_container,
    }


def _reason(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "late"
    if isinstance(error, (UnreadableRequest, DecodeError, UnicodeDecodeError)):
        return "unreadable"
    return "budget" if isinstance(error, BudgetSpent) else "bug"
