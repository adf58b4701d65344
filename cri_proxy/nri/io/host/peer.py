"""One plugin that is connected to our host: its calls, one at a time, and what became of them."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from google.protobuf.message import DecodeError, Message

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.instruments import Count, Distribution
from cri_proxy.nri import stats as nri_stats
from cri_proxy.nri.dispatch import event_name, rpc_of, subscribes
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed, NriConnection
from cri_proxy.nri.messages import EventMessage
from cri_proxy.nri.stats import CallStats
from cri_proxy.nri.ttrpc import UNIMPLEMENTED
from cri_proxy.services.nri_metrics import NriMetrics

LAUNCHED, EXTERNAL = "launched", "external"
#: In the place of a picture's number: no plugin comes after this; all come after it.
NOW, NEVER = sys.maxsize, -1

Reply = TypeVar("Reply", bound=Message)


class PeerLost(Exception):
    """A plugin has not answered, or not with anything that could be read: it is of no more use. Says why."""


@dataclass(frozen=True)
class PluginIdentity:
    """What a plugin is known by. ``pid`` 0: not known. ``told``: the release of NRI it says it has."""

    index: str
    name: str
    origin: str
    pid: int = 0
    told: str = ""

    @property
    def title(self) -> str:
        """As it is named in conflicts and logs."""
        return f"{self.index}-{self.name}"


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
        #: The picture of the node that it was shown when it came, by its number, and the ids in it.
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
        """Whether it is told what was due about something when a picture was the newest.

        What was due before its own picture was taken is over, but for what is in it.
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
                if error.code != UNIMPLEMENTED or not rpc.has_fallback:
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
                if not (may_be_unknown and error.code == UNIMPLEMENTED):
                    self._count(method, nri_stats.ERROR, started, f"{method}: {error}")
                raise
            except CallTimedOut as error:
                self._count(method, nri_stats.TIMEOUT, started, str(error))
                raise PeerLost(str(error)) from None
            except ConnectionClosed as error:
                self._count(method, nri_stats.CLOSED, started, f"{method}: {error}")
                raise PeerLost(str(error)) from None
            self._count(method, nri_stats.OK, started)
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
            self.stats.count(nri_stats.BAD, 0.0, problem)
            raise PeerLost(problem) from None
        return message

    def asked_for(self, adjust: Optional[nri.ContainerAdjustment], updates: int, evictions: int) -> None:
        """Count what a reply asks for."""
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
            if result in (nri_stats.OK, nri_stats.ERROR):
                self._histograms[key] = metrics.seconds.labels(label, method)
        self._counters[key].inc()
        if key in self._histograms:
            self._histograms[key].observe(seconds)
