"""One connection of our plugin to a host of NRI: it registers, is configured and synchronized, and answers events.

Rule: no error in here fails a pod. After a bug, an unreadable message or a timeout the answer is empty, with a log line
and a counter (unless the namespace is configured to fail closed).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from google.protobuf.message import DecodeError, Message

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.waiting import wait_within
from cri_proxy.cri.messages import UnreadableRequest
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ListedContainer
from cri_proxy.engine.resync import (
    SLICE,
    Listing,
    Resync,
    UnannouncedContainer,
    merged,
    resync_slices,
    unknown_ids,
)
from cri_proxy.nri import containers as reader
from cri_proxy.nri.dispatch import event_name
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed, Handler, NriConnection
from cri_proxy.nri.io.plugin.launched import EVENT_S, PATIENCE, Taken
from cri_proxy.nri.io.plugin.placing import NriPlacing, Told
from cri_proxy.nri.subscription import NRI_VERSION, STARTS, may_update_unasked, subscription
from cri_proxy.nri.ttrpc import PeerCall
from cri_proxy.relay.status import Code
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.reconciler import PlaceLate, Welcome
from policies.model import BudgetSpent, PlacementRefused

#: The plugin library's timeout of RegisterPlugin (pkg/stub), seconds.
REGISTER_S = 5.0
#: How long a host may take from there until it synchronizes: it does so plugin by plugin.
SYNCHRONIZE_S = 60.0
#: The same of a host that launched us: before NRI 0.7 it sends events without synchronizing.
LAUNCHED_S = 2.0

Work = Callable[[Any, Told], Awaitable[Optional[Message]]]


@dataclass(frozen=True)
class PluginName:
    """The plugin's name, and its place in the order: two digits."""

    name: str
    index: str


@dataclass(frozen=True)
class HostFacts:
    """What Configure says of the host. ``nri_version``: "" before NRI 0.12."""

    runtime: str = ""
    version: str = ""
    nri_version: str = ""
    config: str = ""
    event_s: float = EVENT_S


@dataclass(frozen=True)
class Hooks:
    """Called by a session.

    ``synchronized``: events come from now on; with the snapshot, if the host has sent one. ``shut_down``: the host ends,
    or dismisses us.
    """

    configured: Callable[[HostFacts], Awaitable[None]]
    synchronized: Callable[[Optional[Snapshot]], None]
    shut_down: Callable[[], None]


