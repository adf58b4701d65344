"""Events on pods, aggregated as the API's conventions and client-go's correlator have it. Pure.

The same reason on the same container is one Event that counts. An object has a budget of Events, so that a pod that is
refused without end writes little. What waits is bounded: with the API server away the oldest kinds are lost first,
and their number is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from cluster.agent.status import shortened
from cluster.api.names import AGENT

#: As client-go's EventSourceObjectSpamFilter: so many at once for an object, and one more in so many seconds.
BURST, REFILL_S = 25, 300.0
#: Kinds that wait for the API server, and kinds that are remembered; the oldest go first.
MOST_WAITING, MOST_KNOWN = 256, 1024
#: The API server keeps an Event for an hour after its last change: then it counts from 1 again.
FORGOTTEN_AFTER_S = 3000.0
MOST_MESSAGE = 1024
#: Reasons as Events have them, by those of ``report`` that people would not understand.
REASONS = {"LargerRung": "LargerDomain"}

#: Pod's uid, container, reason.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Happened:
    """One or more rows of ``report``'s events. ``first``, ``last``: RFC 3339."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    reason: str
    type: str
    message: str
    first: str
    last: str
    count: int = 1

    @property
    def key(self) -> Key:
        return self.pod_uid or f"{self.namespace}/{self.pod}", self.container, self.reason


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


class PodEvents:
    """Events to write, and events written. ``node``: where the pods run; ``instance``: this process's own word.

    The caller takes ``next``, carries it out, and says ``written``, ``gone`` or ``dropped``; or nothing, and tries again.
    """

    def __init__(self, node: str, instance: str) -> None:
        self._node = node
        self._instance = instance
        self._waiting: OrderedDict[Key, Happened] = OrderedDict()
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._number = 0
        #: Kinds that were dropped because nothing took them, or because an object had used up its budget.
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, row: Mapping[str, Any], now: str) -> None:
        """One row of ``report``'s events. A row without a pod is of no object, and is passed over."""
        if not row.get("pod") or not row.get("namespace"):
            return
        reason = str(row.get("reason") or "Placement")
        happened = Happened(
            str(row["namespace"]),
            str(row["pod"]),
            str(row.get("pod_uid") or ""),
            str(row.get("container") or ""),
            REASONS.get(reason, reason),
            "Warning" if row.get("type") == "Warning" else "Normal",
            shortened(str(row.get("message") or ""), MOST_MESSAGE),
            now,
            now,
        )
        before = self._waiting.get(happened.key)
        if before is not None:
            happened = replace(happened, first=before.first, count=before.count + 1)
        elif len(self._waiting) >= MOST_WAITING:
            self._waiting.popitem(last=False)
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

    def _has_budget(self, pod: str, now_s: float) -> bool:
        budget = self._budgets.setdefault(pod, _Budget(BURST, now_s))
        budget.left = min(BURST, budget.left + (now_s - budget.at_s) / REFILL_S)
        budget.at_s = now_s
        if len(self._budgets) > MOST_KNOWN:
            self._budgets.popitem(last=False)
        return budget.left >= 1

    def _spend(self, pod: str) -> None:
        if pod in self._budgets:
            self._budgets[pod].left -= 1

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
        name = f"{happened.pod[:200]}.{self._instance}{self._number:06x}"
        return Write(happened, name, True, self._body(happened, name))

    def _body(self, happened: Happened, name: str) -> dict[str, Any]:
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": happened.namespace,
            "name": happened.pod,
        }
        if happened.pod_uid:
            involved["uid"] = happened.pod_uid
        if happened.container:
            involved["fieldPath"] = f"spec.containers{{{happened.container}}}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": happened.namespace},
            "involvedObject": involved,
            "reason": happened.reason,
            "message": happened.message,
            "type": happened.type,
            "source": {"component": AGENT, "host": self._node},
            "reportingComponent": AGENT,
            "reportingInstance": f"{AGENT}-{self._node}"[:128],
            "firstTimestamp": happened.first,
            "lastTimestamp": happened.last,
            "count": happened.count,
        }


class EventCursor:
    """Which rows of a daemon's ring of events are new; another ``instance`` of the daemon begins anew."""

    def __init__(self) -> None:
        self._instance: Optional[str] = None
        self.since: Optional[int] = None
        """The number to ask with: after the last known row; None = all."""

    def already_told(self, instance: str) -> None:
        """An earlier process of the agent has written the events of this life: the ring's entries are no news."""
        if self._instance is None:
            self._instance = instance

    def new_rows(self, report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The rows of a report that were not there before."""
        instance, after = str(report.get("instance", "")), int(report.get("events_next", 1))
        since = self.since if instance == self._instance else 0
        self._instance, self.since = instance, after
        # Begun in the middle of a life that was told by another process: its past is known.
        since = after if since is None else since
        return [row for row in report.get("events", ()) if row.get("seq", 0) >= since]
