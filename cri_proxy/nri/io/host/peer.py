"""The plugins that are connected to our host: the calls of each, one at a time; their order; which step waits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar

from google.protobuf.message import DecodeError, Message

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.instruments import Count, Distribution
from cri_proxy.metrics import NriMetrics
from cri_proxy.nri.dispatch import event_name, missing, rpc_of, subscribes
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed, NriConnection
from cri_proxy.nri.messages import EventMessage
from cri_proxy.nri.validate import NriSettings
from cri_proxy.relay.status import Code

LAUNCHED, EXTERNAL = "launched", "external"
#: In place of a picture's number: no plugin comes after NOW, all come after NEVER.
NOW, NEVER = sys.maxsize, -1

Reply = TypeVar("Reply", bound=Message)
#: How a call may end; all but the first are failures.
OK, ERROR, TIMEOUT, CLOSED, BAD = "ok", "error", "timeout", "closed", "bad reply"


class PeerLost(Exception):
    """A plugin has not answered, or with bytes that cannot be read: it is of no more use. Says why."""


@dataclass(frozen=True)
class PluginIdentity:
    """A plugin's name and process. ``pid`` 0: not known. ``told``: the NRI release it says it has."""

    index: str
    name: str
    origin: str
    pid: int = 0
    told: str = ""

    @property
    def title(self) -> str:
        """As it is named in conflicts and logs."""
        return f"{self.index}-{self.name}"


@dataclass
class CallStats:
    """Calls of one plugin by result, and the time of answered ones."""

    results: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    total_s: float = 0.0
    most_s: float = 0.0
    last_error: str = ""

    def count(self, result: str, seconds: float, problem: str = "") -> None:
        """One more."""
        self.results[result] = self.results.get(result, 0) + 1
        if problem:
            self.last_error = problem
        if result in (OK, ERROR):
            self.answered += 1
            self.total_s += seconds
            self.most_s = max(self.most_s, seconds)

    def document(self) -> dict[str, Any]:
        """As plain data."""
        mean_s = self.total_s / self.answered if self.answered else 0.0
        return {
            "calls": sum(self.results.values()),
            "failures": {result: count for result, count in sorted(self.results.items()) if result != OK},
            "mean_ms": round(mean_s * 1000, 3),
            "most_ms": round(self.most_s * 1000, 3),
            "last_error": self.last_error,
        }


