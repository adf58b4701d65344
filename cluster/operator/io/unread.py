"""NodePlacements that cannot be read: their nodes are left as they are, and everything that can say so does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.api.names import (
    API_VERSION,
    GROUP,
    NODE_PLACEMENT,
    NODE_PLACEMENTS,
    OPERATOR_MANAGER,
    READABLE,
    VERSION,
)
from cluster.api.reader import Skipped
from cluster.kube.events import WARNING, About, Events
from cluster.kube.io.clock import Clock
from cluster.kube.requests import ApiError, Resource
from cluster.operator.io.cache import Cache
from cluster.operator.objects import NodePlacement
from cluster.operator.plan import condition_document

PLACEMENTS = Resource(GROUP, VERSION, NODE_PLACEMENTS)


class UnreadPlacements:
    """``round`` says of each what is new about it: by its condition, an Event and a line of the log."""

    def __init__(self, client: Any, clock: Clock, events: Events, log: Callable[[str], None]) -> None:
        self._client, self._clock, self._events, self._log = client, clock, events, log
        self._told: dict[str, Skipped] = {}

    async def round(self, placements: Cache[NodePlacement], check: Callable[[], None]) -> None:
        """``check`` raises where nothing may be written any more."""
        mended = {name for name, each in placements.values.items() if each.unread_said}
        self._told = {
            name: told for name, told in self._told.items() if name in placements.unread or name in mended
        }
        for name, skipped in sorted(placements.unread.items()):
            if self._told.get(name) == skipped:
                continue
            check()
            sentence = f"the operator leaves this node as it is: {skipped.sentence}"
            about = About(API_VERSION, NODE_PLACEMENT, name, skipped.uid)
            self._events.add(about, "Unreadable", WARNING, sentence, self._clock.stamp())
            self._log(f"NodePlacement {name} cannot be read: {skipped.sentence}")
            self._told[name] = skipped
            await self._write(name, "False", "Unreadable", sentence)
        for name in sorted(mended):
            readable = Skipped(name, placements.values[name].uid, "")
            if self._told.get(name) != readable:
                check()
                self._told[name] = readable
                await self._write(name, "True", "Read", "")

    async def _write(self, name: str, status: str, reason: str, message: str) -> None:
        body = condition_document({"name": name}, READABLE, status, reason, message, self._clock.stamp())
        try:
            await self._client.apply(
                PLACEMENTS, name, body, manager=OPERATOR_MANAGER, subresource="status", metadata_only=True
            )
        except ApiError as error:
            # It is gone, or the server takes no write of it: the log and the Event have it.
            self._log(f"NodePlacement {name}: its condition {READABLE} is not written: {error}")
