"""The daemon's events as Events on pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from cluster.agent.status import shortened
from cluster.kube.events import MOST_MESSAGE, NORMAL, WARNING, About, Events

#: Reasons as Events have them, by those of ``report`` that people would not understand.
REASONS = {"LargerRung": "LargerDomain"}


def add_row(events: Events, row: Mapping[str, Any], now: str) -> None:
    """One row of ``report``'s events. A row without a pod is of no object, and is passed over."""
    if not row.get("pod") or not row.get("namespace"):
        return
    container, reason = str(row.get("container") or ""), str(row.get("reason") or "Placement")
    about = About(
        "v1",
        "Pod",
        str(row["pod"]),
        str(row.get("pod_uid") or ""),
        str(row["namespace"]),
        f"spec.containers{{{container}}}" if container else "",
    )
    kind = WARNING if row.get("type") == WARNING else NORMAL
    message = shortened(str(row.get("message") or ""), MOST_MESSAGE)
    events.add(about, REASONS.get(reason, reason), kind, message, now)


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
