"""Events on objects, aggregated as the API's conventions and client-go's correlator have it. Pure.

The same reason on the same object is one Event that counts. An object has a budget of Events, so that one that fails
without end writes little. What waits is bounded: with the API server away the oldest kinds are lost first, those that
warn of something last, and their number is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

#: As client-go's EventSourceObjectSpamFilter: so many at once for an object, and one more in so many seconds.
BURST, REFILL_S = 25, 300.0
#: Kinds that wait for the API server, and kinds that are remembered; the oldest go first.
MOST_WAITING, MOST_KNOWN = 256, 1024
#: The API server keeps an Event for an hour after its last change: then it counts from 1 again.
FORGOTTEN_AFTER_S = 3000.0
MOST_MESSAGE = 1024
#: Where Events on objects without a namespace are.
CLUSTER_NAMESPACE = "default"

NORMAL, WARNING = "Normal", "Warning"

#: Object, part of it, reason.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class About:
    """The object that an Event is about. ``part``: a field path in it."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
    part: str = ""

    @property
    def key(self) -> str:
        return self.uid or f"{self.kind}/{self.namespace}/{self.name}"

    def reference(self) -> dict[str, str]:
        """``involvedObject``."""
        found = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "fieldPath": self.part,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class Happened:
    """One or more times the same. ``first``, ``last``: RFC 3339."""

    about: About
    reason: str
    type: str
    message: str
    first: str
    last: str
    count: int = 1

    @property
    def key(self) -> Key:
        return self.about.key, self.about.part, self.reason

    @property
    def namespace(self) -> str:
        """Of the Event."""
        return self.about.namespace or CLUSTER_NAMESPACE


@dataclass(frozen=True)
class Write:
    """One request: ``name`` of the Event, ``is_new``: create it, else patch it."""

    happened: Happened
    name: str
    is_new: bool
    body: Mapping[str, Any]


@dataclass
class _Known:
    name: str
    count: int
    first: str
    written_s: float


@dataclass
class _Budget:
    left: float
    at_s: float


class Events:
    """Events to write, and events written. ``instance``: this process's own word; ``host``: its node, if it has one.

    The caller takes ``next``, carries it out, and says ``written``, ``gone`` or ``dropped``; or nothing, and tries again.
    """

    def __init__(self, component: str, instance: str, host: str = "") -> None:
        self._component, self._instance, self._host = component, instance, host
        self._waiting: OrderedDict[Key, Happened] = OrderedDict()
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._number = 0
        #: Kinds that were dropped because nothing took them, or because an object had used up its budget.
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, about: About, reason: str, type: str, message: str, now: str) -> None:
        """It has happened at ``now`` (RFC 3339); ``type``: ``NORMAL`` or ``WARNING``."""
        happened = Happened(about, reason, type, message[:MOST_MESSAGE], now, now)
        before = self._waiting.get(happened.key)
        if before is not None:
            happened = replace(happened, first=before.first, count=before.count + 1)
        elif len(self._waiting) >= MOST_WAITING:
            # A large rollout tells of each node: a node that fails among them is not to be lost.
            oldest = next(iter(self._waiting))
            del self._waiting[
                next((key for key, each in self._waiting.items() if each.type == NORMAL), oldest)
            ]
            self.lost += 1
        self._waiting[happened.key] = happened

    def next(self, now_s: float) -> Optional[Write]:
        """The request that is due, None = there is none. What an object has no budget for is dropped."""
        while self._waiting:
            key, happened = next(iter(self._waiting.items()))
            if self._has_budget(key[0], now_s):
                return self._write(key, happened, now_s)
            del self._waiting[key]
            self.lost += 1
        return None

    def written(self, write: Write, now_s: float) -> None:
        """The request came through. What has happened meanwhile under the same key keeps waiting."""
        key = write.happened.key
        known = self._known.pop(key, None)
        counted = 0 if write.is_new or known is None else known.count
        first = write.happened.first if write.is_new or known is None else known.first
        self._known[key] = _Known(write.name, counted + write.happened.count, first, now_s)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        self._spend(key[0])
        self._taken(write)

    def gone(self, write: Write) -> None:
        """The Event to be patched is no more: the next request makes a new one."""
        self._known.pop(write.happened.key, None)

    def dropped(self, write: Write) -> None:
        """The server will never take it: the namespace goes, or this process may not."""
        self.lost += 1
        self._taken(write)

    def _taken(self, write: Write) -> None:
        now = self._waiting.get(write.happened.key)
        if now is not None:
            del self._waiting[write.happened.key]
            if now.count > write.happened.count:
                self._waiting[now.key] = replace(now, count=now.count - write.happened.count)

    def _has_budget(self, about: str, now_s: float) -> bool:
        budget = self._budgets.setdefault(about, _Budget(BURST, now_s))
        budget.left = min(BURST, budget.left + (now_s - budget.at_s) / REFILL_S)
        budget.at_s = now_s
        if len(self._budgets) > MOST_KNOWN:
            self._budgets.popitem(last=False)
        return budget.left >= 1

    def _spend(self, about: str) -> None:
        if about in self._budgets:
            self._budgets[about].left -= 1

    def _write(self, key: Key, happened: Happened, now_s: float) -> Write:
        known = self._known.get(key)
        if known is not None and now_s - known.written_s < FORGOTTEN_AFTER_S:
            body = {
                "count": known.count + happened.count,
                "lastTimestamp": happened.last,
                "message": happened.message,
            }
            return Write(happened, known.name, False, body)
        self._number += 1
        # As client-go names them: the object's name, a dot, and hexadecimal digits that no other Event has.
        name = f"{happened.about.name[:200]}.{self._instance}{self._number:06x}"
        return Write(happened, name, True, self._body(happened, name))

    def _body(self, happened: Happened, name: str) -> dict[str, Any]:
        source = {"component": self._component, "host": self._host}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": happened.namespace},
            "involvedObject": happened.about.reference(),
            "reason": happened.reason,
            "message": happened.message,
            "type": happened.type,
            "source": {key: value for key, value in source.items() if value},
            "reportingComponent": self._component,
            "reportingInstance": f"{self._component}-{self._host or self._instance}"[:128],
            "firstTimestamp": happened.first,
            "lastTimestamp": happened.last,
            "count": happened.count,
        }