class RegisteredPlugin:
    """A plugin after it has registered. Calls wait for each other, in the order in which they were made."""

    def __init__(
        self, identity: PluginIdentity, connection: NriConnection, metrics: NriMetrics, order: int
    ) -> None:
        self.identity = identity
        self.connection = connection
        self.mask = 0
        self.stats = CallStats()
        #: Events that it takes by StateChange only.
        self.old_style: set[int] = set()
        self.since_s = time.monotonic()
        #: The number of the picture of the node that it was shown at first, and its ids.
        self.picture = 0
        self.shown: frozenset[str] = frozenset()
        self._order = order
        self._metrics = metrics
        self._turn = asyncio.Lock()
        #: By method and result: to look them up each time takes a fifth of a call.
        self._counters: dict[tuple[str, str], Count] = {}
        self._histograms: dict[tuple[str, str], Distribution] = {}

    @property
    def title(self) -> str:
        return self.identity.title

    @property
    def rank(self) -> tuple[str, str, int]:
        """Plugins are asked in this order."""
        return (self.identity.index, self.identity.name, self._order)

    def takes(self, event: int) -> bool:
        """Whether it has subscribed to an event."""
        return subscribes(self.mask, event)

    def is_meant(self, some_id: str, picture: int) -> bool:
        """Whether it is told an event of ``some_id`` that was due when ``picture`` was the newest.

        Events due before its own picture are over, but for ids in it.
        """
        return picture >= self.picture or some_id in self.shown

    async def tell(self, message: EventMessage, timeout_s: float) -> bytes:
        """The reply to an event's call, by StateChange if the plugin does not know it.

        :raises CallFailed: the plugin's own error; it goes on.
        :raises PeerLost: it is of no more use.
        """
        rpc = rpc_of(message.event)
        if message.event not in self.old_style:
            try:
                return await self.call(
                    rpc.method, message.request, timeout_s, may_be_unknown=rpc.has_fallback
                )
            except CallFailed as error:
                if error.code != Code.UNIMPLEMENTED or not rpc.has_fallback:
                    raise
                self.old_style.add(message.event)
        return await self.call("StateChange", message.state_change(), timeout_s)

    async def call(
        self, method: str, message: bytes, timeout_s: float, may_be_unknown: bool = False
    ) -> bytes:
        """As ``tell``, for one call by its name. ``may_be_unknown``: that is no failure."""
        async with self._turn:
            started = time.perf_counter()
            try:
                reply = await self.connection.call(method, message, timeout_s)
            except CallFailed as error:
                if not (may_be_unknown and error.code == Code.UNIMPLEMENTED):
                    self._count(method, ERROR, started, f"{method}: {error}")
                raise
            except CallTimedOut as error:
                self._count(method, TIMEOUT, started, str(error))
                raise PeerLost(str(error)) from None
            except ConnectionClosed as error:
                self._count(method, CLOSED, started, f"{method}: {error}")
                raise PeerLost(str(error)) from None
            self._count(method, OK, started)
            return reply

    def read(self, kind: type[Reply], reply: bytes) -> Reply:
        """A reply's message.

        :raises PeerLost: it is none.
        """
        message = kind()
        try:
            message.ParseFromString(reply)
        except DecodeError:
            problem = f"its {kind.__name__} cannot be read"
            self.stats.count(BAD, 0.0, problem)
            raise PeerLost(problem) from None
        return message

    def asked_for(self, adjust: Optional[nri.ContainerAdjustment], updates: int, evictions: int) -> None:
        """Count a reply's requests."""
        kinds = {"adjust": int(bool(adjust and adjust.ByteSize())), "update": updates, "evict": evictions}
        for kind, count in kinds.items():
            if count:
                self._metrics.adjustments.labels(self._metrics.label(self.title), kind).inc(count)

    def document(self) -> dict[str, Any]:
        """For ``nri status``."""
        events = [event_name(event) for event in range(1, nri.LAST) if self.takes(event)]
        return {
            "name": self.identity.name,
            "index": self.identity.index,
            "origin": self.identity.origin,
            "state": "connected",
            "pid": self.identity.pid,
            "nri_version": self.identity.told,
            "connected_s": round(time.monotonic() - self.since_s, 1),
            "events": events,
            "by_state_change": [event_name(event) for event in sorted(self.old_style)],
            **self.stats.document(),
        }

    def _count(self, method: str, result: str, started: float, problem: str = "") -> None:
        seconds = time.perf_counter() - started
        self.stats.count(result, seconds, problem)
        metrics, key = self._metrics, (method, result)
        if key not in self._counters:
            label = metrics.label(self.title)
            self._counters[key] = metrics.calls.labels(label, method, result)
            if result in (OK, ERROR):
                self._histograms[key] = metrics.seconds.labels(label, method)
        self._counters[key].inc()
        if key in self._histograms:
            self._histograms[key].observe(seconds)


class Gate:
    """Many tasks may be inside at once, or one alone; in order of arrival, and none twice."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._turn:
            self._inside += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._turn:
            await self._is_empty.wait()
            yield


class ConnectedPlugins:
    """The plugins of one host, in the order in which they are asked.

    ``settings`` may be replaced at any time. ``on_change`` is called when a plugin connects or is dropped.
    """

    def __init__(self, settings: NriSettings, log: Any, metrics: NriMetrics) -> None:
        self.settings = settings
        self.log = log
        self.metrics = metrics
        self.gate = Gate()
        self.on_change: Optional[Callable[[], None]] = None
        #: How many plugins are about to be added: calls must wait for them at the gate.
        self.joining = 0
        self._peers: list[RegisteredPlugin] = []

    @property
    def peers(self) -> tuple[RegisteredPlugin, ...]:
        """In order."""
        return tuple(self._peers)

    def takers(self, event: int) -> tuple[RegisteredPlugin, ...]:
        """The subscribers of an event, in order."""
        return tuple(peer for peer in self._peers if peer.takes(event))

    def missing(self) -> list[str]:
        """The required plugins that are not there."""
        known = [(peer.identity.index, peer.identity.name) for peer in self._peers]
        return missing(self.settings.rules.required_plugins, known)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """A plugin is about to be added; a failure counts as one that goes."""
        self.joining += 1
        try:
            yield
        except BaseException:
            self.joining -= 1
            self._changed()
            raise
        self.joining -= 1

    def add(self, peer: RegisteredPlugin) -> None:
        self._peers = sorted([*self._peers, peer], key=lambda known: known.rank)
        self._changed()

    def drop(self, peer: RegisteredPlugin, reason: str) -> None:
        """Drop a plugin: its connection is closed, and it is asked nothing more. Again: no-op."""
        peer.connection.close(reason)
        if peer not in self._peers:
            return
        self._peers = [known for known in self._peers if known is not peer]
        self.metrics.dropped.labels(self.metrics.label(peer.title)).inc()
        self.log.warning("an NRI plugin is gone", plugin=peer.title, reason=reason)
        self._changed()

    def _changed(self) -> None:
        self.metrics.plugins.set(len(self._peers))
        if self.on_change is not None:
            self.on_change()
