"""The streams of a relayed connection, and what the relay says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Callable, Optional, Union

from cri_proxy.relay.http2.messages import Hold, ReplyHold
from cri_proxy.relay.interception import CallEnd


class Stage(Enum):
    """How far an intercepted stream is. All others are PASSING from the start."""

    HOLDING = "holding"  # the request comes, nothing was sent on but its headers
    DECIDING = "deciding"  # its first message is there
    PASSING = "passing"  # the request was sent, what follows passes
    TAKEN = "taken"  # ended at the runtime; what the client gets is made here


class Stream:
    """One open stream. The fields from ``call`` on are of intercepted ones."""

    __slots__ = (
        "answer",
        "asked_bytes",
        "call",
        "client_done",
        "has_reply",
        "headers",
        "hold",
        "id",
        "is_answered",
        "is_clear",
        "method",
        "reader",
        "stage",
        "taken_s",
    )

    def __init__(self, stream: int, method: str) -> None:
        self.id = stream
        self.method = method
        self.stage = Stage.PASSING
        #: The client has sent END_STREAM.
        self.client_done = False
        #: Response headers have gone to the client.
        self.has_reply = False
        #: Whatever the shell knows the call by; None: the stream is not intercepted.
        self.call: Any = None
        #: The request's, as names and values.
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.hold: Optional[Hold] = None
        self.reader: Optional[ReplyHold] = None
        #: Of the message that was asked about.
        self.asked_bytes = 0
        #: TAKEN: since when; nothing more comes from the runtime; what waits for that; its end was said.
        self.taken_s = 0.0
        self.is_clear = False
        self.answer: list[Callable[[], None]] = []
        self.is_answered = False


@dataclass(frozen=True)
class RequestReceived:
    """The request of an intercepted stream is whole. It waits for ``forward`` or ``take_over``."""

    stream: int
    call: Any
    message: bytes


@dataclass(frozen=True)
class ReplyReceived:
    """Messages of a reply, not sent on yet. The runtime's side waits for ``resume``."""

    call: Any
    messages: tuple[bytes, ...]


@dataclass(frozen=True)
class Ended:
    """An intercepted call that was asked about is over. ``waits``: the runtime's side waits for ``resume``."""

    stream: int
    call: Any
    end: CallEnd
    code: int
    details: str
    waits: bool = False


@dataclass(frozen=True)
class FailedOpen:
    """A request of an intercepted stream was sent on unseen."""

    method: str
    reason: str


@dataclass(frozen=True)
class Closing:
    """The connection ends: write what there is, then close."""

    reason: str
    is_doubt: bool = False


@dataclass(frozen=True)
class FarewellRead:
    """The client has read that it is to begin no calls here."""


Event = Union[RequestReceived, ReplyReceived, Ended, FailedOpen, Closing, FarewellRead]
