"""The host's messages to plugins as bytes: put together from pods and containers that were encoded before.

Most of a message is the same for every plugin and event, and most of a Synchronize the same as an hour ago. So each
pod and container is encoded once a change, and its bytes are copied into messages.

Source of the parts: containerd/nri pkg/adaptation/plugin.go (synchronize).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Optional, TypeVar

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.ttrpc_frames import MAX_DATA_BYTES
from cri_proxy.text.protobuf_bytes import write_varint

#: For the names around a request, and for the lengths in front of its parts.
_ENVELOPE_BYTES = 256
_PART_BYTES = 8
#: The tags of embedded messages by the number of their field.
_TAGS = {number: bytes([number << 3 | 2]) for number in (1, 2, 3)}
#: SynchronizeRequest's field 3, more, when set.
_MORE = b"\x18\x01"

Message = TypeVar("Message", nri.PodSandbox, nri.Container)


class Shown(Generic[Message]):
    """A pod or container as plugins are shown it. ``message`` is for reading; it is changed by ``change()`` only."""

    __slots__ = ("_entry", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._entry: Optional[tuple[bytes, bytes]] = None

    @property
    def id(self) -> str:
        return str(self.message.id)

    @property
    def entry(self) -> tuple[bytes, bytes]:
        """Length and encoding, made at the first use after a change."""
        if self._entry is None:
            data: bytes = self.message.SerializeToString()
            self._entry = write_varint(len(data)), data
        return self._entry

    @property
    def data(self) -> bytes:
        """Its encoding."""
        return self.entry[1]

    def change(self) -> Message:
        """The message; change it at once, before another plugin is asked."""
        self._entry = None
        return self.message


class EventMessage:
    """The request of one event. ``rest``: its other fields, encoded."""

    def __init__(self, event: int, pod: bytes, container: Optional[bytes] = None, rest: bytes = b"") -> None:
        self.event = event
        self._pod = pod
        self._container = container
        #: All requests of events have the pod as field 1 and the container, if any, as field 2.
        self.request = _embedded(1, pod) + _optional(2, container) + rest

    def state_change(self) -> bytes:
        """The same as a StateChangeEvent, as older plugins take it."""
        head: bytes = nri.StateChangeEvent(event=self.event).SerializeToString()
        return head + _embedded(2, self._pod) + _optional(3, self._container)


def _optional(number: int, data: Optional[bytes]) -> bytes:
    return b"" if data is None else _embedded(number, data)


def _embedded(number: int, data: bytes) -> bytes:
    return b"".join((_TAGS[number], write_varint(len(data)), data))


@dataclass(frozen=True)
class SyncPart:
    """A SynchronizeRequest, as bytes. ``more``: another one follows."""

    message: bytes
    more: bool


def sync_parts(
    pods: Iterable[Shown[nri.PodSandbox]], containers: Iterable[Shown[nri.Container]]
) -> tuple[list[SyncPart], list[str]]:
    """All pods and containers in as few messages as possible; and the ids too large for any.

    Pods come before their containers.
    """
    parts: list[list[bytes]] = [[]]
    left_out: list[str] = []
    room = MAX_DATA_BYTES - _ENVELOPE_BYTES
    used = 0
    for tag, items in ((_TAGS[1], pods), (_TAGS[2], containers)):
        for item in items:
            length, data = item.entry
            size = len(data) + _PART_BYTES
            if size > room:
                left_out.append(item.id)
                continue
            if used + size > room:
                parts.append([])
                used = 0
            used += size
            parts[-1] += (tag, length, data)
    last = len(parts) - 1
    made = [
        SyncPart(b"".join(part) + (b"" if at == last else _MORE), at < last) for at, part in enumerate(parts)
    ]
    return made, left_out
