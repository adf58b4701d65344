"""What happened to containers that their owners should hear of: the last of it, in a ring. Pure.

Programs that follow the node ask for what came after the number they know, and tell it on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Optional

from policies.model import Container

#: As many are kept: a minute of a node on which all goes wrong.
KEPT = 256
#: As much of a reason is told: an event's note in Kubernetes has 1,024 characters.
MESSAGE_CHARS = 1000

#: Kinds, and how grave they are: placed on a larger rung than wished, refused, moved near a peer, left unplaced.
LARGER_RUNG, REFUSED, MOVED, UNPLACED = "LargerRung", "Refused", "MovedNearPeer", "Unplaced"
TYPES = {LARGER_RUNG: "Warning", REFUSED: "Warning", MOVED: "Normal", UNPLACED: "Warning"}


@dataclass(frozen=True)
class NotableEvent:
    """One thing that happened to a container; ``message``: one line."""

    seq: int
    reason: str
    type: str
    namespace: str
    pod: str
    pod_uid: str
    container: str
    message: str


class NotableEvents:
    """The last ``KEPT`` events of one daemon's life, numbered from 1."""

    def __init__(self) -> None:
        self._events: deque[NotableEvent] = deque(maxlen=KEPT)
        self._next = 1

    def add(self, reason: str, container: Container, message: str) -> None:
        """Something has happened to a container."""
        text = " ".join(message.split())
        pod = container.pod
        self._events.append(
            NotableEvent(
                self._next,
                reason,
                TYPES[reason],
                pod.namespace,
                pod.name,
                pod.uid,
                container.name,
                text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "...",
            )
        )
        self._next += 1

    def since(self, known: Optional[int]) -> dict[str, Any]:
        """The events from number ``known`` on (None: all that are kept), the next number, and how many are lost."""
        first = 1 if known is None else known
        kept = [asdict(event) for event in self._events if event.seq >= first]
        oldest = self._events[0].seq if self._events else self._next
        lost = max(0, oldest - first) if known is not None else 0
        return {"events": kept, "events_next": self._next, "events_lost": lost}