class NriSession:
    """``run`` once.

    ``refused``: whether a host has refused our larger subscription. ``has_starts``: whether the event before each start is
    wanted.
    """

    def __init__(
        self,
        node_state: NodeState,
        placing: NriPlacing,
        hooks: Hooks,
        refused: Callable[[HostFacts], bool],
        has_starts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._node_state = node_state
        self._hooks = hooks
        self._refused = refused
        self._has_starts = has_starts
        self._snapshot = Snapshot()
        self._connection: Optional[NriConnection] = None
        self._placing = placing
        self._works = works_of(placing)
        self.host = HostFacts()
        self.mask = 0
        self.events = 0
        #: How long the host has waited for the answer to Synchronize, all of its messages together, seconds.
        self.synchronize_s = 0.0
        self.synchronized = asyncio.Event()

    @property
    def caller(self) -> Optional[NriConnection]:
        """The connection, where the host may be asked for updates at any time."""
        return self._connection if may_update_unasked(self.host.nri_version) else None

    @property
    def lacks_starts(self) -> bool:
        """Whether the event before each start is wanted since the host was told what is."""
        return bool(self.mask) and not self.mask & STARTS and self._has_starts()

    def end(self, reason: str) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close(reason)

    async def run(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        identity: PluginName,
        taken: Optional[Taken] = None,
    ) -> str:
        """Until the connection ends; returns why. ``taken``: the connection of a host that launched us."""
        begun = None if taken is None else taken.begun
        connection = NriConnection(reader, writer, "plugin", self._handlers(), self._node_state.log, begun)
        self._connection = connection
        if taken is not None:
            self._take_over(taken)
        running = asyncio.ensure_future(connection.run())
        try:
            if taken is None:
                await self._register(connection, identity)
            else:
                await self._go_on(connection, taken)
            return await running
        finally:
            connection.close("stopped")
            await asyncio.gather(running, return_exceptions=True)

    async def _register(self, connection: NriConnection, identity: PluginName) -> None:
        request = nri.RegisterPluginRequest(
            plugin_name=identity.name, plugin_idx=identity.index, NRI_version=NRI_VERSION
        )
        try:
            await connection.call("RegisterPlugin", request.SerializeToString(), REGISTER_S)
            await wait_within(SYNCHRONIZE_S, self._synchronized_or_closed(connection))
        except CallFailed as error:
            connection.close(f"RegisterPlugin was refused: {error.message}")
        except CallTimedOut as error:
            connection.close(str(error))
        except ConnectionClosed:
            pass
        except asyncio.TimeoutError:
            connection.close(f"the host has not synchronized within {SYNCHRONIZE_S:g} s")

    def _take_over(self, taken: Taken) -> None:
        """Take the launched part's state over: configured, perhaps synchronized."""
        if taken.configure is not None:
            self._note_host(taken.configure, 0.0)
            self.mask = taken.mask or self.mask
        told_s = self._node_state.clock() - (time.monotonic() - taken.told_s)
        for message in taken.told:
            self._add(message, told_s)

    async def _go_on(self, connection: NriConnection, taken: Taken) -> None:
        for event in taken.waiting:
            left_s = max(event.until_s - time.monotonic(), 0.001)
            connection.take(PeerCall(event.stream, event.method, event.payload, left_s))
        if taken.configure is not None:
            await self._hooks.configured(self.host)
        try:
            await wait_within(LAUNCHED_S, self._synchronized_or_closed(connection))
        except asyncio.TimeoutError:
            if self.mask:
                self._begin(None)
            else:
                connection.close(f"the host has not configured its plugin within {LAUNCHED_S:g} s")

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
        self._note_host(message, timeout_s)
        await self._hooks.configured(self.host)
        return bytes(nri.ConfigureResponse(events=self.mask).SerializeToString())

    def _note_host(self, message: bytes, timeout_s: float) -> None:
        told = nri.ConfigureRequest.FromString(message)
        event_s = told.request_timeout / 1000 or timeout_s or EVENT_S
        self.host = HostFacts(told.runtime_name, told.runtime_version, told.NRI_version, told.config, event_s)
        self.mask = subscription(
            told.runtime_name,
            told.runtime_version,
            told.NRI_version,
            self._refused(self.host),
            has_starts=self._has_starts(),
        )

    async def _synchronize(self, message: bytes, timeout_s: float) -> bytes:
        started = time.perf_counter()
        is_last = self._add(message, self._node_state.clock())
        self.synchronize_s += time.perf_counter() - started
        return b"" if is_last else bytes(nri.SynchronizeResponse(more=True).SerializeToString())

    def _add(self, message: bytes, now_s: float) -> bool:
        """Add a part of the snapshot. True: it was the last one, and events begin."""
        if not self._snapshot.add(nri.SynchronizeRequest.FromString(message), now_s):
            return False
        snapshot, self._snapshot = self._snapshot, Snapshot()
        self._begin(snapshot)
        return True

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
        self._placing.begin_event()
        if not self.synchronized.is_set():
            self._begin(None)
        reply: Optional[Message] = None
        failure: Optional[CallFailed] = None
        try:
            budget_s = (timeout_s or self.host.event_s) * PATIENCE
            reply = await wait_within(budget_s, work(kind.FromString(message), told))
        except PlacementRefused as error:
            told.outcome, told.fields["why"] = "refused", str(error)
            failure = CallFailed(Code.FAILED_PRECONDITION, f"cri-resmgr: {error}")
        except Exception as error:
            failure = self._fail_open(told, error)
        self._note(told, started)
        if failure is not None:
            raise failure
        return b"" if reply is None else reply.SerializeToString()

    def _fail_open(self, told: Told, error: Exception) -> Optional[CallFailed]:
        """The answer instead: empty, or where the namespace fails closed an error."""
        node_state, reason = self._node_state, _reason(error)
        node_state.failed_open(told.method, reason, error)
        if told.method not in ("CreateContainer", "UpdateContainer") or not node_state.fails_closed(
            told.namespace
        ):
            told.outcome = f"failed open: {reason}"
            return None
        told.outcome = "refused"
        sentence = f"{told.method} could not be decided ({reason}) and {told.namespace} fails closed"
        return CallFailed(Code.INTERNAL, f"cri-resmgr: {sentence}")

    def _note(self, told: Told, started: float) -> None:
        microseconds = round((time.perf_counter() - started) * 1e6)
        self._node_state.metrics.requests.labels(told.method, told.outcome).inc()
        self._node_state.log.info(told.method, **told.fields, outcome=told.outcome, us=microseconds)


class Snapshot:
    """The pods and containers of one Synchronize, which may come in several messages.

    ``ended``: containers of which an event has told the end since.
    """

    def __init__(self) -> None:
        self.pods: list[nri.PodSandbox] = []
        self.containers: list[nri.Container] = []
        self.ended: set[str] = set()
        self.at_s = 0.0

    def add(self, request: nri.SynchronizeRequest, now_s: float) -> bool:
        """Take one message. True: it was the last one."""
        self.pods += request.pods
        self.containers += request.containers
        self.at_s = now_s
        return not request.more


async def follow_snapshot(
    node_state: NodeState, snapshot: Snapshot, welcome: Welcome, place_late: PlaceLate
) -> Resync:
    """Bring the records in line with a snapshot, in slices between which events pass.

    Called after the host was answered: it gives two seconds on nodes with hundreds of containers. Only what started while
    no events came is moved, by ``place_late``; cgroups are compared in the next round of the reconciler, which the caller
    asks for.
    """
    engine = node_state.active()
    if engine is None:
        return Resync()
    _note_pods(engine, snapshot.pods, node_state.log)
    question = node_state.books.question
    seen = reader.read_seen(snapshot.containers, engine.pods, engine.grants)
    found = await _details(node_state, engine, snapshot, seen)
    _leave_out(found, snapshot.ended)
    # Where all is known there is nothing to tell from anything.
    adopted = await welcome(engine, found) if found else found
    details = {key: each.container for key, each in adopted.items()}
    # A host tells the cpuset it has noted: enough to know where a container without a record runs, not enough
    # to call a known one's changed.
    listing = Listing(seen, snapshot.at_s, details, pending=frozenset(engine.grants))
    parts = []
    _leave_out(details, snapshot.ended)
    for part in resync_slices(engine, listing, node_state.clock()):
        node_state.save()
        parts.append(part)
        await asyncio.sleep(0)
        if engine is not node_state.active():
            break
        _leave_out(details, snapshot.ended)
    if engine is node_state.active() and question == node_state.books.question:
        node_state.books.confirm()
    if engine is node_state.active():
        _leave_out(found, snapshot.ended)
        await place_late(engine, {key: each for key, each in found.items() if key not in adopted})
    return merged(parts)


def _leave_out(details: dict[str, Any], ended: set[str]) -> None:
    for key in ended:
        details.pop(key, None)


def _note_pods(engine: Engine, pods: list[nri.PodSandbox], log: Any) -> None:
    for message in pods:
        known = engine.pods.get(message.id)
        try:
            pod = reader.read_pod(message, known)
        except UnreadableRequest as error:
            log.warning("a pod is not understood", id=message.id, error=str(error))
            continue
        if pod != known:
            engine.add_pod(pod)


async def _details(
    node_state: NodeState, engine: Engine, snapshot: Snapshot, seen: dict[str, ListedContainer]
) -> dict[str, UnannouncedContainer]:
    """What containers are that there is no record of; whether their quotas were taken is noted in ``seen``."""
    unknown = set(unknown_ids(engine, seen.values()))
    details = {}
    for number, container in enumerate(snapshot.containers):
        if number % SLICE == 0:  # each takes a tenth of a millisecond to read
            await asyncio.sleep(0)
        pod = engine.pods.get(container.pod_sandbox_id)
        if container.id in unknown and pod is not None:
            with contextlib.suppress(UnreadableRequest):  # it is left as it is
                read = reader.read_container(container, pod, 0, node_state.memory_bytes)
                is_taken = node_state.has_taken_quota(pod, container.linux.resources.cpu.quota.value)
                seen[container.id] = replace(seen[container.id], has_no_quota=is_taken)
                details[container.id] = reader.read_unannounced(container, read, seen[container.id])
    return details


def works_of(placing: NriPlacing) -> dict[str, Work]:
    """The handler of each event, by its RPC's name."""
    return {
        "RunPodSandbox": placing.run_pod_sandbox,
        "UpdatePodSandbox": placing.update_pod_sandbox,
        "PostUpdatePodSandbox": placing.post_update_pod_sandbox,
        "StopPodSandbox": placing.stop_pod_sandbox,
        "RemovePodSandbox": placing.remove_pod_sandbox,
        "CreateContainer": placing.create_container,
        "PostCreateContainer": placing.post_create_container,
        "StartContainer": placing.start_container,
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
